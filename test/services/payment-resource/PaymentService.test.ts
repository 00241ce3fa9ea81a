import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Layer, Logger, Metric, References } from "effect"
import { TestClock } from "effect/testing"
import { AcquireId, FencingToken, OwnerId } from "../../../src/core/lock/Lock.ts"
import { backendUnavailable } from "../../../src/core/lock/LockErrors.ts"
import * as Metrics from "../../../src/core/Metrics.ts"
import { PaymentResource } from "../../../src/core/payment/PaymentResource.ts"
import { PaymentStore } from "../../../src/core/payment/PaymentStore.ts"
import { AccountId } from "../../../src/core/payment/Payout.ts"
import { SubmissionStore } from "../../../src/core/rail/SubmissionStore.ts"
import { defaults } from "../../../src/core/Settings.ts"
import * as PaymentService from "../../../src/services/payment-resource/PaymentService.ts"
import * as SimPaydb from "../../../src/sim/SimPaydb.ts"
import * as SimPaymentStore from "../../../src/sim/SimPaymentStore.ts"
import * as SimSubmissionStore from "../../../src/sim/SimSubmissionStore.ts"

const w1 = OwnerId.make("w1")
const T = (n: number) => FencingToken.make(BigInt(n))
const accountId = AccountId.make("acct-1")

interface Line {
  readonly level: string
  readonly [annotation: string]: unknown
}

/** One service on a fresh paydb, with its own metrics and its log. */
const run = <A, E>(
  program: (log: ReadonlyArray<Line>) => Effect.Effect<A, E, PaymentResource | SubmissionStore | SimPaydb.SimPaydb>,
  change: (store: PaymentStore["Service"]) => Partial<PaymentStore["Service"]> = () => ({})
) =>
  Effect.suspend(() => {
    const log: Array<Line> = []
    const logger = Logger.make<unknown, void>(({ fiber, logLevel }) => {
      log.push({ level: logLevel, ...fiber.getRef(References.CurrentLogAnnotations) })
    })
    const store = Layer.effect(
      PaymentStore,
      Effect.map(PaymentStore, (inner) => PaymentStore.of({ ...inner, ...change(inner) }))
    ).pipe(Layer.provide(SimPaymentStore.layer))
    return program(log).pipe(
      Effect.provide(
        Layer.mergeAll(PaymentService.layer.pipe(Layer.provide(store)), SimSubmissionStore.layer(defaults.rail)).pipe(
          Layer.provideMerge(SimPaydb.layer()),
          Layer.provideMerge(Logger.layer([logger])),
          Layer.provideMerge(Layer.succeed(Metric.MetricRegistry, new Map()))
        )
      )
    )
  })

const claimed = Effect.gen(function* () {
  const payments = yield* PaymentResource
  yield* payments.createAccount({ accountId, currency: "EUR", openingBalanceMinor: 10_000n, actor: w1 })
  const payout = yield* payments.createPayout({
    idempotencyKey: AcquireId.make("order-1"),
    actor: w1,
    accountId,
    amountMinor: 2_500n,
    currency: "EUR",
    beneficiary: "Ada Example"
  })
  const write = { payoutId: payout.payoutId, token: T(8), actor: w1 }
  yield* payments.claim(write)
  return { payments, payout, write }
})

const acknowledged = Effect.gen(function* () {
  const scene = yield* claimed
  const rail = yield* SubmissionStore
  const { payout, write } = scene
  const intent = yield* rail.recordIntent({ ...payout, ...write, idempotencyKey: AcquireId.make("submit-1") })
  if (intent._tag === "Send") yield* rail.recordOutcome(intent.submissionId, "ACKED", { railReference: "R-1" })
  return scene
})

const countOf = (metric: Metric.Metric<number, Metric.CounterState<number>>) =>
  Effect.map(Metric.value(metric), ({ count }) => count)
const gaugeOf = (metric: Metric.Metric<number, Metric.GaugeState<number>>) =>
  Effect.map(Metric.value(metric), ({ value }) => value)

describe("PaymentService", () => {
  it.effect("tells every move once, with actor and token, and counts it; a repeat is no move", () =>
    run((log) =>
      Effect.gen(function* () {
        const { payments, payout, write } = yield* acknowledged
        yield* TestClock.adjust("90 seconds")
        yield* payments.post(write)
        yield* payments.post(write)
        const told = log.filter((line) => line["event"] === "payout_transition")
        assert.deepStrictEqual(
          told.map(({ fencingToken, outcome, ownerId }) => [outcome, fencingToken, ownerId]),
          [
            ["PENDING", undefined, "w1"],
            ["CLAIMED", "8", "w1"],
            ["POSTED", "8", "w1"]
          ]
        )
        assert.isTrue(told.every((line) => line["payoutId"] === payout.payoutId && line["accountId"] === accountId))
        assert.lengthOf(
          log.filter((line) => line["event"] === "payout_write_repeated"),
          1
        )
        const { transition } = Metrics.payment
        assert.deepStrictEqual(
          yield* Effect.all([countOf(transition.PENDING), countOf(transition.CLAIMED), countOf(transition.POSTED)]),
          [1, 1, 1]
        )
        const leadTime = yield* Metric.value(Metrics.payment.leadTime)
        assert.deepStrictEqual([leadTime.count, leadTime.sum], [1, 90])
      })
    )
  )

  it.effect(
    "a stale token is an incident: at ERROR with everything one needs, counted by operation, and still a failure",
    () =>
      run((log) =>
        Effect.gen(function* () {
          const { payments, payout, write } = yield* claimed
          const stale = { ...write, token: T(7) }
          for (const op of ["claim", "post", "ambiguous", "resolve"] as const) {
            assert.strictEqual((yield* Effect.flip(payments[op](stale)))._tag, "FencedOut")
            assert.strictEqual(yield* countOf(Metrics.payment.fencedOut[op]), 1)
          }
          assert.strictEqual((yield* Effect.flip(payments.fail({ ...stale, reason: "CANCELLED" })))._tag, "FencedOut")
          assert.strictEqual(yield* countOf(Metrics.payment.fencedOut.fail), 1)
          const told = log.filter((line) => line["event"] === "fenced_out")
          assert.lengthOf(told, 5)
          assert.deepInclude(told[1] ?? {}, {
            level: "Error",
            point: "resource",
            op: "post",
            payoutId: payout.payoutId,
            accountId,
            fencingToken: "7",
            highest: "8",
            ownerId: "w1"
          })
        })
      )
  )

  it.effect("an ordinary refusal is no incident", () =>
    run((log) =>
      Effect.gen(function* () {
        const { payments, write } = yield* claimed
        assert.strictEqual((yield* Effect.flip(payments.post(write)))._tag, "EvidenceMissing")
        assert.isEmpty(log.filter((line) => line.level === "Error"))
        assert.strictEqual(yield* countOf(Metrics.payment.fencedOut.post), 0)
      })
    )
  )

  it.effect("every series exists before the first event", () =>
    run(() =>
      Effect.gen(function* () {
        const registry = yield* Metric.MetricRegistry
        const names = [...registry.values()].map((hooks) => hooks.id)
        for (const name of ["lock_fenced_out_total", "payout_transition_total", "ledger_invariant_violations"]) {
          assert.include(names, name)
        }
      })
    )
  )

  it.effect("watches backlog, ages and ledger, and says when it last could", () => {
    let reachable = true
    return run(
      (log) =>
        Effect.gen(function* () {
          const { payments } = yield* claimed
          yield* payments.createPayout({
            idempotencyKey: AcquireId.make("order-2"),
            actor: w1,
            accountId,
            amountMinor: 1n,
            currency: "EUR",
            beneficiary: "Ada Example"
          })
          const { backlog, backlogAge, backlogRefreshed, claimedAge, verifyTimestamp } = Metrics.payment
          yield* TestClock.adjust("40 seconds")
          assert.deepStrictEqual(yield* Effect.all([gaugeOf(backlog.PENDING), gaugeOf(backlog.CLAIMED)]), [1, 1])
          assert.deepStrictEqual(yield* Effect.all([gaugeOf(backlogAge), gaugeOf(claimedAge)]), [40, 40])
          const now = (yield* Clock.currentTimeMillis) / 1_000
          assert.deepStrictEqual(yield* Effect.all([gaugeOf(backlogRefreshed), gaugeOf(verifyTimestamp)]), [now, now])

          reachable = false
          yield* TestClock.adjust("60 seconds")
          assert.deepStrictEqual(yield* Effect.all([gaugeOf(backlogAge), gaugeOf(backlogRefreshed)]), [40, now])
          assert.isNotEmpty(log.filter((line) => line.level === "Warn"))
          reachable = true
          yield* TestClock.adjust("10 seconds")
          assert.deepStrictEqual(yield* Effect.all([gaugeOf(backlogAge), gaugeOf(backlogRefreshed)]), [110, now + 70])
        }),
      (store) => ({
        backlog: Effect.suspend(() => (reachable ? store.backlog : Effect.fail(backendUnavailable("backlog", "down"))))
      })
    )
  })

  it.effect("a ledger that lies is told at ERROR and counted, by invariant", () =>
    run((log) =>
      Effect.gen(function* () {
        const { payments, write } = yield* acknowledged
        yield* payments.post(write)
        const db = yield* SimPaydb.SimPaydb
        const posting = db.journals.at(-1)
        if (posting !== undefined) db.journals.push({ ...posting, journalId: 99n })
        yield* TestClock.adjust("10 seconds")
        const violations = Metrics.payment.invariantViolations
        assert.strictEqual(yield* gaugeOf(violations["ONE-POSTING"]), 1)
        assert.isAbove(yield* gaugeOf(violations["INV-03"]), 0)
        assert.strictEqual(yield* gaugeOf(violations["INV-02"]), 0)
        const told = log.filter((line) => line["event"] === "invariant_violation")
        assert.sameMembers([...new Set(told.map((line) => line["invariant"]))], ["INV-03", "ONE-POSTING"])
      })
    )
  )
})
