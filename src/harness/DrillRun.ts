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
import type { RunSpec } from "../sim/RunSpec.ts"
import { phrases } from "../sim/Story.ts"
import * as Actors from "./Actors.ts"
import type { BackendKind } from "./LockBackends.ts"
import { crashPointsOf, type Drill } from "./Drills.ts"
import { AMOUNT_MINOR, OPENING_MINOR } from "./Experiment.ts"
import { type Call, tapTime } from "./HttpTap.ts"
import { lab, type ProcessWorld } from "./ProcessWorld.ts"
import { HarnessError, type LogRecord, waitUntil } from "./Processes.ts"
import { markRun } from "./RunMarks.ts"
import { judgeRun } from "./RunJudge.ts"
import type { Span } from "./World.ts"

/** A fault of the plan, and how it was seen to have happened. */
export interface Dealt {
  readonly fault: string
  /** Undefined: it was not. */
  readonly proof: string | undefined
}

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

/** For what has to happen on a machine that may be busy. */
const patience = 120_000
const isWorker = (name: string) => /^w\d+$/.test(name)
const servers = ["lock-server", "payment-resource", "rail", "rail-proxy"]
/** Right before each of these a worker or reconciler has checked that it holds its lock. */
const checks = ["claim", "submit", "seal", "post", "fail", "ambiguous", "lookup", "resolve"].map(
  (op) => `${op}.before:note`
)

type Pointed = Extract<Fault, { readonly kind: "pause" | "kill" }>
const pointOf = (fault: Fault): { readonly name: string; readonly nth: number } | undefined =>
  (fault.kind === "pause" || fault.kind === "kill") && fault.when.at === "point" ? fault.when : undefined
const nodeOf = (fault: Fault): string => ("node" in fault ? fault.node : fault.from)

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
  yield* world.begin(spec.proxies)
  const startedAt = tapTime()

  // ---- who has a fault point yet to come to

  const pending = new Set(spec.faults.filter((fault) => pointOf(fault) !== undefined))
  const pointsOf = (name: string) =>
    [
      ...(isWorker(name) || name === "reconciler" ? checks : []),
      ...[...pending].flatMap((fault) => {
        const at = pointOf(fault)
        return at !== undefined && nodeOf(fault) === name
          ? [`${at.name}:${fault.kind === "kill" ? "kill" : "stop"}#${at.nth}`]
          : []
      })
    ].join(",")
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
      return now === undefined || now !== pointsOf(name) || follows ? begin(name) : Effect.void
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

  const accounts = new Set<string>()
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
        openingBalanceMinor: String(OPENING_MINOR)
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
  const stage: Actors.Stage = { world, marks, keys, say, figures }

  // ---- the faults

  const dealt: Array<Dealt> = []
  const tell = (fault: Fault, proof: string | undefined) =>
    Effect.gen(function* () {
      const [phrase = fault.kind] = phrases([fault])
      dealt.push({ fault: phrase, proof })
      yield* say(`${phrase}: ${proof ?? "NOT SEEN"}`)
    })

  /** The grant that this participant holds, as far as it was told. */
  const grantOf = (node: string) => {
    const last = world.calls.findLast(
      ({ granted, label, owner }) => owner === node && granted !== null && /^lock\.(acquire|renew)$/.test(label)
    )
    if (last === undefined) return undefined
    const expiresAt = Math.max(
      ...world.calls.flatMap((call) =>
        call.granted === last.granted && call.expiresAt !== null ? [call.expiresAt] : [0]
      )
    )
    return { key: last.key, token: last.granted ?? 0n, expiresAt }
  }
  /** Somebody else was granted the key after this token and has finished what there was to do. */
  const succeeded = (key: string | null, token: bigint) =>
    world.calls.some(
      (grant) =>
        grant.label === "lock.acquire" &&
        grant.key === key &&
        grant.granted !== null &&
        grant.granted > token &&
        world.calls.some(
          (call) =>
            /^pay\.(post|fail|ambiguous|resolve)$/.test(call.label) &&
            call.token === grant.granted &&
            call.status === 200
        )
    )
  const settledOf = Effect.map(
    world.states(accounts),
    (all) => all.length > 0 && all.every(({ state }) => state === "POSTED" || state === "FAILED")
  )

  /** How fast it comes is not the experiment's business; if it never comes, what is promised is not seen. */
  const successor = (grant: ReturnType<typeof grantOf>, withinMillis: number) =>
    spec.workers < 2 || grant === undefined
      ? Effect.void
      : Effect.ignore(
          waitUntil(
            "a successor is done",
            Effect.sync(() => succeeded(grant.key, grant.token)),
            withinMillis
          )
        )

  /** How long a stop at a point lasts. */
  const lasts = (fault: Extract<Fault, { readonly kind: "pause" }>) =>
    Effect.gen(function* () {
      if (fault.until === "lease") {
        const grant = grantOf(fault.node)
        const end = grant?.expiresAt ?? tapTime()
        yield* waitUntil(
          "the lease has run out",
          Effect.sync(() => tapTime() > end + 50),
          "30 seconds"
        )
        return yield* successor(grant, 5 * fault.millis)
      }
      if (drill.actors.includes("operator")) return yield* successor(grantOf(fault.node), 30_000)
      // A stopped proxy is let go when there is nobody left whom it could still surprise.
      if (fault.node.startsWith("rail-proxy")) {
        return yield* Effect.ignore(waitUntil("everything is settled", settledOf, fault.millis))
      }
      yield* Effect.sleep(fault.millis)
    })

  const firstGrant = waitUntil(
    "a worker is granted a lock",
    Effect.sync(() =>
      world.calls.some(
        ({ granted, label, owner }) => label === "lock.acquire" && granted !== null && isWorker(owner ?? "")
      )
    ),
    patience
  )
  const until = (millis: number) => (millis <= 0 ? Effect.void : Effect.andThen(firstGrant, Effect.sleep(millis)))

  const atPoint = Effect.fnUntraced(function* (fault: Pointed, name: string) {
    const { node } = fault
    yield* world.awaitPoint(node, name, patience)
    pending.delete(fault)
    if (fault.kind === "pause") {
      const from = tapTime()
      const proof = yield* Effect.scoped(
        Effect.tap(world.pausedAtPoint(node, name), (seen) => Effect.andThen(say(seen), lasts(fault)))
      )
      return yield* tell(fault, `${proof} for ${((tapTime() - from) / 1_000).toFixed(2)} s`)
    }
    const proof = yield* world.awaitGone(node)
    for (const number of crashPointsOf(node, name)) marks.hit(`crash point ${number}`)
    yield* tell(fault, proof)
    if (fault.downMillis === null) return
    yield* Effect.sleep(fault.downMillis)
    yield* world.revive(node, { points: pointsOf(node), settings: {} })
  })

  /** An outage need not last longer than whoever looks at it. */
  const seenEnough = drill.actors.includes("watcher")
    ? waitUntil(
        "the backlog grew older",
        Effect.sync(() => marks.count("the backlog grew older") > 0),
        "60 seconds"
      )
    : Effect.never

  const deal = (fault: Fault): Effect.Effect<void, HarnessError, Scope.Scope> => {
    const at = pointOf(fault)
    switch (fault.kind) {
      case "pause":
        if (at !== undefined) return atPoint(fault, at.name)
        return Effect.gen(function* () {
          yield* until(fault.when.at === "time" ? fault.when.millis : 1)
          const proof = yield* Effect.scoped(Effect.tap(world.pause(fault.node), () => Effect.sleep(fault.millis)))
          yield* tell(fault, proof)
        })
      case "kill":
        if (at !== undefined) return atPoint(fault, at.name)
        return Effect.gen(function* () {
          const when = fault.when.at === "time" ? fault.when.millis : 1
          yield* until(when)
          const open = world.calls.some(
            ({ from, label, returned }) => from === fault.node && label === "rail.submit" && returned === Infinity
          )
          const held = world.calls.some(({ expiresAt }) => expiresAt !== null && expiresAt > tapTime())
          const proof = yield* world.kill(fault.node)
          if (isWorker(fault.node) && open) marks.hit("crash point 5")
          if (fault.node === "lockdb" && held && when > 0) marks.hit("lock backend was down while a lock was held")
          if (fault.downMillis === null) return yield* tell(fault, proof)
          if (when <= 0) {
            // Who works from now on works without it.
            yield* Effect.forkScoped(
              Effect.timeoutOption(seenEnough, fault.downMillis).pipe(
                Effect.andThen(world.revive(fault.node)),
                Effect.flatMap((back) => tell(fault, `${proof}; ${back}`))
              )
            )
            return
          }
          yield* Effect.sleep(fault.downMillis)
          yield* tell(fault, `${proof}; ${yield* world.revive(fault.node, { points: pointsOf(fault.node) })}`)
        })
      case "cut":
        return Effect.gen(function* () {
          yield* until(fault.atMillis)
          const proof = yield* Effect.scoped(
            Effect.gen(function* () {
              const seen = yield* world.cut(fault.from, fault.to, {
                direction: fault.both ? "both" : "up",
                how: fault.how === "stall" ? "hold" : "drop"
              })
              yield* Effect.sleep(fault.millis)
              return yield* seen
            })
          )
          yield* tell(fault, proof)
        })
      case "drop":
      case "delay":
      case "duplicate":
        return Effect.gen(function* () {
          const { from, kind, label, leg, millis, nth, to } = fault
          const seen = yield* world.plant(from, to, { label, leg, nth, millis, how: kind })
          yield* waitUntil(
            `${kind} of ${label}`,
            Effect.map(seen, (proof) => proof !== undefined),
            patience
          )
          yield* tell(fault, yield* seen)
        })
      case "clockError":
        return Effect.gen(function* () {
          yield* waitUntil(
            `${fault.node} has logged`,
            Effect.sync(() => world.logOf(fault.node).length > 0),
            patience
          )
          const [first] = world.logOf(fault.node)
          const off = Date.parse(first?.timestamp ?? "") - tapTime()
          yield* tell(
            fault,
            Math.abs(off - fault.offsetMillis) < 60_000 ? `its log is ${Math.round(off / 1_000)} s off` : undefined
          )
        })
      default:
        return Effect.fail(new HarnessError({ step: fault.kind, message: "can not be dealt to real processes" }))
    }
  }

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
  const named = workers.filter((name) => spec.faults.some((fault) => hit(fault) === name))
  const first = named.length > 0 && named.length < workers.length ? named : workers
  const inside = yield* Deferred.make<void>()
  const acting = yield* Effect.forEach(drill.actors, (actor) =>
    Effect.forkScoped(
      actor === "visitors"
        ? Actors.visitors(stage, Effect.asVoid(Deferred.succeed(inside, undefined)))
        : Actors.actors[actor](stage)
    )
  )
  // The one who stays in is in before anybody comes.
  if (drill.actors.includes("visitors")) yield* Effect.timeoutOption(Deferred.await(inside), "20 seconds")
  yield* Effect.forEach(first, begin, { concurrency: "unbounded", discard: true })
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
  const settled = yield* waitUntil(
    "every payout is settled",
    Effect.map(settledOf, (all) => all && (!drill.paysLate || late())),
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
  yield* Effect.forEach(workers, (name) => world.stop(name), { concurrency: "unbounded", discard: true })

  const asked = new Set(world.calls.flatMap(({ key }) => (key === null ? [] : [key])))
  const history = yield* world.collect({ accounts, keys: asked, settled })
  const names = new Set([...wantedServers, ...workers])
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
    dealt,
    marks: marks.toRecord(),
    missing: marks.missing(drill.promises),
    verdicts,
    figures: Object.fromEntries(figures),
    settledAfterMillis
  }
}, Effect.scoped)
