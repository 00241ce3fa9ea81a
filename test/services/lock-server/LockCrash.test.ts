/**
 * PostgreSQL is killed (SIGKILL to every process, as in a power cut) again and again while clients acquire and release.
 *
 *     DLOCK_ROUNDS=30 npx vitest run test/services/lock-server/LockCrash.test.ts
 */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Fiber, Layer, Random, References, Schedule } from "effect"
import { AcquireId, type FencingToken, LockKey, OwnerId } from "../../../src/core/lock/Lock.ts"
import { LockApi } from "../../../src/core/lock/LockApi.ts"
import { defaults } from "../../../src/core/Settings.ts"
import * as LockService from "../../../src/services/lock-server/LockService.ts"
import * as PgLockStore from "../../../src/services/lock-server/PgLockStore.ts"
import * as EmbeddedPostgres from "../../../src/services/platform/EmbeddedPostgres.ts"
import * as Migrations from "../../../src/services/platform/Migrations.ts"
import * as Pg from "../../../src/services/platform/Pg.ts"

const rounds = Number(process.env["DLOCK_ROUNDS"] ?? 2)
const clients = 6
const keys = ["a", "b", "c"].map((name) => LockKey.make(`crash:${name}`))

/** One acquire, from its first try to the answer under its id. Places in one order of all events. */
interface Acquired {
  readonly key: LockKey
  readonly acquireId: AcquireId
  readonly token: FencingToken
  readonly startedAt: number
  readonly answeredAt: number
}

/** What is wrong with a history, in words. */
const judge = (history: ReadonlyArray<Acquired>): ReadonlyArray<string> => {
  const problems: Array<string> = []
  const byToken = new Map<FencingToken, Acquired>()
  for (const one of history) {
    const other = byToken.get(one.token)
    if (other !== undefined && other.acquireId !== one.acquireId) {
      problems.push(`token ${one.token} was answered to ${other.acquireId} and to ${one.acquireId}`)
    }
    byToken.set(one.token, one)
    for (const before of history) {
      if (before.key === one.key && before.answeredAt < one.startedAt && before.token >= one.token) {
        problems.push(`${one.key}: ${before.token} was answered before ${one.token} was asked for`)
      }
    }
  }
  return problems
}

describe("a lock store whose PostgreSQL is killed under load", () => {
  it("would be caught answering a token twice, or one that goes back", () => {
    const one = { key: LockKey.make("k"), acquireId: AcquireId.make("1"), token: 7n as FencingToken }
    const first = { ...one, startedAt: 0, answeredAt: 1 }
    assert.isEmpty(
      judge([
        first,
        { ...first, startedAt: 2, answeredAt: 3, acquireId: AcquireId.make("2"), token: 8n as FencingToken }
      ])
    )
    assert.isNotEmpty(judge([first, { ...first, acquireId: AcquireId.make("2"), key: LockKey.make("other") }]))
    assert.isNotEmpty(
      judge([
        first,
        { ...first, startedAt: 2, answeredAt: 3, acquireId: AcquireId.make("2"), token: 6n as FencingToken }
      ])
    )
    // Side by side either order is right.
    assert.isEmpty(
      judge([first, { ...first, startedAt: 0, acquireId: AcquireId.make("2"), token: 6n as FencingToken }])
    )
  })

  it.live(
    `answers no token twice and none that goes back, and forgets nothing it answered (${rounds} rounds)`,
    () =>
      Effect.gen(function* () {
        const postgres = yield* EmbeddedPostgres.start({ storage: { kind: "temporary" } })
        const url = postgres.url("lockdb")
        yield* Migrations.ensureDatabase({ adminUrl: postgres.url("postgres"), database: "lockdb" })
        yield* Migrations.migrate({ url, directory: PgLockStore.MIGRATIONS })
        const service = LockService.layer(defaults.lock).pipe(
          Layer.provide(PgLockStore.layer({ url, timeoutMillis: 2_000 }))
        )
        const history: Array<Acquired> = []
        const released = new Set<FencingToken>()
        let order = 0
        let unknown = 0
        let stopping = false

        yield* Effect.gen(function* () {
          const api = yield* LockApi
          // Until there is an answer: under its id or token any call may be repeated.
          const untilAnswered = <A, E extends { readonly _tag: string }>(call: Effect.Effect<A, E>) =>
            call.pipe(
              Effect.tapError((error) => Effect.sync(() => (error._tag === "BackendUnavailable" ? unknown++ : 0))),
              Effect.retry({
                while: (error) => error._tag === "BackendUnavailable" || error._tag === "NotLeader",
                schedule: Schedule.spaced("50 millis")
              })
            )
          const client = Effect.fnUntraced(function* (n: number) {
            const ownerId = OwnerId.make(`client-${n}`)
            const openId = AcquireId.make(`open-${n}`)
            const { sessionId } = yield* untilAnswered(api.openSession({ ownerId, ttlMillis: 300_000, openId }))
            for (let i = 0; !stopping; i++) {
              const key = keys[yield* Random.nextIntBetween(0, keys.length)] ?? keys[0]!
              const acquireId = AcquireId.make(`acquire-${n}-${i}`)
              const startedAt = order++
              const request = { key, ownerId, sessionId, acquireId, ttlMillis: 60_000, waitMillis: 5_000 }
              const grant = yield* untilAnswered(api.acquire(request)).pipe(
                Effect.catchTag(["LockContended", "ContentionExceeded"], () => Effect.succeed(undefined))
              )
              if (grant === undefined) continue
              history.push({ key, acquireId, token: grant.token, startedAt, answeredAt: order++ })
              // A lost answer of the acquire: the same id is the same grant.
              if (i % 3 === 0) {
                const again = yield* untilAnswered(api.acquire(request))
                history.push({ key, acquireId, token: again.token, startedAt, answeredAt: order++ })
                assert.strictEqual(again.token, grant.token)
              }
              yield* untilAnswered(api.release({ key, ownerId, token: grant.token })).pipe(
                // The first release was carried out, and its answer was lost.
                Effect.catchTag("LockLost", (lost) => Effect.sync(() => assert.strictEqual(lost.reason, "released")))
              )
              released.add(grant.token)
            }
          })
          const fibers = yield* Effect.forEach(Array.from({ length: clients }), (_, n) => Effect.forkChild(client(n)))
          for (let round = 0; round < rounds; round++) {
            const before = released.size
            yield* Effect.sleep(yield* Random.nextIntBetween(200, 900))
            yield* postgres.kill
            yield* Effect.sleep(yield* Random.nextIntBetween(0, 400))
            yield* postgres.restart
            // Everyone goes on.
            while (released.size < before + 40) yield* Effect.sleep(20)
          }
          stopping = true
          for (const fiber of fibers) yield* Fiber.join(fiber)
        }).pipe(Effect.provide(service))

        assert.isEmpty(judge(history))
        assert.isAbove(unknown, 0, "no call met an outage: nothing was tried")
        const sql = yield* Pg.make({ url, applicationName: "test" })
        const rows = yield* sql<{ token: FencingToken; acquire_id: string; lock_key: string; ended: string | null }>`
          SELECT g.fencing_token AS token, g.acquire_id, g.lock_key, e.kind AS ended
            FROM lock.lock_event g
            LEFT JOIN lock.lock_event e ON e.fencing_token = g.fencing_token AND e.kind <> 'granted'
           WHERE g.kind = 'granted'`
        const audit = new Map(rows.map((row) => [row.token, row]))
        for (const { acquireId, key, token } of history) {
          const row = audit.get(token)
          assert.deepStrictEqual(
            { acquireId: row?.acquire_id, key: row?.lock_key, ended: row?.ended },
            { acquireId, key, ended: "released" },
            `token ${token}`
          )
        }
        yield* Effect.logWarning(`${history.length} answers, ${unknown} calls of unknown fate, ${rounds} kills`)
      }).pipe(Effect.scoped, Effect.provideService(References.MinimumLogLevel, "Warn")),
    30_000 + rounds * 20_000
  )
})
