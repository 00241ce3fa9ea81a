/** What rail-proxy offers (R1 to R5): the only way to the rail. */
import { Context, type Effect, Schema } from "effect"
import type { AcquireId, FencingToken, Instant, OwnerId } from "../lock/Lock.ts"
import type { BackendUnavailable, FencedOut } from "../lock/LockErrors.ts"
import type {
  DuplicateSubmission,
  PayoutNotFound,
  RailAmbiguous,
  RailDeclined,
  TokenAlreadyUsed
} from "../payment/PaymentErrors.ts"
import type { AccountId, PayoutId, SubmissionOutcome } from "../payment/Payout.ts"
import type { ValidationFailed } from "../RequestFailures.ts"

export interface SubmitRequest {
  readonly token: FencingToken
  readonly actor: OwnerId
  readonly idempotencyKey: AcquireId
  readonly payoutId: PayoutId
  readonly accountId: AccountId
  readonly amountMinor: bigint
  readonly currency: string
  readonly beneficiary: string
}

export interface Submission {
  readonly payoutId: PayoutId
  readonly token: FencingToken
  readonly outcome: SubmissionOutcome
  readonly railReference: string | null
  readonly intentAt: Instant
  /** The proxy does not start the send after this instant (the store's clock). */
  readonly sendBy: Instant
  readonly outcomeAt: Instant | null
}

export const LookupResult = Schema.Literals(["EXECUTED", "REJECTED", "PENDING", "NOT_FOUND", "UNAVAILABLE"])
export type LookupResult = typeof LookupResult.Type

export interface LookupFinding {
  readonly payoutId: PayoutId
  readonly finding: LookupResult
  readonly executedCount: number
  readonly railReference: string | null
}

export interface SealRequest {
  readonly payoutId: PayoutId
  readonly token: FencingToken
  readonly actor: OwnerId
  readonly reason: string
}

export interface EvidenceRequest extends SealRequest {
  readonly finding: "EXECUTED" | "REJECTED" | "NOT_FOUND"
  readonly railReference?: string | undefined
}

export class RailProxy extends Context.Service<
  RailProxy,
  {
    /** R1. Forwards at most once per payout, whatever the tokens, and never retries. */
    readonly submit: (
      request: SubmitRequest
    ) => Effect.Effect<
      { readonly payoutId: PayoutId; readonly outcome: "ACKED"; readonly railReference: string },
      | FencedOut
      | TokenAlreadyUsed
      | DuplicateSubmission
      | RailAmbiguous
      | RailDeclined
      | PayoutNotFound
      | ValidationFailed
      | BackendUnavailable
    >
    /** R2 */
    readonly readSubmission: (payoutId: PayoutId) => Effect.Effect<Submission, PayoutNotFound | BackendUnavailable>
    /** R3. Asks the rail's lookup and records what it said; never submits. */
    readonly lookup: (request: {
      readonly payoutId: PayoutId
      readonly actor: OwnerId
    }) => Effect.Effect<LookupFinding, PayoutNotFound | BackendUnavailable>
    /** R4. Takes the payout's one submission slot without sending anything: "never sent" becomes provable. */
    readonly seal: (
      request: SealRequest
    ) => Effect.Effect<
      Submission,
      FencedOut | TokenAlreadyUsed | DuplicateSubmission | PayoutNotFound | BackendUnavailable
    >
    /** R5. Operator evidence; the newest row of it decides a conflict. */
    readonly evidence: (
      request: EvidenceRequest
    ) => Effect.Effect<LookupFinding, FencedOut | TokenAlreadyUsed | PayoutNotFound | BackendUnavailable>
  }
>()("dlock/core/rail/RailProxy") {}
