/**
 * A plan is data: it survives JSON, each of its faults does what it says where it says, and tells whether it happened.
 */
import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Exit, Schema } from "effect"
import * as FaultPoint from "../../src/core/FaultPoint.ts"
import { apply, type Fault, FaultPlan, heal, type When } from "../../src/sim/FaultPlan.ts"
import { requireEnded } from "../../src/sim/Leaks.ts"
import { SimNetwork } from "../../src/sim/SimNetwork.ts"
import { VirtualWorld } from "../../src/sim/VirtualWorld.ts"

/**
 * A worker that writes three times, a second apart, to a store, with its own clock's milliseconds. What it wrote and at which
 * virtual millisecond it arrived.
 */
const run = (plan: FaultPlan) => {
  const w = new VirtualWorld({ seed: 1 })
  const net = new SimNetwork(w, { latencyMicros: 1000 })
  const rows: Array<readonly [said: number, at: number]> = []
  const db = w.node("db", { daemon: true })
  let epoch = 0
  const worker = w.node("w1", {
    program: (process) =>
      Effect.gen(function* () {
        epoch ||= yield* Clock.currentTimeMillis
        while (rows.length < 3) {
          yield* Effect.sleep("1 second")
          yield* FaultPoint.reached("write")
          const said = (yield* Clock.currentTimeMillis) - epoch
          process.node.mark("lease", w.now + 500_000)
          yield* net
            .transact(process, db, "put", () => Exit.succeed(rows.push([said, w.now / 1000])), { timeoutMillis: 100 })
            .pipe(Effect.ignore)
        }
      })
  })
  const applied = apply(plan, net)
  db.start()
  worker.start()
  const reason = w.run(60_000_000)
  return { w, net, worker, rows, hits: applied.hits, reason, at: rows.map(([, at]) => Math.round(at)) }
}

const message = (kind: "drop" | "delay" | "duplicate", leg: "request" | "answer", nth: number, millis = 0): Fault => ({
  kind,
  from: "w1",
  to: "db",
  label: "put",
  leg,
  nth,
  millis
})

describe("each kind of fault", () => {
  it("none: the world as it would be", () => {
    assert.deepStrictEqual(run([]).at, [1001, 2003, 3005])
  })

  const pauses: ReadonlyArray<readonly [name: string, when: When, expected: ReadonlyArray<number>]> = [
    ["at a named point", { at: "point", name: "write", nth: 2 }, [1001, 7003, 8005]],
    ["before a call leaves", { at: "point", name: "put.before", nth: 2 }, [1001, 7003, 8005]],
    ["behind a visible operation", { at: "visible", nth: 5 }, [1001, 7003, 8005]],
    ["at a time", { at: "time", millis: 1500 }, [1001, 6501, 7503]],
    ["shortly before a marked instant", { at: "mark", name: "lease", nth: 1, plusMillis: -1 }, [1001, 6500, 7502]],
    ["at an operation", { at: "op", nth: 1 }, [6001, 7003, 8005]]
  ]
  for (const [name, when, expected] of pauses) {
    it(`pause ${name}`, () => {
      const { at, hits, w } = run([{ kind: "pause", node: "w1", when, millis: 5000 }])
      assert.deepStrictEqual(at, expected)
      assert.deepStrictEqual(hits, [1])
      requireEnded(w)
    })
  }

  it("pause until a little after the end of the lease", () => {
    const fault: Fault = {
      kind: "pause",
      node: "w1",
      when: { at: "point", name: "put.before", nth: 1 },
      until: "lease",
      millis: 1
    }
    assert.deepStrictEqual(run([fault]).at[0], 1000 + 500 + 1 + 1)
  })

  it("kill, with and without restart", () => {
    const when: When = { at: "point", name: "put.before", nth: 2 }
    const restarted = run([{ kind: "kill", node: "w1", when, how: "process", downMillis: 10_000 }])
    assert.deepStrictEqual(restarted.at, [1001, 13_003, 14_005])
    assert.strictEqual(restarted.worker.boots, 2)
    const gone = run([{ kind: "kill", node: "w1", when, how: "machine", downMillis: null }])
    assert.deepStrictEqual([gone.at, gone.reason], [[1001], "quiescent"])
  })

  it("clock step and clock error change what the worker says, and an error of the monotonic clock also when it wakes", () => {
    const step = run([
      { kind: "clockStep", node: "w1", when: { at: "point", name: "write", nth: 2 }, stepMillis: -60_000 }
    ])
    assert.deepStrictEqual(
      step.rows.map(([said]) => said),
      [1000, -57_998, -56_996]
    )
    const error = run([
      { kind: "clockError", node: "w1", offsetMillis: 500, wallDriftPpm: 10_000, monotonicDriftPpm: -10_000 }
    ])
    // slow timers wake after 1010 ms; the fast wall clock, with its offset from the beginning, counts these as 1020
    assert.deepStrictEqual([error.rows[0]?.[0], error.at[0]], [1020, 1011])
  })

  it("drop, delay, duplicate: exactly the message named", () => {
    assert.deepStrictEqual(run([message("drop", "request", 1)]).at, [2101, 3103, 4105])
    // the answer is lost: the row is there, the worker waits for its timeout
    assert.deepStrictEqual(run([message("drop", "answer", 1)]).at, [1001, 2101, 3103])
    assert.deepStrictEqual(run([message("delay", "request", 1, 5000)]).at, [2101, 3103, 4105, 6001])
    assert.deepStrictEqual(run([message("duplicate", "request", 1, 500)]).at, [1001, 1501, 2003])
  })

  it("cut, one way and both", () => {
    const cut = (from: string, to: string, both: boolean, how: "drop" | "stall"): Fault => ({
      kind: "cut",
      from,
      to,
      both,
      how,
      atMillis: 500,
      millis: 1000
    })
    assert.deepStrictEqual(run([cut("w1", "db", false, "drop")]).at, [2101, 3103, 4105])
    assert.deepStrictEqual(run([cut("db", "w1", false, "drop")]).at, [1001, 2101, 3103])
    assert.deepStrictEqual(run([cut("db", "w1", true, "drop")]).at, [2101, 3103, 4105])
    assert.deepStrictEqual(run([cut("w1", "db", false, "stall")]).at, [1501, 2101, 3103])
  })
})

describe("a plan", () => {
  it("survives JSON", () => {
    const plan: FaultPlan = [
      { kind: "pause", node: "w1", when: { at: "point", name: "put.before", nth: 1 }, millis: 7000 },
      message("drop", "answer", 1)
    ]
    const text = JSON.stringify(plan)
    assert.deepStrictEqual(Schema.decodeUnknownSync(Schema.fromJsonString(FaultPlan))(text), plan)
    assert.throws(() => Schema.decodeUnknownSync(FaultPlan)([{ kind: "pause", node: "w1" }]))
  })

  it("counts what happened: a fault that is never reached proves nothing", () => {
    const never: Fault = { kind: "pause", node: "w1", when: { at: "point", name: "write", nth: 9 }, millis: 1 }
    assert.deepStrictEqual(run([never, message("drop", "request", 2)]).hits, [0, 1])
  })

  it("refuses a node that does not exist", () => {
    assert.throws(() => run([{ kind: "pause", node: "w9", when: { at: "op", nth: 1 }, millis: 1 }]), /w9/)
  })

  it("leaves everything before its first fault as it is without it", () => {
    const without = run([])
    const withOne = run([{ kind: "pause", node: "w1", when: { at: "point", name: "write", nth: 3 }, millis: 1000 }])
    assert.deepStrictEqual(withOne.rows.slice(0, 2), without.rows.slice(0, 2))
  })
})

describe("heal", () => {
  it("ends the fault phase: links open, pauses over, the dead restarted, nothing planted happens any more", () => {
    const w = new VirtualWorld({ seed: 1 })
    const net = new SimNetwork(w, { lossPerMille: 1000 })
    const told: Array<string> = []
    const db = w.node("db", { daemon: true })
    for (const name of ["w1", "w2", "w3"]) {
      w.node(name, {
        program: (process) =>
          Effect.gen(function* () {
            yield* Effect.sleep("1 second")
            yield* net
              .transact(process, db, "put", () => Exit.succeed(undefined), { timeoutMillis: 100 })
              .pipe(Effect.retry({ times: 100 }), Effect.orDie)
            told.push(name)
          })
      })
    }
    for (const node of w.nodes) node.start()
    apply(
      [
        { kind: "kill", node: "w1", when: { at: "time", millis: 500 }, how: "process", downMillis: null },
        { kind: "pause", node: "w2", when: { at: "time", millis: 500 }, millis: 1_000_000 },
        // what is still to come when the phase ends, by each kind of trigger
        {
          kind: "kill",
          node: "w3",
          when: { at: "point", name: "put.after", nth: 1 },
          how: "process",
          downMillis: null
        },
        { kind: "kill", node: "w1", when: { at: "time", millis: 3001 }, how: "process", downMillis: null },
        { kind: "cut", from: "w1", to: "db", both: true, how: "drop", atMillis: 3500, millis: 1_000_000 },
        { kind: "cut", from: "w3", to: "db", both: true, how: "drop", atMillis: 0, millis: 1_000_000 }
      ],
      net
    )
    w.at(3_000_000, () => heal(net))
    w.run(5_000_000)
    assert.deepStrictEqual(told, ["w2", "w3", "w1"])
    requireEnded(w)
  })
})
