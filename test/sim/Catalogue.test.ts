/**
 * Exhaustive single faults on the smallest program with the bug that this project is about: check, then act.
 */
import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Exit } from "effect"
import { catalogue } from "../../src/sim/Catalogue.ts"
import { apply, type FaultPlan } from "../../src/sim/FaultPlan.ts"
import { requireEnded } from "../../src/sim/Leaks.ts"
import { SimNetwork } from "../../src/sim/SimNetwork.ts"
import { VirtualWorld } from "../../src/sim/VirtualWorld.ts"

const leaseMillis = 1000

/** Takes a lease, checks it by its own clock, then writes. `late`: a write landed after the lease had ended. */
const run = (plan: FaultPlan) => {
  const w = new VirtualWorld({ seed: 1, keepVisible: true })
  const net = new SimNetwork(w)
  const late: Array<number> = []
  let leaseEnd = Infinity
  const store = w.node("store", { daemon: true })
  const worker = w.node("worker", {
    program: (process) =>
      Effect.gen(function* () {
        const sent = yield* Clock.monotonicTimeNanos
        yield* net.transact(
          process,
          store,
          "lease",
          () => {
            leaseEnd = w.now + leaseMillis * 1000
            return Exit.void
          },
          { timeoutMillis: 100 }
        )
        const passed = Number((yield* Clock.monotonicTimeNanos) - sent) / 1e6
        if (passed > leaseMillis / 2) return
        yield* net.transact(
          process,
          store,
          "write",
          () => {
            if (w.now > leaseEnd) late.push(w.now)
            return Exit.void
          },
          { timeoutMillis: 100 }
        )
      }).pipe(Effect.ignore)
  })
  const { hits } = apply(plan, net)
  for (const node of w.nodes) node.start()
  w.run()
  requireEnded(w)
  return { net, hits, late, worker }
}

describe("catalogue", () => {
  const dry = run([])
  const faults = catalogue(dry.net, {
    pauseMillis: [2000],
    delayMillis: [2000],
    duplicateMillis: [2000],
    downMillis: [null, 100],
    node: (node) => node.name === "worker"
  })

  it("lists every visible operation and message of the run once", () => {
    assert.deepStrictEqual(dry.worker.visibleNames, [
      "read monotonic clock",
      "worker>store lease",
      "read monotonic clock",
      "worker>store write"
    ])
    // 4 visible operations x (1 pause + 2 kills), 2 requests and 2 answers x (drop, delay, duplicate)
    assert.strictEqual(faults.length, 4 * 3 + 4 * 3)
    assert.strictEqual(new Set(faults.map((fault) => JSON.stringify(fault))).size, faults.length)
  })

  it("each fault happens when it is planted", () => {
    for (const fault of faults) assert.deepStrictEqual(run([fault]).hits, [1], JSON.stringify(fault))
  })

  it("finds every way in which the lease is overrun, and nothing else", () => {
    const guilty = faults.filter((fault) => run([fault]).late.length > 0)
    assert.deepStrictEqual(guilty, [
      // the pause between the check and the write, which no client can close
      { kind: "pause", node: "worker", when: { at: "visible", nth: 3 }, millis: 2000 },
      // the write that was on its way too long, and the one that came twice
      { kind: "delay", from: "worker", to: "store", label: "write", leg: "request", nth: 1, millis: 2000 },
      { kind: "duplicate", from: "worker", to: "store", label: "write", leg: "request", nth: 1, millis: 2000 }
    ])
  })
})
