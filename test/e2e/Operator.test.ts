// @effect-diagnostics nodeBuiltinImport:off
/**
 * What an operator can do at 3 a.m. with commands alone, on real processes: free a lock that a stopped worker keeps, see the
 * worker refused when it wakes, find out why from one trace id; settle a payout of which nobody knows whether it was paid.
 */
import { assert, layer } from "@effect/vitest"
import * as os from "node:os"
import { Context, Effect, Layer, Redacted, type Scope } from "effect"
import {
  type HarnessError,
  make as makeWorld,
  type LogRecord,
  type ServiceProcess
} from "../../src/harness/Processes.ts"
import * as PgLockStore from "../../src/services/lock-server/PgLockStore.ts"
import * as PgPaydb from "../../src/services/payment-resource/PgPaydb.ts"
import * as Migrations from "../../src/services/platform/Migrations.ts"
import { emptyDirectory, run as runProgram } from "../support/leftovers.ts"
import { document, run } from "../support/operator.ts"
import { TestDatabase } from "../support/pg.ts"
import { waitUntil } from "../support/waitUntil.ts"

const lockdb = TestDatabase.layer("lockdb", (url) => Migrations.migrate({ url, directory: PgLockStore.MIGRATIONS }))
const paydb = TestDatabase.layer("paydb", PgPaydb.migrate)

interface Installation {
  readonly environment: Readonly<Record<string, string>>
  readonly railUrl: string
  readonly logs: () => ReadonlyArray<LogRecord>
  readonly worker: (
    name: string,
    environment?: Readonly<Record<string, string>>
  ) => Effect.Effect<ServiceProcess, HarnessError, Scope.Scope>
  readonly rail: ServiceProcess
  /** Changes lockdb as only its owner could. */
  readonly lockdb: (statement: string) => Effect.Effect<unknown>
}

class Running extends Context.Service<Running, Installation>()("test/e2e/Operator/Running") {
  static readonly layer = Layer.effect(
    Running,
    Effect.gen(function* () {
      const lock = Context.get(yield* Layer.build(lockdb), TestDatabase)
      const pay = Context.get(yield* Layer.build(paydb), TestDatabase)
      const world = yield* makeWorld
      const processes: Array<ServiceProcess> = []
      const ports = { HTTP_PORT: "0", MANAGEMENT_PORT: "0", DLOCK_MIGRATE: "false" }
      const start = (name: string, command: string, environment: Readonly<Record<string, string>>) =>
        world
          .start(name, [command], { ...ports, ...environment })
          .pipe(Effect.tap((process) => Effect.sync(() => processes.push(process))))
      const rail = yield* start("rail-stub", "rail-stub", {})
      const railUrl = (yield* rail.listening).url
      const paydbUrl = Redacted.value(pay.url)
      const lockdbUrl = Redacted.value(lock.url)
      const [locks, payment, proxy] = yield* Effect.all(
        [
          start("lock-server", "lock-server", { LOCK_PG_URL: lockdbUrl }),
          start("payment-resource", "payment-resource", { PAYMENT_PG_URL: paydbUrl }),
          start("rail-proxy", "rail-proxy", {
            RAIL_PG_URL: paydbUrl,
            RAIL_URL: railUrl,
            RAIL_READ_TIMEOUT: "700 ms",
            RAIL_SEND_WINDOW: "500 ms"
          })
        ],
        { concurrency: "unbounded" }
      )
      const lockAt = yield* locks.listening
      const services = {
        LOCK_URL: lockAt.url,
        PAYMENT_URL: (yield* payment.listening).url,
        RAIL_PROXY_URL: (yield* proxy.listening).url
      }
      return {
        environment: {
          ...services,
          LOCK_MANAGEMENT_URL: lockAt.managementUrl,
          LOCK_PG_URL: lockdbUrl,
          PAYMENT_PG_URL: paydbUrl
        },
        railUrl,
        rail: proxy,
        lockdb: (statement) =>
          Effect.orDie(Effect.scoped(Effect.flatMap(lock.pool({ maxConnections: 1 }), (sql) => sql.unsafe(statement)))),
        logs: () => processes.flatMap(({ log }) => log),
        worker: (name, environment = {}) =>
          start(name, "payout-executor", {
            ...services,
            DLOCK_INSTANCE: name,
            PAYOUT_EXECUTOR_POLL_INTERVAL: "100 ms",
            RAIL_READ_TIMEOUT: "700 ms",
            RAIL_SEND_WINDOW: "500 ms",
            ...environment
          })
      }
    })
  )
}

/** Told in the test, not a command: the world outside. */
const put = (url: string, body: unknown) =>
  Effect.promise((signal) =>
    fetch(url, { method: "PUT", signal, headers: { "content-type": "application/json" }, body: JSON.stringify(body) })
  )
const openAccount = (url: string, accountId: string) =>
  Effect.promise((signal) =>
    fetch(`${url}/v1/accounts`, {
      method: "POST",
      signal,
      headers: { "content-type": "application/json", "x-owner-id": "test" },
      body: JSON.stringify({ accountId, currency: "EUR", openingBalanceMinor: "10000" })
    })
  )

const post = (url: string, body: object) =>
  Effect.promise((signal) =>
    fetch(url, {
      method: "POST",
      signal,
      headers: { "content-type": "application/json", "x-owner-id": "hangs" },
      body: JSON.stringify(body)
    }).then((response) => response.json() as Promise<Record<string, unknown>>)
  )

const order = Effect.fnUntraced(function* (environment: Readonly<Record<string, string>>, accountId: string) {
  const created = yield* document(
    [
      "payouts",
      "create",
      "--account",
      accountId,
      "--amount",
      "2500",
      "--currency",
      "EUR",
      "--beneficiary",
      "Ada Example"
    ],
    environment
  )
  return String(created["payoutId"])
})

const isHop = (op: string, outcome: string) => (record: LogRecord) =>
  record["event"] === "payout_hop" && record["op"] === op && record["outcome"] === outcome

layer(Running.layer, { excludeTestServices: true, timeout: "120 seconds" })(
  "with commands alone, an operator",
  (it) => {
    it.effect(
      "frees the lock of a stopped worker, sees the worker refused, and finds out why from one trace id",
      () =>
        Effect.gen(function* () {
          const { environment, logs, rail, worker } = yield* Running
          yield* openAccount(environment["PAYMENT_URL"] ?? "", "acct-stuck")
          const payoutId = yield* order(environment, "acct-stuck")

          // Long leases: the lock would be kept for a minute more.
          const stuck = yield* worker("W1", {
            LOCK_DEFAULT_TTL: "60 s",
            LOCK_SESSION_TTL: "60 s",
            DLOCK_FAULT_POINT: "submit.before:stop"
          })
          yield* stuck.awaitRecord("stops itself", (record) => record["event"] === "fault_point", "60 seconds")
          yield* stuck.awaitStopped

          const explained = yield* run(["payouts", "explain", payoutId], environment)
          assert.strictEqual(explained.code, 0, explained.stderr)
          assert.match(explained.stdout, /is CLAIMED under token \d+/)
          assert.include(explained.stdout, "Nothing was submitted to the rail.")
          assert.match(explained.stdout, /lock is held by W1 under token \d+/)
          assert.include(explained.stdout, "locks revoke payout:acct-stuck")

          const shown = yield* document(["locks", "get", "payout:acct-stuck"], environment)
          const { fencingToken, ownerId } = shown["lock"] as Record<string, unknown>
          assert.strictEqual(ownerId, "W1")

          const unasked = yield* run(["locks", "revoke", "payout:acct-stuck", "--reason", "W1 hangs"], environment)
          assert.deepStrictEqual([unasked.code, unasked.stdout], [2, ""])
          assert.include(unasked.stderr, "--yes")
          assert.include(unasked.stderr, payoutId)
          const revoked = yield* document(
            ["locks", "revoke", "payout:acct-stuck", "--reason", "W1 hangs", "--operator", "anna", "--yes"],
            environment
          )
          assert.strictEqual(revoked["revokedToken"], fencingToken)
          assert.isTrue(BigInt(String(revoked["newTokenFloor"])) >= BigInt(String(fencingToken)))
          assert.match(String(revoked["revocationId"]), /^revoke-/)

          const successor = yield* worker("W2")
          yield* successor.awaitRecord("posts it", isHop("post", "POSTED"), "60 seconds")

          yield* stuck.resume
          const refused = yield* stuck.awaitRecord("is fenced out", isHop("submit", "FENCED_OUT"), "60 seconds")
          const refusal = yield* rail.awaitRecord(
            "refuses it",
            (record) => record["event"] === "fenced_out",
            "30 seconds"
          )
          const traceId = String(refusal["traceId"])
          assert.strictEqual(refused["traceId"], traceId)

          // The story of one trace id, over the logs of all services: who had the lock, what he did, where he was refused.
          const story = logs().filter((record) => record["traceId"] === traceId)
          const told = (service: string, event: string) =>
            story.find((record) => record.service === service && record["event"] === event)
          assert.strictEqual(told("lock-server", "lock_granted")?.["ownerId"], "W1")
          assert.strictEqual(told("lock-server", "lock_granted")?.["fencingToken"], fencingToken)
          assert.strictEqual(told("payment-resource", "payout_transition")?.["payoutId"], payoutId)
          assert.strictEqual(refusal["fencingToken"], fencingToken)
          assert.isTrue(BigInt(String(refusal["highest"])) > BigInt(String(fencingToken)))

          const after = yield* run(["locks", "get", "payout:acct-stuck"], environment)
          assert.match(after.stdout, /revoked +\S+ by anna: W1 hangs/)
          const history = yield* run(["payouts", "transitions", payoutId], environment)
          assert.match(history.stdout, new RegExp(`CLAIMED +${String(fencingToken)} .*W1 +${traceId}`))
          assert.match(history.stdout, new RegExp(`POSTED +${String(refusal["highest"])} .*W2 `))
        }),
      180_000
    )

    it.effect(
      "settles payouts of which nobody knows whether they were paid",
      () =>
        Effect.gen(function* () {
          const { environment, railUrl, worker } = yield* Running
          yield* openAccount(environment["PAYMENT_URL"] ?? "", "acct-paid")
          yield* openAccount(environment["PAYMENT_URL"] ?? "", "acct-unpaid")
          yield* put(`${railUrl}/control`, { faults: [{ kind: "timeoutPaid" }] })
          const executor = yield* worker("W3")
          const becomesAmbiguous = (payoutId: string) =>
            executor.awaitRecord(
              `${payoutId} is ambiguous`,
              (record) => isHop("ambiguous", "RAIL_AMBIGUOUS")(record) && record["payoutId"] === payoutId,
              "60 seconds"
            )
          const paid = yield* order(environment, "acct-paid")
          yield* becomesAmbiguous(paid)
          yield* put(`${railUrl}/control`, { faults: [{ kind: "timeoutUnpaid" }] })
          const unpaid = yield* order(environment, "acct-unpaid")
          yield* becomesAmbiguous(unpaid)

          const explained = yield* run(["payouts", "explain", paid], environment)
          assert.include(explained.stdout, "Next step: LOOKUP, by the reconciler")
          assert.include(explained.stdout, "Never: submit it again")
          const listed = yield* run(["payouts", "list", "--state", "RAIL_AMBIGUOUS"], environment)
          assert.include(listed.stdout, paid)
          assert.include(listed.stdout, unpaid)

          // The rail's own word settles the one that it paid; of the other it knows nothing, which is no proof yet.
          const pass = yield* document(["reconcile", "run"], environment)
          assert.deepStrictEqual(
            new Map(
              (pass["items"] as ReadonlyArray<Record<string, string>>).map((one) => [one["payoutId"], one["outcome"]])
            ),
            new Map([
              [paid, "POSTED"],
              [unpaid, "UNKNOWN"]
            ])
          )
          // An operator's word that proves nothing is kept and moves nothing.
          const early = yield* document(
            ["reconcile", "resolve", unpaid, "--finding", "NOT_FOUND", "--reason", "rail desk says so", "--yes"],
            environment,
            4
          )
          assert.strictEqual(early["code"], "EVIDENCE_MISSING")
          const resolved = yield* document(
            ["reconcile", "resolve", unpaid, "--finding", "REJECTED", "--reason", "rail desk, ticket 4711", "--yes"],
            environment
          )
          assert.deepStrictEqual([resolved["state"], resolved["failReason"]], ["FAILED", "RAIL_NOT_EXECUTED"])
          const settled = yield* run(["payouts", "explain", unpaid], environment)
          assert.include(settled.stdout, "Next step: none")
          const twice = yield* document(
            ["reconcile", "resolve", unpaid, "--finding", "EXECUTED", "--reason", "changed my mind", "--yes"],
            environment,
            4
          )
          assert.strictEqual(twice["code"], "ILLEGAL_TRANSITION")
        }),
      180_000
    )

    it.effect(
      "cancels, fences at once, examines and repairs, and is told no with a code that says which",
      () =>
        Effect.gen(function* () {
          const { environment, lockdb: change } = yield* Running
          const lockUrl = environment["LOCK_URL"] ?? ""
          yield* openAccount(environment["PAYMENT_URL"] ?? "", "acct-cancel")
          const payoutId = yield* order(environment, "acct-cancel")

          const cancelled = yield* document(
            ["payouts", "cancel", payoutId, "--reason", "ordered by mistake", "--yes"],
            environment
          )
          assert.deepStrictEqual([cancelled["state"], cancelled["failReason"]], ["FAILED", "CANCELLED"])
          const again = yield* document(
            ["payouts", "cancel", payoutId, "--reason", "ordered by mistake", "--yes"],
            environment
          )
          assert.strictEqual(again["state"], "FAILED")

          // A worker that took the lock and hangs before its claim: fenced by a claim that the operator makes.
          const pending = yield* order(environment, "acct-cancel")
          const session = yield* post(`${lockUrl}/v1/sessions`, { ttlMillis: 60_000 })
          const grant = yield* post(`${lockUrl}/v1/locks/payout:acct-cancel/acquire`, {
            sessionId: session["sessionId"],
            ttlMillis: 60_000
          })
          const listed = yield* run(["sessions", "list"], environment)
          assert.include(listed.stdout, String(session["sessionId"]))
          const held = yield* run(["locks", "list", "--held"], environment)
          assert.match(held.stdout, /payout:acct-cancel +yes/)
          const revoked = yield* document(
            ["locks", "revoke", "payout:acct-cancel", "--reason", "hangs before its claim", "--fence", "--yes"],
            environment
          )
          const fenced = revoked["fenced"] as Record<string, unknown>
          assert.strictEqual(fenced["payoutId"], pending)
          assert.isTrue(BigInt(String(fenced["fence"])) > BigInt(String(grant["fencingToken"])))
          const watched = yield* run(["locks", "watch", "payout:acct-cancel", "--until", "free", "--json"], environment)
          assert.deepStrictEqual([watched.code, (JSON.parse(watched.stdout) as { event: string }).event], [0, "free"])

          // Somebody waits for the lock and has it before the operator: revoked all the same, and told so.
          yield* Effect.forkScoped(
            post(`${lockUrl}/v1/locks/payout:acct-cancel/acquire`, {
              sessionId: session["sessionId"],
              ttlMillis: 60_000
            })
          )
          yield* run(["locks", "watch", "payout:acct-cancel", "--until", "held"], environment)
          const waiter = yield* post(`${lockUrl}/v1/sessions`, { ttlMillis: 60_000 })
          yield* Effect.forkScoped(
            post(`${lockUrl}/v1/locks/payout:acct-cancel/acquire`, {
              sessionId: waiter["sessionId"],
              ttlMillis: 60_000,
              waitMillis: 20_000
            })
          )
          yield* waitUntil(
            "somebody waits",
            Effect.map(document(["locks", "get", "payout:acct-cancel"], environment), ({ lock }) =>
              Object.entries(lock as object).some(([name, value]) => name === "waiters" && value === 1)
            )
          )
          const late = yield* document(
            ["locks", "revoke", "payout:acct-cancel", "--reason", "somebody else is first", "--fence", "--yes"],
            environment,
            4
          )
          assert.match(String(late["revocationId"]), /^revoke-/)
          assert.strictEqual((late["notFenced"] as Record<string, unknown>)["code"], "CONTENTION_EXCEEDED")
          yield* document(
            ["locks", "revoke", "payout:acct-cancel", "--reason", "and it is done with", "--yes"],
            environment
          )

          // Tokens that went back: found, and taken above every fence.
          assert.strictEqual((yield* document(["tokens", "floor"], environment))["safe"], true)
          yield* change("ALTER SEQUENCE lock.lock_token_seq RESTART WITH 1")
          const low = yield* document(["tokens", "floor"], environment, 5)
          assert.strictEqual(low["safe"], false)
          const raised = yield* document(["tokens", "floor", "--raise", "--yes"], environment)
          assert.deepStrictEqual([raised["safe"], raised["raised"]], [true, true])
          // With room for what was granted and never presented to a fence.
          assert.strictEqual(BigInt(String(raised["minted"])), BigInt(String(low["floor"])) + 1_000_000_000n)

          const fences = yield* document(["fencing", "status"], environment)
          assert.deepStrictEqual(
            (fences["points"] as ReadonlyArray<Record<string, unknown>>).map(({ point, verdict }) => [point, verdict]),
            [
              ["resource", "on"],
              ["rail", "on"]
            ]
          )

          // The servers of these tests run without fsync, which is what a doctor is for.
          const examined = yield* document(["doctor"], environment, 5)
          const checks = examined["checks"] as ReadonlyArray<{ readonly name: string; readonly status: string }>
          const failed = checks.filter(({ status }) => status === "FAIL").map(({ name }) => name)
          assert.includeMembers(failed, ["lockdb fsync", "paydb fsync"])
          // Also what lockdb says of itself is about the commits.
          const unsafe = /fsync|full_page_writes|synchronous_commit|lockdb guards/
          assert.isTrue(
            failed.every((name) => unsafe.test(name)),
            failed.join()
          )
          for (const name of [
            "lock-server",
            "payment-resource",
            "rail-proxy",
            "paydb guards",
            "lockdb token sequence"
          ]) {
            assert.strictEqual(checks.find((check) => check.name === name)?.status, "ok", name)
          }

          const nobody = {
            ...environment,
            PAYMENT_URL: "http://127.0.0.1:9",
            LOCK_MANAGEMENT_URL: "http://127.0.0.1:9"
          }
          const noPayout = "00000000-0000-4000-8000-000000000000"
          for (const [code, args, where] of [
            [2, ["locks", "get", "not a key"], environment],
            [2, ["locks", "revoke", "payout:acct-cancel", "--reason", "short", "--yes"], environment],
            [2, ["locks", "list"], { ...environment, LOCK_URL: "nowhere" }],
            [3, ["locks", "get", "payout:acct-never"], environment],
            [3, ["payouts", "explain", noPayout], environment],
            [3, ["locks", "revoke", "payout:acct-cancel", "--reason", "nobody holds it", "--yes"], environment],
            [6, ["payouts", "list"], nobody],
            [6, ["locks", "list"], nobody]
          ] as const) {
            const answer = yield* run(args, where)
            assert.strictEqual(answer.code, code, `${args.join(" ")}: ${answer.stdout}${answer.stderr}`)
            assert.notStrictEqual(answer.stderr, "")
          }
          assert.include((yield* run(["locks", "list"], nobody)).stderr, "nobody answers at http://127.0.0.1:9")

          // As a process, from a shell: the document alone on stdout.
          const directory = yield* emptyDirectory(os.tmpdir())
          const program = yield* runProgram(["locks", "list", "--json"], { cwd: directory, environment })
          yield* waitUntil(
            "it has ended",
            Effect.sync(() => program.exit() !== undefined),
            "60 seconds"
          )
          assert.deepStrictEqual([program.exit(), program.stderr()], [0, ""])
          assert.isAbove((JSON.parse(program.stdout()) as { items: ReadonlyArray<unknown> }).items.length, 0)
        }),
      180_000
    )
  }
)
