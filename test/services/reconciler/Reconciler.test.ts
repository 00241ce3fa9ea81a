import { assert, describe, it } from "@effect/vitest"
import { Effect, Fiber, Logger, Metric, References } from "effect"
import { TestClock } from "effect/testing"
import { OwnerId } from "../../../src/core/lock/Lock.ts"
import { backendUnavailable } from "../../../src/core/lock/LockErrors.ts"
import { railEvidence, reconciler as reconcilerMetrics } from "../../../src/core/Metrics.ts"
import { defaults } from "../../../src/core/Settings.ts"
import { Mortal } from "../../support/Mortal.ts"
import { ACCOUNT, AMOUNT_MINOR, makeWorld, OPENING_MINOR, passUntil, type RailMood } from "../../support/PayoutWorld.ts"

const policy = { finalityWindowMillis: 60_000, minNotFound: 2, minSpacingMillis: 5_000 }
const posted = { state: "POSTED", executions: 1, postings: 1, balance: OPENING_MINOR - AMOUNT_MINOR, reserved: 0n }
const failed = { state: "FAILED", executions: 0, postings: 0, balance: OPENING_MINOR, reserved: 0n }

const over = (fiber: Fiber.Fiber<unknown, unknown>) => Effect.sync(() => fiber.pollUnsafe() !== undefined)

/** Virtual time passes while the effect runs. */
const passing = <A, E>(effect: Effect.Effect<A, E>) =>
  Effect.gen(function* () {
    const running = yield* Effect.forkDetach(effect)
    yield* passUntil("it is over", over(running))
    return yield* Fiber.join(running)
  })

/** The names of the events that are logged while the effect runs. */
const recordingEvents = <A, E, R>(events: Array<unknown>, effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.provide(
    effect,
    Logger.layer([
      Logger.make(({ fiber }) => {
        const { event } = fiber.getRef(References.CurrentLogAnnotations)
        if (event !== undefined) events.push(event)
      })
    ])
  )

/** One payout of which the rail's answer was lost. */
const ambiguousPayout = Effect.fnUntraced(function* (mood: RailMood) {
  const world = yield* makeWorld({ policy })
  yield* world.openAccount()
  const { payoutId } = yield* world.order()
  world.rail.be(mood)
  const w1 = yield* world.executor({ name: "w1" })
  assert.strictEqual(yield* passing(w1.executor.turn(ACCOUNT)), "RAIL_AMBIGUOUS")
  world.rail.be("ack")
  return { world, payoutId, read: world.ports.payments.readPayout(payoutId) }
})

describe("the reconciler", () => {
  it.effect("posts what the rail did pay, under its own token", () =>
    Effect.gen(function* () {
      const { payoutId, read, world } = yield* ambiguousPayout("lost-paid")
      const before = yield* read
      const r1 = yield* world.reconciler({ name: "r1" })
      assert.deepStrictEqual([...(yield* passing(r1.reconciler.pass))], [[payoutId, "POSTED"]])
      assert.deepStrictEqual(yield* world.figures(payoutId), posted)
      const after = yield* read
      assert.isTrue((after.claimToken ?? 0n) > (before.claimToken ?? 0n))
      assert.strictEqual(world.rail.submits(), 1)
    })
  )

  it.effect("believes that nothing was paid only after the finality window, and when told twice", () =>
    Effect.gen(function* () {
      const { payoutId, world } = yield* ambiguousPayout("lost-unpaid")
      const r1 = yield* world.reconciler({ name: "r1" })
      assert.strictEqual((yield* passing(r1.reconciler.pass)).get(payoutId), "UNKNOWN")
      yield* TestClock.adjust("2 minutes")
      assert.strictEqual((yield* passing(r1.reconciler.pass)).get(payoutId), "UNKNOWN")
      yield* TestClock.adjust("5 seconds")
      assert.strictEqual((yield* passing(r1.reconciler.pass)).get(payoutId), "FAILED")
      assert.deepStrictEqual(yield* world.figures(payoutId), failed)
      assert.strictEqual((yield* world.ports.payments.readPayout(payoutId)).failReason, "RAIL_NOT_EXECUTED")
    })
  )

  it.effect("calls a human once when a payout stays unknown for too long, and keeps it ambiguous", () =>
    Effect.gen(function* () {
      const { payoutId, read, world } = yield* ambiguousPayout("lost-unpaid")
      const r1 = yield* world.reconciler({ name: "r1" })
      world.rail.be("silent")
      yield* TestClock.adjust(defaults.reconcile.slaMillis)
      const events: Array<unknown> = []
      for (let pass = 0; pass < 3; pass++) {
        const outcomes = yield* passing(recordingEvents(events, r1.reconciler.pass))
        assert.strictEqual(outcomes.get(payoutId), "ESCALATED")
      }
      assert.strictEqual(events.filter((event) => event === "payout_escalated").length, 1)
      assert.strictEqual((yield* read).state, "RAIL_AMBIGUOUS")
    })
  )

  it.effect("leaves contradicting evidence to a human", () =>
    Effect.gen(function* () {
      const { payoutId, read, world } = yield* ambiguousPayout("lost-paid")
      const actor = OwnerId.make("bank-statement")
      for (const finding of ["EXECUTED", "REJECTED"] as const) {
        const { askedAt } = yield* world.ports.submissions.beginLookup(payoutId)
        const executed = finding === "EXECUTED"
        yield* world.ports.submissions.recordLookup({
          payoutId,
          finding,
          executedCount: executed ? 1 : 0,
          railReference: executed ? "rail-1" : null,
          actor,
          askedAt
        })
      }
      const r1 = yield* world.reconciler({ name: "r1" })
      const events: Array<unknown> = []
      const outcomes = yield* passing(recordingEvents(events, r1.reconciler.pass))
      assert.strictEqual(outcomes.get(payoutId), "ESCALATED")
      assert.include(events, "payout_escalated")
      assert.strictEqual((yield* read).state, "RAIL_AMBIGUOUS")
    })
  )

  it.effect("settles once when two of them are at it", () =>
    Effect.gen(function* () {
      const { payoutId, world } = yield* ambiguousPayout("lost-paid")
      const r1 = yield* world.reconciler({ name: "r1" })
      const r2 = yield* world.reconciler({ name: "r2" })
      const passes = Effect.all([r1.reconciler.pass, r2.reconciler.pass], { concurrency: 2 })
      const outcomes = (yield* passing(passes)).map((outcome) => outcome.get(payoutId))
      assert.strictEqual(outcomes.filter((outcome) => outcome === "POSTED").length, 1)
      assert.deepStrictEqual(yield* world.figures(payoutId), posted)
    })
  )

  for (const point of [
    "reconcile.acquire.after",
    "lookup.before",
    "lookup.after",
    "resolve.before",
    "resolve.after",
    "reconcile.release.before"
  ]) {
    it.effect(`that dies at ${point} is followed by one that settles`, () =>
      Effect.gen(function* () {
        const { payoutId, world } = yield* ambiguousPayout("lost-paid")
        const r1 = yield* world.reconciler({
          name: "r1",
          mortal: new Mortal((at) => (at === point ? "die" : "live"))
        })
        yield* r1.run(r1.reconciler.pass)
        yield* passUntil(
          "r1 is dead",
          Effect.sync(() => r1.mortal.isDead)
        )
        const r2 = yield* world.reconciler({ name: "r2" })
        yield* r2.run(r2.reconciler.run)
        yield* passUntil(
          "it is settled",
          Effect.map(world.figures(payoutId), ({ state }) => state === "POSTED")
        )
        assert.deepStrictEqual(yield* world.figures(payoutId), posted)
      })
    )
  }

  it.effect("that was stopped past its lease changes nothing when it wakes", () =>
    Effect.gen(function* () {
      const { payoutId, world } = yield* ambiguousPayout("lost-paid")
      const stopped = new Mortal((at) => (at === "resolve.before" ? "stop" : "live"))
      const r1 = yield* world.reconciler({ name: "r1", mortal: stopped })
      const late = yield* r1.run(r1.reconciler.pass)
      yield* passUntil(
        "r1 is stopped",
        Effect.sync(() => stopped.isStopped)
      )
      const r2 = yield* world.reconciler({ name: "r2" })
      yield* r2.run(r2.reconciler.run)
      yield* passUntil(
        "r2 has settled it",
        Effect.map(world.figures(payoutId), ({ state }) => state === "POSTED")
      )
      const settled = yield* world.ports.payments.readHistory(payoutId)
      stopped.resume()
      yield* passUntil("r1 is over", over(late))
      assert.strictEqual((yield* Fiber.join(late)).get(payoutId), "LATER")
      assert.deepStrictEqual(yield* world.ports.payments.readHistory(payoutId), settled)
      assert.deepStrictEqual(yield* world.figures(payoutId), posted)
    })
  )

  it.effect("finds, once, what the rail paid after everybody believed that it would not", () =>
    Effect.gen(function* () {
      const { payoutId, read, world } = yield* ambiguousPayout("lost-unpaid")
      const r1 = yield* world.reconciler({ name: "r1" })
      const events: Array<unknown> = []
      yield* r1.run(recordingEvents(events, r1.reconciler.run))
      yield* passUntil(
        "it is believed that nothing was sent",
        Effect.map(world.figures(payoutId), ({ state }) => state === "FAILED"),
        { atMostMillis: 600_000, stepMillis: 500 }
      )
      yield* TestClock.adjust("10 minutes")
      assert.notInclude(events, "late_execution")
      // A proxy that was stopped between its last look at the clock and the socket wakes: no fence can close that hole.
      const before = (yield* Metric.value(railEvidence.lateExecution)).count
      yield* world.rail.rail.submit(yield* read, 1n << 62n)
      yield* passUntil(
        "the late execution is found",
        Effect.sync(() => events.includes("late_execution")),
        {
          atMostMillis: 3_600_000,
          stepMillis: 5_000
        }
      )
      const found = events.filter((event) => event === "late_execution").length
      yield* TestClock.adjust("2 hours")
      assert.strictEqual(events.filter((event) => event === "late_execution").length, found)
      assert.isAbove((yield* Metric.value(railEvidence.lateExecution)).count, before)
      const { executions, state } = yield* world.figures(payoutId)
      assert.deepStrictEqual([state, executions], ["FAILED", 1])
    })
  )

  it.effect("says when it last succeeded, and not when payment-resource is away", () =>
    Effect.gen(function* () {
      const { world } = yield* ambiguousPayout("lost-paid")
      const value = Effect.map(Metric.value(reconcilerMetrics.lastSuccess), (state) => state.value)
      const r1 = yield* world.reconciler({ name: "r1" })
      yield* passing(r1.reconciler.pass)
      const succeeded = yield* value
      yield* TestClock.adjust("1 hour")
      const r2 = yield* world.reconciler({ name: "r2" }, (ports) => ({
        ...ports,
        payments: { ...ports.payments, listPayouts: () => Effect.fail(backendUnavailable("listPayouts", "refused")) }
      }))
      yield* passing(Effect.flip(r2.reconciler.pass))
      assert.strictEqual(yield* value, succeeded)
      yield* passing(r1.reconciler.pass)
      assert.isAbove(yield* value, succeeded)
    })
  )
})
