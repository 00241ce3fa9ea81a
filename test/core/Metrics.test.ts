/** What Prometheus is given: names, series that exist from the start, tags with closed sets of values. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Metric } from "effect"
import { PrometheusMetrics } from "effect/observability"
import { TestClock } from "effect/testing"
import * as Metrics from "../../src/core/Metrics.ts"
import { suspiciousTags } from "../support/scrape.ts"

const fresh = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.provideService(effect, Metric.MetricRegistry, new Map())

const groups = {
  lock: Metrics.lock,
  lockClient: Metrics.lockClient,
  payment: Metrics.payment,
  rail: Metrics.rail,
  railEvidence: Metrics.railEvidence,
  reconciler: Metrics.reconciler,
  process: Metrics.process
}

const scrape = PrometheusMetrics.format()

describe("metrics", () => {
  it.effect("exist with 0 before anything happened, but for the fence, whose 0 is an alarm", () =>
    Effect.gen(function* () {
      yield* Metrics.register(...Object.values(groups))
      const text = yield* scrape
      assert.include(text, 'lock_acquire_seconds_count{outcome="granted"} 0')
      assert.include(text, "rail_duplicate_attempted_total 0")
      assert.match(
        text,
        /lock_fenced_out_total\{op="submit",point="rail"\} 0|lock_fenced_out_total\{point="rail",op="submit"\} 0/
      )
      assert.notInclude(text, "fencing_enabled")
    }).pipe(fresh)
  )

  it.effect("have the names of the alerts: seconds, totals, and a bucket at the lead time objective", () =>
    Effect.gen(function* () {
      yield* Metrics.register(...Object.values(groups))
      yield* Metric.update(Metrics.payment.fencingEnabled, 1)
      const text = yield* scrape
      for (const name of [
        "rail_duplicate_attempted_total",
        "rail_duplicate_detected_total",
        "rail_late_execution_total",
        "ledger_invariant_violations",
        "fencing_enabled",
        "lock_token_regression_total",
        "lock_fenced_out_total",
        "payout_backlog_age_seconds",
        "payout_backlog_refreshed_timestamp_seconds",
        "payout_lead_time_seconds_count",
        "payout_ambiguous_age_seconds",
        "payout_claimed_age_seconds",
        "lock_acquire_seconds_count",
        "reconcile_last_success_timestamp_seconds",
        "ledger_verify_timestamp_seconds",
        "process_pause_seconds"
      ]) {
        assert.match(text, new RegExp(`^${name}[ {]`, "m"), name)
      }
      assert.include(text, 'payout_lead_time_seconds_bucket{le="600"}')
      for (const [, name, type] of text.matchAll(/^# TYPE (\S+) (\S+)$/gm)) {
        assert.strictEqual(type === "counter", name?.endsWith("_total"), name)
        if (type === "histogram") assert.match(name ?? "", /_seconds$/)
      }
      assert.deepStrictEqual(suspiciousTags(text), [])
    }).pipe(fresh)
  )

  it.effect("time an outcome in seconds, and an interrupted call nowhere", () =>
    Effect.gen(function* () {
      const timed = Metrics.timed<void, never>(() => Metrics.lock.acquire.granted)
      const call = yield* Effect.forkChild(timed(Effect.sleep("250 millis")), { startImmediately: true })
      const gone = yield* Effect.forkChild(timed(Effect.never), { startImmediately: true })
      yield* TestClock.adjust("250 millis")
      yield* Effect.andThen(
        Effect.sync(() => gone.interruptUnsafe()),
        Effect.yieldNow
      )
      yield* TestClock.adjust("1 second")
      assert.isDefined(call.pollUnsafe())
      const { count, sum } = yield* Metric.value(Metrics.lock.acquire.granted)
      assert.deepStrictEqual([count, sum], [1, 0.25])
    }).pipe(fresh)
  )
})

describe("a tag that looks like an id", () => {
  const planted = [
    'x_total{key="payout:acct-1"} 1',
    'x_total{account="acct-1"} 1',
    'x_total{outcome="00000000-0000-4000-8000-000000000001"} 1',
    'x_total{outcome="17"} 1',
    'x_total{reason="held by worker-2 since 10:00"} 1',
    'x_total{route="/v1/locks/payout:acct-1"} 1',
    'x_total{traceId="0af7651916cd43dd8448eb211c80319c"} 1'
  ]
  for (const line of planted) {
    it(`is found: ${line}`, () => assert.strictEqual(suspiciousTags(line).length, 1))
  }

  it("is not seen in what is meant to be", () => {
    const fine =
      'a{le="0.005"} 1\nb{method="GET",route="/v1/locks/:key/acquire",status="2xx"} 1\nc{invariant="INV-03",to="RAIL_AMBIGUOUS"} 1\nd{op="tryAcquire"} 1'
    assert.deepStrictEqual(suspiciousTags(fine), [])
  })
})
