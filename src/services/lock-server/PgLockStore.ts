/**
 * The lock store in PostgreSQL: each operation is one call of a function of `migrations/0001_locks.sql`, which is one
 * statement, one transaction and one commit; of operations that come in crowds one call does many (`PgBatches.ts`).
 *
 * - Small pools. Renewals, releases and heartbeats have connections of their own: 200 contenders that wait for a
 *   connection must not make a holder miss his renewal. (A lone release borrows theirs while nobody acquires.)
 * - Every call ends within the deadline. A write is never cancelled in flight (see `Pg.ts`): after the deadline its fate
 *   is unknown, and `BackendUnavailable` says so.
 * - Changes are notified after the commit, in batches. `NOTIFY` within the transaction takes a lock of the whole server
 *   for the time of the commit, that is of the fsync: with 16 writers 136..178 pairs of acquire and release a second
 *   against 209..345, measured in turns.
 */
import { Effect, Layer, Queue, type Redacted, Stream } from "effect"
import type { SqlError } from "effect/sql"
import type { FencingToken, LockKey, OwnerId } from "../../core/lock/Lock.ts"
import { backendUnavailable, FencedOut, LockNotFound } from "../../core/lock/LockErrors.ts"
import { type ExpiredGrant, type LockChange, LockStore, type RevokedGrant } from "../../core/lock/LockStore.ts"
import * as Pg from "../platform/Pg.ts"
import * as PgBatches from "./PgBatches.ts"
import * as PgCalls from "./PgCalls.ts"
import {
  type CloseRow,
  type InfoRow,
  noSession,
  record,
  type RecordRow,
  type RevokeRow,
  session,
  type SessionRow,
  type SweepRow
} from "./PgCalls.ts"

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
/**
 * The first release after a pause is told at once, those that follow together: a statement for each would be a third of
 * what a lone client costs. A waiter is told so much later at the most.
 */
const NOTIFY_AGAIN_MILLIS = 10
/** Keys that wait to be notified; beyond that the oldest are dropped, and their waiters look a second later. */
const NOTIFY_LIMIT = 10_000

const make = Effect.fnUntraced(function* (options: PgLockStoreOptions) {
  const { timeoutMillis } = options
  const pgOptions = (maxConnections: number, lockTimeoutMillis = timeoutMillis): Pg.PgOptions => ({
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
      lock_timeout: String(lockTimeoutMillis)
    }
  })
  const { contenders, contendersAside, holders, holdersAside } = PgBatches.CONNECTIONS
  const pools = yield* Effect.all({
    contenders: Pg.make(pgOptions(contenders, PgBatches.PATIENCE_MILLIS)),
    contendersAside: Pg.make(pgOptions(contendersAside)),
    holders: Pg.make(pgOptions(holders, PgBatches.PATIENCE_MILLIS)),
    holdersAside: Pg.make(pgOptions(holdersAside))
  })
  const readers = yield* Pg.make(pgOptions(3))

  const { bounded, one } = PgCalls.within(timeoutMillis)
  const { acquires, heartbeats, releases, renewals } = yield* PgBatches.make({ pools, timeoutMillis })

  const changed = yield* Queue.sliding<LockKey>(NOTIFY_LIMIT)
  const tell = (...keys: ReadonlyArray<LockKey>) => Queue.offerAll(changed, keys)
  yield* Queue.takeAll(changed).pipe(
    Effect.flatMap((keys) => {
      const distinct = [...new Set<string>(keys)]
      // A hint needs no fsync of its own.
      return bounded("notify")(
        readers`SELECT set_config('synchronous_commit', 'off', true), pg_notify(${CHANNEL}, key) FROM unnest(${distinct}::text[]) AS key`
      )
    }),
    // A hint that is lost costs a second.
    Effect.ignore,
    Effect.andThen(Effect.sleep(NOTIFY_AGAIN_MILLIS)),
    Effect.forever,
    Effect.forkScoped
  )

  return LockStore.of({
    openSession: ({ openId, ownerId, ttlMillis }) =>
      Effect.map(
        one("openSession")(
          pools.contendersAside<SessionRow>`SELECT * FROM lock.open_session(${ownerId}, ${ttlMillis}::int4, ${openId})`
        ),
        (row) => session(row, ownerId)
      ),

    heartbeat: (sessionId, ownerId) => heartbeats({ sessionId, ownerId }),

    closeSession: (sessionId, ownerId) =>
      Effect.flatMap(
        one("closeSession")(pools.holdersAside<CloseRow>`SELECT * FROM lock.close_session(${sessionId}, ${ownerId})`),
        (row) => (row.outcome === "closed" ? tell(...(row.keys ?? [])) : Effect.fail(noSession(row.outcome, sessionId)))
      ).pipe(Effect.asVoid),

    tryAcquire: acquires,

    renew: (key, ownerId, token, ttlMillis) => renewals({ key, ownerId, token, ttlMillis }),

    release: (key, ownerId, token) => Effect.tap(releases({ key, ownerId, token }), () => tell(key)),

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
          pools.contendersAside<RevokeRow>`SELECT * FROM lock.revoke(${key}, ${operator}, ${reason}, ${expectedToken ?? null}::int8, ${revocationId})`
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
