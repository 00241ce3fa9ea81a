// @effect-diagnostics nodeBuiltinImport:off
/**
 * `bench --endurance MINUTES`: lock-server under full load, its backend killed again and again, and what grows meanwhile.
 * Whatever is larger at the end than at a fifth of the time, by more than 1.3, and keeps no audit, is a finding.
 */
import { Clock, Console, Effect, References, Schedule } from "effect"
import * as fs from "node:fs"
import { LockKey, OwnerId } from "../core/lock/Lock.ts"
import * as LockClient from "../services/lock-client/LockClient.ts"
import { Exited, exitCodes } from "../services/platform/ExitCodes.ts"
import { type Arena, etcdArena, pgArena, startServer } from "./BenchArena.ts"
import { drive, type Work } from "./BenchDriver.ts"
import { HarnessError, make as makeWorld } from "./Processes.ts"

export interface EnduranceOptions {
  readonly backend: "pg" | "etcd"
  readonly minutes: number
  readonly json: boolean
}

const CLIENTS = 64
const SHARED_KEYS = 8
const KILL_EVERY_SECONDS = 30
const SAMPLES = 25
const GROWTH = 1.3

type Figures = Readonly<Record<string, number>>

export interface Grown {
  readonly name: string
  readonly mark: number
  readonly end: number
  readonly ratio: number
  readonly finding: boolean
}

export const run = Effect.fnUntraced(function* ({ backend, json, minutes }: EnduranceOptions) {
  const start = yield* Clock.monotonicTimeNanos
  const elapsed = Effect.map(Clock.monotonicTimeNanos, (now) => Number(now - start) / 1e9)
  const progress = (text: string) =>
    Effect.flatMap(elapsed, (seconds) => Console.error(`${seconds.toFixed(0).padStart(6)} s  ${text}`))
  yield* progress(`starting ${backend === "pg" ? "PostgreSQL" : "etcd"}, lock-server and ${CLIENTS} clients`)
  const arena = yield* backend === "pg" ? pgArena : etcdArena
  const { api, pid } = yield* startServer(yield* makeWorld, arena.environment)

  const locks = yield* Effect.forEach(
    Array.from({ length: CLIENTS }, (_, i) => i),
    (i) => LockClient.make({ ownerId: OwnerId.make(`endurance-${i}`) }),
    { concurrency: 8 }
  ).pipe(Effect.provideContext(api))
  let round = 0
  // Every other time a key that others want too.
  const work: Work = (client) => {
    const key = ++round % 2 === 0 ? `shared:${round % SHARED_KEYS}` : `own:${client}`
    return locks[client]?.withLock(LockKey.make(`endurance:${key}`))(() => Effect.void) ?? Effect.void
  }

  const seconds = minutes * 60
  const samples: Array<Figures> = []
  const sampling = Effect.gen(function* () {
    yield* Effect.sleep((seconds * 1_000) / SAMPLES)
    const figures = { ...processFigures(pid), ...(yield* asked(arena)) }
    samples.push(figures)
    yield* progress(
      Object.entries(figures)
        .map(([name, value]) => `${name} ${value}`)
        .join(", ")
    )
  })
  let kills = 0
  const killing = Effect.gen(function* () {
    yield* Effect.sleep(`${KILL_EVERY_SECONDS} seconds`)
    yield* arena.crash
    kills++
    yield* progress(`the backend was killed (${kills}) and is up again`)
  })
  yield* Effect.forkScoped(Effect.forever(killing))
  yield* Effect.forkScoped(Effect.forever(sampling))
  const { failures, latencies } = yield* drive(CLIENTS, seconds, work).pipe(
    // A session that is lost to a kill says so, each time.
    Effect.provideService(References.MinimumLogLevel, "Error")
  )
  if (kills === 0 && seconds > 2 * KILL_EVERY_SECONDS) {
    return yield* new HarnessError({ step: "endurance", message: "the backend was never killed" })
  }
  const grown = growth(samples)
  const document = { backend, minutes, kills, pairs: latencies.length, failures, grown }
  yield* Console.log(json ? JSON.stringify(document) : textOf(document))
  if (grown.some(({ finding }) => finding)) return yield* new Exited({ code: exitCodes.findings })
}, Effect.scoped)

/** The backend may be down at the moment. */
const asked = ({ kept }: Arena) =>
  kept.pipe(
    Effect.retry({ times: 20, schedule: Schedule.spaced("500 millis") }),
    Effect.orElseSucceed((): Figures => ({}))
  )

const processFigures = (pid: number): Figures => ({
  "memory MB": Math.round(
    Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${pid}/status`, "utf8"))?.[1] ?? 0) / 1024
  ),
  "file descriptors": fs.readdirSync(`/proc/${pid}/fd`).length
})

/** Medians of the five samples around a fifth of the time and of the last five. */
export const growth = (samples: ReadonlyArray<Figures>): ReadonlyArray<Grown> => {
  const names = new Set(samples.flatMap((one) => Object.keys(one)))
  const median = (part: ReadonlyArray<Figures>, name: string) => {
    const values = part.flatMap((one) => one[name] ?? []).toSorted((a, b) => a - b)
    return values[Math.floor(values.length / 2)] ?? 0
  }
  const fifth = Math.floor(samples.length / 5)
  return [...names].map((name) => {
    const mark = median(samples.slice(Math.max(0, fifth - 2), fifth + 3), name)
    const end = median(samples.slice(-5), name)
    const ratio = mark === 0 ? (end === 0 ? 1 : Number.POSITIVE_INFINITY) : end / mark
    return { name, mark, end, ratio, finding: ratio > GROWTH && !/audit|remembered/.test(name) }
  })
}

const textOf = (document: {
  readonly backend: string
  readonly minutes: number
  readonly kills: number
  readonly pairs: number
  readonly failures: Readonly<Record<string, number>>
  readonly grown: ReadonlyArray<Grown>
}) =>
  [
    `${document.backend}: ${document.minutes} min, ${document.pairs} pairs, ${document.kills} kills of the backend; failed: ${JSON.stringify(document.failures)}`,
    ...document.grown.map(
      ({ end, finding, mark, name, ratio }) =>
        `${name.padEnd(28)} ${String(mark).padStart(8)} -> ${String(end).padStart(8)}  x${ratio.toFixed(2)}${finding ? "  GREW" : ""}`
    )
  ].join("\n")
