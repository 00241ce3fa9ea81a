/** Every check of the doctor finds what it is for, the fences are judged by both of their keys, a watch tells each change. */
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { FencingToken, LockKey, OwnerId, SessionId } from "../../../src/core/lock/Lock.ts"
import { BackendUnavailable, FencedOut, LockNotFound } from "../../../src/core/lock/LockErrors.ts"
import { version } from "../../../src/services/platform/Version.ts"
import type { Check } from "../../../src/services/operator/Check.ts"
import { fenceChecks, serviceChecks } from "../../../src/services/operator/Doctor.ts"
import { type ServerSettings, sequenceCheck, settingChecks } from "../../../src/services/operator/DoctorDatabases.ts"
import { memberChecks } from "../../../src/services/operator/DoctorEtcd.ts"
import { pointOf } from "../../../src/services/operator/Fencing.ts"
import { eventsBetween } from "../../../src/services/operator/Locks.ts"
import { table, told } from "../../../src/services/operator/Printing.ts"
import { run } from "../../support/operator.ts"

const statusOf = (checks: ReadonlyArray<Check>, name: string) => checks.find((check) => check.name === name)?.status

const safe: ServerSettings = {
  fsync: "on",
  full_page_writes: "on",
  synchronous_commit: "on",
  synchronous_standby_names: "ANY 1 (*)",
  default_transaction_isolation: "read committed",
  server_version_num: "160003",
  standby: false
}

describe("the doctor", () => {
  it("finds nothing with a server that is set as it must be", () =>
    assert.isTrue(settingChecks("lockdb", safe).every(({ status }) => status === "ok")))

  const planted: ReadonlyArray<readonly [change: Partial<ServerSettings>, name: string, status: Check["status"]]> = [
    [{ fsync: "off" }, "lockdb fsync", "FAIL"],
    [{ full_page_writes: "off" }, "lockdb full_page_writes", "FAIL"],
    [{ synchronous_commit: "off" }, "lockdb synchronous_commit", "FAIL"],
    [{ synchronous_commit: "local" }, "lockdb synchronous_commit", "FAIL"],
    [{ default_transaction_isolation: "serializable" }, "lockdb default_transaction_isolation", "FAIL"],
    [{ server_version_num: "150004" }, "lockdb version", "FAIL"],
    [{ standby: true }, "lockdb role", "FAIL"],
    [{ synchronous_standby_names: "" }, "lockdb standby", "warn"]
  ]
  for (const [change, name, status] of planted) {
    it(`finds ${JSON.stringify(change)}`, () => {
      const checks = settingChecks("lockdb", { ...safe, ...change })
      assert.strictEqual(statusOf(checks, name), status)
      assert.isDefined(checks.find((check) => check.name === name)?.advice)
    })
  }

  it("finds a token sequence that could go back, or is not there", () => {
    const good = { cache: 1n, cycles: false, increment: 1n }
    assert.strictEqual(sequenceCheck(good).status, "ok")
    for (const bad of [{ ...good, cache: 32n }, { ...good, cycles: true }, { ...good, increment: -1n }, undefined]) {
      assert.strictEqual(sequenceCheck(bad).status, "FAIL")
    }
  })

  it("finds an etcd without a leader, or about to refuse every write", () => {
    const text = (leader: number, size: number) =>
      `etcd_server_has_leader ${leader}\netcd_server_quota_backend_bytes 100\netcd_mvcc_db_total_size_in_bytes ${size}\n`
    assert.isTrue(memberChecks("e", text(1, 10)).every(({ status }) => status === "ok"))
    assert.strictEqual(statusOf(memberChecks("e", text(0, 10)), "etcd e"), "FAIL")
    assert.strictEqual(statusOf(memberChecks("e", text(1, 90)), "etcd e quota"), "FAIL")
    assert.strictEqual(statusOf(memberChecks("e", ""), "etcd e quota"), "warn")
  })

  const view = {
    health: { status: "UP", fencing: "on", components: {} },
    info: { service: "rail-proxy", instance: "r1", version, environment: "local" },
    clockAheadMillis: 0
  } as const
  const looked = (found: Parameters<typeof serviceChecks>[3]) =>
    serviceChecks("rail-proxy", "rail.proxy.url", "http://x", found, "local")

  it("finds a service that is away, not ready, another one, of another release, environment or time", () => {
    assert.isTrue(looked(view).every(({ status }) => status === "ok"))
    assert.strictEqual(statusOf(looked({ cause: "nobody answers" }), "rail-proxy"), "FAIL")
    const down = { status: "DOWN", details: { error: "GuardsMissing" } } as const
    const unready = looked({ ...view, health: { ...view.health, status: "DOWN", components: { payDb: down } } })
    assert.include(unready[0]?.found, "payDb GuardsMissing")
    assert.strictEqual(
      statusOf(looked({ ...view, info: { ...view.info, service: "lock-server" } }), "rail-proxy"),
      "FAIL"
    )
    assert.strictEqual(
      statusOf(looked({ ...view, info: { ...view.info, version: "0" } }), "rail-proxy version"),
      "warn"
    )
    assert.strictEqual(
      statusOf(looked({ ...view, info: { ...view.info, environment: "production" } }), "rail-proxy environment"),
      "warn"
    )
    assert.strictEqual(statusOf(looked({ ...view, clockAheadMillis: -9_000 }), "rail-proxy clock"), "warn")
  })

  it("judges a fence by both of its keys", () => {
    const point = (fencing: "on" | "OFF", details: Record<string, unknown>) =>
      pointOf("rail", "rail-proxy", {
        ...view,
        health: { ...view.health, fencing, components: { payDb: { status: "UP", details } } }
      })
    assert.strictEqual(point("on", { fencing: "on", unfencedRows: false }).verdict, "on")
    assert.strictEqual(point("OFF", { fencing: "OFF", unfencedRows: true }).verdict, "OFF")
    assert.strictEqual(point("OFF", { error: "FencingDisagrees" }).verdict, "disagree")
    assert.strictEqual(point("on", { error: "BackendUnavailable" }).verdict, "unknown")
    assert.strictEqual(pointOf("rail", "rail-proxy", { cause: "away" }).verdict, "unknown")
    const verdicts = [
      point("on", { fencing: "on", unfencedRows: false }),
      point("on", { fencing: "on", unfencedRows: true }),
      point("OFF", { fencing: "OFF" }),
      point("OFF", { error: "FencingDisagrees" }),
      pointOf("rail", "rail-proxy", { cause: "away" })
    ].map((one) => fenceChecks([one])[0]?.status)
    assert.deepStrictEqual(verdicts, ["ok", "warn", "FAIL", "FAIL", "FAIL"])
  })
})

describe("a watch", () => {
  const lock = (token: bigint, held: boolean, waiters = 0, revokedAt?: number) => ({
    key: LockKey.make("k"),
    held,
    fencingToken: FencingToken.make(token),
    ownerId: OwnerId.make("w"),
    sessionId: SessionId.make("s"),
    grantedAt: 0,
    expiresAt: 1,
    lastRevocation: revokedAt === undefined ? null : { operator: "anna", reason: "because of it", at: revokedAt },
    waiters
  })
  const events = (...[before, now]: [Parameters<typeof eventsBetween>[0], Parameters<typeof eventsBetween>[1]]) =>
    eventsBetween(before, now, 0).map(({ event }) => event)

  it("tells each change once, and a grant that it missed by its higher token", () => {
    assert.deepStrictEqual(events(undefined, null), ["unseen"])
    assert.deepStrictEqual(events(null, null), [])
    assert.deepStrictEqual(events(undefined, lock(1n, true)), ["granted"])
    assert.deepStrictEqual(events(lock(1n, true), lock(1n, true)), [])
    assert.deepStrictEqual(events(lock(1n, true), lock(1n, false)), ["free"])
    assert.deepStrictEqual(events(lock(1n, true), lock(2n, true)), ["granted"])
    assert.deepStrictEqual(events(lock(1n, false), lock(2n, false)), ["free"])
    assert.deepStrictEqual(events(lock(1n, true), lock(1n, false, 0, 9)), ["revoked", "free"])
    assert.deepStrictEqual(events(lock(1n, true), lock(1n, true, 3)), ["waiters"])
  })
})

describe("what a command prints", () => {
  it("is a table as wide as its cells, or a word when there is nothing", () => {
    const columns = [
      { title: "A", of: (row: { readonly a: string }) => row.a },
      { title: "B", of: () => "x" }
    ]
    assert.strictEqual(table([{ a: "long" }], columns, "none"), "A     B\nlong  x")
    assert.strictEqual(table([], columns, "none"), "none")
  })

  it("is a failure in the words of its row, and where nobody answered", () => {
    assert.deepStrictEqual(told(new LockNotFound({ key: LockKey.make("k") })).code, "LOCK_NOT_FOUND")
    const fenced = new FencedOut({
      point: "lock",
      op: "revoke",
      resource: "k",
      presented: FencingToken.make(1n),
      highest: 2n
    })
    assert.include(told(fenced).message, "token 1 is stale, the fence has seen 2")
    const away = new BackendUnavailable({
      operation: "listPayouts",
      cause: "HttpClientError: Transport error (GET http://x:1/v1/payouts)",
      retryAfterMillis: 1
    })
    assert.strictEqual(told(away).message, "listPayouts: nobody answers at http://x:1/v1/payouts")
    assert.strictEqual(told(new Error("boom")).message, "boom")
  })
})

describe("the command line", () => {
  it.live("completes in the shell, and says what each command takes", () =>
    Effect.gen(function* () {
      const completions = yield* run(["--completions", "bash"], {})
      for (const word of ["revoke", "explain", "--expected-token", "--rail-reference"]) {
        assert.include(completions.stdout, word)
      }
      for (const path of [
        ["locks"],
        ["locks", "revoke"],
        ["payouts", "create"],
        ["reconcile", "resolve"],
        ["doctor"]
      ]) {
        const help = yield* run([...path, "--help"], {})
        assert.deepStrictEqual([help.code, help.stderr], [0, ""], path.join(" "))
        assert.include(help.stdout, `dlock ${path.join(" ")}`)
      }
    })
  )

  it.live("knows no retry", () =>
    Effect.map(run(["payouts", "retry", "3f2b8a52-6a0e-4f6c-9f0e-6f1f6f0d7a11"], {}), ({ code }) =>
      assert.strictEqual(code, 2)
    )
  )
})
