// @effect-diagnostics nodeBuiltinImport:off
/**
 * One payout over five processes, seen from outside: one connected trace from the executor to the rail with the statements of
 * both stores in it, and a scrape of every process with each metric of the contract, of the right type, and no tag that
 * says whose payout it was.
 */
import { assert, describe, it } from "@effect/vitest"
import { Context, Effect, Layer, Redacted } from "effect"
import { isEvent, make as makeWorld } from "../../src/harness/Processes.ts"
import * as PgPaydb from "../../src/services/payment-resource/PgPaydb.ts"
import * as EmbeddedEtcd from "../../src/services/platform/EmbeddedEtcd.ts"
import { receiver, type ReceivedSpan } from "../support/otlp.ts"
import { TestDatabase } from "../support/pg.ts"
import { suspiciousTags } from "../support/scrape.ts"

const paydb = TestDatabase.layer("paydb", PgPaydb.migrate)

type Kind = "counter" | "gauge" | "histogram"
const every: Readonly<Record<string, Kind>> = {
  http_server_request_seconds: "histogram",
  process_pause_seconds: "gauge",
  process_event_loop_lag_seconds: "gauge",
  process_cpu_seconds_total: "counter",
  process_resident_memory_bytes: "gauge",
  process_heap_bytes: "gauge",
  process_uptime_seconds: "gauge",
  process_start_time_seconds: "gauge"
}
const sdk: Readonly<Record<string, Kind>> = {
  lock_client_heartbeat_seconds: "histogram",
  lock_client_lost_total: "counter"
}

/** C4 4.2, by the process that exports it. */
const contract: Readonly<Record<string, Readonly<Record<string, Kind>>>> = {
  "lock-server": {
    ...every,
    lock_acquire_seconds: "histogram",
    lock_hold_seconds: "histogram",
    lock_wait_seconds: "histogram",
    lock_renew_total: "counter",
    lock_release_total: "counter",
    lock_sessions_live: "gauge",
    lock_grants_live: "gauge",
    lock_session_expired_total: "counter",
    lock_revoked_total: "counter",
    lock_backend_call_seconds: "histogram",
    lock_backend_unavailable_seconds: "histogram",
    lock_token_regression_total: "counter"
  },
  "payment-resource": {
    ...every,
    lock_fenced_out_total: "counter",
    payout_transition_total: "counter",
    payout_backlog: "gauge",
    payout_backlog_age_seconds: "gauge",
    payout_backlog_refreshed_timestamp_seconds: "gauge",
    payout_claimed_age_seconds: "gauge",
    payout_lead_time_seconds: "histogram",
    payout_ambiguous_age_seconds: "gauge",
    ledger_invariant_violations: "gauge",
    ledger_verify_timestamp_seconds: "gauge",
    ledger_imbalance: "gauge",
    fencing_enabled: "gauge",
    fencing_database_enabled: "gauge"
  },
  "rail-proxy": {
    ...every,
    lock_fenced_out_total: "counter",
    rail_submit_seconds: "histogram",
    rail_duplicate_attempted_total: "counter",
    rail_duplicate_detected_total: "counter",
    rail_late_execution_total: "counter",
    fencing_enabled: "gauge",
    fencing_database_enabled: "gauge"
  },
  "rail-stub": every,
  "payout-executor": { ...every, ...sdk, lock_token_regression_total: "counter" },
  reconciler: {
    ...every,
    ...sdk,
    rail_duplicate_detected_total: "counter",
    rail_late_execution_total: "counter",
    reconcile_last_success_timestamp_seconds: "gauge"
  }
}

/** What a scrape has not, or has of another type, or without a single series. */
const missing = (text: string, wanted: Readonly<Record<string, Kind>>): ReadonlyArray<string> =>
  Object.entries(wanted).flatMap(([name, kind]) => {
    const type = new RegExp(`^# TYPE ${name} (\\w+)$`, "m").exec(text)?.[1]
    const series = new RegExp(`^${name}${kind === "histogram" ? "_count" : ""}(?:\\{[^}]*\\})? \\S+$`, "m").test(text)
    return type === undefined
      ? [`${name} is not there`]
      : type !== kind
        ? [`${name} is a ${type}, not a ${kind}`]
        : series
          ? []
          : [`${name} has no series`]
  })

/** What keeps the spans of one trace from being one tree. */
const disconnected = (spans: ReadonlyArray<ReceivedSpan>): ReadonlyArray<string> => {
  const known = new Set(spans.map(({ spanId }) => spanId))
  const roots = spans.filter(({ parentSpanId }) => parentSpanId === undefined)
  return [
    ...(roots.length === 1 ? [] : [`${roots.length} roots: ${roots.map(({ name }) => name).join(", ")}`]),
    ...spans
      .filter(({ parentSpanId }) => parentSpanId !== undefined && !known.has(parentSpanId))
      .map(({ name, service }) => `${service} ${name} hangs on a span that nobody sent`)
  ]
}

const body = (url: string, init: RequestInit = {}) =>
  Effect.promise((signal) => fetch(url, { signal, ...init }).then((response) => response.text()))
const post = (url: string, content: object, key?: string) =>
  body(url, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      "x-owner-id": "test",
      ...(key === undefined ? {} : { "x-idempotency-key": key })
    },
    body: JSON.stringify(content)
  })

describe("telemetry", () => {
  it("misses what is not there, finds what is of another type, and what is no tree", () => {
    const text = "# TYPE a_total counter\na_total 0\n# TYPE b gauge\nb 1\n# TYPE c histogram\n"
    assert.deepStrictEqual(missing(text, { a_total: "counter", b: "counter", c: "histogram", d: "gauge" }), [
      "b is a gauge, not a counter",
      "c has no series",
      "d is not there"
    ])
    const span = { service: "s", traceId: "t", name: "n" }
    assert.deepStrictEqual(disconnected([{ ...span, spanId: "1", parentSpanId: undefined }]), [])
    assert.strictEqual(
      disconnected([
        { ...span, spanId: "1", parentSpanId: undefined },
        { ...span, spanId: "2", parentSpanId: "3" }
      ]).length,
      1
    )
  })

  it.live(
    "of one payout is one trace over five processes, and metrics that are all there and name nobody",
    () =>
      Effect.gen(function* () {
        const pay = Context.get(yield* Layer.build(paydb), TestDatabase)
        const { endpoint: etcd } = yield* EmbeddedEtcd.start({ storage: { kind: "temporary" }, fast: true })
        const { endpoint, spans } = yield* receiver
        const world = yield* makeWorld
        const start = (name: string, environment: Readonly<Record<string, string>>) =>
          world.start(name, [name], {
            HTTP_PORT: "0",
            MANAGEMENT_PORT: "0",
            DLOCK_MIGRATE: "false",
            OTEL_EXPORTER_OTLP_ENDPOINT: endpoint,
            ...environment
          })
        const PAYMENT_PG_URL = Redacted.value(pay.url)
        const rail = yield* start("rail-stub", {})
        const [locks, payment, proxy] = yield* Effect.all(
          [
            start("lock-server", { LOCK_BACKEND: "etcd", LOCK_ETCD_ENDPOINTS: etcd }),
            start("payment-resource", { PAYMENT_PG_URL }),
            start("rail-proxy", { RAIL_PG_URL: PAYMENT_PG_URL, RAIL_URL: (yield* rail.listening).url })
          ],
          { concurrency: "unbounded" }
        )
        const urls = {
          LOCK_URL: (yield* locks.listening).url,
          PAYMENT_URL: (yield* payment.listening).url,
          RAIL_PROXY_URL: (yield* proxy.listening).url
        }
        const reconciler = yield* start("reconciler", urls)
        yield* post(`${urls.PAYMENT_URL}/v1/accounts`, {
          accountId: "acct-traced",
          currency: "EUR",
          openingBalanceMinor: "1000"
        })
        const ordered = yield* post(
          `${urls.PAYMENT_URL}/v1/payouts`,
          { accountId: "acct-traced", amountMinor: "250", currency: "EUR", beneficiary: "Ada Example" },
          "order-traced"
        )
        const payoutId = /"payoutId":"([^"]+)"/.exec(ordered)?.[1] ?? ""
        const executor = yield* start("payout-executor", { ...urls, DLOCK_INSTANCE: "traced-worker" })
        const posted = yield* executor.awaitRecord(
          "posts it",
          (record) => record["event"] === "payout_hop" && record["op"] === "post",
          "60 seconds"
        )
        yield* locks.awaitRecord("the lock is released", isEvent("lock_released"), "30 seconds")

        const scrapes = yield* Effect.forEach(
          [locks, payment, proxy, rail, executor, reconciler],
          (process) =>
            Effect.gen(function* () {
              const { managementUrl } = yield* process.listening
              // One request before, so that there is one to be timed.
              yield* body(`${managementUrl}/actuator/health/liveness`)
              return [process.name, yield* body(`${managementUrl}/actuator/prometheus`)] as const
            }),
          { concurrency: "unbounded" }
        )
        for (const [name, text] of scrapes) {
          assert.deepStrictEqual(missing(text, contract[name] ?? {}), [], name)
          assert.deepStrictEqual(suspiciousTags(text), [], name)
          for (const secret of ["acct-traced", payoutId, "traced-worker", "payout:"])
            assert.notInclude(text, secret, name)
        }

        // A process that stops sends what it still has.
        yield* Effect.all(
          [executor, reconciler, locks, payment, proxy, rail].map(({ stop }) => stop),
          { concurrency: "unbounded" }
        )
        const trace = spans().filter(({ traceId }) => traceId === posted["traceId"])
        assert.deepStrictEqual(disconnected(trace), [])
        assert.deepStrictEqual([...new Set(trace.map(({ service }) => service))].toSorted(), [
          "lock-server",
          "payment-resource",
          "payout-executor",
          "rail-proxy",
          "rail-stub"
        ])
        const names = new Set(trace.map(({ name, service }) => `${service} ${name}`))
        for (const name of [
          "payout-executor PayoutExecutor.turn",
          "lock-server etcd.txn",
          "payment-resource postgres",
          "rail-proxy postgres"
        ]) {
          assert.isTrue(names.has(name), `${name} is not among ${[...names].join("; ")}`)
        }
        // The id is in the log of every process, and in the payout's history.
        for (const process of [locks, payment, proxy, executor]) {
          assert.isTrue(
            process.log.some((record) => record["traceId"] === posted["traceId"]),
            process.name
          )
        }
      }).pipe(Effect.scoped),
    180_000
  )
})
