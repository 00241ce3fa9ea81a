/** The process: what it needs, what it shows, and what it does when its database goes away and comes back. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Exit, Fiber, Redacted, Scope } from "effect"
import * as EmbeddedPostgres from "../../../src/services/platform/EmbeddedPostgres.ts"
import { ensureDatabase } from "../../../src/services/platform/Migrations.ts"
import { TestDatabase } from "../../support/pg.ts"
import { waitUntil } from "../../support/waitUntil.ts"
import { acquire, codeOf, open, send, start } from "./serving.ts"

const key = "payout:acct-1"

/** An empty database of the server that this run shares. */
const empty = TestDatabase.layer("empty", () => Effect.void)
const lockdb = Effect.map(TestDatabase, ({ url }) => ({ LOCK_PG_URL: Redacted.value(url) }))

const readiness = (url: string) => send(url, "/actuator/health/readiness")
const isReady = (url: string) => Effect.map(readiness(url), ({ status }) => status === 200)

describe("lock-server", () => {
  it.live("brings its database up to date, and shows acquires by outcome without naming anything", () =>
    Effect.gen(function* () {
      const { managementUrl, url } = yield* start(yield* lockdb)
      assert.isTrue(yield* isReady(managementUrl))
      const sessionId = yield* open(url, "owner-w1")
      assert.strictEqual((yield* acquire(url, key, "owner-w1", sessionId)).status, 200)
      const refused = yield* acquire(url, key, "owner-w2", yield* open(url, "owner-w2"))
      assert.strictEqual(codeOf(refused), "LOCK_CONTENDED")
      for (const at of [url, managementUrl]) {
        const { text } = yield* send(at, "/actuator/prometheus")
        assert.match(text, /^lock_acquire_seconds_count\{outcome="granted"\} 1$/m)
        assert.match(text, /^lock_acquire_seconds_count\{outcome="contended"\} 1$/m)
        assert.match(text, /^lock_acquire_seconds_count\{outcome="error"\} 0$/m)
        assert.match(text, /^lock_backend_call_seconds_count\{op="tryAcquire",outcome="ok"\} 1$/m)
        assert.match(text, /^lock_token_regression_total 0$/m)
        for (const secret of [key, "owner-w1", sessionId]) assert.notInclude(text, secret)
      }
      // A second server finds the schema as it is, and the lock as it is held.
      const second = yield* start(yield* lockdb)
      const seen = yield* send(second.url, `/v1/locks/${key}`)
      assert.strictEqual(seen.json["holderOwnerId"], "owner-w1")
    }).pipe(Effect.scoped, Effect.provide(empty))
  )

  it.live("is alive and not ready while its database is away, from its start or later, and recovers by itself", () =>
    Effect.gen(function* () {
      const postgres = yield* EmbeddedPostgres.start({ storage: { kind: "temporary" } })
      yield* ensureDatabase({ adminUrl: postgres.url("postgres"), database: "lockdb" })
      yield* postgres.stop
      const { managementUrl, url } = yield* start({ LOCK_PG_URL: Redacted.value(postgres.url("lockdb")) })
      const isDown = Effect.gen(function* () {
        for (const at of [managementUrl, url]) {
          const ready = yield* readiness(at)
          assert.strictEqual(ready.status, 503)
          const { lockBackend } = ready.json["components"] as { lockBackend: { status: string } }
          assert.strictEqual(lockBackend.status, "DOWN")
          const alive = yield* send(at, "/actuator/health/liveness")
          assert.deepStrictEqual([alive.status, alive.json], [200, { status: "UP" }])
        }
        for (const [method, path, body] of [
          ["POST", "/v1/sessions", {}],
          ["POST", `/v1/locks/${key}/acquire`, { sessionId: "s" }],
          ["GET", `/v1/locks/${key}`, undefined]
        ] as const) {
          const answer = yield* send(url, path, { method, owner: "w1", body })
          assert.deepStrictEqual([answer.status, codeOf(answer)], [503, "BACKEND_UNAVAILABLE"])
          assert.strictEqual(answer.json["retrySafe"], true)
          assert.isNumber(answer.json["retryAfterMillis"])
        }
      })
      yield* isDown
      yield* postgres.restart
      yield* waitUntil("it is ready", isReady(managementUrl))
      const sessionId = yield* open(url, "w1")
      const first = yield* acquire(url, key, "w1", sessionId)
      assert.strictEqual(first.status, 200)

      yield* postgres.kill
      yield* isDown
      yield* postgres.restart
      yield* waitUntil("it is ready again", isReady(managementUrl))
      const token = String(first.json["fencingToken"])
      const renewed = yield* send(url, `/v1/locks/${key}/renew`, { method: "POST", owner: "w1", token })
      assert.deepStrictEqual([renewed.status, renewed.json["fencingToken"]], [200, token])
      const { text } = yield* send(managementUrl, "/actuator/prometheus")
      assert.match(text, /^lock_backend_unavailable_seconds_count [1-9]/m)
    }).pipe(Effect.scoped, Effect.provide(empty))
  )

  it.live("is not ready while a guard of its database is missing", () =>
    Effect.gen(function* () {
      const { managementUrl } = yield* start(yield* lockdb)
      const sql = yield* Effect.flatMap(TestDatabase, ({ pool }) => pool())
      const faults: ReadonlyArray<readonly [breakIt: string, mendIt: string]> = [
        ["ALTER SEQUENCE lock.lock_token_seq CACHE 20", "ALTER SEQUENCE lock.lock_token_seq CACHE 1"],
        ["ALTER SEQUENCE lock.lock_token_seq CYCLE", "ALTER SEQUENCE lock.lock_token_seq NO CYCLE"],
        ["ALTER SEQUENCE lock.lock_token_seq SET UNLOGGED", "ALTER SEQUENCE lock.lock_token_seq SET LOGGED"],
        [
          "ALTER TABLE lock.lock_grant DISABLE TRIGGER guard_grant",
          "ALTER TABLE lock.lock_grant ENABLE TRIGGER guard_grant"
        ],
        [
          "ALTER TABLE lock.lock_event DISABLE TRIGGER guard_event",
          "ALTER TABLE lock.lock_event ENABLE TRIGGER guard_event"
        ],
        [
          "DROP INDEX lock.lock_event_granted",
          "CREATE UNIQUE INDEX lock_event_granted ON lock.lock_event (fencing_token) WHERE kind = 'granted'"
        ]
      ]
      for (const [breakIt, mendIt] of faults) {
        assert.isTrue(yield* isReady(managementUrl), `before ${breakIt}`)
        yield* sql.unsafe(breakIt)
        assert.isFalse(yield* isReady(managementUrl), breakIt)
        yield* sql.unsafe(mendIt)
      }
      assert.isTrue(yield* isReady(managementUrl))
    }).pipe(Effect.scoped, Effect.provide(empty))
  )

  it.live("answers its waiters when it is told to stop, and stops", () =>
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      const { managementUrl, url } = yield* Effect.provideService(start(yield* lockdb), Scope.Scope, scope)
      const sessionId = yield* open(url, "w1")
      yield* acquire(url, key, "w1", sessionId)
      const waiter = yield* Effect.forkChild(acquire(url, key, "w2", yield* open(url, "w2"), { waitMillis: 30_000 }))
      yield* waitUntil(
        "the second waits",
        Effect.map(send(managementUrl, `/admin/locks/${key}`), ({ json }) => json["waiters"] === 1)
      )
      yield* Scope.close(scope, Exit.void)
      const answer = yield* Fiber.join(waiter)
      assert.deepStrictEqual([answer.status, codeOf(answer)], [409, "LOCK_CONTENDED"])
      assert.isNumber(answer.json["retryAfterMillis"])
    }).pipe(Effect.scoped, Effect.provide(empty))
  )

  it.live("refuses to start on a backend or a schema that it can not use", () =>
    Effect.gen(function* () {
      const noSuch = yield* Effect.exit(Effect.scoped(start({ LOCK_BACKEND: "memory" })))
      assert.include(String(Exit.isFailure(noSuch) && noSuch.cause), "lock.backend")
      const production = yield* Effect.exit(Effect.scoped(start({ DLOCK_ENV: "production" })))
      assert.include(String(Exit.isFailure(production) && production.cause), "lock.pg.url")
      yield* Effect.scoped(start(yield* lockdb))
      const sql = yield* Effect.flatMap(TestDatabase, ({ pool }) => pool())
      yield* sql`UPDATE schema_migration SET sha256 = 'other'`
      const changed = yield* Effect.exit(Effect.scoped(start(yield* lockdb)))
      assert.include(String(Exit.isFailure(changed) && changed.cause), "was changed after it was applied")
    }).pipe(Effect.scoped, Effect.provide(empty))
  )
})
