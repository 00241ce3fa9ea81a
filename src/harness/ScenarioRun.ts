// @effect-diagnostics nodeBuiltinImport:off
/**
 * `scenario run`: use cases on real processes. Independent ones overlap: each lane has a paydb, a lock backend and services
 * of its own, and runs its share one after the other. Most of a run is waiting for leases to run out.
 *
 * Human output goes to stdout, progress to stderr; with `--json` stdout is one document.
 */
import * as NodeHttpClient from "@effect/platform-node/NodeHttpClient"
import { Console, Effect } from "effect"
import { type FencingSwitches, fencingOn } from "../core/Fencing.ts"
import { Exited, exitCodes } from "../services/platform/ExitCodes.ts"
import { run as runDrill } from "./DrillRun.ts"
import { type Drill, drillsOf } from "./Drills.ts"
import { tapTime } from "./HttpTap.ts"
import * as Ground from "./Ground.ts"
import type { BackendKind } from "./LockBackends.ts"
import * as ProcessWorld from "./ProcessWorld.ts"
import { writeReports } from "./RunReports.ts"
import { nameOf, type Result, resultOf } from "./RunResult.ts"

export interface ScenarioOptions {
  readonly scenarios: ReadonlyArray<string>
  readonly backend: BackendKind
  readonly target: Ground.Target
  readonly paymentFencing: boolean
  readonly railFencing: boolean
  readonly rounds: number
  readonly report: string
  readonly json: boolean
}

interface Lane {
  readonly replicated: boolean
  readonly drills: ReadonlyArray<Drill>
}

/** Few processes at a time, and about as long each. */
const lanesOf = (drills: ReadonlyArray<Drill>): ReadonlyArray<Lane> => {
  const third = /^uc-(03b|05|07)/
  const lanes = [
    { replicated: false, drills: drills.filter(({ name }) => /^uc-(01|02|03|06|08)( |$)/.test(name)) },
    { replicated: false, drills: drills.filter(({ name }) => name.startsWith("uc-04")) },
    { replicated: drills.some(({ replicated }) => replicated), drills: drills.filter(({ name }) => third.test(name)) }
  ]
  return lanes.filter((lane) => lane.drills.length > 0)
}

const slug = (name: string) => name.replaceAll(/[^a-z0-9]+/g, "-")

const runLane = Effect.fnUntraced(function* (
  lane: Lane,
  index: number,
  around: {
    readonly ground: Ground.Ground
    readonly options: ScenarioOptions
    readonly say: (text: string) => Effect.Effect<void>
    readonly done: (result: Result) => Effect.Effect<void>
  }
) {
  const { ground, options, say } = around
  const { host, payServer, processes } = ground
  const switches = { payment: options.paymentFencing, rail: options.railFencing }
  const backend = yield* ground.backend(lane.replicated)
  const world = yield* ProcessWorld.make({
    processes,
    backend,
    payServer,
    host,
    database: `paydb_${ground.run.replace("-", "_")}${index + 1}`,
    switches
  })
  for (let round = 1; round <= options.rounds; round++) {
    for (const drill of lane.drills) {
      const { name } = drill
      yield* say(`${name}: ${drill.shows}`)
      const result = yield* runDrill(world, drill, {
        switches,
        id: `${ground.run}${slug(name)}-r${round}`,
        say: (text) => say(`${name}: ${text}`)
      }).pipe(
        Effect.map((report) => resultOf(report, switches, round)),
        Effect.catchTag("HarnessError", (error) =>
          Effect.succeed<Result>({ outcome: "not run", ok: false, drill, error, round })
        )
      )
      yield* around.done(result)
    }
  }
}, Effect.scoped)

export const run = Effect.fnUntraced(
  function* (options: ScenarioOptions) {
    const unknown = options.scenarios.filter((name) => drillsOf(name) === undefined)
    if (unknown.length > 0) {
      yield* Console.error(`there is no scenario ${unknown.join(", ")}: see \`scenario list\``)
      return yield* new Exited({ code: exitCodes.usage })
    }
    const asked = options.scenarios.join(", ")
    // Once, however often it is named.
    const found = [...new Set(options.scenarios.flatMap((name) => drillsOf(name) ?? []))]
    const on = options.paymentFencing && options.railFencing
    const wanted = on ? found : found.filter(({ control }) => control)
    // compose.yaml and the manifests have one backend each, with nobody to take over at our command.
    // Nor are their data in our hands.
    const drills =
      options.target === "processes"
        ? wanted
        : wanted.filter(({ actors, replicated }) => !replicated && !actors.includes("restorer"))
    if (drills.length === 0) {
      yield* Console.error(
        on
          ? `${asked} needs a backend that is all ours: --target processes`
          : `${asked} says nothing with a fence off: only uc-03 does`
      )
      return yield* new Exited({ code: exitCodes.usage })
    }
    const startedAt = tapTime()
    const say = (text: string) =>
      Console.error(`${((tapTime() - startedAt) / 1_000).toFixed(1).padStart(6)} s  ${text}`)
    yield* say(`starting PostgreSQL, ${options.backend === "pg" ? "" : "etcd "}and every service`)
    const ground = yield* Ground.start(options.target, options.backend)
    const results: Array<Result> = []
    const done = (result: Result) =>
      Effect.gen(function* () {
        results.push(result)
        yield* say(line(result))
        for (const text of detail(result)) yield* say(`    ${text}`)
      })
    const lanes = ground.manyBackends ? lanesOf(drills) : [{ replicated: false, drills }]
    yield* Effect.forEach(lanes, (lane, index) => runLane(lane, index, { ground, options, say, done }), {
      // More would only wait for each other on two cores.
      concurrency: 2,
      discard: true
    })
    const seconds = (tapTime() - startedAt) / 1_000
    const document = documentOf(options, results, seconds)
    const files = yield* writeReports(options.report, results, {
      backend: options.backend,
      document,
      switches: switchesOf(options)
    })
    if (options.json) yield* Console.log(JSON.stringify(document))
    else {
      for (const result of results.toSorted((a, b) => nameOf(a).localeCompare(nameOf(b))))
        yield* Console.log(line(result))
      yield* Console.log(
        `\n${document.verdict}: ${results.filter(({ ok }) => ok).length} of ${results.length} as expected, ${seconds.toFixed(0)} s`
      )
      for (const file of files) yield* Console.log(file)
    }
    yield* say("stopping everything")
    if (results.some(({ outcome }) => outcome === "not run")) return yield* new Exited({ code: exitCodes.unexpected })
    if (document.verdict !== "as expected") return yield* new Exited({ code: exitCodes.findings })
  },
  Effect.scoped,
  // @effect-diagnostics-next-line strictEffectProvide:off (this is the entry point of the command)
  Effect.provide(NodeHttpClient.layerUndici)
)

const switchesOf = (options: ScenarioOptions): FencingSwitches =>
  options.paymentFencing && options.railFencing
    ? fencingOn
    : { payment: options.paymentFencing, rail: options.railFencing }

const line = (result: Result): string => {
  const name = nameOf(result).padEnd(18)
  if (result.outcome === "not run") return `${name} NOT RUN: ${result.error.step}: ${result.error.message}`
  const { report } = result
  const seconds = ((report.endedAt - report.startedAt) / 1_000).toFixed(1)
  const figures = Object.entries(report.figures).map(([what, value]) => `, ${what} ${value}`)
  return `${name} ${result.ok ? result.outcome : result.outcome.toUpperCase()} (${seconds} s, ${report.dealt.length} faults${figures.join("")})`
}

const detail = (result: Result): ReadonlyArray<string> =>
  result.outcome === "not run"
    ? []
    : [
        ...(result.outcome === "violated" || result.outcome === "corrupted"
          ? result.report.verdicts.map(({ check, detail: text, subject }) => `${check} ${subject}: ${text}`)
          : []),
        ...(result.ok ? [] : result.report.missing.map((name) => `promised and never seen: ${name}`)),
        ...(result.ok
          ? []
          : result.report.dealt.flatMap(({ fault, proof }) =>
              proof === undefined ? [`not seen to take: ${fault}`] : []
            ))
      ]

/** The one document of `scenario run --json`. */
export const documentOf = (
  options: Pick<ScenarioOptions, "backend" | "paymentFencing" | "railFencing">,
  results: ReadonlyArray<Result>,
  seconds: number
) => ({
  backend: options.backend,
  paymentFencing: options.paymentFencing,
  railFencing: options.railFencing,
  seconds: Math.round(seconds),
  verdict: results.every(({ ok }) => ok) ? "as expected" : "differs",
  runs: results.map((result) => ({
    name: nameOf(result),
    round: result.round,
    outcome: result.outcome,
    ...(result.outcome === "not run"
      ? { error: `${result.error.step}: ${result.error.message}` }
      : {
          scenario: result.report.drill.scenario.id,
          seconds: Math.round(result.report.endedAt - result.report.startedAt) / 1_000,
          faults: result.report.dealt,
          marks: result.report.marks,
          missing: result.report.missing,
          violations: result.report.verdicts,
          figures: result.report.figures,
          settledAfterMillis: result.report.settledAfterMillis
        })
  }))
})
