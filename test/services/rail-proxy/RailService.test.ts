/** R1 to R5 in virtual time: one budget, one send, one outcome, whatever happens around them. */
import { assert, describe, it } from "@effect/vitest"
import { Clock, Context, Deferred, Effect, Exit, Fiber, Layer, Logger, Metric, References, Scope } from "effect"
import { TestClock } from "effect/testing"
import { FaultPoint } from "../../../src/core/FaultPoint.ts"
import { AcquireId, FencingToken, OwnerId } from "../../../src/core/lock/Lock.ts"
import { backendUnavailable } from "../../../src/core/lock/LockErrors.ts"
import * as Metrics from "../../../src/core/Metrics.ts"
import { RailAmbiguous } from "../../../src/core/payment/PaymentErrors.ts"
import { AccountId, PayoutId } from "../../../src/core/payment/Payout.ts"
import { PaymentStore } from "../../../src/core/payment/PaymentStore.ts"
import { Rail, RailNoAnswer } from "../../../src/core/rail/Rail.ts"
import { RailProxy } from "../../../src/core/rail/RailProxy.ts"
import { SubmissionStore } from "../../../src/core/rail/SubmissionStore.ts"
import { defaults } from "../../../src/core/Settings.ts"
import * as RailService from "../../../src/services/rail-proxy/RailService.ts"
import * as SimPaydb from "../../../src/sim/SimPaydb.ts"
import * as SimPaymentStore from "../../../src/sim/SimPaymentStore.ts"
import * as SimSubmissionStore from "../../../src/sim/SimSubmissionStore.ts"

const w1 = OwnerId.make("w1")
const T = (n: number) => FencingToken.make(BigInt(n))
const payoutId = PayoutId.make("00000000-0000-4000-8000-000000000001")
const request = {
  token: T(7),
  actor: w1,
  idempotencyKey: AcquireId.make("submit-1"),
  payoutId,
  accountId: AccountId.make("acct-1"),
  amountMinor: 2_500n,
  currency: "EUR",
  beneficiary: "DE02120300000000202051"
}

interface WorldOptions {
  /** What the rail does; default: acknowledges. */
  readonly submit?: Rail["Service"]["submit"]
  readonly lookup?: Rail["Service"]["lookup"]
  /** What lies between the service and its store. */
  readonly store?: (store: SubmissionStore["Service"]) => Partial<SubmissionStore["Service"]>
  readonly unfenced?: boolean
}

/** The service over paydb in memory, with one payout claimed under 7. */
const makeWorld = Effect.fnUntraced(function* (options: WorldOptions = {}) {
  const switches = { resource: true, rail: options.unfenced !== true }
  const paydb = yield* Layer.build(
    Layer.merge(SimPaymentStore.layer, SimSubmissionStore.layer(defaults.rail)).pipe(
      Layer.provide(SimPaydb.layer({ switches }))
    )
  )
  const payments = Context.get(paydb, PaymentStore)
  const store = Context.get(paydb, SubmissionStore)
  let sends = 0
  const acknowledge: Rail["Service"]["submit"] = () =>
    Effect.succeed({ _tag: "Acknowledged", railReference: `R-${sends}` })
  const rail = Rail.of({
    submit: (payment, sendNotAfter) =>
      Effect.suspend(() => {
        sends++
        return (options.submit ?? acknowledge)(payment, sendNotAfter)
      }),
    lookup: options.lookup ?? (() => Effect.succeed({ _tag: "NOT_FOUND" })),
    ping: Effect.void
  })
  const scope = yield* Scope.make()
  const service = yield* Layer.buildWithScope(
    RailService.layer(defaults.rail).pipe(
      Layer.provide([
        Layer.succeed(Rail, rail),
        Layer.succeed(SubmissionStore, { ...store, ...options.store?.(store) })
      ])
    ),
    scope
  )
  const { accountId, amountMinor, beneficiary, currency } = request
  yield* payments.createAccount({ accountId, currency, openingBalanceMinor: 10_000n, actor: w1 })
  yield* payments.createPayout({
    idempotencyKey: AcquireId.make("order-1"),
    actor: w1,
    payoutId,
    accountId,
    amountMinor,
    currency,
    beneficiary
  })
  yield* payments.claim({ payoutId, token: T(7), actor: w1 })
  return {
    payments,
    store,
    proxy: Context.get(service, RailProxy),
    sends: () => sends,
    stop: Scope.close(scope, Exit.void),
    outcome: Effect.map(store.read(payoutId), ({ outcome }) => outcome)
  }
})

const failure = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.flip(effect), (found) => ({ ...found }) as Record<string, unknown>)

const count = (metric: Metric.Metric<number, Metric.CounterState<number>>) =>
  Effect.map(Metric.value(metric), (state) => state.count)

/** Runs with metrics of its own, and with the events that were logged. */
const observed = <A, E, R>(use: (events: Array<Readonly<Record<string, unknown>>>) => Effect.Effect<A, E, R>) =>
  Effect.suspend(() => {
    const events: Array<Readonly<Record<string, unknown>>> = []
    const logger = Logger.make<unknown, void>(({ fiber, logLevel }) => {
      events.push({ level: logLevel, ...fiber.getRef(References.CurrentLogAnnotations) })
    })
    return use(events).pipe(
      Effect.provideService(Metric.MetricRegistry, new Map()),
      Effect.provideService(Logger.CurrentLoggers, new Set([logger]))
    )
  })

/** Stops whoever reaches the point until it is released. */
const gateAt = (point: string) =>
  Effect.map(Effect.all([Deferred.make<void>(), Deferred.make<void>()]), ([arrived, released]) => ({
    faultPoint: (name: string) =>
      name === point ? Effect.andThen(Deferred.succeed(arrived, undefined), Deferred.await(released)) : Effect.void,
    arrived: Deferred.await(arrived),
    release: Deferred.succeed(released, undefined)
  }))

const never = () => Effect.never
const noAnswer = (neverSent: boolean) => () => Effect.fail(new RailNoAnswer({ cause: "test", neverSent }))
const unavailable = Effect.fail(backendUnavailable("test", "down"))

describe("R1", () => {
  it.effect("sends once and answers ACKED when the outcome is committed", () =>
    observed((events) =>
      Effect.gen(function* () {
        const world = yield* makeWorld()
        assert.deepStrictEqual(yield* world.proxy.submit(request), { payoutId, outcome: "ACKED", railReference: "R-1" })
        assert.strictEqual(yield* world.outcome, "ACKED")
        assert.strictEqual(world.sends(), 1)
        assert.deepStrictEqual(
          events.map(({ event, fencingToken, level, payoutId }) => ({ event, fencingToken, level, payoutId })),
          [
            { event: "rail_intent", level: "Info", payoutId, fencingToken: "7" },
            { event: "rail_outcome", level: "Info", payoutId, fencingToken: "7" }
          ]
        )
        const timed = yield* Metric.value(Metrics.rail.submit.acked)
        assert.strictEqual(timed.count, 1)
      })
    )
  )

  it.effect("answers the same token from the record, never sending again: ACKED, DECLINED, TIMEOUT, INTENT", () =>
    Effect.gen(function* () {
      const acked = yield* makeWorld()
      const first = yield* acked.proxy.submit(request)
      assert.deepStrictEqual(yield* acked.proxy.submit(request), first)
      assert.strictEqual(acked.sends(), 1)

      const declined = yield* makeWorld({ submit: () => Effect.succeed({ _tag: "Declined", code: "AM04" }) })
      const refusal = { _tag: "RailDeclined", payoutId, railCode: "AM04" }
      assert.deepStrictEqual(yield* failure(declined.proxy.submit(request)), refusal)
      assert.deepStrictEqual(yield* failure(declined.proxy.submit(request)), refusal)
      assert.strictEqual(declined.sends(), 1)

      const lost = yield* makeWorld({ submit: noAnswer(false) })
      const ambiguous = { _tag: "RailAmbiguous", payoutId, outcome: "TIMEOUT" }
      assert.deepStrictEqual(yield* failure(lost.proxy.submit(request)), ambiguous)
      assert.deepStrictEqual(yield* failure(lost.proxy.submit(request)), ambiguous)
      assert.strictEqual(lost.sends(), 1)

      const underWay = yield* makeWorld({ submit: never })
      yield* Effect.forkChild(underWay.proxy.submit(request), { startImmediately: true })
      assert.deepStrictEqual(yield* failure(underWay.proxy.submit(request)), {
        _tag: "RailAmbiguous",
        payoutId,
        outcome: "INTENT"
      })
      assert.strictEqual(underWay.sends(), 1)
    })
  )

  it.effect("tells another accepted token of the record, counts the attempt and sends nothing", () =>
    observed((events) =>
      Effect.gen(function* () {
        const world = yield* makeWorld({ submit: noAnswer(false) })
        yield* Effect.exit(world.proxy.submit(request))
        yield* world.payments.claim({ payoutId, token: T(8), actor: w1 })
        assert.deepStrictEqual(yield* failure(world.proxy.submit({ ...request, token: T(8) })), {
          _tag: "DuplicateSubmission",
          payoutId,
          outcome: "TIMEOUT",
          token: 7n
        })
        assert.strictEqual(world.sends(), 1)
        assert.strictEqual(yield* count(Metrics.rail.duplicateAttempted), 1)
        assert.deepInclude(events.at(-1), { event: "rail_duplicate_attempted", level: "Error", fencingToken: "8" })
      })
    )
  )

  it.effect("fences out a stale token at ERROR, counts it, and sends nothing", () =>
    observed((events) =>
      Effect.gen(function* () {
        const world = yield* makeWorld()
        yield* world.payments.claim({ payoutId, token: T(8), actor: w1 })
        assert.deepInclude(yield* failure(world.proxy.submit(request)), {
          _tag: "FencedOut",
          point: "rail",
          op: "submit"
        })
        assert.strictEqual(world.sends(), 0)
        assert.strictEqual(yield* count(Metrics.rail.fencedOut.submit), 1)
        assert.deepStrictEqual(events, [
          {
            level: "Error",
            event: "fenced_out",
            point: "rail",
            op: "submit",
            accountId: "acct-1",
            fencingToken: "7",
            highest: "8",
            payoutId,
            actor: "w1"
          }
        ])
      })
    )
  )

  it.effect("with the fence off sends a stale submit again: that is what the fence is for", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld({ unfenced: true })
      yield* world.payments.claim({ payoutId, token: T(8), actor: w1 })
      yield* world.proxy.submit({ ...request, token: T(8) })
      yield* world.proxy.submit(request)
      assert.strictEqual(world.sends(), 2)
    })
  )

  it.effect("records TIMEOUT when the rail has not answered at the end of the budget, and answers then", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld({ submit: never })
      const caller = yield* Effect.forkChild(failure(world.proxy.submit(request)), { startImmediately: true })
      yield* TestClock.adjust("7999 millis")
      assert.strictEqual(yield* world.outcome, "INTENT")
      yield* TestClock.adjust("1 millis")
      assert.deepStrictEqual(yield* Fiber.join(caller), { _tag: "RailAmbiguous", payoutId, outcome: "TIMEOUT" })
      assert.strictEqual(yield* world.outcome, "TIMEOUT")
    })
  )

  it.effect("counts the budget from before the intent: a slow commit leaves less for the rail", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld({
        submit: never,
        store: (store) => ({ recordIntent: (request) => Effect.delay(store.recordIntent(request), "1500 millis") })
      })
      const caller = yield* Effect.forkChild(failure(world.proxy.submit(request)), { startImmediately: true })
      yield* TestClock.adjust("1500 millis")
      assert.strictEqual(world.sends(), 1)
      yield* TestClock.adjust("6499 millis")
      assert.strictEqual(yield* world.outcome, "INTENT")
      yield* TestClock.adjust("1 millis")
      assert.deepInclude(yield* Fiber.join(caller), { outcome: "TIMEOUT" })
    })
  )

  it.effect("does not send at all once the send window has passed, and records TIMEOUT", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld()
      const gate = yield* gateAt("rail.intent.after")
      const caller = yield* failure(world.proxy.submit(request)).pipe(
        Effect.provideService(FaultPoint, gate.faultPoint),
        Effect.forkChild({ startImmediately: true })
      )
      yield* gate.arrived
      // Stopped between intent and send, for longer than the window.
      yield* TestClock.adjust("2001 millis")
      yield* gate.release
      assert.deepStrictEqual(yield* Fiber.join(caller), { _tag: "RailAmbiguous", payoutId, outcome: "TIMEOUT" })
      assert.strictEqual(world.sends(), 0)
      assert.strictEqual(yield* world.outcome, "TIMEOUT")
    })
  )

  it.effect("sends when it was stopped for less than the window", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld()
      const gate = yield* gateAt("rail.intent.after")
      const caller = yield* world.proxy
        .submit(request)
        .pipe(Effect.provideService(FaultPoint, gate.faultPoint), Effect.forkChild({ startImmediately: true }))
      yield* gate.arrived
      yield* TestClock.adjust("2 seconds")
      yield* gate.release
      assert.deepInclude(yield* Fiber.join(caller), { outcome: "ACKED" })
    })
  )

  it.effect("hands the end of the window to the rail's client, whose own check comes after the connection stands", () =>
    Effect.gen(function* () {
      let notAfter = 0n
      const world = yield* makeWorld({
        submit: (_, sendNotAfter) => {
          notAfter = sendNotAfter
          return Effect.fail(new RailNoAnswer({ cause: "connecting took too long", neverSent: true }))
        }
      })
      const startedAt = yield* Clock.monotonicTimeNanos
      assert.deepInclude(yield* failure(world.proxy.submit(request)), { _tag: "RailAmbiguous", outcome: "TIMEOUT" })
      assert.strictEqual(notAfter - startedAt, 2_000_000_000n)
    })
  )

  it.effect("runs to its recorded outcome although its caller went away", () =>
    Effect.gen(function* () {
      const answered = yield* Deferred.make<void>()
      const world = yield* makeWorld({
        submit: () => Effect.as(Deferred.await(answered), { _tag: "Acknowledged", railReference: "R-1" })
      })
      const caller = yield* Effect.forkChild(world.proxy.submit(request), { startImmediately: true })
      yield* Fiber.interrupt(caller)
      assert.strictEqual(yield* world.outcome, "INTENT")
      yield* Deferred.succeed(answered, undefined)
      yield* TestClock.adjust(0)
      assert.strictEqual(yield* world.outcome, "ACKED")
    })
  )

  it.effect("is waited for by a stopping process", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld({ submit: never })
      const caller = yield* Effect.forkChild(world.proxy.submit(request), { startImmediately: true })
      yield* Fiber.interrupt(caller)
      const stopping = yield* Effect.forkChild(world.stop, { startImmediately: true })
      yield* TestClock.adjust("7 seconds")
      assert.isUndefined(stopping.pollUnsafe())
      yield* TestClock.adjust("1 second")
      yield* Fiber.join(stopping)
      assert.strictEqual(yield* world.outcome, "TIMEOUT")
    })
  )

  it.effect("answers BACKEND_UNAVAILABLE when nothing was recorded, and sends nothing", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld({ store: () => ({ recordIntent: () => unavailable }) })
      assert.deepInclude(yield* failure(world.proxy.submit(request)), { _tag: "BackendUnavailable" })
      assert.strictEqual(world.sends(), 0)
    })
  )

  it.effect("sends nothing when it is not known whether the intent was committed, and says that it is ambiguous", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld({
        store: (store) => ({
          // Committed; the answer is lost.
          recordIntent: (request) =>
            Effect.andThen(
              Effect.orDie(store.recordIntent(request)),
              Effect.fail(new RailAmbiguous({ payoutId, outcome: "INTENT" }))
            )
        })
      })
      assert.deepInclude(yield* failure(world.proxy.submit(request)), { _tag: "RailAmbiguous", outcome: "INTENT" })
      assert.strictEqual(world.sends(), 0)
      assert.strictEqual(yield* world.outcome, "INTENT")
    })
  )

  it.effect("repeats the write of the outcome until it is confirmed, and only then says ACKED", () =>
    Effect.gen(function* () {
      let tries = 0
      const world = yield* makeWorld({
        store: (store) => ({
          // The third try answers; the second was committed, and its answer lost.
          recordOutcome: (...outcome) =>
            Effect.suspend(() => {
              tries++
              if (tries === 1) return unavailable
              if (tries === 2) return Effect.andThen(store.recordOutcome(...outcome), unavailable)
              return store.recordOutcome(...outcome)
            })
        })
      })
      const caller = yield* Effect.forkChild(world.proxy.submit(request), { startImmediately: true })
      yield* TestClock.adjust("1 second")
      assert.deepStrictEqual(yield* Fiber.join(caller), { payoutId, outcome: "ACKED", railReference: "R-1" })
      assert.deepStrictEqual([tries, world.sends()], [3, 1])
    })
  )

  it.effect("gives up on the outcome in the end: the record keeps its intent, the caller was told long before", () =>
    observed((events) =>
      Effect.gen(function* () {
        const world = yield* makeWorld({ store: () => ({ recordOutcome: () => unavailable }) })
        const caller = yield* Effect.forkChild(failure(world.proxy.submit(request)), { startImmediately: true })
        yield* TestClock.adjust("9 seconds")
        assert.deepStrictEqual(yield* Fiber.join(caller), { _tag: "RailAmbiguous", payoutId, outcome: "INTENT" })
        yield* TestClock.adjust("10 seconds")
        assert.deepInclude(events.at(-1), { event: "rail_outcome", level: "Error", outcome: "INTENT" })
        yield* world.stop
        assert.strictEqual(yield* world.outcome, "INTENT")
      })
    )
  )

  it.effect("counts a repeated rail reference, and takes it for ambiguous", () =>
    observed(() =>
      Effect.gen(function* () {
        const world = yield* makeWorld({
          store: (store) => ({
            recordOutcome: (id, _outcome, detail) =>
              Effect.map(store.recordOutcome(id, "ACKED", detail), (submission) => ({
                ...submission,
                outcome: "DUPLICATE_ACK"
              }))
          })
        })
        assert.deepInclude(yield* failure(world.proxy.submit(request)), {
          _tag: "RailAmbiguous",
          outcome: "DUPLICATE_ACK"
        })
        assert.strictEqual(yield* count(Metrics.railEvidence.duplicateDetected), 1)
      })
    )
  )

  it.effect("passes a refusal of the store on unchanged, and sends nothing", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld()
      assert.deepInclude(yield* failure(world.proxy.submit({ ...request, amountMinor: 1n })), {
        _tag: "ValidationFailed"
      })
      assert.strictEqual(world.sends(), 0)
    })
  )
})

describe("R3", () => {
  const ask = { payoutId, actor: w1 }

  it.effect("records what the rail said, also that it said nothing", () =>
    Effect.gen(function* () {
      const found = yield* makeWorld({
        submit: noAnswer(false),
        lookup: () => Effect.succeed({ _tag: "EXECUTED", count: 1, railReference: "R-9" })
      })
      yield* Effect.exit(found.proxy.submit(request))
      assert.deepStrictEqual(yield* found.proxy.lookup(ask), {
        payoutId,
        finding: "EXECUTED",
        executedCount: 1,
        railReference: "R-9"
      })
      assert.strictEqual((yield* found.payments.readPayout(payoutId)).nextStep, "POST")

      const blind = yield* makeWorld({ submit: noAnswer(false), lookup: noAnswer(true) })
      yield* Effect.exit(blind.proxy.submit(request))
      assert.deepStrictEqual(yield* blind.proxy.lookup(ask), {
        payoutId,
        finding: "UNAVAILABLE",
        executedCount: 0,
        railReference: null
      })
    })
  )

  it.effect("is bounded when the rail does not answer", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld({ lookup: never })
      const caller = yield* Effect.forkChild(world.proxy.lookup(ask), { startImmediately: true })
      yield* TestClock.adjust("8 seconds")
      assert.deepInclude(yield* Fiber.join(caller), { finding: "UNAVAILABLE" })
    })
  )

  it.effect("dates a finding before the rail was asked, so that a late answer does not look final", () =>
    Effect.gen(function* () {
      const asked: Array<number> = []
      const world = yield* makeWorld({
        lookup: () => Effect.delay(Effect.succeed({ _tag: "NOT_FOUND" }), "5 seconds"),
        store: (store) => ({
          recordLookup: (found) => {
            asked.push(found.askedAt)
            return store.recordLookup(found)
          }
        })
      })
      const before = yield* Clock.currentTimeMillis
      const caller = yield* Effect.forkChild(world.proxy.lookup(ask), { startImmediately: true })
      yield* TestClock.adjust("5 seconds")
      yield* Fiber.join(caller)
      assert.deepStrictEqual(asked, [before])
    })
  )

  it.effect("pages for an execution after FAILED, once, and for one that happened twice", () =>
    observed((events) =>
      Effect.gen(function* () {
        const world = yield* makeWorld({
          submit: () => Effect.succeed({ _tag: "Declined", code: "AC04" }),
          lookup: () => Effect.succeed({ _tag: "EXECUTED", count: 2, railReference: "R-9" })
        })
        yield* Effect.exit(world.proxy.submit(request))
        yield* world.payments.fail({ payoutId, token: T(7), actor: w1, reason: "RAIL_DECLINED" })
        events.length = 0
        yield* world.proxy.lookup(ask)
        yield* world.proxy.lookup(ask)
        assert.deepStrictEqual(
          events.map(({ event, level }) => [event, level]),
          [
            ["late_execution", "Error"],
            ["rail_duplicate_detected", "Error"],
            ["rail_duplicate_detected", "Error"]
          ]
        )
        assert.strictEqual(yield* count(Metrics.railEvidence.lateExecution), 1)
      })
    )
  )
})

describe("R4 and R5", () => {
  it.effect("seal once, answer again, and lose to a submission", () =>
    Effect.gen(function* () {
      const { proxy } = yield* makeWorld()
      const seal = { payoutId, token: T(7), actor: w1, reason: "customer cancelled" }
      const sealed = yield* proxy.seal(seal)
      assert.deepInclude(sealed, { outcome: "VOIDED" })
      assert.deepStrictEqual(yield* proxy.seal(seal), sealed)
      assert.deepInclude(yield* failure(proxy.submit(request)), { _tag: "DuplicateSubmission", outcome: "VOIDED" })

      const other = yield* makeWorld()
      yield* other.proxy.submit(request)
      assert.deepInclude(yield* failure(other.proxy.seal(seal)), { _tag: "DuplicateSubmission", outcome: "ACKED" })
    })
  )

  it.effect("count the stale tokens that they refuse", () =>
    observed(() =>
      Effect.gen(function* () {
        const { payments, proxy } = yield* makeWorld({ submit: noAnswer(false) })
        yield* payments.claim({ payoutId, token: T(8), actor: w1 })
        yield* Effect.exit(proxy.submit({ ...request, token: T(8) }))
        const stale = { payoutId, token: T(7), actor: w1, reason: "late to the party" }
        assert.deepInclude(yield* failure(proxy.seal(stale)), { _tag: "FencedOut", op: "void", highest: 8n })
        assert.deepInclude(yield* failure(proxy.evidence({ ...stale, finding: "REJECTED" })), {
          _tag: "FencedOut",
          op: "evidence",
          highest: 8n
        })
        const { evidence, submit, void: sealing } = Metrics.rail.fencedOut
        assert.deepStrictEqual(yield* Effect.all([count(submit), count(sealing), count(evidence)]), [0, 1, 1])
      })
    )
  )
})
