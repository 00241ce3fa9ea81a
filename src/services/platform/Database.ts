// @effect-diagnostics nodeBuiltinImport:off
/**
 * Which database a process uses: the one its settings name, or, on a developer's machine, one that starts by itself.
 */
import { Effect, Redacted, Schedule, type Scope } from "effect"
import * as fs from "node:fs"
import * as path from "node:path"
import * as EmbeddedPostgres from "./EmbeddedPostgres.ts"
import type { EmbeddedPostgresError } from "./PostgresBinaries.ts"
import { ensureDatabase, type MigrationError } from "./Migrations.ts"
import * as Pid from "./Pid.ts"
import { type ConfigProblem, configProblem, type PgEndpoint, ServiceConfig } from "./ServiceConfig.ts"

/**
 * The URL of a database, as a role that may migrate it. Without a setting and with `dlock.env` local, an embedded
 * PostgreSQL keeps it under `.dlock/` of the working directory, for this process and every other that asks for the
 * same name; it ends with the process that started it.
 */
export const database = Effect.fnUntraced(function* (
  name: "lockdb" | "paydb",
  endpoint: PgEndpoint
): Effect.fn.Return<
  Redacted.Redacted,
  ConfigProblem | EmbeddedPostgresError | MigrationError,
  ServiceConfig | Scope.Scope
> {
  const { env } = yield* ServiceConfig
  if (endpoint.url !== undefined) return endpoint.url
  if (env !== "local") {
    return yield* configProblem(
      endpoint.setting,
      "not set",
      "postgres://user:password@host:port/database (only while dlock.env is local a database starts by itself)"
    )
  }
  const directory = path.resolve(".dlock", name)
  const server = running(directory) ?? (yield* start(directory))
  yield* Effect.logInfo("no database is configured: using an embedded PostgreSQL").pipe(
    Effect.annotateLogs({ event: "embedded_database", database: name, directory, setting: endpoint.setting })
  )
  yield* ensureDatabase({ adminUrl: server("postgres"), database: name })
  return server(name)
})

/**
 * The same without starting anything, for commands: the database that the settings name or that another process of this
 * machine has started, and undefined when there is neither.
 */
export const existing = (name: "lockdb" | "paydb", { url }: PgEndpoint): Effect.Effect<Redacted.Redacted | undefined> =>
  Effect.sync(() => url ?? running(path.resolve(".dlock", name))?.(name))

type UrlOf = (database: string) => Redacted.Redacted

/** Two services of one database (payment-resource, rail-proxy) may start at once: the slower one uses the faster's. */
const start = (directory: string): Effect.Effect<UrlOf, EmbeddedPostgresError, Scope.Scope> =>
  EmbeddedPostgres.start({ storage: { kind: "persistent", directory } }).pipe(
    Effect.map((server): UrlOf => server.url),
    Effect.catch((error) =>
      Effect.suspend(() => {
        const other = running(directory)
        return other === undefined ? Effect.fail(error) : Effect.succeed(other)
      }).pipe(Effect.retry({ times: 20, schedule: Schedule.spaced("250 millis") }))
    )
  )

/** The server of another process on the same data, when it is ready: its own pid file says so, and on which port. */
const running = (directory: string): UrlOf | undefined => {
  const read = (file: string) => {
    try {
      return fs.readFileSync(path.join(directory, file), "utf8")
    } catch {
      return undefined
    }
  }
  const [pid, , , port, , , , status] = read("data/postmaster.pid")?.split("\n") ?? []
  const password = read("superuser.password")
  if (status?.trim() !== "ready" || password === undefined || !Pid.isAlive(Number(pid))) return undefined
  return (name) => Redacted.make(`postgres://postgres:${encodeURIComponent(password)}@127.0.0.1:${port}/${name}`)
}
