/**
 * Every way out of the virtual world that we know is planted here once, and must be found and called by its name. Which net
 * finds it is part of the claim: each of them misses something that another catches.
 */
import { assert, describe, it } from "@effect/vitest"
import { Clock, Deferred, Effect, Fiber, Latch, Queue, Scheduler, Semaphore } from "effect"
import { LeakError, requireEnded, unsound, withTraps } from "../../src/sim/Leaks.ts"
import { VirtualWorld } from "../../src/sim/VirtualWorld.ts"

/** One node that runs the program. */
const runAlone = (program: Effect.Effect<unknown>): VirtualWorld => {
  const w = new VirtualWorld({ seed: 1 })
  w.node("a", { program: () => program }).start()
  w.run()
  return w
}

const leakOf = (run: () => unknown): string => {
  try {
    run()
  } catch (error) {
    if (error instanceof LeakError) return error.what
    throw error
  }
  return "nothing found"
}

const planted: ReadonlyArray<readonly [name: string, program: Effect.Effect<unknown>]> = [
  ["Date.now", Effect.sync(() => Date.now())],
  ["new Date()", Effect.sync(() => new Date())],
  ["Date()", Effect.sync(() => (Date as unknown as () => string)())],
  ["Math.random", Effect.sync(() => Math.random())],
  ["performance.now", Effect.sync(() => performance.now())],
  ["process.hrtime", Effect.sync(() => process.hrtime())],
  ["process.hrtime.bigint", Effect.sync(() => process.hrtime.bigint())],
  ["crypto.randomUUID", Effect.sync(() => crypto.randomUUID())],
  ["crypto.getRandomValues", Effect.sync(() => crypto.getRandomValues(new Uint8Array(4)))],
  ["setTimeout", Effect.callback<void>((resume) => void setTimeout(() => resume(Effect.void), 1))],
  ["setImmediate", Effect.callback<void>((resume) => void setImmediate(() => resume(Effect.void)))],
  ["queueMicrotask", Effect.callback<void>((resume) => queueMicrotask(() => resume(Effect.void)))],
  ["process.nextTick", Effect.callback<void>((resume) => process.nextTick(() => resume(Effect.void)))],
  ["Promise.then", Effect.promise(async () => 1)],
  ["Promise.resolve", Effect.promise(() => Promise.resolve(1))],
  ["AbortSignal.timeout", Effect.sync(() => AbortSignal.timeout(1))],
  ["Effect.fiberId", Effect.fiberId],
  ["fiber.id", Effect.withFiber((fiber) => Effect.succeed(fiber.id))],
  ["setImmediate", Effect.sync(() => Effect.runFork(Effect.yieldNow))]
]

describe("withTraps", () => {
  for (const [name, program] of planted) {
    it(`names ${name}`, () => {
      assert.strictEqual(
        leakOf(() => withTraps(() => runAlone(program))),
        name
      )
    })
  }

  it("is not deceived by a program that catches its defects", () => {
    const hidden = Effect.catchCause(
      Effect.sync(() => Date.now()),
      () => Effect.succeed(0)
    )
    assert.strictEqual(
      leakOf(() => withTraps(() => runAlone(hidden))),
      "Date.now"
    )
  })

  it("finds nothing in an honest program, and puts everything back", () => {
    const honest = Effect.gen(function* () {
      const fiber = yield* Effect.forkChild(Effect.never)
      yield* Effect.sleep("1 second")
      yield* Fiber.interrupt(fiber)
      return new Date(0).getTime()
    })
    const before = [Date, Date.now, Math.random, setTimeout, Promise.prototype.then, process.hrtime, Effect.fiberId]
    withTraps(() => requireEnded(runAlone(honest)))
    assert.throws(() => withTraps(() => runAlone(Effect.sync(() => Math.random()))))
    assert.deepStrictEqual(
      [Date, Date.now, Math.random, setTimeout, Promise.prototype.then, process.hrtime, Effect.fiberId],
      before
    )
    assert.isNumber(Effect.runSync(Effect.fiberId))
    assert.isAbove(Date.now(), 0)
  })
})

describe("requireEnded", () => {
  // without traps: what waits for the real world hangs in virtual time, in every run alike
  for (const [name, program] of planted
    .filter(([name]) => /^(set|queue|process.next|Promise)/.test(name))
    .slice(0, 6)) {
    it(`notices that a program waiting for ${name} never ends`, () => {
      assert.match(unsound(runAlone(program)).join(), /a never came to an end/)
    })
  }

  it("notices an await that no trap can see", () => {
    const program = Effect.callback<void>((resume) => {
      const later = async () => {
        // oxlint-disable-next-line unicorn/no-unnecessary-await (anything makes an async function go on later)
        await 0
        resume(Effect.void)
      }
      void later()
    })
    assert.match(
      leakOf(() => withTraps(() => requireEnded(runAlone(program)))),
      /a never came to an end/
    )
  })

  it("tells a defect, with its message", () => {
    assert.deepStrictEqual(unsound(runAlone(Effect.die(new Error("balance is negative")))), [
      "a died: Error: balance is negative"
    ])
  })
})

describe("a region without yields", () => {
  it("is named as soon as it does something visible, since no pause could fall into it", () => {
    const program = Effect.provideService(Clock.currentTimeMillis, Scheduler.PreventSchedulerYield, true)
    assert.strictEqual(
      leakOf(() => runAlone(program)),
      "a uses PreventSchedulerYield"
    )
  })
})

describe("two nodes that share one of Effect's meeting places", () => {
  type Shared = readonly [
    name: string,
    make: () => { readonly wait: Effect.Effect<unknown>; readonly wake: Effect.Effect<unknown> }
  ]
  const places: ReadonlyArray<Shared> = [
    [
      "Deferred",
      () => {
        const deferred = Deferred.makeUnsafe<void>()
        return { wait: Deferred.await(deferred), wake: Deferred.succeed(deferred, undefined) }
      }
    ],
    [
      "Queue",
      () => {
        // made by the waiter: it wakes through the run queue of its maker
        let queue: Queue.Queue<number> | undefined
        return {
          wait: Effect.flatMap(Queue.unbounded<number>(), (made) => {
            queue = made
            return Queue.take(made)
          }),
          wake: Effect.suspend(() => Queue.offer(queue!, 1))
        }
      }
    ],
    [
      "Latch",
      () => {
        const latch = Latch.makeUnsafe(false)
        return { wait: latch.await, wake: latch.open }
      }
    ],
    [
      "Semaphore",
      () => {
        const semaphore = Semaphore.makeUnsafe(0)
        return { wait: semaphore.take(1), wake: semaphore.release(1) }
      }
    ]
  ]
  for (const [name, make] of places) {
    it(`${name}: the waker and the woken are named, and the woken does not run while it is paused`, () => {
      const w = new VirtualWorld({ seed: 1 })
      const { wait, wake } = make()
      let woke = false
      w.node("w2", {
        program: () =>
          Effect.andThen(
            wait,
            Effect.sync(() => (woke = true))
          )
      }).start()
      // a Latch wakes through the run queue of the waker, which therefore has to live a little longer
      w.node("w1", {
        program: () => Effect.sleep("10 millis").pipe(Effect.andThen(wake), Effect.andThen(Effect.sleep("10 millis")))
      }).start()
      w.at(5000, () => w.nodes[0]!.pause(1_000_000))
      const found = leakOf(() => w.run())
      assert.strictEqual(found, "w1 resumed a fiber of w2: the two share a Deferred, Queue, Latch or Semaphore")
      assert.isFalse(woke)
    })
  }
})
