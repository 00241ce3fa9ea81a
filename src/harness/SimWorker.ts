// @effect-diagnostics nodeBuiltinImport:off
/**
 * A thread that simulates: takes the next job off a shared counter until there is none, or until a job before it has
 * failed. A mutant is applied to the sources while they are loaded, in this thread alone.
 */
import { withoutStacks } from "./LeanRuntime.ts"
import { apply } from "./Mutant.ts"
import { registerHooks } from "node:module"
import { parentPort, workerData } from "node:worker_threads"
import type { Edit, JobResult, WorkerJob } from "./SimPool.ts"

const { jobs, mutant, shared, stopAtFailure } = workerData as WorkerJob
const counters = new Int32Array(shared)

const applied = new Set<Edit>()
const noteAndApply = (text: string, edit: Edit): string => {
  applied.add(edit)
  return apply(text, edit)
}

if (mutant !== undefined) {
  registerHooks({
    load: (url, context, next) => {
      const loaded = next(url, context)
      const own = mutant.filter(({ file }) => url.replace(/\.[jt]s$/, "").endsWith(file.replace(/\.ts$/, "")))
      return own.length === 0 ? loaded : { ...loaded, source: own.reduce(noteAndApply, String(loaded.source)) }
    }
  })
}

const { runJob } = await import("./SimJob.ts")
withoutStacks()
if (mutant !== undefined && applied.size !== mutant.length) throw new Error("a file of the mutant was not loaded")

for (;;) {
  const at = Atomics.add(counters, 0, 1)
  const job = jobs[at]
  if (job === undefined || at >= Atomics.load(counters, 1)) break
  const result: JobResult = runJob(job)
  if (result.failure !== undefined && stopAtFailure) {
    for (let low = Atomics.load(counters, 1); at < low; low = Atomics.load(counters, 1)) {
      Atomics.compareExchange(counters, 1, low, at)
    }
  }
  parentPort?.postMessage({ at, result })
}
