/** The use cases as they are dealt to real processes: each plan is a run of the simulation as well, and holds there. */
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { crashPointsOf, drills, drillsOf, variants } from "../../src/harness/Drills.ts"
import { compare, specOf } from "../../src/harness/Recorded.ts"
import { read } from "../../src/harness/SavedRun.ts"
import { harmName, harmOf } from "../../src/sim/Judge.ts"
import { run } from "../../src/sim/Run.ts"
import { fromLine, toLine } from "../../src/sim/RunSpec.ts"
import { scenarios } from "../../src/sim/Scenario.ts"

describe("the plans of real runs", () => {
  it("are there for each use case, under a name of their own", () => {
    assert.deepStrictEqual(
      [...new Set(drills.map(({ scenario }) => scenario.id))].sort(),
      scenarios.map(({ id }) => id).sort()
    )
    const names = [...drills, ...variants].map(({ name }) => name)
    assert.strictEqual(new Set(names).size, names.length)
    assert.deepStrictEqual(drillsOf("all"), drills)
    assert.deepStrictEqual(
      drillsOf("uc-03b")?.map(({ name }) => name),
      ["uc-03b short", "uc-03b long"]
    )
    assert.deepStrictEqual(
      drillsOf("uc-03 told")?.map(({ name }) => name),
      ["uc-03 told"]
    )
    assert.isUndefined(drillsOf("uc-99"))
  })

  it("come to every crash point of a payout, and to the races of which nobody dies", () => {
    const points = drills.flatMap(({ promises }) => promises.filter((promise) => promise.startsWith("crash point")))
    assert.deepStrictEqual(
      [...new Set(points)].map((point) => point.slice(12)).sort((a, b) => a.localeCompare(b, "en", { numeric: true })),
      ["1", "2", "3", "3b", "4", "4b", "5", "6", "7", "8", "9", "9b", "10", "11", "12", "13", "14", "15", "16", "17"]
    )
    assert.deepStrictEqual(crashPointsOf("w3", "claim.before"), ["2"])
    assert.deepStrictEqual(crashPointsOf("reconciler", "claim.before"), [])
  })

  for (const { name, spec } of [...drills, ...variants]) {
    it(`${name} keeps every promise in virtual time, too`, () => {
      const { outcome } = run(spec, { lockHistory: true })
      assert.deepStrictEqual(outcome.verdicts, [])
      assert.deepStrictEqual(fromLine(toLine(spec)), spec)
    })
  }

  for (const { name, spec } of drills.filter(({ control }) => control)) {
    for (const switches of [
      { payment: false, rail: true },
      { payment: true, rail: false },
      { payment: false, rail: false }
    ]) {
      it(`${name} does its harm there with ${switches.payment ? "" : "the ledger's fence "}${switches.rail ? "" : "the rail's fence "}off`, () => {
        const { outcome } = run({ ...spec, paymentFencing: switches.payment, railFencing: switches.rail })
        const found = outcome.verdicts.map(harmName)
        for (const must of harmOf(switches).must) assert.include(found, must)
      })
    }
  }
})

describe("a run that was recorded on real processes", () => {
  for (const [name, harmed] of [
    ["on", false],
    ["off", true]
  ] as const) {
    it.effect(`with its fences ${name} comes to the same verdict in the simulation`, () =>
      Effect.map(read(`test/harness/runs/uc-03-${name}.json`), (found) => {
        assert.strictEqual(found.kind, "run")
        if (found.kind !== "run") return
        const { recorded, same, simulated } = compare(found.run)
        assert.isTrue(same, `recorded ${recorded.join(", ")}; simulated ${simulated.join(", ")}`)
        assert.strictEqual(recorded.length > 0, harmed)
        // From what was seen, not from what was planned.
        const [fault] = specOf({ ...found.run, spec: { ...found.run.spec, faults: [] } }).faults
        assert.strictEqual(fault?.kind, "pause")
      })
    )
  }
})
