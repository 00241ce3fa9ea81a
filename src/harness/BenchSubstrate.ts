// @effect-diagnostics nodeBuiltinImport:off
/**
 * What the lock service is compared with: its backend, one statement or transaction per call and nothing around it; and
 * the two ways in which people lock with PostgreSQL when they have no lock service.
 */
import { noop } from "cockatiel"
import { Clock, Effect, type Redacted, type Scope } from "effect"
import { CompareResult, CompareTarget, Etcd3, type ITxnRequest } from "etcd3"
import { AcquireId, LockKey, OwnerId, type Session } from "../core/lock/Lock.ts"
import { LockStore } from "../core/lock/LockStore.ts"
import * as Pg from "../services/platform/Pg.ts"
import type { Work } from "./BenchDriver.ts"
import { HarnessError } from "./Processes.ts"

/** Longer than any benchmark, so that nothing has to be kept alive. */
const TTL_MILLIS = 300_000

const keyOf = (who: string, client: number) => LockKey.make(`bench:${who}:${client}`)

/** Connections of a pool, as many as the store has for acquires and releases. */
const CONNECTIONS = 14

// -----------------------------------------------------------------------------
// the store
// -----------------------------------------------------------------------------

export const sessionsOf = (store: LockStore["Service"], who: string, clients: number) =>
  Effect.forEach(
    Array.from({ length: clients }, (_, i) => i),
    (i) =>
      store.openSession({
        ownerId: OwnerId.make(`${who}-${i}`),
        ttlMillis: TTL_MILLIS,
        openId: AcquireId.make(`${who}-${i}`)
      }),
    { concurrency: 8 }
  )

let ids = 0

export const store = Effect.fnUntraced(function* (clients: number) {
  const locks = yield* LockStore
  const sessions = yield* sessionsOf(locks, "store", clients)
  const work: Work = (client) =>
    Effect.suspend(() => {
      const { ownerId, sessionId } = sessionAt(sessions, client)
      const key = keyOf("store", client)
      const acquireId = AcquireId.make(`bench-${++ids}`)
      return Effect.flatMap(
        locks.tryAcquire({ key, ownerId, sessionId, ttlMillis: TTL_MILLIS, acquireId }),
        ({ token }) => locks.release(key, ownerId, token)
      )
    })
  return work
})

const sessionAt = (sessions: ReadonlyArray<Session>, client: number): Session => {
  const session = sessions[client]
  if (session === undefined) throw new RangeError(`there is no client ${client}`)
  return session
}

// -----------------------------------------------------------------------------
// PostgreSQL
// -----------------------------------------------------------------------------

const pool = (url: Redacted.Redacted) =>
  Pg.make({ url, applicationName: "bench", maxConnections: CONNECTIONS, answerTimeout: "30 seconds" })

/** The store's own functions, one call each: what there is to be gained by batches, and what the store itself costs. */
export const pgBare = Effect.fnUntraced(function* (url: Redacted.Redacted, clients: number) {
  const sql = yield* pool(url)
  const locks = yield* LockStore
  const sessions = yield* sessionsOf(locks, "bare", clients)
  const work: Work = (client) =>
    Effect.gen(function* () {
      const { ownerId, sessionId } = sessionAt(sessions, client)
      const key = keyOf("bare", client)
      const [row] = yield* sql<{ fencing_token: bigint }>`
        SELECT * FROM lock.acquire(${key}, ${ownerId}, ${sessionId}, ${TTL_MILLIS}::int4, ${`bench-${++ids}`})`
      yield* sql`SELECT * FROM lock.release(${key}, ${ownerId}, ${row?.fencing_token ?? 0n}::int8)`
    })
  return work
})

/**
 * A lock in one statement: no session, no audit, no answer to a repeat, no judgement of a holder's death but by a time.
 * The least that a durable lock with a token can cost.
 */
export const pgUpsert = Effect.fnUntraced(function* (url: Redacted.Redacted) {
  const sql = yield* pool(url)
  yield* sql`CREATE SCHEMA IF NOT EXISTS bench`
  yield* sql`CREATE SEQUENCE IF NOT EXISTS bench.token`
  yield* sql`
    CREATE TABLE IF NOT EXISTS bench.naive_lock
      (key text PRIMARY KEY, token bigint NOT NULL, owner_id text NOT NULL, expires_at timestamptz NOT NULL)
      WITH (fillfactor = 70)`
  const work: Work = (client) =>
    Effect.gen(function* () {
      const key = keyOf("upsert", client)
      const owner = `upsert-${client}`
      const [row] = yield* sql<{ token: bigint }>`
        INSERT INTO bench.naive_lock AS l (key, token, owner_id, expires_at)
          VALUES (${key}, nextval('bench.token'), ${owner}, clock_timestamp() + interval '5 minutes')
        ON CONFLICT (key) DO UPDATE
          SET token = nextval('bench.token'), owner_id = excluded.owner_id, expires_at = excluded.expires_at
          WHERE l.expires_at <= clock_timestamp()
        RETURNING token`
      yield* sql`
        UPDATE bench.naive_lock SET expires_at = '-infinity'
         WHERE key = ${key} AND owner_id = ${owner} AND token = ${row?.token ?? 0n}::int8`
    })
  return work
})

/** A lock of the connection: nothing is durable, nothing is fenced, and the connection is the caller's while it holds. */
export const pgAdvisory = Effect.fnUntraced(function* (url: Redacted.Redacted) {
  const sql = yield* pool(url)
  const work: Work = (client) =>
    Effect.scoped(
      Effect.gen(function* () {
        const connection = yield* sql.reserve
        const key = keyOf("advisory", client)
        yield* connection.execute("SELECT pg_try_advisory_lock(hashtextextended($1, 0))", [key], undefined)
        yield* connection.execute("SELECT pg_advisory_unlock(hashtextextended($1, 0))", [key], undefined)
      })
    )
  return work
})

// -----------------------------------------------------------------------------
// etcd
// -----------------------------------------------------------------------------

/** What every call of the etcd subjects goes through: no call is repeated, as in the store. */
const etcdCalls = Effect.fnUntraced(function* (endpoints: ReadonlyArray<string>) {
  const etcd = yield* Effect.acquireRelease(
    Effect.sync(() => new Etcd3({ hosts: [...endpoints], faultHandling: { global: noop, host: () => noop } })),
    (client) => Effect.sync(() => client.close())
  )
  const clock = yield* Clock.Clock
  const call = <A>(step: string, run: () => Promise<A>) =>
    Effect.tryPromise({ try: run, catch: (cause) => new HarnessError({ step, message: String(cause) }) })
  const deadline = () => ({ deadline: clock.currentTimeMillisUnsafe() + 10_000 })
  return {
    txn: (request: ITxnRequest) => call("txn", () => etcd.kv.txn(request, deadline())),
    grant: Effect.suspend(() =>
      call("lease", () => etcd.leaseClient.leaseGrant({ TTL: TTL_MILLIS / 1_000 }, deadline()))
    ),
    revoke: (ID: string) => call("revoke", () => etcd.leaseClient.leaseRevoke({ ID }, deadline()))
  }
})

const putIfAbsent = (key: Buffer, lease: string): ITxnRequest => ({
  compare: [{ key, target: CompareTarget.Create, result: CompareResult.Equal, create_revision: "0" }],
  success: [{ request_put: { key, value: Buffer.from("bench"), lease } }],
  failure: [{ request_range: { key } }]
})

const removeIfSame = (key: Buffer, revision: string): ITxnRequest => ({
  compare: [{ key, target: CompareTarget.Mod, result: CompareResult.Equal, mod_revision: revision }],
  success: [{ request_delete_range: { key } }]
})

/** One transaction that puts the key under a lease of its client, one that deletes it: no id, no lease of the grant. */
export const etcdBare = Effect.fnUntraced(function* (
  endpoints: ReadonlyArray<string>,
  clients: number
): Effect.fn.Return<Work, HarnessError, Scope.Scope> {
  const { grant, txn } = yield* etcdCalls(endpoints)
  const leases = yield* Effect.forEach(Array.from({ length: clients }), () => Effect.map(grant, ({ ID }) => ID), {
    concurrency: 8
  })
  return (client) =>
    Effect.gen(function* () {
      const key = Buffer.from(`/bench/bare/${client}`)
      const put = yield* txn(putIfAbsent(key, leases[client] ?? "0"))
      yield* txn(removeIfSame(key, put.header.revision))
    })
})

/** The same two transactions, and a lease for each grant: what a lock whose end a lease decides costs at the least. */
export const etcdLeased = Effect.fnUntraced(function* (
  endpoints: ReadonlyArray<string>
): Effect.fn.Return<Work, HarnessError, Scope.Scope> {
  const { grant, revoke, txn } = yield* etcdCalls(endpoints)
  return (client) =>
    Effect.gen(function* () {
      const key = Buffer.from(`/bench/leased/${client}`)
      const { ID } = yield* grant
      const put = yield* txn(putIfAbsent(key, ID))
      yield* txn(removeIfSame(key, put.header.revision))
      yield* revoke(ID)
    })
})

/** The lease alone: nothing that grants each lock a lease of its own can be faster than this. */
export const etcdLeases = Effect.fnUntraced(function* (
  endpoints: ReadonlyArray<string>
): Effect.fn.Return<Work, HarnessError, Scope.Scope> {
  const { grant, revoke } = yield* etcdCalls(endpoints)
  return () => Effect.flatMap(grant, ({ ID }) => Effect.asVoid(revoke(ID)))
})
