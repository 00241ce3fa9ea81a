/**
 * A chunk of a batch: some runs of a scenario drawn from one seed, and if one fails, the simplest run that fails the same
 * way. A chunk is a function of its arguments, so that a batch comes to the same whoever runs which chunk.
 */
import { check, consistent, type Fixed } from "./Arbitrary.ts"
import { mix } from "./Draw.ts"
import { withTraps } from "./Leaks.ts"
import { Marks } from "./Marks.ts"
import { type Outcome, run } from "./Run.ts"
import { type RunSpec, simplest, toLine } from "./RunSpec.ts"
import { scenarioOf, workerPoints } from "./Scenario.ts"
import { settingsOf } from "./RunSpec.ts"

export interface ChunkJob {
  readonly scenario: string
  readonly fixed: Fixed
  readonly seed: number
  readonly chunk: number
  readonly runs: number
  /** With real time, randomness and promises forbidden while a run goes on. Slower. */
  readonly traps: boolean
}

export interface Failure {
  /** The run as one line, as it was drawn and as it was shrunk. */
  readonly drawn: string
  readonly line: string
  /** What it violates, the worst first. */
  readonly verdicts: Outcome["verdicts"]
  readonly hash: string
  readonly shrinks: number
}

export interface ChunkResult {
  readonly chunk: number
  /** Until the failure, it included; without the runs that the shrinking took. */
  readonly runs: number
  readonly failure: Failure | undefined
  readonly marks: Readonly<Record<string, number>>
  readonly micros: number
  readonly slices: number
  readonly calls: number
  /** Runs that all three lock checkers have looked at, and those of which one said something else than the others. */
  readonly lockChecked: number
  readonly lockDisagreed: number
}

/** What tells one kind of failure from another: a shrinker must not walk from one bug to the next. */
const kindOf = (verdicts: Outcome["verdicts"]): string => verdicts[0]?.check ?? ""

const rank = ["INV-02", "ONE-POSTING", "INV-03", "INV-06", "INV-01", "INV-04"]
const worstFirst = (verdicts: Outcome["verdicts"]): Outcome["verdicts"] =>
  verdicts.toSorted((a, b) => place(a.check) - place(b.check))
const place = (check: string): number => {
  const at = rank.indexOf(check)
  return at < 0 ? rank.length : at
}

export const runChunk = ({ chunk, fixed, runs, scenario, seed, traps }: ChunkJob): ChunkResult => {
  const marks = new Marks()
  const totals = { micros: 0, slices: 0, calls: 0, lockChecked: 0, lockDisagreed: 0 }
  let kind: string | undefined
  let drawn: RunSpec | undefined
  const fails = (spec: RunSpec): boolean => {
    const outcome = attempt(spec, traps)
    if (typeof outcome === "string") {
      drawn ??= spec
      kind ??= "SOUND"
      return kind === "SOUND"
    }
    const { lockCheckers } = outcome
    if (kind === undefined) {
      marks.add(outcome.marks)
      totals.micros += outcome.micros
      totals.slices += outcome.slices
      totals.calls += outcome.calls
      if (lockCheckers !== undefined) {
        totals.lockChecked++
        const said = new Set([lockCheckers.oracle, lockCheckers.tokenOrder, lockCheckers.linearizable !== "violated"])
        if (said.size > 1) totals.lockDisagreed++
      }
    }
    const verdicts = worstFirst(outcome.verdicts)
    if (verdicts.length === 0) return false
    if (kind === undefined) {
      kind = kindOf(verdicts)
      drawn = spec
    }
    return verdicts.some(({ check }) => check === kind)
  }
  const checked = check(scenarioOf(scenario), fixed, mix(seed, 0xc4, chunk) | 0, runs, fails)
  const shrunk = checked.failed
  return {
    chunk,
    runs: checked.numRuns,
    failure:
      shrunk === undefined || drawn === undefined
        ? undefined
        : failureOf(drawn, simpler(shrunk, fails), checked.numShrinks, traps),
    marks: marks.toRecord(),
    ...totals
  }
}

/** A run that throws has leaked something, or is a bug of the simulation: what it says. */
const attempt = (spec: RunSpec, traps: boolean): Outcome | string => {
  try {
    return (traps ? withTraps(() => run(spec)) : run(spec)).outcome
  } catch (error) {
    return String(error)
  }
}

const failureOf = (drawn: RunSpec, spec: RunSpec, shrinks: number, traps: boolean): Failure => {
  const outcome = attempt(spec, traps)
  if (typeof outcome === "string") {
    const verdicts = [{ check: "SOUND", subject: "simulation", detail: outcome }]
    return { drawn: toLine(drawn), line: toLine(spec), verdicts, hash: "", shrinks }
  }
  return {
    drawn: toLine(drawn),
    line: toLine(spec),
    verdicts: worstFirst(outcome.verdicts),
    hash: outcome.hash,
    shrinks
  }
}

/**
 * A shrinker takes away; what is left may still be a strange way to a common harm (three lost messages instead of one
 * stop). So the plain ways are tried in the plainest world: each single stop of a worker at a step of its turn.
 */
const simpler = (spec: RunSpec, fails: (spec: RunSpec) => boolean): RunSpec => {
  const plain: RunSpec = {
    ...simplest,
    scenario: spec.scenario,
    seed: spec.seed,
    wire: spec.wire,
    paymentFencing: spec.paymentFencing,
    railFencing: spec.railFencing,
    guards: spec.guards,
    mutant: spec.mutant
  }
  const isPlain = (one: RunSpec) => toLine({ ...one, faults: [] }) === toLine(plain)
  if (isPlain(spec) && spec.faults.length === 0) return spec
  if (fails(plain)) return plain
  if (isPlain(spec) && spec.faults.length === 1) return spec
  const millis = Math.round(settingsOf(spec).lock.defaultTtlMillis * 3.5)
  for (const name of workerPoints) {
    for (const node of ["w1", "w2"]) {
      const held: RunSpec = {
        ...plain,
        faults: [{ kind: "pause", node, when: { at: "point", name, nth: 1 }, millis }]
      }
      if (fails(held)) return held
    }
  }
  const withFaults = consistent({ ...plain, faults: spec.faults })
  return withoutEach(fails(withFaults) ? withFaults : spec, fails)
}

/** Without every fault that it also fails without: faults that are drawn together are shrunk together. */
const withoutEach = (spec: RunSpec, fails: (spec: RunSpec) => boolean): RunSpec => {
  let kept = spec
  for (let i = spec.faults.length - 1; i >= 0; i--) {
    const fewer = { ...kept, faults: kept.faults.filter((_, index) => index !== i) }
    if (fails(fewer)) kept = fewer
  }
  return kept
}
