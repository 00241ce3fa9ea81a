/**
 * A run is a function of its options: the same everywhere, and different where the options ask for it.
 */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Exit, Fiber, Queue, Random, Ref, Semaphore, Stream } from "effect"
import { SecureRandom } from "effect/crypto"
import { Worker } from "node:worker_threads"
import { mix, Rng } from "../../src/sim/Draw.ts"
import { requireEnded } from "../../src/sim/Leaks.ts"
import { SimNetwork } from "../../src/sim/SimNetwork.ts"
import { VirtualWorld, type Policy, type WorldOptions } from "../../src/sim/VirtualWorld.ts"
import { busy } from "./busyWorld.ts"

const policies: ReadonlyArray<Policy> = ["fifo", "random", "pct"]

/** Two fibers of three steps each: which of the 20 interleavings does a world show? */
const interleaving = (options: WorldOptions): string => {
  const w = new VirtualWorld(options)
  let out = ""
  const steps = (name: string) => Effect.forEach([1, 2, 3], () => Effect.sync(() => (out += name)), { discard: true })
  w.node("a", {
    program: () => Effect.all([steps("a"), steps("b")], { concurrency: 2 })
  }).start()
  w.run()
  requireEnded(w)
  return out
}

/** Read, yield, write: an update is lost when both fibers read before either writes. */
const lostUpdate = (options: WorldOptions): boolean => {
  const w = new VirtualWorld(options)
  let count = 0
  const add = Effect.gen(function* () {
    const read = yield* Effect.sync(() => count)
    yield* Effect.sync(() => (count = read + 1))
  })
  w.node("a", { program: () => Effect.all([add, add], { concurrency: 2, discard: true }) }).start()
  w.run()
  return count === 1
}

describe("determinism", () => {
  it("the same options give the same hashes, other options others", () => {
    for (const policy of policies) {
      const seen = new Set<string>()
      for (let seed = 1; seed <= 100; seed++) {
        const first = busy(seed, policy)
        assert.strictEqual(busy(seed, policy), first)
        seen.add(first)
      }
      assert.strictEqual(seen.size, 100)
    }
  })

  it("does not depend on what ran before in the same operating system's process", () => {
    const first = busy(7, "random")
    Effect.runSync(Effect.forEach(Array.from({ length: 100 }), () => Effect.forkChild(Effect.void)))
    busy(8, "random")
    assert.strictEqual(busy(7, "random"), first)
  })

  it("gives the same hashes in a worker thread", async () => {
    const source = `import { busy } from ${JSON.stringify(new URL("./busyWorld.ts", import.meta.url).href)}
      import { parentPort } from "node:worker_threads"
      const hashes = []
      for (const policy of ["fifo", "random", "pct"]) for (let seed = 1; seed <= 10; seed++) hashes.push(busy(seed, policy))
      parentPort.postMessage(hashes)`
    const worker = new Worker(new URL(`data:text/javascript,${encodeURIComponent(source)}`))
    const hashes = await new Promise<unknown>((resolve, reject) => {
      worker.once("message", resolve)
      worker.once("error", reject)
    })
    const here = policies.flatMap((policy) => Array.from({ length: 10 }, (_, i) => busy(i + 1, policy)))
    assert.deepStrictEqual(hashes, here)
  })

  it("draws are keyed: what one node does leaves another's randomness, timers and ids alone", () => {
    const drawn = (withNeighbour: boolean): ReadonlyArray<unknown> => {
      const w = new VirtualWorld({ seed: 3, timerLateMicrosMax: 900, timerEarlyMicrosMax: 100 })
      const out: Array<unknown> = []
      const draw = Effect.gen(function* () {
        const secure = yield* SecureRandom.SecureRandom
        for (let i = 0; i < 3; i++) {
          yield* Effect.sleep(10)
          out.push(yield* Random.nextInt, yield* Random.next, yield* secure.uuidV4(), w.now)
        }
      })
      if (withNeighbour) w.node("b", { program: () => Effect.andThen(Effect.sleep(5), Random.next) }).start()
      w.node("a", { program: () => draw }).start()
      w.run()
      return out
    }
    assert.deepStrictEqual(drawn(true), drawn(false))
    assert.strictEqual(new Set(drawn(false)).size, 12)
  })

  it("mix and Rng are what they were: a change of either would rename every seed ever written down", () => {
    const rng = new Rng(42)
    assert.deepStrictEqual(
      [mix(1, 2), mix(1, 2, 3, 4), rng.next(), rng.next(), rng.hex(8)],
      [933032482, 4283481236, 561362234, 1837139684, "fbc41457"]
    )
  })
})

describe("time", () => {
  it("a day of sleep costs two slices", () => {
    const w = new VirtualWorld({ seed: 1 })
    w.node("a", { program: () => Effect.sleep("1 day") }).start()
    assert.strictEqual(w.run(), "quiescent")
    assert.strictEqual(w.now, 86_400_000_000)
    assert.strictEqual(w.steps, 2)
  })

  it("stops at the horizon and can go on from there; a busy loop ends with the step budget", () => {
    const w = new VirtualWorld({ seed: 1 })
    const node = w.node("a", { program: () => Effect.forever(Effect.sleep("1 second")), daemon: true })
    node.start()
    assert.strictEqual(w.run(1_500_000), "horizon")
    assert.strictEqual(w.now, 1_500_000)
    assert.strictEqual(w.run(2_500_000), "horizon")
    w.after(10, () => w.stop())
    assert.strictEqual(w.run(), "stopped")
    const spin = new VirtualWorld({ seed: 1 })
    spin.node("a", { program: () => Effect.forever(Effect.void) }).start()
    assert.strictEqual(spin.run(Infinity, 100), "steps")
  })

  it("a node that always has work does not starve the others", () => {
    const w = new VirtualWorld({ seed: 1 })
    let ran = false
    w.node("spin", { program: () => Effect.forever(Effect.void), daemon: true }).start()
    w.node("b", { program: () => Effect.sync(() => (ran = true)) }).start()
    w.run(Infinity, 10)
    assert.isTrue(ran)
  })

  it("timers fire early and late within the bounds asked for, never before they were set", () => {
    const w = new VirtualWorld({ seed: 5, timerEarlyMicrosMax: 1000, timerLateMicrosMax: 2000 })
    const errors: Array<number> = []
    w.node("a", {
      program: () =>
        Effect.gen(function* () {
          for (let i = 0; i < 200; i++) {
            const from = w.now
            yield* Effect.sleep("10 millis")
            errors.push(w.now - from - 10_000)
          }
        })
    }).start()
    w.run()
    assert.isAtLeast(Math.min(...errors), -1000)
    assert.isBelow(Math.min(...errors), -500)
    assert.isAtMost(Math.max(...errors), 2000)
    assert.isAbove(Math.max(...errors), 1500)
  })
})

describe("policies", () => {
  it("all 20 interleavings of two fibers are found, by random and by pct", () => {
    for (const policy of ["random", "pct"] as const) {
      const found = new Set<string>()
      for (let seed = 0; seed < 1000; seed++) {
        found.add(interleaving({ seed, policy, quantum: 1, pctSteps: 20, pctDepth: 12 }))
      }
      assert.strictEqual(found.size, 20, `${policy}: ${Array.from(found).join(" ")}`)
    }
  })

  it("under pct a timer or message does not lend its fiber the priority of the delivery", () => {
    // both wake at 2 s; a's timer is the older one, so deliveries alone would always let a go first
    const orders = new Set<string>()
    for (let seed = 0; seed < 20; seed++) {
      const w = new VirtualWorld({ seed, policy: "pct", pctDepth: 1 })
      let out = ""
      const say = (name: string) => Effect.sync(() => (out += name))
      const a = Effect.andThen(Effect.sleep("2 seconds"), say("a"))
      const b = Effect.sleep("1 second").pipe(Effect.andThen(Effect.sleep("1 second")), Effect.andThen(say("b")))
      w.node("a", { program: () => Effect.all([a, b], { concurrency: 2 }) }).start()
      w.run()
      orders.add(out)
    }
    assert.deepStrictEqual(Array.from(orders).sort(), ["ab", "ba"])
  })

  it("the drawn order of two nodes does not change when a third does more or less", () => {
    const orderWith = (seed: number, slices: number, sleeps: number): string => {
      const w = new VirtualWorld({ seed, policy: "random" })
      let out = ""
      const turns = (name: string, slices: number, sleeps: number) => () =>
        Effect.gen(function* () {
          for (let i = 0; i < slices; i++) {
            yield* Effect.yieldNow
            out += name
          }
          for (let i = 0; i < sleeps; i++) {
            yield* Effect.sleep("1 second")
            out += name
          }
        })
      for (const name of ["x", "y"]) w.node(name, { program: turns(name, 6, 6) }).start()
      w.node("other", { program: turns("", slices, sleeps) }).start()
      w.run()
      return out
    }
    const seen = new Set<string>()
    for (let seed = 0; seed < 20; seed++) {
      const order = orderWith(seed, 0, 0)
      assert.strictEqual(orderWith(seed, 3, 5), order)
      assert.strictEqual(orderWith(seed, 9, 2), order)
      seen.add(order)
    }
    assert.isAbove(seen.size, 15)
  })

  it("the drawn order of two messages that arrive in the same microsecond does not either", () => {
    const orderWith = (seed: number, sleeps: number): string => {
      const w = new VirtualWorld({ seed, policy: "random" })
      const net = new SimNetwork(w)
      let out = ""
      const db = w.node("db", { daemon: true })
      db.start()
      for (const name of ["x", "y"]) {
        w.node(name, {
          program: (process) =>
            Effect.gen(function* () {
              for (let i = 0; i < 6; i++) {
                yield* Effect.sleep("1 second")
                yield* net.transact(process, db, "put", () => Exit.succeed((out += name)))
              }
            }).pipe(Effect.orDie)
        }).start()
      }
      w.node("other", { program: () => Effect.repeat(Effect.sleep("300 millis"), { times: sleeps }) }).start()
      w.run()
      return out
    }
    const seen = new Set<string>()
    for (let seed = 0; seed < 20; seed++) {
      const order = orderWith(seed, 0)
      assert.strictEqual(orderWith(seed, 7), order)
      seen.add(order)
    }
    assert.isAbove(seen.size, 15)
  })

  it("a race inside a process needs a small quantum: without one no policy finds it", () => {
    const hits = (policy: Policy, quantum: number): number => {
      let n = 0
      for (let seed = 0; seed < 100; seed++) if (lostUpdate({ seed, policy, quantum, pctSteps: 20 })) n++
      return n
    }
    for (const policy of policies) {
      assert.strictEqual(hits(policy, 0), 0)
      assert.isAtLeast(hits(policy, 1) + hits(policy, 4), 10, policy)
    }
  })

  it("Effect's own structures keep their promises under every policy and quantum", () => {
    for (const policy of policies) {
      for (const quantum of [0, 1, 6]) {
        const w = new VirtualWorld({ seed: 11, policy, quantum, sliceMicrosMax: 50 })
        let result: ReadonlyArray<number> = []
        w.node("a", {
          program: () =>
            Effect.gen(function* () {
              const queue = yield* Queue.bounded<number>(2)
              const mutex = yield* Semaphore.make(1)
              const count = yield* Ref.make(0)
              const add = mutex.withPermits(1)(
                Effect.gen(function* () {
                  const n = yield* Ref.get(count)
                  yield* Effect.yieldNow
                  yield* Ref.set(count, n + 1)
                })
              )
              const producer = yield* Effect.forkChild(
                Effect.forEach([1, 2, 3, 4, 5], (n) => Effect.andThen(add, Queue.offer(queue, n)), { discard: true })
              )
              yield* Effect.all([add, add, add], { concurrency: 3, discard: true })
              const taken = yield* Stream.fromQueue(queue).pipe(Stream.take(5), Stream.runCollect)
              yield* Fiber.join(producer)
              const lost = yield* Effect.timeoutOption(Effect.never, "1 second")
              result = [...taken, yield* Ref.get(count), lost._tag === "None" ? 0 : 1]
            })
        }).start()
        assert.strictEqual(w.run(), "quiescent")
        requireEnded(w)
        assert.deepStrictEqual(result, [1, 2, 3, 4, 5, 8, 0], `${policy} ${quantum}`)
      }
    }
  })
})
