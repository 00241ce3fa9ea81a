/**
 * The outcome of one paused-worker experiment, as data: what each hop was answered with which token, and the figures
 * that the databases and the rail's own book show afterwards. Pure; `PausedWorker.ts` carries the experiment out.
 */
import { type FencingSwitches, switchMatrix } from "../core/Fencing.ts"

export type Participant = "W1" | "W2"

/** One call of a worker and its answer, or something that happened to a worker. Times are ms since the row began. */
export interface Hop {
  readonly at: number
  readonly worker: Participant
  readonly op: "acquire" | "claim" | "submit" | "post" | "release" | "stopped" | "resumed" | "lock lost"
  readonly token: string | null
  readonly outcome: string
  /** Sent by a worker that had lost its lock. */
  readonly stale: boolean
}

/** One row of the matrix. Money in minor units, as a plain number: the experiment's amounts are small. */
export interface MatrixRow {
  readonly paymentFencing: boolean
  readonly railFencing: boolean
  /** What the stale worker's calls were answered: FENCED_OUT, or what they achieved. */
  readonly staleClaim: string
  readonly staleSubmit: string
  readonly stalePost: string
  readonly railExecutions: number
  readonly postings: number
  readonly balanceMinor: number
  /** Names of the invariants that the run violated. */
  readonly violations: ReadonlyArray<string>
}

export interface RowReport {
  readonly row: MatrixRow
  readonly hops: ReadonlyArray<Hop>
  /** What differs from the expected figures; empty when nothing does. */
  readonly differences: ReadonlyArray<string>
}

export const OPENING_MINOR = 10_000
export const AMOUNT_MINOR = 2_500

/**
 * What must come out. A fence that is on refuses the stale worker at its point; one that is off lets exactly its own
 * harm through: the resource's a second posting, the rail's a second payment.
 */
export const expectedRow = (switches: FencingSwitches): Omit<MatrixRow, "violations"> => ({
  paymentFencing: switches.payment,
  railFencing: switches.rail,
  staleClaim: switches.payment ? "FENCED_OUT" : "CLAIMED",
  staleSubmit: switches.rail ? "FENCED_OUT" : "ACKED",
  stalePost: switches.payment ? "FENCED_OUT" : "POSTED",
  railExecutions: switches.rail ? 1 : 2,
  postings: switches.payment ? 1 : 2,
  balanceMinor: OPENING_MINOR - AMOUNT_MINOR * (switches.payment ? 1 : 2)
})

/** The invariants that must be violated with these switches, and no other may be. */
export const expectedViolations = (switches: FencingSwitches): ReadonlyArray<string> => [
  ...(switches.rail ? [] : ["INV-02"]),
  ...(switches.payment ? [] : ["ONE-POSTING"])
]

export const differencesOf = (row: MatrixRow): ReadonlyArray<string> => {
  const switches = { payment: row.paymentFencing, rail: row.railFencing }
  const expected = expectedRow(switches)
  const figures = (Object.keys(expected) as ReadonlyArray<keyof typeof expected>).flatMap((name) =>
    row[name] === expected[name] ? [] : [`${name} is ${row[name]}, expected ${expected[name]}`]
  )
  const missing = expectedViolations(switches).filter((name) => !row.violations.includes(name))
  return [...figures, ...missing.map((name) => `${name} was expected to be violated and was not`)].concat(
    switches.payment && switches.rail && row.violations.length > 0
      ? [`with both fences on nothing may be violated, but ${row.violations.join(", ")} was`]
      : []
  )
}

export const matrix: ReadonlyArray<FencingSwitches> = switchMatrix

/** The one document of `demo --json`. */
export interface DemoDocument {
  readonly rows: ReadonlyArray<MatrixRow>
  /** `proven`: fencing held and its absence corrupted, with exactly the expected figures. Else `differs`. */
  readonly verdict: "proven" | "differs"
}
