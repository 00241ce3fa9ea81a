/** The rail surface R1 to R5. One value serves server, typed client and OpenAPI document. */
import { Schema } from "effect"
import { HttpApi, HttpApiEndpoint, HttpApiGroup, OpenApi } from "effect/http-api"
import { FencingTokenFromString } from "../../core/lock/Lock.ts"
import {
  AccountId,
  AmountMinorFromString,
  Beneficiary,
  Currency,
  PayoutId,
  SubmissionOutcome
} from "../../core/payment/Payout.ts"
import { LookupResult } from "../../core/rail/RailProxy.ts"
import { errors } from "./ApiError.ts"
import { RequestErrors } from "./RequestErrors.ts"
import { idempotencyRequired, InstantFromString, ownerHeader, tokenHeader } from "./Wire.ts"

const RailReference = Schema.String.check(
  Schema.isPattern(/^[\x21-\x7e]{1,64}$/u, { expected: "1..64 printable ASCII characters" })
)
const Reason = Schema.String.check(
  Schema.isPattern(/^(?=.*\S)[^\p{Cc}\p{Cs}]{1,500}$/u, { expected: "1..500 characters, not blank" })
)

export const SubmitJson = Schema.Struct({
  payoutId: PayoutId,
  accountId: AccountId,
  amountMinor: AmountMinorFromString,
  currency: Currency,
  beneficiary: Beneficiary
}).annotate({ identifier: "Submit" })

export const AckedJson = Schema.Struct({
  payoutId: PayoutId,
  outcome: Schema.Literal("ACKED"),
  railReference: Schema.String
}).annotate({ identifier: "Acked" })

export const SubmissionJson = Schema.Struct({
  payoutId: PayoutId,
  token: FencingTokenFromString,
  outcome: SubmissionOutcome,
  railReference: Schema.NullOr(Schema.String),
  intentAt: InstantFromString,
  sendBy: InstantFromString,
  outcomeAt: Schema.NullOr(InstantFromString)
}).annotate({ identifier: "Submission" })

export const FindingJson = Schema.Struct({
  payoutId: PayoutId,
  finding: LookupResult,
  executedCount: Schema.Int,
  railReference: Schema.NullOr(Schema.String)
}).annotate({ identifier: "Finding" })

export const SealJson = Schema.Struct({ reason: Reason }).annotate({ identifier: "Seal" })

export const EvidenceJson = Schema.Struct({
  finding: Schema.Literals(["EXECUTED", "REJECTED", "NOT_FOUND"]),
  railReference: Schema.optionalKey(RailReference),
  reason: Reason
}).annotate({ identifier: "Evidence" })

const payoutParam = { payoutId: PayoutId }

class SubmissionsGroup extends HttpApiGroup.make("submissions").add(
  HttpApiEndpoint.post("submit", "/v1/rail/submissions", {
    headers: { ...tokenHeader, ...idempotencyRequired },
    payload: SubmitJson,
    success: AckedJson,
    error: errors(
      "FencedOut",
      "TokenAlreadyUsed",
      "DuplicateSubmission",
      "RailAmbiguous",
      "RailDeclined",
      "PayoutNotFound",
      "BackendUnavailable"
    )
  })
    .annotate(OpenApi.Summary, "R1 pay through the rail, once per payout")
    .annotate(
      OpenApi.Description,
      "Sent at most once per payout, whatever the tokens. The same token again is answered from the record and never " +
        "sent again, so repeating after BACKEND_UNAVAILABLE is safe. RAIL_AMBIGUOUS means that money may have moved."
    ),
  HttpApiEndpoint.get("read", "/v1/rail/submissions/:payoutId", {
    params: payoutParam,
    success: SubmissionJson,
    error: errors("PayoutNotFound", "BackendUnavailable")
  }).annotate(OpenApi.Summary, "R2 the submission record of a payout"),
  HttpApiEndpoint.post("lookup", "/v1/rail/submissions/:payoutId/lookup", {
    params: payoutParam,
    headers: ownerHeader,
    success: FindingJson,
    error: errors("PayoutNotFound", "BackendUnavailable")
  }).annotate(OpenApi.Summary, "R3 ask the rail what became of a payout, and record what it said; never submits"),
  HttpApiEndpoint.post("seal", "/v1/rail/submissions/:payoutId/void", {
    params: payoutParam,
    headers: tokenHeader,
    payload: SealJson,
    success: SubmissionJson,
    error: errors("FencedOut", "TokenAlreadyUsed", "DuplicateSubmission", "PayoutNotFound", "BackendUnavailable")
  }).annotate(OpenApi.Summary, "R4 take the payout's one slot without sending: makes 'never sent' provable"),
  HttpApiEndpoint.post("evidence", "/v1/rail/submissions/:payoutId/evidence", {
    params: payoutParam,
    headers: tokenHeader,
    payload: EvidenceJson,
    success: FindingJson,
    error: errors("FencedOut", "TokenAlreadyUsed", "PayoutNotFound", "BackendUnavailable")
  }).annotate(OpenApi.Summary, "R5 operator evidence; the newest of it settles contradicting evidence")
) {}

export class RailHttpApi extends HttpApi.make("rail-proxy")
  .add(SubmissionsGroup)
  .middleware(RequestErrors)
  .annotate(HttpApi.ParseOptions, { errors: "all", onExcessProperty: "error" })
  .annotate(HttpApi.HeadersParseOptions, { errors: "all" })
  .annotateMerge(OpenApi.annotations({ title: "dlock rail-proxy", version: "1.0.0" })) {}
