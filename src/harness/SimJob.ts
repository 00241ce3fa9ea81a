/** What a simulating thread is asked to do. */
import { type ChunkJob, type ChunkResult, runChunk } from "../sim/Batch.ts"
import { type ExhaustJob, runPart } from "../sim/Exhaust.ts"

export type Job = ({ readonly kind: "chunk" } & ChunkJob) | ({ readonly kind: "exhaust" } & ExhaustJob)

export const runJob = (job: Job): ChunkResult => (job.kind === "chunk" ? runChunk(job) : runPart(job))
