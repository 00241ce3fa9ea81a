// @effect-diagnostics nodeBuiltinImport:off
/**
 * The demo: that a figure which differs is found and told, and that nothing of it outlives an interruption, whenever it
 * comes and however rough it is.
 *
 * Interrupted at more moments, drawn at random: DLOCK_INTERRUPTS=20 npx vitest run test/e2e/Demo.test.ts
 */
import { assert, describe, it } from "@effect/vitest"
import { Config, Console, Effect, Exit, Random } from "effect"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { conclude, documentOf, table } from "../../src/harness/Demo.ts"
import { demoPage } from "../../src/harness/DemoPage.ts"
import {
  differencesOf,
  expectedRow,
  expectedViolations,
  type Hop,
  matrix,
  type MatrixRow,
  type RowReport
} from "../../src/harness/Experiment.ts"
import { exitCodeOf } from "../../src/services/platform/ExitCodes.ts"
import { emptyDirectory, interruptedAt, type Moment, type Run } from "../support/leftovers.ts"

const rows: ReadonlyArray<MatrixRow> = matrix.map((switches) => ({
  ...expectedRow(switches),
  violations: expectedViolations(switches)
}))

const hops: ReadonlyArray<Hop> = [
  { at: 0, worker: "W1", op: "acquire", token: "41", outcome: "GRANTED", stale: false },
  { at: 10, worker: "W1", op: "stopped", token: null, outcome: "", stale: false },
  { at: 3_000, worker: "W2", op: "submit", token: "42", outcome: "ACKED", stale: false },
  { at: 3_100, worker: "W1", op: "resumed", token: null, outcome: "", stale: false },
  { at: 3_200, worker: "W1", op: "submit", token: "41", outcome: "FENCED_OUT", stale: true }
]

const reportsOf = (all: ReadonlyArray<MatrixRow>): ReadonlyArray<RowReport> =>
  all.map((row) => ({ row, hops, differences: differencesOf(row) }))

const exitCode = (all: ReadonlyArray<MatrixRow>) =>
  Effect.map(Effect.exit(conclude(documentOf(reportsOf(all)))), (exit) =>
    Exit.isSuccess(exit) ? 0 : exitCodeOf(exit.cause)
  )

describe("the demo's verdict", () => {
  it("expects exactly the figures of the kill-switch matrix", () => {
    const figures = (name: keyof MatrixRow) => rows.map((row) => row[name])
    assert.deepStrictEqual(figures("paymentFencing"), [true, false, true, false])
    assert.deepStrictEqual(figures("railFencing"), [true, true, false, false])
    assert.deepStrictEqual(figures("railExecutions"), [1, 1, 2, 2])
    assert.deepStrictEqual(figures("postings"), [1, 2, 1, 2])
    assert.deepStrictEqual(figures("balanceMinor"), [7500, 5000, 7500, 5000])
    assert.deepStrictEqual(figures("staleClaim"), ["FENCED_OUT", "CLAIMED", "FENCED_OUT", "CLAIMED"])
    assert.deepStrictEqual(figures("staleSubmit"), ["FENCED_OUT", "FENCED_OUT", "ACKED", "ACKED"])
    assert.deepStrictEqual(figures("stalePost"), ["FENCED_OUT", "POSTED", "FENCED_OUT", "POSTED"])
    assert.deepStrictEqual(rows.flatMap(differencesOf), [])
  })

  it.effect("is success when every figure is as expected", () =>
    Effect.gen(function* () {
      assert.strictEqual(documentOf(reportsOf(rows)).verdict, "proven")
      assert.strictEqual(yield* exitCode(rows), 0)
    })
  )

  const other: Readonly<Record<Exclude<keyof MatrixRow, "paymentFencing" | "railFencing" | "violations">, unknown>> = {
    staleClaim: "ILLEGAL_TRANSITION",
    staleSubmit: "RAIL_AMBIGUOUS",
    stalePost: "not sent",
    railExecutions: 3,
    postings: 0,
    balanceMinor: 10_000
  }
  for (const [index, row] of rows.entries()) {
    const planted: ReadonlyArray<readonly [what: string, row: MatrixRow]> = [
      ...Object.entries(other).map(([name, value]) => [name, { ...row, [name]: value } as MatrixRow] as const),
      row.violations.length === 0
        ? (["a violation", { ...row, violations: ["INV-02"] }] as const)
        : (["no violation", { ...row, violations: [] }] as const)
    ]
    for (const [what, differing] of planted) {
      it.effect(`is exit code 5 when row ${index + 1} differs in ${what}`, () =>
        Effect.gen(function* () {
          assert.strictEqual(differencesOf(differing).length === 0, false)
          const all = rows.with(index, differing)
          assert.strictEqual(documentOf(reportsOf(all)).verdict, "differs")
          assert.strictEqual(yield* exitCode(all), 5)
          assert.match(table(reportsOf(all)), /DIFFERS/)
          assert.include(demoPage(reportsOf(all), "2026-01-01T00:00:00.000Z"), "Not as expected: ")
        })
      )
    }
  }

  it("is shown as a table of four rows", () => {
    const lines = table(reportsOf(rows)).split("\n")
    assert.strictEqual(lines.length, 6)
    const cells = (line = "") => line.split(/ {2,}/)
    assert.deepStrictEqual(cells(lines[2]).slice(0, 8), [
      "on",
      "on",
      "FENCED_OUT",
      "FENCED_OUT",
      "FENCED_OUT",
      "1",
      "1",
      "7500"
    ])
    assert.deepStrictEqual(cells(lines[5]).slice(0, 8), ["OFF", "OFF", "CLAIMED", "ACKED", "POSTED", "2", "2", "5000"])
    assert.notInclude(table(reportsOf(rows)), "DIFFERS")
  })

  it("is shown as a page that needs nothing but itself", () => {
    const page = demoPage(reportsOf(rows), "2026-01-01T00:00:00.000Z")
    for (const part of ["FENCED_OUT", "under token 41", "under token 42", "7500", "5000", "INV-02", "ONE-POSTING"]) {
      assert.include(page, part)
    }
    for (const [index] of rows.entries()) assert.include(page, `id="row-${index + 1}"`)
    assert.notMatch(page, /https?:|<script|<link|@import|url\(|\bsrc=|\son\w+=/i)
    const attack = demoPage(
      reportsOf([{ ...rows[0]!, staleClaim: "<script>alert(1)</script>" }]),
      "2026-01-01T00:00:00.000Z"
    )
    assert.notInclude(attack, "<script")
  })
})

// -----------------------------------------------------------------------------
// interruption
// -----------------------------------------------------------------------------

const further = Effect.orDie(Config.withDefault(Config.Int("DLOCK_INTERRUPTS"), 0))

const stopped = (demo: Run) => demo.stderr().includes("is stopped under token")

const moments: ReadonlyArray<Moment> = [
  {
    name: "Ctrl-C while PostgreSQL starts",
    signal: "SIGINT",
    moreThan: 1,
    come: (_, temporary) => fs.readdirSync(temporary).some((name) => name.startsWith("dlock-pgdata-"))
  },
  { name: "SIGKILL while W1 is stopped", signal: "SIGKILL", moreThan: 1, come: stopped }
]

const furtherMoments: ReadonlyArray<Moment> = [
  { name: "Ctrl-C while W1 is stopped", signal: "SIGINT", moreThan: 1, come: stopped }
]

const demoInterruptedAt = (moment: Moment, temporary: string) =>
  interruptedAt(["demo", "--report", path.join(temporary, "report")], moment, { temporary, comesWithin: "90 seconds" })

describe.skipIf(process.platform !== "linux")("the demo, interrupted,", () => {
  it.live(
    "leaves no process, no port and no temporary directory",
    () =>
      Effect.gen(function* () {
        // One for all moments: the copy of PostgreSQL in it is made once.
        const temporary = yield* emptyDirectory(os.tmpdir())
        const count = yield* further
        for (const moment of count === 0 ? moments : [...moments, ...furtherMoments]) {
          yield* demoInterruptedAt(moment, temporary)
        }
        for (let n = 0; n < count; n++) {
          const pause = yield* Random.nextIntBetween(500, 45_000)
          const signal = (yield* Random.nextBoolean) ? "SIGINT" : "SIGKILL"
          const name = `${signal} after ${pause} ms`
          yield* Console.log(name)
          const start = process.hrtime.bigint()
          // In the last of its four rows at the latest: a machine may be done sooner than drawn.
          const come = (demo: Run) =>
            process.hrtime.bigint() - start > BigInt(pause) * 1_000_000n ||
            demo.stderr().split("is stopped under token").length > matrix.length
          yield* demoInterruptedAt({ name, signal, moreThan: undefined, come }, temporary)
        }
      }).pipe(Effect.scoped),
    3_600_000
  )
})
