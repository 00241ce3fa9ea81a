/**
 * From a real run to the simulation: what befell the processes as a fault plan of virtual time.
 *
 * The lease is shorter there, so times are told by what they are related to (a named point, the end of a lease) or made
 * shorter by the same factor; what came after what stays as it was. That is what a verdict depends on.
 */
import type { Fault } from "../sim/FaultPlan.ts"
import { harmName, type Verdict } from "../sim/Judge.ts"
import { run as simulate } from "../sim/Run.ts"
import { type RunSpec, settingsOf } from "../sim/RunSpec.ts"
import { lab } from "./ProcessWorld.ts"
import { judgeRun } from "./RunJudge.ts"
import { observedOf, type SavedRun } from "./SavedRun.ts"

/** What a stop at a point was seen to be; what was only planned counts for nothing. */
const pauses = ({ calls, spans }: ReturnType<typeof observedOf>): ReadonlyArray<Fault> =>
  spans.flatMap(({ from, kind, lane, text, to }): ReadonlyArray<Fault> => {
    const point = / at ([a-zA-Z.]+)$/.exec(text)?.[1]
    if (kind !== "pause" || point === undefined) return []
    const held = calls.findLast(
      ({ called, granted, label, owner }) =>
        owner === lane && granted !== null && /^lock\.(acquire|renew)$/.test(label) && called <= from
    )
    const end = held?.expiresAt ?? null
    const when = { at: "point", name: point, nth: 1 } as const
    if (end === null || to <= end) return [{ kind: "pause", node: lane, when, millis: Math.round((to - from) / ratio) }]
    const successor = calls.some(
      ({ called, from: who, label, status, token }) =>
        called > from &&
        called < to &&
        who !== lane &&
        status === 200 &&
        token !== null &&
        token > (held?.granted ?? 0n) &&
        /^pay\.(post|fail|ambiguous)$/.test(label)
    )
    // Past whoever came after, or only past the lease.
    return [
      { kind: "pause", node: lane, when, until: "lease", millis: successor ? 6_000 : Math.round((to - end) / ratio) }
    ]
  })

const ratio = lab.ttlMillis / settingsOf({ scale: "short" } as RunSpec).lock.defaultTtlMillis

/** The run as one of the simulation. */
export const specOf = (saved: SavedRun): RunSpec => {
  const observed = observedOf(saved)
  const seen = pauses(observed)
  // Deaths and cuts are the plan's: a run in which one did not take was not saved as proven.
  const others = saved.spec.faults
    .filter((fault) => !(fault.kind === "pause" && fault.when.at === "point"))
    .map((fault): Fault => {
      if (fault.kind === "cut") return { ...fault, atMillis: fault.atMillis / ratio, millis: fault.millis / ratio }
      if ((fault.kind === "pause" || fault.kind === "kill") && fault.when.at === "time") {
        const when = { ...fault.when, millis: fault.when.millis / ratio }
        return fault.kind === "pause"
          ? { ...fault, when, millis: fault.millis / ratio }
          : { ...fault, when, downMillis: fault.downMillis === null ? null : fault.downMillis / ratio }
      }
      return fault
    })
  return {
    ...saved.spec,
    railLatencyMillis: Math.round(saved.spec.railLatencyMillis / ratio),
    faults: [...seen, ...others]
  }
}

const names = (verdicts: ReadonlyArray<Verdict>) => [...new Set(verdicts.map(harmName))].sort()

/** What the run showed, and what its likeness in virtual time shows. */
export const compare = (saved: SavedRun) => {
  const observed = observedOf(saved)
  const spec = specOf(saved)
  const recorded = names(
    judgeRun({
      ...observed,
      spec: saved.spec,
      paysLate: saved.paysLate,
      settled: saved.history.settled,
      bound: saved.boundMillis
    })
  )
  const { outcome } = simulate(spec, { lockHistory: true })
  const simulated = names(outcome.verdicts)
  return { spec, recorded, simulated, same: JSON.stringify(recorded) === JSON.stringify(simulated) }
}
