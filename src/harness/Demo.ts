// @effect-diagnostics nodeBuiltinImport:off
/**
 * `npm start`: the paused worker, end to end. Two PostgreSQL servers, every service and two workers as real processes;
 * the four rows of the kill-switch matrix; a verdict table, and a page to look at.
 *
 * Human output goes to stdout, progress to stderr; with `--json` stdout is one document and nothing else.
 */
import * as NodeHttpClient from "@effect/platform-node/NodeHttpClient"
import { Clock, Console, DateTime, Effect, Fiber, Redacted } from "effect"
import { mkdirSync, writeFileSync } from "node:fs"
import { resolve } from "node:path"
import { pathToFileURL } from "node:url"
import * as EmbeddedPostgres from "../services/platform/EmbeddedPostgres.ts"
import { Exited, exitCodes } from "../services/platform/ExitCodes.ts"
import * as Migrations from "../services/platform/Migrations.ts"
import { demoPage } from "./DemoPage.ts"
import { type DemoDocument, matrix, type RowReport } from "./Experiment.ts"
import { anyPort, leaseSettings, prepareRow, runRow } from "./PausedWorker.ts"
import { HarnessError, make as makeWorld } from "./Processes.ts"

export interface DemoOptions {
  readonly json: boolean
  /** Where the page is written; the directory is made. */
  readonly report: string
}

/** What is printed with `--json`. */
export const documentOf = (reports: ReadonlyArray<RowReport>): DemoDocument => ({
  rows: reports.map((report) => report.row),
  verdict: reports.every((report) => report.differences.length === 0) ? "proven" : "differs"
})

/** A figure that differs is a finding, with the exit code of one. */
export const conclude = ({ verdict }: DemoDocument): Effect.Effect<void, Exited> =>
  verdict === "proven" ? Effect.void : Effect.fail(new Exited({ code: exitCodes.findings }))

/** Succeeds when fencing held and its absence corrupted, with exactly the expected figures. */
export const run = Effect.fnUntraced(
  function* (options: DemoOptions) {
    const startedAt = yield* DateTime.now
    const start = yield* Clock.currentTimeMillis
    const progress = (text: string) =>
      Effect.flatMap(Clock.currentTimeMillis, (now) =>
        Console.error(`${((now - start) / 1000).toFixed(1).padStart(5)} s  ${text}`)
      )
    yield* progress("starting two PostgreSQL servers, the lock service and the rail")
    const world = yield* makeWorld
    const [lockServer, payServer] = yield* Effect.all(
      [
        EmbeddedPostgres.start({ storage: { kind: "temporary" } }),
        EmbeddedPostgres.start({ storage: { kind: "temporary" } })
      ],
      { concurrency: "unbounded" }
    )
    yield* Migrations.ensureDatabase({ adminUrl: lockServer.url("postgres"), database: "lockdb" })
    const [lock, rail] = yield* Effect.all(
      [
        world.start("lock-server", ["lock-server"], {
          ...anyPort,
          ...leaseSettings,
          LOCK_PG_URL: Redacted.value(lockServer.url("lockdb"))
        }),
        world.start("rail-stub", ["rail-stub"], { ...anyPort })
      ],
      { concurrency: "unbounded" }
    )
    const around = {
      world,
      lockdb: lockServer.url("lockdb"),
      paydb: payServer.url,
      lockUrl: (yield* lock.listening).url,
      railUrl: (yield* rail.listening).url
    }
    const reports: Array<RowReport> = []
    // While W2 waits for a lease to run out there is time to start what the next row needs.
    const prepare = (index: number) => {
      const switches = matrix[index]
      return switches === undefined ? undefined : Effect.forkScoped(prepareRow(around, switches, index + 1))
    }
    let next = yield* prepare(0) ?? Effect.die("the matrix is empty")
    for (const [index, switches] of matrix.entries()) {
      const label = `[${index + 1}/${matrix.length}] ledger fence ${switches.payment ? "on" : "OFF"}, rail fence ${switches.rail ? "on" : "OFF"}:`
      const row = yield* Fiber.join(next)
      next = yield* prepare(index + 1) ?? Effect.succeed(next)
      reports.push(yield* runRow(around, row, (text) => progress(`${label} ${text}`)))
    }
    const document = documentOf(reports)
    const page = yield* writePage(options.report, demoPage(reports, DateTime.formatIso(startedAt)))
    if (options.json) yield* Console.log(JSON.stringify(document))
    else {
      yield* Console.log(`\n${table(reports)}\n`)
      for (const [index, { differences }] of reports.entries()) {
        for (const difference of differences) yield* Console.log(`row ${index + 1}: ${difference}`)
      }
      yield* Console.log(
        document.verdict === "proven"
          ? "Fencing held, and its absence corrupted: with a fence on, the stale worker is refused there (FENCED_OUT) and\nnothing changes; with it off, the same run pays or posts twice, while the books still balance."
          : "The figures are not the expected ones: see above."
      )
      yield* Console.log(`Every hop: ${pathToFileURL(page).href}`)
    }
    yield* progress("stopping everything")
    yield* conclude(document)
  },
  Effect.scoped,
  // @effect-diagnostics-next-line strictEffectProvide:off (this is the entry point of the command)
  Effect.provide(NodeHttpClient.layerUndici)
)

const writePage = (directory: string, page: string) =>
  Effect.try({
    try: () => {
      const file = resolve(directory, "paused-worker.html")
      mkdirSync(resolve(directory), { recursive: true })
      writeFileSync(file, page)
      return file
    },
    catch: (cause) => new HarnessError({ step: `write the page into ${directory}`, message: String(cause) })
  })

export const table = (reports: ReadonlyArray<RowReport>): string => {
  const head = [
    "ledger fence",
    "rail fence",
    "late claim",
    "late submit",
    "late post",
    "rail paid",
    "postings",
    "balance",
    "violated",
    ""
  ]
  const lines = reports.map(({ differences, row }) => [
    row.paymentFencing ? "on" : "OFF",
    row.railFencing ? "on" : "OFF",
    row.staleClaim,
    row.staleSubmit,
    row.stalePost,
    String(row.railExecutions),
    String(row.postings),
    String(row.balanceMinor),
    row.violations.join(" ") || "none",
    differences.length === 0 ? "as expected" : "DIFFERS"
  ])
  const widths = head.map((title, column) => Math.max(title.length, ...lines.map((line) => line[column]?.length ?? 0)))
  const format = (line: ReadonlyArray<string>) =>
    line
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join("  ")
      .trimEnd()
  return [
    format(head),
    widths
      .map((width) => "-".repeat(width))
      .join("  ")
      .trimEnd(),
    ...lines.map(format)
  ].join("\n")
}
