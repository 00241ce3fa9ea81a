/**
 * What truly happened in one run, as plain data: collected from the lock backend's audit, paydb and the rail's own book
 * (or from the simulation's stores), and judged by `Invariants.ts`. A history can be saved as JSON and judged again.
 *
 * Every list is in the commit order of the system it comes from; times are that system's clock, and times of two
 * systems are never compared.
 */
import { Schema } from "effect"
import { Fence, FencingToken, Instant } from "./lock/Lock.ts"
import { JournalKind } from "./payment/Ledger.ts"
import { FailReason, PayoutState, RailVerdict, SubmissionOutcome } from "./payment/Payout.ts"

/** One line of the lock backend's audit. */
export const LockEvent = Schema.Struct({
  /** `session`: the grant ended with its session. `session_ended`: a session ended, and all its grants with it. */
  kind: Schema.Literals(["granted", "released", "expired", "revoked", "session", "session_ended"]),
  at: Instant,
  key: Schema.NullOr(Schema.String),
  token: Schema.NullOr(FencingToken),
  sessionId: Schema.NullOr(Schema.String),
  ownerId: Schema.String,
  /** Of a grant: when its lease ends unless it is renewed; null where the audit does not say. */
  expiresAt: Schema.NullOr(Instant)
})
export type LockEvent = typeof LockEvent.Type

export const TransitionEvent = Schema.Struct({
  at: Instant,
  payoutId: Schema.String,
  accountId: Schema.String,
  from: Schema.NullOr(PayoutState),
  to: PayoutState,
  token: Schema.NullOr(FencingToken),
  fenceSeen: Schema.NullOr(Fence),
  evidence: Schema.NullOr(RailVerdict),
  reason: Schema.NullOr(FailReason),
  actor: Schema.String
})
export type TransitionEvent = typeof TransitionEvent.Type

export const SubmissionRecord = Schema.Struct({
  payoutId: Schema.String,
  accountId: Schema.String,
  clientReference: Schema.String,
  token: FencingToken,
  outcome: SubmissionOutcome,
  intentAt: Instant,
  fenced: Schema.Boolean
})
export type SubmissionRecord = typeof SubmissionRecord.Type

/** One payment in the rail's own book: the ground truth of INV-02. */
export const RailExecution = Schema.Struct({
  at: Instant,
  clientReference: Schema.String,
  amountMinor: Schema.BigInt,
  railReference: Schema.String
})
export type RailExecution = typeof RailExecution.Type

export const JournalRecord = Schema.Struct({
  journalId: Schema.String,
  kind: JournalKind,
  payoutId: Schema.NullOr(Schema.String),
  token: Schema.NullOr(FencingToken),
  fenced: Schema.Boolean,
  entries: Schema.Array(
    Schema.Struct({ accountId: Schema.String, currency: Schema.String, amountMinor: Schema.BigInt })
  )
})
export type JournalRecord = typeof JournalRecord.Type

export const AccountRecord = Schema.Struct({
  accountId: Schema.String,
  balanceMinor: Schema.BigInt,
  reservedMinor: Schema.BigInt,
  fence: Fence,
  /** Fence point (c); 0 when nothing was submitted for the account. */
  railHighWater: Fence
})
export type AccountRecord = typeof AccountRecord.Type

export const PayoutRecord = Schema.Struct({
  payoutId: Schema.String,
  accountId: Schema.String,
  amountMinor: Schema.BigInt,
  clientReference: Schema.String,
  state: PayoutState,
  claimToken: Schema.NullOr(FencingToken)
})
export type PayoutRecord = typeof PayoutRecord.Type

/** A write that met a fence, accepted or refused: what a participant presented and what it was answered. */
export const FenceEvent = Schema.Struct({
  point: Schema.Literals(["resource", "rail"]),
  op: Schema.String,
  resource: Schema.String,
  payoutId: Schema.String,
  token: FencingToken,
  accepted: Schema.Boolean,
  /** Rows that the write changed. */
  rowsChanged: Schema.Int,
  /** The fence before the write. */
  highest: Fence
})
export type FenceEvent = typeof FenceEvent.Type

export const History = Schema.Struct({
  lock: Schema.Array(LockEvent),
  transitions: Schema.Array(TransitionEvent),
  submissions: Schema.Array(SubmissionRecord),
  rail: Schema.Array(RailExecution),
  journals: Schema.Array(JournalRecord),
  accounts: Schema.Array(AccountRecord),
  payouts: Schema.Array(PayoutRecord),
  /** In the order in which each fence decided. */
  fences: Schema.Array(FenceEvent),
  /** Faults have stopped and reconciliation has run: what must hold in the end may be demanded. */
  settled: Schema.Boolean
})
export type History = typeof History.Type

export const emptyHistory: History = {
  lock: [],
  transitions: [],
  submissions: [],
  rail: [],
  journals: [],
  accounts: [],
  payouts: [],
  fences: [],
  settled: false
}
