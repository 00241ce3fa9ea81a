/**
 * `soak`: 200 payouts, 12 workers, and faults drawn from a seed all the time: stops, deaths, cuts, outages of the lock
 * backend, a rail that misbehaves. Then everything heals and progress is demanded.
 *
 * With both fences off it must find what the fences are for: in one of three tries, each of which has seen a holder that was
 * stopped past its lease inside its section, or the try proves nothing.
 */
import * as NodeHttpClient from "@effect/platform-node/NodeHttpClient"
import { Clock, Console, Effect, Exit, Fiber, Scope } from "effect"
import { type AccountId, lockKeyOf } from "../core/payment/Payout.ts"
import { Exited, exitCodes } from "../services/platform/ExitCodes.ts"
import { mix, Rng } from "../sim/Draw.ts"
import { Marks } from "../sim/Marks.ts"
import { simplest } from "../sim/RunSpec.ts"
import type { DrillReport, Observed } from "./DrillRun.ts"
import { soakDrill } from "./Drills.ts"
import { AMOUNT_MINOR } from "./Experiment.ts"
import * as Ground from "./Ground.ts"
import { tapTime } from "./HttpTap.ts"
import type { BackendKind } from "./LockBackends.ts"
import { type HarnessError, waitUntil } from "./Processes.ts"
import * as ProcessWorld from "./ProcessWorld.ts"
import { isHarmOf, judgeRun } from "./RunJudge.ts"
import { markRun } from "./RunMarks.ts"
import { writeReports } from "./RunReports.ts"
import type { Result } from "./RunResult.ts"
import type { StartOptions } from "./World.ts"

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
const ACCOUNTS = 40
const BOUND_MILLIS = 180_000
const servers = ["lock-server", "payment-resource", "rail", "rail-proxy", "reconciler"]
const checks = ["claim", "submit", "seal", "post", "fail", "ambiguous", "lookup", "resolve"]
  .map((op) => `${op}.before:note`)
  .join(",")

export const run = Effect.fnUntraced(
  function* (options: SoakOptions) {
    const seed = options.seed ?? (yield* Clock.currentTimeMillis) % 0x7fffffff
    const startedAt = tapTime()
    const say = (text: string) =>
      Console.error(`${((tapTime() - startedAt) / 1_000).toFixed(1).padStart(6)} s  ${text}`)
    yield* say(
      `seed ${seed}: ${options.payouts} payouts, ${options.workers} workers, ${options.minutes} minutes on ${options.backend}`
    )
    const switches = { payment: options.paymentFencing, rail: options.railFencing }
    const on = switches.payment && switches.rail
    const tries = []
    for (let attempt = 0; attempt < (on ? 1 : TRIES); attempt++) {
      const tried = yield* soak({ ...options, seed: mix(seed, attempt) }, attempt, say)
      tries.push(tried)
      yield* say(
        `${tried.report.verdicts.length} violations, ${tried.heldPastLease} stops past the lease inside a section, all settled ${tried.report.settledAfterMillis} ms after the last fault`
      )
      if (!on && tried.report.verdicts.length > 0) break
    }
    const last = tries.at(-1)
    if (last === undefined) return
    const { report } = last
    const proven = tries.every(({ heldPastLease }) => heldPastLease > 0)
    const good = on ? report.verdicts.length === 0 : proven && isHarmOf(report.verdicts, switches)
    const document = {
      seed,
      backend: options.backend,
      ...switches,
      minutes: options.minutes,
      tries: tries.length,
      payouts: report.history.payouts.length,
      faults: report.marks,
      heldPastLease: tries.map(({ heldPastLease }) => heldPastLease),
      settledAfterMillis: report.settledAfterMillis,
      violations: report.verdicts,
      verdict: good ? (on ? "held" : "corrupted as expected") : "differs"
    }
    const outcome = good ? (on ? "held" : "corrupted") : "violated"
    const result = { outcome, ok: good, report, round: 1 } as Result
    const files = yield* writeReports(options.report, [result], {
      backend: `${options.backend}-soak`,
      document,
      switches
    })
    if (options.json) yield* Console.log(JSON.stringify(document))
    else {
      for (const [name, times] of Object.entries(report.marks))
        yield* Console.log(`${String(times).padStart(6)}  ${name}`)
      for (const { check, detail, subject } of report.verdicts.slice(0, 50)) {
        yield* Console.log(`${on ? "VIOLATION " : ""}${check} ${subject}: ${detail}`)
      }
      yield* Console.log(`${document.verdict}, seed ${seed}`)
      for (const file of files) yield* Console.log(file)
    }
    if (!good) return yield* new Exited({ code: exitCodes.findings })
  },
  Effect.scoped,
  // @effect-diagnostics-next-line strictEffectProvide:off (this is the entry point of the command)
  Effect.provide(NodeHttpClient.layerUndici)
)

const soak = Effect.fnUntraced(function* (
  options: SoakOptions & { readonly seed: number },
  attempt: number,
  say: (text: string) => Effect.Effect<void>
) {
  const rng = new Rng(options.seed)
  const between = (least: number, most: number) => least + Math.floor(rng.unit() * (most - least))
  const pick = <A>(items: ReadonlyArray<A>): A => {
    const item = items[between(0, items.length)]
    if (item === undefined) throw new Error("there is nothing to pick from")
    return item
  }
  const marks = new Marks()
  const { backend: startBackend, payServer, processes } = yield* Ground.start("processes", options.backend)
  const backend = yield* startBackend(false)
  const switches = { payment: options.paymentFencing, rail: options.railFencing }
  const world = yield* ProcessWorld.make({
    processes,
    backend,
    payServer,
    database: `soak_${attempt + 1}`,
    switches,
    // Longer than any stop of the proxy below: that is what finality stands for.
    policy: { finalityWindowMillis: 6_000, minNotFound: 2, minSpacingMillis: 500 }
  })
  yield* world.begin(1)
  const beganAt = tapTime()
  yield* Effect.forEach(servers, (name) => world.start(name), { concurrency: 2, discard: true })
  const { url: railUrl } = yield* world.at("rail")
  yield* world.ask("PUT", `${railUrl}/control`, {
    latency: { fixedMillis: 20, jitterMillis: 300 },
    holdMillis: ProcessWorld.lab.readTimeoutMillis * 2,
    seed: options.seed & 0xffff,
    rates: { timeoutPaid: 0.02, timeoutUnpaid: 0.02, decline: 0.03, http5xx: 0.01, reset: 0.01 }
  })
  const workers = Array.from({ length: options.workers }, (_, i) => `w${i + 1}`)
  const asUsual = {
    points: checks,
    settings: { PAYOUT_EXECUTOR_CONCURRENCY: "2", PAYOUT_EXECUTOR_POLL_INTERVAL: "500" }
  }
  /** Stops itself between a check and its submit, and goes on as if it still held its lock. */
  const stale = {
    points: `${checks},submit.before:stop#${between(1, 3)}`,
    settings: { ...asUsual.settings, PAYOUT_EXECUTOR_STALE_HOLDER: "true" }
  }
  yield* Effect.forEach(workers, (name) => world.start(name, asUsual), { concurrency: 2, discard: true })
  yield* say("everything runs")

  // ---- orders, all the time

  const accounts = new Set(Array.from({ length: ACCOUNTS }, (_, i) => `soak-${i + 1}`))
  const faultMillis = options.minutes * 60_000
  const { url: paymentUrl } = yield* world.at("payment-resource")
  const again = <A>(self: Effect.Effect<A, HarnessError>) => Effect.retry(self, { times: 20 })
  const paymentAt = Effect.orElseSucceed(
    Effect.map(world.at("payment-resource"), ({ url }) => url),
    () => paymentUrl
  )
  for (const accountId of accounts) {
    yield* world.ask("POST", `${paymentUrl}/v1/accounts`, {
      accountId,
      currency: "EUR",
      openingBalanceMinor: String(AMOUNT_MINOR * options.payouts)
    })
  }
  const ordering = yield* Effect.forkScoped(
    Effect.gen(function* () {
      for (let n = 1; n <= options.payouts; n++) {
        const accountId = `soak-${(n % ACCOUNTS) + 1}`
        yield* again(
          Effect.flatMap(paymentAt, (url) =>
            world.ask(
              "POST",
              `${url}/v1/payouts`,
              { accountId, amountMinor: String(AMOUNT_MINOR), currency: "EUR", beneficiary: "NL00TEST0000000001" },
              `soak-order-${n}`
            )
          )
        )
        yield* Effect.sleep((faultMillis * 0.8) / options.payouts)
      }
    })
  )

  // ---- faults, all the time

  const faulting = yield* Scope.fork(yield* Effect.scope)
  const busy = new Set<string>()
  const fibers: Array<Fiber.Fiber<unknown, unknown>> = []
  let heldPastLease = 0
  /** One thing at a time befalls a participant; what can not be done now is not done. */
  const befall = (name: string, what: string, act: Effect.Effect<unknown, HarnessError, Scope.Scope>) =>
    Effect.gen(function* () {
      if (busy.has(name)) return
      busy.add(name)
      const fiber = yield* Effect.scoped(act).pipe(
        Effect.andThen(Effect.sync(() => marks.hit(what))),
        Effect.catchTag("HarnessError", ({ message, step }) =>
          say(`${what} of ${name} did not take: ${step}: ${message}`)
        ),
        Effect.ensuring(Effect.sync(() => busy.delete(name))),
        Effect.forkIn(faulting)
      )
      fibers.push(fiber)
    })
  const sleep = (least: number, most: number) => Effect.sleep(between(least, most))
  const lease = (name: string) => {
    const last = world.calls.findLast(
      ({ granted, label, owner }) => owner === name && granted !== null && /^lock\.(acquire|renew)$/.test(label)
    )
    return last?.expiresAt ?? 0
  }
  const hold = (name: string) =>
    Effect.gen(function* () {
      yield* world.start(name, stale)
      yield* world.awaitPoint(name, "submit.before", 60_000)
      const wasPast = yield* Effect.scoped(
        Effect.gen(function* () {
          yield* world.pausedAtPoint(name, "submit.before")
          const end = lease(name)
          yield* waitUntil(
            "the lease has run out",
            Effect.sync(() => tapTime() > end + 50),
            "30 seconds"
          )
          yield* sleep(2_000, 8_000)
          return end > 0
        })
      )
      if (wasPast) heldPastLease++
      yield* sleep(1_500, 1_501)
      yield* world.start(name, asUsual)
    })
  const dieAndReturn = (name: string, back: StartOptions) =>
    Effect.gen(function* () {
      if (name !== "lockdb" && !world.running().has(name)) return
      yield* world.kill(name)
      yield* sleep(300, 3_000)
      yield* world.revive(name, back)
    })
  const cut = (name: string) => {
    const to = pick(["lock-server", "payment-resource", "rail-proxy"])
    const direction = pick(["up", "down", "both"] as const)
    const how = pick(["drop", "hold"] as const)
    return Effect.gen(function* () {
      const proof = yield* world.cut(name, to, { direction, how })
      yield* sleep(500, 5_000)
      if ((yield* proof) === undefined) marks.hit("cut that nobody noticed")
    })
  }
  const chaos = Effect.gen(function* () {
    const worker = pick(workers)
    const dice = between(0, 100)
    if (dice < 30) yield* befall(worker, "worker stopped", Effect.andThen(world.pause(worker), sleep(200, 6_000)))
    else if (dice < 50) yield* befall(worker, "worker killed", dieAndReturn(worker, asUsual))
    else if (dice < 70) yield* befall(worker, "worker cut off", cut(worker))
    else if (dice < 82) yield* befall(worker, "holder stopped past its lease", hold(worker))
    else if (dice < 86) yield* befall("lock-server", "lock service killed", dieAndReturn("lock-server", {}))
    else if (dice < 89) yield* befall("payment-resource", "resource killed", dieAndReturn("payment-resource", {}))
    else if (dice < 92) yield* befall("rail-proxy", "proxy killed", dieAndReturn("rail-proxy", {}))
    else if (dice < 94) yield* befall("reconciler", "reconciler killed", dieAndReturn("reconciler", { points: checks }))
    else if (dice < 97)
      yield* befall("rail-proxy", "proxy stopped", Effect.andThen(world.pause("rail-proxy"), sleep(200, 2_500)))
    else yield* befall("lockdb", "lock backend killed", dieAndReturn("lockdb", {}))
    yield* sleep(800, 2_500)
  }).pipe(Effect.forever)
  const storm = yield* Effect.forkScoped(chaos)
  yield* Effect.sleep(faultMillis)
  // With the fences off a try without such a holder proves nothing.
  if (heldPastLease === 0) {
    yield* befall("w1", "holder stopped past its lease", hold("w1"))
  }
  yield* Fiber.interrupt(storm)
  yield* Effect.forEach(fibers, (fiber) => Fiber.await(fiber), { concurrency: "unbounded", discard: true }).pipe(
    Effect.timeoutOption("90 seconds")
  )
  yield* Scope.close(faulting, Exit.void)
  for (const name of [...servers, ...workers])
    if (!world.running().has(name)) yield* world.revive(name, workers.includes(name) ? asUsual : {})
  yield* Fiber.join(ordering)
  const healedAt = tapTime()
  yield* say(`healed after ${fibers.length} faults: now everything has to be settled`)

  const settled = yield* waitUntil(
    "every payout is settled",
    Effect.map(
      world.states(accounts),
      (all) => all.length >= options.payouts && all.every(({ state }) => state === "POSTED" || state === "FAILED")
    ),
    BOUND_MILLIS
  ).pipe(
    Effect.as(true),
    Effect.catchTag("HarnessError", () => Effect.succeed(false))
  )
  const settledAfterMillis = Math.round(tapTime() - healedAt)
  yield* Effect.forEach(workers, (name) => world.stop(name), { concurrency: 4, discard: true })
  const keys = new Set([...accounts].map((account) => lockKeyOf(account as AccountId)))
  const history = yield* world.collect({ accounts, keys, settled })
  const observed: Observed = {
    history,
    calls: [...world.calls],
    spans: world.spans.map((span) => ({ ...span, to: Math.min(span.to, tapTime()) })),
    logs: Object.fromEntries([...servers, ...workers].map((name) => [name, world.logOf(name)]))
  }
  markRun(marks, observed)
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
    verdicts: judgeRun({ ...observed, spec, paysLate: false, settled, bound: BOUND_MILLIS }),
    figures: { "stops past the lease": heldPastLease },
    settledAfterMillis
  }
  return { report, heldPastLease }
}, Effect.scoped)
