/**
 * Every single fault, and every pair of them, in the small world: one payout, two workers. The faults are read off the same
 * run without faults, so nothing depends on luck and the first counterexample is a minimal one.
 *
 * Faults that come to the same are tried once: a single fault whose run is the fault-free run (a duplicate that is answered
 * again, a pause of somebody who has nothing to do) is left out, and single faults whose runs are the same message by
 * message stand for each other.
 */
import type { Fixed } from "./Arbitrary.ts"
import type { ChunkResult } from "./Batch.ts"
import { catalogue } from "./Catalogue.ts"
import type { Fault, FaultPlan } from "./FaultPlan.ts"
import { Marks } from "./Marks.ts"
import { run } from "./Run.ts"
import { type RunSpec, settingsOf, simplest, toLine } from "./RunSpec.ts"

/** The small world of a scenario. */
export const smallWorld = (scenario: string, fixed: Fixed): RunSpec => ({
  ...simplest,
  scenario,
  payouts: 1,
  workers: 2,
  lockServers: 1,
  ...fixed,
  faults: []
})

/** Only what can matter: not the reading of lists, and of each thing not more than this many. */
const positionsMax = 14
const messagesMax = 3

/** Every fault of the fault-free run. */
export const faultsOf = (spec: RunSpec): ReadonlyArray<Fault> => {
  const { cluster } = run(spec, { keepVisible: true })
  const lease = settingsOf(spec).lock.defaultTtlMillis
  return catalogue(cluster.network, {
    pauseMillis: [Math.round(lease * 3)],
    delayMillis: [Math.round(lease * 3)],
    duplicateMillis: [Math.round(lease * 3)],
    downMillis: [200],
    node: ({ name }) => !["rail", "reconciler"].includes(name),
    message: ({ label }) => !/listPayouts|sweep|backlog/.test(label),
    visibleMax: positionsMax,
    messagesMax
  })
}

export interface Catalogued {
  readonly found: number
  /** One of each class of faults whose runs are equal. */
  readonly faults: ReadonlyArray<Fault>
  /** Faults whose run is the one without faults. */
  readonly harmless: number
}

/** Runs each single fault and keeps one of each class. */
export const distinct = (spec: RunSpec, faults: ReadonlyArray<Fault>): Catalogued => {
  const nothing = run(spec, { lockHistory: false }).outcome
  const classes = new Map<string, Fault>()
  let harmless = 0
  for (const fault of faults) {
    const { outcome } = run({ ...spec, faults: [fault] }, { lockHistory: false })
    if (outcome.hits[0] === 0 || outcome.hash === nothing.hash) harmless++
    else if (!classes.has(outcome.hash)) classes.set(outcome.hash, fault)
  }
  return { found: faults.length, faults: [...classes.values()], harmless }
}

export interface ExhaustJob {
  readonly spec: RunSpec
  readonly part: number
  readonly plans: ReadonlyArray<FaultPlan>
}

/** Singles, then pairs, in parts of so many. */
export const plansOf = (faults: ReadonlyArray<Fault>, size: 1 | 2): ReadonlyArray<FaultPlan> => {
  const plans: Array<FaultPlan> = faults.map((fault) => [fault])
  if (size === 2) {
    for (let a = 0; a < faults.length; a++) {
      for (let b = a + 1; b < faults.length; b++) plans.push([faults[a]!, faults[b]!])
    }
  }
  return plans
}

export const runPart = ({ part, plans, spec }: ExhaustJob): ChunkResult => {
  const marks = new Marks()
  const totals = { micros: 0, slices: 0, calls: 0 }
  let runs = 0
  for (const faults of plans) {
    const planned = { ...spec, faults }
    // the singles show that everybody ends when told to
    const { outcome } = run(planned, { lockHistory: false, stop: faults.length < 2 })
    runs++
    marks.add(outcome.marks)
    totals.micros += outcome.micros
    totals.slices += outcome.slices
    totals.calls += outcome.calls
    if (outcome.verdicts.length > 0) {
      const line = toLine(planned)
      const failure = { drawn: line, line, verdicts: outcome.verdicts, hash: outcome.hash, shrinks: 0 }
      return { chunk: part, runs, failure, marks: marks.toRecord(), ...totals, lockChecked: 0, lockDisagreed: 0 }
    }
  }
  return { chunk: part, runs, failure: undefined, marks: marks.toRecord(), ...totals, lockChecked: 0, lockDisagreed: 0 }
}
