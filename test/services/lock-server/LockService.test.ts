import { assert, describe, it } from "@effect/vitest"
import { Clock, Context, Effect, Exit, Fiber, Latch, Layer, Metric, Stream } from "effect"
import { TestClock } from "effect/testing"
import { AcquireId, FencingToken, LockKey, OwnerId, type Session } from "../../../src/core/lock/Lock.ts"
import { LockApi } from "../../../src/core/lock/LockApi.ts"
import { backendUnavailable } from "../../../src/core/lock/LockErrors.ts"
import { LockStore } from "../../../src/core/lock/LockStore.ts"
import * as Metrics from "../../../src/core/Metrics.ts"
import { defaults } from "../../../src/core/Settings.ts"
import * as LockService from "../../../src/services/lock-server/LockService.ts"
import * as SimLockStore from "../../../src/sim/SimLockStore.ts"

type Store = LockStore["Service"]

const key = LockKey.make("payout:acct-1")
const owner = (name: string) => OwnerId.make(name)
const id = (name: string) => AcquireId.make(name)

/** The service over a store in memory, of which `change` may replace parts. */
const world = (change: (store: Store) => Partial<Store> = () => ({})) =>
  LockService.layer(defaults.lock).pipe(
    Layer.provideMerge(
      Layer.effect(
        LockStore,
        Effect.map(SimLockStore.make(), (store) => LockStore.of({ ...store, ...change(store) }))
      )
    )
  )

const provided =
  (layer: Layer.Layer<LockApi | LockService.LockWaiters | LockStore> = world()) =>
  <A, E>(effect: Effect.Effect<A, E, LockApi | LockService.LockWaiters | LockStore>) =>
    effect.pipe(Effect.provide(layer, { local: true }), Effect.provideService(Metric.MetricRegistry, new Map()))

const open = (name: string, ttlMillis = 300_000) =>
  Effect.flatMap(LockApi, (api) => api.openSession({ ownerId: owner(name), ttlMillis }))

interface Options {
  readonly waitMillis?: number
  readonly ttlMillis?: number
  readonly acquireId?: AcquireId
  readonly key?: LockKey
}
const acquire = (session: Session, options: Options = {}) =>
  Effect.flatMap(LockApi, (api) =>
    api.acquire({ key, ttlMillis: 300_000, ...options, ownerId: session.ownerId, sessionId: session.sessionId })
  )

/** Runs the others until nobody has anything to do at this time. */
const settle = Effect.andThen(
  Effect.forEach(Array.from({ length: 50 }), () => Effect.yieldNow, { discard: true }),
  TestClock.adjust(0)
)

const waiting = (session: Session, options: Options = {}) =>
  Effect.tap(Effect.forkChild(Effect.exit(acquire(session, { waitMillis: 30_000, ...options }))), () => settle)

const tagOf = (exit: Exit.Exit<unknown, { readonly _tag: string }>): string =>
  Exit.match(exit, {
    onSuccess: () => "granted",
    onFailure: () => Exit.findErrorOption(exit).pipe((error) => (error._tag === "Some" ? error.value._tag : "defect"))
  })

const isDone = (fiber: Fiber.Fiber<unknown, unknown>) => fiber.pollUnsafe() !== undefined

const count = (metric: Metric.Metric<never, { readonly count: number | bigint }>) =>
  Effect.map(Metric.value(metric), (state) => Number(state.count))

describe("LockService", { timeout: 5_000 }, () => {
  it.effect("uses the defaults, and clamps what is out of bounds", () =>
    Effect.gen(function* () {
      const api = yield* LockApi
      const session = yield* api.openSession({ ownerId: owner("w1") })
      assert.strictEqual(session.ttlMillis, defaults.lock.sessionTtlMillis)
      assert.strictEqual((yield* open("w1", 10_000_000)).ttlMillis, 300_000)
      const { sessionId } = session
      const grant = yield* api.acquire({ key, ownerId: owner("w1"), sessionId })
      assert.strictEqual(grant.ttlMillis, defaults.lock.defaultTtlMillis)
      assert.strictEqual(grant.waitedMillis, 0)
      const renewed = yield* api.renew({ key, ownerId: owner("w1"), token: grant.token, ttlMillis: 10_000_000 })
      assert.strictEqual(renewed.ttlMillis, 300_000)
    }).pipe(provided())
  )

  it.effect("answers at once when the request does not wait", () =>
    Effect.gen(function* () {
      yield* acquire(yield* open("w1"))
      const refusal = yield* Effect.flip(acquire(yield* open("w2")))
      assert.strictEqual(refusal._tag, "LockContended")
      if (refusal._tag === "LockContended") assert.strictEqual(refusal.holderOwnerId, owner("w1"))
    }).pipe(provided())
  )

  it.effect("grants waiters in the order of their coming, each when the one before releases", () =>
    Effect.gen(function* () {
      const api = yield* LockApi
      let grant = yield* acquire(yield* open("holder"))
      const names = ["a", "b", "c", "d", "e"]
      const fibers = yield* Effect.forEach(names, (name) => Effect.flatMap(open(name), (session) => waiting(session)))
      for (const [i, name] of names.entries()) {
        yield* TestClock.adjust(100)
        assert.deepStrictEqual(
          fibers.map(isDone),
          names.map((_, j) => j < i)
        )
        yield* api.release({ key, ownerId: grant.ownerId, token: grant.token })
        yield* settle
        const exit = yield* Fiber.join(fibers[i]!)
        if (Exit.isFailure(exit)) return assert.fail(String(exit.cause))
        assert.strictEqual(exit.value.ownerId, owner(name))
        assert.isTrue(exit.value.token > grant.token)
        assert.strictEqual(exit.value.waitedMillis, 100 * (i + 1))
        grant = exit.value
      }
    }).pipe(provided())
  )

  it.effect("lets nobody overtake: who does not wait is refused while others do", () =>
    Effect.gen(function* () {
      const api = yield* LockApi
      const held = yield* acquire(yield* open("holder"))
      const first = yield* waiting(yield* open("first"))
      // The holder releases, and the newcomer asks before the first waiter has run.
      yield* api.release({ key, ownerId: owner("holder"), token: held.token })
      const newcomer = yield* Effect.exit(acquire(yield* open("newcomer")))
      const named = yield* Effect.exit(acquire(yield* open("named"), { acquireId: id("named") }))
      assert.strictEqual(tagOf(newcomer), "LockContended")
      assert.strictEqual(tagOf(named), "LockContended")
      yield* settle
      assert.strictEqual(tagOf(yield* Fiber.join(first)), "granted")
    }).pipe(provided())
  )

  it.effect("says what a wait that ran out had been", () =>
    Effect.gen(function* () {
      yield* acquire(yield* open("holder"))
      const fiber = yield* waiting(yield* open("w2"), { waitMillis: 2_500 })
      yield* TestClock.adjust(2_499)
      assert.isFalse(isDone(fiber))
      yield* TestClock.adjust(2)
      const exit = yield* Fiber.join(fiber)
      const failure = Exit.findErrorOption(exit)
      assert.strictEqual(tagOf(exit), "ContentionExceeded")
      if (failure._tag === "Some" && failure.value._tag === "ContentionExceeded") {
        assert.isTrue(failure.value.waitedMillis >= 2_500)
        assert.isTrue(failure.value.attempts >= 3)
        assert.isTrue(failure.value.retryAfterMillis > 0)
      }
      assert.strictEqual(yield* Effect.flatMap(LockService.LockWaiters, (waiters) => waiters.count(key)), 0)
    }).pipe(provided())
  )

  it.effect("wakes the waiter when the holder's lease runs out, when it is revoked and when its session closes", () =>
    Effect.gen(function* () {
      const api = yield* LockApi
      yield* acquire(yield* open("short"), { ttlMillis: 1_500 })
      const second = yield* open("second")
      const expiry = yield* waiting(second)
      yield* TestClock.adjust(1_520)
      assert.strictEqual(tagOf(yield* Fiber.join(expiry)), "granted")

      const revoked = yield* waiting(yield* open("third"))
      yield* api.revoke({ key, operator: "ops", reason: "stuck for an hour" })
      yield* settle
      const third = yield* Fiber.join(revoked)
      assert.strictEqual(tagOf(third), "granted")
      if (Exit.isFailure(third)) return

      const closed = yield* waiting(yield* open("fourth"))
      yield* api.closeSession(third.value.sessionId, owner("third"))
      yield* settle
      assert.strictEqual(tagOf(yield* Fiber.join(closed)), "granted")
    }).pipe(provided())
  )

  it.effect("may wait for longer than leases and sessions last", () =>
    Effect.gen(function* () {
      const api = yield* LockApi
      const held = yield* acquire(yield* open("holder"), { ttlMillis: 2_000 })
      const session = yield* open("w2", 2_000)
      const fiber = yield* waiting(session, { ttlMillis: 1_000, waitMillis: 20_000 })
      for (let i = 0; i < 15; i++) {
        yield* TestClock.adjust(1_000)
        yield* api.heartbeat(session.sessionId, owner("w2"))
        yield* api.renew({ key, ownerId: owner("holder"), token: held.token, ttlMillis: 2_000 })
      }
      assert.isFalse(isDone(fiber))
      yield* api.release({ key, ownerId: owner("holder"), token: held.token })
      yield* settle
      const exit = yield* Fiber.join(fiber)
      if (Exit.isFailure(exit)) return assert.fail(String(exit.cause))
      assert.strictEqual(exit.value.waitedMillis, 15_000)
      assert.strictEqual(exit.value.ttlMillis, 1_000)
    }).pipe(provided())
  )

  it.effect("never grants to a waiter whose session died, and goes on with the next", () =>
    Effect.gen(function* () {
      const api = yield* LockApi
      const held = yield* acquire(yield* open("holder"))
      const dead = yield* waiting(yield* open("dead", 2_000))
      const alive = yield* waiting(yield* open("alive"))
      const closing = yield* open("closing")
      yield* TestClock.adjust(5_000)
      yield* api.release({ key, ownerId: owner("holder"), token: held.token })
      yield* settle
      assert.strictEqual(tagOf(yield* Fiber.join(dead)), "SessionExpired")
      const grant = yield* Fiber.join(alive)
      assert.strictEqual(tagOf(grant), "granted")
      const unknown = yield* waiting(closing)
      yield* api.closeSession(closing.sessionId, owner("closing"))
      yield* TestClock.adjust(2_000)
      assert.strictEqual(tagOf(yield* Fiber.join(unknown)), "SessionUnknown")
    }).pipe(provided())
  )

  it.effect("forgets a waiter whose client is gone: the next one is granted", () =>
    Effect.gen(function* () {
      const api = yield* LockApi
      const waiters = yield* LockService.LockWaiters
      const held = yield* acquire(yield* open("holder"))
      const gone = yield* waiting(yield* open("gone"))
      const next = yield* waiting(yield* open("next"))
      assert.strictEqual(yield* waiters.count(key), 2)
      yield* Fiber.interrupt(gone)
      assert.strictEqual(yield* waiters.count(key), 1)
      yield* api.release({ key, ownerId: owner("holder"), token: held.token })
      yield* settle
      const exit = yield* Fiber.join(next)
      if (Exit.isFailure(exit)) return assert.fail(String(exit.cause))
      assert.strictEqual(exit.value.ownerId, owner("next"))
      assert.strictEqual(yield* waiters.count(key), 0)
    }).pipe(provided())
  )

  for (const waitMillis of [0, 10_000]) {
    it.effect(
      `gives back what a client won that was gone by then, unless he can ask again (wait ${waitMillis})`,
      () => {
        const gate = Latch.makeUnsafe(true)
        const asked = Latch.makeUnsafe()
        return Effect.gen(function* () {
          const store = yield* LockStore
          const session = yield* open("w1")
          for (const acquireId of [undefined, id("mine")]) {
            gate.closeUnsafe()
            asked.closeUnsafe()
            const fiber = yield* Effect.forkChild(
              acquire(session, { waitMillis, ...(acquireId === undefined ? {} : { acquireId }) })
            )
            yield* asked.await
            const interruption = yield* Effect.forkChild(Fiber.interrupt(fiber))
            yield* settle
            gate.openUnsafe()
            yield* Fiber.join(interruption)
            const record = yield* store.record(key)
            assert.strictEqual(record.held, acquireId !== undefined)
          }
          const repeated = yield* acquire(session, { waitMillis, acquireId: id("mine") })
          assert.strictEqual(repeated.token, (yield* store.record(key)).token)
        }).pipe(
          provided(
            world((store) => ({
              tryAcquire: (request) =>
                Effect.andThen(
                  Effect.sync(() => asked.openUnsafe()),
                  Effect.andThen(gate.await, store.tryAcquire(request))
                )
            }))
          )
        )
      }
    )
  }

  it.effect("answers a repeat with its own grant although others wait for the key", () =>
    Effect.gen(function* () {
      const session = yield* open("holder")
      const held = yield* acquire(session, { acquireId: id("mine") })
      yield* waiting(yield* open("first"))
      yield* waiting(yield* open("second"))
      const atOnce = yield* acquire(session, { acquireId: id("mine") })
      assert.strictEqual(atOnce.token, held.token)
      const later = yield* waiting(session, { acquireId: id("mine") })
      const exit = yield* Fiber.join(later)
      if (Exit.isFailure(exit)) return assert.fail(String(exit.cause))
      assert.strictEqual(exit.value.token, held.token)
    }).pipe(provided())
  )

  it.effect("asks the store once at a time and once a second, however many wait", () => {
    let calls = 0
    let atOnce = 0
    let atOnceMax = 0
    return Effect.gen(function* () {
      const api = yield* LockApi
      const held = yield* acquire(yield* open("holder"))
      const session = yield* open("crowd")
      calls = 0
      const fibers = yield* Effect.forEach(Array.from({ length: 200 }), (_, i) =>
        Effect.forkChild(Effect.exit(acquire(session, { waitMillis: 20_000, acquireId: id(`crowd-${i}`) })))
      )
      yield* settle
      const arriving = calls
      yield* TestClock.adjust(10_000)
      assert.isTrue(arriving <= 201, `${arriving} calls for 200 arrivals`)
      assert.isTrue(calls - arriving <= 11, `${calls - arriving} calls in 10 s`)
      assert.strictEqual(atOnceMax, 1)
      calls = 0
      yield* api.release({ key, ownerId: owner("holder"), token: held.token })
      yield* settle
      assert.strictEqual(fibers.filter(isDone).length, 1)
      assert.isTrue(calls <= 3, `${calls} calls for one grant`)
    }).pipe(
      provided(
        world((store) => ({
          tryAcquire: (request) =>
            Effect.suspend(() => {
              calls++
              atOnceMax = Math.max(atOnceMax, ++atOnce)
              return Effect.ensuring(
                Effect.andThen(Effect.yieldNow, store.tryAcquire(request)),
                Effect.sync(() => atOnce--)
              )
            })
        }))
      )
    )
  })

  it.effect("tells every waiter that the backend does not answer, and measures the outage", () => {
    let down = false
    return Effect.gen(function* () {
      yield* acquire(yield* open("holder"))
      const fibers = yield* Effect.forEach(["a", "b", "c"], (name) => Effect.flatMap(open(name), (s) => waiting(s)))
      down = true
      yield* TestClock.adjust(2_000)
      for (const fiber of fibers) assert.strictEqual(tagOf(yield* Fiber.join(fiber)), "BackendUnavailable")
      yield* TestClock.adjust(3_000)
      assert.strictEqual(yield* count(Metrics.lock.backendUnavailable), 0)
      down = false
      yield* TestClock.adjust(1_000)
      assert.strictEqual(yield* count(Metrics.lock.backendUnavailable), 1)
      assert.strictEqual(yield* count(Metrics.lock.acquire.error), 3)
      const { sum } = yield* Metric.value(Metrics.lock.backendUnavailable)
      assert.isTrue(sum >= 3 && sum <= 6, `${sum} s`)
    }).pipe(
      provided(
        world((store) => ({
          tryAcquire: (request) =>
            Effect.suspend(() =>
              down ? Effect.fail(backendUnavailable("tryAcquire", "no answer")) : store.tryAcquire(request)
            ),
          sweep: Effect.suspend(() => (down ? Effect.fail(backendUnavailable("sweep", "no answer")) : store.sweep))
        }))
      )
    )
  })

  it.effect("answers its waiters when it is about to stop, and lets nobody wait after that", () =>
    Effect.gen(function* () {
      const waiters = yield* LockService.LockWaiters
      yield* acquire(yield* open("holder"))
      const fibers = yield* Effect.forEach(["a", "b"], (name) => Effect.flatMap(open(name), (s) => waiting(s)))
      yield* waiters.dismiss
      yield* settle
      for (const fiber of fibers) {
        const exit = yield* Fiber.join(fiber)
        const failure = Exit.findErrorOption(exit)
        assert.strictEqual(tagOf(exit), "LockContended")
        if (failure._tag === "Some" && failure.value._tag === "LockContended") {
          assert.isTrue(failure.value.retryAfterMillis > 0)
        }
      }
      const late = yield* waiting(yield* open("late"))
      assert.strictEqual(tagOf(yield* Fiber.join(late)), "LockContended")
    }).pipe(provided())
  )

  it.effect("counts by outcome, never by anything else", () =>
    Effect.gen(function* () {
      const api = yield* LockApi
      const session = yield* open("w1")
      const grant = yield* acquire(session)
      const other = yield* open("w2")
      yield* Effect.exit(acquire(other))
      const exceeded = yield* waiting(other, { waitMillis: 100 })
      yield* TestClock.adjust(200)
      yield* Fiber.join(exceeded)
      yield* api.renew({ key, ownerId: owner("w1"), token: grant.token })
      yield* api.release({ key, ownerId: owner("w1"), token: grant.token })
      yield* Effect.exit(api.release({ key, ownerId: owner("w1"), token: grant.token }))
      yield* Effect.exit(api.renew({ key, ownerId: owner("w1"), token: grant.token }))
      yield* acquire(session)
      yield* api.revoke({ key, operator: "ops", reason: "stuck for an hour", revocationId: id("r") })
      yield* api.revoke({ key, operator: "ops", reason: "stuck for an hour", revocationId: id("r") })
      yield* acquire(session, { ttlMillis: 1_000 })
      yield* TestClock.adjust(3_000)
      yield* acquire(session)
      yield* api.closeSession(session.sessionId, owner("w1"))
      yield* TestClock.adjust(2_000)
      assert.strictEqual(yield* count(Metrics.lock.acquire.granted), 4)
      assert.strictEqual(yield* count(Metrics.lock.acquire.contended), 2)
      assert.strictEqual(yield* count(Metrics.lock.acquire.error), 0)
      assert.strictEqual(yield* count(Metrics.lock.wait.contended), 1)
      assert.strictEqual(yield* count(Metrics.lock.wait.granted), 0)
      assert.strictEqual(yield* count(Metrics.lock.renew.renewed), 1)
      assert.strictEqual(yield* count(Metrics.lock.renew.lost), 1)
      assert.strictEqual(yield* count(Metrics.lock.release.released), 1)
      assert.strictEqual(yield* count(Metrics.lock.release.lost), 1)
      assert.strictEqual(yield* count(Metrics.lock.revoked), 1)
      assert.strictEqual(yield* count(Metrics.lock.hold.revoked), 1)
      assert.strictEqual(yield* count(Metrics.lock.hold.released), 1)
      assert.strictEqual(yield* count(Metrics.lock.hold.expired), 1)
      assert.strictEqual(yield* count(Metrics.lock.hold.session_closed), 1)
      assert.strictEqual((yield* Metric.value(Metrics.lock.sessionsLive)).value, 1)
      assert.strictEqual((yield* Metric.value(Metrics.lock.grantsLive)).value, 0)
      assert.strictEqual(yield* count(Metrics.lock.tokenRegression), 0)
    }).pipe(provided())
  )

  it.effect("answers no token below one it has answered before, and counts it", () => {
    let rewound = 0n
    return Effect.gen(function* () {
      const api = yield* LockApi
      const session = yield* open("w1")
      for (let i = 0; i < 5; i++) {
        const grant = yield* acquire(session)
        yield* api.release({ key, ownerId: owner("w1"), token: grant.token })
      }
      rewound = 3n
      assert.strictEqual(tagOf(yield* Effect.exit(acquire(session))), "BackendUnavailable")
      assert.strictEqual(yield* count(Metrics.lock.tokenRegression), 1)
    }).pipe(
      provided(
        world((store) => ({
          tryAcquire: (request) =>
            Effect.map(store.tryAcquire(request), (grant) => ({
              ...grant,
              token: FencingToken.make(grant.token - rewound)
            }))
        }))
      )
    )
  })

  it.effect("grants fifty waiters on the keys of one session as soon as it is closed", () =>
    Effect.gen(function* () {
      const api = yield* LockApi
      const session = yield* open("holder")
      const other = yield* open("other")
      const keys = Array.from({ length: 50 }, (_, i) => LockKey.make(`k:${i}`))
      yield* Effect.forEach(keys, (key) => acquire(session, { key }))
      const fibers = yield* Effect.forEach(keys, (key) => waiting(other, { key }))
      yield* api.closeSession(session.sessionId, owner("holder"))
      yield* settle
      const exits = yield* Effect.forEach(fibers, (fiber) => Fiber.join(fiber))
      const tokens = exits.filter(Exit.isSuccess).map((exit) => exit.value.token)
      assert.strictEqual(new Set(tokens).size, 50)
    }).pipe(provided())
  )
})

/** Two instances, each with a clock of its own, on one store. */
const twoInstances = (change: (store: Store) => Partial<Store> = () => ({})) =>
  Effect.gen(function* () {
    const store = LockStore.of(
      yield* Effect.map(SimLockStore.make(), (store): Store => ({ ...store, ...change(store) }))
    )
    const instance = (skewMillis: number) =>
      LockService.make(defaults.lock).pipe(
        Effect.map((context) => shiftedApi(Context.get(context, LockApi), skewMillis)),
        Effect.provideService(LockStore, store),
        shifted(skewMillis)
      )
    return [yield* instance(0), yield* instance(60_000)] as const
  })

const shifted = (millis: number) =>
  Effect.updateService(Clock.Clock, (clock): Clock.Clock => ({
    currentTimeMillisUnsafe: () => clock.currentTimeMillisUnsafe() + millis,
    currentTimeMillis: Effect.map(clock.currentTimeMillis, (now) => now + millis),
    currentTimeNanosUnsafe: () => clock.currentTimeNanosUnsafe() + BigInt(millis) * 1_000_000n,
    currentTimeNanos: Effect.map(clock.currentTimeNanos, (now) => now + BigInt(millis) * 1_000_000n),
    monotonicTimeNanosUnsafe: () => clock.monotonicTimeNanosUnsafe() + BigInt(millis) * 1_000_000n,
    monotonicTimeNanos: Effect.map(clock.monotonicTimeNanos, (now) => now + BigInt(millis) * 1_000_000n),
    sleep: (duration) => clock.sleep(duration)
  }))

const shiftedApi = (api: LockApi["Service"], millis: number): LockApi["Service"] => ({
  openSession: (request) => api.openSession(request).pipe(shifted(millis)),
  heartbeat: (sessionId, ownerId) => api.heartbeat(sessionId, ownerId).pipe(shifted(millis)),
  closeSession: (sessionId, ownerId) => api.closeSession(sessionId, ownerId).pipe(shifted(millis)),
  acquire: (request) => api.acquire(request).pipe(shifted(millis)),
  renew: (request) => api.renew(request).pipe(shifted(millis)),
  release: (request) => api.release(request).pipe(shifted(millis)),
  inspect: (key) => api.inspect(key).pipe(shifted(millis)),
  revoke: (request) => api.revoke(request).pipe(shifted(millis))
})

describe("two instances on one store, their clocks a minute apart", { timeout: 5_000 }, () => {
  for (const hints of [true, false]) {
    it.effect(`behave as one (${hints ? "with" : "without"} hints of changes)`, () =>
      Effect.gen(function* () {
        const [here, there] = yield* twoInstances(() => (hints ? {} : { changes: Stream.never }))
        const w1 = yield* here.openSession({ ownerId: owner("w1") })
        const w2 = yield* there.openSession({ ownerId: owner("w2") })
        const held = yield* here.acquire({ key, ownerId: owner("w1"), sessionId: w1.sessionId })
        const refused = yield* Effect.exit(there.acquire({ key, ownerId: owner("w2"), sessionId: w2.sessionId }))
        assert.strictEqual(tagOf(refused), "LockContended")
        const fiber = yield* Effect.forkChild(
          there.acquire({ key, ownerId: owner("w2"), sessionId: w2.sessionId, waitMillis: 20_000 })
        )
        yield* settle
        for (let i = 0; i < 5; i++) {
          yield* TestClock.adjust(2_000)
          // Kept through the other instance.
          yield* there.heartbeat(w1.sessionId, owner("w1"))
          yield* here.heartbeat(w2.sessionId, owner("w2"))
          const renewed = yield* there.renew({ key, ownerId: owner("w1"), token: held.token })
          assert.strictEqual(renewed.token, held.token)
        }
        assert.isFalse(isDone(fiber))
        yield* here.release({ key, ownerId: owner("w1"), token: held.token })
        yield* settle
        if (!hints) yield* TestClock.adjust(1_000)
        const next = yield* Fiber.join(fiber)
        assert.isTrue(next.token > held.token)
        assert.isTrue(next.waitedMillis >= 10_000 && next.waitedMillis <= 11_000, `${next.waitedMillis} ms`)
        // Its lease runs out by the store's clock, for both.
        yield* here.heartbeat(w2.sessionId, owner("w2"))
        yield* TestClock.adjust(14_000)
        assert.isTrue((yield* here.inspect(key)).held)
        assert.isTrue((yield* there.inspect(key)).held)
        yield* TestClock.adjust(1_500)
        assert.isFalse((yield* here.inspect(key)).held)
        assert.isFalse((yield* there.inspect(key)).held)
      }).pipe(Effect.provideService(Metric.MetricRegistry, new Map()))
    )
  }
})
