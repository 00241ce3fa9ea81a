import { assert, describe, it, layer } from "@effect/vitest"
import { Effect } from "effect"
import * as crypto from "node:crypto"
import * as fs from "node:fs/promises"
import * as os from "node:os"
import * as path from "node:path"
import { pathToFileURL } from "node:url"
import { ensureDatabase, migrate } from "../../../src/services/platform/Migrations.ts"
import { TestDatabase } from "../../support/pg.ts"

const directory = new URL("../../support/migrations/", import.meta.url)

/** A folder of its own with these files. */
const folder = (files: Readonly<Record<string, string>>) =>
  Effect.acquireRelease(
    Effect.promise(() => fs.mkdtemp(path.join(os.tmpdir(), "dlock-migrations-"))),
    (made) => Effect.promise(() => fs.rm(made, { recursive: true }))
  ).pipe(
    Effect.tap((made) => write(made, files)),
    Effect.map((made) => pathToFileURL(`${made}/`))
  )

const write = (at: string | URL, files: Readonly<Record<string, string>>) =>
  Effect.promise(() =>
    Promise.all(
      Object.entries(files).map(([name, text]) =>
        fs.writeFile(at instanceof URL ? new URL(name, at) : path.join(at, name), text)
      )
    )
  )

const aTable = () => `t_${crypto.randomBytes(4).toString("hex")}`

layer(
  TestDatabase.layer("empty", () => Effect.void),
  { excludeTestServices: true }
)("Migrations", (it) => {
  it.effect("several services that start at once apply every file once, in order", () =>
    Effect.gen(function* () {
      const { url, pool } = yield* TestDatabase
      const applied = yield* Effect.all(
        Array.from({ length: 4 }, () => migrate({ url, directory })),
        { concurrency: "unbounded" }
      )
      assert.deepStrictEqual(applied.flat().sort(), ["0001_note", "0002_refuse"])
      assert.deepStrictEqual(yield* migrate({ url, directory }), [])
      const sql = yield* pool()
      assert.deepStrictEqual(yield* sql`SELECT name FROM schema_migration ORDER BY applied_at`, [
        { name: "0001_note" },
        { name: "0002_refuse" }
      ])
      assert.deepStrictEqual(yield* sql`SELECT text, size FROM note`, [
        { text: "semicolons; are no problem, and 'quotes' neither", size: 2 }
      ])
    })
  )

  it.effect("a file that was changed after it was applied is refused by name", () =>
    Effect.gen(function* () {
      const { url } = yield* TestDatabase
      const table = aTable()
      const at = yield* folder({ "0001_one.sql": `CREATE TABLE ${table}_one ()` })
      yield* migrate({ url, directory: at, table })
      yield* write(at, { "0001_one.sql": `CREATE TABLE ${table}_one (x int)` })
      const error = yield* Effect.flip(migrate({ url, directory: at, table }))
      assert.deepStrictEqual([error.reason, error.migration], ["changed", "0001_one"])
    })
  )

  it.effect("a failing file leaves nothing behind and names the line; the files before it stay applied", () =>
    Effect.gen(function* () {
      const { url, pool } = yield* TestDatabase
      const table = aTable()
      const at = yield* folder({
        "0001_good.sql": `CREATE TABLE ${table}_good ()`,
        "0002_bad.sql": `CREATE TABLE ${table}_half ();\n\nSELEC 1;`
      })
      const error = yield* Effect.flip(migrate({ url, directory: at, table }))
      assert.deepStrictEqual([error.reason, error.migration], ["failed", "0002_bad"])
      assert.include(error.message, "line 3")
      const sql = yield* pool()
      assert.deepStrictEqual(yield* sql`SELECT to_regclass(${`${table}_half`}) IS NULL AS gone`, [{ gone: true }])
      yield* write(at, { "0002_bad.sql": "SELECT 1" })
      assert.deepStrictEqual(yield* migrate({ url, directory: at, table }), ["0002_bad"])
    })
  )

  it.effect("a new file with a lower number than an applied one is refused", () =>
    Effect.gen(function* () {
      const { url } = yield* TestDatabase
      const table = aTable()
      const at = yield* folder({ "0002_two.sql": "SELECT 2" })
      yield* migrate({ url, directory: at, table })
      yield* write(at, { "0001_one.sql": "SELECT 1" })
      assert.strictEqual((yield* Effect.flip(migrate({ url, directory: at, table }))).reason, "order")
    })
  )

  it.effect("files that share a number, or have none, are refused before the database is asked", () =>
    Effect.gen(function* () {
      const { url } = yield* TestDatabase
      for (const files of [{ "0001_a.sql": "", "0001_b.sql": "" }, { "one.sql": "" }]) {
        const error = yield* Effect.flip(migrate({ url, directory: yield* folder(files), table: aTable() }))
        assert.strictEqual(error.reason, "unreadable")
      }
    })
  )

  it.effect("a transaction inside a file is refused", () =>
    Effect.gen(function* () {
      const { url } = yield* TestDatabase
      const at = yield* folder({ "0001_commit.sql": "SELECT 1; COMMIT; SELECT 2" })
      assert.strictEqual((yield* Effect.flip(migrate({ url, directory: at, table: aTable() }))).reason, "failed")
    })
  )

  it.effect("ensureDatabase creates a database once, however many ask at once", () =>
    Effect.gen(function* () {
      const { url, pool } = yield* TestDatabase
      const database = `ensured_${crypto.randomBytes(4).toString("hex")}`
      const created = yield* Effect.all(
        Array.from({ length: 3 }, () => ensureDatabase({ adminUrl: url, database })),
        { concurrency: "unbounded" }
      )
      assert.deepStrictEqual(created.filter((now) => now).length, 1)
      const sql = yield* pool()
      yield* sql`DROP DATABASE ${sql(database)} WITH (FORCE)`
    })
  )
})

describe("a missing folder", () => {
  it.live("is told with its path", () =>
    Effect.gen(function* () {
      const { url } = yield* TestDatabase
      const error = yield* Effect.flip(migrate({ url, directory: new URL("file:///nowhere/at/all/") }))
      assert.include(error.message, "/nowhere/at/all")
    }).pipe(Effect.provide(TestDatabase.layer("empty", () => Effect.void)))
  )
})
