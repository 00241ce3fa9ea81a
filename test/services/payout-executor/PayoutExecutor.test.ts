import { assert, describe, it } from "@effect/vitest"
import { Effect, Fiber, Logger, Metric, References } from "effect"
import { TestClock } from "effect/testing"
import { switchMatrix } from "../../../src/core/Fencing.ts"
import { backendUnavailable } from "../../../src/core/lock/LockErrors.ts"
import { AcquireId, OwnerId } from "../../../src/core/lock/Lock.ts"
import { lock as lockMetrics } from "../../../src/core/Metrics.ts"
import { AccountId, lockKeyOf } from "../../../src/core/payment/Payout.ts"
import { Mortal } from "../../support/Mortal.ts"
import { ACCOUNT, AMOUNT_MINOR, makeWorld, OPENING_MINOR, passUntil } from "../../support/PayoutWorld.ts"

const paidOnce = { state: "POSTED", executions: 1, postings: 1, balance: OPENING_MINOR - AMOUNT_MINOR, reserved: 0n }
const notPaid = { state: "FAILED", executions: 0, postings: 0, balance: OPENING_MINOR, reserved: 0n }

type World = Effect.Success<ReturnType<typeof makeWorld>>

const diesAt = (point: string, visit = 1) => new Mortal((at, nth) => (at === point && nth === visit ? "die" : "live"))
const stopsAt = (point: string) => new Mortal((at) => (at === point ? "stop" : "live"))

/** A world with one payout to make. */
const onePayout = Effect.fnUntraced(function* (options?: Parameters<typeof makeWorld>[0]) {
  const world = yield* makeWorld(options)
  yield* world.openAccount()
  return { world, payout: yield* world.order() }
})

const stateIs = (world: World, payoutId: Parameters<World["figures"]>[0], state: string) =>
  passUntil(
    `payout ${payoutId} is ${state}`,
    Effect.map(world.ports.payments.readPayout(payoutId), (payout) => payout.state === state),
    { atMostMillis: 300_000 }
  )

/** A hop as the log tells it. */
interface Told {
  readonly event: unknown
  readonly op: unknown
  readonly token: unknown
  readonly outcome: unknown
}

const recordingHops = <A, E, R>(told: Array<Told>, effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.provide(
    effect,
    Logger.layer([
      Logger.make(({ fiber }) => {
        const { event, op, outcome, token } = fiber.getRef(References.CurrentLogAnnotations)
        if (event === "payout_hop" || event === "stale_hop") told.push({ event, op, token, outcome })
      })
    ])
  )

/** Virtual time passes while the effect runs. */
const passing = <A, E>(effect: Effect.Effect<A, E>) =>
  Effect.gen(function* () {
    const running = yield* Effect.forkDetach(effect)
    yield* passUntil(
      "it is over",
      Effect.sync(() => running.pollUnsafe() !== undefined)
    )
    return yield* Fiber.join(running)
  })

describe("a turn", () => {
  it.effect("presents one token at every hop and gives the lock back", () =>
    Effect.gen(function* () {
      const { payout, world } = yield* onePayout()
      const w1 = yield* world.executor({ name: "w1" })
      const told: Array<Told> = []
      assert.strictEqual(yield* passing(recordingHops(told, w1.executor.turn(ACCOUNT))), "POSTED")
      assert.deepStrictEqual(yield* world.figures(payout.payoutId), paidOnce)
      assert.deepStrictEqual(
        told.map(({ op, outcome }) => `${String(op)} ${String(outcome)}`),
        ["acquire GRANTED", "claim CLAIMED", "submit ACKED", "post POSTED"]
      )
      assert.strictEqual(new Set(told.map(({ token }) => token)).size, 1)
      assert.isFalse((yield* world.ports.locks.inspect(lockKeyOf(ACCOUNT))).held)
      // A token serves one payout: the next gets a new one.
      yield* world.order()
      yield* passing(recordingHops(told, w1.executor.turn(ACCOUNT)))
      assert.strictEqual(new Set(told.map(({ token }) => token)).size, 2)
      assert.strictEqual(yield* passing(w1.executor.turn(ACCOUNT)), "NOTHING")
    })
  )

  it.effect("executes nothing without the lock", () =>
    Effect.gen(function* () {
      const { payout, world } = yield* onePayout()
      const w1 = yield* world.executor({ name: "w1", mortal: stopsAt("claim.before") })
      const w2 = yield* world.executor({ name: "w2" })
      yield* w1.run(w1.executor.turn(ACCOUNT))
      yield* passUntil(
        "w1 holds the lock",
        Effect.sync(() => w1.mortal.isStopped)
      )
      assert.strictEqual(yield* passing(w2.executor.turn(ACCOUNT)), "CONTENDED")
      assert.strictEqual((yield* world.ports.payments.readPayout(payout.payoutId)).state, "PENDING")
    })
  )

  it.effect("re-reads under the lock and does nothing when another did the work", () =>
    Effect.gen(function* () {
      const { payout, world } = yield* onePayout()
      const w1 = yield* world.executor({ name: "w1" })
      const w2 = yield* world.executor({ name: "w2" })
      const both = Effect.all([w1.executor.turn(ACCOUNT), w2.executor.turn(ACCOUNT)], { concurrency: 2 })
      const outcomes = yield* passing(both)
      assert.deepStrictEqual([...outcomes].sort(), ["NOTHING", "POSTED"])
      assert.deepStrictEqual(yield* world.figures(payout.payoutId), paidOnce)
    })
  )

  it.effect("fails a payout that the rail declined", () =>
    Effect.gen(function* () {
      const { payout, world } = yield* onePayout()
      world.rail.be("decline")
      const w1 = yield* world.executor({ name: "w1" })
      assert.strictEqual(yield* passing(w1.executor.turn(ACCOUNT)), "FAILED")
      assert.deepStrictEqual(yield* world.figures(payout.payoutId), notPaid)
      assert.strictEqual((yield* world.ports.payments.readPayout(payout.payoutId)).failReason, "RAIL_DECLINED")
    })
  )

  it.effect("seals and fails a payout that the account can not pay", () =>
    Effect.gen(function* () {
      const { world } = yield* onePayout()
      const w1 = yield* world.executor({ name: "w1" })
      const tooMuch = yield* world.order(ACCOUNT, OPENING_MINOR + 1n)
      assert.strictEqual(yield* passing(w1.executor.turn(ACCOUNT)), "POSTED")
      assert.strictEqual(yield* passing(w1.executor.turn(ACCOUNT)), "FAILED")
      const failed = yield* world.ports.payments.readPayout(tooMuch.payoutId)
      assert.strictEqual(failed.failReason, "INSUFFICIENT_FUNDS")
      assert.strictEqual((yield* world.proxy.readSubmission(tooMuch.payoutId)).outcome, "VOIDED")
      assert.strictEqual(world.rail.submits(), 1)
    })
  )

  it.effect("finishes a payout that was sealed by somebody who died", () =>
    Effect.gen(function* () {
      const { payout, world } = yield* onePayout()
      const locks = yield* world.executor({ name: "w0" })
      // An operator cancels: seals under a token of his own and goes away.
      const ownerId = OwnerId.make("operator")
      const session = yield* world.ports.locks.openSession({ ownerId })
      const key = lockKeyOf(ACCOUNT)
      const { token } = yield* world.ports.locks.acquire({
        key,
        ownerId,
        sessionId: session.sessionId,
        acquireId: AcquireId.make("cancel-1")
      })
      yield* world.proxy.seal({ payoutId: payout.payoutId, token, actor: ownerId, reason: "ordered twice" })
      yield* world.ports.locks.release({ key, ownerId, token })
      assert.strictEqual(yield* passing(locks.executor.turn(ACCOUNT)), "FAILED")
      assert.deepStrictEqual(yield* world.figures(payout.payoutId), notPaid)
      assert.strictEqual((yield* world.ports.payments.readPayout(payout.payoutId)).failReason, "CANCELLED")
    })
  )

  it.effect("marks a payout ambiguous when the rail gave no answer, and nobody submits it again", () =>
    Effect.gen(function* () {
      const { payout, world } = yield* onePayout()
      world.rail.be("lost-paid")
      const w1 = yield* world.executor({ name: "w1" })
      assert.strictEqual(yield* passing(w1.executor.turn(ACCOUNT)), "RAIL_AMBIGUOUS")
      const { executions, postings, reserved, state } = yield* world.figures(payout.payoutId)
      assert.deepStrictEqual([state, executions, postings, reserved], ["RAIL_AMBIGUOUS", 1, 0, AMOUNT_MINOR])
      world.rail.be("ack")
      assert.strictEqual(yield* passing(w1.executor.turn(ACCOUNT)), "NOTHING")
      assert.strictEqual(world.rail.submits(), 1)
    })
  )

  for (const op of ["claim", "post"] as const) {
    it.effect(`asks again under the same token when the answer to its ${op} was lost`, () =>
      Effect.gen(function* () {
        let lost = 0
        const { payout, world } = yield* onePayout({
          payments: (payments) => ({
            ...payments,
            [op]: (write: Parameters<typeof payments.claim>[0]) =>
              Effect.suspend(() =>
                lost++ === 0
                  ? Effect.andThen(payments[op](write), Effect.fail(backendUnavailable(op, "the answer was lost")))
                  : payments[op](write)
              )
          })
        })
        const w1 = yield* world.executor({ name: "w1" })
        assert.strictEqual(yield* passing(w1.executor.turn(ACCOUNT)), "POSTED")
        assert.strictEqual(lost, 2)
        assert.deepStrictEqual(yield* world.figures(payout.payoutId), paidOnce)
      })
    )
  }

  it.effect(
    "never repeats a submit: without an answer and without a record, a later turn sends under a new token",
    () =>
      Effect.gen(function* () {
        const { payout, world } = yield* onePayout()
        const w1 = yield* world.executor({ name: "w1" })
        yield* world.restartProxy(diesAt("rail.intent.before"))
        const told: Array<Told> = []
        assert.strictEqual(yield* passing(recordingHops(told, w1.executor.turn(ACCOUNT))), "LATER")
        yield* world.restartProxy(new Mortal())
        assert.strictEqual(yield* passing(recordingHops(told, w1.executor.turn(ACCOUNT))), "POSTED")
        const submits = told.filter(({ op }) => op === "submit")
        assert.deepStrictEqual(
          submits.map(({ outcome }) => outcome),
          ["BACKEND_UNAVAILABLE", "ACKED"]
        )
        assert.notStrictEqual(submits[0]?.token, submits[1]?.token)
        assert.deepStrictEqual(yield* world.figures(payout.payoutId), paidOnce)
      })
  )

  it.effect("ends with the loss of the lock: nothing more is asked of anybody", () =>
    Effect.gen(function* () {
      const { payout, world } = yield* onePayout()
      const w1 = yield* world.executor({ name: "w1", mortal: stopsAt("claim.after") })
      const turn = yield* w1.run(w1.executor.turn(ACCOUNT))
      yield* passUntil(
        "w1 is stopped",
        Effect.sync(() => w1.mortal.isStopped)
      )
      const w2 = yield* world.executor({ name: "w2" })
      yield* w2.run(w2.executor.run)
      yield* stateIs(world, payout.payoutId, "POSTED")
      w1.mortal.resume()
      yield* passUntil(
        "w1 has ended its turn",
        Effect.sync(() => turn.pollUnsafe() !== undefined)
      )
      assert.strictEqual(yield* Fiber.join(turn), "LOCK_LOST")
      assert.deepStrictEqual(yield* world.figures(payout.payoutId), paidOnce)
      assert.strictEqual(world.rail.submits(), 1)
    })
  )

  it.effect("counts a token regression: a live grant whose token is below the fence", () =>
    Effect.gen(function* () {
      const { payout, world } = yield* onePayout()
      const account = world.db.accounts.get(ACCOUNT)
      assert.isDefined(account)
      account.fence = 1_000_000n
      const before = (yield* Metric.value(lockMetrics.tokenRegression)).count
      const w1 = yield* world.executor({ name: "w1" })
      assert.strictEqual(yield* passing(w1.executor.turn(ACCOUNT)), "FENCED_OUT")
      assert.strictEqual((yield* Metric.value(lockMetrics.tokenRegression)).count, before + 1)
      assert.strictEqual((yield* world.ports.payments.readPayout(payout.payoutId)).state, "PENDING")
    })
  )
})

describe("a worker that dies", () => {
  const points = [
    "acquire.after",
    "claim.before",
    "claim.after",
    "submit.before",
    "submit.after",
    "post.before",
    "post.after",
    "release.before"
  ]
  for (const point of points) {
    it.effect(`at ${point} leaves a payout that the next one finishes, paid once`, () =>
      Effect.gen(function* () {
        const { payout, world } = yield* onePayout()
        const w1 = yield* world.executor({ name: "w1", mortal: diesAt(point) })
        yield* w1.run(w1.executor.turn(ACCOUNT))
        yield* passUntil(
          "w1 is dead",
          Effect.sync(() => w1.mortal.isDead)
        )
        const w2 = yield* world.executor({ name: "w2" })
        yield* w2.run(w2.executor.run)
        yield* stateIs(world, payout.payoutId, "POSTED")
        assert.deepStrictEqual(yield* world.figures(payout.payoutId), paidOnce)
        assert.strictEqual(world.rail.submits(), 1)
      })
    )
  }

  for (const point of ["fail.before", "fail.after"]) {
    it.effect(`at ${point} leaves a declined payout that the next one fails`, () =>
      Effect.gen(function* () {
        const { payout, world } = yield* onePayout()
        world.rail.be("decline")
        const w1 = yield* world.executor({ name: "w1", mortal: diesAt(point) })
        yield* w1.run(w1.executor.turn(ACCOUNT))
        yield* passUntil(
          "w1 is dead",
          Effect.sync(() => w1.mortal.isDead)
        )
        const w2 = yield* world.executor({ name: "w2" })
        yield* w2.run(w2.executor.run)
        yield* stateIs(world, payout.payoutId, "FAILED")
        assert.deepStrictEqual(yield* world.figures(payout.payoutId), notPaid)
      })
    )
  }

  for (const point of ["ambiguous.before", "ambiguous.after"]) {
    it.effect(`at ${point} leaves an unanswered payout that the next one marks ambiguous`, () =>
      Effect.gen(function* () {
        const { payout, world } = yield* onePayout()
        world.rail.be("lost-unpaid")
        const w1 = yield* world.executor({ name: "w1", mortal: diesAt(point) })
        yield* w1.run(w1.executor.turn(ACCOUNT))
        yield* passUntil(
          "w1 is dead",
          Effect.sync(() => w1.mortal.isDead)
        )
        const w2 = yield* world.executor({ name: "w2" })
        yield* w2.run(w2.executor.run)
        yield* stateIs(world, payout.payoutId, "RAIL_AMBIGUOUS")
        assert.strictEqual(world.rail.submits(), 1)
      })
    )
  }

  for (const point of ["seal.before", "seal.after", "fail.before"]) {
    it.effect(`at ${point} leaves a payout without funds that the next one fails, never sent`, () =>
      Effect.gen(function* () {
        const { payout, world } = yield* onePayout()
        const tooMuch = yield* world.order(ACCOUNT, OPENING_MINOR)
        const w1 = yield* world.executor({ name: "w1", mortal: diesAt(point) })
        yield* w1.run(w1.executor.run)
        yield* passUntil(
          "w1 is dead",
          Effect.sync(() => w1.mortal.isDead)
        )
        const w2 = yield* world.executor({ name: "w2" })
        yield* w2.run(w2.executor.run)
        yield* stateIs(world, tooMuch.payoutId, "FAILED")
        assert.deepStrictEqual(yield* world.figures(payout.payoutId), paidOnce)
        assert.strictEqual(world.rail.submits(), 1)
      })
    )
  }
})

describe("a proxy that dies", () => {
  const policy = { finalityWindowMillis: 60_000, minNotFound: 2, minSpacingMillis: 5_000 }
  for (const [point, end] of [
    ["rail.intent.before", paidOnce],
    ["rail.intent.after", notPaid],
    ["rail.send.before", notPaid],
    ["rail.send.after", paidOnce],
    ["rail.outcome.before", paidOnce],
    ["rail.outcome.after", paidOnce]
  ] as const) {
    it.effect(`at ${point} leaves a payout that ends ${end.state}, as the rail's book has it`, () =>
      Effect.gen(function* () {
        const { payout, world } = yield* onePayout({ policy })
        yield* world.restartProxy(diesAt(point))
        const w1 = yield* world.executor({ name: "w1" })
        yield* w1.run(w1.executor.run)
        yield* passUntil("the proxy is dead", Effect.sync(world.proxyIsDown))
        yield* world.restartProxy(new Mortal())
        const r1 = yield* world.reconciler({ name: "r1" })
        yield* r1.run(r1.reconciler.run)
        yield* stateIs(world, payout.payoutId, end.state)
        assert.deepStrictEqual(yield* world.figures(payout.payoutId), end)
        assert.isAtMost(world.rail.submits(), 1)
      })
    )
  }

  it.effect("after a worker died in the call is waited for, and its acknowledgement is posted", () =>
    Effect.gen(function* () {
      const { payout, world } = yield* onePayout()
      const slow = stopsAt("rail.intent.after")
      yield* world.restartProxy(slow)
      const w1 = yield* world.executor({ name: "w1" })
      yield* w1.run(w1.executor.turn(ACCOUNT))
      yield* passUntil(
        "the proxy is in the call",
        Effect.sync(() => slow.isStopped)
      )
      w1.mortal.kill()
      slow.resume()
      const w2 = yield* world.executor({ name: "w2" })
      yield* w2.run(w2.executor.run)
      yield* stateIs(world, payout.payoutId, "POSTED")
      assert.deepStrictEqual(yield* world.figures(payout.payoutId), paidOnce)
    })
  )
})

describe("the paused worker that ignores the loss of its lock", () => {
  for (const switches of switchMatrix) {
    const name = `fence (a) ${switches.payment ? "on" : "OFF"}, fence (c) ${switches.rail ? "on" : "OFF"}`
    it.effect(`${name}: exactly the harm of the missing fence`, () =>
      Effect.gen(function* () {
        const { payout, world } = yield* onePayout({ switches })
        const w1 = yield* world.executor({ name: "w1", mortal: stopsAt("submit.before"), staleHolder: true })
        const told: Array<Told> = []
        const turn = yield* w1.run(recordingHops(told, w1.executor.turn(ACCOUNT)))
        yield* passUntil(
          "w1 is stopped",
          Effect.sync(() => w1.mortal.isStopped)
        )
        const w2 = yield* world.executor({ name: "w2" })
        const running = yield* w2.run(w2.executor.run)
        yield* stateIs(world, payout.payoutId, "POSTED")
        yield* Fiber.interrupt(running)
        w1.mortal.resume()
        yield* passUntil(
          "w1 has ended its turn",
          Effect.sync(() => turn.pollUnsafe() !== undefined)
        )
        assert.deepStrictEqual(yield* world.figures(payout.payoutId), {
          state: "POSTED",
          executions: switches.rail ? 1 : 2,
          postings: switches.payment ? 1 : 2,
          balance: OPENING_MINOR - AMOUNT_MINOR * (switches.payment ? 1n : 2n),
          reserved: 0n
        })
        assert.deepStrictEqual(
          told
            .filter(({ event }) => event === "stale_hop")
            .map(({ op, outcome }) => `${String(op)} ${String(outcome)}`),
          [
            switches.rail ? "submit FENCED_OUT" : "submit ACKED",
            switches.payment ? "claim FENCED_OUT" : "claim CLAIMED",
            switches.payment ? "post FENCED_OUT" : "post POSTED"
          ]
        )
      })
    )
  }
})

/** The port as it answers behind a cut network. */
const unreachable = <S extends object>(port: S, isCut: () => boolean): S =>
  new Proxy(port, {
    get: (target, name): unknown => {
      const method: unknown = Reflect.get(target, name)
      if (typeof method !== "function") return method
      return (...args: ReadonlyArray<unknown>): unknown =>
        isCut() ? Effect.fail(backendUnavailable(String(name), "unreachable")) : Reflect.apply(method, target, args)
    }
  })

describe("the executor", () => {
  const accounts = Array.from({ length: 6 }, (_, n) => AccountId.make(`acct-${n}`))

  it.effect("works off every account's payouts together with others, each paid once", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld()
      const payouts = []
      for (const accountId of accounts) {
        yield* world.openAccount(accountId)
        for (let n = 0; n < 3; n++) payouts.push(yield* world.order(accountId, 1_000n))
      }
      for (const name of ["w1", "w2", "w3"]) {
        const worker = yield* world.executor({ name })
        yield* worker.run(worker.executor.run)
      }
      for (const payout of payouts) yield* stateIs(world, payout.payoutId, "POSTED")
      assert.strictEqual(world.rail.submits(), payouts.length)
      assert.strictEqual(new Set(world.rail.book.map((entry) => entry.clientReference)).size, payouts.length)
    })
  )

  it.effect("executes nothing while the lock service is away, and works off the backlog when it is back", () =>
    Effect.gen(function* () {
      const { payout, world } = yield* onePayout()
      let away = true
      const w1 = yield* world.executor({ name: "w1" }, (ports) => ({
        ...ports,
        locks: unreachable(ports.locks, () => away)
      }))
      assert.strictEqual(yield* passing(w1.executor.turn(ACCOUNT)), "UNAVAILABLE")
      yield* w1.run(w1.executor.run)
      yield* TestClock.adjust("1 minute")
      assert.strictEqual((yield* world.ports.payments.readPayout(payout.payoutId)).state, "PENDING")
      away = false
      yield* stateIs(world, payout.payoutId, "POSTED")
      assert.deepStrictEqual(yield* world.figures(payout.payoutId), paidOnce)
    })
  )

  it.effect("drains: the payout under way is finished, no other is begun", () =>
    Effect.gen(function* () {
      const { payout, world } = yield* onePayout()
      const next = yield* world.order()
      const w1 = yield* world.executor({ name: "w1", mortal: stopsAt("post.before") })
      const running = yield* w1.run(w1.executor.run)
      yield* passUntil(
        "w1 is about to post",
        Effect.sync(() => w1.mortal.isStopped)
      )
      // As the process does it: no more polls, then wait for what is under way.
      yield* Fiber.interrupt(running)
      const drained = yield* w1.run(w1.executor.drain)
      w1.mortal.resume()
      yield* passUntil(
        "it is drained",
        Effect.sync(() => drained.pollUnsafe() !== undefined)
      )
      assert.deepStrictEqual(yield* world.figures(payout.payoutId), paidOnce)
      assert.strictEqual((yield* world.ports.payments.readPayout(next.payoutId)).state, "PENDING")
      yield* w1.stop
      assert.isFalse((yield* world.ports.locks.inspect(lockKeyOf(ACCOUNT))).held)
    })
  )
})
