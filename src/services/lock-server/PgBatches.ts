/**
 * The operations that come in crowds, many to a statement: acquires, and apart from them, on connections of their own,
 * what a holder does (renewals, releases, heartbeats), which never waits behind those who want to become one. (A release
 * that is alone borrows the connection of the acquires while nobody acquires.)
 *
 * Who is alone runs the operation's own function of `0001_locks.sql`; a batch runs its counterpart of `0002_batches.sql`,
 * which leaves out what is not plain. With 64 callers a batch commits once for tens of grants.
 */
import type { PgClient } from "@effect/sql-pg"
import { Effect, Exit, type Scope } from "effect"
import type { SqlError } from "effect/sql"
import { boundedBy } from "../../core/Bound.ts"
import type { FencingToken, LockGrant, LockKey, OwnerId, Session, SessionId } from "../../core/lock/Lock.ts"
import {
  type BackendError,
  backendUnavailable,
  type LockContended,
  type LockLost,
  type SessionExpired,
  type SessionUnknown
} from "../../core/lock/LockErrors.ts"
import type { AcquireRequest, Released } from "../../core/lock/LockStore.ts"
import * as Pg from "../platform/Pg.ts"
import * as Batching from "./Batching.ts"
import * as PgCalls from "./PgCalls.ts"
import { contended, grant, type GrantRow, lost, noSession, session, type SessionRow } from "./PgCalls.ts"

const ACQUIRES = { workers: 2, batch: 128, queue: 2_000, alone: 5 }
/** Each of the three kinds. */
const HOLDS = { workers: 1, batch: 128, queue: 2_000, alone: 1 }

/**
 * Connections. The workers of the queues have theirs: a connection plans the statements of a batch once (about 30 ms of
 * processor time), so few of them should. `Aside`: what is tried alone, and the calls that are not batched.
 */
export const CONNECTIONS = {
  contenders: ACQUIRES.workers,
  contendersAside: ACQUIRES.alone + 1,
  holders: 3 * HOLDS.workers,
  holdersAside: 3 * HOLDS.alone + 1
}

/**
 * How long the workers of the queues wait for a row that somebody else has. Whoever needs it longer waits aside, so that
 * the next call goes out: two keys whose rows are held would stop all acquires otherwise.
 */
export const PATIENCE_MILLIS = 10

export type Pools = Readonly<Record<keyof typeof CONNECTIONS, PgClient.PgClient>>

export interface PgBatchesOptions {
  /** Of `CONNECTIONS`; those of `contenders` and `holders` with a `lock_timeout` of `PATIENCE_MILLIS`. */
  readonly pools: Pools
  readonly timeoutMillis: number
}

interface Hold {
  readonly key: LockKey
  readonly ownerId: OwnerId
  readonly token: FencingToken
}
interface Renewal extends Hold {
  readonly ttlMillis: number
}
interface Heartbeat {
  readonly sessionId: SessionId
  readonly ownerId: OwnerId
}
type AcquireFailure = LockContended | LockLost | SessionUnknown | SessionExpired | BackendError
type HeartbeatFailure = SessionUnknown | SessionExpired | BackendError

/** An answer of a batch: which of its items it is for, counted from 1. */
type Numbered<Row> = Row & { readonly n: number }

export const make = Effect.fnUntraced(function* ({ pools, timeoutMillis }: PgBatchesOptions) {
  const { contenders, contendersAside, holders, holdersAside } = pools
  const { one } = PgCalls.within(timeoutMillis)

  /** Calls under way on `contenders`. */
  let contending = 0
  const on =
    (pool: PgClient.PgClient) =>
    <A, E>(call: (sql: PgClient.PgClient) => Effect.Effect<A, E>): Effect.Effect<A, E> => {
      if (pool !== contenders) return call(pool)
      return Effect.suspend(() => {
        contending++
        return Effect.ensuring(
          call(pool),
          Effect.sync(() => contending--)
        )
      })
    }

  const lane = <Request, Row, A, E>(options: {
    readonly operation: string
    readonly sizes: typeof ACQUIRES
    readonly distinct?: (request: Request) => string
    readonly same?: (request: Request) => string
    readonly one: (request: Request, aside: boolean) => Effect.Effect<ReadonlyArray<Row>, SqlError.SqlError>
    readonly many: (requests: ReadonlyArray<Request>) => Effect.Effect<ReadonlyArray<Numbered<Row>>, SqlError.SqlError>
    readonly answer: (row: Row, request: Request) => Exit.Exit<A, E>
  }): Effect.Effect<(request: Request) => Effect.Effect<A, E | BackendError>, never, Scope.Scope> =>
    Effect.gen(function* () {
      const { answer, distinct, operation, same, sizes } = options
      const { submit } = yield* Batching.make<Request, A, E | BackendError>({
        ...sizes,
        ...(distinct === undefined ? {} : { admission: Batching.distinct(distinct) }),
        ...(same === undefined ? {} : { same }),
        one: (request) => Effect.flatMap(one(operation)(options.one(request, true)), (row) => answer(row, request)),
        many: (requests) => {
          const [first] = requests
          const call =
            requests.length === 1 && first !== undefined
              ? Effect.map(options.one(first, false), (rows) => rows.map((row) => ({ ...row, n: 1 })))
              : options.many(requests)
          const none = requests.map((): Exit.Exit<A, E | BackendError> | undefined => undefined)
          return call.pipe(
            // Nothing was applied and it is not the backend's state: the item whose fault it is will wait, or fail, alone.
            Effect.catchIf(isOfOneItem, () => Effect.succeed([])),
            // Every caller bounds his own wait; the call itself ends with its connection (`answerTimeout`).
            Effect.catchTag("SqlError", PgCalls.failWith(operation)),
            Effect.match({
              onFailure: (failure) => none.map(() => Exit.fail(failure)),
              onSuccess: (rows) => {
                for (const row of rows) {
                  const request = requests[row.n - 1]
                  if (request !== undefined) none[row.n - 1] = answer(row, request)
                }
                return none
              }
            })
          )
        },
        refuse: (why) =>
          backendUnavailable(operation, why === "full" ? `${sizes.queue} requests wait already` : "the store is closed")
      })
      return (request) =>
        // The time in the queue counts.
        boundedBy(timeoutMillis, () => PgCalls.late(operation, timeoutMillis))(submit(request))
    })

  const acquires = yield* lane<AcquireRequest, GrantRow, LockGrant, AcquireFailure>({
    operation: "tryAcquire",
    sizes: ACQUIRES,
    same: ({ acquireId, key, ownerId, sessionId, ttlMillis }) =>
      JSON.stringify([key, sessionId, ownerId, acquireId, ttlMillis]),
    one: ({ acquireId, key, ownerId, sessionId, ttlMillis }, aside) =>
      on(aside ? contendersAside : contenders)(
        (sql) => sql`SELECT * FROM lock.acquire(${key}, ${ownerId}, ${sessionId}, ${ttlMillis}::int4, ${acquireId})`
      ),
    many: (all) =>
      on(contenders)(
        (sql) => sql`SELECT * FROM lock.acquire_batch(
        ${all.map(({ key }) => key)}::text[], ${all.map(({ ownerId }) => ownerId)}::text[],
        ${all.map(({ sessionId }) => sessionId)}::text[], ${all.map(({ ttlMillis }) => ttlMillis)}::int4[],
        ${all.map(({ acquireId }) => acquireId)}::text[])`
      ),
    answer: (row, { key, sessionId }): Exit.Exit<LockGrant, AcquireFailure> => {
      if (row.outcome === "granted") return Exit.succeed(grant(row, key))
      if (row.outcome === "lost") return Exit.fail(lost(row, key))
      return Exit.fail(row.outcome === "contended" ? contended(row, key) : noSession(row.outcome, sessionId))
    }
  })

  const renewals = yield* lane<Renewal, GrantRow, LockGrant, LockLost>({
    operation: "renew",
    sizes: HOLDS,
    distinct: ({ key }) => key,
    one: ({ key, ownerId, token, ttlMillis }, aside) =>
      (aside
        ? holdersAside
        : holders)`SELECT * FROM lock.renew(${key}, ${ownerId}, ${token}::int8, ${ttlMillis}::int4)`,
    many: (all) =>
      holders`SELECT * FROM lock.renew_batch(
        ${all.map(({ key }) => key)}::text[], ${all.map(({ ownerId }) => ownerId)}::text[],
        ${all.map(({ token }) => token)}::int8[], ${all.map(({ ttlMillis }) => ttlMillis)}::int4[])`,
    answer: (row, { key }) => (row.outcome === "granted" ? Exit.succeed(grant(row, key)) : Exit.fail(lost(row, key)))
  })

  const releases = yield* lane<Hold, GrantRow, Released, LockLost>({
    operation: "release",
    sizes: HOLDS,
    distinct: ({ key }) => key,
    // Whoever is alone goes and comes by one connection: its process on the server is warm (1.2 to 1.3 times the latency of
    // the bare call for 1.8 with a connection each). While anybody acquires, a release has the connection of its own.
    one: ({ key, ownerId, token }, aside) =>
      on(aside ? holdersAside : contending === 0 ? contenders : holders)(
        (sql) => sql`SELECT * FROM lock.release(${key}, ${ownerId}, ${token}::int8)`
      ),
    many: (all) =>
      holders`SELECT * FROM lock.release_batch(
        ${all.map(({ key }) => key)}::text[], ${all.map(({ ownerId }) => ownerId)}::text[],
        ${all.map(({ token }) => token)}::int8[])`,
    answer: (row, { key }) =>
      row.outcome === "released" ? Exit.succeed({ heldMillis: Number(row.held_ms) }) : Exit.fail(lost(row, key))
  })

  const heartbeats = yield* lane<Heartbeat, SessionRow, Session, HeartbeatFailure>({
    operation: "heartbeat",
    sizes: HOLDS,
    distinct: ({ sessionId }) => sessionId,
    one: ({ ownerId, sessionId }, aside) =>
      (aside ? holdersAside : holders)`SELECT * FROM lock.heartbeat(${sessionId}, ${ownerId})`,
    many: (all) =>
      holders`SELECT * FROM lock.heartbeat_batch(
        ${all.map(({ sessionId }) => sessionId)}::text[], ${all.map(({ ownerId }) => ownerId)}::text[])`,
    answer: (row, { ownerId, sessionId }): Exit.Exit<Session, HeartbeatFailure> =>
      row.outcome === "open" ? Exit.succeed(session(row, ownerId)) : Exit.fail(noSession(row.outcome, sessionId))
  })

  return { acquires, renewals, releases, heartbeats }
})

/** Certainly not applied, and not because the database can not: a constraint, a row that is locked, a raised error. */
const isOfOneItem = (error: SqlError.SqlError): boolean => {
  const failure = Pg.classify(error)
  return failure._tag === "Outage" ? failure.code !== undefined && ownFailures.test(failure.code) : true
}

/** 40 serialization or deadlock, 55P03 lock timeout, 57014 cancelled. */
const ownFailures = /^(40|55P03|57014)/
