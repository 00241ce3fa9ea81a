/**
 * One run of a use case on a real world: order payouts, deal the faults, see that each took, wait until everything is
 * settled within the bound, collect what truly happened, judge it.
 *
 * A run that could not be carried out fails (`HarnessError`) and says nothing of the system; what it says of the system is
 * in the report.
 */
import { Deferred, Effect, Fiber, type Scope } from "effect"
import type { HttpClient } from "effect/http"
import type { FencingSwitches } from "../core/Fencing.ts"
import type { History } from "../core/History.ts"
import { lockKeyOf, type AccountId } from "../core/payment/Payout.ts"
import type { Verdict } from "../sim/Judge.ts"
import type { Fault } from "../sim/FaultPlan.ts"
import { Marks } from "../sim/Marks.ts"
import { type RunSpec, simplest } from "../sim/RunSpec.ts"
import * as Actors from "./Actors.ts"
import type { BackendKind } from "./LockBackends.ts"
import { type Dealt, isWorker, makeDealer, nodeOf, patience } from "./Dealing.ts"
import type { Drill } from "./Drills.ts"
import { AMOUNT_MINOR, OPENING_MINOR } from "./Experiment.ts"
import { type Call, tapTime } from "./HttpTap.ts"
import { lab, type ProcessWorld } from "./ProcessWorld.ts"
import { HarnessError, type LogRecord, waitUntil } from "./Processes.ts"
import { markRun } from "./RunMarks.ts"
import { restorer } from "./Restorer.ts"
import { judgeRun } from "./RunJudge.ts"
import type { Span } from "./World.ts"

/** What was observed; enough to judge the run again. */
export interface Observed {
  readonly history: History
  readonly calls: ReadonlyArray<Call>
  readonly spans: ReadonlyArray<Span>
  /** Logs by participant. */
  readonly logs: Readonly<Record<string, ReadonlyArray<LogRecord>>>
}

export interface DrillReport extends Observed {
  readonly drill: Drill
  readonly backend: BackendKind
  readonly spec: RunSpec
  readonly startedAt: number
  readonly endedAt: number
  readonly dealt: ReadonlyArray<Dealt>
  readonly marks: Readonly<Record<string, number>>
  /** Promised and never seen. */
  readonly missing: ReadonlyArray<string>
  readonly verdicts: ReadonlyArray<Verdict>
  readonly figures: Readonly<Record<string, number>>
  /** From the last fault's end until all was settled. */
  readonly settledAfterMillis: number
}

const servers = ["lock-server", "payment-resource", "rail", "rail-proxy"]

export const run = Effect.fnUntraced(function* (
  world: ProcessWorld,
  drill: Drill,
  options: {
    readonly switches: FencingSwitches
    /** Tells the accounts of this run from those of others on the same paydb. */
    readonly id: string
    readonly say: (text: string) => Effect.Effect<void>
  }
): Effect.fn.Return<DrillReport, HarnessError, Scope.Scope | HttpClient.HttpClient> {
  const { say, switches } = options
  const spec: RunSpec = { ...drill.spec, paymentFencing: switches.payment, railFencing: switches.rail }
  const marks = new Marks()
  const figures = new Map<string, number>()
  // Whoever a run that failed has left behind would work off what is ordered here.
  yield* Effect.forEach([...world.running().keys()].filter(isWorker), world.stop, {
    concurrency: "unbounded",
    discard: true
  })
  yield* world.begin(spec.proxies)
  const startedAt = tapTime()
  const accounts = new Set<string>()
  const settledOf = Effect.map(
    world.states(accounts),
    (all) => all.length > 0 && all.every(({ state }) => state === "POSTED" || state === "FAILED")
  )

  const { deal, dealt, firstGrant, pending, pointsOf } = makeDealer({ world, drill, marks, say, settled: settledOf })

  const skewOf = (name: string) =>
    spec.faults.reduce(
      (sum, fault) => (fault.kind === "clockError" && fault.node === name ? sum + fault.offsetMillis : sum),
      0
    )
  const begin = (name: string) =>
    world.start(name, {
      points: pointsOf(name),
      skewMillis: skewOf(name),
      settings: isWorker(name)
        ? {
            ...(drill.leaseMillis !== undefined && spec.faults.some((fault) => nodeOf(fault) === name)
              ? { LOCK_DEFAULT_TTL: `${drill.leaseMillis}`, LOCK_SESSION_TTL: `${drill.leaseMillis}` }
              : {}),
            ...(spec.staleHolder && name === "w1" ? { PAYOUT_EXECUTOR_STALE_HOLDER: "true" } : {}),
            // Enough for everybody to get something.
            PAYOUT_EXECUTOR_CONCURRENCY: spec.workers > 2 ? "1" : "4"
          }
        : {}
    })

  const wantedServers = [...servers, ...(spec.proxies > 1 ? ["rail-proxy-2"] : []), "reconciler"]
  const hadSecond = world.running().has("rail-proxy-2")
  if (hadSecond && spec.proxies === 1) yield* world.stop("rail-proxy-2")
  yield* Effect.forEach(
    wantedServers,
    (name) => {
      const now = world.running().get(name)
      // Everybody but w1 follows the second proxy.
      const follows = name === "reconciler" && hadSecond !== spec.proxies > 1
      // One that has been to its point in an earlier run would not come to it again.
      const isArmed = [...pending].some((fault) => nodeOf(fault) === name)
      return now === undefined || now !== pointsOf(name) || isArmed || follows ? begin(name) : Effect.void
    },
    { concurrency: "unbounded", discard: true }
  )
  const { url: railUrl } = yield* world.at("rail")
  yield* world.ask("PUT", `${railUrl}/control`, {
    latency: { fixedMillis: spec.railLatencyMillis, jitterMillis: 0 },
    holdMillis: lab.readTimeoutMillis * 2,
    faults: spec.rail.map(({ kind, paid }) => ({ kind, paid })),
    lookup: { visibilityDelayMillis: spec.railBlindMillis }
  })

  // ---- what is ordered

  let ordered = 0
  const { url: paymentUrl } = yield* world.at("payment-resource")
  const order = Effect.fnUntraced(function* (n: number) {
    const accountId = `${options.id}-${n}`
    // A service that kills itself in this run may just be away.
    const { url } = yield* Effect.orElseSucceed(world.at("payment-resource"), () => ({ url: paymentUrl }))
    if (!accounts.has(accountId)) {
      yield* world.ask("POST", `${url}/v1/accounts`, {
        accountId,
        currency: "EUR",
        openingBalanceMinor: String(spec.funds < simplest.funds ? AMOUNT_MINOR * spec.funds : OPENING_MINOR)
      })
      accounts.add(accountId)
    }
    ordered++
    yield* world.ask(
      "POST",
      `${url}/v1/payouts`,
      { accountId, amountMinor: String(AMOUNT_MINOR), currency: "EUR", beneficiary: "NL00TEST0000000001" },
      `order-${accountId}-${ordered}`
    )
  })
  for (let n = 0; n < spec.payouts; n++) yield* order((n % spec.accounts) + 1)
  const keys = [...accounts].map((account) => lockKeyOf(account as AccountId))
  const stage: Actors.Stage = { world, marks, keys, accounts, say, figures }

  // ---- the faults

  const isPlanted = ({ kind }: Fault) => kind === "drop" || kind === "delay" || kind === "duplicate"
  const early = spec.faults.filter(
    (fault) => fault.kind === "kill" && fault.when.at === "time" && fault.when.millis <= 0
  )
  for (const fault of early) yield* deal(fault)
  const planned = spec.faults.filter((fault) => !early.includes(fault))
  // What is planted on a link is there before the first call.
  const dealing = yield* Effect.forkScoped(Effect.forEach(planned, deal, { concurrency: "unbounded", discard: true }))
  if (planned.some(isPlanted)) yield* Effect.sleep("50 millis")
  /** A fault that can not be dealt ends the run at once. */
  const orNotDealt = <A, E, R>(self: Effect.Effect<A, E, R>) =>
    Effect.raceFirst(self, Effect.andThen(Fiber.join(dealing), Effect.never))

  // ---- the work

  const workers = Array.from({ length: spec.workers }, (_, i) => `w${i + 1}`)
  // The first of two proxies is the first worker's alone.
  const hit = (fault: Fault) => (nodeOf(fault) === "rail-proxy" && spec.proxies > 1 ? "w1" : nodeOf(fault))
  /** Is stopped while it takes over: it comes with the others. */
  const takesOver = (fault: Fault) => fault.kind === "pause" && fault.until === "passed"
  const named = workers.filter((name) => spec.faults.some((fault) => hit(fault) === name && !takesOver(fault)))
  const first = named.length > 0 && named.length < workers.length ? named : workers
  const inside = yield* Deferred.make<void>()
  const restores: Array<Dealt> = []
  const acting = yield* Effect.forEach(drill.actors, (actor) =>
    Effect.forkScoped(
      actor === "visitors"
        ? Actors.visitors(stage, Effect.asVoid(Deferred.succeed(inside, undefined)))
        : actor === "restorer"
          ? restorer(
              { ...stage, order, dealt: (fault) => void restores.push(fault) },
              Effect.asVoid(Deferred.succeed(inside, undefined))
            )
          : Actors.actors[actor](stage)
    )
  )
  // The one who stays in is in before anybody comes, and a copy is older than what is done.
  if (drill.actors.includes("visitors")) yield* Effect.timeoutOption(Deferred.await(inside), "20 seconds")
  if (drill.actors.includes("restorer")) yield* Effect.timeoutOption(Deferred.await(inside), "60 seconds")
  yield* Effect.forEach(first, begin, { concurrency: "unbounded", discard: true })
  const more = spec.reconcilers > 1 ? ["reconciler-2"] : []
  for (const name of more) {
    const isAlone = Effect.sync(() => ![...pending].some((fault) => nodeOf(fault) === "reconciler"))
    yield* Effect.forkScoped(
      Effect.andThen(waitUntil("the first reconciler has come to its point", isAlone, patience), begin(name))
    )
  }
  // A point that nobody has come to may need another payout to be come to.
  let extra = 0
  const feeding = yield* Effect.forkScoped(
    Effect.gen(function* () {
      if (pending.size > 0 && extra < 30 && (yield* settledOf)) {
        extra++
        yield* Effect.ignore(order(spec.accounts + extra))
      }
      yield* Effect.sleep("400 millis")
    }).pipe(Effect.forever)
  )
  if (first.length < workers.length) {
    const reached = Effect.sync(() => ![...pending].some((fault) => first.includes(hit(fault))))
    const pointed = [...pending].some((fault) => first.includes(hit(fault)))
    // Who is to be hit has to be in the section: the others come when that is so.
    yield* orNotDealt(pointed ? waitUntil("the first has come to its point", reached, patience) : firstGrant)
    yield* Effect.forEach(
      workers.filter((name) => !first.includes(name)),
      begin,
      { concurrency: "unbounded", discard: true }
    )
  }

  yield* Fiber.join(dealing)
  yield* Fiber.interrupt(feeding)
  if (early.length > 0) {
    yield* waitUntil(
      "the early faults are over",
      Effect.sync(() => dealt.length >= spec.faults.length),
      "60 seconds"
    )
  }
  const healedAt = tapTime()

  // ---- progress

  const late = () => world.logOf("reconciler").some((record) => record["event"] === "late_execution")
  // It orders more, so what is settled before its end is not all.
  const restored = () => !drill.actors.includes("restorer") || acting.every((fiber) => fiber.pollUnsafe() !== undefined)
  const settled = yield* waitUntil(
    "every payout is settled",
    Effect.map(settledOf, (all) => all && restored() && (!drill.paysLate || late())),
    drill.boundMillis
  ).pipe(
    Effect.as(true),
    Effect.catchTag("HarnessError", () => Effect.succeed(false))
  )
  const settledAfterMillis = Math.round(tapTime() - healedAt)
  if (settled) {
    yield* Effect.forEach(acting, Fiber.join, { concurrency: "unbounded", discard: true }).pipe(
      Effect.timeoutOrElse({
        duration: "30 seconds",
        orElse: () => Effect.fail(new HarnessError({ step: drill.actors.join(", "), message: "not done in time" }))
      })
    )
  }
  // A worker that was told to stop first finishes what it is at: also what it does too late.
  yield* Effect.forEach([...workers, ...more], world.stop, { concurrency: "unbounded", discard: true })

  const asked = new Set(world.calls.flatMap(({ key }) => (key === null ? [] : [key])))
  const history = yield* world.collect({ accounts, keys: asked, settled })
  const names = new Set([...wantedServers, ...workers, ...more])
  const observed: Observed = {
    history,
    calls: [...world.calls],
    spans: world.spans.map((span) => ({ ...span, to: Math.min(span.to, tapTime()) })),
    logs: Object.fromEntries([...names].map((name) => [name, world.logOf(name)]))
  }
  markRun(marks, observed)
  const verdicts = judgeRun({ ...observed, spec, paysLate: drill.paysLate, settled, bound: drill.boundMillis })
  return {
    ...observed,
    drill,
    backend: world.backend.kind,
    spec,
    startedAt,
    endedAt: tapTime(),
    dealt: [...dealt, ...restores],
    marks: marks.toRecord(),
    missing: marks.missing(drill.promises),
    verdicts,
    figures: Object.fromEntries(figures),
    settledAfterMillis
  }
}, Effect.scoped)
