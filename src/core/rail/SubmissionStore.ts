/**
 * The seam to the submission record. Fence point (c) is inside `recordIntent`: the token must exceed the account's
 * persisted high-water mark, which advances in the transaction that records the intent, before anything is sent.
 */
import { Context, type Effect } from "effect"
import type { Instant, OwnerId } from "../lock/Lock.ts"
import type { BackendUnavailable, FencedOut } from "../lock/LockErrors.ts"
import type { DuplicateSubmission, PayoutNotFound, RailAmbiguous, TokenAlreadyUsed } from "../payment/PaymentErrors.ts"
import type { PayoutId } from "../payment/Payout.ts"
import type { ValidationFailed } from "../RequestFailures.ts"
import type { EvidenceRequest, LookupFinding, SealRequest, Submission, SubmitRequest } from "./RailProxy.ts"

/** What recording an intent came to: this process, and only it, may now send once; or there was a record already. */
export type Intent =
  | {
      readonly _tag: "Send"
      readonly submissionId: string
      readonly clientReference: string
      readonly sendBy: Instant
    }
  | {
      readonly _tag: "Recorded"
      readonly submission: Submission
      readonly railCode: string | null
      readonly sameToken: boolean
    }

export class SubmissionStore extends Context.Service<
  SubmissionStore,
  {
    /**
     * Fence point (c), then (c2) the payout is CLAIMED under this very token, then the one slot. Committed before it
     * is answered. No confirmed commit, no send: `BackendUnavailable` says that nothing was recorded, `RailAmbiguous`
     * that the record may exist, of a payment that was not and will not be sent.
     */
    readonly recordIntent: (
      request: SubmitRequest
    ) => Effect.Effect<
      Intent,
      FencedOut | TokenAlreadyUsed | PayoutNotFound | ValidationFailed | RailAmbiguous | BackendUnavailable
    >
    /**
     * Written once; repeating it (also with another outcome) changes nothing and answers what is on record. A repeated
     * rail reference is recorded as DUPLICATE_ACK.
     */
    readonly recordOutcome: (
      submissionId: string,
      outcome: "ACKED" | "DECLINED" | "TIMEOUT",
      detail: { readonly railReference?: string | undefined; readonly railCode?: string | undefined }
    ) => Effect.Effect<Submission, BackendUnavailable>
    readonly read: (payoutId: PayoutId) => Effect.Effect<Submission, PayoutNotFound | BackendUnavailable>
    readonly seal: (
      request: SealRequest
    ) => Effect.Effect<
      Submission,
      FencedOut | TokenAlreadyUsed | DuplicateSubmission | PayoutNotFound | BackendUnavailable
    >
    /** The client reference to ask the rail by, and the store's clock before it is asked. */
    readonly beginLookup: (
      payoutId: PayoutId
    ) => Effect.Effect<
      { readonly clientReference: string; readonly askedAt: Instant },
      PayoutNotFound | BackendUnavailable
    >
    readonly recordLookup: (
      finding: LookupFinding & { readonly actor: OwnerId; readonly askedAt: Instant }
    ) => Effect.Effect<{ readonly lateExecution: boolean }, BackendUnavailable>
    readonly recordEvidence: (
      request: EvidenceRequest
    ) => Effect.Effect<LookupFinding, FencedOut | TokenAlreadyUsed | PayoutNotFound | BackendUnavailable>
    readonly ping: Effect.Effect<void, BackendUnavailable>
    readonly guards: Effect.Effect<
      { readonly missing: ReadonlyArray<string>; readonly switchOn: boolean; readonly unfencedRows: boolean },
      BackendUnavailable
    >
  }
>()("dlock/core/rail/SubmissionStore") {}
