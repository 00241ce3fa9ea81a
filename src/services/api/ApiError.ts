/**
 * The one table from typed failure to wire: code, status, retry verdict, log level.
 *
 * The wire schema of every failure is derived from its row: the server encodes a `LockLost` to the six-field envelope
 * and the client decodes the envelope back to a `LockLost`. A failure without a row is a compile error, and so is an
 * endpoint that names a failure which has none.
 *
 * `LOCK_LOST` is never a 5xx: clients retry 5xx, and would send a dead token back in.
 */
import { Effect, Schema, SchemaTransformation } from "effect"
import { HttpApiSchema } from "effect/http-api"
import * as Lock from "../../core/lock/LockErrors.ts"
import * as Payment from "../../core/payment/PaymentErrors.ts"
import * as Request from "../../core/RequestFailures.ts"
import { currentTraceId } from "../../core/TraceId.ts"

export const ENVELOPE_CONTENT_TYPE = "application/json; charset=utf-8"

/** An error that occurs when no route has this path. */
export class RouteNotFound extends Schema.TaggedError<RouteNotFound>()("RouteNotFound", { path: Schema.String }) {}
/** An error that occurs when the path exists under other methods. */
export class MethodNotAllowed extends Schema.TaggedError<MethodNotAllowed>()("MethodNotAllowed", {
  allow: Schema.Array(Schema.String)
}) {}
export class PayloadTooLarge extends Schema.TaggedError<PayloadTooLarge>()("PayloadTooLarge", {
  limitBytes: Schema.Int
}) {}
export class UnsupportedMediaType extends Schema.TaggedError<UnsupportedMediaType>()("UnsupportedMediaType", {
  expected: Schema.Literal("application/json")
}) {}
/** An error that occurs when the request broke off or was no HTTP: answered before any route. */
export class MalformedRequest extends Schema.TaggedError<MalformedRequest>()("MalformedRequest", {}) {}
export class RequestTimeout extends Schema.TaggedError<RequestTimeout>()("RequestTimeout", {}) {}
export class HeadersTooLarge extends Schema.TaggedError<HeadersTooLarge>()("HeadersTooLarge", {}) {}
/** A defect. The body tells nothing of it; the log has the cause. */
export class Internal extends Schema.TaggedError<Internal>()("Internal", {}) {}

export const wireErrors = {
  LockContended: Lock.LockContended,
  ContentionExceeded: Lock.ContentionExceeded,
  LockLost: Lock.LockLost,
  FencedOut: Lock.FencedOut,
  SessionUnknown: Lock.SessionUnknown,
  SessionExpired: Lock.SessionExpired,
  LockNotFound: Lock.LockNotFound,
  NotLeader: Lock.NotLeader,
  BackendUnavailable: Lock.BackendUnavailable,
  PayoutNotFound: Payment.PayoutNotFound,
  AccountNotFound: Payment.AccountNotFound,
  IllegalTransition: Payment.IllegalTransition,
  TokenAlreadyUsed: Payment.TokenAlreadyUsed,
  AccountBusy: Payment.AccountBusy,
  EvidenceMissing: Payment.EvidenceMissing,
  InsufficientFunds: Payment.InsufficientFunds,
  DuplicateSubmission: Payment.DuplicateSubmission,
  RailAmbiguous: Payment.RailAmbiguous,
  RailDeclined: Payment.RailDeclined,
  ValidationFailed: Request.ValidationFailed,
  InvalidToken: Request.InvalidToken,
  RouteNotFound,
  MethodNotAllowed,
  PayloadTooLarge,
  UnsupportedMediaType,
  MalformedRequest,
  RequestTimeout,
  HeadersTooLarge,
  Internal
} as const
type Classes = typeof wireErrors
export type WireTag = keyof Classes
export type WireErrorOf<K extends WireTag> = Classes[K]["Type"]
export type WireError = WireErrorOf<WireTag>

export interface WireRow<Failure> {
  readonly code: string
  readonly status: number
  /** May the caller repeat the same request? On the wire a boolean; "never" adds that doing so is an incident. */
  readonly retrySafe: "yes" | "no" | "never"
  readonly log: "Debug" | "Info" | "Warn" | "Error"
  readonly message: (failure: Failure) => string
}
type Table = { readonly [K in WireTag]: WireRow<WireErrorOf<K>> }

export const errorTable = {
  LockContended: {
    code: "LOCK_CONTENDED",
    status: 409,
    retrySafe: "yes",
    log: "Debug",
    message: (e) => `lock ${e.key} is held by another owner`
  },
  ContentionExceeded: {
    code: "CONTENTION_EXCEEDED",
    status: 409,
    retrySafe: "yes",
    log: "Debug",
    message: (e) => `lock ${e.key} stayed held by others for ${e.waitedMillis} ms`
  },
  LockLost: {
    code: "LOCK_LOST",
    status: 409,
    retrySafe: "no",
    log: "Info",
    message: (e) => `lock ${e.key} is not, or not any more, held under this token (${e.reason})`
  },
  FencedOut: {
    code: "FENCED_OUT",
    status: 409,
    retrySafe: "never",
    log: "Error",
    message: (e) => `${e.op} of ${e.resource}: token ${e.presented} is stale, the fence has seen ${e.highest}`
  },
  SessionUnknown: {
    code: "SESSION_UNKNOWN",
    status: 404,
    retrySafe: "no",
    log: "Info",
    message: () => "no such session of this owner: open a new one"
  },
  SessionExpired: {
    code: "SESSION_EXPIRED",
    status: 410,
    retrySafe: "no",
    log: "Info",
    message: () => "the session is dead: open a new one"
  },
  LockNotFound: {
    code: "LOCK_NOT_FOUND",
    status: 404,
    retrySafe: "no",
    log: "Debug",
    message: (e) => `lock ${e.key} has never been seen, or has no live grant`
  },
  NotLeader: {
    code: "NOT_LEADER",
    status: 503,
    retrySafe: "yes",
    log: "Warn",
    message: () => "the backend has no leader at this moment"
  },
  BackendUnavailable: {
    code: "BACKEND_UNAVAILABLE",
    status: 503,
    retrySafe: "yes",
    log: "Warn",
    message: (e) => `${e.operation}: the backend did not answer; the outcome of a write is unknown`
  },
  PayoutNotFound: {
    code: "PAYOUT_NOT_FOUND",
    status: 404,
    retrySafe: "no",
    log: "Info",
    message: (e) => `no payout or submission ${e.payoutId}`
  },
  AccountNotFound: {
    code: "ACCOUNT_NOT_FOUND",
    status: 404,
    retrySafe: "no",
    log: "Info",
    message: (e) => `no account ${e.accountId}`
  },
  IllegalTransition: {
    code: "ILLEGAL_TRANSITION",
    status: 409,
    retrySafe: "no",
    log: "Info",
    message: (e) => `a payout in state ${e.state} can not become ${e.attempted}`
  },
  TokenAlreadyUsed: {
    code: "TOKEN_ALREADY_USED",
    status: 409,
    retrySafe: "no",
    log: "Info",
    message: () => "the token was spent on another payout: one grant serves one payout, acquire again"
  },
  AccountBusy: {
    code: "ACCOUNT_BUSY",
    status: 409,
    retrySafe: "no",
    log: "Info",
    message: (e) => `payout ${e.unfinishedPayoutId} of this account is claimed and must be finished first`
  },
  EvidenceMissing: {
    code: "EVIDENCE_MISSING",
    status: 409,
    retrySafe: "no",
    log: "Info",
    message: (e) => `the submission record says ${e.verdict}: read the payout again, its next step is ${e.nextStep}`
  },
  InsufficientFunds: {
    code: "INSUFFICIENT_FUNDS",
    status: 409,
    retrySafe: "no",
    log: "Info",
    message: (e) => `account ${e.accountId} has not enough available balance`
  },
  DuplicateSubmission: {
    code: "DUPLICATE_SUBMISSION",
    status: 409,
    retrySafe: "no",
    log: "Error",
    message: (e) => `a submission of this payout exists (${e.outcome}) and was not sent again`
  },
  RailAmbiguous: {
    code: "RAIL_AMBIGUOUS",
    status: 504,
    retrySafe: "never",
    log: "Error",
    message: () => "the rail's answer is unknown: money may have moved, do not submit again"
  },
  RailDeclined: {
    code: "RAIL_DECLINED",
    status: 422,
    retrySafe: "no",
    log: "Info",
    message: () => "the rail declined the payment"
  },
  ValidationFailed: {
    code: "VALIDATION_FAILED",
    status: 400,
    retrySafe: "no",
    log: "Debug",
    message: (e) => `out of bounds: ${e.fields.map((f) => f.path).join(", ")}`
  },
  InvalidToken: {
    code: "INVALID_TOKEN",
    status: 400,
    retrySafe: "no",
    log: "Info",
    message: () => "X-Fencing-Token must be exactly one decimal int64 of at least 1"
  },
  RouteNotFound: {
    code: "ROUTE_NOT_FOUND",
    status: 404,
    retrySafe: "no",
    log: "Debug",
    message: () => "no such route"
  },
  MethodNotAllowed: {
    code: "METHOD_NOT_ALLOWED",
    status: 405,
    retrySafe: "no",
    log: "Debug",
    message: (e) => `allowed here: ${e.allow.join(", ")}`
  },
  PayloadTooLarge: {
    code: "PAYLOAD_TOO_LARGE",
    status: 413,
    retrySafe: "no",
    log: "Info",
    message: (e) => `the body is larger than ${e.limitBytes} bytes`
  },
  UnsupportedMediaType: {
    code: "UNSUPPORTED_MEDIA_TYPE",
    status: 415,
    retrySafe: "no",
    log: "Debug",
    message: () => "send application/json"
  },
  MalformedRequest: {
    code: "MALFORMED_REQUEST",
    status: 400,
    retrySafe: "no",
    log: "Debug",
    message: () => "the request could not be read"
  },
  RequestTimeout: {
    code: "REQUEST_TIMEOUT",
    status: 408,
    retrySafe: "no",
    log: "Debug",
    message: () => "the request did not arrive in time"
  },
  HeadersTooLarge: {
    code: "HEADERS_TOO_LARGE",
    status: 431,
    retrySafe: "no",
    log: "Debug",
    message: () => "the headers are too large"
  },
  Internal: { code: "INTERNAL", status: 500, retrySafe: "no", log: "Error", message: () => "internal error" }
} as const satisfies Table

export const isWireError = (u: unknown): u is WireError =>
  typeof u === "object" && u !== null && "_tag" in u && typeof u._tag === "string" && Object.hasOwn(errorTable, u._tag)

/** The row of a failure, typed for any failure of the table. */
export const rowOf = (failure: WireError): WireRow<WireError> => errorTable[failure._tag] as WireRow<WireError>

/** What one failure looks like on the wire: exactly these six fields in this order. */
export interface Envelope {
  readonly code: string
  readonly message: string
  readonly retrySafe: boolean
  readonly retryAfterMillis: number | null
  readonly details: unknown
  readonly traceId: string
}

interface RetryAfter {
  readonly retryAfterMillis?: number
}

const wireSchema = (tag: WireTag) => {
  const cls = wireErrors[tag] as unknown as {
    readonly fields: Record<string, Schema.Top>
    new (details: unknown): WireError
  }
  const row = errorTable[tag] as WireRow<WireError>
  const { _tag: _, retryAfterMillis, ...details } = cls.fields
  const hasRetryAfter = retryAfterMillis !== undefined
  const detailNames = Object.keys(details)
  const EnvelopeSchema = Schema.Struct({
    code: Schema.Literal(row.code),
    message: Schema.String,
    retrySafe: Schema.Literal(row.retrySafe === "yes"),
    retryAfterMillis: hasRetryAfter ? Schema.Int : Schema.Null,
    details: Schema.Struct(details),
    traceId: Schema.String
  }).annotate({ identifier: `${tag}Envelope` })
  return EnvelopeSchema.pipe(
    Schema.decodeTo(
      Schema.toType(cls as unknown as Schema.Top),
      SchemaTransformation.transformEffect({
        decode: (envelope: Envelope) =>
          Effect.succeed(
            new cls(
              hasRetryAfter
                ? { ...(envelope.details as object), retryAfterMillis: envelope.retryAfterMillis }
                : envelope.details
            )
          ),
        encode: (failure: WireError) =>
          Effect.map(currentTraceId, (traceId): Envelope => ({
            code: row.code,
            message: row.message(failure),
            retrySafe: row.retrySafe === "yes",
            retryAfterMillis: (failure as RetryAfter).retryAfterMillis ?? null,
            details: Object.fromEntries(
              detailNames.map((name) => [name, (failure as unknown as Record<string, unknown>)[name]])
            ),
            traceId
          }))
      }) as never
    )
  )
}

const cache = new Map<WireTag, Schema.Top>()

/** One schema instance a tag, else OpenAPI would list `LockLostEnvelope_1`, `LockLostEnvelope_2`, .. */
export const wire = <K extends WireTag>(tag: K): Schema.Codec<WireErrorOf<K>, unknown> => {
  let schema = cache.get(tag)
  if (schema === undefined) {
    schema = (wireSchema(tag) as Schema.Top)
      .pipe(HttpApiSchema.asJson({ contentType: ENVELOPE_CONTENT_TYPE }))
      .annotate({ httpApiStatus: errorTable[tag].status })
    cache.set(tag, schema)
  }
  return schema as unknown as Schema.Codec<WireErrorOf<K>, unknown>
}

/** `error: errors("LockLost", "BackendUnavailable")` in an endpoint. */
export const errors = <const Tags extends ReadonlyArray<WireTag>>(
  ...tags: Tags
): { readonly [I in keyof Tags]: Schema.Codec<WireErrorOf<Tags[I]>, unknown> } => tags.map((tag) => wire(tag)) as never
