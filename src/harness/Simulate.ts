// @effect-diagnostics nodeBuiltinImport:off
/** The subcommands of `sim`. Human output on stdout, progress on stderr; exit 5 when something was found. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs"
import { Clock, Console, Effect } from "effect"
import type { Failure } from "../sim/Batch.ts"
import { distinct, faultsOf, plansOf, smallWorld } from "../sim/Exhaust.ts"
import { run as simulate } from "../sim/Run.ts"
import { fromLine, type RunSpec, toLine } from "../sim/RunSpec.ts"
import { type Scenario, scenarioOf, scenarios } from "../sim/Scenario.ts"
import { phrases, tell } from "../sim/Story.ts"
import { Exited, exitCodes } from "../services/platform/ExitCodes.ts"
import { mutantOf, mutants as allMutants } from "./Mutants.ts"
import { timeline } from "./Report.ts"
import type { SavedRun } from "./SavedRun.ts"
import type { Job } from "./SimJob.ts"
import { type Edit, runJobs, type SimThreadDied, type Sum } from "./SimPool.ts"

interface World {
  readonly paymentFencing: boolean
  readonly railFencing: boolean
  readonly guardsOff: boolean
  readonly wire: "typed" | "http"
}

const fixedOf = ({ guardsOff, paymentFencing, railFencing, wire }: World): Partial<RunSpec> => ({
  paymentFencing,
  railFencing,
  guards: !guardsOff,
  wire
})

const findings = new Exited({ code: exitCodes.findings })

const scenariosOf = (id: string): Effect.Effect<ReadonlyArray<Scenario>, Exited> =>
  id === "all"
    ? Effect.succeed(scenarios)
    : scenarios.some((one) => one.id === id)
      ? Effect.succeed([scenarioOf(id)])
      : Effect.andThen(
          Console.error(`there is no scenario ${id}: ${scenarios.map((one) => one.id).join(", ")} or all`),
          Effect.fail(new Exited({ code: exitCodes.usage }))
        )

/** A seed that nobody has chosen, from the clock: printed, so that the batch can be had again. */
const freshSeed = Effect.map(Clock.currentTimeMillis, (now) => now % 0x7fffffff)

const died = ({ message }: SimThreadDied) =>
  Effect.andThen(
    Console.error(`a simulating thread died: ${message}`),
    Effect.fail(new Exited({ code: exitCodes.unexpected }))
  )

const perChunk = 100

/** A line on stderr every two seconds of work. */
const progress = (what: string, total: number) => {
  let last = process.hrtime.bigint()
  return (sum: Sum): void => {
    const now = process.hrtime.bigint()
    if (now - last < 2_000_000_000n) return
    last = now
    const perSecond = sum.runs / Math.max(sum.cpuSeconds, 0.001)
    process.stderr.write(`${what}: ${sum.runs} of ${total} runs, ${perSecond.toFixed(0)} per CPU-second\n`)
  }
}

const quoted = (line: string): string => `sim replay '${line.replaceAll("'", `'\\''`)}'`

const hours = (micros: number): number => micros / 3.6e9

const summary = (sum: Sum): ReadonlyArray<string> => [
  `${sum.runs} runs in ${sum.cpuSeconds.toFixed(1)} CPU-seconds (${sum.wallSeconds.toFixed(1)} s): ${(sum.runs / sum.cpuSeconds).toFixed(0)} runs per CPU-second`,
  `${hours(sum.micros).toFixed(1)} simulated hours, ${((hours(sum.micros) * 3600) / sum.cpuSeconds).toFixed(0)} simulated hours per CPU-hour`,
  `${sum.calls} calls between nodes, ${sum.slices} slices; ${sum.lockChecked} lock histories searched by both checkers, ${sum.lockDisagreed} disagreements with the oracle`
]

const marksTable = (sum: Sum, promised: ReadonlyArray<string>): ReadonlyArray<string> => {
  const marks = sum.marks.toRecord()
  const names = [...new Set([...promised, ...Object.keys(marks)])].sort()
  return names.map(
    (name) => `  ${String(marks[name] ?? 0).padStart(8)}  ${name}${promised.includes(name) ? "" : " (not promised)"}`
  )
}

const failureText = (failure: Failure): ReadonlyArray<string> => {
  const spec = fromLine(failure.line)
  const told = tell(simulate(spec, { keepTrace: true, lockHistory: true }))
  return [
    ...failure.verdicts.map(({ check, detail, subject }) => `VIOLATION ${check} ${subject}: ${detail}`),
    "",
    `shrunk to ${spec.faults.length} fault${spec.faults.length === 1 ? "" : "s"} (${failure.shrinks} shrinks): ${phrases(spec.faults).join("; ")}`,
    "",
    ...told,
    "",
    `trace hash ${failure.hash}`,
    quoted(failure.line)
  ]
}

const writeReport = (directory: string | undefined, line: string): Effect.Effect<void> =>
  directory === undefined
    ? Effect.void
    : Effect.flatMap(
        Effect.sync(() => {
          mkdirSync(directory, { recursive: true })
          const file = `${directory}/timeline.html`
          writeFileSync(file, timeline(runsToCompare(fromLine(line))))
          return file
        }),
        (file) => Console.log(`timeline: ${file}`)
      )

/** The run as it is, and the same plan with both fences on: the one switch that the argument is about. */
const runsToCompare = (spec: RunSpec) => {
  const kept = { keepTrace: true, lockHistory: true }
  const own = simulate(spec, kept)
  if (spec.paymentFencing && spec.railFencing && spec.guards) return [own]
  return [own, simulate({ ...spec, paymentFencing: true, railFencing: true, guards: true }, kept)]
}

// -----------------------------------------------------------------------------
// run
// -----------------------------------------------------------------------------

export const run = Effect.fnUntraced(function* (
  flags: World & {
    readonly scenario: string
    readonly runs: number
    readonly seed: number | undefined
    readonly workers: number | undefined
    readonly mutant: string | undefined
    readonly report: string | undefined
    readonly json: boolean
  }
) {
  const chosen = yield* scenariosOf(flags.scenario)
  const seed = flags.seed ?? (yield* freshSeed)
  const mutant = flags.mutant === undefined ? undefined : mutantOf(flags.mutant)
  if (flags.mutant !== undefined && mutant === undefined) {
    yield* Console.error(`there is no mutant ${flags.mutant}`)
    return yield* new Exited({ code: exitCodes.usage })
  }
  let bad = false
  for (const scenario of chosen) {
    if (!(yield* batch(scenario, seed, flags, mutant?.edits))) bad = true
  }
  if (bad) return yield* findings
})

const batch = Effect.fnUntraced(function* (
  scenario: Scenario,
  seed: number,
  flags: World & {
    readonly runs: number
    readonly workers: number | undefined
    readonly report: string | undefined
    readonly json: boolean
  },
  mutant: ReadonlyArray<Edit> | undefined
) {
  const jobs: Array<Job> = []
  for (let from = 0; from < flags.runs; from += perChunk) {
    const chunk = jobs.length
    jobs.push({
      kind: "chunk",
      scenario: scenario.id,
      fixed: fixedOf(flags),
      seed,
      chunk,
      runs: Math.min(perChunk, flags.runs - from),
      // traps cost as much as the run itself: one chunk in fifty is enough to name a leak
      traps: chunk % 50 === 0
    })
  }
  if (!flags.json) yield* Console.log(`${scenario.id}: ${scenario.title}, ${flags.runs} runs, seed ${seed}`)
  const sum = yield* runJobs({
    jobs,
    workers: flags.workers,
    mutant,
    onProgress: progress(scenario.id, flags.runs)
  }).pipe(Effect.catchTag("SimThreadDied", died))
  const fencing = flags.paymentFencing && flags.railFencing && !flags.guardsOff
  const failure = sum.failure?.result.failure
  // A batch of a few runs promises nothing, and one that is meant to fail neither.
  const missing = failure === undefined && fencing && flags.runs >= 1_000 ? sum.marks.missing(scenario.promises) : []
  const disagreed = failure === undefined && sum.lockDisagreed > 0
  if (flags.json) {
    yield* Console.log(
      JSON.stringify({
        scenario: scenario.id,
        seed,
        runs: sum.runs,
        cpuSeconds: sum.cpuSeconds,
        wallSeconds: sum.wallSeconds,
        simulatedHours: hours(sum.micros),
        lockChecked: sum.lockChecked,
        lockDisagreed: sum.lockDisagreed,
        marks: sum.marks.toRecord(),
        missing,
        foundAfterRuns: foundAfter(sum),
        failure
      })
    )
  } else {
    for (const line of summary(sum)) yield* Console.log(line)
    for (const line of marksTable(sum, scenario.promises)) yield* Console.log(line)
    if (failure === undefined) yield* Console.log("no violation")
    else {
      yield* Console.log(`a violation after ${foundAfter(sum)} runs`)
      for (const line of failureText(failure)) yield* Console.log(line)
    }
    for (const name of missing) yield* Console.log(`PROMISED AND NEVER SEEN: ${name}`)
    if (disagreed) yield* Console.log("THE LOCK CHECKERS DISAGREE")
  }
  if (failure !== undefined) yield* writeReport(flags.report, failure.line)
  return failure === undefined && missing.length === 0 && !disagreed
})

/** Runs until the first failure, in the order of the jobs. */
const foundAfter = ({ failure }: Sum): number | null =>
  failure === undefined ? null : failure.job * perChunk + failure.result.runs

// -----------------------------------------------------------------------------
// exhaust
// -----------------------------------------------------------------------------

export const exhaust = Effect.fnUntraced(function* (
  flags: World & {
    readonly scenario: string
    readonly faults: number
    readonly workers: number | undefined
    readonly report: string | undefined
    readonly json: boolean
  }
) {
  const chosen = yield* scenariosOf(flags.scenario)
  if (flags.faults !== 1 && flags.faults !== 2) {
    yield* Console.error("--faults is 1 or 2")
    return yield* new Exited({ code: exitCodes.usage })
  }
  let bad = false
  for (const scenario of chosen) {
    const spec = smallWorld(scenario.id, fixedOf(flags))
    const { faults, found, harmless } = distinct(spec, faultsOf(spec))
    const plans = plansOf(faults, flags.faults)
    if (!flags.json) {
      yield* Console.log(
        `${scenario.id}: ${found} faults, ${harmless} of them change nothing, ${faults.length} different; ${plans.length} runs`
      )
    }
    const jobs: Array<Job> = []
    const size = Math.max(10, Math.ceil(plans.length / 64))
    for (let from = 0; from < plans.length; from += size) {
      jobs.push({ kind: "exhaust", spec, part: jobs.length, plans: plans.slice(from, from + size) })
    }
    const sum = yield* runJobs({ jobs, workers: flags.workers, onProgress: progress(scenario.id, plans.length) }).pipe(
      Effect.catchTag("SimThreadDied", died)
    )
    const failure = sum.failure?.result.failure
    if (failure !== undefined) bad = true
    if (flags.json) {
      yield* Console.log(
        JSON.stringify({
          scenario: scenario.id,
          faults: found,
          harmless,
          different: faults.length,
          runs: sum.runs,
          cpuSeconds: sum.cpuSeconds,
          failure
        })
      )
    } else {
      for (const line of summary(sum)) yield* Console.log(line)
      for (const line of failure === undefined ? ["no violation"] : failureText(failure)) yield* Console.log(line)
    }
    if (failure !== undefined) yield* writeReport(flags.report, failure.line)
  }
  if (bad) return yield* findings
})

// -----------------------------------------------------------------------------
// replay, list, mutants
// -----------------------------------------------------------------------------

/** A line, a file that holds one, or a whole pasted `sim replay '..'`. */
const specFrom = (text: string): RunSpec => {
  const content = existsSync(text) ? readFileSync(text, "utf8") : text
  const from = content.indexOf("{")
  const to = content.lastIndexOf("}")
  if (from < 0 || to < from) throw new Error("no run in it: a run is a JSON object")
  return fromLine(content.slice(from, to + 1))
}

export const replay = Effect.fnUntraced(function* (flags: {
  readonly line: string
  readonly wire: "typed" | "http" | undefined
  readonly trace: boolean
  readonly report: string | undefined
  readonly json: boolean
}) {
  const saved = existsSync(flags.line) ? yield* savedRun(flags.line) : undefined
  if (saved !== undefined) return yield* replayRecorded(saved, flags)
  const spec = yield* Effect.try({ try: () => specFrom(flags.line), catch: (error) => String(error) }).pipe(
    Effect.catch((message) =>
      Effect.andThen(Console.error(message), Effect.fail(new Exited({ code: exitCodes.usage })))
    )
  )
  const ran = simulate(
    { ...spec, ...(flags.wire === undefined ? {} : { wire: flags.wire }) },
    { keepTrace: true, lockHistory: true }
  )
  const { outcome } = ran
  if (flags.json) {
    const { end, hash, hits, marks, micros, verdicts } = outcome
    yield* Console.log(
      JSON.stringify({ run: JSON.parse(toLine(outcome.spec)), hash, end, verdicts, hits, marks, micros })
    )
  } else {
    if (flags.trace) for (const line of ran.cluster.world.trace.lines()) yield* Console.log(line)
    for (const line of tell(ran)) yield* Console.log(line)
    for (const { check, detail, subject } of outcome.verdicts) {
      yield* Console.log(`VIOLATION ${check} ${subject}: ${detail}`)
    }
    yield* Console.log(`trace hash ${outcome.hash}`)
  }
  yield* writeReport(flags.report, toLine(outcome.spec))
  if (outcome.verdicts.length > 0) return yield* findings
})

/** A real run that was saved by `scenario run`, if the file is one. */
const savedRun = (file: string) =>
  Effect.gen(function* () {
    if (!readFileSync(file, "utf8").includes('"dlock-run-1"')) return undefined
    const { read } = yield* Effect.promise(() => import("./SavedRun.ts"))
    const found = yield* read(file)
    return found.kind === "run" ? found.run : undefined
  }).pipe(
    Effect.catchTag("HarnessError", ({ message, step }) =>
      Effect.andThen(Console.error(`${step}: ${message}`), Effect.fail(new Exited({ code: exitCodes.usage })))
    )
  )

/** What befell real processes, dealt again in virtual time; exit 5 when the two come to different verdicts. */
const replayRecorded = Effect.fnUntraced(function* (
  saved: SavedRun,
  flags: { readonly json: boolean; readonly report: string | undefined }
) {
  const { compare } = yield* Effect.promise(() => import("./Recorded.ts"))
  const { recorded, same, simulated, spec } = compare(saved)
  if (flags.json) yield* Console.log(JSON.stringify({ recorded, simulated, same, run: JSON.parse(toLine(spec)) }))
  else {
    yield* Console.log(`recorded:  ${recorded.join(", ") || "every promise kept"}`)
    yield* Console.log(`simulated: ${simulated.join(", ") || "every promise kept"}`)
    for (const text of tell(simulate(spec, { keepTrace: true, lockHistory: true }))) yield* Console.log(text)
    yield* Console.log(quoted(toLine(spec)))
  }
  yield* writeReport(flags.report, toLine(spec))
  if (!same) return yield* findings
})

export const list = Effect.fnUntraced(function* (flags: { readonly json: boolean }) {
  if (flags.json) {
    yield* Console.log(
      JSON.stringify(
        scenarios.map(({ expectation, faults, id, promises, title }) => ({ id, title, expectation, faults, promises }))
      )
    )
    return
  }
  for (const { expectation, faults, id, promises, title } of scenarios) {
    yield* Console.log(`${id.padEnd(7)} ${title}\n        ${expectation}`)
    const kinds = Object.entries(faults).map(([name, percent]) => `${name} ${percent} %`)
    yield* Console.log(`        faults: ${kinds.length === 0 ? "none" : kinds.join(", ")}`)
    yield* Console.log(`        promises: ${promises.join(", ")}\n`)
  }
})

export const mutants = Effect.fnUntraced(function* (flags: {
  readonly only: string | undefined
  readonly runs: number
  readonly seed: number | undefined
  readonly workers: number | undefined
  readonly json: boolean
}) {
  const seed = flags.seed ?? 1
  const chosen = allMutants.filter(({ id }) => flags.only === undefined || id === flags.only)
  let alive = 0
  let killed = 0
  for (const mutant of chosen) {
    let foundBy: string | undefined
    let runs = 0
    for (const attempt of mutant.under ?? [{ scenario: "uc-03" }, { scenario: "uc-05" }]) {
      const jobs: Array<Job> = []
      const per = mutant.canary === true ? 3 : 50
      // An explained survivor is tried too, to notice when its reason is gone; not for long.
      const most = mutant.canary === true ? 3 : mutant.survives === undefined ? flags.runs : Math.min(200, flags.runs)
      for (let from = 0; from < most; from += per) {
        jobs.push({
          kind: "chunk",
          scenario: attempt.scenario,
          fixed: attempt.fixed ?? {},
          seed,
          chunk: jobs.length,
          runs: per,
          traps: false
        })
      }
      const sum = yield* runJobs({ jobs, workers: flags.workers, mutant: mutant.edits }).pipe(
        Effect.catchTag("SimThreadDied", died)
      )
      runs += sum.failure === undefined ? sum.runs : sum.failure.job * per + sum.failure.result.runs
      const expected = new Set(attempt.expected ?? [])
      const verdicts = sum.failure?.result.failure?.verdicts.filter(({ check }) => !expected.has(check)) ?? []
      if (verdicts[0] !== undefined) {
        foundBy = `${verdicts[0].check} in ${attempt.scenario}`
        break
      }
    }
    if (foundBy !== undefined) killed++
    else if (mutant.survives === undefined) alive++
    const said =
      foundBy !== undefined
        ? `killed after ${runs} runs by ${foundBy}`
        : mutant.survives !== undefined
          ? `survives: ${mutant.survives}`
          : `SURVIVED ${runs} runs and nobody said why`
    yield* Console.log(
      flags.json
        ? JSON.stringify({ id: mutant.id, runs, foundBy: foundBy ?? null, survives: mutant.survives ?? null })
        : `${mutant.id.padEnd(5)} ${mutant.what.padEnd(70)} ${said}`
    )
  }
  const real = killed + alive
  if (!flags.json) yield* Console.log(`${killed} of ${real} killed, ${chosen.length - real} explained survivors`)
  if (alive > 0) return yield* findings
})
