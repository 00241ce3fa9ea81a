// @effect-diagnostics nodeBuiltinImport:off
/**
 * `bench`: acquire and release through the SDK over HTTP, through the store alone, and on the bare backend, by one
 * driver, in one run, in turns. What counts are the ratios: a machine that is busy slows all of them.
 *
 * The backend is an embedded one on this machine with fsync on. Progress goes to stderr; with `--json` stdout is one
 * document.
 */
import { Clock, Console, Effect, Fiber, type Scope } from "effect"
import * as os from "node:os"
import { LockKey, OwnerId, type Session } from "../core/lock/Lock.ts"
import { LockApi } from "../core/lock/LockApi.ts"
import { limits } from "../core/Settings.ts"
import { etcdArena, pgArena, sdk, type Server, startServer, type Subject } from "./BenchArena.ts"
import { drive, percentiles, processorTimes, type Slice, spent, spread } from "./BenchDriver.ts"
import { type BenchDocument, type BenchRow, table } from "./BenchReport.ts"
import * as BenchSubstrate from "./BenchSubstrate.ts"
import { HarnessError, make as makeWorld } from "./Processes.ts"

export interface BenchOptions {
  readonly backend: "pg" | "etcd"
  readonly clients: ReadonlyArray<number>
  /** Of every subject with every number of clients. */
  readonly seconds: number
  /** The store and the bare backend only. */
  readonly raw: boolean
  readonly json: boolean
}

const ROUNDS = 5
const WARM_SECONDS = 0.3
/** Beyond what is measured, for everything that is started and stopped. */
const OVERHEAD_SECONDS = 120

export const run = Effect.fnUntraced(
  function* (options: BenchOptions) {
    const start = yield* Clock.currentTimeMillis
    const progress = (text: string) =>
      Effect.flatMap(Clock.currentTimeMillis, (now) =>
        Console.error(`${((now - start) / 1000).toFixed(1).padStart(6)} s  ${text}`)
      )
    const before = os.loadavg()[0] ?? Number.NaN
    yield* progress(`starting ${options.backend === "pg" ? "PostgreSQL" : "etcd"}`)
    const arena = yield* options.backend === "pg" ? pgArena : etcdArena
    const most = Math.max(...options.clients)
    const subjects: Array<Subject> = [
      ...(yield* Effect.provideContext(
        Effect.gen(function* () {
          const store = { name: "store", work: yield* BenchSubstrate.store(most) }
          return [store, ...(yield* arena.subjects(most))]
        }),
        arena.store
      ))
    ]
    let server: Server | undefined
    if (!options.raw) {
      yield* progress("starting lock-server and its clients")
      server = yield* startServer(yield* makeWorld, arena.environment)
      subjects.unshift({ name: "sdk", work: yield* sdk(server, most) })
    }
    const rows: Array<BenchRow> = []
    for (const clients of options.clients) {
      rows.push(...(yield* compare(subjects, clients, options.seconds / ROUNDS, arena.pid, server?.pid, progress)))
    }
    if (server !== undefined) yield* progress("hand-overs, and renewals in a storm")
    const service = server === undefined ? null : yield* Effect.provideContext(serviceFigures, server.api)
    const document: BenchDocument = {
      backend: options.backend,
      machine: {
        cores: os.availableParallelism(),
        node: process.version,
        load: [round(before), round(os.loadavg()[0] ?? Number.NaN)]
      },
      seconds: options.seconds,
      rounds: ROUNDS,
      rows,
      service
    }
    yield* Console.log(options.json ? JSON.stringify(document) : table(document))
  },
  (effect, options) => {
    const limit = OVERHEAD_SECONDS + 2 * options.clients.length * 5 * (options.seconds + ROUNDS)
    return Effect.scoped(effect).pipe(
      Effect.timeoutOrElse({
        duration: `${limit} seconds`,
        orElse: () => Effect.fail(new HarnessError({ step: "bench", message: `not done within ${limit} s` }))
      })
    )
  }
)

const round = (value: number) => Math.round(value * 100) / 100

// -----------------------------------------------------------------------------
// rounds
// -----------------------------------------------------------------------------

interface Measured {
  readonly slice: Slice
  readonly service: number | null
  readonly backend: number | null
  readonly driver: number
}

const measure = Effect.fnUntraced(function* (
  subject: Subject,
  clients: number,
  seconds: number,
  backendPid: number,
  servicePid: number | undefined
) {
  const service = () => (servicePid === undefined ? null : processorTimes([servicePid]))
  const [backendBefore, serviceBefore, own] = [processorTimes([backendPid]), service(), process.cpuUsage()]
  const slice = yield* drive(clients, seconds, subject.work)
  const { system, user } = process.cpuUsage(own)
  const measured: Measured = {
    slice,
    service: subject.name === "sdk" ? spent(serviceBefore, service()) : 0,
    backend: spent(backendBefore, processorTimes([backendPid])),
    driver: (system + user) / 1_000
  }
  return measured
})

const compare = Effect.fnUntraced(function* (
  subjects: ReadonlyArray<Subject>,
  clients: number,
  seconds: number,
  backendPid: number,
  servicePid: number | undefined,
  progress: (text: string) => Effect.Effect<void>
) {
  const measured = new Map<string, Array<Measured>>(subjects.map(({ name }) => [name, []]))
  for (const subject of subjects) yield* drive(clients, WARM_SECONDS, subject.work)
  for (let turn = 0; turn < ROUNDS; turn++) {
    yield* progress(`${clients} clients, round ${turn + 1} of ${ROUNDS}`)
    // Nobody is always the first, nor always after the same one's leftovers.
    const order = turn % 2 === 0 ? subjects : subjects.toReversed()
    for (const subject of order) {
      measured.get(subject.name)?.push(yield* measure(subject, clients, seconds, backendPid, servicePid))
    }
  }
  return subjects.map(({ name }) => rowOf(name, clients, measured))
})

const rowOf = (subject: string, clients: number, measured: ReadonlyMap<string, ReadonlyArray<Measured>>): BenchRow => {
  const rounds = measured.get(subject) ?? []
  const rate = ({ slice }: Measured) => slice.latencies.length / slice.seconds
  const middle = ({ slice }: Measured) => percentiles(slice.latencies).p50
  /** Null for itself, and where there is no such subject. */
  const to = (other: string, figure: (one: Measured) => number) => {
    const others = measured.get(other)
    if (subject === other || others === undefined) return null
    return spread(
      rounds.flatMap((one, i) => {
        const against = others[i]
        return against === undefined ? [] : [figure(one) / figure(against)]
      })
    )
  }
  const pairs = rounds.reduce((sum, { slice }) => sum + slice.latencies.length, 0)
  const cpu = (figure: (one: Measured) => number | null) => {
    let sum = 0
    for (const one of rounds) {
      const millis = figure(one)
      if (millis === null) return null
      sum += millis
    }
    return Math.round((sum * 1_000) / Math.max(1, pairs))
  }
  const failures: Record<string, number> = {}
  for (const { slice } of rounds) {
    for (const [tag, count] of Object.entries(slice.failures)) failures[tag] = (failures[tag] ?? 0) + count
  }
  return {
    clients,
    subject,
    pairsPerSecond: spread(rounds.map(rate)),
    latencyMillis: percentiles(rounds.flatMap(({ slice }) => slice.latencies)),
    throughputRatio: to("bare", rate),
    leasedRatio: to("leased", rate),
    latencyRatio: to("bare", middle),
    cpuMicros: {
      service: cpu((one) => one.service),
      backend: cpu((one) => one.backend),
      driver: cpu((one) => one.driver)
    },
    failures
  }
}

// -----------------------------------------------------------------------------
// the service
// -----------------------------------------------------------------------------

const HAND_OVERS = 30
const DEATHS = 5
const RENEWALS = 200
const CONTENDERS = 64

const serviceFigures = Effect.gen(function* () {
  const api = yield* LockApi
  const open = (name: string) => api.openSession({ ownerId: OwnerId.make(name), ttlMillis: 300_000 })
  const [holder, waiter] = [yield* open("holder"), yield* open("waiter")]
  const acquire = ({ ownerId, sessionId }: Session, key: LockKey, ttlMillis: number, waitMillis = 0) =>
    api.acquire({ key, ownerId, sessionId, ttlMillis, waitMillis })

  /** Of so many samples those that went well; the others are counted. */
  let failed = 0
  const samples = <E>(count: number, sample: (i: number) => Effect.Effect<number, E, Scope.Scope>) =>
    Effect.map(
      Effect.forEach(
        Array.from({ length: count }, (_, i) => i),
        (i) => Effect.option(Effect.scoped(sample(i)))
      ),
      (options) => {
        const values = options.flatMap((option) => (option._tag === "Some" ? [option.value] : []))
        failed += count - values.length
        return percentiles(values)
      }
    )

  const handOverMillis = yield* samples(
    HAND_OVERS,
    Effect.fnUntraced(function* (i) {
      const key = LockKey.make(`bench:hand-over:${i}`)
      const { token } = yield* acquire(holder, key, 60_000)
      const waiting = yield* Effect.forkScoped(acquire(waiter, key, 60_000, limits.waitMillis.max))
      // Until it has looked once and waits.
      yield* Effect.sleep("50 millis")
      const start = yield* Clock.monotonicTimeNanos
      const released = yield* Effect.forkScoped(api.release({ key, ownerId: holder.ownerId, token }))
      yield* Fiber.join(waiting)
      const millis = millisSince(start, yield* Clock.monotonicTimeNanos)
      yield* Fiber.join(released)
      return millis
    })
  )

  const deadHolderMillis = yield* samples(
    DEATHS,
    Effect.fnUntraced(function* (i) {
      const key = LockKey.make(`bench:death:${i}`)
      const { ttlMillis } = yield* acquire(holder, key, 2_000)
      const start = yield* Clock.monotonicTimeNanos
      yield* acquire(waiter, key, 60_000, limits.waitMillis.max)
      return millisSince(start, yield* Clock.monotonicTimeNanos) - ttlMillis
    })
  )

  const key = LockKey.make("bench:renewed")
  const { token } = yield* acquire(holder, key, 60_000)
  const renewals = samples(
    RENEWALS,
    Effect.fnUntraced(function* () {
      yield* Effect.sleep("5 millis")
      const start = yield* Clock.monotonicTimeNanos
      yield* api.renew({ key, ownerId: holder.ownerId, token, ttlMillis: 60_000 })
      return millisSince(start, yield* Clock.monotonicTimeNanos)
    })
  )
  yield* renewals
  const alone = yield* renewals
  const crowd = yield* Effect.forEach(
    Array.from({ length: CONTENDERS }, (_, i) => i),
    (i) => open(`crowd-${i}`),
    { concurrency: 8 }
  )
  const contend = (session: Session) =>
    Effect.forever(Effect.andThen(Effect.exit(acquire(session, key, 60_000)), Effect.sleep("50 millis")))
  const contending = yield* Effect.forkChild(Effect.forEach(crowd, contend, { concurrency: "unbounded" }))
  const storm = yield* renewals
  yield* Fiber.interrupt(contending)
  return {
    handOverMillis,
    deadHolderMillis,
    renewMillis: { alone, storm },
    failed
  }
})

const millisSince = (start: bigint, now: bigint) => Number(now - start) / 1e6
