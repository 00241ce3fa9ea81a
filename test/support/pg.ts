import { Context, Effect, Layer, Redacted } from "effect"
import * as crypto from "node:crypto"
import { inject } from "vitest"
import type * as Migrations from "../../src/services/platform/Migrations.ts"
import * as Pg from "../../src/services/platform/Pg.ts"

/**
 * A database of its own for a test file, dropped at the end.
 *
 *     layer(TestDatabase.layer("lockdb", (url) => migrate({ url, directory })))("PgLockStore", (it) => ...)
 */
export class TestDatabase extends Context.Service<
  TestDatabase,
  {
    readonly url: Redacted.Redacted
    /** A pool in this database; ends with the scope. */
    readonly pool: (options?: Partial<Pg.PgOptions>) => ReturnType<typeof Pg.make>
  }
>()("dlock/test/support/pg/TestDatabase") {
  /**
   * @param schema names the template that is migrated once a run; two schemas may not share a name
   * @param migrate brings the empty template up to date
   */
  static readonly layer = <E>(
    schema: string,
    migrate: (url: Redacted.Redacted) => Effect.Effect<unknown, E>
  ): Layer.Layer<TestDatabase, E | Migrations.MigrationError> =>
    Layer.effect(
      TestDatabase,
      Effect.gen(function* () {
        const template = `template_${schema}`
        yield* makeTemplate(template, migrate)
        const name = `t_${schema}_${crypto.randomBytes(6).toString("hex")}`
        yield* Effect.acquireRelease(
          // wal_log: no checkpoint of the whole server, so that files which start together do not wait for each other
          asAdmin("postgres", (sql) => sql`CREATE DATABASE ${sql(name)} TEMPLATE ${sql(template)} STRATEGY wal_log`),
          () => asAdmin("postgres", (sql) => sql`DROP DATABASE IF EXISTS ${sql(name)} WITH (FORCE)`)
        )
        const url = urlOf(name)
        return { url, pool: (options) => Pg.make({ url, applicationName: "test", maxConnections: 4, ...options }) }
      })
    )
}

/** The database `name` of the server that this run shares. */
const urlOf = (name: string) => {
  const url = new URL(inject("pgAdminUrl"))
  url.pathname = `/${name}`
  return Redacted.make(url.href)
}

const asAdmin = <A>(
  database: string,
  use: (sql: Effect.Success<ReturnType<typeof Pg.make>>) => Effect.Effect<A, unknown>
) =>
  Pg.make({ url: urlOf(database), applicationName: "test-admin", maxConnections: 1, answerTimeout: "60 seconds" }).pipe(
    Effect.flatMap(use),
    Effect.scoped,
    Effect.orDie
  )

/**
 * Test files run in processes of their own, so the first one that asks makes the template, and the others wait for it
 * on an advisory lock. It appears under its name only when it is complete.
 */
const makeTemplate = <E>(template: string, migrate: (url: Redacted.Redacted) => Effect.Effect<unknown, E>) =>
  Effect.scoped(
    Effect.gen(function* () {
      const sql = yield* Pg.make({
        url: urlOf("postgres"),
        applicationName: "test-template",
        maxConnections: 1,
        answerTimeout: "Infinity",
        parameters: { idle_in_transaction_session_timeout: "0" }
      })
      const connection = yield* sql.reserve
      const run = (statement: string) => connection.executeUnprepared(statement, [], undefined)
      yield* run(`SELECT pg_advisory_lock(hashtext('${template}'))`)
      if ((yield* run(`SELECT FROM pg_database WHERE datname = '${template}'`)).length > 0) return
      yield* run(`DROP DATABASE IF EXISTS ${template}_draft WITH (FORCE)`)
      yield* run(`CREATE DATABASE ${template}_draft STRATEGY wal_log`)
      yield* migrate(urlOf(`${template}_draft`))
      // Refused while the migration's last connection is still closing.
      yield* run(`SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '${template}_draft'`)
      yield* run(`ALTER DATABASE ${template}_draft RENAME TO ${template}`)
    })
  ).pipe(Effect.catchTag("SqlError", Effect.die))
