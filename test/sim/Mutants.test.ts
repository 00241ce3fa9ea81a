// @effect-diagnostics nodeBuiltinImport:off
/** Deliberate bugs: the canaries die at once, and a mutant that no longer applies says so. */
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as fs from "node:fs"
import { stripTypeScriptTypes } from "node:module"
import { apply, type Mutant, patternOf } from "../../src/harness/Mutant.ts"
import { mutants } from "../../src/harness/Mutants.ts"
import type { Job } from "../../src/harness/SimJob.ts"
import { type Edit, runJobs } from "../../src/harness/SimPool.ts"

const jobs = (runs: number, scenario = "uc-03"): ReadonlyArray<Job> => [
  { kind: "chunk", scenario, fixed: {}, seed: 1, chunk: 0, runs, traps: false }
]

const run = (edits: ReadonlyArray<Edit>, runs: number, scenario?: string) =>
  Effect.runPromise(Effect.result(runJobs({ jobs: jobs(runs, scenario), workers: 1, mutant: edits })))

/** What an edit changes, in the sources or in what the compiler makes of them. */
const textOf = (root: string, extension: string, { file }: Edit): string => {
  const [found] = fs.globSync(`${root}/**/${file.replace(/ts$/, extension)}`)
  return fs.readFileSync(found ?? file, "utf8")
}

describe("mutants", () => {
  it("have names of their own, and a survivor has a reason", () => {
    assert.strictEqual(new Set(mutants.map(({ id }) => id)).size, mutants.length)
    for (const { id, survives } of mutants) assert.notStrictEqual(survives, "", id)
  })

  for (const [root, extension] of [
    ["src", "ts"],
    ["dist", "js"]
  ] as const) {
    it(`each change places that there are in ${root}`, () => {
      const wrong = mutants.flatMap(({ edits, id }) =>
        edits.flatMap((one) => {
          const places = [...textOf(root, extension, one).matchAll(patternOf(one))].length
          return places === 1 || (one.all === true && places > 0) ? [] : [`${id}: ${places} places say ${one.find}`]
        })
      )
      assert.deepStrictEqual(wrong, [])
    })

    it(`what they make of ${root} is a program`, () => {
      const broken = mutants.flatMap(({ edits, id }) => {
        const texts = new Map<string, string>()
        try {
          for (const one of edits) texts.set(one.file, apply(texts.get(one.file) ?? textOf(root, extension, one), one))
          texts.forEach((text) => stripTypeScriptTypes(text))
          return []
        } catch (cause) {
          return [`${id}: ${String(cause)}`]
        }
      })
      assert.deepStrictEqual(broken, [])
    })
  }

  const sample: ReadonlyArray<Mutant> = mutants.filter(({ canary }) => canary === true)
  for (const { edits, id, what } of sample) {
    it(`${id} is found within three runs: ${what}`, async () => {
      const result = await run(edits, 3)
      assert.strictEqual(result._tag, "Success")
      if (result._tag === "Success") assert.isDefined(result.success.failure)
    }, 120_000)
  }

  it("that change a place which is not there fail loudly", async () => {
    const result = await run([{ file: "sim/SimLockStore.ts", find: "no such statement", replace: "" }], 1)
    assert.strictEqual(result._tag, "Failure")
    if (result._tag === "Failure") assert.match(result.failure.message, /no longer applies/)
  }, 120_000)
})
