/**
 * `check` on what is running: a row that a superuser changed behind the guards' back is found, and so is what the rail did
 * without anybody having recorded it.
 */
import { PgClient } from "@effect/sql-pg"
import { assert, describe, layer } from "@effect/vitest"
import { ConfigProvider, Console, Effect, Exit, Layer, Redacted } from "effect"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { OwnerId } from "../../src/core/lock/Lock.ts"
import { PaymentStore } from "../../src/core/payment/PaymentStore.ts"
import type { AccountId } from "../../src/core/payment/Payout.ts"
import { run } from "../../src/harness/Check.ts"
import { exitCodeOf } from "../../src/services/platform/ExitCodes.ts"
import * as PgPaydb from "../../src/services/payment-resource/PgPaydb.ts"
import * as PgPaymentStore from "../../src/services/payment-resource/PgPaymentStore.ts"
import * as RailStubServer from "../../src/services/rail-stub/RailStubServer.ts"
import { serving } from "../services/rail-stub/serving.ts"
import { TestDatabase } from "../support/pg.ts"

const store = PgPaymentStore.layer({ fencingEnabled: true, callTimeoutMillis: 10_000 }).pipe(
  Layer.provide(
    Layer.effect(
      PgClient.PgClient,
      Effect.flatMap(TestDatabase, ({ pool }) => pool({ parameters: { role: "dlock_payment" } }))
    )
  ),
  Layer.provideMerge(TestDatabase.layer("paydb", PgPaydb.migrate))
)

/** Runs `check --json` with these settings: its exit code, and the names of what it found. */
const check = Effect.fnUntraced(function* (
  file: string | undefined,
  environment: Readonly<Record<string, string>> = {}
) {
  const lines: Array<string> = []
  const exit = yield* Effect.exit(run({ file, config: undefined, json: true })).pipe(
    Effect.provideService(Console.Console, {
      ...globalThis.console,
      log: (line: string) => void lines.push(line)
    } as unknown as Console.Console),
    Effect.provideService(ConfigProvider.ConfigProvider, ConfigProvider.fromEnvRecord(environment))
  )
  const found = JSON.parse(lines[0] ?? "{}") as {
    readonly violations?: ReadonlyArray<{ readonly check: string; readonly subject: string }>
  }
  return { code: Exit.isSuccess(exit) ? 0 : exitCodeOf(exit.cause), violations: found.violations ?? [] }
})

describe("check", () => {
  layer(store, { excludeTestServices: true })("of a running paydb and rail", (it) => {
    it.effect("finds a row that a superuser changed with the triggers off", () =>
      Effect.gen(function* () {
        const { pool, url } = yield* TestDatabase
        const payments = yield* PaymentStore
        yield* payments.createAccount({
          accountId: "acct-1" as AccountId,
          currency: "EUR",
          openingBalanceMinor: 10_000n,
          actor: OwnerId.make("test")
        })
        const rail = yield* serving("rail-stub", RailStubServer.layer)
        const environment = { PAYMENT_PG_URL: Redacted.value(url), RAIL_URL: rail.url }
        assert.deepStrictEqual(yield* check(undefined, environment), { code: 0, violations: [] })

        const sql = yield* pool({ maxConnections: 1 })
        yield* sql`ALTER TABLE pay.account DISABLE TRIGGER ALL`
        yield* sql`UPDATE pay.account SET balance_minor = balance_minor + 1 WHERE account_id = 'acct-1'`
        yield* sql`ALTER TABLE pay.account ENABLE TRIGGER ALL`
        const changed = yield* check(undefined, environment)
        assert.strictEqual(changed.code, 5)
        assert.deepInclude(changed.violations[0], { check: "INV-03", subject: "acct-1" })
      }).pipe(Effect.scoped)
    )

    it.effect("wants to know where paydb is", () =>
      Effect.map(check(undefined), ({ code }) => assert.strictEqual(code, 2))
    )
  })

  layer(Layer.empty, { excludeTestServices: true })("of a saved run", (it) => {
    it.effect("answers 0 for a run that held and 5 for one that corrupted", () =>
      Effect.gen(function* () {
        assert.deepStrictEqual(yield* check("test/harness/runs/uc-03-on.json"), { code: 0, violations: [] })
        const off = yield* check("test/harness/runs/uc-03-off.json")
        assert.strictEqual(off.code, 5)
        assert.includeMembers(
          off.violations.map((violation) => violation.check),
          ["INV-02", "ONE-POSTING"]
        )
      })
    )

    it.effect("reads a bare history, and says so when a file is neither", () =>
      Effect.gen(function* () {
        const directory = yield* Effect.acquireRelease(
          Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "dlock-check-"))),
          (made) => Effect.sync(() => fs.rmSync(made, { recursive: true, force: true }))
        )
        const saved = JSON.parse(fs.readFileSync("test/harness/runs/uc-03-off.json", "utf8")) as {
          readonly history: unknown
        }
        const bare = path.join(directory, "history.json")
        fs.writeFileSync(bare, JSON.stringify(saved.history))
        const found = yield* check(bare)
        assert.strictEqual(found.code, 5)
        assert.include(
          found.violations.map((violation) => violation.check),
          "INV-02"
        )
        const neither = path.join(directory, "neither.json")
        fs.writeFileSync(neither, "{}")
        assert.strictEqual((yield* check(neither)).code, 1)
      }).pipe(Effect.scoped)
    )
  })
})
