// @effect-diagnostics nodeBuiltinImport:off
/**
 * Brings a database up to date from numbered `.sql` files (`0001_locks.sql`), each applied once, in order.
 *
 * Each file runs in a transaction of its own together with the row that records it, under one advisory lock, so any
 * number of services may start at once: one applies a file, the others wait and then find it applied. A file may hold
 * any number of statements except those which PostgreSQL refuses in a transaction (`CREATE DATABASE`, `VACUUM`, ..).
 *
 * An applied file never changes: its SHA-256 is compared at every start. Files which the database has and this program
 * does not (a newer version was here) are left alone.
 */
import type { PgClient } from "@effect/sql-pg"
import { Effect, type Redacted, Schema } from "effect"
import type { SqlError } from "effect/sql"
import * as crypto from "node:crypto"
import * as fs from "node:fs/promises"
import { fileURLToPath } from "node:url"
import * as Pg from "./Pg.ts"

/** The schema could not be brought up to date. */
export class MigrationError extends Schema.TaggedError<MigrationError>()("MigrationError", {
  /**
   * - `unreadable`: the files cannot be read, or one is not named `NNNN_name.sql`;
   * - `changed`: a file differs from what was applied under its name;
   * - `order`: a new file comes before one that is already applied;
   * - `failed`: the database refused a statement;
   * - `unavailable`: the database cannot be reached now. The only one for which a retry makes sense.
   */
  reason: Schema.Literals(["unreadable", "changed", "order", "failed", "unavailable"]),
  migration: Schema.NullOr(Schema.String),
  message: Schema.String
}) {}

export interface MigrateOptions {
  /** The database, as a role that may create tables in it. */
  readonly url: Redacted.Redacted
  /** The folder of the files, such as `new URL("./migrations/", import.meta.url)`. */
  readonly directory: URL
  /** Where the applied files are recorded; a second folder needs a table of its own. Default: `schema_migration`. */
  readonly table?: string
}

/** Applies what is missing; succeeds with the names of the files applied now. */
export const migrate = Effect.fnUntraced(
  function* (options: MigrateOptions) {
    const migrations = yield* readMigrations(options.directory)
    const sql = yield* maintenanceClient(options.url).pipe(Effect.mapError(toMigrationError(null)))
    const table = options.table ?? "schema_migration"
    const applied: Array<string> = []
    while (true) {
      const name = yield* applyNext(sql, table, migrations)
      if (name === undefined) return applied
      applied.push(name)
      yield* Effect.logInfo("migration applied", { migration: name, table })
    }
  },
  (effect) => Effect.scoped(effect)
)

/** `CREATE DATABASE IF NOT EXISTS`, which PostgreSQL lacks; true when it was created now. */
export const ensureDatabase = Effect.fnUntraced(
  function* (options: { readonly adminUrl: Redacted.Redacted; readonly database: string }) {
    const { adminUrl, database } = options
    const sql = yield* maintenanceClient(adminUrl)
    const existing = yield* sql`SELECT FROM pg_database WHERE datname = ${database}`
    if (existing.length > 0) return false
    return yield* sql`CREATE DATABASE ${sql(database)}`.pipe(
      Effect.as(true),
      Effect.catchTag("SqlError", (error) => {
        const failure = Pg.classify(error)
        // Another process was faster: seen by the name check (42P04) or only by the unique index (23505).
        return failure.code === "42P04" || failure.code === "23505" ? Effect.succeed(false) : Effect.fail(error)
      })
    )
  },
  Effect.scoped,
  Effect.catchTag("SqlError", (error) => Effect.fail(toMigrationError(null)(error)))
)

// -----------------------------------------------------------------------------
// internal
// -----------------------------------------------------------------------------

interface Migration {
  readonly name: string
  readonly text: string
  readonly sha256: string
}

const readMigrations = (directory: URL): Effect.Effect<ReadonlyArray<Migration>, MigrationError> =>
  Effect.tryPromise({
    try: () =>
      fs.readdir(directory).then((entries) =>
        Promise.all(
          entries
            .filter((entry) => entry.endsWith(".sql"))
            .sort()
            .map((entry) =>
              fs.readFile(new URL(entry, directory), "utf8").then((text) => ({
                name: entry.slice(0, -".sql".length),
                text,
                sha256: crypto.createHash("sha256").update(text).digest("hex")
              }))
            )
        )
      ),
    catch: (cause) =>
      new MigrationError({
        reason: "unreadable",
        migration: null,
        message: `cannot read the migrations in ${fileURLToPath(directory)}: ${String(cause)}`
      })
  }).pipe(
    Effect.flatMap((migrations) => {
      const numbers = new Set<string>()
      for (const { name } of migrations) {
        const number = /^([0-9]{4})_[a-z0-9_]+$/.exec(name)?.[1]
        if (number === undefined || numbers.has(number)) {
          return Effect.fail(
            new MigrationError({
              reason: "unreadable",
              migration: name,
              message: `${name}.sql: name it NNNN_what_it_does.sql, with a number that no other file has`
            })
          )
        }
        numbers.add(number)
      }
      return Effect.succeed(migrations)
    })
  )

/** Statements of any length: the bounds of a service's pool do not apply. Waiting for another migration is bounded. */
const maintenanceClient = (url: Redacted.Redacted) =>
  Pg.make({
    url,
    applicationName: "dlock-migrate",
    maxConnections: 1,
    connectTimeout: "5 seconds",
    answerTimeout: "Infinity",
    parameters: { lock_timeout: "60000", idle_in_transaction_session_timeout: "60000" }
  })

/** Applies the first file that is missing; undefined when there is none. */
const applyNext = (sql: PgClient.PgClient, table: string, migrations: ReadonlyArray<Migration>) =>
  Effect.gen(function* () {
    // The lock ends with the transaction, also when this process is killed.
    yield* sql`SELECT pg_advisory_xact_lock(hashtextextended(${`dlock migrations ${table}`}, 0))`
    const [found] = yield* sql<{ present: boolean }>`SELECT to_regclass(${`"${table}"`}) IS NOT NULL AS present`
    if (found?.present !== true) {
      yield* sql`CREATE TABLE ${sql(table)} (
        name text PRIMARY KEY,
        sha256 text NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
      )`
    }
    const rows = yield* sql<{ name: string; sha256: string }>`SELECT name, sha256 FROM ${sql(table)}`
    const recorded = new Map(rows.map((row) => [row.name, row.sha256]))
    const changed = migrations.find(({ name, sha256 }) => (recorded.get(name) ?? sha256) !== sha256)
    if (changed !== undefined) {
      return yield* new MigrationError({
        reason: "changed",
        migration: changed.name,
        message: `${changed.name}.sql was changed after it was applied: restore it, and add a new file for the change`
      })
    }
    const next = migrations.find(({ name }) => !recorded.has(name))
    if (next === undefined) return undefined
    const later = migrations.find(({ name }) => name > next.name && recorded.has(name))
    if (later !== undefined) {
      return yield* new MigrationError({
        reason: "order",
        migration: next.name,
        message: `${next.name}.sql is new but ${later.name}.sql is already applied: give it a higher number`
      })
    }
    yield* sql
      .unsafe(asOneStatement(next.text))
      .pipe(Effect.catchTag("SqlError", (error) => Effect.fail(toMigrationError(next)(error))))
    yield* sql`INSERT INTO ${sql(table)} (name, sha256) VALUES (${next.name}, ${next.sha256})`
    return next.name
  }).pipe(
    sql.withTransaction,
    Effect.catchTag("SqlError", (error) => Effect.fail(toMigrationError(null)(error)))
  )

/**
 * The driver speaks the extended protocol only, which takes one statement at a time. EXECUTE takes a text of many, and
 * analyses each after the ones before it have run; it refuses BEGIN and COMMIT, as it should here.
 */
const asOneStatement = (text: string) => {
  let tag = "dlock"
  while (text.includes(tag)) tag += "_"
  return `DO $${tag}_do$ BEGIN EXECUTE $${tag}_sql$${text}$${tag}_sql$; END $${tag}_do$`
}

const toMigrationError = (migration: Migration | null) => (error: SqlError.SqlError) => {
  const failure = Pg.classify(error)
  const name = migration?.name ?? null
  const where = migration === null ? "the database" : `${migration.name}.sql${lineOf(migration.text, error)}`
  return new MigrationError({
    reason: failure._tag === "Outage" ? "unavailable" : "failed",
    migration: name,
    message: `${where}: ${failure.message}${failure.code === undefined ? "" : ` (${failure.code})`}`
  })
}

/** PostgreSQL counts the characters of the executed text from 1. */
const lineOf = (text: string, error: SqlError.SqlError) => {
  const cause = error.reason.cause
  const position = typeof cause === "object" && cause !== null ? Number(Reflect.get(cause, "internalPosition")) : NaN
  return Number.isInteger(position) ? `, line ${Array.from(text).slice(0, position).join("").split("\n").length}` : ""
}
