/** The payment surface P1 to P12. One value serves server, typed client and OpenAPI document. */
import { Schema, SchemaTransformation } from "effect"
import { HttpApi, HttpApiEndpoint, HttpApiGroup, HttpApiSchema, OpenApi } from "effect/http-api"
import { FenceFromString, FencingTokenFromString, INT64_MAX, OwnerId } from "../../core/lock/Lock.ts"
import { JournalKind, OPENING_BALANCE_MAX } from "../../core/payment/Ledger.ts"
import {
  AccountId,
  AmountMinorFromString,
  Beneficiary,
  Currency,
  FailReason,
  NextStep,
  PayoutId,
  PayoutState,
  RailVerdict
} from "../../core/payment/Payout.ts"
import { limits } from "../../core/Settings.ts"
import { errors } from "./ApiError.ts"
import { RequestErrors } from "./RequestErrors.ts"
import {
  idempotencyRequired,
  InstantFromString,
  limitFromString,
  MinorFromString,
  ownerHeader,
  tokenHeader
} from "./Wire.ts"

/** Rows of a page when the caller names no limit. */
export const DEFAULT_LIMIT = 100

/** Keeps the place in a listing of journals. */
const JournalId = Schema.String.check(
  Schema.isPattern(/^(0|[1-9][0-9]{0,18})$/u, { expected: "the `next` of the page before" })
).pipe(
  Schema.decodeTo(
    Schema.BigInt.check(
      Schema.isBetweenBigInt({ minimum: 0n, maximum: INT64_MAX }, { expected: "the `next` of the page before" })
    ),
    SchemaTransformation.bigintFromString
  )
)

const OpeningBalance = Schema.String.check(
  Schema.isPattern(/^(0|[1-9][0-9]{0,15})$/u, { expected: "decimal digits, 0..10^15" })
).pipe(
  Schema.decodeTo(
    Schema.BigInt.check(
      Schema.isBetweenBigInt({ minimum: 0n, maximum: OPENING_BALANCE_MAX }, { expected: "0..10^15 minor units" })
    ),
    SchemaTransformation.bigintFromString
  )
)

export const PayoutJson = Schema.Struct({
  payoutId: PayoutId,
  accountId: AccountId,
  amountMinor: AmountMinorFromString,
  currency: Currency,
  beneficiary: Schema.String,
  clientReference: Schema.String,
  state: PayoutState,
  claimToken: Schema.NullOr(FencingTokenFromString),
  railReference: Schema.NullOr(Schema.String),
  failReason: Schema.NullOr(FailReason),
  nextStep: NextStep,
  createdAt: InstantFromString,
  updatedAt: InstantFromString
}).annotate({ identifier: "Payout" })

export const PayoutPageJson = Schema.Struct({
  items: Schema.Array(PayoutJson),
  next: Schema.NullOr(PayoutId)
}).annotate({ identifier: "PayoutPage" })

export const OrderJson = Schema.Struct({
  payoutId: Schema.optionalKey(PayoutId),
  accountId: AccountId,
  amountMinor: AmountMinorFromString,
  currency: Currency,
  beneficiary: Beneficiary
}).annotate({ identifier: "Order" })

export const FailJson = Schema.Struct({ reason: FailReason }).annotate({ identifier: "Fail" })

const accountFields = {
  accountId: AccountId,
  currency: Currency,
  balanceMinor: MinorFromString,
  reservedMinor: MinorFromString,
  fence: FenceFromString
}
export const AccountJson = Schema.Struct(accountFields).annotate({ identifier: "Account" })

export const OpenAccountJson = Schema.Struct({
  accountId: AccountId,
  currency: Currency,
  openingBalanceMinor: OpeningBalance
}).annotate({ identifier: "OpenAccount" })

export const OpenedAccountJson = Schema.Struct({ ...accountFields, created: Schema.Literal(true) }).annotate({
  identifier: "OpenedAccount"
})
export const KnownAccountJson = Schema.Struct({ ...accountFields, created: Schema.Literal(false) }).annotate({
  identifier: "KnownAccount"
})

export const JournalJson = Schema.Struct({
  journalId: JournalId,
  kind: JournalKind,
  payoutId: Schema.NullOr(PayoutId),
  actor: OwnerId,
  token: Schema.NullOr(FencingTokenFromString),
  at: InstantFromString,
  entries: Schema.Array(
    Schema.Struct({ accountId: Schema.String, currency: Currency, amountMinor: MinorFromString }).annotate({
      identifier: "LedgerEntry"
    })
  )
}).annotate({ identifier: "Journal" })

export const LedgerJson = Schema.Struct({
  items: Schema.Array(JournalJson),
  next: Schema.NullOr(JournalId)
}).annotate({ identifier: "LedgerPage" })

export const TransitionJson = Schema.Struct({
  from: Schema.NullOr(PayoutState),
  to: PayoutState,
  actor: OwnerId,
  token: Schema.NullOr(FencingTokenFromString),
  fenceSeen: Schema.NullOr(FenceFromString),
  evidence: Schema.NullOr(RailVerdict),
  reason: Schema.NullOr(FailReason),
  traceId: Schema.NullOr(Schema.String),
  at: InstantFromString
}).annotate({ identifier: "Transition" })

export const HistoryJson = Schema.Struct({ items: Schema.Array(TransitionJson) }).annotate({ identifier: "History" })

const payoutParam = { payoutId: PayoutId }
const accountParam = { accountId: AccountId }
const limit = Schema.optionalKey(limitFromString(limits.pageLimit))

/** What every move of a payout under a token can fail with. */
const settled = ["FencedOut", "IllegalTransition", "EvidenceMissing", "PayoutNotFound", "BackendUnavailable"] as const

class PayoutsGroup extends HttpApiGroup.make("payouts").add(
  HttpApiEndpoint.get("list", "/v1/payouts", {
    query: {
      state: Schema.optionalKey(PayoutState),
      accountId: Schema.optionalKey(AccountId),
      limit,
      after: Schema.optionalKey(PayoutId)
    },
    success: PayoutPageJson,
    error: errors("BackendUnavailable")
  })
    .annotate(OpenApi.Summary, "P1 list payouts in order of creation")
    .annotate(
      OpenApi.Description,
      "Pass `next` as `after` for the following page. A payout keeps its place whatever becomes of it; one whose " +
        "order was committed while a page was read may appear in the next round only."
    ),
  HttpApiEndpoint.get("read", "/v1/payouts/:payoutId", {
    params: payoutParam,
    success: PayoutJson,
    error: errors("PayoutNotFound", "BackendUnavailable")
  })
    .annotate(OpenApi.Summary, "P2 read a payout")
    .annotate(OpenApi.Description, "`nextStep` may be acted on only when it was read after one's own claim."),
  HttpApiEndpoint.post("create", "/v1/payouts", {
    headers: { ...ownerHeader, ...idempotencyRequired },
    payload: OrderJson,
    success: PayoutJson.pipe(HttpApiSchema.status(201)),
    error: errors("AccountNotFound", "BackendUnavailable")
  })
    .annotate(OpenApi.Summary, "P3 order a payout")
    .annotate(
      OpenApi.Description,
      "The same key and content answers the same payout; the same key with another content is VALIDATION_FAILED."
    ),
  HttpApiEndpoint.post("claim", "/v1/payouts/:payoutId/claim", {
    params: payoutParam,
    headers: tokenHeader,
    success: PayoutJson,
    error: errors(...settled, "TokenAlreadyUsed", "AccountBusy", "InsufficientFunds")
  })
    .annotate(OpenApi.Summary, "P4 claim a payout and reserve its amount (fence point a)")
    .annotate(
      OpenApi.Description,
      "The account's fence advances to the token, so that every older token is refused from then on. Claiming again " +
        "with a higher token is legal; repeating one's own claim is answered again and changes nothing."
    ),
  HttpApiEndpoint.post("post", "/v1/payouts/:payoutId/post", {
    params: payoutParam,
    headers: tokenHeader,
    success: PayoutJson,
    error: errors(...settled)
  }).annotate(OpenApi.Summary, "P5 post a payout: both entries, the balance and the state at once"),
  HttpApiEndpoint.post("fail", "/v1/payouts/:payoutId/fail", {
    params: payoutParam,
    headers: tokenHeader,
    payload: FailJson,
    success: PayoutJson,
    error: errors(...settled)
  }).annotate(OpenApi.Summary, "P6 fail a payout; needs evidence that the rail did not and can not pay"),
  HttpApiEndpoint.post("ambiguous", "/v1/payouts/:payoutId/ambiguous", {
    params: payoutParam,
    headers: tokenHeader,
    success: PayoutJson,
    error: errors(...settled)
  }).annotate(OpenApi.Summary, "P7 mark a payout ambiguous; its reserve is kept"),
  HttpApiEndpoint.post("resolve", "/v1/payouts/:payoutId/resolve", {
    params: payoutParam,
    headers: tokenHeader,
    success: PayoutJson,
    error: errors(...settled)
  }).annotate(OpenApi.Summary, "P8 resolve an ambiguous payout to what the recorded evidence says"),
  HttpApiEndpoint.get("history", "/v1/payouts/:payoutId/history", {
    params: payoutParam,
    success: HistoryJson,
    error: errors("PayoutNotFound", "BackendUnavailable")
  }).annotate(OpenApi.Summary, "P12 every move of a payout: who, under which token, on what evidence")
) {}

class AccountsGroup extends HttpApiGroup.make("accounts").add(
  HttpApiEndpoint.get("read", "/v1/accounts/:accountId", {
    params: accountParam,
    success: AccountJson,
    error: errors("AccountNotFound", "BackendUnavailable")
  }).annotate(OpenApi.Summary, "P9 read an account"),
  HttpApiEndpoint.get("ledger", "/v1/accounts/:accountId/ledger", {
    params: accountParam,
    query: { limit, after: Schema.optionalKey(JournalId) },
    success: LedgerJson,
    error: errors("AccountNotFound", "BackendUnavailable")
  }).annotate(OpenApi.Summary, "P10 the journals of an account with their entries, oldest first"),
  HttpApiEndpoint.post("open", "/v1/accounts", {
    headers: ownerHeader,
    payload: OpenAccountJson,
    success: [OpenedAccountJson.pipe(HttpApiSchema.status(201)), KnownAccountJson.pipe(HttpApiSchema.status(200))],
    error: errors("BackendUnavailable")
  })
    .annotate(OpenApi.Summary, "P11 open a customer's account")
    .annotate(
      OpenApi.Description,
      "The opening balance is a FUNDING journal. Repeating the same is 200; the same id with something else is " +
        "VALIDATION_FAILED."
    )
) {}

export class PaymentHttpApi extends HttpApi.make("payment-resource")
  .add(PayoutsGroup)
  .add(AccountsGroup)
  .middleware(RequestErrors)
  .annotate(HttpApi.ParseOptions, { errors: "all", onExcessProperty: "error" })
  .annotate(HttpApi.HeadersParseOptions, { errors: "all" })
  .annotateMerge(OpenApi.annotations({ title: "dlock payment-resource", version: "1.0.0" })) {}
