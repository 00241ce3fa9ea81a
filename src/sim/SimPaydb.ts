/**
 * paydb in memory: the state that payment-resource and rail-proxy share, and what is derived from it. The two stores over
 * it, `SimPaymentStore` and `SimSubmissionStore`, change it in synchronous steps, which is what a transaction is here.
 *
 * The clock is that of the fiber that made it: a service whose clock is wrong does not get to judge finality.
 */
import { Clock, Context, Effect, Layer } from "effect"
import type { AcquireId, FencingToken, Instant, OwnerId } from "../core/lock/Lock.ts"
import {
  clearingAccountOf,
  fundingAccountOf,
  type JournalKind,
  type LedgerEntry,
  suspenseAccountOf
} from "../core/payment/Ledger.ts"
import type { CheckedInvariant } from "../core/payment/PaymentStore.ts"
import {
  type AccountId,
  type FailReason,
  type NextStep,
  nextStep,
  type PayoutId,
  type PayoutState,
  type PayoutTransition,
  type RailVerdict,
  type SubmissionOutcome
} from "../core/payment/Payout.ts"
import type { LookupResult } from "../core/rail/RailProxy.ts"

export interface SimAccount {
  readonly accountId: AccountId
  readonly kind: "CUSTOMER" | "CLEARING" | "SUSPENSE" | "FUNDING"
  readonly currency: string
  balanceMinor: bigint
  reservedMinor: bigint
  /** Fence point (a). */
  fence: bigint
}

export interface SimPayout {
  readonly payoutId: PayoutId
  readonly accountId: AccountId
  readonly amountMinor: bigint
  readonly currency: string
  readonly beneficiary: string
  readonly clientReference: string
  readonly idempotencyKey: AcquireId
  /** The content of the order, to tell a repeat from another order under the same key. */
  readonly content: string
  readonly createdAt: Instant
  state: PayoutState
  claimToken: FencingToken | null
  lastToken: FencingToken | null
  failReason: FailReason | null
  updatedAt: Instant
}

/** Fence point (c), of one account. */
export interface SimHighWater {
  token: FencingToken
  /** What the token was spent on. */
  payoutId: PayoutId
  actor: OwnerId
}

export interface SimSubmission {
  readonly submissionId: string
  readonly payoutId: PayoutId
  readonly accountId: AccountId
  readonly token: FencingToken
  readonly actor: OwnerId
  /** False: written while the rail's kill switch was off. */
  readonly fenced: boolean
  readonly intentAt: Instant
  readonly sendBy: Instant
  readonly reason: string | null
  /** Written once. */
  outcome: SubmissionOutcome
  outcomeAt: Instant | null
  railReference: string | null
  railCode: string | null
}

export interface SimLookup {
  readonly payoutId: PayoutId
  readonly result: LookupResult
  readonly executedCount: number
  readonly railReference: string | null
  readonly source: "LOOKUP" | "STATEMENT" | "OPERATOR"
  readonly actor: OwnerId
  readonly askedAt: Instant
}

export interface SimJournal {
  readonly journalId: bigint
  readonly kind: JournalKind
  readonly payoutId: PayoutId | null
  readonly actor: OwnerId
  readonly token: FencingToken | null
  readonly fenced: boolean
  readonly at: Instant
  readonly entries: ReadonlyArray<LedgerEntry>
}

/** When "not found at the rail" may be believed. */
export interface RailPolicy {
  readonly finalityWindowMillis: number
  readonly minNotFound: number
  readonly minSpacingMillis: number
}

export const defaultPolicy: RailPolicy = {
  finalityWindowMillis: 60 * 60_000,
  minNotFound: 2,
  minSpacingMillis: 5 * 60_000
}

export interface SimPaydbState {
  readonly now: () => Instant
  readonly accounts: Map<AccountId, SimAccount>
  /** In order of creation. */
  readonly payouts: Map<PayoutId, SimPayout>
  readonly highWater: Map<AccountId, SimHighWater>
  /** In order of intent. */
  readonly submissions: Array<SimSubmission>
  readonly lookups: Array<SimLookup>
  readonly journals: Array<SimJournal>
  readonly transitions: Array<PayoutTransition & { readonly payoutId: PayoutId; readonly accountId: AccountId }>
  /** The database's kill switches; false only in the experiment. */
  readonly switches: { resource: boolean; rail: boolean }
  policy: RailPolicy
}

export class SimPaydb extends Context.Service<SimPaydb, SimPaydbState>()("dlock/sim/SimPaydb") {}

export interface SimPaydbOptions {
  readonly policy?: RailPolicy | undefined
  readonly switches?: { readonly resource: boolean; readonly rail: boolean } | undefined
}

/** The currencies that the house has accounts for. */
export const currencies: ReadonlyArray<string> = ["EUR", "GBP", "USD"]

export const make = (options?: SimPaydbOptions): Effect.Effect<SimPaydbState> =>
  Effect.map(Clock.Clock, (clock) => {
    const accounts = new Map<AccountId, SimAccount>()
    const open = (accountId: string, kind: SimAccount["kind"], currency: string) =>
      accounts.set(accountId as AccountId, {
        accountId: accountId as AccountId,
        kind,
        currency,
        balanceMinor: 0n,
        reservedMinor: 0n,
        fence: 0n
      })
    for (const currency of currencies) {
      open(clearingAccountOf(currency), "CLEARING", currency)
      open(suspenseAccountOf(currency), "SUSPENSE", currency)
      open(fundingAccountOf(currency), "FUNDING", currency)
    }
    return {
      now: () => clock.currentTimeMillisUnsafe(),
      accounts,
      payouts: new Map(),
      highWater: new Map(),
      submissions: [],
      lookups: [],
      journals: [],
      transitions: [],
      switches: { ...(options?.switches ?? { resource: true, rail: true }) },
      policy: options?.policy ?? defaultPolicy
    }
  })

export const layer = (options?: SimPaydbOptions): Layer.Layer<SimPaydb> => Layer.effect(SimPaydb, make(options))

// -----------------------------------------------------------------------------
// what is derived
// -----------------------------------------------------------------------------

/** The submission that counts: the fenced one if there is one, else (in the experiment) the first. */
export const submissionOf = (db: SimPaydbState, payoutId: PayoutId): SimSubmission | undefined => {
  const own = db.submissions.filter((submission) => submission.payoutId === payoutId)
  return own.find((submission) => submission.fenced) ?? own[0]
}

/** `rail_verdict`: the only input of a terminal transition. Asks no clock. */
export const verdictOf = (db: SimPaydbState, payoutId: PayoutId): RailVerdict => {
  const sent = submissionOf(db, payoutId)
  if (sent === undefined) return "NONE"
  if (sent.outcome === "DECLINED" || sent.outcome === "VOIDED") return "NOT_EXECUTED"
  if (sent.outcome === "ACKED") return "EXECUTED"

  const said = db.lookups.filter((lookup) => lookup.payoutId === payoutId)
  const executed = said.some((lookup) => lookup.result === "EXECUTED")
  const rejected = said.some((lookup) => lookup.result === "REJECTED")
  if (executed && rejected) {
    const decided = said.findLast(
      ({ result, source }) => source === "OPERATOR" && (result === "EXECUTED" || result === "REJECTED")
    )
    return decided === undefined ? "CONFLICT" : decided.result === "EXECUTED" ? "EXECUTED" : "NOT_EXECUTED"
  }
  if (executed) return "EXECUTED"
  if (rejected) return "NOT_EXECUTED"
  // "Not found" proves nothing until the send can not happen any more and the rail has had time to show it.
  const { finalityWindowMillis, minNotFound, minSpacingMillis } = db.policy
  const final = said
    .filter(({ askedAt, result }) => result === "NOT_FOUND" && askedAt >= sent.sendBy + finalityWindowMillis)
    .map((lookup) => lookup.askedAt)
  const spread = Math.max(...final) - Math.min(...final)
  return final.length >= minNotFound && spread >= minSpacingMillis * (minNotFound - 1) ? "NOT_EXECUTED" : "UNKNOWN"
}

export const nextStepOf = (db: SimPaydbState, payout: SimPayout): NextStep =>
  nextStep(payout.state, submissionOf(db, payout.payoutId)?.outcome, verdictOf(db, payout.payoutId))

/** What the rail calls the payment: from the acknowledgement, else from the newest lookup that found it. */
export const railReferenceOf = (db: SimPaydbState, payoutId: PayoutId): string | null =>
  submissionOf(db, payoutId)?.railReference ??
  db.lookups.findLast((said) => said.payoutId === payoutId && said.result === "EXECUTED" && said.railReference !== null)
    ?.railReference ??
  null

/** `invariant_violation`, counted: what paydb itself can see of what went wrong. */
export const violationsOf = (db: SimPaydbState): Readonly<Record<CheckedInvariant, number>> => {
  const postings = (payoutId: PayoutId) =>
    db.journals.filter((journal) => journal.kind === "PAYOUT" && journal.payoutId === payoutId).length
  const payouts = [...db.payouts.values()]
  const count = (test: (payout: SimPayout) => boolean) => payouts.filter(test).length
  const said = (payout: SimPayout) => verdictOf(db, payout.payoutId)
  const adjusted = (payout: SimPayout) =>
    db.journals.some((journal) => journal.kind === "ADJUSTMENT" && journal.payoutId === payout.payoutId)
  const balanceOf = (accountId: AccountId) =>
    db.journals
      .flatMap((journal) => journal.entries)
      .reduce((sum, entry) => (entry.accountId === accountId ? sum + entry.amountMinor : sum), 0n)
  const reserveOf = (accountId: AccountId) =>
    payouts
      .filter((payout) => payout.accountId === accountId && /^(CLAIMED|RAIL_AMBIGUOUS)$/.test(payout.state))
      .reduce((sum, payout) => sum + payout.amountMinor, 0n)
  const accounts = [...db.accounts.values()]
  const greatest = new Map<AccountId, bigint>()
  let regressions = 0
  for (const { accountId, token } of db.transitions) {
    const before = greatest.get(accountId) ?? 0n
    if (token !== null && token < before) regressions++
    if (token !== null && token > before) greatest.set(accountId, token)
  }
  const claims = new Map<string, Set<PayoutId>>()
  for (const { accountId, payoutId, to, token } of db.transitions) {
    if (to !== "CLAIMED") continue
    const name = `${accountId} ${token}`
    claims.set(name, (claims.get(name) ?? new Set()).add(payoutId))
  }
  return {
    "INV-02":
      count(
        (payout) =>
          db.submissions.filter((sent) => sent.payoutId === payout.payoutId && sent.outcome !== "VOIDED").length > 1
      ) + count((payout) => db.lookups.some((one) => one.payoutId === payout.payoutId && one.executedCount > 1)),
    "INV-03":
      accounts.filter((account) => account.balanceMinor !== balanceOf(account.accountId)).length +
      accounts.filter((account) => account.reservedMinor !== reserveOf(account.accountId)).length,
    "INV-05": regressions,
    "INV-06":
      count((payout) => payout.state === "POSTED" && said(payout) !== "EXECUTED") +
      count((payout) => payout.state === "FAILED" && said(payout) !== "NOT_EXECUTED" && !adjusted(payout)),
    "INV-08": db.submissions.filter((sent) => {
      const since = db.transitions.find((one) => one.payoutId === sent.payoutId && one.to === "RAIL_AMBIGUOUS")
      return since !== undefined && sent.intentAt > since.at
    }).length,
    "ONE-POSTING": count((payout) => postings(payout.payoutId) > 1),
    "ONE-TOKEN-ONE-CLAIM": [...claims.values()].filter((ids) => ids.size > 1).length
  }
}
