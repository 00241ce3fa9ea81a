/**
 * What a store answers to a protected write once the token has passed (or met) the fence: do it, answer a repeat, or
 * refuse with the one failure that tells the caller what to do next.
 *
 * Pure, and the same for every store. It decides what is *answered*; what is *safe* is decided by the fence before it
 * and, in paydb, once more by the guards of the tables.
 */
import type { FencingToken } from "../lock/Lock.ts"
import {
  AccountBusy,
  EvidenceMissing,
  IllegalTransition,
  InsufficientFunds,
  TokenAlreadyUsed
} from "./PaymentErrors.ts"
import {
  type AccountId,
  legalTransitions,
  nextStep,
  type PayoutId,
  type PayoutState,
  type RailVerdict,
  type SubmissionOutcome
} from "./Payout.ts"

/** A payout and its account as they are under the account's row lock. */
export interface PayoutLook {
  readonly payoutId: PayoutId
  readonly accountId: AccountId
  readonly amountMinor: bigint
  readonly state: PayoutState
  readonly claimToken: bigint | null
  /** The token of the last move. */
  readonly lastToken: bigint | null
  readonly submission: SubmissionOutcome | undefined
  readonly verdict: RailVerdict
  /** Balance less what is reserved for other payouts. */
  readonly availableMinor: bigint
  /** Another payout of the account that is CLAIMED. */
  readonly busyWith: PayoutId | null
}

export type Decision<E> =
  | { readonly _tag: "Write"; readonly to: PayoutState }
  /** The same write was done before: answer it again, change nothing. */
  | { readonly _tag: "Replay" }
  | { readonly _tag: "Refuse"; readonly failure: E }

const write = (to: PayoutState): Decision<never> => ({ _tag: "Write", to })
const replay: Decision<never> = { _tag: "Replay" }
const refuse = <E>(failure: E): Decision<E> => ({ _tag: "Refuse", failure })

const illegal = ({ payoutId, state }: PayoutLook, attempted: PayoutState) =>
  refuse(new IllegalTransition({ payoutId, state, attempted }))

const unproven = ({ payoutId, state, submission, verdict }: PayoutLook) =>
  refuse(new EvidenceMissing({ payoutId, state, verdict, nextStep: nextStep(state, submission, verdict) }))

const isReserved = (state: PayoutState): boolean => state === "CLAIMED" || state === "RAIL_AMBIGUOUS"

const proven = (look: PayoutLook, to: PayoutState): boolean => {
  const needs = legalTransitions.find((move) => move.from === look.state && move.to === to)?.needs
  return needs === "any" || needs?.includes(look.verdict) === true
}

/** `enforced` is false in the experiment alone: the state predicate then stands aside with the fence. */
export interface ClaimContext {
  /** The fence stood at this very token before: it has claimed something already. */
  readonly spent: boolean
  readonly enforced: boolean
}

export const onClaim = (
  look: PayoutLook,
  token: FencingToken,
  { enforced, spent }: ClaimContext
): Decision<TokenAlreadyUsed | IllegalTransition | AccountBusy | EvidenceMissing | InsufficientFunds> => {
  const { accountId, payoutId, state } = look
  if (state === "CLAIMED" && look.claimToken === token) return replay
  if (enforced) {
    if (spent && look.claimToken !== token) return refuse(new TokenAlreadyUsed({ payoutId, token }))
    if (state !== "PENDING" && state !== "CLAIMED") return illegal(look, "CLAIMED")
  }
  if (look.busyWith !== null) return refuse(new AccountBusy({ accountId, unfinishedPayoutId: look.busyWith }))
  if (enforced && !proven(look, "CLAIMED")) return unproven(look)
  if (!isReserved(state) && look.availableMinor < look.amountMinor)
    return refuse(new InsufficientFunds({ accountId, payoutId }))
  return write("CLAIMED")
}

/** Post, fail and ambiguous: by the holder whose claim it is; a payout that was never claimed can be failed by any holder. */
export const onSettle = (
  look: PayoutLook,
  token: FencingToken,
  to: "POSTED" | "FAILED" | "RAIL_AMBIGUOUS",
  enforced: boolean
): Decision<IllegalTransition | EvidenceMissing> => {
  if (look.state === to && look.lastToken === token) return replay
  // The experiment: W1 posts under 7 what W2 posted under 8, and nothing but the fence was there to stop it, unless the
  // account has not enough for a second time: an overdraft is refused by the table itself.
  if (!enforced && to === "POSTED") {
    if (look.verdict !== "EXECUTED") return unproven(look)
    return isReserved(look.state) || look.availableMinor >= look.amountMinor ? write(to) : illegal(look, to)
  }
  const unclaimed = look.state === "PENDING" && to === "FAILED"
  const own = look.state === "CLAIMED" && (look.claimToken === token || !enforced)
  if (!unclaimed && !own) return illegal(look, to)
  return proven(look, to) ? write(to) : unproven(look)
}

/** From RAIL_AMBIGUOUS to what the evidence says. */
export const onResolve = (look: PayoutLook, token: FencingToken): Decision<IllegalTransition | EvidenceMissing> => {
  const settled = look.state === "POSTED" || look.state === "FAILED"
  if (settled && look.lastToken === token) return replay
  const to = look.verdict === "EXECUTED" ? "POSTED" : "FAILED"
  if (look.state !== "RAIL_AMBIGUOUS") return illegal(look, to)
  return proven(look, to) ? write(to) : unproven(look)
}
