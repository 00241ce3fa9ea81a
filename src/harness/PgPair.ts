// @effect-diagnostics nodeBuiltinImport:off
/**
 * A PostgreSQL primary and its synchronous standby on loopback, from the embedded binaries: a commit is answered when
 * both have it. The primary can be killed and the standby promoted.
 *
 * The embedded binaries have no `pg_basebackup`, so the base backup is made in SQL: start, copy the files, stop.
 */
import { Effect, Redacted, Schema, type Scope } from "effect"
import { execFile } from "node:child_process"
import * as fs from "node:fs/promises"
import * as os from "node:os"
import * as path from "node:path"
import * as EmbeddedPostgres from "../services/platform/EmbeddedPostgres.ts"
import type { EmbeddedPostgresError } from "../services/platform/PostgresBinaries.ts"
import * as Pg from "../services/platform/Pg.ts"

/** An error that occurs when the pair could not be set up or the standby not be promoted. */
export class PgPairError extends Schema.TaggedError<PgPairError>()("PgPairError", { message: Schema.String }) {}

export interface PgPair {
  readonly primary: EmbeddedPostgres.EmbeddedServer
  readonly standby: EmbeddedPostgres.EmbeddedServer
  /** Makes the standby a primary, and waits until it is one. Kill the old primary first: nothing here fences it. */
  readonly promote: Effect.Effect<void, PgPairError>
}

export interface PgPairOptions {
  /** Settings of both servers. */
  readonly settings?: Readonly<Record<string, string>>
}

const STANDBY = "dlock_standby"

export const start = Effect.fnUntraced(function* (
  options: PgPairOptions = {}
): Effect.fn.Return<PgPair, PgPairError | EmbeddedPostgresError, Scope.Scope> {
  const home = yield* directory
  const settings = { wal_level: "replica", max_wal_senders: "4", ...options.settings }
  const primary = yield* EmbeddedPostgres.start({
    storage: { kind: "persistent", directory: path.join(home, "primary") },
    settings
  })
  yield* asAdmin(primary, [`SELECT slot_name FROM pg_create_physical_replication_slot('${STANDBY}', true)`])
  yield* copyTo(primary, path.join(home, "primary", "data"), path.join(home, "standby"))
  const url = new URL(Redacted.value(primary.url("postgres")))
  const standby = yield* EmbeddedPostgres.start({
    storage: { kind: "persistent", directory: path.join(home, "standby") },
    settings: {
      ...settings,
      primary_conninfo: `host=127.0.0.1 port=${url.port} user=${url.username} password=${decodeURIComponent(url.password)} application_name=${STANDBY}`,
      primary_slot_name: STANDBY
    }
  })
  // Two statements: ALTER SYSTEM does not run in a transaction, which several in one message are.
  yield* asAdmin(primary, [`ALTER SYSTEM SET synchronous_standby_names = '${STANDBY}'`, "SELECT pg_reload_conf()"])
  yield* Effect.gen(function* () {
    while (!(yield* isSynchronous(primary))) yield* Effect.sleep("50 millis")
  }).pipe(
    Effect.timeoutOrElse({
      duration: "30 seconds",
      orElse: () => Effect.fail(new PgPairError({ message: "the standby did not catch up within 30 s" }))
    })
  )
  return {
    primary,
    standby,
    promote: asAdmin(standby, ["SELECT pg_promote(true, 30)"])
  }
})

/** Root's server runs as `nobody`, who must be able to enter. */
const directory = Effect.acquireRelease(
  attempt("making a directory", () =>
    fs.mkdtemp(path.join(os.tmpdir(), "dlock-pgpair-")).then((made) => fs.chmod(made, 0o755).then(() => made))
  ),
  (made) => Effect.promise(() => fs.rm(made, { recursive: true, force: true, maxRetries: 5 }))
)

function attempt<A>(what: string, run: () => Promise<A>): Effect.Effect<A, PgPairError> {
  return Effect.tryPromise({
    try: run,
    catch: (cause) => new PgPairError({ message: `${what}: ${cause instanceof Error ? cause.message : String(cause)}` })
  })
}

const connect = (server: EmbeddedPostgres.EmbeddedServer) =>
  Pg.make({
    url: server.url("postgres"),
    applicationName: "pg-pair",
    maxConnections: 1,
    answerTimeout: "Infinity",
    parameters: { idle_in_transaction_session_timeout: "0" }
  })

const failed = (cause: unknown) => new PgPairError({ message: cause instanceof Error ? cause.message : String(cause) })

const asAdmin = (server: EmbeddedPostgres.EmbeddedServer, statements: ReadonlyArray<string>) =>
  Effect.gen(function* () {
    const sql = yield* connect(server)
    for (const statement of statements) yield* sql.unsafe(statement)
  }).pipe(Effect.scoped, Effect.mapError(failed))

const isSynchronous = (primary: EmbeddedPostgres.EmbeddedServer) =>
  Effect.gen(function* () {
    const sql = yield* connect(primary)
    const rows = yield* sql`SELECT FROM pg_stat_replication WHERE application_name = ${STANDBY} AND sync_state = 'sync'`
    return rows.length > 0
  }).pipe(Effect.scoped, Effect.mapError(failed))

/** One session from start to stop: the backup is aborted when it ends. */
const copyTo = (primary: EmbeddedPostgres.EmbeddedServer, data: string, to: string) =>
  Effect.gen(function* () {
    const sql = yield* connect(primary)
    const connection = yield* sql.reserve
    const query = (statement: string) => connection.executeUnprepared(statement, [], undefined)
    yield* query("SELECT pg_backup_start('standby', true)::text")
    yield* attempt("making a directory", () => fs.mkdir(to, { mode: 0o755 }))
    yield* copy(data, path.join(to, "data"))
    const [row] = yield* query("SELECT labelfile FROM pg_backup_stop(false)")
    const label: unknown = typeof row === "object" && row !== null ? Reflect.get(row, "labelfile") : undefined
    const copied = path.join(to, "data")
    yield* attempt("finishing the copy", () =>
      fs.stat(copied).then(({ gid, uid }) =>
        fs
          .writeFile(path.join(copied, "backup_label"), String(label))
          .then(() => fs.writeFile(path.join(copied, "standby.signal"), ""))
          .then(() => fs.rm(path.join(copied, "postmaster.pid"), { force: true }))
          .then(() => fs.copyFile(path.join(data, "..", "superuser.password"), path.join(to, "superuser.password")))
          .then(() =>
            Promise.all(
              ["data/backup_label", "data/standby.signal", "superuser.password"].map((name) =>
                fs.chown(path.join(to, name), uid, gid)
              )
            )
          )
      )
    )
  }).pipe(
    Effect.scoped,
    Effect.mapError((cause) => (cause instanceof PgPairError ? cause : failed(cause)))
  )

/** `cp -a` keeps the owner, which `fs.cp` does not; files that vanish meanwhile belong to the log that is replayed. */
const copy = (from: string, to: string) =>
  Effect.callback<void, PgPairError>((resume) => {
    execFile("cp", ["-a", from, to], (error, _, output) =>
      resume(error === null || /No such file/.test(output) ? Effect.void : Effect.fail(failed(error)))
    )
  })
