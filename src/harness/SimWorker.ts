// @effect-diagnostics nodeBuiltinImport:off
/**
 * A thread that simulates: takes the next job off a shared counter until there is none, or until a job before it has
 * failed. A mutant is applied to the sources while they are loaded, in this thread alone.
 */
import "./LeanRuntime.ts"
import { registerHooks } from "node:module"
import { parentPort, workerData } from "node:worker_threads"
import type { JobResult, WorkerJob } from "./SimPool.ts"

const { jobs, mutant, shared, stopAtFailure } = workerData as WorkerJob
const counters = new Int32Array(shared)

if (mutant !== undefined) {
  const { file, find, replace } = mutant
  const path = new RegExp(`/${file.replace(/\.ts$/, "")}\\.(ts|js)$`)
  registerHooks({
    load: (url, context, next) => {
      const loaded = next(url, context)
      if (!path.test(url)) return loaded
      const text = String(loaded.source)
      const parts = text.split(find)
      if (parts.length !== 2) {
        throw new Error(`the mutant no longer applies: ${parts.length - 1} places of ${file} say ${find}`)
      }
      counters[2] = 1
      return { ...loaded, source: parts.join(replace) }
    }
  })
}

const { runJob } = await import("./SimJob.ts")

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
