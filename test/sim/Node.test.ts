/**
 * What a machine can do to its program: stop it between any two operations, kill it, start it again.
 */
import { assert, describe, it } from "@effect/vitest"
import { Clock, Context, Deferred, Effect, Fiber, Layer } from "effect"
import { FaultPoint } from "../../src/core/FaultPoint.ts"
import * as Faults from "../../src/core/FaultPoint.ts"
import { CurrentProcess } from "../../src/sim/Ambient.ts"
import { requireEnded } from "../../src/sim/Leaks.ts"
import { VirtualWorld, type WorldOptions } from "../../src/sim/VirtualWorld.ts"

const second = 1_000_000

const world = (options: Partial<WorldOptions> = {}) => new VirtualWorld({ seed: 1, ...options })

/** Says the virtual second at which it is awake, five times. */
const ticker = (w: VirtualWorld, out: Array<number>) => () =>
  Effect.repeat(
    Effect.andThen(
      Effect.sleep("1 second"),
      Effect.sync(() => out.push(w.now / second))
    ),
    { times: 4 }
  )

describe("pause", () => {
  it("holds back a node's timers while its neighbour goes on", () => {
    const w = world()
    const a: Array<number> = []
    const b: Array<number> = []
    const first = w.node("a", { program: ticker(w, a) })
    w.node("b", { program: ticker(w, b) }).start()
    first.start()
    w.at(1.5 * second, () => first.pause(10 * second))
    assert.strictEqual(w.run(), "quiescent")
    assert.deepStrictEqual(a, [1, 11.5, 12.5, 13.5, 14.5])
    assert.deepStrictEqual(b, [1, 2, 3, 4, 5])
    requireEnded(w)
  })

  it("is not an interruption: it also falls inside an uninterruptible region, and nothing in there notices", () => {
    const w = world()
    const seen: Array<number> = []
    const node = w.node("a", {
      program: () =>
        Effect.uninterruptible(
          Effect.gen(function* () {
            seen.push(w.now)
            yield* Effect.sync(() => node.pause(7 * second))
            seen.push(w.now)
            yield* Effect.sync(() => seen.push(w.now))
          })
        )
    })
    node.start()
    w.run()
    // a generator runs on to its next operation: what it does until then, nobody else can see
    assert.deepStrictEqual(seen, [0, 0, 7 * second])
  })

  it("ends early with resume, and an endless one never by itself", () => {
    const w = world()
    const out: Array<number> = []
    const node = w.node("a", { program: ticker(w, out) })
    node.start()
    w.at(1.5 * second, () => node.pause(Infinity))
    assert.strictEqual(w.run(), "quiescent")
    assert.deepStrictEqual(out, [1])
    assert.throws(() => requireEnded(w), /a never came to an end/)
    w.at(60 * second, () => node.resume())
    w.run()
    assert.deepStrictEqual(out, [1, 60, 61, 62, 63])
    requireEnded(w)
  })

  it("makes the clocks jump, each by its own drift", () => {
    const w = world()
    const read: Array<number> = []
    const node = w.node("a", {
      wallOffsetMillis: -500,
      wallDriftPpm: 100,
      monotonicDriftPpm: -100,
      program: () =>
        Effect.gen(function* () {
          const m0 = yield* Clock.monotonicTimeNanos
          const t0 = yield* Clock.currentTimeMillis
          yield* Effect.sync(() => node.pause(1000 * second))
          read.push(Number((yield* Clock.monotonicTimeNanos) - m0) / 1e6, (yield* Clock.currentTimeMillis) - t0)
          yield* Effect.sync(() => node.stepWall(-30_000))
          read.push(Number((yield* Clock.monotonicTimeNanos) - m0) / 1e6, (yield* Clock.currentTimeMillis) - t0)
        })
    })
    node.start()
    w.run()
    // 1000 s at -100 ppm are 999.9 s, at +100 ppm 1000.1 s; the step backwards is seen by the wall clock alone
    assert.deepStrictEqual(read, [999_900, 1_000_100, 999_900, 970_100])
  })

  it("can fall between any two operations: a check-then-act program shows every outcome", () => {
    const deadline = 5 * second
    const outcomes = new Map<string, number>()
    let ops = 1
    for (let op = 1; op <= ops; op++) {
      const w = world()
      let outcome = "never ran"
      const node = w.node("worker", {
        program: () =>
          Effect.gen(function* () {
            yield* Effect.sleep("1 second")
            const held = yield* Effect.sync(() => w.now < deadline)
            if (!held) {
              outcome = "refused to act"
              return
            }
            yield* Effect.sync(() => {
              outcome = w.now < deadline ? "acted in time" : "checked in time, acted late"
            })
          })
      })
      node.onOp(op, () => node.pause(10 * second))
      node.start()
      assert.strictEqual(w.run(), "quiescent")
      requireEnded(w)
      outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1)
      ops = Math.max(ops, node.ops)
    }
    assert.hasAllKeys(outcomes, ["refused to act", "checked in time, acted late", "acted in time"])
  })

  it("can be aimed: at the nth visit of a named point, behind the nth visible operation, around a marked instant", () => {
    const run = (plant: (w: VirtualWorld, node: ReturnType<VirtualWorld["node"]>) => void) => {
      const w = world({ keepVisible: true })
      const out: Array<number> = []
      const node = w.node("a", {
        program: () =>
          Effect.gen(function* () {
            node.mark("lease", 2 * second)
            for (let i = 0; i < 3; i++) {
              yield* Effect.sleep("1 second")
              yield* Faults.reached("step")
              out.push(w.now / second)
            }
          })
      })
      plant(w, node)
      node.start()
      w.run()
      assert.deepStrictEqual(node.visibleNames, ["step", "step", "step"])
      return out
    }
    assert.deepStrictEqual(
      run((_, n) => n.onPoint("step", 2, () => n.pause(10 * second))),
      [1, 12, 13]
    )
    assert.deepStrictEqual(
      run((_, n) => n.onVisible(3, () => n.pause(10 * second))),
      [1, 2, 13]
    )
    assert.deepStrictEqual(
      run((_, n) => n.onMark("lease", 1, -1, () => n.pause(2))),
      [1, 2.000001, 3.000001]
    )
    // nothing planted, nothing happens; and without a simulation the point does nothing at all
    assert.deepStrictEqual(
      run(() => {}),
      [1, 2, 3]
    )
    assert.strictEqual(Effect.runSync(FaultPoint)("step"), Effect.void)
  })
})

describe("kill", () => {
  it("runs no finalizer and not one operation more, whatever the program holds", () => {
    const w = world()
    const said: Array<string> = []
    const say = (text: string) => Effect.sync(() => void said.push(text))
    const node = w.node("a", {
      program: () =>
        Effect.acquireUseRelease(
          say("acquired"),
          () =>
            Effect.gen(function* () {
              yield* Effect.forkChild(Effect.andThen(Effect.sleep("10 millis"), say("child")))
              yield* Effect.sleep("1 second")
              yield* Effect.sync(() => node.kill())
              yield* say("after the kill")
            }),
          () => say("released")
        ).pipe(
          Effect.ensuring(say("ensured")),
          Effect.onInterrupt(() => say("interrupted"))
        )
    })
    node.start()
    w.run()
    assert.deepStrictEqual(said, ["acquired", "child"])
    assert.strictEqual(node.down, "killed")
    requireEnded(w)
  })

  it("takes its timers along: a dead worker's lease timer does not move the virtual clock", () => {
    const w = world()
    const node = w.node("a", { program: () => Effect.sleep("1 day") })
    node.start()
    w.at(5 * second, () => node.kill())
    assert.strictEqual(w.run(), "quiescent")
    assert.strictEqual(w.now, 5 * second)
  })

  it("while paused is final: the pause does not protect it", () => {
    const w = world()
    const out: Array<number> = []
    const node = w.node("a", { program: ticker(w, out) })
    node.start()
    w.at(1.5 * second, () => node.pause(10 * second))
    w.at(2 * second, () => node.kill())
    w.run()
    assert.deepStrictEqual(out, [1])
    assert.strictEqual(w.now, 2 * second)
  })
})

describe("stop and end", () => {
  it("a stopped program runs its finalizers in virtual time", () => {
    const w = world()
    const said: Array<readonly [string, number]> = []
    const node = w.node("a", {
      program: () =>
        Effect.never.pipe(
          Effect.onInterrupt(() =>
            Effect.andThen(
              Effect.sleep("3 seconds"),
              Effect.sync(() => void said.push(["drained", w.now / second]))
            )
          )
        )
    })
    node.start()
    w.at(2 * second, () => node.stop())
    w.run()
    assert.deepStrictEqual(said, [["drained", 5]])
    assert.strictEqual(node.exits[0]?._tag, "Failure")
    assert.strictEqual(node.down, "ended")
  })

  it("when the program ends, what it left running in the background ends too", () => {
    const w = world()
    const out: Array<number> = []
    const node = w.node("a", {
      program: () => Effect.andThen(Effect.forkDetach(ticker(w, out)()), Effect.sleep("2500 millis"))
    })
    node.start()
    w.run()
    assert.deepStrictEqual(out, [1, 2])
    assert.strictEqual(w.now, 2.5 * second)
  })
})

describe("restart", () => {
  class Store extends Context.Service<Store, { readonly add: Effect.Effect<number> }>()("test/Store") {}

  it("is a new process: Layers built anew, another clock origin, other randomness; what is on disk is still there", () => {
    const w = world()
    const disk = { writes: 0 }
    const origins: Array<bigint> = []
    const boots: Array<number> = []
    let built = 0
    const layer = Layer.effect(
      Store,
      Effect.sync(() => {
        built++
        return { add: Effect.sync(() => ++disk.writes) }
      })
    )
    const node = w.node("a", {
      program: () =>
        Effect.gen(function* () {
          const { boot } = yield* CurrentProcess
          boots.push(boot)
          origins.push(yield* Clock.monotonicTimeNanos)
          const store = yield* Store
          while ((yield* store.add) < 5) yield* Effect.sleep("1 second")
        }).pipe(Effect.provide(layer))
    })
    node.start()
    w.at(2.5 * second, () => node.kill())
    w.at(60 * second, () => node.start())
    w.run()
    assert.deepStrictEqual(disk, { writes: 5 })
    assert.deepStrictEqual(boots, [1, 2])
    assert.strictEqual(built, 2)
    assert.notStrictEqual(origins[0], origins[1])
    assert.strictEqual(w.now, 61 * second)
    requireEnded(w)
  })

  it("leaves nothing of the old process behind: its fibers cannot be resumed by anything", () => {
    const w = world()
    const said: Array<string> = []
    let old: Deferred.Deferred<void> | undefined
    const node = w.node("a", {
      program: ({ boot }) =>
        Effect.gen(function* () {
          if (boot === 1) {
            old = yield* Deferred.make<void>()
            yield* Deferred.await(old)
            said.push("the old one woke up")
          }
          yield* Effect.sleep("1 second")
          said.push("the new one ended")
        })
    })
    node.start()
    w.at(second, () => node.start())
    // from outside of every process, as a network event would
    w.at(1.5 * second, () => Deferred.doneUnsafe(old!, Effect.void))
    w.run()
    assert.deepStrictEqual(said, ["the new one ended"])
  })
})

describe("inside one process", () => {
  it("a fiber resumed by another goes through the run queue; with inlineResume at once, as in production", () => {
    const order = (inlineResume: boolean): ReadonlyArray<string> => {
      const w = world({ inlineResume })
      const said: Array<string> = []
      const node = w.node("a", {
        program: () =>
          Effect.gen(function* () {
            const done = yield* Deferred.make<void>()
            const waiter = yield* Effect.forkChild(
              Effect.andThen(
                Deferred.await(done),
                Effect.sync(() => said.push("waiter"))
              )
            )
            yield* Effect.sleep("1 second")
            yield* Deferred.succeed(done, undefined)
            yield* Effect.sync(() => said.push("completer"))
            yield* Fiber.join(waiter)
          })
      })
      node.start()
      w.run()
      requireEnded(w)
      return said
    }
    assert.deepStrictEqual(order(false), ["completer", "waiter"])
    assert.deepStrictEqual(order(true), ["waiter", "completer"])
  })
})
