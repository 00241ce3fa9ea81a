/**
 * Every way in which a lock operation can fail. Each is a value in the failure channel and survives the wire; what it
 * looks like there is the one table in `services/api/ApiError.ts`.
 *
 * `retryAfterMillis` exists on exactly the failures after which repeating the same call is sensible. Terminal failures
 * (`LockLost`, `FencedOut`, ..) have none, so no retry schedule can take them by accident.
 */
import { Schema } from "effect"
import { Fence, FencingToken, Instant, LockKey, OwnerId, SessionId } from "./Lock.ts"

/** An error that occurs when the key is held by another grant: an outcome of competition, not a fault. */
export class LockContended extends Schema.TaggedError<LockContended>()("LockContended", {
  key: LockKey,
  outcome: Schema.Literal("HELD_BY_OTHER"),
  /** Null when the holder is not known (the service is stopping, or a waiter ahead will get the lock). */
  holderOwnerId: Schema.NullOr(OwnerId),
  holderExpiresAt: Schema.NullOr(Instant),
  retryAfterMillis: Schema.Int
}) {}

/** An error that occurs when `waitMillis` (server) or the retry budget (client) ran out while the key stayed held. */
export class ContentionExceeded extends Schema.TaggedError<ContentionExceeded>()("ContentionExceeded", {
  key: LockKey,
  attempts: Schema.Int,
  waitedMillis: Schema.Int,
  retryAfterMillis: Schema.Int
}) {}

/** An error that occurs when the client could get no definite answer from the lock service within its bounds. */
export class LockUnavailable extends Schema.TaggedError<LockUnavailable>()("LockUnavailable", {
  key: LockKey,
  cause: Schema.String
}) {}

/**
 * An error that occurs when the caller does not, or not any more, hold the lock it thinks it holds. Terminal.
 * - `deadline`: the client's own, earlier end passed (no server was asked)
 * - `expired` | `released` | `revoked` | `session`: how the grant ended, by the store
 * - `superseded`: the store knows only that this token is not that of the live grant
 */
export class LockLost extends Schema.TaggedError<LockLost>()("LockLost", {
  key: LockKey,
  token: Schema.NullOr(FencingToken),
  reason: Schema.Literals(["deadline", "expired", "released", "revoked", "session", "superseded"])
}) {}
export type LockLostReason = LockLost["reason"]

/**
 * An error that occurs when a fence refused a stale token. Zero rows were changed. Never retried: it means that
 * somebody acted after he had lost his lock, which is an incident.
 */
export class FencedOut extends Schema.TaggedError<FencedOut>()("FencedOut", {
  point: Schema.Literals(["resource", "rail", "lock"]),
  op: Schema.Literals(["claim", "post", "fail", "ambiguous", "resolve", "submit", "void", "evidence", "revoke"]),
  /** The account or lock key that is protected. */
  resource: Schema.String,
  presented: FencingToken,
  highest: Fence
}) {}

/** An error that occurs when the session was never seen, was closed long ago, or belongs to another owner. */
export class SessionUnknown extends Schema.TaggedError<SessionUnknown>()("SessionUnknown", { sessionId: SessionId }) {}

/** An error that occurs when the session is known and dead by the store's clock. */
export class SessionExpired extends Schema.TaggedError<SessionExpired>()("SessionExpired", { sessionId: SessionId }) {}

/** An error that occurs when the key was never seen (read), or has no live grant (revoke). */
export class LockNotFound extends Schema.TaggedError<LockNotFound>()("LockNotFound", { key: LockKey }) {}

/** An error that occurs when the backend has no leader at this moment (an election). */
export class NotLeader extends Schema.TaggedError<NotLeader>()("NotLeader", {
  operation: Schema.String,
  retryAfterMillis: Schema.Int
}) {}

/**
 * An error that occurs when the backend is unreachable or did not answer in time. The outcome of a write is then
 * unknown; repeating it is safe under the same acquire id or token.
 */
export class BackendUnavailable extends Schema.TaggedError<BackendUnavailable>()("BackendUnavailable", {
  operation: Schema.String,
  cause: Schema.String,
  retryAfterMillis: Schema.Int
}) {}

export type BackendError = NotLeader | BackendUnavailable

export const backendUnavailable = (operation: string, cause: string, retryAfterMillis = 250): BackendUnavailable =>
  new BackendUnavailable({ operation, cause, retryAfterMillis })
