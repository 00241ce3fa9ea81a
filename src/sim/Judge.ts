/**
 * Whether a run kept its promises: what the recorder found while it ran, and what the history shows afterwards.
 */
import type { FencingSwitches } from "../core/Fencing.ts"
import type { History } from "../core/History.ts"
import { everyPayoutTerminal, judge as judgeHistory } from "../core/Invariants.ts"
import { checkLinearizable } from "../core/Linearizability.ts"
import type { LockOp } from "../core/LockHistory.ts"
import { checkTokenOrder } from "../core/TokenOrder.ts"
import { boundMillis, settingsOf } from "./RunSpec.ts"
import type { Cluster } from "./Cluster.ts"
import { unsound } from "./Leaks.ts"
import { violationsOf } from "./SimPaydb.ts"

export interface Verdict {
  /** INV-01 .., LIVE-01, or one of the simulation's own checks. */
  readonly check: string
  readonly subject: string
  readonly detail: string
}

export interface Judged {
  readonly verdicts: ReadonlyArray<Verdict>
  /** What the three lock checkers said, if the searching ones were asked. */
  readonly lockCheckers:
    | { readonly oracle: boolean; readonly tokenOrder: boolean; readonly linearizable: "ok" | "violated" | "unknown" }
    | undefined
}

export const judge = (
  cluster: Cluster,
  history: History,
  { lockHistory, terminal }: { readonly terminal: boolean; readonly lockHistory: boolean }
): Judged => {
  const { recorder, spec } = cluster
  const verdicts: Array<Verdict> = recorder.findings.map(({ check, detail, subject }) => ({ check, subject, detail }))
  for (const { detail, invariant, subject } of judgeHistory(history)) {
    verdicts.push({ check: invariant, subject, detail })
  }
  verdicts.push(...oneTokenOneSubmission(history))
  // What the database itself would show an operator. With a switch off it shows the harm that is expected.
  if (spec.paymentFencing && spec.railFencing && spec.guards) {
    for (const [name, count] of Object.entries(violationsOf(cluster.paydb))) {
      const pardoned = name === "INV-06" && !terminal
      if (count > 0 && !pardoned)
        verdicts.push({ check: `paydb ${name}`, subject: "paydb", detail: `${count} rows violate ${name}` })
    }
  }
  if (!terminal) {
    for (const { detail, subject } of everyPayoutTerminal(history)) {
      verdicts.push({ check: "LIVE-01", subject, detail: `${detail} ${boundMillis(spec) / 1000} s after the faults` })
    }
  }
  for (const problem of unsound(cluster.world)) verdicts.push({ check: "SOUND", subject: "program", detail: problem })
  return { verdicts, lockCheckers: lockHistory ? checkLocks(cluster, verdicts) : undefined }
}

/** One grant submits at most one payout. Voided slots count: they are taken under the token too. */
const oneTokenOneSubmission = (history: History): ReadonlyArray<Verdict> => {
  const payoutOf = new Map<string, string>()
  const found: Array<Verdict> = []
  for (const { accountId, fenced, payoutId, token } of history.submissions) {
    if (!fenced) continue
    const name = `${accountId} under token ${token}`
    const before = payoutOf.get(name)
    if (before !== undefined && before !== payoutId) {
      found.push({ check: "ONE-TOKEN-ONE-SUBMISSION", subject: name, detail: `submitted ${before} and ${payoutId}` })
    }
    payoutOf.set(name, payoutId)
  }
  return found
}

/** The two checkers that see calls and answers only, and whether they agree with the oracle, which sees commits. */
const checkLocks = (cluster: Cluster, verdicts: Array<Verdict>): Judged["lockCheckers"] => {
  const { recorder } = cluster
  const oracle = recorder.findings.every(({ check }) => check !== "ORACLE")
  // Who does not wait may not overtake those who do: "held" then says nothing of a holder.
  const evidence = recorder.lockOps.filter(({ answer, key }) => answer !== "held" || !recorder.waitedFor.has(key ?? ""))
  const ops = inStoreTime([...evidence, ...grantedUnheard(recorder)], recorder.lockdb?.wallRate ?? 1)
  const order = checkTokenOrder(ops)
  for (const { detail, key } of order) verdicts.push({ check: "TOKEN-ORDER", subject: key, detail })
  const linearizable = checkLinearizable(ops, 20_000)
  for (const { detail, key } of linearizable.violations) verdicts.push({ check: "LINEARIZABLE", subject: key, detail })
  return { oracle, tokenOrder: order.length === 0, linearizable: linearizable.verdict }
}

/**
 * A second copy of an acquire may be granted long after the first was refused, and nobody hears of it. Calls and answers
 * alone can not tell, so the store is asked, as one asks the audit of a real one. The grant ends with its lease.
 */
const grantedUnheard = ({ grants, lockOps }: Cluster["recorder"]): ReadonlyArray<LockOp> => {
  const nameOf = (sessionId: string | null, key: string | null, id: string | null) => `${sessionId} ${key} ${id}`
  const heard = new Set<string>()
  const refused = new Map<string, LockOp>()
  for (const op of lockOps) {
    if (op.call !== "acquire") continue
    const name = nameOf(op.sessionId, op.key, op.requestId)
    if (op.answer === "ok" || op.answer === "unknown") heard.add(name)
    else if (!refused.has(name)) refused.set(name, op)
  }
  return grants.flatMap(({ acquireId, key, sessionId, ttlMillis }): ReadonlyArray<LockOp> => {
    const name = nameOf(sessionId, key, acquireId)
    const op = heard.has(name) ? undefined : refused.get(name)
    return op === undefined ? [] : [{ ...op, returned: Infinity, answer: "unknown", ttlMillis }]
  })
}

/** A store whose clock is fast ends leases early by as much. */
const inStoreTime = (ops: ReadonlyArray<LockOp>, rate: number): ReadonlyArray<LockOp> =>
  // whole milliseconds of the store against microseconds of the world: one is given away
  ops.map((op) => (op.ttlMillis === 0 ? op : { ...op, ttlMillis: op.ttlMillis / Math.max(1, rate) - 1 }))

/** The harm that a row of the kill-switch matrix names, as checks that must and that may fail. */
export interface Harm {
  readonly must: ReadonlyArray<string>
  readonly may: ReadonlyArray<string>
}

/**
 * With the resource's fence off the ledger posts twice and the rail pays once; with the rail's off the rail pays twice and
 * the ledger posts once. That stale writes are accepted there, and moves nobody ordered, is the same harm seen elsewhere.
 */
export const harmOf = ({ payment, rail }: FencingSwitches): Harm => ({
  must: [...(payment ? [] : ["ONE-POSTING"]), ...(rail ? [] : ["INV-02"])],
  may: [
    ...(payment ? [] : ["ONE-POSTING", "INV-05 resource", "INV-08 moves"]),
    ...(rail ? [] : ["INV-02", "INV-05 rail", "INV-08 submissions", "INV-06"])
  ]
})

/** The name under which `harmOf` knows a verdict. */
export const harmName = ({ check, detail, subject }: Verdict): string => {
  if (check === "INV-05") return subject.startsWith("rail of") ? "INV-05 rail" : "INV-05 resource"
  if (check === "INV-08") return detail.includes("submissions under") ? "INV-08 submissions" : "INV-08 moves"
  return check
}

/** How long a key may stay held with nobody inside its section. */
export const leakMillis = (cluster: Cluster): number => {
  const { lock } = settingsOf(cluster.spec)
  return lock.defaultTtlMillis + lock.sessionTtlMillis
}
