/** What travels together on PostgreSQL is decided as if it had come one by one, and nobody waits for another's row. */
import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Exit, Fiber, Layer, Random } from "effect"
import { AcquireId, LockKey, OwnerId, type Session, SessionId } from "../../../src/core/lock/Lock.ts"
import { LockStore } from "../../../src/core/lock/LockStore.ts"
import * as PgLockStore from "../../../src/services/lock-server/PgLockStore.ts"
import * as Migrations from "../../../src/services/platform/Migrations.ts"
import { TestDatabase } from "../../support/pg.ts"
import { waitUntil } from "../../support/waitUntil.ts"

const database = TestDatabase.layer("lockdb", (url) => Migrations.migrate({ url, directory: PgLockStore.MIGRATIONS }))

const TIMEOUT = 4_000
const newStore = Layer.unwrap(Effect.map(TestDatabase, ({ url }) => PgLockStore.layer({ url, timeoutMillis: TIMEOUT })))
const store = newStore.pipe(Layer.provideMerge(database))

const LONG = 60_000
const w1 = OwnerId.make("w1")

let names = 0
const fresh = (prefix: string) => AcquireId.make(`${prefix}-${++names}`)
const freshKey = () => LockKey.make(`batch:${++names}`)
const times = (count: number) => Array.from({ length: count }, (_, i) => i)

const open = (ownerId: OwnerId, ttlMillis = LONG) =>
  Effect.flatMap(LockStore, (store) => store.openSession({ ownerId, ttlMillis, openId: fresh("open") }))

const acquire = (session: Session, key: LockKey, ttlMillis = LONG, acquireId = fresh("acquire")) =>
  Effect.flatMap(LockStore, (store) =>
    store.tryAcquire({ key, ownerId: session.ownerId, sessionId: session.sessionId, ttlMillis, acquireId })
  )

const pool = Effect.flatMap(TestDatabase, ({ pool }) => pool({ answerTimeout: "20 seconds" }))

/** By how many transactions, that is statements of the store, the rows of a table were written as they are now. */
const writers = (table: string, where: string) =>
  Effect.gen(function* () {
    const sql = yield* pool
    const [row] = yield* sql.unsafe(
      `SELECT count(DISTINCT xmin::text) AS n, count(*) AS all FROM lock.${table} WHERE ${where}`
    )
    const { all, n } = row as { readonly n: bigint; readonly all: bigint }
    return { statements: Number(n), rows: Number(all) }
  }).pipe(Effect.scoped)

const holdRow = (key: LockKey) =>
  Effect.gen(function* () {
    const connection = yield* Effect.flatMap(pool, (sql) => sql.reserve)
    const run = (statement: string) => connection.executeUnprepared(statement, [], undefined)
    yield* run("BEGIN")
    yield* run(`SELECT FROM lock.lock_grant WHERE lock_key = '${key}' FOR UPDATE`)
    return { letGo: run("COMMIT") }
  })

/** All at once, so that all but the first few travel together. */
const together = <A, E, R>(effects: ReadonlyArray<Effect.Effect<A, E, R>>) =>
  Effect.all(effects.map(Effect.exit), { concurrency: "unbounded" })

const tagOf = (exit: Exit.Exit<unknown, { readonly _tag: string }>) => {
  const error = Exit.findErrorOption(exit)
  return Exit.isSuccess(exit) ? "granted" : error._tag === "Some" ? error.value._tag : "defect"
}

describe("PgBatches", () => {
  it.layer(store, { excludeTestServices: true, timeout: "60 seconds" })((it) => {
    it.effect("sends a statement for who is alone, and few statements for many", () =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const sessions = yield* Effect.forEach(times(40), (i) => open(OwnerId.make(`n${i}`)))
        const round = Effect.fnUntraced(function* (prefix: string, concurrency: number | "unbounded") {
          const each = { concurrency } as const
          const at = `starts_with(lock_key, '${prefix}')`
          const grants = yield* Effect.forEach(sessions, (one, i) => acquire(one, LockKey.make(`${prefix}${i}`)), each)
          yield* Effect.forEach(grants, ({ key, ownerId, token }) => store.renew(key, ownerId, token, 2 * LONG), each)
          const renewed = yield* writers("lock_grant", at)
          yield* Effect.forEach(sessions, ({ ownerId, sessionId }) => store.heartbeat(sessionId, ownerId), each)
          const kept = yield* writers("lock_session", "owner_id ~ '^n[0-9]+$'")
          yield* Effect.forEach(grants, ({ key, ownerId, token }) => store.release(key, ownerId, token), each)
          const granted = yield* writers("lock_event", `${at} AND kind = 'granted'`)
          const released = yield* writers("lock_event", `${at} AND kind = 'released'`)
          for (const { rows } of [renewed, kept, granted, released]) assert.strictEqual(rows, 40)
          return [granted, renewed, kept, released].map(({ statements }) => statements)
        })
        assert.deepStrictEqual(yield* round("alone:", 1), [40, 40, 40, 40])
        const sent = yield* round("crowd:", "unbounded")
        assert.isTrue(
          Math.max(...sent) <= 6,
          `40 acquires, renewals, heartbeats, releases: ${sent.join(", ")} statements`
        )
      })
    )

    it.effect("grants two equal requests once and answers both alike", () =>
      Effect.gen(function* () {
        const session = yield* open(w1)
        const key = freshKey()
        const id = fresh("same")
        const others = times(10).map(() => acquire(session, freshKey()))
        const exits = yield* together([...others, ...times(6).map(() => acquire(session, key, LONG, id)), ...others])
        const mine = exits.slice(10, 16)
        assert.deepStrictEqual(
          mine.map(tagOf),
          times(6).map(() => "granted")
        )
        const grants = mine.filter(Exit.isSuccess).map(({ value }) => value)
        assert.strictEqual(new Set(grants.map(({ token }) => token)).size, 1)
        const sql = yield* pool
        const [row] = yield* sql<{ n: bigint }>`SELECT count(*) AS n FROM lock.lock_event WHERE lock_key = ${key}`
        assert.strictEqual(row?.n, 1n)
      }).pipe(Effect.scoped)
    )

    it.effect("grants a key that many want in one batch to one of them, and tells the others who has it", () =>
      Effect.gen(function* () {
        const key = freshKey()
        const sessions = yield* Effect.forEach(times(20), (i) => open(OwnerId.make(`many${i}`)))
        const exits = yield* together(sessions.map((session) => acquire(session, key)))
        const winners = exits.filter(Exit.isSuccess).map(({ value }) => value)
        assert.strictEqual(winners.length, 1)
        for (const exit of exits.filter(Exit.isFailure)) {
          const error = Exit.findErrorOption(exit)
          assert.strictEqual(tagOf(exit), "LockContended")
          if (error._tag === "Some" && error.value._tag === "LockContended") {
            assert.strictEqual(error.value.holderOwnerId, winners[0]?.ownerId)
          }
        }
      })
    )

    it.effect("does not let the row of one key, or of several, keep the others waiting", () =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const session = yield* open(w1)
        const locked = times(4).map(freshKey)
        const free = times(30).map(freshKey)
        for (const key of [...locked, ...free]) {
          const { token } = yield* acquire(session, key)
          yield* store.release(key, w1, token)
        }
        const held = yield* acquire(session, freshKey())
        const rows = yield* Effect.forEach(locked, holdRow)
        const waiting = yield* Effect.forEach(locked, (key) => Effect.forkChild(Effect.exit(acquire(session, key))))
        const start = yield* Clock.monotonicTimeNanos
        const exits = yield* together(free.map((key) => acquire(session, key)))
        yield* store.renew(held.key, w1, held.token, LONG)
        const one = yield* Effect.exit(acquire(session, freshKey()))
        const millis = Number((yield* Clock.monotonicTimeNanos) - start) / 1e6
        assert.deepStrictEqual(new Set([...exits, one].map(tagOf)), new Set(["granted"]))
        assert.isBelow(millis, TIMEOUT / 2)
        for (const row of rows) yield* row.letGo
        for (const fiber of waiting) assert.strictEqual(tagOf(yield* Fiber.join(fiber)), "granted")
      }).pipe(Effect.scoped)
    )

    it.effect("finishes for the others when one caller has gone", () =>
      Effect.gen(function* () {
        const session = yield* open(w1)
        const keys = times(20).map(freshKey)
        const fibers = yield* Effect.forEach(keys, (key) => Effect.forkChild(Effect.exit(acquire(session, key))))
        yield* Effect.forEach(fibers.slice(5, 10), (fiber) => Fiber.interrupt(fiber), { concurrency: "unbounded" })
        for (const [i, fiber] of fibers.entries()) {
          if (i < 5 || i >= 10) assert.strictEqual(tagOf(yield* Fiber.join(fiber)), "granted")
        }
      })
    )

    it.effect("refuses at once what exceeds the queue", () =>
      Effect.gen(function* () {
        const session = yield* open(w1)
        const key = freshKey()
        yield* acquire(session, key)
        const exits = yield* together(times(3_000).map(() => acquire(session, key)))
        const tags = new Map<string, number>()
        for (const exit of exits) tags.set(tagOf(exit), (tags.get(tagOf(exit)) ?? 0) + 1)
        const full = exits.flatMap((exit) => {
          const error = Exit.findErrorOption(exit)
          return error._tag === "Some" && error.value._tag === "BackendUnavailable" ? [error.value.cause] : []
        })
        assert.isTrue(full.length > 0 && full.length <= 1_000, JSON.stringify([...tags]))
        assert.match(full[0] ?? "", /wait already/)
        assert.strictEqual((tags.get("LockContended") ?? 0) + full.length, 3_000)
      })
    )

    it.effect("decides every situation as the operation itself does, or leaves it to that", () =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const sql = yield* pool
        const [mine, other, closed] = [yield* open(w1), yield* open(OwnerId.make("other")), yield* open(w1)]
        const dying = yield* open(OwnerId.make("dying"))
        yield* store.closeSession(closed.sessionId, w1)
        const situations: Record<string, { session?: Session; id?: AcquireId; is: string }> = {
          unseen: { is: "granted" },
          released: { is: "granted" },
          revoked: { is: "granted" },
          expired: { is: "granted" },
          orphaned: { is: "granted" },
          held: { is: "contended" },
          mine: { is: "contended" },
          repeated: { id: fresh("repeated"), is: "alone" },
          spent: { id: fresh("spent"), is: "alone" },
          closed: { session: closed, is: "alone" },
          stolen: { session: { ...other, ownerId: w1 }, is: "alone" },
          unknown: { session: { ...mine, sessionId: SessionId.make("nobody") }, is: "alone" }
        }
        const prefix = `situation:${++names}:`
        const keyOf = (name: string) => LockKey.make(`${prefix}${name}`)
        const released = yield* acquire(other, keyOf("released"))
        yield* store.release(released.key, other.ownerId, released.token)
        yield* acquire(other, keyOf("revoked"))
        yield* store.revoke({
          key: keyOf("revoked"),
          operator: "ops",
          reason: "to see what comes",
          expectedToken: undefined,
          revocationId: fresh("revoke")
        })
        yield* acquire(dying, keyOf("orphaned"))
        yield* store.closeSession(dying.sessionId, dying.ownerId)
        yield* acquire(other, keyOf("held"))
        yield* acquire(mine, keyOf("mine"))
        yield* acquire(mine, keyOf("repeated"), LONG, situations["repeated"]?.id)
        const spent = yield* acquire(mine, keyOf("spent"), LONG, situations["spent"]?.id)
        yield* store.release(spent.key, w1, spent.token)
        const { expiresAt } = yield* acquire(other, keyOf("expired"), 300)
        yield* waitUntil(
          "the lease has run out",
          Effect.map(
            sql<{ now: bigint }>`SELECT lock.ms(clock_timestamp()) AS now`,
            ([row]) => Number(row?.now) > expiresAt
          )
        )
        const all = Object.keys(situations)
        const field = <A>(of: (name: string) => A) => all.map(of)
        const sessionOf = (name: string) => situations[name]?.session ?? mine
        const answers = yield* sql<{ n: number; outcome: string }>`SELECT n, outcome FROM lock.acquire_batch(
          ${field(keyOf)}::text[], ${field((name) => sessionOf(name).ownerId)}::text[],
          ${field((name) => sessionOf(name).sessionId)}::text[], ${field(() => LONG)}::int4[],
          ${field((name) => situations[name]?.id ?? fresh("try"))}::text[])`
        const outcomes = Object.fromEntries(
          all.map((name, i) => [name, answers.find(({ n }) => n === i + 1)?.outcome ?? "alone"])
        )
        assert.deepStrictEqual(outcomes, Object.fromEntries(all.map((name) => [name, situations[name]?.is])))
        const told = yield* sql<{ kind: string; n: bigint }>`
          SELECT kind, count(*) AS n FROM lock.lock_event WHERE starts_with(lock_key, ${prefix}) GROUP BY kind ORDER BY kind`
        assert.deepStrictEqual(
          told.map(({ kind, n }) => `${n} ${kind}`),
          ["1 expired", "13 granted", "2 released", "1 revoked", "1 session"]
        )
      }).pipe(Effect.scoped)
    )
  })

  it.live("never waits in a circle: sixteen connections, batches of random keys, every operation", () =>
    Effect.gen(function* () {
      const sql = yield* pool
      const deadlocks = Effect.gen(function* () {
        yield* sql`SELECT pg_stat_force_next_flush()`
        const [row] = yield* sql<{ n: bigint }>`
          SELECT deadlocks AS n FROM pg_stat_database WHERE datname = current_database()`
        return Number(row?.n)
      })
      // Three instances with their connections, on the same few keys and sessions.
      const stores = yield* Effect.forEach(times(3), () =>
        Effect.map(Layer.build(Layer.fresh(newStore)), (built) => Effect.provideContext(LockStore, built))
      )
      const keys = times(16).map((i) => LockKey.make(`circle:${i}`))
      const unexpected = new Map<string, number>()
      const outcome = new Map<string, number>()
      const end = (yield* Clock.monotonicTimeNanos) + 5_000_000_000n
      const worker = (index: number) =>
        Effect.gen(function* () {
          const store = yield* stores[index % 3]!
          const ownerId = OwnerId.make(`circle-${index}`)
          const renew = store.openSession({ ownerId, ttlMillis: 2_000, openId: fresh("circle") })
          let session = yield* renew
          const pick = Effect.map(Random.nextIntBetween(0, keys.length - 1), (i) => keys[i]!)
          while ((yield* Clock.monotonicTimeNanos) < end) {
            const wanted = [yield* pick, yield* pick, yield* pick]
            const exits = yield* together(
              wanted.map((key) =>
                Effect.tap(
                  store.tryAcquire({
                    key,
                    ownerId,
                    sessionId: session.sessionId,
                    ttlMillis: 150,
                    acquireId: fresh("c")
                  }),
                  (grant) =>
                    Effect.gen(function* () {
                      const dice = yield* Random.nextIntBetween(0, 9)
                      if (dice < 3) yield* store.renew(key, ownerId, grant.token, 200)
                      if (dice < 4) yield* store.heartbeat(session.sessionId, ownerId)
                      if (dice === 5) return
                      if (dice === 6) {
                        yield* store.revoke({
                          key,
                          operator: "ops",
                          reason: "in the way of all",
                          expectedToken: grant.token,
                          revocationId: fresh("r")
                        })
                      } else yield* store.release(key, ownerId, grant.token)
                    })
                )
              )
            )
            for (const exit of exits) {
              const tag = tagOf(exit)
              outcome.set(tag, (outcome.get(tag) ?? 0) + 1)
              if (tag === "BackendUnavailable" || tag === "defect") {
                const what = Exit.isFailure(exit) ? String(exit.cause).slice(0, 300) : ""
                unexpected.set(what, (unexpected.get(what) ?? 0) + 1)
              }
            }
            const dice = yield* Random.nextIntBetween(0, 19)
            if (dice === 0) yield* Effect.ignore(store.closeSession(session.sessionId, ownerId))
            if (dice === 1) yield* store.sweep
            if (dice === 0 || exits.some((exit) => tagOf(exit).startsWith("Session"))) session = yield* renew
          }
        })
      yield* Effect.forEach(times(24), worker, { concurrency: "unbounded", discard: true })
      assert.deepStrictEqual([...unexpected], [])
      assert.strictEqual(yield* deadlocks, 0)
      assert.isTrue((outcome.get("granted") ?? 0) > 50, JSON.stringify([...outcome]))
      // Of each key: granted, ended, granted, ended, .. and each token greater than the one before.
      const wrong = yield* sql`
        SELECT * FROM (
          SELECT lock_key, event_id, kind, fencing_token,
                 lag(kind) OVER w AS kind_before, lag(fencing_token) OVER w AS token_before
            FROM lock.lock_event WHERE lock_key IS NOT NULL
          WINDOW w AS (PARTITION BY lock_key ORDER BY event_id)) AS e
         WHERE (kind = 'granted' AND (kind_before = 'granted' OR fencing_token <= token_before))
            OR (kind <> 'granted' AND (kind_before <> 'granted' OR fencing_token <> token_before))`
      assert.isEmpty(wrong)

      // The counter would have seen it: two batches that wait for each other's rows.
      const two = yield* Effect.forEach(times(2), () =>
        Effect.map(sql.reserve, (connection) => (text: string) => connection.executeUnprepared(text, [], undefined))
      )
      const lockRow = (key: LockKey | undefined) => `SELECT FROM lock.lock_grant WHERE lock_key = '${key}' FOR UPDATE`
      for (const [i, run] of two.entries()) {
        yield* run("BEGIN")
        yield* run(lockRow(keys[i]))
      }
      yield* together(two.map((run, i) => run(lockRow(keys[1 - i]))))
      for (const run of two) yield* run("ROLLBACK")
      yield* waitUntil(
        "the deadlock is counted",
        Effect.map(deadlocks, (n) => n > 0)
      )
    }).pipe(Effect.scoped, Effect.provide(database))
  )
})
