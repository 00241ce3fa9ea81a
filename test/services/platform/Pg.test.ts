import { PgClient } from "@effect/sql-pg"
import { assert, describe, it, layer } from "@effect/vitest"
import { Duration, Effect, Fiber, Queue, Redacted, Schedule, Stream } from "effect"
import { Reactivity } from "effect/reactivity"
import type { SqlError } from "effect/sql"
import { spawnSync } from "node:child_process"
import * as fs from "node:fs/promises"
import * as os from "node:os"
import * as path from "node:path"
import { boundedBy } from "../../../src/core/Bound.ts"
import * as EmbeddedPostgres from "../../../src/services/platform/EmbeddedPostgres.ts"
import { migrate } from "../../../src/services/platform/Migrations.ts"
import * as Pg from "../../../src/services/platform/Pg.ts"
import { TestDatabase } from "../../support/pg.ts"
import { waitUntil } from "../../support/waitUntil.ts"

const Notes = TestDatabase.layer("notes", (url) =>
  migrate({ url, directory: new URL("../../support/migrations/", import.meta.url) })
)

/** The driver as it comes: the negative control. */
const bareClient = (url: Redacted.Redacted) =>
  PgClient.make({ url, maxConnections: 1 }).pipe(Effect.provideServiceEffect(Reactivity.Reactivity, Reactivity.make))

const timed = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.timed(effect), ([duration, value]) => ({ millis: Duration.toMillis(duration), value }))

const slowInsert = (sql: PgClient.PgClient, text: string) =>
  sql`INSERT INTO note (text, size) SELECT ${text}, 1 FROM pg_sleep(0.4)`

const exists = (sql: PgClient.PgClient, text: string) =>
  Effect.map(sql`SELECT FROM note WHERE text = ${text}`, (rows) => rows.length > 0)

const running = (sql: PgClient.PgClient, applicationName: string) =>
  Effect.map(
    sql`SELECT FROM pg_stat_activity WHERE application_name = ${applicationName} AND state = 'active'`,
    (rows) => rows.length
  )

layer(Notes, { excludeTestServices: true })("Pg", (it) => {
  it.effect("a write whose caller gave up is finished, not cancelled, and its pool works on", () =>
    Effect.gen(function* () {
      const { pool } = yield* TestDatabase
      const sql = yield* pool({ maxConnections: 1 })
      // The connection stands before the clock starts, however busy the machine is.
      yield* sql`SELECT 1`
      const gaveUp = yield* slowInsert(sql, "given up").pipe(
        Effect.as("answered"),
        boundedBy(100, () => "late"),
        Effect.flip
      )
      assert.strictEqual(gaveUp, "late")
      yield* waitUntil("the write is committed", exists(sql, "given up"))
    })
  )

  it.effect("negative control: the bare driver cancels the same write", () =>
    Effect.gen(function* () {
      const { url, pool } = yield* TestDatabase
      const bare = yield* bareClient(url)
      const sql = yield* pool()
      yield* slowInsert(bare, "cancelled").pipe(Effect.timeoutOption("100 millis"))
      yield* waitUntil(
        "the bare driver's statement has ended",
        Effect.map(running(sql, "@effect/sql-pg"), (n) => n === 0)
      )
      assert.isFalse(yield* exists(sql, "cancelled"))
    })
  )

  it.effect("a transaction whose caller gave up rolls back after the statement in flight", () =>
    Effect.gen(function* () {
      const { pool } = yield* TestDatabase
      const sql = yield* pool({ maxConnections: 1 })
      yield* Effect.andThen(slowInsert(sql, "first"), slowInsert(sql, "second")).pipe(
        sql.withTransaction,
        boundedBy(100, () => "late"),
        Effect.flip
      )
      // The pool has one connection: this waits until the transaction is over.
      assert.isFalse(yield* exists(sql, "first"))
      assert.isFalse(yield* exists(sql, "second"))
    })
  )

  it.effect("on a frozen backend the caller leaves at its deadline, and the pool replaces the connection", () =>
    Effect.gen(function* () {
      const { pool } = yield* TestDatabase
      const sql = yield* pool({ maxConnections: 1, answerTimeout: "500 millis" })
      const [backend] = yield* sql<{ pid: number }>`SELECT pg_backend_pid() AS pid`
      const pid = backend?.pid ?? 0
      yield* Effect.acquireRelease(
        Effect.sync(() => process.kill(pid, "SIGSTOP")),
        () => Effect.sync(() => process.kill(pid, "SIGCONT"))
      )
      const { millis } = yield* timed(
        sql`SELECT 1`.pipe(
          boundedBy(200, () => "late"),
          Effect.flip
        )
      )
      assert.isBelow(millis, 450)
      // Waits for the dropped connection's place in the pool.
      assert.deepStrictEqual(yield* sql`SELECT pg_backend_pid() <> ${pid} AS other`, [{ other: true }])
    })
  )

  it.effect("the deadline covers the wait for a connection of the pool", () =>
    Effect.gen(function* () {
      const { pool } = yield* TestDatabase
      const sql = yield* pool({ maxConnections: 1 })
      const busy = yield* Effect.forkChild(sql`SELECT pg_sleep(1)`)
      const watch = yield* pool()
      yield* waitUntil(
        "the only connection is busy",
        Effect.map(sqlActive(watch), (n) => n > 0)
      )
      const { millis } = yield* timed(
        sql`SELECT 1`.pipe(
          boundedBy(100, () => "late"),
          Effect.flip
        )
      )
      assert.isBelow(millis, 400)
      yield* Fiber.join(busy)
    })
  )

  it.effect("a connection that owes an answer for too long is dropped, and says that the outcome is unknown", () =>
    Effect.gen(function* () {
      const { pool } = yield* TestDatabase
      const sql = yield* pool({ answerTimeout: "200 millis" })
      const error = yield* Effect.flip(sql`SELECT pg_sleep(5)`)
      const failure = Pg.classify(error)
      assert.strictEqual(failure._tag, "Outage")
      assert.strictEqual(failure._tag === "Outage" && failure.effect, "unknown")
      // An idle connection owes nothing.
      const [before] = yield* sql`SELECT pg_backend_pid() AS pid`
      yield* Effect.sleep("500 millis")
      const [after] = yield* sql`SELECT pg_backend_pid() AS pid`
      assert.deepStrictEqual(after, before)
    })
  )

  it.effect("failures are told apart: refusals with code and constraint, outages, and our own bugs", () =>
    Effect.gen(function* () {
      const { pool } = yield* TestDatabase
      const sql = yield* pool()
      const meaning = (statement: Effect.Effect<unknown, SqlError.SqlError>) =>
        Effect.map(Effect.flip(statement), (error) => {
          const { message: _, ...failure } = Pg.classify(error)
          return failure
        })
      yield* sql`INSERT INTO note (text, size) VALUES ('once', 1)`
      assert.deepStrictEqual(yield* meaning(sql`INSERT INTO note (text, size) VALUES ('once', 1)`), {
        _tag: "Sqlstate",
        code: "23505",
        constraint: "note_text_key"
      })
      assert.deepStrictEqual(yield* meaning(sql`INSERT INTO note (text, size) VALUES ('minus', -1)`), {
        _tag: "Sqlstate",
        code: "23514",
        constraint: "note_size_check"
      })
      for (const code of ["DL001", "P0001"]) {
        assert.deepStrictEqual(yield* meaning(sql`SELECT refuse(${code})`), {
          _tag: "Sqlstate",
          code,
          constraint: undefined
        })
      }
      for (const code of ["57014", "40001", "40P01", "53300", "55P03", "25006"]) {
        assert.deepStrictEqual(yield* meaning(sql`SELECT refuse(${code})`), { _tag: "Outage", code, effect: "none" })
      }
      for (const code of ["57P01", "57P03", "08006"]) {
        assert.deepStrictEqual(yield* meaning(sql`SELECT refuse(${code})`), { _tag: "Outage", code, effect: "unknown" })
      }
      assert.deepStrictEqual(yield* meaning(sql`SELEC 1`), { _tag: "Bug", code: "42601" })
      assert.deepStrictEqual(yield* meaning(sql`SELECT 1 / 0`), { _tag: "Bug", code: "22012" })
      assert.deepStrictEqual(yield* meaning(sql`SELECT pg_terminate_backend(pg_backend_pid())`), {
        _tag: "Outage",
        // The server said 57P01, but the driver reports only the end of the connection.
        code: undefined,
        effect: "unknown"
      })
      const nowhere = yield* pool({ url: Redacted.make("postgres://postgres@127.0.0.1:1/postgres") })
      assert.deepStrictEqual(yield* meaning(nowhere`SELECT 1`), { _tag: "Outage", code: undefined, effect: "none" })
    })
  )

  it.effect("a listener listens again after its connection was lost, and says so", () =>
    Effect.gen(function* () {
      const { url, pool } = yield* TestDatabase
      const sql = yield* pool()
      const heard = yield* Queue.unbounded<string>()
      yield* Pg.listen({ url, applicationName: "listener" }, "news").pipe(
        Stream.runForEach((payload) => Queue.offer(heard, payload)),
        Effect.forkScoped
      )
      assert.strictEqual(yield* Queue.take(heard), "")
      yield* sql.notify("news", "one")
      assert.strictEqual(yield* Queue.take(heard), "one")
      yield* sql`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'listener'`
      assert.strictEqual(yield* Queue.take(heard), "")
      yield* sql.notify("news", "two")
      assert.strictEqual(yield* Queue.take(heard), "two")
    })
  )
})

/** Statements that run in this database now, this one excepted. */
const sqlActive = (sql: PgClient.PgClient) =>
  Effect.map(
    sql`SELECT FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()`,
    (rows) => rows.length
  )

describe("Pg on a server of its own", () => {
  /** A primary whose synchronous standby never answers: every commit is in its log and waits. */
  const withoutStandby = Effect.gen(function* () {
    const server = yield* EmbeddedPostgres.start({
      storage: { kind: "temporary" },
      settings: { synchronous_standby_names: "nobody_there" }
    })
    const url = server.url("postgres")
    const local = yield* Pg.make({ url, applicationName: "local", parameters: { synchronous_commit: "local" } })
    yield* local`CREATE TABLE note (text text)`
    const waits = waitUntil(
      "a commit waits for the standby",
      Effect.map(local`SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'`, (rows) => rows.length > 0)
    )
    return { url, local, waits }
  })
  const insert = (sql: PgClient.PgClient) => sql`INSERT INTO note VALUES ('unconfirmed')`

  it.live("a commit that the standby has not confirmed stays invisible when its caller gives up", () =>
    Effect.gen(function* () {
      const { url, local, waits } = yield* withoutStandby
      const sql = yield* Pg.make({ url, applicationName: "writer", answerTimeout: "1 second" })
      for (const write of [insert(sql), sql.withTransaction(insert(sql))]) {
        assert.strictEqual(
          yield* write.pipe(
            boundedBy(200, () => "late"),
            Effect.flip
          ),
          "late"
        )
        yield* waits
      }
      const failure = Pg.classify(yield* Effect.flip(insert(sql)))
      assert.strictEqual(failure._tag === "Outage" && failure.effect, "unknown")
      assert.deepStrictEqual(yield* local`SELECT * FROM note`, [])
    })
  )

  it.live("negative control: the bare driver turns the same wait into a local commit", () =>
    Effect.gen(function* () {
      const { url, local } = yield* withoutStandby
      const bare = yield* bareClient(url)
      yield* insert(bare).pipe(Effect.timeoutOption("200 millis"))
      yield* waitUntil(
        "the row shows",
        Effect.map(local`SELECT FROM note`, (rows) => rows.length > 0)
      )
    })
  )

  it.live("kill -9 of the server under load: nothing acknowledged is lost, nothing hangs, and the pool recovers", () =>
    Effect.gen(function* () {
      const server = yield* EmbeddedPostgres.start({ storage: { kind: "temporary" } })
      const sql = yield* Pg.make({ url: server.url("postgres"), applicationName: "load", answerTimeout: "2 seconds" })
      yield* sql`CREATE TABLE written (id int PRIMARY KEY)`
      const acknowledged: Array<number> = []
      let next = 0
      let failures = 0
      const writer = Effect.suspend(() => {
        const id = next++
        return Effect.matchEffect(sql`INSERT INTO written VALUES (${id})`, {
          onSuccess: () => Effect.sync(() => acknowledged.push(id)),
          onFailure: (error) => {
            assert.strictEqual(Pg.classify(error)._tag, "Outage")
            failures++
            return Effect.sleep("10 millis")
          }
        })
      })
      yield* Effect.forEach([1, 2, 3, 4, 5, 6], () => Effect.forkScoped(Effect.forever(writer)))
      const rounds = 3
      for (let round = 0; round < rounds; round++) {
        const before = acknowledged.length
        const failed = failures
        yield* waitUntil(
          "writes succeed",
          Effect.sync(() => acknowledged.length > before + 50)
        )
        yield* server.kill
        const promised = [...acknowledged]
        yield* waitUntil(
          "writes fail",
          Effect.sync(() => failures > failed)
        )
        yield* server.restart
        const rows = yield* sql<{ id: number }>`SELECT id FROM written`.pipe(Effect.retry(Schedule.spaced("50 millis")))
        const present = new Set(rows.map(({ id }) => id))
        assert.deepStrictEqual(
          promised.filter((id) => !present.has(id)),
          []
        )
      }
    })
  )

  const openssl = spawnSync("openssl", ["version"]).status === 0

  it.live.skipIf(!openssl)("over TLS the certificate is verified, and nothing is cancelled either", () =>
    Effect.gen(function* () {
      const directory = yield* Effect.acquireRelease(
        Effect.promise(() => fs.mkdtemp(path.join(os.tmpdir(), "dlock-tls-"))),
        (made) => Effect.promise(() => fs.rm(made, { recursive: true }))
      )
      const [key, cert] = [path.join(directory, "key.pem"), path.join(directory, "cert.pem")]
      const request =
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
      spawnSync("openssl", [...request.split(" "), "-keyout", key, "-out", cert])
      const owner = process.getuid?.() === 0 ? 65_534 : undefined
      yield* Effect.promise(() =>
        fs.chmod(directory, 0o755).then(() => (owner === undefined ? undefined : fs.chown(key, owner, owner)))
      )
      const server = yield* EmbeddedPostgres.start({
        storage: { kind: "temporary" },
        fast: true,
        settings: { ssl: "on", ssl_cert_file: cert, ssl_key_file: key }
      })
      const url = Redacted.make(`${Redacted.value(server.url("postgres"))}?sslmode=require`)
      const unverified = yield* Pg.make({ url, applicationName: "unverified" })
      assert.include((yield* Effect.flip(unverified`SELECT 1`)).reason.cause, { code: "DEPTH_ZERO_SELF_SIGNED_CERT" })

      const ca = yield* Effect.promise(() => fs.readFile(cert, "utf8"))
      const sql = yield* Pg.make({ url, applicationName: "verified", tls: { ca } })
      assert.deepStrictEqual(yield* sql`SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()`, [{ ssl: true }])
      yield* sql`CREATE TABLE note (text text, size int)`
      yield* slowInsert(sql, "given up").pipe(
        boundedBy(100, () => "late"),
        Effect.flip
      )
      yield* waitUntil("the write is committed", exists(sql, "given up"))
    })
  )
})
