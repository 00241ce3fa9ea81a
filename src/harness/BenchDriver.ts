// @effect-diagnostics nodeBuiltinImport:off
/** The driver that everything in a benchmark goes through, the service and the bare substrate alike, and its figures. */
import { Clock, Effect } from "effect"
import * as fs from "node:fs"

/** What one client does again and again; it is numbered from 0. */
export type Work = (client: number) => Effect.Effect<void, { readonly _tag: string }>

export interface Slice {
  readonly clients: number
  readonly seconds: number
  readonly latencies: ReadonlyArray<number>
  /** By the tag of the failure. */
  readonly failures: Readonly<Record<string, number>>
}

/** All clients at once, each starting over as soon as it is answered, until the time is up. Latencies in ms. */
export const drive = Effect.fnUntraced(function* (clients: number, seconds: number, work: Work) {
  const latencies: Array<number> = []
  const failures: Record<string, number> = {}
  const start = yield* Clock.monotonicTimeNanos
  const end = start + BigInt(Math.round(seconds * 1e9))
  yield* Effect.forEach(
    Array.from({ length: clients }, (_, i) => i),
    (client) =>
      Effect.gen(function* () {
        let now = yield* Clock.monotonicTimeNanos
        while (now < end) {
          const failure = yield* Effect.match(work(client), {
            onFailure: ({ _tag }) => _tag,
            onSuccess: () => undefined
          })
          const then = yield* Clock.monotonicTimeNanos
          if (failure === undefined) latencies.push(Number(then - now) / 1e6)
          else {
            failures[failure] = (failures[failure] ?? 0) + 1
            // What fails at once is not asked in a busy loop.
            yield* Effect.sleep(10)
          }
          now = yield* Clock.monotonicTimeNanos
        }
      }),
    { concurrency: "unbounded", discard: true }
  )
  const seen: Slice = {
    clients,
    seconds: Number((yield* Clock.monotonicTimeNanos) - start) / 1e9,
    latencies,
    failures
  }
  return seen
})

// -----------------------------------------------------------------------------
// figures
// -----------------------------------------------------------------------------

export interface Spread {
  readonly median: number
  readonly min: number
  readonly max: number
}

export const spread = (values: ReadonlyArray<number>): Spread => {
  const sorted = [...values].sort((a, b) => a - b)
  return { median: at(sorted, 0.5), min: sorted[0] ?? Number.NaN, max: sorted.at(-1) ?? Number.NaN }
}

export interface Percentiles {
  readonly p50: number
  readonly p95: number
  readonly p99: number
}

export const percentiles = (values: ReadonlyArray<number>): Percentiles => {
  const sorted = [...values].sort((a, b) => a - b)
  return { p50: at(sorted, 0.5), p95: at(sorted, 0.95), p99: at(sorted, 0.99) }
}

/** Nearest rank. */
const at = (sorted: ReadonlyArray<number>, share: number): number =>
  sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)] ?? Number.NaN

// -----------------------------------------------------------------------------
// processor time, where the kernel has /proc
// -----------------------------------------------------------------------------

/** Of a clock tick of /proc, which is 10 ms on every Linux that Node runs on. */
const TICK_MILLIS = 10

interface ProcessTime {
  readonly parent: number
  readonly millis: number
}

const timeOf = (pid: number): ProcessTime | undefined => {
  try {
    const stat = fs.readFileSync(`/proc/${pid}/stat`, "utf8")
    // After the command, which may hold anything, the third field of `stat` is the first.
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ")
    const ticks = Number(fields[11]) + Number(fields[12])
    return { parent: Number(fields[1]), millis: ticks * TICK_MILLIS }
  } catch {
    return undefined
  }
}

/** Of the processes and their children, by id; null where it can not be known. */
export const processorTimes = (roots: ReadonlyArray<number>): ReadonlyMap<number, number> | null => {
  const times = new Map<number, number>()
  try {
    for (const name of fs.readdirSync("/proc")) {
      const pid = Number(name)
      if (!Number.isInteger(pid)) continue
      const time = timeOf(pid)
      if (time !== undefined && (roots.includes(pid) || roots.includes(time.parent))) times.set(pid, time.millis)
    }
  } catch {
    return null
  }
  return times.size === 0 ? null : times
}

/** Milliseconds spent between two looks, by who was there at the second one. */
export const spent = (
  before: ReadonlyMap<number, number> | null,
  after: ReadonlyMap<number, number> | null
): number | null => {
  if (before === null || after === null) return null
  let sum = 0
  for (const [pid, millis] of after) sum += millis - (before.get(pid) ?? 0)
  return sum
}
