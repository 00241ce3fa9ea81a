/** What a soak has to prove of itself: holders that were stopped past their lease inside their section, by the evidence. */
import type { FencingSwitches } from "../core/Fencing.ts"
import { harmName, harmOf, type Verdict } from "../sim/Judge.ts"
import type { Observed } from "./DrillRun.ts"
import type { Call } from "./HttpTap.ts"
import type { LogRecord } from "./Processes.ts"
import type { PayoutNow } from "./ProcessWorld.ts"
import { isHarmOf } from "./RunJudge.ts"

export interface Lock {
  readonly key: string
  readonly token: bigint
}

export interface StopPastLease extends Lock {
  readonly worker: string
  readonly stoppedMillis: number
  /** How long after the end of its lease it went on. */
  readonly pastMillis: number
  /** Somebody else had been granted the key before it went on. */
  readonly overtaken: boolean
}

/** When the lease under this token was last said to end; 0: it was never granted. */
export const leaseEnd = (calls: ReadonlyArray<Call>, key: string, token: bigint): number =>
  calls.reduce(
    (end, call) =>
      // Tokens of two keys may be equal.
      call.key === key && (call.granted ?? call.token) === token && /^lock\.(acquire|renew)$/.test(call.label)
        ? Math.max(end, call.expiresAt ?? 0)
        : end,
    0
  )

/** Of a line that was written under a lock: which one. */
export const lockOf = (record: LogRecord): Lock | undefined => {
  const { fencingToken, lockKey } = record
  return typeof fencingToken === "string" && typeof lockKey === "string"
    ? { key: lockKey, token: BigInt(fencingToken) }
    : undefined
}

const sameLock = (a: LogRecord, b: LogRecord) =>
  a["fencingToken"] === b["fencingToken"] && a["lockKey"] === b["lockKey"] && a["name"] === b["name"]

/**
 * A worker that stopped itself between its check and its submit while its lease ran, and went on when the lease was over.
 * Told by its own log and by what the lock service had answered it, not by who stopped it.
 */
export const stopsPastLease = ({ calls, logs }: Pick<Observed, "calls" | "logs">): ReadonlyArray<StopPastLease> =>
  Object.entries(logs).flatMap(([worker, records]) =>
    records.flatMap((record, at): ReadonlyArray<StopPastLease> => {
      if (record["event"] !== "fault_point_resumed" || record["name"] !== "submit.before") return []
      const lock = lockOf(record)
      const stopped = records
        .slice(0, at)
        .findLast((one) => one["event"] === "fault_point" && one["action"] === "stop" && sameLock(one, record))
      if (lock === undefined || stopped === undefined) return []
      const end = leaseEnd(calls, lock.key, lock.token)
      const from = Date.parse(stopped.timestamp)
      const to = Date.parse(record.timestamp)
      if (!(from < end && end < to)) return []
      const overtaken = calls.some(
        ({ granted, key, label, returned }) =>
          label === "lock.acquire" && key === lock.key && (granted ?? 0n) > lock.token && returned < to
      )
      return [{ worker, ...lock, stoppedMillis: Math.round(to - from), pastMillis: Math.round(to - end), overtaken }]
    })
  )

/** The payouts that are not settled, as people read it: how many, in which states, and the first of them. */
export const openOf = (
  payouts: ReadonlyArray<PayoutNow>,
  most = 4
): { readonly count: number; readonly text: string } => {
  const open = payouts.filter(({ state }) => state !== "POSTED" && state !== "FAILED")
  const states = new Map<string, number>()
  for (const { state } of open) states.set(state, (states.get(state) ?? 0) + 1)
  const counts = [...states].map(([state, count]) => `${count} ${state}`).join(", ")
  const named = open
    .slice(0, most)
    .map(({ accountId, payoutId, state }) => `${payoutId} of ${accountId} ${state}`)
    .join("; ")
  const more = open.length > most ? `; and ${open.length - most} more` : ""
  return { count: open.length, text: open.length === 0 ? "none" : `${counts}: ${named}${more}` }
}

/** What came of one try. */
export interface Tried {
  readonly verdicts: ReadonlyArray<Verdict>
  readonly stops: ReadonlyArray<StopPastLease>
}

export type Conclusion = "held" | "corrupted" | "violated" | "unproven"

/** Whether this try has done all the harm of its row of the matrix, and whether it has done any other. */
const harmed = ({ verdicts }: Tried, switches: FencingSwitches) => isHarmOf(verdicts, switches)
const harmedOtherwise = ({ verdicts }: Tried, switches: FencingSwitches) =>
  verdicts.some((verdict) => !harmOf(switches).may.includes(harmName(verdict)))

/** Another try can show nothing that this one has not. */
export const isDecided = (tried: Tried, switches: FencingSwitches): boolean =>
  (switches.payment && switches.rail) || harmed(tried, switches) || harmedOtherwise(tried, switches)

/**
 * - `violated`: a promise that no switch of a fence takes back was broken (LIVE-01 is one), or with a fence off in no try
 *   was its harm done
 * - `unproven`: a try in which nobody was stopped past the lease inside the section, so what it shows is nothing
 */
export const concluded = (
  tries: ReadonlyArray<Tried>,
  switches: FencingSwitches
): { readonly outcome: Conclusion; readonly why: string } => {
  const on = switches.payment && switches.rail
  const other = tries.filter((tried) => harmedOtherwise(tried, switches))
  if (other.length > 0) return { outcome: "violated", why: on ? "see below" : "other harm than a fence prevents" }
  if (tries.length === 0 || tries.some(({ stops }) => stops.length === 0)) {
    return { outcome: "unproven", why: "no holder was stopped past its lease inside its section" }
  }
  if (on) return { outcome: "held", why: "every payout is settled, once" }
  return tries.some((tried) => harmed(tried, switches))
    ? { outcome: "corrupted", why: "as expected with a fence off" }
    : { outcome: "violated", why: `a fence is off and ${tries.length} tries did not do its harm` }
}
