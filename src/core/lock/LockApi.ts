/**
 * What a lock service offers its clients: the eight operations L1 to L8. `LockService` implements it over a
 * `LockStore`, `HttpLockApi` over the wire; the SDK depends on this alone.
 */
import { Context, type Effect } from "effect"
import type {
  AcquireId,
  AcquiredGrant,
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
  ContentionExceeded,
  FencedOut,
  LockContended,
  LockLost,
  LockNotFound,
  SessionExpired,
  SessionUnknown
} from "./LockErrors.ts"

export class LockApi extends Context.Service<
  LockApi,
  {
    /** L1. Safe to repeat under the same `openId`. `ttlMillis` above the limit is clamped down, the answer says to what. */
    readonly openSession: (request: {
      readonly ownerId: OwnerId
      readonly ttlMillis?: number | undefined
      readonly openId?: AcquireId | undefined
    }) => Effect.Effect<Session, BackendError>
    /** L2 */
    readonly heartbeat: (
      sessionId: SessionId,
      ownerId: OwnerId
    ) => Effect.Effect<Session, SessionUnknown | SessionExpired | BackendError>
    /** L3 */
    readonly closeSession: (
      sessionId: SessionId,
      ownerId: OwnerId
    ) => Effect.Effect<void, SessionUnknown | SessionExpired | BackendError>
    /**
     * L4. Waits up to `waitMillis`, first come first served per key and instance. Safe to repeat under the same
     * `acquireId`. With no wait a held key is `LockContended`; a wait that ran out is `ContentionExceeded`.
     */
    readonly acquire: (request: {
      readonly key: LockKey
      readonly ownerId: OwnerId
      readonly sessionId: SessionId
      readonly ttlMillis?: number | undefined
      readonly waitMillis?: number | undefined
      readonly acquireId?: AcquireId | undefined
    }) => Effect.Effect<
      AcquiredGrant,
      LockContended | ContentionExceeded | LockLost | SessionUnknown | SessionExpired | BackendError
    >
    /** L5. The same token. */
    readonly renew: (request: {
      readonly key: LockKey
      readonly ownerId: OwnerId
      readonly token: FencingToken
      readonly ttlMillis?: number | undefined
    }) => Effect.Effect<LockGrant, LockLost | BackendError>
    /** L6. `LockLost` is benign here: the lock is not the caller's any more, which is what he wanted. */
    readonly release: (request: {
      readonly key: LockKey
      readonly ownerId: OwnerId
      readonly token: FencingToken
    }) => Effect.Effect<void, LockLost | BackendError>
    /** L7. Advisory: must never gate a decision to act. */
    readonly inspect: (key: LockKey) => Effect.Effect<LockInfo, LockNotFound | BackendError>
    /** L8. Break-glass. Until the next claim reaches a fence, writes under the revoked token can still land. */
    readonly revoke: (request: {
      readonly key: LockKey
      readonly operator: string
      readonly reason: string
      readonly expectedToken?: FencingToken | undefined
      readonly revocationId?: AcquireId | undefined
    }) => Effect.Effect<Revocation, LockNotFound | FencedOut | BackendError>
  }
>()("dlock/core/lock/LockApi") {}
