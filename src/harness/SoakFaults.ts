/**
 * The faults of a soak: drawn from its seed one after the other, dealt to whoever is free, each seen to take or told that it
 * did not, each undone in its own finalizer and within a bound.
 */
import { Cause, Deferred, type Duration, Effect, FiberSet, type Scope } from "effect"
import { mix, Rng } from "../sim/Draw.ts"
import type { Marks } from "../sim/Marks.ts"
import { tapTime } from "./HttpTap.ts"
import { HarnessError, isEvent, type LogRecord, waitUntil } from "./Processes.ts"
import type { ProcessWorld } from "./ProcessWorld.ts"
import { type Fleet, within } from "./SoakFleet.ts"
import { leaseEnd, type Lock, lockOf, stopsPastLease } from "./SoakProof.ts"
import type { Cut, StartOptions } from "./World.ts"

export const HELD = "holder stopped past its lease"

/** What may befall, how often of a hundred, and for how long: least and most, in ms. */
const table = [
  { what: "worker stopped", often: 28, least: 200, most: 6_000 },
  { what: "worker killed", often: 18, least: 300, most: 3_000 },
  { what: "worker cut off", often: 20, least: 500, most: 5_000 },
  { what: HELD, often: 20, least: 0, most: 3_000 },
  { what: "lock service killed", often: 3, least: 300, most: 3_000, target: "lock-server" },
  { what: "resource killed", often: 2, least: 300, most: 3_000, target: "payment-resource" },
  { what: "proxy killed", often: 2, least: 300, most: 3_000, target: "rail-proxy" },
  { what: "reconciler killed", often: 2, least: 300, most: 3_000, target: "reconciler" },
  { what: "proxy stopped", often: 3, least: 200, most: 2_500, target: "rail-proxy" },
  { what: "lock backend killed", often: 2, least: 300, most: 3_000, target: "lockdb" }
] as const

export interface Drawn {
  readonly what: (typeof table)[number]["what"]
  /** Absent: a worker. */
  readonly target: string | undefined
  /** In [0, 1): which of the workers. */
  readonly worker: number
  readonly lastsMillis: number
  /** Until the next one. */
  readonly pauseMillis: number
  readonly cut: Cut & { readonly to: string }
}

/** The n-th fault of this seed, whatever became of those before it. */
export const draw = (seed: number, n: number): Drawn => {
  const rng = new Rng(mix(seed, n))
  const between = (least: number, most: number) => least + Math.floor(rng.unit() * (most - least))
  const pick = <const A>(first: A, ...more: ReadonlyArray<A>): A => more[between(-1, more.length)] ?? first
  let dice = between(0, 100)
  const row = table.find(({ often }) => (dice -= often) < 0) ?? table[0]
  return {
    what: row.what,
    target: "target" in row ? row.target : undefined,
    worker: rng.unit(),
    lastsMillis: between(row.least, row.most + 1),
    pauseMillis: between(800, 2_500),
    cut: {
      // A worker talks to the proxy only when it pays.
      to: pick("lock-server", "lock-server", "payment-resource", "payment-resource", "rail-proxy"),
      direction: pick("up", "down", "both"),
      how: pick("drop", "hold")
    }
  }
}

// -----------------------------------------------------------------------------
// what took and what did not
// -----------------------------------------------------------------------------

/** One thing at a time befalls a participant. */
export interface Ledger {
  /** Its own fiber, which ends within the bound. It answers how it was seen to take; undefined: it was not. */
  readonly befall: (
    name: string,
    what: string,
    act: Effect.Effect<string | undefined, HarnessError, Scope.Scope>
  ) => Effect.Effect<void>
  readonly busy: ReadonlySet<string>
  readonly took: ReadonlyMap<string, number>
  readonly missed: ReadonlyMap<string, number>
  /** Until nothing is under way. Dies of the first bug of an act. */
  readonly idle: Effect.Effect<void>
}

/** A failure tells the last words of a service, of which the beginning is enough here. */
const oneLine = (text: string) => {
  const line = text.replaceAll(/\s+/g, " ")
  return line.length > 300 ? `${line.slice(0, 300)} ..` : line
}

export const makeLedger = Effect.fnUntraced(function* (of: {
  readonly marks: Marks
  readonly say: (text: string) => Effect.Effect<void>
  readonly bound: Duration.Input
}): Effect.fn.Return<Ledger, never, Scope.Scope> {
  const { bound, marks, say } = of
  const fibers = yield* FiberSet.make<void, never>()
  const busy = new Set<string>()
  const took = new Map<string, number>()
  const missed = new Map<string, number>()
  const count = (map: Map<string, number>, what: string) => map.set(what, (map.get(what) ?? 0) + 1)
  let bug: Cause.Cause<never> | undefined
  return {
    befall: (name, what, act) =>
      Effect.suspend(() => {
        if (busy.has(name)) return Effect.void
        busy.add(name)
        const miss = (why: string) =>
          Effect.suspend(() => {
            count(missed, what)
            return say(`${what} (${name}) did not take: ${oneLine(why)}`)
          })
        const whole = Effect.scoped(act).pipe(
          within(bound, `${what} (${name})`),
          Effect.flatMap((proof) =>
            proof === undefined
              ? miss("nobody noticed")
              : Effect.sync(() => {
                  count(took, what)
                  marks.hit(what)
                })
          ),
          Effect.catchTag("HarnessError", ({ message, step }) => miss(`${step}: ${message}`)),
          Effect.catchCauseIf(
            (cause) => !Cause.hasInterruptsOnly(cause),
            (cause) => Effect.sync(() => void (bug ??= cause))
          ),
          Effect.ensuring(Effect.sync(() => busy.delete(name)))
        )
        return Effect.asVoid(FiberSet.run(fibers, whole))
      }),
    busy,
    took,
    missed,
    idle: Effect.andThen(
      FiberSet.awaitEmpty(fibers),
      Effect.suspend(() => (bug === undefined ? Effect.void : Effect.failCause(bug)))
    )
  }
})

// -----------------------------------------------------------------------------
// what is done to whom
// -----------------------------------------------------------------------------

/** More in trouble at a time, and the machine is busier with their restarts than with payouts. */
const WORKERS_AT_ONCE = 5
const HOLDS_AT_ONCE = 2
/** For a payout to come to a worker, and for its successor to be done. */
const REACHES = "45 seconds"
const SUCCEEDS = "20 seconds"
const NOTICED = "20 seconds"
const ACT_BOUND = "240 seconds"

export interface Faults {
  readonly ledger: Ledger
  /** Deals until interrupted; what is under way then goes on. */
  readonly storm: Effect.Effect<never>
  /** One more holder that is stopped past its lease, if nothing befalls this worker now; fed until it has something to hold. */
  readonly hold: (worker: string, feed: Effect.Effect<unknown>) => Effect.Effect<void>
  /** What lasts need not last any longer: everything is undone as soon as may be. */
  readonly over: Effect.Effect<void>
}

export const makeFaults = Effect.fnUntraced(function* (of: {
  readonly world: Pick<ProcessWorld, "calls" | "cut" | "pause" | "pausedAtPoint" | "running">
  readonly fleet: Fleet
  readonly workers: ReadonlyArray<string>
  /** Stops itself between a check and its submit, and goes on as if it still held its lock. */
  readonly stale: StartOptions
  readonly seed: number
  readonly marks: Marks
  readonly say: (text: string) => Effect.Effect<void>
}): Effect.fn.Return<Faults, never, Scope.Scope> {
  const { fleet, marks, say, seed, stale, workers, world } = of
  const ledger = yield* makeLedger({ marks, say, bound: ACT_BOUND })
  const over = yield* Deferred.make<void>()
  const linger = (millis: number) => Effect.timeoutOption(Deferred.await(over), millis)
  const back = (name: string): Effect.Effect<void> =>
    Effect.retry(fleet.restore(name), { times: 1 }).pipe(
      Effect.catchTag("HarnessError", ({ message, step }) =>
        say(`${name} is not back, which is left to the end: ${step}: ${oneLine(message)}`)
      ),
      Effect.asVoid
    )

  const stop = (name: string, lastsMillis: number) =>
    Effect.tap(world.pause(name), () => linger(lastsMillis)).pipe(
      Effect.scoped,
      // Also when it was sent the signal and was not seen to stop.
      Effect.ensuring(Effect.ignore(fleet.resume(name)))
    )

  const dieAndReturn = (name: string, lastsMillis: number) =>
    Effect.gen(function* () {
      if (name !== "lockdb" && !world.running().has(name)) {
        return yield* new HarnessError({ step: `kill ${name}`, message: "it does not run" })
      }
      return yield* Effect.tap(fleet.kill(name), () => linger(lastsMillis))
    }).pipe(Effect.ensuring(back(name)))

  const cut = (name: string, { cut: { to, ...rule }, lastsMillis }: Drawn) =>
    Effect.gen(function* () {
      const proof = yield* world.cut(name, to, rule)
      yield* linger(lastsMillis)
      const seen = Effect.map(proof, (found) => found !== undefined)
      const early = Effect.as(Deferred.await(over), "the faults are over")
      const noticed = Effect.as(waitUntil(`${name} misses ${to}`, seen, NOTICED), "")
      const ended = yield* Effect.raceFirst(noticed, early)
      const found = yield* proof
      if (found === undefined && ended !== "") {
        return yield* new HarnessError({ step: `${name} misses ${to}`, message: ended })
      }
      return found
    })

  const isStop = (record: LogRecord) => isEvent("fault_point")(record) && record["action"] === "stop"
  const isLatePost = (record: LogRecord) => isEvent("stale_hop")(record) && record["op"] === "post"
  /** Whoever was granted the key after it has posted or given up; of the calls from this one on. */
  const succeeded = (lock: Lock, from: number) => {
    const since = world.calls.slice(from)
    return since.some(
      (grant) =>
        grant.label === "lock.acquire" &&
        grant.key === lock.key &&
        (grant.granted ?? 0n) > lock.token &&
        since.some(
          ({ label, status, token }) =>
            token === grant.granted && status === 200 && /^pay\.(post|fail|ambiguous|resolve)$/.test(label)
        )
    )
  }
  /** A renew that was on its way when its sender was stopped may have moved the end. */
  const leaseOver = (lock: Lock): Effect.Effect<void> =>
    Effect.suspend(() => {
      const left = leaseEnd(world.calls, lock.key, lock.token) + 50 - tapTime()
      return left <= 0 ? Effect.void : Effect.andThen(Effect.sleep(left), leaseOver(lock))
    })

  const hold = (name: string, lastsMillis: number, feed: Effect.Effect<unknown> = Effect.void) =>
    Effect.gen(function* () {
      const service = yield* fleet.start(name, stale)
      const reached = yield* Effect.raceAllFirst([
        service.awaitRecord("comes to its submit", isStop, REACHES),
        Effect.andThen(
          Deferred.await(over),
          Effect.fail(new HarnessError({ step: `${name}: comes to its submit`, message: "the faults are over" }))
        ),
        Effect.forever(Effect.andThen(feed, Effect.sleep("4 seconds")))
      ])
      const lock = lockOf(reached)
      if (lock === undefined) {
        return yield* new HarnessError({ step: `${name} stopped`, message: "its log does not say under which lock" })
      }
      const from = world.calls.length
      yield* Effect.scoped(
        Effect.gen(function* () {
          yield* world.pausedAtPoint(name, "submit.before")
          yield* within("30 seconds", `the lease of ${name} runs out`)(leaseOver(lock))
          // Without one nothing can be done twice; it may be long in coming when its own servers are down.
          yield* Effect.ignore(
            waitUntil(
              "a successor is done",
              Effect.sync(() => succeeded(lock, from)),
              SUCCEEDS
            )
          )
          yield* linger(lastsMillis)
        })
      )
      // What it does too late is what this is for.
      yield* Effect.ignore(service.awaitRecord("does what it does too late", isLatePost, "8 seconds"))
      const [stopped] = stopsPastLease({ calls: world.calls, logs: { [name]: service.log } })
      if (stopped === undefined) {
        return yield* new HarnessError({ step: `${name} stopped`, message: "it did not go on after its lease" })
      }
      const { key, overtaken, pastMillis, token } = stopped
      yield* say(
        `${name} went on in its section ${(pastMillis / 1_000).toFixed(1)} s after its lease of ${key} under token ${token}${overtaken ? ", overtaken" : ""}`
      )
      return `${pastMillis} ms`
    }).pipe(
      // Told to stop in order it would finish its turn first: it would come to its point, and stand there.
      Effect.onError(() => Effect.ignore(fleet.kill(name))),
      Effect.ensuring(back(name))
    )

  const act = (name: string, drawn: Drawn) => {
    switch (drawn.what) {
      case "worker stopped":
      case "proxy stopped":
        return stop(name, drawn.lastsMillis)
      case "worker cut off":
        return cut(name, drawn)
      case HELD:
        return hold(name, drawn.lastsMillis)
      default:
        return dieAndReturn(name, drawn.lastsMillis)
    }
  }

  let holding = 0
  const deal = (drawn: Drawn) =>
    Effect.suspend(() => {
      if (drawn.target !== undefined) return ledger.befall(drawn.target, drawn.what, act(drawn.target, drawn))
      const from = Math.floor(drawn.worker * workers.length)
      const free = [...workers.slice(from), ...workers.slice(0, from)].filter((name) => !ledger.busy.has(name))
      const [name] = free
      if (name === undefined || workers.length - free.length >= WORKERS_AT_ONCE) return Effect.void
      if (drawn.what !== HELD) return ledger.befall(name, drawn.what, act(name, drawn))
      if (holding >= HOLDS_AT_ONCE) return Effect.void
      holding++
      return ledger.befall(
        name,
        HELD,
        Effect.ensuring(
          act(name, drawn),
          Effect.sync(() => holding--)
        )
      )
    })

  let dealt = 0
  return {
    ledger,
    storm: Effect.forever(
      Effect.suspend(() => {
        const drawn = draw(seed, dealt++)
        return Effect.andThen(deal(drawn), Effect.sleep(drawn.pauseMillis))
      })
    ),
    hold: (worker, feed) => ledger.befall(worker, HELD, hold(worker, 500, feed)),
    over: Effect.asVoid(Deferred.succeed(over, undefined))
  }
})
