/** Every way in which an operation on payouts, accounts and submissions can fail, besides the lock's own failures. */
import { Schema } from "effect"
import { Fence, FencingToken } from "../lock/Lock.ts"
import { AccountId, NextStep, PayoutId, PayoutState, RailVerdict, SubmissionOutcome } from "./Payout.ts"

export class PayoutNotFound extends Schema.TaggedError<PayoutNotFound>()("PayoutNotFound", { payoutId: PayoutId }) {}

export class AccountNotFound extends Schema.TaggedError<AccountNotFound>()("AccountNotFound", {
  accountId: AccountId
}) {}

/** An error that occurs when the payout's state does not allow what was asked, under any token. */
export class IllegalTransition extends Schema.TaggedError<IllegalTransition>()("IllegalTransition", {
  payoutId: PayoutId,
  state: PayoutState,
  attempted: PayoutState
}) {}

/**
 * An error that occurs when the token is current but was spent on another payout: one grant serves one payout. Not an
 * incident, so not `FencedOut`; acquire again.
 */
export class TokenAlreadyUsed extends Schema.TaggedError<TokenAlreadyUsed>()("TokenAlreadyUsed", {
  payoutId: PayoutId,
  token: FencingToken
}) {}

/** An error that occurs when another payout of the account is CLAIMED and must be finished first. */
export class AccountBusy extends Schema.TaggedError<AccountBusy>()("AccountBusy", {
  accountId: AccountId,
  unfinishedPayoutId: PayoutId
}) {}

/** An error that occurs when the submission record does not (yet) prove what the transition claims: re-read. */
export class EvidenceMissing extends Schema.TaggedError<EvidenceMissing>()("EvidenceMissing", {
  payoutId: PayoutId,
  state: PayoutState,
  verdict: RailVerdict,
  nextStep: NextStep
}) {}

export class InsufficientFunds extends Schema.TaggedError<InsufficientFunds>()("InsufficientFunds", {
  accountId: AccountId,
  payoutId: PayoutId
}) {}

/** An error that occurs when a submission for this payout exists under another token. It was not forwarded again. */
export class DuplicateSubmission extends Schema.TaggedError<DuplicateSubmission>()("DuplicateSubmission", {
  payoutId: PayoutId,
  outcome: SubmissionOutcome,
  token: Fence
}) {}

/** An error that occurs when the rail's answer is unknown. Money may have moved: never submit again, reconcile. */
export class RailAmbiguous extends Schema.TaggedError<RailAmbiguous>()("RailAmbiguous", {
  payoutId: PayoutId,
  outcome: SubmissionOutcome
}) {}

/** An error that occurs when the rail said no, explicitly. */
export class RailDeclined extends Schema.TaggedError<RailDeclined>()("RailDeclined", {
  payoutId: PayoutId,
  railCode: Schema.NullOr(Schema.String)
}) {}
