/** The lock surface: exactly the eight routes L1 to L8. One value serves server, typed client and OpenAPI document. */
import { Schema } from "effect"
import { HttpApi, HttpApiEndpoint, HttpApiGroup, HttpApiSchema, OpenApi } from "effect/http-api"
import { AcquireId, FencingTokenFromString, LockKey, OwnerId, SessionId } from "../../core/lock/Lock.ts"
import { limits } from "../../core/Settings.ts"
import { errors } from "./ApiError.ts"
import { RequestErrors } from "./RequestErrors.ts"
import { idempotencyHeader, InstantFromString, ownerHeader, tokenHeader } from "./Wire.ts"

const lockTtl = Schema.Int.check(
  Schema.isBetween({ minimum: limits.lockTtlMillis.min, maximum: limits.lockTtlMillis.max })
)

export const OpenSessionJson = Schema.Struct({
  ownerId: Schema.optionalKey(OwnerId),
  /** Above the limit it is clamped down, below it is rejected. */
  ttlMillis: Schema.optionalKey(
    Schema.Int.check(Schema.isBetween({ minimum: limits.sessionTtlMillis.min, maximum: Number.MAX_SAFE_INTEGER }))
  )
}).annotate({ identifier: "OpenSession" })

export const SessionJson = Schema.Struct({
  sessionId: SessionId,
  ownerId: OwnerId,
  ttlMillis: Schema.Int,
  expiresAt: InstantFromString
}).annotate({ identifier: "Session" })

export const AcquireJson = Schema.Struct({
  sessionId: SessionId,
  ttlMillis: Schema.optionalKey(lockTtl),
  waitMillis: Schema.optionalKey(
    Schema.Int.check(Schema.isBetween({ minimum: limits.waitMillis.min, maximum: limits.waitMillis.max }))
  )
}).annotate({ identifier: "Acquire" })

const grantFields = {
  key: LockKey,
  fencingToken: FencingTokenFromString,
  ownerId: OwnerId,
  sessionId: SessionId,
  grantedAt: InstantFromString,
  expiresAt: InstantFromString,
  ttlMillis: Schema.Int
}
export const LockGrantJson = Schema.Struct(grantFields).annotate({ identifier: "LockGrant" })
export const AcquiredGrantJson = Schema.Struct({ ...grantFields, waitedMillis: Schema.Int }).annotate({
  identifier: "AcquiredGrant"
})

export const RenewJson = Schema.Struct({ ttlMillis: Schema.optionalKey(lockTtl) }).annotate({ identifier: "Renew" })

export const LockInfoJson = Schema.Struct({
  key: LockKey,
  held: Schema.Boolean,
  holderOwnerId: Schema.NullOr(OwnerId),
  expiresAt: Schema.NullOr(InstantFromString),
  advisory: Schema.Literal(true)
}).annotate({ identifier: "LockInfo" })

export const RevokeJson = Schema.Struct({
  operator: Schema.String.check(
    Schema.isPattern(/^(?=.*\S)[^\p{Cc}\p{Cs}]{1,64}$/u, { expected: "1..64 characters, not blank" })
  ),
  reason: Schema.String.check(
    Schema.isPattern(/^\s*\S[\s\S]{6,998}\S\s*$/u, {
      expected: `at least ${limits.reasonLengthMin} characters after trimming`
    })
  ),
  expectedToken: Schema.optionalKey(FencingTokenFromString)
}).annotate({ identifier: "Revoke" })

export const RevocationJson = Schema.Struct({
  key: LockKey,
  revokedToken: FencingTokenFromString,
  newTokenFloor: FencingTokenFromString,
  revocationId: AcquireId
}).annotate({ identifier: "Revocation" })

const backend = ["NotLeader", "BackendUnavailable"] as const
const session = ["SessionUnknown", "SessionExpired"] as const

class SessionsGroup extends HttpApiGroup.make("sessions").add(
  HttpApiEndpoint.post("open", "/v1/sessions", {
    headers: { "x-owner-id": Schema.optionalKey(OwnerId), ...idempotencyHeader },
    // In this order: encoding takes the first that fits, and everything fits NoContent.
    payload: [OpenSessionJson, HttpApiSchema.NoContent],
    success: SessionJson.pipe(HttpApiSchema.status(201)),
    error: errors(...backend)
  }).annotate(OpenApi.Summary, "L1 open a session"),
  HttpApiEndpoint.post("heartbeat", "/v1/sessions/:sessionId/heartbeat", {
    params: { sessionId: SessionId },
    headers: ownerHeader,
    success: SessionJson,
    error: errors(...session, ...backend)
  }).annotate(OpenApi.Summary, "L2 keep a session alive (it does not extend grants)"),
  HttpApiEndpoint.delete("close", "/v1/sessions/:sessionId", {
    params: { sessionId: SessionId },
    headers: ownerHeader,
    success: HttpApiSchema.NoContent,
    error: errors(...session, ...backend)
  }).annotate(OpenApi.Summary, "L3 close a session; its grants are free at once")
) {}

class LocksGroup extends HttpApiGroup.make("locks").add(
  HttpApiEndpoint.post("acquire", "/v1/locks/:key/acquire", {
    params: { key: LockKey },
    headers: { ...ownerHeader, ...idempotencyHeader },
    payload: AcquireJson,
    success: AcquiredGrantJson,
    error: errors("LockContended", "ContentionExceeded", "LockLost", ...session, ...backend)
  }).annotate(OpenApi.Summary, "L4 acquire a lock"),
  HttpApiEndpoint.post("renew", "/v1/locks/:key/renew", {
    params: { key: LockKey },
    headers: tokenHeader,
    payload: [RenewJson, HttpApiSchema.NoContent],
    success: LockGrantJson,
    error: errors("LockLost", ...backend)
  }).annotate(OpenApi.Summary, "L5 extend a lease; the token stays the same"),
  HttpApiEndpoint.delete("release", "/v1/locks/:key", {
    params: { key: LockKey },
    headers: tokenHeader,
    success: HttpApiSchema.NoContent,
    error: errors("LockLost", ...backend)
  }).annotate(OpenApi.Summary, "L6 release a lock (compare-and-delete on the token)"),
  HttpApiEndpoint.get("inspect", "/v1/locks/:key", {
    params: { key: LockKey },
    success: LockInfoJson,
    error: errors("LockNotFound", ...backend)
  })
    .annotate(OpenApi.Summary, "L7 look at a lock")
    .annotate(
      OpenApi.Description,
      "Advisory: the answer is old when it arrives and must never gate a decision to act. It carries no token."
    ),
  HttpApiEndpoint.post("revoke", "/v1/locks/:key/revoke", {
    params: { key: LockKey },
    headers: { ...ownerHeader, ...idempotencyHeader },
    payload: RevokeJson,
    success: RevocationJson,
    error: errors("LockNotFound", "FencedOut", ...backend)
  })
    .annotate(OpenApi.Summary, "L8 force-revoke a lock (break-glass, audited)")
    .annotate(
      OpenApi.Description,
      "Every later grant has a token above newTokenFloor. Until the next claim fences it, writes under the revoked token can still land."
    )
) {}

export class LockHttpApi extends HttpApi.make("lock-server")
  .add(SessionsGroup)
  .add(LocksGroup)
  .middleware(RequestErrors)
  .annotate(HttpApi.ParseOptions, { errors: "all", onExcessProperty: "error" })
  .annotate(HttpApi.HeadersParseOptions, { errors: "all" })
  .annotateMerge(OpenApi.annotations({ title: "dlock lock-server", version: "1.0.0" })) {}
