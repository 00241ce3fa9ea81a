/** Every use case in batches: nothing may be violated; and what must be found is found. */
import { assert, describe, it } from "@effect/vitest"
import fc from "fast-check"
import { specOf } from "../../src/sim/Arbitrary.ts"
import { runChunk } from "../../src/sim/Batch.ts"
import { distinct, faultsOf, plansOf, runPart, smallWorld } from "../../src/sim/Exhaust.ts"
import { run } from "../../src/sim/Run.ts"
import { fromLine } from "../../src/sim/RunSpec.ts"
import { scenarioOf, scenarios } from "../../src/sim/Scenario.ts"

/** Runs that were once violations, each with what was wrong. */
const corpus: ReadonlyArray<readonly [what: string, line: string]> = [
  [
    "a waiter interrupted as it joined its line stood there for ever, and everybody else was refused",
    '{"scenario":"uc-02","seed":2126270116,"quantum":1,"jitterMicros":2000,"faults":[{"kind":"pause","node":"lock-server","when":{"at":"visible","nth":19},"millis":1750}]}'
  ],
  [
    "a second copy of a refused acquire was granted to nobody, which the searching checker took for a lie",
    '{"scenario":"uc-05","seed":2147483640,"jitterMicros":30000,"duplicatePerMille":5,"rail":[{"kind":"http5xx","paid":false}],"railBlindMillis":200}'
  ],
  [
    "who does not wait is refused while others wait, although the key is just free",
    '{"scenario":"uc-02","seed":8,"jitterMicros":2000,"lockServers":2,"accounts":2,"payouts":2}'
  ],
  [
    "a holder that goes on after its loss was blamed for the second submission that it is there to try",
    '{"scenario":"uc-03","seed":746435584,"policy":"pct","sliceMicrosMax":20,"jitterMicros":2000,"duplicatePerMille":60,"lockServers":2,"accounts":2,"railLatencyMillis":750,"staleHolder":true,"faults":[{"kind":"pause","node":"w1","when":{"at":"visible","nth":9},"millis":1750},{"kind":"pause","node":"w1","when":{"at":"visible","nth":39},"millis":3500},{"kind":"kill","node":"payment-resource","when":{"at":"visible","nth":25},"how":"machine","downMillis":1100},{"kind":"cut","from":"paydb","to":"rail-proxy","both":true,"how":"drop","atMillis":335,"millis":3500},{"kind":"cut","from":"w2","to":"payment-resource","both":false,"how":"stall","atMillis":397,"millis":1750}]}'
  ],
  [
    "a restarted worker was told to stop before it had begun",
    '{"scenario":"uc-03","seed":2147483640,"policy":"random","faults":[{"kind":"kill","node":"w2","when":{"at":"visible","nth":1},"how":"process","downMillis":200}]}'
  ]
]

const chunk = (scenario: string, runs: number, seed: number, fixed = {}, traps = false) =>
  runChunk({ scenario, fixed, seed, chunk: 0, runs, traps })

const told = ({ failure }: ReturnType<typeof runChunk>) =>
  failure === undefined
    ? ""
    : `${failure.line}\n${failure.verdicts.map((one) => `${one.check} ${one.detail}`).join("\n")}`

describe("runs that once failed", () => {
  for (const [what, line] of corpus) {
    it(what, () => assert.deepStrictEqual(run(fromLine(line), { lockHistory: true }).outcome.verdicts, []))
  }
})

describe("use cases", () => {
  // A fixed seed, so that a failure is the same for everybody; a fresh one, so that not only those runs are ever made.
  const fresh = Math.trunc(performance.timeOrigin) & 0x7fffffff
  for (const { expectation, id } of scenarios) {
    it(`${id}: ${expectation} (fresh seed ${fresh})`, () => {
      const runs = id === "uc-03" ? 50 : 10
      for (const seed of [1, fresh]) assert.strictEqual(told(chunk(id, runs, seed)), "")
    }, 120_000)
  }

  it("UC-03 under traps touches no real clock, randomness or promise", () => {
    assert.strictEqual(told(chunk("uc-03", 20, 1, {}, true)), "")
  })

  // All of them, in `.ci/run`: sim exhaust uc-03 --faults 1
  it("every third single fault of the small world is survived", () => {
    const spec = smallWorld("uc-03", {})
    const { faults } = distinct(spec, faultsOf(spec))
    assert.isAbove(faults.length, 150)
    const plans = plansOf(faults, 1).filter((_, i) => i % 3 === 0)
    assert.strictEqual(told(runPart({ spec, part: 0, plans })), "")
  }, 120_000)
})

describe("without the fences", () => {
  it("the harm is found within 200 runs and shrunk to at most two faults", () => {
    for (const seed of [1, 2]) {
      const { failure, runs } = chunk("uc-03", 200, seed, { paymentFencing: false, railFencing: false })
      assert.isDefined(failure)
      assert.isAtMost(runs, 200)
      assert.isAtMost(fromLine(failure?.line ?? "{}").faults.length, 2)
    }
  }, 120_000)

  it("every single fault is tried, and the plain ones are among those that do harm", () => {
    const spec = smallWorld("uc-03", { paymentFencing: false, railFencing: false })
    const bad = plansOf(faultsOf(spec), 1).filter(
      (faults) => run({ ...spec, faults }, { lockHistory: false }).outcome.verdicts.length > 0
    )
    assert.isAbove(bad.length, 3)
    assert.isTrue(
      bad.every(([fault]) => fault?.kind === "pause" || fault?.kind === "delay" || fault?.kind === "duplicate")
    )
  })

  it("a token orders and does not deduplicate: both fences on and the guards behind them off pays twice", () => {
    // Both are stopped: w1 between claim and submit, w2 between its claim and its submit, so that w1's comes first.
    const spec = fromLine(
      '{"scenario":"uc-03","guards":false,"faults":[{"kind":"pause","node":"w1","when":{"at":"point","name":"submit.before","nth":1},"millis":3500},{"kind":"pause","node":"w2","when":{"at":"point","name":"submit.before","nth":1},"millis":2500}]}'
    )
    const checks = run(spec).outcome.verdicts.map(({ check }) => check)
    assert.include(checks, "INV-02")
    assert.deepStrictEqual(run({ ...spec, guards: true }).outcome.verdicts, [])
  })
})

describe("the two wires", () => {
  it("give the same verdicts, with the fences and without", () => {
    for (const fixed of [{}, { paymentFencing: false, railFencing: false }]) {
      for (const drawn of fc.sample(specOf(scenarioOf("uc-03"), fixed), { numRuns: 15, seed: 5 })) {
        // The operations of a process are others on each wire; a plan for both names its places.
        const faults = drawn.faults.filter((fault) => !("when" in fault) || fault.when.at !== "visible")
        const spec = { ...drawn, policy: "fifo" as const, quantum: 0, sliceMicrosMax: 0, faults }
        const [typed, http] = (["typed", "http"] as const).map((wire) => {
          const { outcome } = run({ ...spec, wire }, { lockHistory: false })
          return outcome.verdicts.map(({ check }) => check).toSorted()
        })
        assert.deepStrictEqual(http, typed)
      }
    }
  }, 120_000)
})
