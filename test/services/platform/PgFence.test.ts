/** The fence as a library: in a table that it brings itself, and against the mistake that looks like one. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Exit, Fiber } from "effect"
import { FencingToken } from "../../../src/core/lock/Lock.ts"
import * as Pg from "../../../src/services/platform/Pg.ts"
import * as PgFence from "../../../src/services/platform/PgFence.ts"
import { TestDatabase } from "../../support/pg.ts"
import { waitUntil } from "../../support/waitUntil.ts"

const where = { table: "pay_fence", resource: "invoice", highest: "token" }
const T = (n: number) => FencingToken.make(BigInt(n))

const schema = (url: Parameters<typeof Pg.make>[0]["url"]) =>
  Effect.gen(function* () {
    const sql = yield* Pg.make({ url, applicationName: "schema", maxConnections: 1 })
    const statements = PgFence.migration(where).split(/;\n(?=CREATE|$)/)
    for (const statement of statements) if (statement.trim() !== "") yield* sql.unsafe(statement)
    yield* sql`ALTER TABLE pay_fence ADD COLUMN actor text`
    yield* sql`CREATE TABLE invoice (name text PRIMARY KEY, paid_by int8, note text)`
  }).pipe(Effect.scoped)

const failure = <A, E>(effect: Effect.Effect<A, E>) =>
  Effect.map(Effect.exit(effect), (exit) => {
    const found = Exit.findErrorOption(exit)
    return found._tag === "Some" ? ({ ...found.value } as Record<string, unknown>) : { _tag: "success" }
  })

const setUp = Effect.gen(function* () {
  const sql = yield* Effect.flatMap(TestDatabase, ({ pool }) => pool({ maxConnections: 8 }))
  return { sql, fence: PgFence.make(sql, { point: "resource", ...where }) }
})

describe("PgFence", () => {
  it.layer(TestDatabase.layer("pgfence", schema), { excludeTestServices: true, timeout: "60 seconds" })((it) => {
    it.effect("claims with rising tokens only, and tells a refused one the highest", () =>
      Effect.gen(function* () {
        const { fence, sql } = yield* setUp
        yield* fence.claim("claim", "i-1", T(7), { actor: sql`${"w1"}` })
        assert.deepStrictEqual(yield* sql`SELECT token, actor FROM pay_fence WHERE invoice = 'i-1'`, [
          { token: 7n, actor: "w1" }
        ])
        for (const token of [7, 6]) {
          assert.deepInclude(yield* failure(fence.claim("claim", "i-1", T(token))), {
            _tag: "FencedOut",
            point: "resource",
            op: "claim",
            resource: "i-1",
            presented: T(token),
            highest: 7n
          })
        }
        yield* fence.claim("claim", "i-1", T(8), { actor: sql`${"w2"}` })
        assert.deepStrictEqual(yield* sql`SELECT token, actor FROM pay_fence WHERE invoice = 'i-1'`, [
          { token: 8n, actor: "w2" }
        ])
      })
    )

    it.effect("holds for exactly the token that it stands at, and adopts that one or a higher", () =>
      Effect.gen(function* () {
        const { fence } = yield* setUp
        assert.deepInclude(yield* failure(fence.hold("post", "i-2", T(7))), { _tag: "FencedOut", highest: 0n })
        yield* fence.claim("claim", "i-2", T(7))
        yield* fence.hold("post", "i-2", T(7))
        assert.deepInclude(yield* failure(fence.hold("post", "i-2", T(6))), { _tag: "FencedOut", highest: 7n })
        assert.deepInclude(yield* failure(fence.hold("post", "i-2", T(8))), { _tag: "FencedOut", highest: 7n })
        yield* fence.adopt("fail", "i-2", T(7))
        yield* fence.adopt("fail", "i-2", T(9))
        assert.deepInclude(yield* failure(fence.adopt("fail", "i-2", T(8))), { _tag: "FencedOut", highest: 9n })
      })
    )

    it.effect("rolls back with the write that it protects", () =>
      Effect.gen(function* () {
        const { fence, sql } = yield* setUp
        yield* fence
          .claim("claim", "i-3", T(7))
          .pipe(Effect.andThen(Effect.fail("the write was refused")), sql.withTransaction, Effect.flip)
        yield* fence.claim("claim", "i-3", T(5))
      })
    )

    it.effect("of claims that arrive at once every accepted one is above those before it", () =>
      Effect.gen(function* () {
        const { fence, sql } = yield* setUp
        const tokens = [5, 2, 9, 1, 7, 3, 8, 4, 6]
        yield* Effect.forEach(tokens, (token) => failure(fence.claim("claim", "i-4", T(token))), {
          concurrency: tokens.length
        })
        assert.deepStrictEqual(yield* sql`SELECT token FROM pay_fence WHERE invoice = 'i-4'`, [{ token: 9n }])
      })
    )

    it.effect("its own trigger refuses what does not come from here", () =>
      Effect.gen(function* () {
        const { fence, sql } = yield* setUp
        yield* fence.claim("claim", "i-5", T(7))
        for (const statement of [
          "UPDATE pay_fence SET token = 6 WHERE invoice = 'i-5'",
          "UPDATE pay_fence SET invoice = 'i-50' WHERE invoice = 'i-5'",
          "DELETE FROM pay_fence WHERE invoice = 'i-5'"
        ]) {
          const error = yield* Effect.flip(sql.unsafe(statement))
          assert.strictEqual(Pg.classify(error).code, "DL001", statement)
        }
      })
    )

    it.effect("switched off it is the same statements without their predicate", () =>
      Effect.gen(function* () {
        const { sql } = yield* setUp
        yield* sql`ALTER TABLE pay_fence DISABLE TRIGGER monotonic`
        const off = PgFence.make(sql, { point: "resource", ...where, enabled: false })
        yield* off.claim("claim", "i-6", T(8))
        yield* off.claim("claim", "i-6", T(7))
        yield* off.hold("post", "i-6", T(3))
        assert.deepStrictEqual(yield* sql`SELECT token FROM pay_fence WHERE invoice = 'i-6'`, [{ token: 7n }])
      }).pipe(
        Effect.ensuring(
          Effect.flatMap(setUp, ({ sql }) => Effect.orDie(sql`ALTER TABLE pay_fence ENABLE TRIGGER monotonic`)).pipe(
            Effect.orDie
          )
        )
      )
    )

    /*
     * W1 writes the invoice under 7; the row is locked by somebody else, so W1 waits, having read the fence already.
     * Meanwhile W2 claims 8 and commits. What happens to W1's write is the difference between a fence and a join.
     */
    const stoppedBetween = Effect.fnUntraced(function* (
      invoice: string,
      writeOf: (context: Effect.Success<typeof setUp>) => Effect.Effect<unknown, unknown>
    ) {
      const context = yield* setUp
      const { fence, sql } = context
      yield* fence.claim("claim", invoice, T(7))
      yield* sql`INSERT INTO invoice (name) VALUES (${invoice})`
      const outsider = yield* Effect.flatMap(TestDatabase, ({ pool }) => pool({ maxConnections: 1 }))
      const [own] = yield* outsider<{ pid: number }>`SELECT pg_backend_pid() AS pid`
      yield* Effect.gen(function* () {
        yield* outsider`SELECT FROM invoice WHERE name = ${invoice} FOR UPDATE`
        const w1 = yield* Effect.forkChild(Effect.exit(writeOf(context)))
        yield* waitUntil(
          "W1 waits for the invoice",
          Effect.map(
            sql`SELECT FROM pg_stat_activity WHERE ${own?.pid ?? 0}::int4 = ANY (pg_blocking_pids(pid))`,
            (rows) => rows.length > 0
          )
        )
        const w2 = yield* Effect.forkChild(fence.claim("claim", invoice, T(8)))
        const claimed = Effect.map(
          sql`SELECT FROM pay_fence WHERE invoice = ${invoice} AND token = 8`,
          (rows) => rows.length > 0
        )
        const queued = Effect.map(
          sql`SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%pay_fence%'`,
          (rows) => rows.length > 0
        )
        yield* waitUntil(
          "W2 has claimed or waits for W1",
          Effect.map(Effect.all([claimed, queued]), ([one, two]) => one || two)
        )
        return { w1, w2 }
      }).pipe(
        outsider.withTransaction,
        Effect.flatMap(({ w1, w2 }) => Effect.andThen(Fiber.join(w1), Fiber.join(w2)))
      )
      return yield* sql<{ paid_by: bigint | null; token: bigint }>`
        SELECT paid_by, token FROM invoice JOIN pay_fence ON invoice = name WHERE name = ${invoice}`
    })

    it.effect("a joined predicate is no fence: a stale write lands after the higher token has committed", () =>
      Effect.gen(function* () {
        let fenceWhenWritten: bigint | undefined
        const rows = yield* stoppedBetween("i-7", ({ sql }) =>
          sql`UPDATE invoice SET paid_by = 7 FROM pay_fence f WHERE f.invoice = name AND f.token = 7 AND name = 'i-7'`.pipe(
            Effect.andThen(sql<{ token: bigint }>`SELECT token FROM pay_fence WHERE invoice = 'i-7'`),
            Effect.tap(([row]) =>
              Effect.sync(() => {
                fenceWhenWritten = row?.token
              })
            )
          )
        )
        assert.deepStrictEqual(rows, [{ paid_by: 7n, token: 8n }])
        assert.strictEqual(fenceWhenWritten, 8n, "the fence stood at 8 when W1 wrote")
      })
    )

    it.effect("the fence is one: the higher token waits until the older write is through", () =>
      Effect.gen(function* () {
        let fenceWhenWritten: bigint | undefined
        const rows = yield* stoppedBetween("i-8", ({ fence, sql }) =>
          Effect.gen(function* () {
            yield* fence.hold("post", "i-8", T(7))
            yield* sql`UPDATE invoice SET paid_by = 7 WHERE name = 'i-8'`
            const [row] = yield* sql<{ token: bigint }>`SELECT token FROM pay_fence WHERE invoice = 'i-8'`
            fenceWhenWritten = row?.token
          }).pipe(sql.withTransaction)
        )
        assert.strictEqual(fenceWhenWritten, 7n, "nobody could claim while W1 wrote")
        assert.deepStrictEqual(rows, [{ paid_by: 7n, token: 8n }])
      })
    )
  })
})
