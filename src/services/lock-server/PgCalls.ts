/** Calls of lockdb's functions and views: their bound in time, what they answer and what their failures mean. */
import { Effect } from "effect"
import type { SqlError } from "effect/sql"
import { boundedBy } from "../../core/Bound.ts"
import type { AcquireId, FencingToken, LockGrant, LockKey, OwnerId, Session, SessionId } from "../../core/lock/Lock.ts"
import {
  type BackendError,
  backendUnavailable,
  LockContended,
  LockLost,
  type LockLostReason,
  NotLeader,
  SessionExpired,
  SessionUnknown
} from "../../core/lock/LockErrors.ts"
import type { ExpiredGrant, LockRecord } from "../../core/lock/LockStore.ts"
import * as Pg from "../platform/Pg.ts"

/** Calls that end within the deadline. */
export const within = (timeoutMillis: number) => {
  const bounded =
    (operation: string) =>
    <A>(effect: Effect.Effect<A, SqlError.SqlError>): Effect.Effect<A, BackendError> =>
      effect.pipe(
        Effect.catchTag("SqlError", failWith(operation)),
        boundedBy(timeoutMillis, () => late(operation, timeoutMillis))
      )
  /** The one row of a call. */
  const one =
    (operation: string) =>
    <Row>(effect: Effect.Effect<ReadonlyArray<Row>, SqlError.SqlError>): Effect.Effect<Row, BackendError> =>
      Effect.flatMap(bounded(operation)(effect), ([row]) =>
        row === undefined ? Effect.die(`${operation}: the database answered no row`) : Effect.succeed(row)
      )
  return { bounded, one }
}

export const late = (operation: string, timeoutMillis: number): BackendError =>
  backendUnavailable(operation, `no answer within ${timeoutMillis} ms`)

// -----------------------------------------------------------------------------
// rows: what went in as a valid value comes out as one, so the brands are asserted here and nowhere else
// -----------------------------------------------------------------------------

export interface SessionRow {
  readonly outcome: string
  readonly session_id: SessionId
  readonly ttl_ms: number
  readonly expires_at: bigint
}

export interface CloseRow {
  readonly outcome: string
  readonly keys: ReadonlyArray<LockKey> | null
}

export interface GrantRow {
  readonly outcome: string
  readonly fencing_token: FencingToken
  readonly owner_id: OwnerId
  readonly session_id: SessionId
  readonly granted_at: bigint
  readonly expires_at: bigint
  readonly ttl_ms: bigint
  readonly reason: LockLostReason
  readonly held_ms: bigint
}

export interface InfoRow {
  readonly held: boolean
  readonly owner_id: OwnerId | null
  readonly expires_at: bigint | null
}

export interface RevokeRow {
  readonly outcome: string
  readonly revoked_token: FencingToken
  readonly new_token_floor: FencingToken
  readonly held_ms: bigint | null
  readonly live_token: bigint
}

export interface SweepRow {
  readonly expired_sessions: bigint
  readonly live_sessions: bigint
  readonly live_grants: bigint
  readonly ended: ReadonlyArray<Omit<ExpiredGrant, "token"> & { readonly token: string }>
}

export interface RecordRow {
  readonly lock_key: LockKey
  readonly fencing_token: FencingToken
  readonly owner_id: OwnerId
  readonly session_id: SessionId
  readonly acquire_id: AcquireId
  readonly granted_at: bigint
  readonly expires_at: bigint
  readonly held: boolean
  readonly revoked_by: string | null
  readonly revoked_why: string | null
  readonly revoked_at: bigint | null
}

export const session = (row: Omit<SessionRow, "outcome">, ownerId: OwnerId): Session => ({
  sessionId: row.session_id,
  ownerId,
  ttlMillis: row.ttl_ms,
  expiresAt: Number(row.expires_at)
})

export const grant = (row: GrantRow, key: LockKey): LockGrant => ({
  key,
  token: row.fencing_token,
  ownerId: row.owner_id,
  sessionId: row.session_id,
  grantedAt: Number(row.granted_at),
  expiresAt: Number(row.expires_at),
  ttlMillis: Number(row.ttl_ms)
})

export const record = (row: RecordRow): LockRecord => ({
  key: row.lock_key,
  held: row.held,
  token: row.fencing_token,
  ownerId: row.owner_id,
  sessionId: row.session_id,
  acquireId: row.acquire_id,
  grantedAt: Number(row.granted_at),
  expiresAt: Number(row.expires_at),
  lastRevocation:
    row.revoked_by === null || row.revoked_why === null
      ? null
      : { operator: row.revoked_by, reason: row.revoked_why, at: Number(row.revoked_at) }
})

export const noSession = (outcome: string, sessionId: SessionId): SessionUnknown | SessionExpired =>
  outcome === "expired" ? new SessionExpired({ sessionId }) : new SessionUnknown({ sessionId })

export const lost = (row: GrantRow, key: LockKey): LockLost =>
  new LockLost({ key, token: row.fencing_token, reason: row.reason })

export const contended = (row: GrantRow, key: LockKey): LockContended =>
  new LockContended({
    key,
    outcome: "HELD_BY_OTHER",
    holderOwnerId: row.owner_id,
    holderExpiresAt: Number(row.expires_at),
    retryAfterMillis: Math.min(1_000, Math.max(1, Number(row.ttl_ms)))
  })

// -----------------------------------------------------------------------------
// failures
// -----------------------------------------------------------------------------

export const failWith =
  (operation: string) =>
  (error: SqlError.SqlError): Effect.Effect<never, BackendError> => {
    const failure = Pg.classify(error)
    if (failure._tag === "Outage") {
      // A standby, or a primary that was demoted: somebody else is the primary, or will be.
      return failure.code === "25006"
        ? Effect.fail(new NotLeader({ operation, retryAfterMillis: 250 }))
        : Effect.fail(backendUnavailable(operation, failure.message))
    }
    if (failure.code !== undefined && noSchema.has(failure.code)) {
      return Effect.fail(backendUnavailable(operation, `lockdb is not up to date: ${failure.message}`, 1_000))
    }
    // The sequence is behind what was granted: a restore, or a hand that meant well. Nothing is granted until it is above.
    if (failure.code === "DL003" || (failure._tag === "Sqlstate" && failure.constraint === "lock_event_granted")) {
      return Effect.fail(backendUnavailable(operation, `token_floor: ${failure.message}`, 1_000))
    }
    return Effect.die(error)
  }

/** No such schema, table or function: the migrations have not run yet. */
const noSchema: ReadonlySet<string> = new Set(["3F000", "42P01", "42883"])
