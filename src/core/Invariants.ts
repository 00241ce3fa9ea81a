/**
 * INV-01 to INV-08 and LIVE-01 as pure functions of a `History`: one ruler for the simulation, the harness and a
 * production ledger. Each check answers the violations it found, in words that quote what was promised.
 *
 * INV-07 (no protected write can be expressed without a token) is a fact of the types and has no check here.
 */
import type { History } from "./History.ts"
import { imbalance } from "./payment/Ledger.ts"
import { legalTransitions } from "./payment/Payout.ts"

export type InvariantName =
  | "INV-01"
  | "INV-02"
  | "INV-03"
  | "INV-04"
  | "INV-05"
  | "INV-06"
  | "INV-08"
  | "ONE-POSTING"
  | "ONE-TOKEN-ONE-CLAIM"
  | "INTENT-FIRST"
  | "LIVE-01"

export interface Violation {
  readonly invariant: InvariantName
  /** The key, account or payout it is about. */
  readonly subject: string
  readonly detail: string
}

type Check = (history: History) => ReadonlyArray<Violation>

const groupBy = <A>(items: ReadonlyArray<A>, keyOf: (item: A) => string): Map<string, Array<A>> => {
  const groups = new Map<string, Array<A>>()
  for (const item of items) {
    const key = keyOf(item)
    const group = groups.get(key)
    if (group === undefined) groups.set(key, [item])
    else group.push(item)
  }
  return groups
}

/** A grant may follow another only after the other's end is in the audit; an expiry only after its lease ran out. */
export const oneLiveGrant: Check = (history) => {
  const found: Array<Violation> = []
  const live = new Map<
    string,
    { readonly token: bigint; readonly sessionId: string | null; readonly expiresAt: number }
  >()
  for (const event of history.lock) {
    if (event.kind === "session_ended") {
      for (const [key, holder] of live) if (holder.sessionId === event.sessionId) live.delete(key)
      continue
    }
    const key = event.key ?? ""
    const holder = live.get(key)
    if (event.kind === "granted") {
      if (holder !== undefined) {
        found.push({
          invariant: "INV-01",
          subject: key,
          detail: `token ${event.token} was granted while token ${holder.token} was live`
        })
      }
      live.set(key, { token: event.token ?? 0n, sessionId: event.sessionId, expiresAt: event.expiresAt ?? 0 })
    } else if (holder !== undefined && holder.token === event.token) {
      if (event.kind === "expired" && event.at < holder.expiresAt) {
        found.push({
          invariant: "INV-01",
          subject: key,
          detail: `token ${event.token} was called expired ${holder.expiresAt - event.at} ms before its lease ended`
        })
      }
      live.delete(key)
    }
  }
  return found
}

export const tokensIncrease: Check = (history) => {
  const found: Array<Violation> = []
  const last = new Map<string, bigint>()
  for (const event of history.lock) {
    if (event.kind !== "granted" || event.key === null || event.token === null) continue
    const before = last.get(event.key) ?? 0n
    if (event.token <= before) {
      found.push({
        invariant: "INV-04",
        subject: event.key,
        detail: `token ${event.token} was granted after ${before}`
      })
    }
    last.set(event.key, event.token > before ? event.token : before)
  }
  return found
}

export const oneSubmission: Check = (history) => {
  const payoutOf = new Map(history.payouts.map((payout) => [payout.clientReference, payout.payoutId]))
  return [...groupBy(history.rail, (payment) => payment.clientReference)].flatMap(([reference, payments]) =>
    payments.length > 1
      ? [
          {
            invariant: "INV-02" as const,
            subject: payoutOf.get(reference) ?? reference,
            detail: `the rail paid ${payments.length} times: ${payments.map((p) => p.railReference).join(", ")}`
          }
        ]
      : []
  )
}

export const intentFirst: Check = (history) => {
  const recorded = new Set(
    history.submissions.filter((s) => s.outcome !== "VOIDED").map((submission) => submission.clientReference)
  )
  return history.rail.flatMap((payment) =>
    recorded.has(payment.clientReference)
      ? []
      : [
          {
            invariant: "INTENT-FIRST" as const,
            subject: payment.clientReference,
            detail: "the rail paid what no submission record knows"
          }
        ]
  )
}

export const ledgerBalances: Check = (history) => {
  const found: Array<Violation> = history.journals.flatMap((journal) =>
    imbalance(journal.entries).map((detail) => ({
      invariant: "INV-03" as const,
      subject: `journal ${journal.journalId}`,
      detail
    }))
  )
  const sums = new Map<string, bigint>()
  for (const journal of history.journals) {
    for (const entry of journal.entries) {
      sums.set(entry.accountId, (sums.get(entry.accountId) ?? 0n) + entry.amountMinor)
    }
  }
  for (const account of history.accounts) {
    const derived = sums.get(account.accountId) ?? 0n
    if (account.balanceMinor !== derived) {
      found.push({
        invariant: "INV-03",
        subject: account.accountId,
        detail: `balance ${account.balanceMinor}, but its entries sum to ${derived}`
      })
    }
  }
  return found
}

/** Sum-zero proves nothing about duplicates: this does. */
export const onePosting: Check = (history) => {
  const postings = history.journals.filter((journal) => journal.kind === "PAYOUT" && journal.payoutId !== null)
  return [...groupBy(postings, (journal) => journal.payoutId ?? "")].flatMap(([payoutId, journals]) =>
    journals.length > 1
      ? [{ invariant: "ONE-POSTING" as const, subject: payoutId, detail: `posted ${journals.length} times` }]
      : []
  )
}

/**
 * Per fence point and resource: an accepted token never goes back, and a refused write changes nothing. Across points
 * there is no order: T1 accepted at the rail after T2 was accepted at the resource is legal until T2 submits.
 */
export const staleChangesNothing: Check = (history) => {
  const found: Array<Violation> = []
  const highest = new Map<string, bigint>()
  for (const event of history.fences) {
    const fence = `${event.point} of ${event.resource}`
    const before = highest.get(fence) ?? 0n
    if (event.accepted && event.token < before) {
      found.push({
        invariant: "INV-05",
        subject: fence,
        detail: `${event.op} under token ${event.token} was accepted after token ${before}`
      })
    }
    if (!event.accepted && event.rowsChanged > 0) {
      found.push({
        invariant: "INV-05",
        subject: fence,
        detail: `${event.op} under token ${event.token} was refused and changed ${event.rowsChanged} rows`
      })
    }
    if (event.accepted && event.token > before) highest.set(fence, event.token)
  }
  // The same from the payouts' own history: the tokens that moved an account never go back.
  const moved = new Map<string, bigint>()
  for (const transition of history.transitions) {
    if (transition.token === null) continue
    const before = moved.get(transition.accountId) ?? 0n
    if (transition.token < before) {
      found.push({
        invariant: "INV-05",
        subject: transition.accountId,
        detail: `payout ${transition.payoutId} became ${transition.to} under token ${transition.token} after token ${before}`
      })
    } else moved.set(transition.accountId, transition.token)
  }
  return found
}

export const oneTokenOneClaim: Check = (history) => {
  const claims = history.transitions.filter((t) => t.to === "CLAIMED" && t.token !== null)
  return [...groupBy(claims, (claim) => `${claim.accountId} under token ${claim.token}`)].flatMap(
    ([subject, group]) => {
      const payouts = new Set(group.map((claim) => claim.payoutId))
      return payouts.size > 1
        ? [{ invariant: "ONE-TOKEN-ONE-CLAIM" as const, subject, detail: `claimed ${[...payouts].join(" and ")}` }]
        : []
    }
  )
}

/** Only when settled: before that POSTED may run ahead of what reconciliation has found. */
export const statesAgreeWithRail: Check = (history) => {
  if (!history.settled) return []
  const paid = groupBy(history.rail, (payment) => payment.clientReference)
  const adjusted = new Set(
    history.journals.filter((j) => j.kind === "ADJUSTMENT" && j.payoutId !== null).map((j) => j.payoutId)
  )
  return history.payouts.flatMap((payout): ReadonlyArray<Violation> => {
    const times = paid.get(payout.clientReference)?.length ?? 0
    const wrong =
      (payout.state === "POSTED" && times !== 1) ||
      (payout.state === "FAILED" && times !== 0 && !adjusted.has(payout.payoutId))
    return wrong
      ? [{ invariant: "INV-06", subject: payout.payoutId, detail: `${payout.state}, but the rail paid ${times} times` }]
      : []
  })
}

export const ambiguousIsFinal: Check = (history) => {
  const found: Array<Violation> = []
  for (const [payoutId, moves] of groupBy(history.transitions, (transition) => transition.payoutId)) {
    let state: string | null = null
    for (const move of moves) {
      const legal = legalTransitions.some((rule) => rule.from === move.from && rule.to === move.to)
      if (move.from !== state || !legal) {
        found.push({ invariant: "INV-08", subject: payoutId, detail: `went from ${state} to ${move.to}` })
      }
      state = move.to
    }
  }
  for (const [payoutId, submissions] of groupBy(history.submissions, (submission) => submission.payoutId)) {
    if (submissions.length > 1) {
      found.push({
        invariant: "INV-08",
        subject: payoutId,
        detail: `${submissions.length} submissions under tokens ${submissions.map((s) => s.token).join(", ")}`
      })
    }
  }
  return found
}

const checks: ReadonlyArray<Check> = [
  oneLiveGrant,
  tokensIncrease,
  oneSubmission,
  intentFirst,
  ledgerBalances,
  onePosting,
  staleChangesNothing,
  oneTokenOneClaim,
  statesAgreeWithRail,
  ambiguousIsFinal
]

/** Every safety violation of a history; empty when all promises hold. */
export const judge = (history: History): ReadonlyArray<Violation> => checks.flatMap((check) => check(history))

/** LIVE-01: asked only after faults have stopped and the scenario's bound has passed. */
export const everyPayoutTerminal: Check = (history) =>
  history.payouts.flatMap((payout): ReadonlyArray<Violation> =>
    payout.state === "POSTED" || payout.state === "FAILED"
      ? []
      : [{ invariant: "LIVE-01", subject: payout.payoutId, detail: `still ${payout.state}` }]
  )
