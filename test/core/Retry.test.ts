import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Fiber } from "effect"
import { TestClock } from "effect/testing"
import { boundedBy } from "../../src/core/Bound.ts"
import { LockKey } from "../../src/core/lock/Lock.ts"
import { type BackendUnavailable, backendUnavailable, LockLost } from "../../src/core/lock/LockErrors.ts"
import { pauseMillis, retryOn } from "../../src/core/Retry.ts"
import { defaults } from "../../src/core/Settings.ts"

const { retry } = defaults.client
const lost = new LockLost({ key: LockKey.make("k"), token: null, reason: "expired" })

describe("a retry", () => {
  it.effect("pauses anywhere between nothing and the doubling cap, and uses all of it", () =>
    Effect.gen(function* () {
      for (const [attempt, cap] of [
        [1, 50],
        [2, 100],
        [3, 200],
        [4, 400],
        [5, 800],
        [6, 1_000],
        [60, 1_000]
      ] as const) {
        const pauses = yield* Effect.all(Array.from({ length: 300 }, () => pauseMillis(retry, attempt)))
        assert.isAtMost(Math.max(...pauses), cap)
        assert.isAtLeast(Math.min(...pauses), 0)
        assert.isAbove(Math.max(...pauses), cap * 0.8)
        assert.isBelow(Math.min(...pauses), cap * 0.2)
      }
    })
  )

  it.effect("ends after five tries with the last failure, and at once with any other", () =>
    Effect.gen(function* () {
      let tries = 0
      const failing = (failure: LockLost | BackendUnavailable) =>
        Effect.suspend(() => {
          tries++
          return Effect.fail(failure)
        })
      const fiber = yield* Effect.forkChild(
        Effect.flip(retryOn(failing(backendUnavailable("renew", "..")), ["BackendUnavailable"], retry))
      )
      yield* TestClock.adjust(2_000)
      assert.strictEqual((yield* Fiber.join(fiber))._tag, "BackendUnavailable")
      assert.strictEqual(tries, 5)
      tries = 0
      assert.strictEqual((yield* Effect.flip(retryOn(failing(lost), ["BackendUnavailable"], retry)))._tag, "LockLost")
      assert.strictEqual(tries, 1)
    })
  )
})

describe("a bound", () => {
  it.live("is kept even over a call that can not be interrupted, in an uninterruptible caller", () =>
    Effect.gen(function* () {
      const start = yield* Clock.currentTimeMillis
      const stuck = Effect.uninterruptible(Effect.sleep(1_000))
      const bounded = boundedBy(50, () => "late" as const)(stuck)
      assert.strictEqual(yield* Effect.flip(bounded), "late")
      assert.strictEqual(yield* Effect.flip(Effect.uninterruptible(bounded)), "late")
      assert.isBelow((yield* Clock.currentTimeMillis) - start, 700)
    })
  )

  it.live("passes answer, failure and defect on, and interrupts the call of a caller that goes away", () =>
    Effect.gen(function* () {
      const bound = boundedBy(1_000, () => "late" as const)
      assert.strictEqual(yield* bound(Effect.succeed(1)), 1)
      assert.strictEqual(yield* Effect.flip(bound(Effect.fail("no" as const))), "no")
      assert.strictEqual((yield* Effect.exit(bound(Effect.die("bug"))))._tag, "Failure")
      let interrupted = false
      const fiber = yield* Effect.forkChild(
        bound(
          Effect.onInterrupt(Effect.never, () =>
            Effect.sync(() => {
              interrupted = true
            })
          )
        )
      )
      yield* Effect.sleep(20)
      yield* Fiber.interrupt(fiber)
      yield* Effect.sleep(20)
      assert.isTrue(interrupted)
    })
  )
})
