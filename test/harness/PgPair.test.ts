import { assert, describe, it } from "@effect/vitest"
import { Effect, Redacted } from "effect"
import * as PgPair from "../../src/harness/PgPair.ts"
import * as Pg from "../../src/services/platform/Pg.ts"

describe("PgPair", () => {
  it.live(
    "the standby has every commit that was answered, and goes on when the primary is killed",
    () =>
      Effect.gen(function* () {
        const { primary, promote, standby } = yield* PgPair.start()
        const sql = yield* Pg.make({ url: primary.url("postgres"), applicationName: "test" })
        yield* sql`CREATE TABLE kept (x int)`
        yield* Effect.forEach(Array.from({ length: 20 }), (_, i) => sql`INSERT INTO kept VALUES (${i})`, {
          concurrency: 5,
          discard: true
        })
        yield* primary.kill
        yield* promote
        const second = yield* Pg.make({ url: standby.url("postgres"), applicationName: "test" })
        assert.deepStrictEqual(yield* second`SELECT count(*)::int AS n FROM kept`, [{ n: 20 }])
        yield* second`INSERT INTO kept VALUES (20)`
      }),
    60_000
  )

  it.live(
    "no commit is answered while the standby is away",
    () =>
      Effect.gen(function* () {
        const { primary, standby } = yield* PgPair.start()
        const sql = yield* Pg.make({ url: primary.url("postgres"), applicationName: "test", answerTimeout: "1 second" })
        yield* sql`CREATE TABLE kept (x int)`
        yield* standby.kill
        const failed = yield* Effect.flip(sql`INSERT INTO kept VALUES (1)`)
        assert.strictEqual(Pg.classify(failed)._tag, "Outage")
        yield* standby.restart
        yield* sql`INSERT INTO kept VALUES (2)`
        assert.isNotEmpty(Redacted.value(standby.url("postgres")))
      }),
    60_000
  )
})
