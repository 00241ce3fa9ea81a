/** The production programs as a cluster in one virtual world. */
import { assert, describe, it } from "@effect/vitest"
import { Worker } from "node:worker_threads"
import { switchMatrix } from "../../src/core/Fencing.ts"
import { harmName, harmOf } from "../../src/sim/Judge.ts"
import { withTraps } from "../../src/sim/Leaks.ts"
import { run } from "../../src/sim/Run.ts"
import { fromLine, type RunSpec, simplest, toLine } from "../../src/sim/RunSpec.ts"

/** Stopped there past its lease. */
const heldAt = (name: string): RunSpec["faults"] => [
  { kind: "pause", node: "w1", when: { at: "point", name, nth: 1 }, millis: 3_500 }
]

const everything: RunSpec = {
  ...simplest,
  scenario: "uc-03",
  seed: 77,
  policy: "random",
  quantum: 4,
  sliceMicrosMax: 500,
  jitterMicros: 2_000,
  lossPerMille: 20,
  duplicatePerMille: 20,
  latePerMille: 20,
  payouts: 2,
  lockServers: 2,
  faults: heldAt("submit.before")
}

describe("UC-01", () => {
  it("posts the payout once, writes both entries and leaves the lock free", () => {
    const { history, outcome } = run({ ...simplest, workers: 1 }, { lockHistory: true })
    assert.deepStrictEqual(outcome.verdicts, [])
    assert.strictEqual(outcome.end, "POSTED paid 1x")
    const postings = history.journals.filter(({ kind }) => kind === "PAYOUT")
    assert.deepStrictEqual(
      postings.map(({ entries }) => entries.length),
      [2]
    )
    assert.strictEqual(history.accounts.find(({ accountId }) => accountId === "acct-1")?.balanceMinor, 7_500n)
  })
})

describe("a run", () => {
  it("is the same run again, in this thread and in another", async () => {
    const seeds = Array.from({ length: 8 }, (_, n) => ({ ...everything, seed: n * 7919 }))
    const hashes = seeds.map((spec) => run(spec).outcome.scheduleHash)
    assert.deepStrictEqual(
      seeds.map((spec) => run(spec).outcome.scheduleHash),
      hashes
    )
    assert.strictEqual(new Set(hashes).size, seeds.length)
    const other = await new Promise<ReadonlyArray<string>>((resolve, reject) => {
      const worker = new Worker(
        `const { parentPort, workerData } = require("node:worker_threads");
         import(workerData.module).then(({ run }) =>
           parentPort.postMessage(workerData.seeds.map((spec) => run(spec).outcome.scheduleHash)))`,
        { eval: true, workerData: { seeds, module: new URL("../../src/sim/Run.ts", import.meta.url).href } }
      )
      worker.once("message", resolve)
      worker.once("error", reject)
    })
    assert.deepStrictEqual(other, hashes)
  }, 120_000)

  it("asks nothing real: no clock, no randomness, no promise, on either wire", () => {
    for (const wire of ["typed", "http"] as const) {
      const spec = { ...everything, wire }
      // what is made once per process may look at the clock
      run(spec)
      assert.deepStrictEqual(withTraps(() => run(spec)).outcome.verdicts, [])
    }
  }, 120_000)

  it("survives being written down", () => {
    assert.deepStrictEqual(fromLine(toLine(everything)), everything)
    assert.throws(() => fromLine('{"scenario":"uc-03","policy":"whatever"}'))
  })
})

describe("the paused worker (UC-03)", () => {
  for (const switches of switchMatrix) {
    const { payment, rail } = switches
    const name = `resource ${payment ? "on" : "off"}, rail ${rail ? "on" : "off"}`
    it(`does exactly the harm of its row: ${name}`, () => {
      const { history, outcome } = run({
        ...simplest,
        scenario: "uc-03",
        staleHolder: true,
        paymentFencing: payment,
        railFencing: rail,
        faults: heldAt("submit.before")
      })
      const { may, must } = harmOf(switches)
      const harm = new Set(outcome.verdicts.map(harmName))
      assert.deepStrictEqual(
        [...harm].filter((one) => !may.includes(one)),
        []
      )
      for (const one of must) assert.isTrue(harm.has(one), one)
      assert.deepStrictEqual(
        {
          paid: history.rail.length,
          posted: history.journals.filter(({ kind }) => kind === "PAYOUT").length,
          balance: history.accounts.find(({ accountId }) => accountId === "acct-1")?.balanceMinor
        },
        { paid: rail ? 1 : 2, posted: payment ? 1 : 2, balance: payment ? 7_500n : 5_000n }
      )
    })
  }

  it("is refused wherever it was stopped, with the fences on", () => {
    for (const point of ["claim.before", "submit.before", "post.before"]) {
      const { outcome } = run(
        { ...simplest, scenario: "uc-03", staleHolder: true, faults: heldAt(point) },
        { lockHistory: true }
      )
      assert.deepStrictEqual([outcome.end, outcome.verdicts, outcome.hits], ["POSTED paid 1x", [], [1]], point)
      assert.isAbove(outcome.marks["told FENCED_OUT"] ?? 0, 0, point)
    }
  })
})
