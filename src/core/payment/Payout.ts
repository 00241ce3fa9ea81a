/**
 * A payout: one order to move money out of an account through a rail that is not idempotent.
 *
 * Terminology
 * - **claim**: PENDING to CLAIMED under a token; the amount is reserved and the account's fence advances to the token.
 * - **submission**: the one attempt to pay through the rail. Its record is written before the call (the **intent**).
 * - **verdict**: what the record proves about the rail; the only input of a terminal transition.
 * - **post**: CLAIMED to POSTED with both ledger entries.
 * - **ambiguous**: the rail's answer is unknown; neither retried nor failed, only **reconciled**.
 *
 * There is no SUBMITTED state: the submission record, written by the only component that can know, is that fact.
 */
import { Schema, SchemaTransformation } from "effect"
import type { FencingToken, Instant, OwnerId } from "../lock/Lock.ts"
import { LockKey } from "../lock/Lock.ts"

export const PayoutId = Schema.String.check(
  Schema.isPattern(/^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/u, { expected: "a lower-case UUID" })
).pipe(Schema.brand("PayoutId"))
export type PayoutId = typeof PayoutId.Type

export const AccountId = Schema.String.check(
  Schema.isPattern(/^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$/u, {
    expected: "1..63 characters of A-Z a-z 0-9 _ . -, starting with a letter or digit"
  })
).pipe(Schema.brand("AccountId"))
export type AccountId = typeof AccountId.Type

/** The lock that every writer of an account holds. */
export const lockKeyOf = (accountId: AccountId): LockKey => LockKey.make(`payout:${accountId}`)

export const Currency = Schema.String.check(Schema.isPattern(/^[A-Z]{3}$/u, { expected: "an ISO 4217 code" }))

/** Integer minor units (cents), 1..10^14, so that sums stay far from the int64 limit. */
export const AmountMinor = Schema.BigInt.check(
  Schema.isBetweenBigInt({ minimum: 1n, maximum: 100_000_000_000_000n }, { expected: "1..10^14 minor units" })
)
/** Decimal digits on every wire. */
export const AmountMinorFromString = Schema.String.check(
  Schema.isPattern(/^[1-9][0-9]{0,14}$/u, { expected: "decimal digits, 1..10^14" })
).pipe(Schema.decodeTo(AmountMinor, SchemaTransformation.bigintFromString))

export const Beneficiary = Schema.String.check(
  Schema.isPattern(/^[^\p{Cc}\p{Cs}]{1,140}$/u, { expected: "1..140 characters without control characters" })
)

export const PayoutState = Schema.Literals(["PENDING", "CLAIMED", "POSTED", "FAILED", "RAIL_AMBIGUOUS"])
export type PayoutState = typeof PayoutState.Type

export const FailReason = Schema.Literals([
  "RAIL_DECLINED",
  "RAIL_NOT_EXECUTED",
  "CANCELLED",
  "INSUFFICIENT_FUNDS",
  "ACCOUNT_BLOCKED"
])
export type FailReason = typeof FailReason.Type

/** INTENT: the intent is recorded and no outcome yet. VOIDED: the slot is taken and nothing was or will be sent. */
export const SubmissionOutcome = Schema.Literals(["INTENT", "ACKED", "DECLINED", "TIMEOUT", "DUPLICATE_ACK", "VOIDED"])
export type SubmissionOutcome = typeof SubmissionOutcome.Type

export const RailVerdict = Schema.Literals(["NONE", "EXECUTED", "NOT_EXECUTED", "CONFLICT", "UNKNOWN"])
export type RailVerdict = typeof RailVerdict.Type

/**
 * What the holder of the account's lock must do now, in one word. Computed from state and submission record alone,
 * never from elapsed time, and acted on only when read after one's own claim.
 */
export const NextStep = Schema.Literals([
  /** PENDING, nothing submitted: claim, then submit. */
  "CLAIM",
  /** CLAIMED, nothing submitted: re-claim under the own token, then submit. */
  "SUBMIT",
  /** CLAIMED, intent without outcome: the proxy may still be in the call. Wait until `sendBy` and slack, then AMBIGUOUS. */
  "AWAIT",
  /** CLAIMED, the rail paid: post. */
  "POST",
  /** The rail did not and can not pay: fail. */
  "FAIL",
  /** CLAIMED, outcome unknown: mark it ambiguous. */
  "AMBIGUOUS",
  /** RAIL_AMBIGUOUS, not known yet: the reconciler asks the rail. */
  "LOOKUP",
  /** RAIL_AMBIGUOUS and proven either way: the reconciler resolves it. */
  "RESOLVE",
  /** RAIL_AMBIGUOUS with contradicting evidence: a human decides. */
  "ESCALATE",
  /** Terminal. */
  "NONE"
])
export type NextStep = typeof NextStep.Type

export const nextStep = (
  state: PayoutState,
  submission: SubmissionOutcome | undefined,
  verdict: RailVerdict
): NextStep => {
  switch (state) {
    case "POSTED":
    case "FAILED":
      return "NONE"
    case "PENDING":
      return submission === undefined ? "CLAIM" : "FAIL"
    case "CLAIMED":
      if (submission === undefined) return "SUBMIT"
      if (verdict === "EXECUTED") return "POST"
      if (verdict === "NOT_EXECUTED") return "FAIL"
      return submission === "INTENT" ? "AWAIT" : "AMBIGUOUS"
    case "RAIL_AMBIGUOUS":
      if (verdict === "EXECUTED" || verdict === "NOT_EXECUTED") return "RESOLVE"
      return verdict === "CONFLICT" ? "ESCALATE" : "LOOKUP"
  }
}

/** Every legal move and the verdict it needs. Everything else is refused, by the database as well. */
export const legalTransitions: ReadonlyArray<{
  readonly from: PayoutState | null
  readonly to: PayoutState
  readonly needs: ReadonlyArray<RailVerdict> | "any"
}> = [
  { from: null, to: "PENDING", needs: "any" },
  { from: "PENDING", to: "CLAIMED", needs: ["NONE"] },
  { from: "CLAIMED", to: "CLAIMED", needs: "any" },
  { from: "CLAIMED", to: "POSTED", needs: ["EXECUTED"] },
  { from: "CLAIMED", to: "FAILED", needs: ["NOT_EXECUTED"] },
  { from: "CLAIMED", to: "RAIL_AMBIGUOUS", needs: ["UNKNOWN", "CONFLICT"] },
  { from: "RAIL_AMBIGUOUS", to: "POSTED", needs: ["EXECUTED"] },
  { from: "RAIL_AMBIGUOUS", to: "FAILED", needs: ["NOT_EXECUTED"] },
  { from: "PENDING", to: "FAILED", needs: ["NOT_EXECUTED"] }
]

export interface Payout {
  readonly payoutId: PayoutId
  readonly accountId: AccountId
  readonly amountMinor: bigint
  readonly currency: string
  readonly beneficiary: string
  /** What the rail is told and asked by; at most 35 characters (ISO 20022 Max35Text). */
  readonly clientReference: string
  readonly state: PayoutState
  readonly claimToken: FencingToken | null
  readonly railReference: string | null
  readonly failReason: FailReason | null
  readonly nextStep: NextStep
  readonly createdAt: Instant
  readonly updatedAt: Instant
}

export interface Account {
  readonly accountId: AccountId
  readonly currency: string
  readonly balanceMinor: bigint
  readonly reservedMinor: bigint
  readonly fence: bigint
}

export interface PayoutTransition {
  readonly from: PayoutState | null
  readonly to: PayoutState
  readonly actor: OwnerId
  readonly token: FencingToken | null
  readonly fenceSeen: bigint | null
  readonly evidence: RailVerdict | null
  readonly reason: FailReason | null
  readonly traceId: string | null
  readonly at: Instant
}
