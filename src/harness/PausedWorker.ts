/**
 * UC-03 on real processes and real PostgreSQL: one row of the kill-switch matrix.
 *
 *     W1 acquires (T1), claims, and at the named point between its last check and the submit stops itself (SIGSTOP)
 *     its lease runs out
 *     W2 acquires (T2 > T1), claims, submits, posts
 *     W1 is continued and, ignoring that it lost its lock, submits, claims and posts under T1
 *
 * W1 stops itself at a fault point, so the window is hit every time; that it really stopped is asked of the kernel, and
 * that its lease ran out is seen in the greater token that W2 was granted.
 */
import { Effect, Redacted, References, type Scope } from "effect"
import { HttpClient, HttpClientRequest } from "effect/http"
import type { FencingSwitches } from "../core/Fencing.ts"
import { judge } from "../core/Invariants.ts"
import * as Paydb from "../services/payment-resource/PgPaydb.ts"
import * as Migrations from "../services/platform/Migrations.ts"
import { collect } from "./Evidence.ts"
import { pgEvents } from "./LockBackends.ts"
import { AMOUNT_MINOR, differencesOf, type Hop, OPENING_MINOR, type Participant, type RowReport } from "./Experiment.ts"
import { HarnessError, isEvent, type LogRecord, type Processes, type ServiceProcess } from "./Processes.ts"

export interface Surroundings {
  readonly world: Processes
  readonly lockUrl: string
  readonly lockdb: Redacted.Redacted
  /** URL of a database on the server of paydb; `user` names another role than the superuser. */
  readonly paydb: (database: string, user?: string) => Redacted.Redacted
  readonly railUrl: string
}

/** Short enough to watch, long enough that a busy machine does not lose a lease by accident. */
export const leaseSettings = {
  LOCK_DEFAULT_TTL: "3 s",
  LOCK_SESSION_TTL: "3 s",
  LOCK_CLIENT_SAFETY_MARGIN: "500 ms",
  LOCK_BACKEND_TIMEOUT: "2 s"
} as const

/** Ports of any service that is free to choose. */
export const anyPort = { HTTP_PORT: "0", MANAGEMENT_PORT: "0" } as const

/** What a row needs before its workers start. */
export interface PreparedRow {
  readonly switches: FencingSwitches
  readonly accountId: string
  readonly paydb: Redacted.Redacted
  readonly payment: ServiceProcess
  readonly rail: ServiceProcess
  readonly worker: (
    name: Participant,
    environment: Readonly<Record<string, string>>
  ) => Effect.Effect<ServiceProcess, HarnessError, Scope.Scope>
}

/** A database of its own, its two services with the switches as they should be, and a payout to make. */
export const prepareRow = Effect.fnUntraced(function* (around: Surroundings, switches: FencingSwitches, index: number) {
  const { paydb, world } = around
  const database = `paydb_${index}`
  const accountId = `acct-${index}`
  yield* prepareDatabase(around, database, switches)
  const fencing = {
    PAYMENT_FENCING_ENABLED: String(switches.payment),
    RAIL_FENCING_ENABLED: String(switches.rail)
  }
  const [payment, rail] = yield* Effect.all(
    [
      world.start("payment-resource", ["payment-resource"], {
        ...anyPort,
        ...fencing,
        PAYMENT_PG_URL: Redacted.value(paydb(database, "dlock_payment")),
        DLOCK_MIGRATE: "false"
      }),
      world.start("rail-proxy", ["rail-proxy"], {
        ...anyPort,
        ...fencing,
        RAIL_PG_URL: Redacted.value(paydb(database, "dlock_rail")),
        RAIL_URL: around.railUrl,
        DLOCK_MIGRATE: "false"
      })
    ],
    { concurrency: "unbounded" }
  )
  const { url: paymentUrl } = yield* payment.listening
  const { url: proxyUrl } = yield* rail.listening
  yield* order(paymentUrl, accountId)
  return {
    switches,
    accountId,
    paydb: paydb(database),
    payment,
    rail,
    worker: (name, environment) =>
      world.start(name, ["payout-executor"], {
        ...anyPort,
        ...leaseSettings,
        DLOCK_INSTANCE: name,
        LOCK_URL: around.lockUrl,
        PAYMENT_URL: paymentUrl,
        RAIL_PROXY_URL: proxyUrl,
        PAYOUT_EXECUTOR_POLL_INTERVAL: "200 ms",
        ...environment
      })
  } satisfies PreparedRow
})

/** Runs one row of the matrix and judges it. `progress` is said while it happens. */
export const runRow = Effect.fnUntraced(function* (
  around: Surroundings,
  { accountId, paydb, payment, rail, switches, worker }: PreparedRow,
  progress: (text: string) => Effect.Effect<void>
) {
  yield* progress("W1 takes the lock and claims the payout")
  const first = yield* worker("W1", {
    PAYOUT_EXECUTOR_STALE_HOLDER: "true",
    DLOCK_FAULT_POINT: "submit.before:stop"
  })
  yield* first.awaitRecord("reaches the fault point", isEvent("fault_point"), "30 seconds")
  yield* first.awaitStopped
  const claimed = yield* first.awaitRecord("claimed", isHop("claim"), "1 second")
  const firstToken = String(claimed["token"])

  yield* progress(`W1 is stopped under token ${firstToken}; W2 waits for its lease to run out`)
  const second = yield* worker("W2", {})
  const posted = yield* second.awaitRecord("posts the payout", isHop("post"), "30 seconds")
  const secondToken = String(posted["token"])
  if (!(BigInt(secondToken) > BigInt(firstToken))) {
    return yield* new HarnessError({
      step: "the lease of W1 runs out",
      message: `W2 was granted token ${secondToken}, which is not above ${firstToken}`
    })
  }

  yield* progress(`W2 paid and posted under token ${secondToken}; W1 wakes and goes on under ${firstToken}`)
  yield* first.resume
  yield* first.awaitRecord("posts late", isStaleHop("post"), "30 seconds")
  yield* Effect.all([first.stop, second.stop], { concurrency: "unbounded" })
  yield* Effect.all([payment.stop, rail.stop], { concurrency: "unbounded" })

  const history = yield* collect({
    paydb,
    lock: (keys) => pgEvents(around.lockdb, keys),
    railUrl: around.railUrl,
    settled: true,
    logs: [...payment.log, ...rail.log]
  })
  const answerOf = (op: Hop["op"]) => String(first.log.find(isStaleHop(op))?.["outcome"] ?? "not sent")
  const row = {
    paymentFencing: switches.payment,
    railFencing: switches.rail,
    staleClaim: answerOf("claim"),
    staleSubmit: answerOf("submit"),
    stalePost: answerOf("post"),
    railExecutions: history.rail.length,
    postings: history.journals.filter((journal) => journal.kind === "PAYOUT").length,
    balanceMinor: Number(history.accounts.find((account) => account.accountId === accountId)?.balanceMinor ?? -1n),
    violations: [...new Set(judge(history).map((violation) => violation.invariant))]
  }
  return { row, hops: hopsOf(first, second), differences: differencesOf(row) } satisfies RowReport
}, Effect.scoped)

const prepareDatabase = Effect.fnUntraced(
  function* ({ paydb }: Surroundings, database: string, switches: FencingSwitches) {
    yield* Migrations.ensureDatabase({ adminUrl: paydb("postgres"), database })
    // Not news in an experiment: every row has a fresh database.
    yield* Paydb.migrate(paydb(database)).pipe(Effect.provideService(References.MinimumLogLevel, "Warn"))
    yield* Paydb.setSwitches(paydb(database), { resource: switches.payment, rail: switches.rail })
  },
  Effect.mapError((cause) => new HarnessError({ step: "prepare paydb", message: String(cause) }))
)

/** One account with an opening balance, and one payout from it. */
const order = Effect.fnUntraced(
  function* (paymentUrl: string, accountId: string) {
    const post = (path: string, body: object, key?: string) =>
      HttpClientRequest.post(`${paymentUrl}${path}`).pipe(
        HttpClientRequest.setHeaders({
          "x-owner-id": "demo",
          ...(key === undefined ? {} : { "x-idempotency-key": key })
        }),
        HttpClientRequest.bodyJson(body),
        Effect.flatMap(HttpClient.execute),
        Effect.timeout("10 seconds"),
        Effect.flatMap((response) =>
          response.status < 300
            ? Effect.void
            : Effect.flatMap(response.text, (text) => Effect.fail(`${path} answered ${response.status}: ${text}`))
        )
      )
    yield* post("/v1/accounts", { accountId, currency: "EUR", openingBalanceMinor: String(OPENING_MINOR) })
    yield* post(
      "/v1/payouts",
      { accountId, amountMinor: String(AMOUNT_MINOR), currency: "EUR", beneficiary: "Ada Example" },
      `order-${accountId}`
    )
  },
  Effect.mapError((cause) => new HarnessError({ step: "order a payout", message: String(cause) }))
)

const isHop = (op: Hop["op"]) => (record: LogRecord) => record["event"] === "payout_hop" && record["op"] === op
const isStaleHop = (op: Hop["op"]) => (record: LogRecord) => record["event"] === "stale_hop" && record["op"] === op

/** Both workers' hops in the order of their clocks, which on one machine are one clock. */
const hopsOf = (first: ServiceProcess, second: ServiceProcess): ReadonlyArray<Hop> => {
  const hops = [
    ...first.log.flatMap((record) => hopOf("W1", record)),
    ...second.log.flatMap((record) => hopOf("W2", record))
  ]
  const ordered = hops
    .toSorted((a, b) => a.at - b.at)
    // It is told at every check from then on; once is enough to read.
    .filter((hop, i, all) => hop.op !== "lock lost" || all.findIndex((each) => each.op === "lock lost") === i)
  const start = ordered[0]?.at ?? 0
  return ordered.map((hop) => ({ ...hop, at: hop.at - start }))
}

const hopOf = (worker: Participant, record: LogRecord): ReadonlyArray<Hop> => {
  const at = Date.parse(record.timestamp)
  const token = typeof record["token"] === "string" ? record["token"] : null
  const stale = record["event"] === "stale_hop"
  switch (record["event"]) {
    case "payout_hop":
    case "stale_hop":
      return [{ at, worker, op: record["op"] as Hop["op"], token, outcome: String(record["outcome"]), stale }]
    case "fault_point":
      return [{ at, worker, op: "stopped", token: null, outcome: "", stale: false }]
    case "fault_point_resumed":
      return [{ at, worker, op: "resumed", token: null, outcome: "", stale: false }]
    case "lock_lost":
      return [{ at, worker, op: "lock lost", token: null, outcome: String(record["outcome"] ?? ""), stale: false }]
    default:
      return []
  }
}
