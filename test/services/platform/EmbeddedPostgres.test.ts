import { assert, describe, it } from "@effect/vitest"
import { Effect, Redacted, type Scope } from "effect"
import { type ChildProcess, spawn } from "node:child_process"
import * as fs from "node:fs/promises"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import * as EmbeddedPostgres from "../../../src/services/platform/EmbeddedPostgres.ts"
import * as Pg from "../../../src/services/platform/Pg.ts"
import { isAlive } from "../../../src/services/platform/Pid.ts"
import * as PostgresBinaries from "../../../src/services/platform/PostgresBinaries.ts"
import { waitUntil } from "../../support/waitUntil.ts"

/** A temp dir that everybody can enter, as /tmp is. */
const tempDirectory = Effect.acquireRelease(
  Effect.promise(() =>
    fs.mkdtemp(path.join(os.tmpdir(), "dlock-test-")).then((made) => fs.chmod(made, 0o1777).then(() => made))
  ),
  (made) => Effect.promise(() => fs.rm(made, { recursive: true, force: true, maxRetries: 5 }))
)

const listing = (directory: string) => Effect.promise(() => fs.readdir(directory))

const program = fileURLToPath(new URL("../../support/postgresProcess.ts", import.meta.url))

/** Runs `postgresProcess.ts`; answers when its server is up. */
const serverProcess = (options: {
  readonly tmp: string
  readonly umask?: string
  readonly directory?: string
}): Effect.Effect<{ readonly process: ChildProcess; readonly pid: number }, string, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() =>
      spawn(
        "/bin/sh",
        [
          "-c",
          `umask ${options.umask ?? "022"}; exec "$@"`,
          "sh",
          process.execPath,
          program,
          ...(options.directory === undefined ? [] : [options.directory])
        ],
        // oxlint-disable-next-line node/no-process-env
        { env: { ...process.env, TMPDIR: options.tmp }, stdio: ["ignore", "pipe", "pipe"] }
      )
    ),
    (child) => Effect.sync(() => child.kill("SIGKILL"))
  ).pipe(
    Effect.flatMap((child) =>
      Effect.callback<{ readonly process: ChildProcess; readonly pid: number }, string>((resume) => {
        let output = ""
        const read = (text: Buffer) => {
          output += text.toString()
          const pid = /"pid":([0-9]+)/.exec(output)?.[1]
          if (pid !== undefined) resume(Effect.succeed({ process: child, pid: Number(pid) }))
        }
        child.stdout.on("data", read)
        child.stderr.on("data", read)
        child.once("close", () => resume(Effect.fail(output)))
      })
    )
  )

describe("EmbeddedPostgres", () => {
  it.live("data and port survive kill and restart, and everything is gone with the scope", () =>
    Effect.gen(function* () {
      const tmp = os.tmpdir()
      const ours = (names: ReadonlyArray<string>) => names.filter((name) => name.startsWith("dlock-pgdata-")).length
      const before = ours(yield* listing(tmp))
      const pid = yield* Effect.scoped(
        Effect.gen(function* () {
          const server = yield* EmbeddedPostgres.start({ storage: { kind: "temporary" } })
          const sql = yield* Pg.make({ url: server.url("postgres"), applicationName: "test" })
          yield* sql`CREATE TABLE kept (x int)`
          yield* sql`INSERT INTO kept VALUES (7)`
          const first = yield* server.pid
          yield* server.kill
          assert.isUndefined(yield* server.pid)
          yield* server.restart
          assert.notStrictEqual(yield* server.pid, first)
          // The killed pool connection is noticed when it is used, or before.
          yield* waitUntil(
            "the data is back",
            Effect.orElseSucceed(Effect.as(sql`SELECT 1`, true), () => false)
          )
          assert.deepStrictEqual(yield* sql`SELECT x FROM kept`, [{ x: 7 }])
          assert.deepStrictEqual(yield* sql`SHOW fsync`, [{ fsync: "on" }])
          yield* server.stop
          yield* server.stop
          yield* server.restart
          return yield* server.pid
        })
      )
      assert.isFalse(isAlive(pid ?? 0))
      assert.isAtMost(ours(yield* listing(tmp)), before)
    })
  )

  it.live("persistent data is there the next time, needs its password, and is served by one server only", () =>
    Effect.gen(function* () {
      const directory = path.join(yield* tempDirectory, "pg")
      const start = EmbeddedPostgres.start({ storage: { kind: "persistent", directory } })
      yield* Effect.scoped(
        Effect.gen(function* () {
          const server = yield* start
          const sql = yield* Pg.make({ url: server.url("postgres"), applicationName: "test" })
          yield* sql`CREATE TABLE kept AS SELECT 7 AS x`
          const second = yield* Effect.flip(start)
          assert.include(second.message, "already served")
          const stranger = yield* Pg.make({
            url: Redacted.make(`postgres://postgres@127.0.0.1:${server.port}/postgres`),
            applicationName: "stranger"
          })
          assert.include((yield* Effect.flip(stranger`SELECT 1`)).message, "password")
        })
      )
      // What a crash of the whole machine leaves: a pid file whose number now belongs to somebody else.
      yield* Effect.promise(() => fs.writeFile(path.join(directory, "data", "postmaster.pid"), `${process.pid}\n`))
      const server = yield* start
      const sql = yield* Pg.make({ url: server.url("postgres"), applicationName: "test" })
      assert.deepStrictEqual(yield* sql`SELECT x FROM kept`, [{ x: 7 }])
    })
  )

  it.live("two processes that start at once under umask 077 share one copy of the binaries", () =>
    Effect.gen(function* () {
      const tmp = yield* tempDirectory
      yield* Effect.all([serverProcess({ tmp, umask: "077" }), serverProcess({ tmp, umask: "077" })], {
        concurrency: 2
      })
      const names = yield* listing(tmp)
      assert.strictEqual(names.filter((name) => name.startsWith("dlock-pg-")).length, 1, names.join())
    })
  )

  it.live("SIGTERM, SIGINT and SIGKILL to the process end PostgreSQL and remove its data", () =>
    Effect.gen(function* () {
      const tmp = yield* tempDirectory
      yield* Effect.forEach(
        ["SIGTERM", "SIGINT", "SIGKILL"] as const,
        (signal) =>
          Effect.gen(function* () {
            const server = yield* serverProcess({ tmp })
            server.process.kill(signal)
            yield* waitUntil(
              `PostgreSQL has ended after ${signal}`,
              Effect.sync(() => !isAlive(server.pid))
            )
          }),
        { concurrency: "unbounded" }
      )
      const binariesAlone = waitUntil(
        "only the copy of the binaries is left",
        Effect.map(listing(tmp), (names) => names.length === 1 && names[0]?.startsWith("dlock-pg-16") === true)
      )
      yield* binariesAlone
      // A server that was killed leaves its data for a restart, and the shell that removes them is gone with it.
      const server = yield* serverProcess({ tmp })
      process.kill(server.pid, "SIGKILL")
      yield* waitUntil(
        "PostgreSQL has ended",
        Effect.sync(() => !isAlive(server.pid))
      )
      assert.isTrue((yield* listing(tmp)).some((name) => name.startsWith("dlock-pgdata-")))
      server.process.kill("SIGKILL")
      yield* binariesAlone
    })
  )

  it.live("a copy of the binaries that others can write to is refused, an incomplete one is replaced", () =>
    Effect.gen(function* () {
      const tmp = yield* tempDirectory
      const at = yield* PostgresBinaries.install(tmp)
      yield* Effect.promise(() => fs.rm(path.join(at, "share"), { recursive: true }))
      assert.strictEqual(yield* PostgresBinaries.install(tmp), at)
      assert.include(yield* listing(at), "share")
      assert.deepStrictEqual(yield* listing(tmp), [path.basename(at)])
      yield* Effect.promise(() => fs.chmod(at, 0o777))
      assert.include(
        (yield* Effect.flip(PostgresBinaries.install(tmp))).message,
        "is not ours or others can write to it"
      )
    })
  )

  it.live("a port in use, and a setting that PostgreSQL does not know, fail with the reason", () =>
    Effect.gen(function* () {
      const { port } = yield* EmbeddedPostgres.start({ storage: { kind: "temporary" }, fast: true })
      const taken = yield* Effect.flip(EmbeddedPostgres.start({ storage: { kind: "temporary" }, port }))
      assert.include(taken.message, `port ${port} is in use`)
      const unknown = yield* Effect.flip(
        EmbeddedPostgres.start({ storage: { kind: "temporary" }, settings: { no_such_setting: "1" } })
      )
      assert.include(unknown.message, "no_such_setting")
    })
  )
})
