/**
 * The lock store in PostgreSQL: each operation is one call of a function of `migrations/0001_locks.sql`, which is one
 * statement, one transaction and one commit.
 *
 * - Three small pools. Renewals, releases and heartbeats have connections of their own: 200 contenders that wait for a
 *   connection must not make a holder miss his renewal.
 * - Every call ends within the deadline. A write is never cancelled in flight (see `Pg.ts`): after the deadline its fate
 *   is unknown, and `BackendUnavailable` says so.
 * - Changes are notified after the commit, in batches. `NOTIFY` within the transaction takes a lock of the whole server
 *   for the time of the commit, that is of the fsync: with 16 writers 136..178 pairs of acquire and release a second
 *   against 209..345, measured in turns.
 */
import { Effect, Layer, Queue, type Redacted, Stream } from "effect"
import type { SqlError } from "effect/sql"
import { boundedBy } from "../../core/Bound.ts"
import type { AcquireId, FencingToken, LockGrant, LockKey, OwnerId, Session, SessionId } from "../../core/lock/Lock.ts"
import {
  type BackendError,
  backendUnavailable,
  FencedOut,
  LockContended,
  LockLost,
  type LockLostReason,
  LockNotFound,
  NotLeader,
  SessionExpired,
  SessionUnknown
} from "../../core/lock/LockErrors.ts"
import {
  type ExpiredGrant,
  type LockChange,
  type LockRecord,
  LockStore,
  type RevokedGrant
} from "../../core/lock/LockStore.ts"
import * as Pg from "../platform/Pg.ts"

export interface PgLockStoreOptions {
  readonly url: Redacted.Redacted
  readonly tls?: Pg.PgOptions["tls"]
  /** Every call ends within this. */
  readonly timeoutMillis: number
  /** Shown in `pg_stat_activity`. Default `lock-server`. */
  readonly applicationName?: string
}

/** What the service runs as, whatever its login may do: it calls the operations and touches no table. */
export const ROLE = "dlock_lock_server"

export const MIGRATIONS = new URL("./migrations/", import.meta.url)

const CHANNEL = "dlock_lock_change"
/** Rows that one sweep ends, tells of or collects at most. */
const SWEEP_LIMIT = 500
/** Keys that wait to be notified; beyond that the oldest are dropped, and their waiters look a second later. */
const NOTIFY_LIMIT = 10_000

const make = Effect.fnUntraced(function* (options: PgLockStoreOptions) {
  const { timeoutMillis } = options
  const pgOptions = (maxConnections: number): Pg.PgOptions => ({
    url: options.url,
    ...(options.tls === undefined ? {} : { tls: options.tls }),
    applicationName: options.applicationName ?? "lock-server",
    maxConnections,
    connectTimeout: timeoutMillis,
    answerTimeout: timeoutMillis,
    parameters: {
      role: ROLE,
      // An asynchronous commit is answered before it is durable, and its token would be handed out again after a crash.
      synchronous_commit: "on",
      default_transaction_isolation: "read committed",
      // A statement whose caller has given up does not stay in the queue for a row. (A wait for a lock may be cancelled:
      // nothing is committed yet.)
      lock_timeout: String(timeoutMillis)
    }
  })
  const contenders = yield* Pg.make(pgOptions(8))
  const holders = yield* Pg.make(pgOptions(4))
  const readers = yield* Pg.make(pgOptions(3))

  const bounded =
    (operation: string) =>
    <A>(effect: Effect.Effect<A, SqlError.SqlError>): Effect.Effect<A, BackendError> =>
      effect.pipe(
        Effect.catchTag("SqlError", failWith(operation)),
        boundedBy(timeoutMillis, () => backendUnavailable(operation, `no answer within ${timeoutMillis} ms`))
      )

  /** The one row of a call. */
  const one =
    (operation: string) =>
    <Row>(effect: Effect.Effect<ReadonlyArray<Row>, SqlError.SqlError>): Effect.Effect<Row, BackendError> =>
      Effect.flatMap(bounded(operation)(effect), ([row]) =>
        row === undefined ? Effect.die(`${operation}: the database answered no row`) : Effect.succeed(row)
      )

  const changed = yield* Queue.sliding<LockKey>(NOTIFY_LIMIT)
  const tell = (...keys: ReadonlyArray<LockKey>) => Queue.offerAll(changed, keys)
  yield* Queue.takeAll(changed).pipe(
    Effect.flatMap((keys) => {
      const distinct = [...new Set<string>(keys)]
      return bounded("notify")(readers`SELECT pg_notify(${CHANNEL}, key) FROM unnest(${distinct}::text[]) AS key`)
    }),
    // A hint that is lost costs a second.
    Effect.ignore,
    Effect.forever,
    Effect.forkScoped
  )

  return LockStore.of({
    openSession: ({ openId, ownerId, ttlMillis }) =>
      Effect.map(
        one("openSession")(
          contenders<SessionRow>`SELECT * FROM lock.open_session(${ownerId}, ${ttlMillis}::int4, ${openId})`
        ),
        (row) => session(row, ownerId)
      ),

    heartbeat: (sessionId, ownerId) =>
      Effect.flatMap(
        one("heartbeat")(holders<SessionRow>`SELECT * FROM lock.heartbeat(${sessionId}, ${ownerId})`),
        (row) =>
          row.outcome === "open"
            ? Effect.succeed(session(row, ownerId))
            : Effect.fail(noSession(row.outcome, sessionId))
      ),

    closeSession: (sessionId, ownerId) =>
      Effect.flatMap(
        one("closeSession")(holders<CloseRow>`SELECT * FROM lock.close_session(${sessionId}, ${ownerId})`),
        (row) => (row.outcome === "closed" ? tell(...(row.keys ?? [])) : Effect.fail(noSession(row.outcome, sessionId)))
      ).pipe(Effect.asVoid),

    tryAcquire: ({ acquireId, key, ownerId, sessionId, ttlMillis }) =>
      Effect.flatMap(
        one("tryAcquire")(
          contenders<GrantRow>`SELECT * FROM lock.acquire(${key}, ${ownerId}, ${sessionId}, ${ttlMillis}::int4, ${acquireId})`
        ),
        (row): Effect.Effect<LockGrant, LockContended | LockLost | SessionUnknown | SessionExpired> => {
          if (row.outcome === "granted") return Effect.succeed(grant(row, key))
          if (row.outcome === "lost") return Effect.fail(lost(row, key))
          if (row.outcome !== "contended") return Effect.fail(noSession(row.outcome, sessionId))
          return Effect.fail(
            new LockContended({
              key,
              outcome: "HELD_BY_OTHER",
              holderOwnerId: row.owner_id,
              holderExpiresAt: Number(row.expires_at),
              retryAfterMillis: Math.min(1_000, Math.max(1, Number(row.ttl_ms)))
            })
          )
        }
      ),

    renew: (key, ownerId, token, ttlMillis) =>
      Effect.flatMap(
        one("renew")(
          holders<GrantRow>`SELECT * FROM lock.renew(${key}, ${ownerId}, ${token}::int8, ${ttlMillis}::int4)`
        ),
        (row) => (row.outcome === "granted" ? Effect.succeed(grant(row, key)) : Effect.fail(lost(row, key)))
      ),

    release: (key, ownerId, token) =>
      Effect.flatMap(
        one("release")(holders<GrantRow>`SELECT * FROM lock.release(${key}, ${ownerId}, ${token}::int8)`),
        (row) =>
          row.outcome === "released"
            ? Effect.as(tell(key), { heldMillis: Number(row.held_ms) })
            : Effect.fail(lost(row, key))
      ),

    inspect: (key) =>
      Effect.flatMap(bounded("inspect")(readers<InfoRow>`SELECT * FROM lock.inspect(${key})`), ([row]) =>
        row === undefined
          ? Effect.fail(new LockNotFound({ key }))
          : Effect.succeed({
              key,
              held: row.held,
              holderOwnerId: row.owner_id,
              expiresAt: row.expires_at === null ? null : Number(row.expires_at)
            })
      ),

    revoke: ({ expectedToken, key, operator, reason, revocationId }) =>
      Effect.flatMap(
        one("revoke")(
          contenders<RevokeRow>`SELECT * FROM lock.revoke(${key}, ${operator}, ${reason}, ${expectedToken ?? null}::int8, ${revocationId})`
        ),
        (row): Effect.Effect<RevokedGrant, LockNotFound | FencedOut> => {
          if (row.outcome === "not_found") return Effect.fail(new LockNotFound({ key }))
          if (row.outcome === "fenced_out" && expectedToken !== undefined) {
            return Effect.fail(
              new FencedOut({
                point: "lock",
                op: "revoke",
                resource: key,
                presented: expectedToken,
                highest: row.live_token
              })
            )
          }
          return Effect.as(tell(key), {
            key,
            revokedToken: row.revoked_token,
            newTokenFloor: row.new_token_floor,
            revocationId,
            heldMillis: row.held_ms === null ? null : Number(row.held_ms)
          })
        }
      ),

    changes: Stream.map(
      Pg.listen(pgOptions(1), CHANNEL),
      // An empty payload: listening has begun again, and what happened meanwhile was missed.
      (payload): LockChange => ({ key: payload === "" ? null : (payload as LockKey) })
    ),

    sweep: Effect.flatMap(
      one("sweep")(readers<SweepRow>`SELECT * FROM lock.sweep(${SWEEP_LIMIT}::int4)`),
      ({ ended, expired_sessions, live_grants, live_sessions }) =>
        Effect.as(tell(...ended.map(({ key }) => key)), {
          expiredGrants: ended.map((row): ExpiredGrant => ({ ...row, token: BigInt(row.token) as FencingToken })),
          expiredSessions: Number(expired_sessions),
          liveSessions: Number(live_sessions),
          liveGrants: Number(live_grants)
        })
    ),

    records: ({ after, limit, prefix }) =>
      Effect.map(
        bounded("records")(
          readers<RecordRow>`
            SELECT * FROM lock.lock_record
             WHERE lock_key > ${after} AND starts_with(lock_key, ${prefix}) AND lock_key >= ${prefix}
             ORDER BY lock_key LIMIT ${limit}::int4`
        ),
        (rows) => rows.map(record)
      ),

    record: (key) =>
      Effect.flatMap(
        bounded("record")(readers<RecordRow>`SELECT * FROM lock.lock_record WHERE lock_key = ${key}`),
        ([row]) => (row === undefined ? Effect.fail(new LockNotFound({ key })) : Effect.succeed(record(row)))
      ),

    sessions: ({ after, limit, prefix }) =>
      Effect.map(
        bounded("sessions")(
          readers<Omit<SessionRow, "outcome"> & { readonly owner_id: OwnerId }>`
            SELECT * FROM lock.live_session
             WHERE session_id > ${after} AND starts_with(session_id, ${prefix}) AND session_id >= ${prefix}
             ORDER BY session_id LIMIT ${limit}::int4`
        ),
        (rows) => rows.map((row) => session(row, row.owner_id))
      ),

    ping: Effect.flatMap(bounded("ping")(readers<{ guard: string }>`SELECT guard FROM lock.guard_missing`), (rows) =>
      rows.length === 0
        ? Effect.void
        : Effect.fail(backendUnavailable("ping", `guards missing: ${rows.map((row) => row.guard).join("; ")}`))
    )
  })
})

export const layer = (options: PgLockStoreOptions): Layer.Layer<LockStore, SqlError.SqlError> =>
  Layer.effect(LockStore, make(options))

// -----------------------------------------------------------------------------
// rows: what went in as a valid value comes out as one, so the brands are asserted here and nowhere else
// -----------------------------------------------------------------------------

interface SessionRow {
  readonly outcome: string
  readonly session_id: SessionId
  readonly ttl_ms: number
  readonly expires_at: bigint
}

interface CloseRow {
  readonly outcome: string
  readonly keys: ReadonlyArray<LockKey> | null
}

interface GrantRow {
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

interface InfoRow {
  readonly held: boolean
  readonly owner_id: OwnerId | null
  readonly expires_at: bigint | null
}

interface RevokeRow {
  readonly outcome: string
  readonly revoked_token: FencingToken
  readonly new_token_floor: FencingToken
  readonly held_ms: bigint | null
  readonly live_token: bigint
}

interface SweepRow {
  readonly expired_sessions: bigint
  readonly live_sessions: bigint
  readonly live_grants: bigint
  readonly ended: ReadonlyArray<Omit<ExpiredGrant, "token"> & { readonly token: string }>
}

interface RecordRow {
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

const session = (row: Omit<SessionRow, "outcome">, ownerId: OwnerId): Session => ({
  sessionId: row.session_id,
  ownerId,
  ttlMillis: row.ttl_ms,
  expiresAt: Number(row.expires_at)
})

const grant = (row: GrantRow, key: LockKey): LockGrant => ({
  key,
  token: row.fencing_token,
  ownerId: row.owner_id,
  sessionId: row.session_id,
  grantedAt: Number(row.granted_at),
  expiresAt: Number(row.expires_at),
  ttlMillis: Number(row.ttl_ms)
})

const record = (row: RecordRow): LockRecord => ({
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

const noSession = (outcome: string, sessionId: SessionId): SessionUnknown | SessionExpired =>
  outcome === "expired" ? new SessionExpired({ sessionId }) : new SessionUnknown({ sessionId })

const lost = (row: GrantRow, key: LockKey): LockLost =>
  new LockLost({ key, token: row.fencing_token, reason: row.reason })

// -----------------------------------------------------------------------------
// failures
// -----------------------------------------------------------------------------

const failWith =
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
