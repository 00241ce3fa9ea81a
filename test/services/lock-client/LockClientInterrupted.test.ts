/**
 * T07, exhaustively: `withLock` is interrupted before every single operation that its process executes, in a virtual world
 * that can stop a fiber between any two of them. Wherever it is, nothing of the grant is left: the key is free, and no
 * renewal is sent after the end.
 */
import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Exit, Fiber, Layer, Scope } from "effect"
import { withTraps } from "../../../src/sim/Leaks.ts"
import { VirtualWorld } from "../../../src/sim/VirtualWorld.ts"
import { client, isFree, key, network, Wire } from "./lockWorld.ts"

interface Outcome {
  /** Operations executed when the lock was first asked for, and when all was over. */
  readonly from: number
  readonly to: number
  readonly interrupted: boolean
  readonly bodyRan: boolean
  readonly free: boolean
  readonly lateRenewals: number
  readonly end: string
}

const run = (interruptAt: number): Outcome => {
  const world = new VirtualWorld({ seed: 7, policy: "fifo", quantum: 0 })
  let outcome: Outcome | undefined
  let holder: Fiber.Fiber<unknown, unknown> | undefined
  const node = world.node("everything", {
    program: () =>
      Effect.gen(function* () {
        const context = yield* Layer.buildWithScope(network, yield* Scope.Scope)
        yield* Effect.gen(function* () {
          const wire = yield* Wire
          wire.script = ({ op }) => (op === "closeSession" ? undefined : { requestMillis: 3, answerMillis: 4 })
          const locks = yield* client()
          let bodyRan = false
          const from = node.ops
          holder = yield* Effect.forkChild(
            locks.withLock(key, { ttlMillis: 1_500 })((lock) =>
              Effect.gen(function* () {
                bodyRan = true
                yield* Effect.sleep(300)
                yield* lock.renew
                yield* Effect.sleep(300)
              })
            )
          )
          const exit = yield* Fiber.await(holder)
          const to = node.ops
          const endedAt = yield* Clock.currentTimeMillis
          yield* Effect.sleep(5_000)
          const lateRenewals = wire.passed.filter(({ atMillis, op }) => op === "renew" && atMillis > endedAt).length
          const interrupted = Exit.isFailure(exit)
          outcome = { from, to, interrupted, bodyRan, free: yield* isFree, lateRenewals, end: exit._tag }
        }).pipe(Effect.scoped, Effect.provideContext(context))
      }).pipe(Effect.scoped, Effect.orDie)
  })
  node.onOp(interruptAt, () => holder?.interruptUnsafe())
  node.start()
  const reason = world.run(600_000_000)
  if (outcome === undefined) throw new Error(`interrupted at ${interruptAt} the world came to no end: ${reason}`)
  return outcome
}

describe("withLock interrupted before every operation", () => {
  it("leaves the key free and sends no renewal after its end", () => {
    // no clock, randomness or timer of the machine is used anywhere in it
    const whole = withTraps(() => run(0))
    assert.isFalse(whole.interrupted)
    assert.isTrue(whole.free)
    const seen = { beforeBody: 0, inBody: 0, tooLate: 0 }
    for (let at = whole.from + 1; at <= whole.to; at++) {
      const outcome = run(at)
      assert.isTrue(outcome.free, `at ${at}`)
      assert.strictEqual(outcome.lateRenewals, 0, `at ${at}`)
      if (!outcome.interrupted) seen.tooLate++
      else if (outcome.bodyRan) seen.inBody++
      else seen.beforeBody++
    }
    assert.isAbove(seen.beforeBody, 200)
    assert.isAbove(seen.inBody, 200)
  })
})
