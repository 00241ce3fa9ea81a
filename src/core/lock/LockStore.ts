/**
 * The one seam between the lock service and its backend. Nothing above it names a backend.
 *
 * The laws (run against every store by `test/laws/LockStoreLaws.ts`)
 *  1. A grant is durable before it is answered.
 *  2. Per key, each grant's token is greater than every earlier one, across restarts.
 *  3. A grant is live iff it was not released or revoked, its lease has not run out and its session lives, all judged
 *     by the backend's clock in the statement that decides. A holder's session read through a join is judged by an old
 *     snapshot and is no check.
 *  4. Renew extends, answers the same token and never shortens a lease.
 *  5. Release and revoke compare the token; they never free somebody else's grant.
 *  6. The same acquire id (scoped to session and key) answers the same grant while it lives, grants at most once while
 *     its session lives, and is `LockLost` after that grant ended. The same holds for the id of an open (the same
 *     session) and of a revocation (the same revocation, never the next holder's).
 *  7. What is not known stays unknown: a write whose fate is not known is `BackendUnavailable`, never `LockContended`
 *     against oneself.
 *  8. A heartbeat keeps the session; only a renew keeps a grant. Closing a session frees its grants at once.
 *  9. A contended answer is a read; it writes nothing.
 */
import { Context, type Effect, type Stream } from "effect"
import type {
  AcquireId,
  FencingToken,
  LockGrant,
  LockInfo,
  LockKey,
  OwnerId,
  Revocation,
  Session,
  SessionId
} from "./Lock.ts"
import type {
  BackendError,
  FencedOut,
  LockContended,
  LockLost,
  LockNotFound,
  SessionExpired,
  SessionUnknown
} from "./LockErrors.ts"

export interface OpenSession {
  readonly ownerId: OwnerId
  readonly ttlMillis: number
  /** Repeating an open under the same id (of the same owner) answers the same session while it lives. */
  readonly openId: AcquireId
}

export interface AcquireRequest {
  readonly key: LockKey
  readonly ownerId: OwnerId
  readonly sessionId: SessionId
  readonly ttlMillis: number
  readonly acquireId: AcquireId
}

export interface RevokeRequest {
  readonly key: LockKey
  readonly operator: string
  readonly reason: string
  /** When present and not the live grant's token the revoke is `FencedOut` and changes nothing. */
  readonly expectedToken: FencingToken | undefined
  readonly revocationId: AcquireId
}

/** Something about a key changed so that a waiter should look again. A hint: it may be spurious or missing. */
export interface LockChange {
  /** Null: changes may have been missed (the connection was lost), so look at every key. */
  readonly key: LockKey | null
}

/** How long the grant that a release or a revoke ended had been held, by the store's clock. */
export interface Released {
  readonly heldMillis: number
}

export interface RevokedGrant extends Revocation {
  /** Null when this answers a repeat: the grant was ended, and told of, before. */
  readonly heldMillis: number | null
}

/** A grant that ended by itself (lease or session ran out), found by the sweep. */
export interface ExpiredGrant {
  readonly key: LockKey
  readonly token: FencingToken
  readonly ownerId: OwnerId
  readonly heldMillis: number
  readonly end: "expired" | "session"
}

/** For operators (management port): the whole truth, tokens included. */
export interface LockRecord {
  readonly key: LockKey
  readonly held: boolean
  readonly token: FencingToken
  readonly ownerId: OwnerId
  readonly sessionId: SessionId
  /** The request that was granted: whoever repeats it is the holder. */
  readonly acquireId: AcquireId
  readonly grantedAt: number
  readonly expiresAt: number
  readonly lastRevocation: { readonly operator: string; readonly reason: string; readonly at: number } | null
}

export interface SweepResult {
  readonly expiredGrants: ReadonlyArray<ExpiredGrant>
  readonly expiredSessions: number
  readonly liveSessions: number
  readonly liveGrants: number
}

export interface Page {
  readonly prefix: string
  readonly after: string
  readonly limit: number
}

export class LockStore extends Context.Service<
  LockStore,
  {
    readonly openSession: (request: OpenSession) => Effect.Effect<Session, BackendError>
    readonly heartbeat: (
      sessionId: SessionId,
      ownerId: OwnerId
    ) => Effect.Effect<Session, SessionUnknown | SessionExpired | BackendError>
    /** Its grants are free at once. Closing a closed session is `SessionUnknown`. */
    readonly closeSession: (
      sessionId: SessionId,
      ownerId: OwnerId
    ) => Effect.Effect<void, SessionUnknown | SessionExpired | BackendError>
    readonly tryAcquire: (
      request: AcquireRequest
    ) => Effect.Effect<LockGrant, LockContended | LockLost | SessionUnknown | SessionExpired | BackendError>
    readonly renew: (
      key: LockKey,
      ownerId: OwnerId,
      token: FencingToken,
      ttlMillis: number
    ) => Effect.Effect<LockGrant, LockLost | BackendError>
    readonly release: (
      key: LockKey,
      ownerId: OwnerId,
      token: FencingToken
    ) => Effect.Effect<Released, LockLost | BackendError>
    /** Advisory. */
    readonly inspect: (key: LockKey) => Effect.Effect<LockInfo, LockNotFound | BackendError>
    readonly revoke: (request: RevokeRequest) => Effect.Effect<RevokedGrant, LockNotFound | FencedOut | BackendError>
    /** Changes of any key, as seen by this process's connection to the backend. Never the only wake-up. */
    readonly changes: Stream.Stream<LockChange, BackendError>
    /**
     * Writes the expiry events of grants and sessions that ended by themselves and were not told of yet (each exactly
     * once over all instances) and counts what is live. Nothing depends on it for safety.
     */
    readonly sweep: Effect.Effect<SweepResult, BackendError>
    readonly records: (page: Page) => Effect.Effect<ReadonlyArray<LockRecord>, BackendError>
    readonly record: (key: LockKey) => Effect.Effect<LockRecord, LockNotFound | BackendError>
    readonly sessions: (page: Page) => Effect.Effect<ReadonlyArray<Session>, BackendError>
    readonly ping: Effect.Effect<void, BackendError>
  }
>()("dlock/core/lock/LockStore") {}
