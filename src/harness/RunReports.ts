// @effect-diagnostics nodeBuiltinImport:off
/**
 * What a run leaves behind in the report directory: a timeline page and the observed run as JSON for each use case, and the
 * results of all as JUnit XML and JSON. A run that was also made with other fences (its JSON lies beside) is shown on the
 * same page, behind the switch.
 */
import { DateTime, Effect, Option } from "effect"
import { existsSync, mkdirSync, writeFileSync } from "node:fs"
import { join, resolve } from "node:path"
import { pathToFileURL } from "node:url"
import { type FencingSwitches, switchMatrix } from "../core/Fencing.ts"
import type { DrillReport } from "./DrillRun.ts"
import { junit } from "./JUnit.ts"
import { HarnessError } from "./Processes.ts"
import { runPage, type Shown } from "./RunPage.ts"
import { judgeRun } from "./RunJudge.ts"
import { observedOf, read, toJson } from "./SavedRun.ts"
import { nameOf, type Result } from "./RunResult.ts"
import { timelinePage, type TimelineRun } from "./TimelinePage.ts"

const slug = (name: string) => name.replaceAll(/[^a-z0-9]+/g, "-")
const fencesOf = ({ payment, rail }: FencingSwitches) =>
  payment && rail ? "" : `-${payment ? "a" : "no-a"}-${rail ? "c" : "no-c"}`

/** One for each use case, backend and setting of the fences. */
export const fileOf = (name: string, backend: string, switches: FencingSwitches) =>
  `${slug(name)}-${backend}${fencesOf(switches)}`

const endOf = ({ history }: Pick<Shown, "history">): string => {
  const paid = (reference: string) => history.rail.filter(({ clientReference }) => clientReference === reference).length
  const posted = (id: string) =>
    history.journals.filter(({ kind, payoutId }) => kind === "PAYOUT" && payoutId === id).length
  return history.payouts
    .map(
      ({ clientReference, payoutId, state }) => `${state}, paid ${paid(clientReference)}x, posted ${posted(payoutId)}x`
    )
    .join("; ")
}

/** The options of a command that runs on a backend under these fences. */
export const groundOf = (backend: string, { payment, rail }: FencingSwitches): string =>
  `--backend ${backend}${payment ? "" : " --payment-fencing off"}${rail ? "" : " --rail-fencing off"}`

export const commandOf = (name: string, backend: string, switches: FencingSwitches): string =>
  `node dist/main.js scenario run '${name}' ${groundOf(backend, switches)}`

const shownOf = (report: DrillReport, file: string, command: string | undefined): Shown => ({
  ...report,
  name: report.drill.name,
  faults: report.dealt.map(({ fault, proof }) => `${fault}: ${proof ?? "NOT SEEN"}`),
  end: endOf(report),
  replay: [
    command ?? commandOf(report.drill.name, report.backend, switchesOf(report)),
    `node dist/main.js check ${file}`,
    `node dist/main.js sim replay ${file}`
  ],
  facts: [
    ["began", DateTime.formatIso(DateTime.makeUnsafe(report.startedAt))],
    ["settled", `${report.settledAfterMillis} ms after the last fault`],
    ...Object.entries(report.figures).map(([name, value]) => [name, String(value)] as const),
    ...Object.entries(report.marks).map(([name, times]) => [name, `${times}x`] as const)
  ]
})

const switchesOf = ({ spec }: Pick<DrillReport, "spec">): FencingSwitches => ({
  payment: spec.paymentFencing,
  rail: spec.railFencing
})

/** The same plan with other fences, as it was run before. */
const others = (directory: string, report: DrillReport): Effect.Effect<ReadonlyArray<TimelineRun>, HarnessError> =>
  Effect.forEach(
    switchMatrix.filter(
      ({ payment, rail }) => payment !== report.spec.paymentFencing || rail !== report.spec.railFencing
    ),
    (switches) => {
      const file = join(directory, `${fileOf(report.drill.name, report.backend, switches)}.json`)
      if (!existsSync(file)) return Effect.succeed([])
      // One that an older version left there is not worth a failure.
      return Effect.map(Effect.option(read(file)), (saved): ReadonlyArray<TimelineRun> => {
        const found = Option.getOrUndefined(saved)
        if (found === undefined) return []
        if (found.kind === "history") return []
        const { run } = found
        const observed = observedOf(run)
        return [
          runPage({
            ...observed,
            name: run.name,
            backend: run.backend,
            spec: run.spec,
            faults: run.faults,
            verdicts: judgeRun({
              ...observed,
              spec: run.spec,
              paysLate: run.paysLate,
              settled: run.history.settled,
              bound: run.boundMillis
            }),
            end: endOf(run),
            replay: [commandOf(run.name, run.backend, switches), `node dist/main.js check ${file}`],
            facts: []
          })
        ]
      })
    }
  ).pipe(Effect.map((all) => all.flat()))

const write = (file: string, content: string) =>
  Effect.try({
    try: () => {
      writeFileSync(file, content)
      return file
    },
    catch: (cause) => new HarnessError({ step: `write ${file}`, message: String(cause) })
  })

/** Answers where the pages are, for people. */
export const writeReports = Effect.fnUntraced(function* (
  wanted: string,
  results: ReadonlyArray<Result>,
  of: {
    readonly backend: string
    readonly document: object
    readonly switches: FencingSwitches
    /** What runs it again; by default `scenario run` of its name. */
    readonly command?: string
  }
) {
  const directory = resolve(wanted)
  yield* Effect.try({
    try: () => mkdirSync(directory, { recursive: true }),
    catch: (cause) => new HarnessError({ step: `make ${directory}`, message: String(cause) })
  })
  const pages: Array<string> = []
  for (const result of results) {
    if (result.outcome === "not run") continue
    const { report } = result
    const name = fileOf(report.drill.name, report.backend, switchesOf(report))
    const file = join(directory, `${name}.json`)
    yield* write(file, yield* toJson(report))
    const runs = [runPage(shownOf(report, file, of.command)), ...(yield* others(directory, report))]
    const page = timelinePage(
      `${report.drill.scenario.title}: ${report.drill.name}`,
      `${report.drill.shows}. Real processes, ${report.backend === "pg" ? "PostgreSQL" : "etcd"} under the lock service.`,
      // Fences on first: what they are for is seen by switching them off.
      runs.toSorted((a, b) => Number(a.title.includes("OFF")) - Number(b.title.includes("OFF")))
    )
    pages.push(yield* write(join(directory, `${name}.html`), page))
  }
  const summary = `scenarios-${of.backend}${fencesOf(of.switches)}`
  yield* write(
    join(directory, `${summary}.xml`),
    junit(
      summary,
      results.map((result) =>
        result.outcome === "not run"
          ? {
              suite: of.backend,
              name: nameOf(result),
              seconds: 0,
              error: `${result.error.step}: ${result.error.message}`
            }
          : {
              suite: `${of.backend}.${result.report.drill.scenario.id}`,
              name: nameOf(result),
              seconds: (result.report.endedAt - result.report.startedAt) / 1_000,
              failure: result.ok
                ? undefined
                : [
                    ...result.report.verdicts.map(({ check, detail, subject }) => `${check} ${subject}: ${detail}`),
                    ...result.report.missing.map((mark) => `promised and never seen: ${mark}`),
                    ...result.report.dealt.flatMap(({ fault, proof }) =>
                      proof === undefined ? [`not seen: ${fault}`] : []
                    )
                  ].join("\n")
            }
      )
    )
  )
  yield* write(join(directory, `${summary}.json`), JSON.stringify(of.document, null, 2))
  return [...new Set(pages)].map((page) => pathToFileURL(page).href)
})
