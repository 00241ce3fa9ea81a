/**
 * `soak`: 200 payouts, 12 workers, and faults drawn from a seed all the time: stops, deaths, cuts, outages of the lock
 * backend, a rail that misbehaves. Then everything heals and progress is demanded.
 *
 * With both fences off it must find what the fences are for: in one of three tries, each of which has seen a holder that was
 * stopped past its lease inside its section, or the try proves nothing.
 *
 * Nothing is waited for without a bound that is told when it is over; the worst case of a try is that of its bounds.
 */
import * as NodeHttpClient from "@effect/platform-node/NodeHttpClient"
import { Clock, Console, Effect, Exit, Fiber, Schedule, Scope } from "effect"
import type { HttpClient } from "effect/http"
import { type AccountId, lockKeyOf } from "../core/payment/Payout.ts"
import { Exited, exitCodes } from "../services/platform/ExitCodes.ts"
import { mix } from "../sim/Draw.ts"
import type { Verdict } from "../sim/Judge.ts"
import { Marks } from "../sim/Marks.ts"
import { simplest } from "../sim/RunSpec.ts"
import type { DrillReport, Observed } from "./DrillRun.ts"
import { soakDrill } from "./Drills.ts"
import * as Ground from "./Ground.ts"
import { tapTime } from "./HttpTap.ts"
import type { BackendKind } from "./LockBackends.ts"
import { HarnessError, waitUntil } from "./Processes.ts"
import * as ProcessWorld from "./ProcessWorld.ts"
import { judgeRun } from "./RunJudge.ts"
import { markRun } from "./RunMarks.ts"
import { groundOf, writeReports } from "./RunReports.ts"
import type { Result } from "./RunResult.ts"
import { makeFaults } from "./SoakFaults.ts"
import { makeFleet, makeRoster, within } from "./SoakFleet.ts"
import { ACCOUNTS, BOUND_MILLIS, makeOrders, misbehavingRail, type Say, settle } from "./SoakOrders.ts"
import { concluded, isDecided, openOf, type StopPastLease, stopsPastLease } from "./SoakProof.ts"
import type { Span, StartOptions } from "./World.ts"

export interface SoakOptions {
  readonly minutes: number
  /** Undefined: a fresh one, printed. */
  readonly seed: number | undefined
  readonly backend: BackendKind
  readonly paymentFencing: boolean
  readonly railFencing: boolean
  readonly payouts: number
  readonly workers: number
  readonly report: string
  readonly json: boolean
}

const TRIES = 3
/** Longer than any stop of the proxy: that is what finality stands for. */
const FINALITY_MILLIS = 6_000
const servers = ["lock-server", "payment-resource", "rail", "rail-proxy", "reconciler"]
const checks = ["claim", "submit", "seal", "post", "fail", "ambiguous", "lookup", "resolve"]
  .map((op) => `${op}.before:note`)
  .join(",")

/** What everybody is like but for faults. A poll is two requests, and there are twelve who poll. */
const usualWorker = {
  points: checks,
  settings: { PAYOUT_EXECUTOR_CONCURRENCY: "2", PAYOUT_EXECUTOR_POLL_INTERVAL: "800" }
}
const usual = (name: string): StartOptions =>
  /^w\d/.test(name) ? usualWorker : name === "reconciler" ? { points: checks } : {}
/** One that is to be stopped in its section looks for work more often than the others, or it waits for minutes. */
const stale: StartOptions = {
  points: `${checks},submit.before:stop`,
  settings: {
    PAYOUT_EXECUTOR_CONCURRENCY: "1",
    PAYOUT_EXECUTOR_POLL_INTERVAL: "100",
    PAYOUT_EXECUTOR_STALE_HOLDER: "true"
  }
}

const total = (counts: ReadonlyMap<string, number>) => [...counts.values()].reduce((sum, one) => sum + one, 0)
const listed = (counts: ReadonlyMap<string, number>) =>
  [...counts].map(([name, times]) => `${times} ${name}`).join(", ")

export const run = Effect.fnUntraced(
  function* (options: SoakOptions) {
    const seed = options.seed ?? (yield* Clock.currentTimeMillis) % 0x7fffffff
    const startedAt = tapTime()
    const say: Say = (text) => Console.error(`${((tapTime() - startedAt) / 1_000).toFixed(1).padStart(6)} s  ${text}`)
    const switches = { payment: options.paymentFencing, rail: options.railFencing }
    const on = switches.payment && switches.rail
    const fences = on
      ? "fences on"
      : `fences: (a) ${switches.payment ? "on" : "OFF"}, (c) ${switches.rail ? "on" : "OFF"}`
    yield* say(
      `seed ${seed}: ${options.payouts} payouts, ${options.workers} workers, ${options.minutes} minutes on ${options.backend}, ${fences}`
    )
    const tries: Array<Try> = []
    for (let attempt = 0; attempt < (on ? 1 : TRIES); attempt++) {
      if (!on) yield* say(`try ${attempt + 1} of at most ${TRIES}`)
      const tried = yield* soak({ ...options, seed: mix(seed, attempt) }, attempt, say)
      tries.push(tried)
      if (isDecided(tried, switches)) break
    }
    const last = tries.at(-1)
    if (last === undefined) return
    const { missed, report, took, verdicts } = last
    const { outcome, why } = concluded(tries, switches)
    const good = outcome === "held" || outcome === "corrupted"
    const situations = Object.entries(report.marks).filter(([name]) => !took.has(name))
    const document = {
      seed,
      backend: options.backend,
      ...switches,
      minutes: options.minutes,
      tries: tries.length,
      payouts: report.history.payouts.length,
      faults: Object.fromEntries(took),
      notTaken: Object.fromEntries(missed),
      situations: Object.fromEntries(situations),
      heldPastLease: tries.map(({ stops }) => stops.length),
      overtaken: tries.map(({ stops }) => stops.filter(({ overtaken }) => overtaken).length),
      settledAfterMillis: report.settledAfterMillis,
      violations: verdicts,
      outcome,
      why
    }
    // Which outcome goes with which `ok` is what `good` says.
    const result = { outcome, ok: good, report, round: 1 } as Result
    const files = yield* writeReports(options.report, [result], {
      backend: `${options.backend}-soak`,
      document,
      switches,
      command: `node dist/main.js soak --minutes ${options.minutes} --seed ${seed} --payouts ${options.payouts} --workers ${options.workers} ${groundOf(options.backend, switches)}`
    })
    if (options.json) yield* Console.log(JSON.stringify(document))
    else {
      const rows = (counts: Iterable<readonly [string, number]>) =>
        Effect.forEach(counts, ([name, times]) => Console.log(`${String(times).padStart(6)}  ${name}`), {
          discard: true
        })
      yield* Console.log(`faults: ${total(took)} took, ${total(missed)} did not`)
      yield* rows([...took].toSorted())
      if (missed.size > 0) yield* Console.log(`did not take: ${listed(missed)}`)
      yield* Console.log("what was seen:")
      yield* rows(situations)
      for (const { check, detail, subject } of verdicts.slice(0, 50)) {
        yield* Console.log(`${outcome === "violated" ? "VIOLATION " : ""}${check} ${subject}: ${detail}`)
      }
      if (verdicts.length > 50) yield* Console.log(`and ${verdicts.length - 50} more, in the report`)
      yield* Console.log(`${good ? outcome : outcome.toUpperCase()} (${why}), seed ${seed}`)
      for (const file of files) yield* Console.log(file)
    }
    if (!good) return yield* new Exited({ code: exitCodes.findings })
  },
  Effect.scoped,
  // @effect-diagnostics-next-line strictEffectProvide:off (this is the entry point of the command)
  Effect.provide(NodeHttpClient.layerUndici)
)

interface Try {
  readonly report: DrillReport
  readonly verdicts: ReadonlyArray<Verdict>
  readonly stops: ReadonlyArray<StopPastLease>
  readonly took: ReadonlyMap<string, number>
  readonly missed: ReadonlyMap<string, number>
}

const soak = Effect.fnUntraced(function* (
  options: SoakOptions & { readonly seed: number },
  attempt: number,
  say: Say
): Effect.fn.Return<Try, HarnessError, Scope.Scope | HttpClient.HttpClient> {
  const switches = { payment: options.paymentFencing, rail: options.railFencing }
  const on = switches.payment && switches.rail
  const workers = Array.from({ length: options.workers }, (_, i) => `w${i + 1}`)
  const names = [...servers, ...workers]
  const faultMillis = options.minutes * 60_000
  const marks = new Marks()

  // ---- everything starts

  const ground = yield* Ground.start("processes", options.backend)
  const roster = makeRoster(ground.processes)
  const world = yield* ProcessWorld.make({
    processes: roster.processes,
    backend: yield* ground.backend(false),
    payServer: ground.payServer,
    database: `soak_${attempt + 1}`,
    switches,
    policy: { finalityWindowMillis: FINALITY_MILLIS, minNotFound: 2, minSpacingMillis: 500 }
  })
  const fleet = yield* makeFleet({ world, roster, names, usual })
  yield* world.begin(1)
  const beganAt = tapTime()
  yield* Effect.forEach(names.slice(0, servers.length), (name) => fleet.start(name, usual(name)), {
    concurrency: 2,
    discard: true
  })
  yield* misbehavingRail(world, options.seed)
  yield* Effect.forEach(workers, (name) => fleet.start(name, usual(name)), { concurrency: 2, discard: true })
  yield* say("everything runs")

  // ---- orders and faults, all the time

  const { accounts, order, states } = yield* makeOrders(world, options.payouts)
  let ordered = 0
  const beginning = tapTime()
  const ordering = yield* Effect.forkScoped(
    Effect.gen(function* () {
      while (ordered < options.payouts) {
        yield* Effect.retry(order(ordered + 1), Schedule.spaced("500 millis"))
        ordered++
        yield* Effect.sleep(Math.max(0, beginning + (ordered * faultMillis * 0.8) / options.payouts - tapTime()))
      }
    })
  )
  const faulting = yield* Scope.fork(yield* Effect.scope)
  const faults = yield* Scope.provide(
    makeFaults({ world, fleet, workers, stale, seed: options.seed, marks, say }),
    faulting
  )
  const { ledger } = faults
  // Registered last, so first: what was dealt is not undone when everything ends anyway.
  yield* Effect.addFinalizer(() => fleet.end)
  const storm = yield* Effect.forkScoped(faults.storm)
  const telling = yield* Effect.forkScoped(
    Effect.gen(function* () {
      yield* Effect.sleep("30 seconds")
      const all = yield* Effect.orElseSucceed(states, () => [])
      yield* say(
        `${total(ledger.took)} faults took, ${total(ledger.missed)} did not, ${ledger.busy.size} under way; ${all.length} payouts ordered, ${openOf(all).count} open`
      )
    }).pipe(Effect.forever)
  )
  yield* Effect.sleep(faultMillis)
  yield* Fiber.interruptAll([storm, telling, ordering])

  // With a fence off a try without such a holder proves nothing. One of two or three does the whole harm: the others were
  // continued while a server was down, or before their successor was done.
  const wanted = on ? 1 : 4
  const logs = () => Object.fromEntries(names.map((name) => [name, world.logOf(name)]))
  let extra = 0
  const stopsSoFar = () => stopsPastLease({ calls: world.calls, logs: logs() }).length
  for (let more = 1; more <= 4 && stopsSoFar() < wanted; more++) {
    const free = workers.find((name) => !ledger.busy.has(name))
    if (free === undefined) break
    yield* say(`one more holder is to be stopped past its lease (${free})`)
    const feed = Effect.suspend(() => Effect.ignore(order(options.payouts + ++extra)))
    yield* faults.hold(free, Effect.andThen(feed, feed))
    yield* Effect.ignore(
      waitUntil(
        `${free} was stopped past its lease`,
        Effect.sync(() => !ledger.busy.has(free)),
        "120 seconds"
      )
    )
  }

  // ---- everything heals

  yield* say(`the faults are over${ledger.busy.size > 0 ? `, but for those of ${[...ledger.busy].join(", ")}` : ""}`)
  yield* faults.over
  yield* ledger.idle.pipe(
    within("120 seconds", "every fault is undone"),
    Effect.catchTag("HarnessError", ({ message, step }) => say(`${step}: ${message}: ${[...ledger.busy].join(", ")}`))
  )
  // Waited for from outside: what is in a finalizer can not be interrupted.
  const closing = yield* Effect.forkScoped(Scope.close(faulting, Exit.void))
  yield* within("120 seconds", `the faults of ${[...ledger.busy].join(", ")} are given up`)(Fiber.join(closing))
  for (const proof of yield* fleet.heal) yield* say(`healing: ${proof}`)
  yield* notLateByOurselves(world.spans)
  const rest = new Set(Array.from({ length: options.payouts - ordered }, (_, i) => ordered + 1 + i))
  let refusal = ""
  yield* Effect.forEach(
    [...rest],
    (n) =>
      Effect.retry(order(n), { times: 3 }).pipe(
        Effect.andThen(Effect.sync(() => rest.delete(n))),
        Effect.catchTag("HarnessError", ({ message, step }) =>
          Effect.sync(() => void (refusal = `${step}: ${message}`))
        )
      ),
    { concurrency: 4, discard: true }
  ).pipe(within("60 seconds", "order what is left"), Effect.ignore)
  const healedAt = tapTime()
  yield* say(
    `healed: ${total(ledger.took)} faults took, ${total(ledger.missed)} did not; now all ${options.payouts} payouts have to be settled within ${BOUND_MILLIS / 1_000} s`
  )

  // ---- progress

  const settled = yield* settle({ states, atLeast: options.payouts - rest.size, since: healedAt, say })
  const settledAfterMillis = Math.round(tapTime() - healedAt)
  // A worker that was told to stop first finishes what it is at.
  yield* Effect.forEach(workers, (name) => world.stop(name), { concurrency: "unbounded", discard: true }).pipe(
    within("60 seconds", "stop the workers")
  )
  const keys = new Set([...accounts].map((account) => lockKeyOf(account as AccountId)))
  const history = yield* within("120 seconds", "collect what happened")(world.collect({ accounts, keys, settled }))
  const observed: Observed = {
    history,
    calls: [...world.calls],
    spans: world.spans.map((span) => ({ ...span, to: Math.min(span.to, tapTime()) })),
    logs: logs()
  }
  markRun(marks, observed)
  const stops = stopsPastLease(observed)
  const spec = {
    ...simplest,
    scenario: "uc-03",
    seed: options.seed & 0x7fffffff,
    workers: options.workers,
    accounts: ACCOUNTS,
    payouts: options.payouts,
    paymentFencing: switches.payment,
    railFencing: switches.rail
  }
  const verdicts: ReadonlyArray<Verdict> = [
    ...judgeRun({ ...observed, spec, paysLate: false, settled, bound: BOUND_MILLIS }),
    ...[...rest].map((n) => ({ check: "LIVE-01", subject: `order ${n}`, detail: `could not be ordered: ${refusal}` }))
  ]
  yield* say(
    `${verdicts.length} violations; ${stops.length} stops past the lease inside a section, ${stops.filter(({ overtaken }) => overtaken).length} of them overtaken; ${settled ? `all settled ${settledAfterMillis} ms after the healing` : "NOT ALL SETTLED"}`
  )
  const report: DrillReport = {
    ...observed,
    drill: soakDrill,
    backend: options.backend,
    spec,
    startedAt: beganAt,
    endedAt: tapTime(),
    dealt: [],
    marks: marks.toRecord(),
    missing: [],
    verdicts,
    figures: { "stops past the lease": stops.length, "faults that did not take": total(ledger.missed) },
    settledAfterMillis
  }
  return { report, verdicts, stops, took: ledger.took, missed: ledger.missed }
}, Effect.scoped)

/** A proxy that is stopped for longer than finality stands for pays late: then the machine was at fault, not the system. */
const notLateByOurselves = (spans: ReadonlyArray<Span>): Effect.Effect<void, HarnessError> => {
  const longest = Math.max(
    0,
    ...spans.flatMap(({ from, kind, lane, to }) => (kind === "pause" && lane === "rail-proxy" ? [to - from] : []))
  )
  return longest < FINALITY_MILLIS - 1_000
    ? Effect.void
    : Effect.fail(
        new HarnessError({
          step: "stop the proxy",
          message: `it stood for ${Math.round(longest)} ms, which is longer than it may: the machine is too busy`
        })
      )
}
