// @effect-diagnostics nodeBuiltinImport:off
/**
 * Simulates on all cores. The jobs are numbered and each thread takes the next one; with a failure the earliest failing job
 * wins, so the answer is the same with one thread and with sixteen.
 */
import { availableParallelism } from "node:os"
import { Worker } from "node:worker_threads"
import { Clock, Data, Effect } from "effect"
import type { ChunkResult } from "../sim/Batch.ts"
import { Marks } from "../sim/Marks.ts"
import type { Job } from "./SimJob.ts"

/** A place of a source file, unique there unless `all`, and what stands there instead. Without types: it is for `dist` too. */
export interface Edit {
  readonly file: string
  readonly find: string
  readonly replace: string
  readonly all?: boolean
}

export type JobResult = ChunkResult

export interface WorkerJob {
  readonly jobs: ReadonlyArray<Job>
  /** The next job; the earliest failed one; how many edits were applied. */
  readonly shared: SharedArrayBuffer
  readonly mutant: ReadonlyArray<Edit> | undefined
  readonly stopAtFailure: boolean
}

export interface PoolOptions {
  readonly jobs: ReadonlyArray<Job>
  readonly workers?: number | undefined
  readonly mutant?: ReadonlyArray<Edit> | undefined
  /** Default true. */
  readonly stopAtFailure?: boolean
  /** Told after each job. */
  readonly onProgress?: (sum: Sum) => void
}

/** What a batch came to. */
export interface Sum {
  readonly runs: number
  readonly micros: number
  readonly slices: number
  readonly calls: number
  readonly lockChecked: number
  readonly lockDisagreed: number
  readonly marks: Marks
  /** Of the earliest job that failed, and how many runs came before it. */
  readonly failure: { readonly job: number; readonly result: JobResult } | undefined
  readonly failures: ReadonlyArray<JobResult>
  /** Of all threads, and of the clock on the wall. */
  readonly cpuSeconds: number
  readonly wallSeconds: number
}

/** An error that occurs when a thread dies: a bug of the simulation, or a mutant that can not even be loaded. */
export class SimThreadDied extends Data.TaggedError("SimThreadDied")<{ readonly message: string }> {}

export const cores = (): number => availableParallelism()

export const runJobs = (options: PoolOptions): Effect.Effect<Sum, SimThreadDied> =>
  Effect.flatMap(Clock.monotonicTimeNanos, (startedAt) => {
    const { jobs, mutant, onProgress, stopAtFailure = true } = options
    const shared = new SharedArrayBuffer(12)
    new Int32Array(shared)[1] = 0x7fffffff
    const cpuAtStart = process.cpuUsage()
    const marks = new Marks()
    const results = new Map<number, JobResult>()
    const total = { runs: 0, micros: 0, slices: 0, calls: 0, lockChecked: 0, lockDisagreed: 0 }
    let wallSeconds = 0
    const add = (at: number, result: JobResult): void => {
      results.set(at, result)
      marks.add(result.marks)
      for (const name of Object.keys(total) as ReadonlyArray<keyof typeof total>) total[name] += result[name]
    }
    const sum = (): Sum => {
      const failed = [...results].filter(([, { failure }]) => failure !== undefined).sort(([a], [b]) => a - b)
      const cpu = process.cpuUsage(cpuAtStart)
      return {
        ...total,
        marks,
        failure: failed[0] === undefined ? undefined : { job: failed[0][0], result: failed[0][1] },
        failures: failed.map(([, result]) => result),
        cpuSeconds: (cpu.user + cpu.system) / 1e6,
        wallSeconds
      }
    }
    const data: WorkerJob = { jobs, shared, mutant, stopAtFailure }
    const thread = Effect.callback<void, SimThreadDied>((resume) => {
      const extension = import.meta.url.endsWith(".ts") ? "ts" : "js"
      const worker = new Worker(new URL(`./SimWorker.${extension}`, import.meta.url), {
        workerData: data,
        // A run's garbage is young: with room for it, most is never copied.
        resourceLimits: { maxYoungGenerationSizeMb: 96 }
      })
      worker.on("message", ({ at, result }: { readonly at: number; readonly result: JobResult }) => {
        add(at, result)
        onProgress?.(sum())
      })
      worker.on("error", (error) => resume(Effect.fail(new SimThreadDied({ message: String(error) }))))
      worker.on("exit", () => resume(Effect.void))
      return Effect.promise(() => worker.terminate())
    })
    const threads = Math.max(1, Math.min(options.workers ?? cores(), jobs.length))
    return Effect.all(
      Array.from({ length: threads }, () => thread),
      { concurrency: "unbounded", discard: true }
    ).pipe(
      Effect.andThen(Clock.monotonicTimeNanos),
      Effect.map((endedAt) => {
        wallSeconds = Number(endedAt - startedAt) / 1e9
        return sum()
      })
    )
  })
