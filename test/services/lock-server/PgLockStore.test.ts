/**
 * What only PostgreSQL can get wrong: row locks, snapshots, sequences, connections. Each schedule is forced by a second
 * connection that holds the row in question.
 */
import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Exit, Fiber, Layer, Option } from "effect"
import { AcquireId, LockKey, OwnerId, type Session } from "../../../src/core/lock/Lock.ts"
import { LockStore } from "../../../src/core/lock/LockStore.ts"
import * as PgLockStore from "../../../src/services/lock-server/PgLockStore.ts"
import * as Migrations from "../../../src/services/platform/Migrations.ts"
import * as Pg from "../../../src/services/platform/Pg.ts"
import { TestDatabase } from "../../support/pg.ts"
import { waitUntil } from "../../support/waitUntil.ts"

const database = TestDatabase.layer("lockdb", (url) => Migrations.migrate({ url, directory: PgLockStore.MIGRATIONS }))

const TIMEOUT = 2_000
const store = Layer.unwrap(
  Effect.map(TestDatabase, ({ url }) => PgLockStore.layer({ url, timeoutMillis: TIMEOUT }))
).pipe(Layer.provideMerge(database))

const LONG = 60_000
const w1 = OwnerId.make("w1")
const w2 = OwnerId.make("w2")

let names = 0
const fresh = (prefix: string) => AcquireId.make(`${prefix}-${++names}`)
const freshKey = () => LockKey.make(`pg:${++names}`)

const open = (ownerId: OwnerId, ttlMillis = LONG) =>
  Effect.flatMap(LockStore, (store) => store.openSession({ ownerId, ttlMillis, openId: fresh("open") }))

const acquire = (session: Session, key: LockKey, ttlMillis = LONG, acquireId = fresh("acquire")) =>
  Effect.flatMap(LockStore, (store) =>
    store.tryAcquire({ key, ownerId: session.ownerId, sessionId: session.sessionId, ttlMillis, acquireId })
  )

const pool = Effect.flatMap(TestDatabase, ({ pool }) => pool({ answerTimeout: "20 seconds" }))

const databaseMillis = Effect.scoped(
  Effect.flatMap(pool, (sql) =>
    Effect.map(sql<{ now: bigint }>`SELECT lock.ms(clock_timestamp()) AS now`, ([row]) => Number(row?.now))
  )
)

/** A transaction that is open until `end`. */
const transaction = Effect.gen(function* () {
  const sql = yield* pool
  const connection = yield* sql.reserve
  const run = (statement: string) => connection.executeUnprepared(statement, [], undefined)
  yield* run("BEGIN")
  return { run, end: run("COMMIT") }
})

const holdGrant = (key: LockKey) =>
  Effect.tap(transaction, ({ run }) => run(`SELECT FROM lock.lock_grant WHERE lock_key = '${key}' FOR UPDATE`))

/** So many statements of the store wait for a row. */
const blocked = (count: number) =>
  Effect.gen(function* () {
    const sql = yield* pool
    yield* waitUntil(
      `${count} statements wait for a row`,
      Effect.map(
        sql<{ n: bigint }>`
          SELECT count(*) AS n FROM pg_stat_activity
           WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name = 'lock-server'`,
        ([row]) => Number(row?.n) >= count
      )
    )
  }).pipe(Effect.scoped)

const tagOf = (exit: Exit.Exit<unknown, { readonly _tag: string }>) =>
  Exit.isSuccess(exit)
    ? "granted"
    : Option.getOrElse(
        Option.map(Exit.findErrorOption(exit), (e) => e._tag),
        () => "defect"
      )

const elapsed = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function* () {
    const start = yield* Clock.monotonicTimeNanos
    const value = yield* effect
    return [value, Number((yield* Clock.monotonicTimeNanos) - start) / 1e6] as const
  })

describe("PgLockStore", () => {
  it.layer(store, { excludeTestServices: true, timeout: "60 seconds" })((it) => {
    it.effect(
      "does not take a key from a session whose heartbeat is on its way: the join of a waiting statement is old",
      () =>
        Effect.gen(function* () {
          const store = yield* LockStore
          const key = freshKey()
          const ttl = 2_500
          const session = yield* open(w1, ttl)
          const grant = yield* acquire(session, key)
          const other = yield* open(w2)
          for (const waitsForRow of [true, false]) {
            // The heartbeat is in time, its commit is slow, and what was left of the session runs out meanwhile.
            const { expiresAt } = yield* store.heartbeat(session.sessionId, w1)
            yield* Effect.sleep(ttl * 0.7)
            const heartbeat = yield* transaction
            const [beat] = yield* heartbeat.run(
              `SELECT (h).outcome, (h).expires_at::text FROM lock.heartbeat('${session.sessionId}', 'w1') AS h`
            )
            const extendedTo = Number((beat as { expires_at: string }).expires_at)
            assert.isTrue(extendedTo > expiresAt + ttl / 2)
            const row = waitsForRow ? yield* holdGrant(key) : undefined
            yield* waitUntil(
              "the old end has passed",
              Effect.map(databaseMillis, (now) => now > expiresAt)
            )
            const takeover = yield* Effect.forkChild(Effect.exit(acquire(other, key)))
            if (row !== undefined) {
              yield* blocked(1)
              yield* heartbeat.end
              yield* row.end
            }
            const exit = yield* Fiber.join(takeover)
            if (row === undefined) yield* heartbeat.end
            assert.isTrue((yield* databaseMillis) < extendedTo, "too slow a machine: the session has ended in earnest")
            assert.strictEqual(tagOf(exit), "LockContended")
            yield* store.renew(key, w1, grant.token, LONG)
          }
        }).pipe(Effect.scoped)
    )

    it.effect("is right to distrust that join: the same schedule makes one statement grant twice", () =>
      Effect.gen(function* () {
        const sql = yield* pool
        yield* sql.unsafe("CREATE TABLE naive_session (id text PRIMARY KEY, expires_at timestamptz NOT NULL)")
        yield* sql.unsafe("CREATE TABLE naive_grant (key text PRIMARY KEY, session_id text NOT NULL)")
        yield* sql.unsafe("INSERT INTO naive_session VALUES ('s1', clock_timestamp() + interval '300 milliseconds')")
        yield* sql.unsafe("INSERT INTO naive_grant VALUES ('k', 's1')")
        const heartbeat = yield* transaction
        yield* heartbeat.run("UPDATE naive_session SET expires_at = clock_timestamp() + interval '1 minute'")
        // A renew: it changes the row, so whoever waits for the row judges its new version, and only that.
        const renew = yield* transaction
        yield* renew.run("UPDATE naive_grant SET session_id = session_id")
        yield* Effect.sleep(400)
        const naive = yield* Effect.forkChild(
          sql.unsafe(`
            UPDATE naive_grant g SET session_id = 's2'
             WHERE key = 'k' AND NOT EXISTS (
               SELECT FROM naive_session s WHERE s.id = g.session_id AND s.expires_at > clock_timestamp())
            RETURNING key`)
        )
        yield* waitUntil(
          "it waits",
          Effect.map(
            sql<{ n: bigint }>`SELECT count(*) AS n FROM pg_stat_activity
              WHERE datname = current_database() AND wait_event_type = 'Lock'`,
            ([row]) => row?.n === 1n
          )
        )
        yield* heartbeat.end
        yield* renew.end
        assert.strictEqual((yield* Fiber.join(naive)).length, 1)
        const [live] = yield* sql<{ live: boolean }>`SELECT expires_at > clock_timestamp() AS live FROM naive_session`
        assert.strictEqual(live?.live, true)
      }).pipe(Effect.scoped)
    )

    it.effect("mints when it has the row: who waited longest does not come with the oldest token", () =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const key = freshKey()
        const session = yield* open(w1)
        const first = yield* acquire(session, key)
        yield* store.release(key, w1, first.token)
        const row = yield* holdGrant(key)
        const others = yield* Effect.forEach([1, 2, 3], (i) => open(OwnerId.make(`m${i}`)))
        const waiting = yield* Effect.forEach(others, (other) => Effect.forkChild(Effect.exit(acquire(other, key))))
        yield* blocked(3)
        // Meanwhile other keys draw tokens.
        for (let i = 0; i < 5; i++) yield* acquire(session, freshKey())
        const newest = yield* acquire(session, freshKey())
        yield* row.end
        const exits = yield* Effect.forEach(waiting, (fiber) => Fiber.join(fiber))
        const granted = exits.filter(Exit.isSuccess).map((exit) => exit.value)
        assert.strictEqual(granted.length, 1)
        assert.isTrue((granted[0]?.token ?? 0n) > newest.token)
        assert.deepStrictEqual(exits.filter(Exit.isFailure).map(tagOf), ["LockContended", "LockContended"])
      }).pipe(Effect.scoped)
    )

    it.effect("gives the whole lease to a grant that had to wait for the row", () =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const key = freshKey()
        const session = yield* open(w1)
        const first = yield* acquire(session, key)
        yield* store.release(key, w1, first.token)
        const row = yield* holdGrant(key)
        const waiting = yield* Effect.forkChild(acquire(session, key, 1_000))
        yield* blocked(1)
        yield* Effect.sleep(1_200)
        yield* row.end
        const grant = yield* Fiber.join(waiting)
        assert.isTrue(grant.ttlMillis >= 900, `${grant.ttlMillis} ms`)
        const renewed = yield* store.renew(key, w1, grant.token, 1_000)
        assert.strictEqual(renewed.token, grant.token)
      }).pipe(Effect.scoped)
    )

    it.effect("makes first grants of a key wait for each other without a token in hand", () =>
      Effect.gen(function* () {
        const key = freshKey()
        const others = yield* Effect.forEach(Array.from({ length: 8 }), (_, i) => open(OwnerId.make(`f${i}`)))
        const exits = yield* Effect.forEach(others, (other) => Effect.exit(acquire(other, key)), {
          concurrency: "unbounded"
        })
        assert.strictEqual(exits.filter(Exit.isSuccess).length, 1)
        assert.strictEqual(exits.filter((exit) => tagOf(exit) === "LockContended").length, 7)
      })
    )

    it.effect("answers who contends by a read: no transaction id, no row lock, no token", () =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const key = freshKey()
        const session = yield* open(w1)
        const other = yield* open(w2)
        const id = fresh("mine")
        const grant = yield* acquire(session, key, LONG, id)
        const look = yield* transaction
        const call = (s: Session, acquireId: string) =>
          look.run(`SELECT (lock.acquire('${key}', '${s.ownerId}', '${s.sessionId}', 60000, '${acquireId}')).outcome`)
        const written = Effect.map(
          look.run("SELECT (pg_current_xact_id_if_assigned() IS NOT NULL)::text AS written"),
          ([row]) => (row as { written: string }).written === "true"
        )
        for (let i = 0; i < 20; i++) {
          const [row] = yield* call(other, `contend-${i}`)
          assert.strictEqual((row as { outcome: string }).outcome, "contended")
        }
        const [locks] = yield* look.run(
          "SELECT count(*)::int AS n FROM pg_locks WHERE pid = pg_backend_pid() AND mode NOT IN ('AccessShareLock', 'ExclusiveLock')"
        )
        assert.strictEqual((locks as { n: number }).n, 0)
        assert.isFalse(yield* written)
        // A repeat is answered as durably as its first time: it is a write.
        yield* call(session, id)
        assert.isTrue(yield* written)
        yield* look.end
        yield* store.release(key, w1, grant.token)
        assert.strictEqual((yield* acquire(other, key)).token, grant.token + 1n)
      }).pipe(Effect.scoped)
    )

    it.effect(
      "ends a call in time, keeps renewing for others meanwhile, and finds a grant that nobody was told of",
      () =>
        Effect.gen(function* () {
          const store = yield* LockStore
          const key = freshKey()
          const session = yield* open(w1)
          const first = yield* acquire(session, key)
          yield* store.release(key, w1, first.token)
          const mine = yield* acquire(session, freshKey())
          const row = yield* holdGrant(key)
          const id = fresh("lost-answer")
          const lost = yield* Effect.forkChild(elapsed(Effect.exit(acquire(session, key, LONG, id))))
          // More contenders than connections.
          const crowd = yield* Effect.forEach(Array.from({ length: 30 }), () =>
            Effect.forkChild(Effect.exit(acquire(session, key)))
          )
          yield* blocked(4)
          for (let i = 0; i < 10; i++) {
            const [, millis] = yield* elapsed(store.renew(mine.key, w1, mine.token, LONG))
            assert.isBelow(millis, 1_000)
            yield* store.heartbeat(session.sessionId, w1)
          }
          const [exit, millis] = yield* Fiber.join(lost)
          assert.strictEqual(tagOf(exit), "BackendUnavailable")
          assert.isBelow(millis, TIMEOUT + 1_500)
          for (const fiber of crowd) assert.strictEqual(tagOf(yield* Fiber.join(fiber)), "BackendUnavailable")
          yield* row.end
          // Nobody was told of a grant; one of them may be there all the same. Under its id it is found, or it is made now.
          const repeated = yield* Effect.exit(acquire(session, key, LONG, id))
          assert.include(["granted", "LockContended"], tagOf(repeated))
          if (Exit.isSuccess(repeated)) {
            const again = yield* acquire(session, key, LONG, id)
            assert.strictEqual(again.token, repeated.value.token)
          }
        }).pipe(Effect.scoped)
    )

    it.effect("refuses to mint below what was granted, and says that the tokens went back", () =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const sql = yield* pool
        const key = freshKey()
        const session = yield* open(w1)
        const grant = yield* acquire(session, key)
        yield* store.release(key, w1, grant.token)
        yield* sql`SELECT setval('lock.lock_token_seq', 1, false)`
        const refused = yield* Effect.flip(acquire(session, key))
        assert.strictEqual(refused._tag, "BackendUnavailable")
        if (refused._tag === "BackendUnavailable") assert.match(refused.cause, /^token_floor/)
        // Another key has no floor of its own, but its token was granted before.
        const reused = yield* Effect.flip(acquire(session, freshKey()))
        assert.strictEqual(reused._tag, "BackendUnavailable")
        assert.isFalse((yield* store.inspect(key)).held)
        yield* sql`SELECT setval('lock.lock_token_seq', ${grant.token + 100n})`
        assert.isTrue((yield* acquire(session, key)).token > grant.token)
      }).pipe(Effect.scoped)
    )

    it.effect("guards tokens, grants, sessions and the audit against whoever may write to them", () =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const sql = yield* pool
        const key = freshKey()
        const session = yield* open(w1)
        const grant = yield* acquire(session, key)
        const refusedWith = (statement: string) =>
          Effect.map(Effect.flip(sql.unsafe(statement)), (error) => Pg.classify(error).code)
        const where = `WHERE lock_key = '${key}'`
        const grants = [
          `SET fencing_token = fencing_token - 1 ${where}`,
          `SET token_floor = token_floor - 1, fencing_token = fencing_token - 1 ${where}`,
          `SET fencing_token = fencing_token + 10, token_floor = token_floor + 10 ${where}`,
          `SET owner_id = 'w2' ${where}`,
          `SET session_id = 'other' ${where}`,
          `SET expires_at = granted_at ${where}`,
          `SET lock_key = 'other' ${where}`
        ]
        for (const change of grants)
          assert.strictEqual(yield* refusedWith(`UPDATE lock.lock_grant ${change}`), "DL001", change)
        yield* store.release(key, w1, grant.token)
        const revive = `UPDATE lock.lock_grant SET ended_at = NULL, end_reason = NULL ${where}`
        assert.strictEqual(yield* refusedWith(revive), "DL001")
        yield* store.closeSession(session.sessionId, w1)
        const reopen = `UPDATE lock.lock_session SET closed_at = NULL, end_reason = NULL WHERE session_id = '${session.sessionId}'`
        assert.strictEqual(yield* refusedWith(reopen), "DL001")
        for (const statement of [
          "UPDATE lock.lock_event SET actor = 'me'",
          "DELETE FROM lock.lock_event",
          "TRUNCATE lock.lock_event",
          "TRUNCATE lock.lock_revocation"
        ]) {
          assert.strictEqual(yield* refusedWith(statement), "DL002", statement)
        }
        const twice = `INSERT INTO lock.lock_event (kind, lock_key, fencing_token, session_id, actor, acquire_id, at)
          VALUES ('granted', 'k', ${grant.token}, 's', 'w1', 'a', now())`
        assert.strictEqual(yield* refusedWith(twice), "23505")
      }).pipe(Effect.scoped)
    )

    it.effect("grants no id again after its key was collected", () =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const sql = yield* pool
        const key = freshKey()
        const session = yield* open(w1)
        const id = fresh("mine")
        const grant = yield* acquire(session, key, LONG, id)
        yield* store.release(key, w1, grant.token)
        yield* sql`DELETE FROM lock.lock_grant WHERE lock_key = ${key}`
        const lost = yield* Effect.flip(acquire(session, key, LONG, id))
        assert.deepInclude(lost, { _tag: "LockLost", token: grant.token, reason: "released" })
        assert.isTrue((yield* acquire(session, key)).token > grant.token)
      }).pipe(Effect.scoped)
    )

    it.effect("runs as a role that may call its operations and touch no table", () =>
      Effect.gen(function* () {
        const sql = yield* Effect.flatMap(TestDatabase, ({ pool }) => pool({ parameters: { role: PgLockStore.ROLE } }))
        const statements = [
          "UPDATE lock.lock_grant SET ttl_ms = 1",
          "DELETE FROM lock.lock_session",
          "INSERT INTO lock.lock_untold (owner_id, end_reason) VALUES ('x', 'session')",
          "SELECT setval('lock.lock_token_seq', 1)",
          "SELECT lock.mint(0)",
          "SELECT nextval('lock.lock_token_seq')",
          "CREATE TABLE lock.mine (id int)",
          "ALTER SEQUENCE lock.lock_token_seq RESTART"
        ]
        for (const statement of statements) {
          const error = yield* Effect.flip(sql.unsafe(statement))
          assert.strictEqual(Pg.classify(error).code, "42501", statement)
        }
        assert.isEmpty(yield* sql`SELECT guard FROM lock.guard_missing WHERE guard NOT LIKE 'synchronous_commit%'`)
      }).pipe(Effect.scoped)
    )
  })
})
