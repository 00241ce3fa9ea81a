import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Exit, Fiber, Metric, Random, Scope } from "effect"
import { TestClock } from "effect/testing"
import { AcquireId, LockKey } from "../../../src/core/lock/Lock.ts"
import { LockLost, NotLeader } from "../../../src/core/lock/LockErrors.ts"
import { advance, client, count, Direct, ended, isFree, key, network, w1, w2, Wire } from "./lockWorld.ts"

const millis = Effect.map(Clock.monotonicTimeNanos, (now) => Number(now / 1_000_000n))

/** Another owner holds the key until released. */
const heldByOther = Effect.gen(function* () {
  const direct = yield* Direct
  const session = yield* direct.openSession({ ownerId: w2, ttlMillis: 300_000 })
  return yield* direct.acquire({ key, ownerId: w2, sessionId: session.sessionId, ttlMillis: 300_000 })
})

describe("LockClient acquires", () => {
  it.effect("a free key, runs the body with its token and gives it back", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      const locks = yield* client()
      const token = yield* locks.withLock(key)((lock) =>
        Effect.gen(function* () {
          yield* lock.checkStillHeld
          assert.isFalse(yield* isFree)
          return lock.token
        })
      )
      assert.strictEqual(typeof token, "bigint")
      assert.isTrue(yield* isFree)
      assert.deepStrictEqual(
        wire.passed.map((call) => call.op),
        ["openSession", "acquire", "release"]
      )
    }).pipe(Effect.provide(network))
  )

  it.effect("with one session however many ask at once, and keeps it for the next", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      wire.script = ({ op }) => (op === "openSession" ? { answerMillis: 100 } : undefined)
      const locks = yield* client()
      const all = yield* Effect.forkChild(
        Effect.all(
          Array.from({ length: 10 }, (_, i) => locks.withLock(LockKey.make(`k${i}`))(() => Effect.void)),
          { concurrency: "unbounded" }
        )
      )
      assert.isTrue(Exit.isSuccess(yield* ended(all)))
      yield* locks.withLock(key)(() => Effect.void)
      assert.strictEqual(count(wire, "openSession"), 1)
    }).pipe(Effect.provide(network))
  )

  it.effect("an interrupted first acquire does not take the session from the others (T31)", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      wire.script = ({ op }) => (op === "openSession" ? { answerMillis: 100 } : undefined)
      const locks = yield* client()
      const first = yield* Effect.forkChild(locks.withLock(key)(() => Effect.void))
      yield* advance(50)
      const second = yield* Effect.forkChild(locks.withLock(key)(() => Effect.succeed("held")))
      yield* Fiber.interrupt(first)
      assert.deepStrictEqual(yield* ended(second), Exit.succeed("held"))
      assert.strictEqual(count(wire, "openSession"), 1)
    }).pipe(Effect.provide(network))
  )

  it.effect("a held key with pauses below 50, 100, 200, 400 ms, and gives up after five tries", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      yield* heldByOther
      const locks = yield* client()
      const fiber = yield* Effect.forkChild(Effect.flip(locks.withLock(key)(() => Effect.void)))
      const exit = yield* ended(fiber, 1)
      assert.isTrue(Exit.isSuccess(exit))
      const error = Exit.isSuccess(exit) ? exit.value : undefined
      assert.strictEqual(error?._tag, "ContentionExceeded")
      if (error?._tag === "ContentionExceeded") {
        assert.strictEqual(error.attempts, 5)
        assert.isAbove(error.retryAfterMillis, 0)
      }
      const tries = wire.passed.filter((call) => call.op === "acquire")
      assert.strictEqual(tries.length, 5)
      const pauses = tries.slice(1).map((call, i) => call.atMillis - tries[i]!.atMillis)
      pauses.forEach((pause, i) => assert.isAtMost(pause, Math.min(1_000, 50 * 2 ** i) + 1))
      assert.strictEqual(new Set(tries.map((call) => call.id)).size, 1, "one acquire id for all tries")
    }).pipe(Effect.provide(network))
  )

  it.effect("after waiting on the server, with a deadline that counts the wait", () =>
    Effect.gen(function* () {
      const direct = yield* Direct
      const held = yield* heldByOther
      const locks = yield* client()
      const fiber = yield* Effect.forkChild(
        locks.withLock(key, { waitMillis: 20_000 })((lock) => Effect.succeed(lock.deadline))
      )
      yield* advance(8_000)
      yield* direct.release({ key, ownerId: w2, token: held.token })
      const exit = yield* ended(fiber)
      if (Exit.isFailure(exit)) return assert.fail("not granted")
      // session opened at 0 and kept by heartbeats at 2, 4, 6, 8 s; the lease alone would end at 8 + 6 - 1
      assert.isAtLeast(Number(exit.value / 1_000_000n), 11_000)
      assert.isAtMost(Number(exit.value / 1_000_000n), 13_000)
    }).pipe(Effect.provide(network))
  )

  it.effect("a wait that ran out is ContentionExceeded after the wait", () =>
    Effect.gen(function* () {
      yield* heldByOther
      const locks = yield* client()
      const fiber = yield* Effect.forkChild(Effect.flip(locks.withLock(key, { waitMillis: 3_000 })(() => Effect.void)))
      const exit = yield* ended(fiber)
      assert.strictEqual(Exit.isSuccess(exit) ? exit.value._tag : "", "ContentionExceeded")
      assert.isAtLeast(yield* millis, 3_000)
      assert.isAtMost(yield* millis, 3_300)
    }).pipe(Effect.provide(network))
  )

  it.effect("through an outage, and never says contended against itself (T09)", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      wire.script = ({ nth, op }) => (op === "acquire" && nth <= 2 ? { lost: "answer" } : undefined)
      const locks = yield* client()
      const fiber = yield* Effect.forkChild(locks.withLock(key)((lock) => Effect.succeed(lock.token)))
      const exit = yield* ended(fiber)
      assert.isTrue(Exit.isSuccess(exit))
      const ids = wire.passed.filter((call) => call.op === "acquire").map((call) => call.id)
      assert.strictEqual(ids.length, 3)
      assert.strictEqual(new Set(ids).size, 1)
    }).pipe(Effect.provide(network))
  )

  it.effect("a replayed grant counts what remains from the request whose answer is used", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      wire.script = ({ nth, op }) => (op === "acquire" && nth === 1 ? { lost: "answer" } : undefined)
      const locks = yield* client({ sessionTtlMillis: 60_000 })
      const fiber = yield* Effect.forkChild(locks.withLock(key)((lock) => Effect.succeed(lock.deadline)))
      const exit = yield* ended(fiber)
      if (Exit.isFailure(exit)) return assert.fail("not granted")
      // granted at 0 for 6 s: whatever the second try was told, 5 s is the end
      assert.isAtMost(Number(exit.value / 1_000_000n), 5_000)
      assert.isAtLeast(Number(exit.value / 1_000_000n), 4_990)
    }).pipe(Effect.provide(network))
  )

  it.effect("fails with LockUnavailable within its bound when nobody answers, and nothing hangs", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      wire.script = () => ({ lost: "request" })
      const locks = yield* client()
      const fiber = yield* Effect.forkChild(Effect.flip(locks.withLock(key)(() => Effect.die("no grant, no body"))))
      const exit = yield* ended(fiber)
      assert.strictEqual(Exit.isSuccess(exit) ? exit.value._tag : "", "LockUnavailable")
      assert.isAtMost(yield* millis, 3_010)
    }).pipe(Effect.provide(network))
  )

  it.effect("given up with an unknown fate, the grant that was made is given back in the background (T09)", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      const healedAt = 4_000
      wire.script = ({ atMillis, op }) => (op === "acquire" && atMillis < healedAt ? { lost: "answer" } : undefined)
      const locks = yield* client()
      const fiber = yield* Effect.forkChild(Effect.flip(locks.withLock(key)(() => Effect.void)))
      const exit = yield* ended(fiber)
      assert.strictEqual(Exit.isSuccess(exit) ? exit.value._tag : "", "LockUnavailable")
      assert.isFalse(yield* isFree)
      // within a second of the server being reachable again; the lease alone would last to 6 s
      yield* advance(healedAt + 1_000 + 1_000 - (yield* millis))
      assert.isTrue(yield* isFree)
    }).pipe(Effect.provide(network))
  )

  it.effect("under a new session once the old one is dead, by the store's word", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      wire.script = ({ atMillis, op }) => (op === "heartbeat" && atMillis < 20_000 ? { lost: "request" } : undefined)
      const locks = yield* client()
      yield* locks.withLock(key)(() => Effect.void)
      yield* advance(20_000)
      assert.deepStrictEqual(yield* locks.withLock(key)(() => Effect.succeed("held")), "held")
      assert.strictEqual(count(wire, "openSession"), 2)
    }).pipe(Effect.provide(network))
  )

  it.effect("not with numbers that leave no time to work in: that is a bug of the caller", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      const locks = yield* client()
      for (const wrong of [
        { ttlMillis: 1_000 },
        { ttlMillis: 999 },
        { ttlMillis: 300_001 },
        { ttlMillis: 2_000.5 },
        { waitMillis: -1 },
        { maxHoldMillis: 0 },
        { timeoutMillis: 0 }
      ]) {
        const exit = yield* Effect.exit(locks.withLock(key, wrong)(() => Effect.void))
        assert.isTrue(Exit.hasDies(exit), JSON.stringify(wrong))
      }
      assert.strictEqual(wire.passed.length, 0)
    }).pipe(Effect.provide(network))
  )

  it.effect("not re-entrantly, and never deadlocks on itself (T16)", () =>
    Effect.gen(function* () {
      const locks = yield* client()
      const fiber = yield* Effect.forkChild(
        locks.withLock(key)(() => Effect.flip(locks.withLock(key)(() => Effect.void)))
      )
      const exit = yield* ended(fiber)
      assert.strictEqual(Exit.isSuccess(exit) ? exit.value._tag : "", "ContentionExceeded")
    }).pipe(Effect.provide(network))
  )

  it.effect("a leaderless backend with the same patience", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      wire.script = ({ atMillis, op }) =>
        op === "acquire" && atMillis < 1_500
          ? { fail: new NotLeader({ operation: "acquire", retryAfterMillis: 250 }) }
          : undefined
      const locks = yield* client()
      const fiber = yield* Effect.forkChild(locks.withLock(key)(() => Effect.succeed("held")))
      assert.deepStrictEqual(yield* ended(fiber), Exit.succeed("held"))
      assert.isAbove(count(wire, "acquire"), 2)
    }).pipe(Effect.provide(network))
  )
})

describe("LockClient keeps", () => {
  it.effect("a lock far beyond its ttl by renewing at a third of it, always under the same token", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      const locks = yield* client()
      const fiber = yield* Effect.forkChild(
        locks.withLock(key)((lock) =>
          Effect.gen(function* () {
            for (let i = 0; i < 30; i++) {
              yield* Effect.sleep(1_000)
              yield* lock.checkStillHeld
            }
          })
        )
      )
      const exit = yield* ended(fiber, 50)
      assert.isTrue(Exit.isSuccess(exit))
      const renewals = wire.passed.filter((call) => call.op === "renew")
      assert.isAtLeast(renewals.length, 14)
      assert.isAtMost(renewals.length, 15)
      assert.strictEqual(new Set(renewals.map((call) => call.id)).size, 1)
    }).pipe(Effect.provide(network))
  )

  it.effect("a lock while every third heartbeat and renewal loses its answer (T08)", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      wire.script = ({ nth, op }) =>
        (op === "heartbeat" || op === "renew") && nth % 3 === 0 ? { lost: "answer" } : undefined
      const locks = yield* client()
      const fiber = yield* Effect.forkChild(
        locks.withLock(key)((lock) => Effect.andThen(Effect.sleep(40_000), lock.checkStillHeld))
      )
      assert.isTrue(Exit.isSuccess(yield* ended(fiber, 50)))
    }).pipe(Effect.provide(network))
  )

  it.effect("no lock beyond its lease without renewing, by default of acquire or by wish", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      const locks = yield* client()
      const scope = yield* Scope.make()
      const lock = yield* Scope.provide(locks.acquire(key), scope)
      yield* advance(4_999)
      yield* lock.checkStillHeld
      yield* advance(1)
      const lost = yield* Effect.flip(lock.checkStillHeld)
      assert.strictEqual(lost.reason, "deadline")
      assert.strictEqual((yield* lock.lost).reason, "deadline")
      assert.strictEqual(count(wire, "renew"), 0)
      yield* Scope.close(scope, Exit.void)
    }).pipe(Effect.provide(network))
  )

  it.effect("a deadline that a renewal moves from its own send, not from its answer", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      wire.script = ({ op }) => (op === "renew" ? { answerMillis: 700 } : undefined)
      const locks = yield* client({ sessionTtlMillis: 60_000 })
      const fiber = yield* Effect.forkChild(
        locks.withLock(key, { renew: false })((lock) =>
          Effect.gen(function* () {
            assert.strictEqual(lock.deadline, 5_000_000_000n)
            yield* Effect.sleep(2_000)
            yield* lock.renew
            assert.strictEqual(yield* millis, 2_700)
            return lock.deadline
          })
        )
      )
      assert.deepStrictEqual(yield* ended(fiber), Exit.succeed(7_000_000_000n))
    }).pipe(Effect.provide(network))
  )

  it.effect("a deadline that the late answer of an older renewal does not move back or too far", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      wire.script = ({ nth, op }) => (op === "renew" && nth === 1 ? { answerMillis: 900 } : undefined)
      const locks = yield* client({ sessionTtlMillis: 60_000 })
      const fiber = yield* Effect.forkChild(
        locks.withLock(key, { renew: false })((lock) =>
          Effect.gen(function* () {
            yield* Effect.sleep(1_000)
            const slow = yield* Effect.forkChild(lock.renew)
            yield* Effect.sleep(500)
            yield* lock.renew
            assert.strictEqual(lock.deadline, 6_500_000_000n)
            yield* Fiber.join(slow)
            return lock.deadline
          })
        )
      )
      assert.deepStrictEqual(yield* ended(fiber), Exit.succeed(6_500_000_000n))
    }).pipe(Effect.provide(network))
  )

  it.effect("the earlier of the lease's and the session's deadline", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      wire.script = ({ op }) => (op === "heartbeat" ? { lost: "request" } : undefined)
      const locks = yield* client({ sessionTtlMillis: 3_000, lockTtlMillis: 6_000 })
      const fiber = yield* Effect.forkChild(Effect.flip(locks.withLock(key)(() => Effect.never)))
      const exit = yield* ended(fiber)
      assert.strictEqual(Exit.isSuccess(exit) ? exit.value._tag : "", "LockLost")
      assert.strictEqual(yield* millis, 2_000)
    }).pipe(Effect.provide(network))
  )

  it.effect("no lock longer than maxHold, however well it renews", () =>
    Effect.gen(function* () {
      const locks = yield* client()
      const fiber = yield* Effect.forkChild(
        Effect.flip(locks.withLock(key, { maxHoldMillis: 20_000 })(() => Effect.never))
      )
      const exit = yield* ended(fiber)
      assert.strictEqual(Exit.isSuccess(exit) ? exit.value._tag : "", "LockLost")
      assert.strictEqual(yield* millis, 20_000)
    }).pipe(Effect.provide(network))
  )
})

describe("LockClient loses", () => {
  it.effect("a lock before anybody else can be granted it, when nothing gets through any more (T03, T04)", () =>
    Effect.gen(function* () {
      for (const lost of ["request", "answer"] as const) {
        yield* Effect.gen(function* () {
          const wire = yield* Wire
          const started = yield* millis
          const locks = yield* client()
          let lostAt = 0
          const fiber = yield* Effect.forkChild(
            locks
              .withLock(key, { onLockLost: () => Effect.map(millis, (now) => void (lostAt = now - started)) })(
                () => Effect.never
              )
              .pipe(Effect.flip)
          )
          yield* advance(2_500)
          wire.script = () => ({ lost })
          const exit = yield* ended(fiber)
          assert.strictEqual(Exit.isSuccess(exit) ? exit.value._tag : "", "LockLost")
          // answered heartbeats and renewals were sent at 2 s, for 6 s, with a margin of 1 s
          wire.script = () => undefined
          assert.strictEqual(lostAt, 7_000)
          // Where the request gets through, the release that follows the loss frees the key at once.
          assert.strictEqual(yield* isFree, lost === "answer")
        }).pipe(Effect.scoped, Effect.provide(network))
      }
    })
  )

  it.effect("a lock for ever: a heartbeat or renewal that comes through later revives nothing", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      wire.script = ({ op }) => (op === "renew" || op === "heartbeat" ? { lost: "request" } : undefined)
      const locks = yield* client()
      const scope = yield* Scope.make()
      const lock = yield* Scope.provide(locks.acquire(key), scope)
      yield* advance(5_000)
      wire.script = () => undefined
      assert.strictEqual((yield* Effect.flip(lock.checkStillHeld)).reason, "deadline")
      assert.strictEqual((yield* Effect.flip(lock.renew))._tag, "LockLost")
      yield* advance(10_000)
      assert.strictEqual((yield* Effect.flip(lock.checkStillHeld)).reason, "deadline")
      yield* Scope.close(scope, Exit.void)
    }).pipe(Effect.provide(network))
  )

  it.effect("a revoked lock at its next renewal, with the store's reason, and does not take it again (T06)", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      const direct = yield* Direct
      const locks = yield* client()
      const reasons: Array<string> = []
      const fiber = yield* Effect.forkChild(
        locks
          .withLock(key, { onLockLost: (lost) => Effect.sync(() => void reasons.push(lost.reason)) })(
            () => Effect.never
          )
          .pipe(Effect.flip)
      )
      yield* advance(100)
      yield* direct.revoke({ key, operator: "ops", reason: "stuck since noon" })
      const exit = yield* ended(fiber)
      assert.deepStrictEqual(Exit.isSuccess(exit) && exit.value instanceof LockLost ? exit.value.reason : "", "revoked")
      assert.strictEqual(yield* millis, 2_000)
      assert.deepStrictEqual(reasons, ["revoked"])
      assert.isTrue(yield* isFree)
      assert.strictEqual(count(wire, "acquire"), 1)
      assert.strictEqual(count(wire, "release"), 0)
    }).pipe(Effect.provide(network))
  )

  it.effect("every lock of a session that died, at once", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      const direct = yield* Direct
      const locks = yield* client()
      const lostAt: Array<number> = []
      const fibers = []
      for (const name of ["a", "b", "c"]) {
        fibers.push(
          yield* Effect.forkChild(
            locks
              .withLock(LockKey.make(name), {
                onLockLost: (lost) =>
                  Effect.map(millis, (now) => {
                    assert.strictEqual(lost.reason, "session")
                    lostAt.push(now)
                  })
              })(() => Effect.never)
              .pipe(Effect.flip)
          )
        )
      }
      yield* advance(1_000)
      const session = wire.passed.find((call) => call.op === "acquire")
      assert.isDefined(session)
      wire.script = ({ op }) => (op === "renew" ? { requestMillis: 900 } : undefined)
      const live = yield* liveSession
      yield* direct.closeSession(live.sessionId, live.ownerId)
      for (const fiber of fibers) {
        const exit = yield* ended(fiber)
        assert.strictEqual(Exit.isSuccess(exit) ? exit.value._tag : "", "LockLost")
      }
      assert.deepStrictEqual(lostAt, [2_000, 2_000, 2_000])
    }).pipe(Effect.provide(network))
  )

  it.effect("and interrupts the body, whose success before that stands", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      const locks = yield* client()
      wire.script = ({ op }) => (op === "release" ? { requestMillis: 900 } : undefined)
      const fiber = yield* Effect.forkChild(
        locks.withLock(key, { renew: false })(() => Effect.as(Effect.sleep(4_900), "done in time"))
      )
      // the deadline, 5 s, passes while the release is under way
      assert.deepStrictEqual(yield* ended(fiber), Exit.succeed("done in time"))
      assert.isAtLeast(yield* millis, 5_800)
    }).pipe(Effect.provide(network))
  )

  it.effect("what a body returns after its deadline: it was told too late, so it is not believed (T05)", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      const locks = yield* client()
      const fiber = yield* Effect.forkChild(
        Effect.exit(
          locks.withLock(key, { renew: false })(() =>
            Effect.uninterruptible(Effect.as(Effect.sleep(12_000), "too late"))
          )
        )
      )
      const exit = yield* ended(fiber)
      assert.isTrue(Exit.isSuccess(exit) && Exit.isFailure(exit.value))
      // at once: nobody waits for a release of what is lost
      assert.strictEqual(yield* millis, 12_000)
      assert.isAtMost(count(wire, "release"), 1)
    }).pipe(Effect.provide(network))
  )

  it.effect("but not what a body fails with: FencedOut is not hidden behind LockLost", () =>
    Effect.gen(function* () {
      const locks = yield* client()
      const fiber = yield* Effect.forkChild(
        locks
          .withLock(key, { renew: false })(() =>
            Effect.uninterruptible(Effect.andThen(Effect.sleep(12_000), Effect.fail("fenced out")))
          )
          .pipe(Effect.flip)
      )
      assert.deepStrictEqual(yield* ended(fiber), Exit.succeed("fenced out"))
    }).pipe(Effect.provide(network))
  )
})

const liveSession = Effect.gen(function* () {
  const direct = yield* Direct
  const wire = yield* Wire
  const opened = wire.passed.find((call) => call.op === "openSession")
  // the same open id answers the same session
  return yield* direct.openSession({
    ownerId: w1,
    ttlMillis: 6_000,
    openId: AcquireId.make(opened?.id ?? "")
  })
})

describe("LockClient releases", () => {
  it.effect("strictly after the body has ended, even if that can not be interrupted (T32)", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      const locks = yield* client()
      let bodyEndedAt = 0
      const fiber = yield* Effect.forkChild(
        locks.withLock(key)(() =>
          Effect.uninterruptible(
            Effect.andThen(
              Effect.sleep(2_000),
              Effect.map(millis, (now) => void (bodyEndedAt = now))
            )
          )
        )
      )
      yield* advance(100)
      const interruption = yield* Effect.forkChild(Fiber.interrupt(fiber))
      yield* advance(1_000)
      assert.strictEqual(count(wire, "release"), 0)
      yield* ended(interruption)
      const release = wire.passed.find((call) => call.op === "release")
      assert.strictEqual(bodyEndedAt, 2_000)
      assert.isAtLeast(release?.atMillis ?? 0, bodyEndedAt)
      assert.isTrue(yield* isFree)
    }).pipe(Effect.provide(network))
  )

  it.effect("on success, failure, defect and interruption", () =>
    Effect.gen(function* () {
      const locks = yield* client()
      yield* locks.withLock(key)(() => Effect.void)
      assert.isTrue(yield* isFree)
      assert.strictEqual(yield* Effect.flip(locks.withLock(key)(() => Effect.fail("no"))), "no")
      assert.isTrue(yield* isFree)
      assert.isTrue(Exit.hasDies(yield* Effect.exit(locks.withLock(key)(() => Effect.die("bug")))))
      assert.isTrue(yield* isFree)
      const thrown = locks.withLock(key)((): Effect.Effect<void> => {
        throw new RangeError("before any effect")
      })
      assert.isTrue(Exit.hasDies(yield* Effect.exit(thrown)))
      assert.isTrue(yield* isFree)
      const fiber = yield* Effect.forkChild(locks.withLock(key)(() => Effect.never))
      yield* advance(100)
      yield* Fiber.interrupt(fiber)
      assert.isTrue(yield* isFree)
    }).pipe(Effect.provide(network))
  )

  it.effect("again when the first answer was lost, without waiting for a lease (T30)", () =>
    Effect.gen(function* () {
      for (const lost of ["request", "answer"] as const) {
        yield* Effect.gen(function* () {
          const wire = yield* Wire
          const calls: Array<string> = []
          wire.script = ({ nth, op }) => (op === "release" && nth === 1 ? { lost } : undefined)
          const locks = yield* client()
          const started = yield* millis
          const fiber = yield* Effect.forkChild(
            locks.withLock(key, { onLockLost: (loss) => Effect.sync(() => void calls.push(loss.reason)) })(() =>
              Effect.succeed("done")
            )
          )
          assert.deepStrictEqual(yield* ended(fiber), Exit.succeed("done"))
          // the caller waits for one call at most, the release goes on
          assert.isAtMost((yield* millis) - started, 1_010)
          yield* advance(1_100)
          assert.isTrue(yield* isFree)
          assert.strictEqual(count(wire, "release"), 2)
          assert.deepStrictEqual(calls, [])
        }).pipe(Effect.scoped, Effect.provide(network))
      }
    })
  )

  it.effect("and tells once of a lock that turned out lost at the release, which stays a success (T31)", () =>
    Effect.gen(function* () {
      const direct = yield* Direct
      const locks = yield* client()
      const told: Array<string> = []
      const fiber = yield* Effect.forkChild(
        locks.withLock(key, {
          renew: false,
          onLockLost: (lost) => Effect.sync(() => void told.push(lost.reason))
        })(() => Effect.as(Effect.sleep(1_000), "done"))
      )
      yield* advance(500)
      yield* direct.revoke({ key, operator: "ops", reason: "stuck since noon" })
      assert.deepStrictEqual(yield* ended(fiber), Exit.succeed("done"))
      yield* advance(20_000)
      assert.deepStrictEqual(told, ["revoked"])
    }).pipe(Effect.provide(network))
  )

  it.effect("nothing of a successor's: an expired holder's release frees nobody else's grant (T11)", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      const direct = yield* Direct
      const locks = yield* client()
      wire.script = ({ op }) =>
        op === "renew" || op === "heartbeat"
          ? { lost: "request" }
          : op === "release"
            ? { requestMillis: 3_000 }
            : undefined
      const fiber = yield* Effect.forkChild(Effect.flip(locks.withLock(key)(() => Effect.never)))
      yield* ended(fiber)
      // lost at 5 s; the release sent then arrives at 8 s, when another holds the key
      yield* advance(1_500)
      const other = yield* heldByOther
      yield* advance(5_000)
      const info = yield* direct.inspect(key)
      assert.isTrue(info.held)
      assert.strictEqual(info.holderOwnerId, w2)
      yield* direct.renew({ key, ownerId: w2, token: other.token })
    }).pipe(Effect.provide(network))
  )
})

describe("a HeldLock that was kept beyond its scope", () => {
  it.effect("is lost with the reason released, and tells nobody", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      const locks = yield* client()
      let told = 0
      const kept = yield* locks.withLock(key, { onLockLost: () => Effect.sync(() => void told++) })(Effect.succeed)
      assert.strictEqual((yield* Effect.flip(kept.checkStillHeld)).reason, "released")
      assert.strictEqual((yield* kept.lost).reason, "released")
      assert.strictEqual((yield* Effect.flip(kept.renew))._tag, "LockLost")
      yield* advance(20_000)
      assert.strictEqual(told, 0)
      assert.strictEqual(count(wire, "renew"), 0)
    }).pipe(Effect.provide(network))
  )
})

describe("LockClient counts", () => {
  it.effect("heartbeats by their outcome and losses by their reason", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      const direct = yield* Direct
      const locks = yield* client()
      const fiber = yield* Effect.forkChild(Effect.exit(locks.withLock(key)(() => Effect.never)))
      yield* advance(2_500)
      wire.script = ({ nth, op }) => (op === "heartbeat" && nth === 2 ? { lost: "answer" } : undefined)
      yield* advance(4_000)
      yield* direct.revoke({ key, operator: "ops", reason: "stuck since noon" })
      yield* ended(fiber)
      const counts = (name: string) =>
        Effect.map(Metric.snapshot, (all) =>
          Object.fromEntries(
            all
              .filter((metric) => metric.id === name)
              .map(({ attributes, state }) => [
                attributes?.["outcome"] ?? attributes?.["reason"],
                "count" in state ? state.count : undefined
              ])
          )
        )
      const beats = yield* counts("lock_client_heartbeat_seconds")
      assert.isAtLeast(Number(beats["ok"]), 2)
      assert.strictEqual(Number(beats["error"]), 1)
      assert.strictEqual(Number((yield* counts("lock_client_lost_total"))["revoked"]), 1)
    }).pipe(Effect.provide(network), Effect.provideService(Metric.MetricRegistry, new Map()))
  )
})

describe("LockClient ends", () => {
  it.effect("with its scope: the session is closed, its keys are free, nothing is sent any more", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      const scope = yield* Scope.make()
      const locks = yield* Scope.provide(client(), scope)
      const told: Array<string> = []
      const fiber = yield* Effect.forkChild(
        locks
          .withLock(key, { onLockLost: (lost) => Effect.sync(() => void told.push(lost.reason)) })(() => Effect.never)
          .pipe(Effect.flip)
      )
      yield* advance(100)
      yield* Scope.close(scope, Exit.void)
      const exit = yield* ended(fiber)
      assert.strictEqual(Exit.isSuccess(exit) ? exit.value._tag : "", "LockLost")
      assert.deepStrictEqual(told, ["session"])
      assert.strictEqual(count(wire, "closeSession"), 1)
      assert.isTrue(yield* isFree)
      const sent = wire.passed.length
      yield* advance(60_000)
      assert.strictEqual(wire.passed.length, sent)
      const after = yield* Effect.flip(locks.withLock(key)(() => Effect.void))
      assert.strictEqual(after._tag, "LockUnavailable")
    }).pipe(Effect.provide(network))
  )

  it.effect("without closing the session under a body that can not be stopped", () =>
    Effect.gen(function* () {
      const wire = yield* Wire
      const scope = yield* Scope.make()
      const locks = yield* Scope.provide(client(), scope)
      yield* Effect.forkChild(Effect.exit(locks.withLock(key)(() => Effect.uninterruptible(Effect.sleep(5_000)))))
      yield* advance(100)
      const closing = yield* Effect.forkChild(Scope.close(scope, Exit.void))
      yield* ended(closing)
      assert.isAtMost(yield* millis, 1_200)
      assert.strictEqual(count(wire, "closeSession"), 0)
      assert.isFalse(yield* isFree)
      yield* advance(6_000)
      assert.isTrue(yield* isFree)
    }).pipe(Effect.provide(network))
  )
})

describe("LockClient at random points", () => {
  it.effect(
    "interrupted a thousand times it leaves no renewal behind and the key free (T07)",
    () =>
      Effect.gen(function* () {
        const wire = yield* Wire
        wire.script = ({ op }) => (op === "closeSession" ? undefined : { requestMillis: 3, answerMillis: 4 })
        const locks = yield* client()
        let inBody = 0
        const endedAt = new Map<string, number>()
        for (let round = 0; round < 1_000; round++) {
          let token = ""
          const fiber = yield* Effect.forkChild(
            locks.withLock(key, { ttlMillis: 1_500 })((lock) =>
              Effect.gen(function* () {
                token = String(lock.token)
                yield* Effect.sleep(20)
                yield* lock.renew
                yield* Effect.sleep(20)
              }).pipe(Effect.onInterrupt(() => Effect.sync(() => void inBody++)))
            )
          )
          const patience = yield* Random.nextIntBetween(0, 70)
          for (let waited = 0; waited < patience; waited += 7) yield* TestClock.adjust(7)
          for (let hops = yield* Random.nextIntBetween(0, 12); hops > 0; hops--) yield* Effect.yieldNow
          const interruption = yield* Effect.forkChild(Fiber.interrupt(fiber))
          yield* ended(interruption, 5)
          if (token !== "") endedAt.set(token, yield* millis)
          // what was given up half way is given back in the background
          yield* advance(30)
          assert.isTrue(yield* isFree, `round ${round}`)
        }
        const late = wire.passed.filter(
          (call) => call.op === "renew" && call.atMillis > (endedAt.get(call.id ?? "") ?? 0)
        )
        assert.deepStrictEqual(late, [])
        assert.isAbove(inBody, 200)
        assert.isAbove(endedAt.size, 400)
      }).pipe(Effect.provide(network)),
    60_000
  )
})
