/**
 * The lock backends of an experiment, each with its outage: PostgreSQL or etcd, as one server that is killed and comes back,
 * or as several of which the leader is killed and another takes over. And what each can tell of every grant afterwards.
 */
import { Effect, Redacted, type Scope } from "effect"
import type { LockEvent } from "../core/History.ts"
import * as EmbeddedPostgres from "../services/platform/EmbeddedPostgres.ts"
import * as Migrations from "../services/platform/Migrations.ts"
import * as Pg from "../services/platform/Pg.ts"
import * as DataCopy from "./DataCopy.ts"
import * as PgPair from "./PgPair.ts"
import { HarnessError, waitUntil } from "./Processes.ts"

export type BackendKind = "pg" | "etcd"

export interface LockBackend {
  readonly kind: BackendKind
  /** Several servers: killing it is a failover, not an outage that lasts. */
  readonly replicated: boolean
  /** Where it is seen from here. Absent: 127.0.0.1. */
  readonly host?: string
  /** Where its clients find it; what has failed over has moved. */
  readonly ports: Effect.Effect<ReadonlyArray<number>>
  /** Settings of a lock service that reaches it at these ports. */
  readonly settings: (ports: ReadonlyArray<number>) => Readonly<Record<string, string>>
  /** SIGKILL to the one that leads, and proof that it is gone. */
  readonly kill: Effect.Effect<string, HarnessError>
  /** Whatever it takes until it serves again, and proof that it does. */
  readonly recover: Effect.Effect<string, HarnessError>
  /**
   * The audit of these keys and of the sessions that held them, in commit order. Of a backend that was put back to a copy:
   * that of its first life to its end, then what came after in the second.
   */
  readonly events: (keys: ReadonlySet<string>) => Effect.Effect<ReadonlyArray<LockEvent>, HarnessError>
  /** Absent: its data are not in our hands. */
  readonly backup?: Backup
}

/** What makes tokens go back: the backend's data are replaced by a copy of earlier ones. */
export interface Backup {
  /** Copies the data while the server is down; it serves again afterwards. */
  readonly take: Effect.Effect<string, HarnessError>
  /** Kills the server, puts the copy in the place of its data, starts it. While no lock service runs: its audit is read before. */
  readonly putBack: Effect.Effect<string, HarnessError>
}

/** What an audit says of these keys, and of the sessions that ever held one of them. */
export const concerning = (events: ReadonlyArray<LockEvent>, keys: ReadonlySet<string>): ReadonlyArray<LockEvent> => {
  const held = new Set(
    events.flatMap(({ key, sessionId }) => (key !== null && keys.has(key) && sessionId !== null ? [sessionId] : []))
  )
  return events.filter(({ key, sessionId }) =>
    key === null ? sessionId !== null && held.has(sessionId) : keys.has(key)
  )
}

export const wrong = (step: string) => (cause: unknown) =>
  cause instanceof HarnessError
    ? cause
    : new HarnessError({ step, message: cause instanceof Error ? cause.message : String(cause) })

export const start = (kind: BackendKind, replicated: boolean): Effect.Effect<LockBackend, HarnessError, Scope.Scope> =>
  kind === "pg"
    ? replicated
      ? Effect.mapError(pgPair, wrong("start two PostgreSQL servers"))
      : Effect.mapError(pgSingle, wrong("start PostgreSQL"))
    : Effect.flatMap(
        // Its client takes 0.2 s to load.
        Effect.promise(() => import("./EtcdBackend.ts")),
        (etcd) => Effect.mapError(etcd.start(replicated), wrong("start etcd"))
      )

// -----------------------------------------------------------------------------
// PostgreSQL
// -----------------------------------------------------------------------------

const pgSettings = (url: (database: string) => Redacted.Redacted, ports: ReadonlyArray<number>) => {
  const address = new URL(Redacted.value(url("lockdb")))
  address.port = String(ports[0])
  return { LOCK_BACKEND: "pg", LOCK_PG_URL: address.href }
}

const lockdbOf = (server: EmbeddedPostgres.EmbeddedServer) =>
  Migrations.ensureDatabase({ adminUrl: server.url("postgres"), database: "lockdb" })

export const gone = (what: string, pid: Effect.Effect<number | undefined>) =>
  waitUntil(
    `${what} is gone`,
    Effect.map(pid, (found) => found === undefined),
    "10 seconds"
  )

const pgSingle = Effect.gen(function* () {
  const server = yield* EmbeddedPostgres.start({ storage: { kind: "temporary" } })
  yield* lockdbOf(server)
  const copy = yield* DataCopy.of(server)
  /** Of lives that were taken back, and how far the copy reached that the present one began with. */
  let before: ReadonlyArray<LockEvent> = []
  let begins = 0
  return {
    kind: "pg",
    replicated: false,
    ports: Effect.succeed([server.port]),
    settings: (ports) => pgSettings(server.url, ports),
    kill: Effect.gen(function* () {
      const pid = yield* server.pid
      yield* server.kill
      yield* gone("PostgreSQL", server.pid)
      return `PostgreSQL ${pid} is gone`
    }).pipe(Effect.mapError(wrong("kill PostgreSQL"))),
    recover: Effect.andThen(
      server.restart,
      Effect.map(server.pid, (pid) => `PostgreSQL ${pid} serves again`)
    ).pipe(Effect.mapError(wrong("restart PostgreSQL"))),
    events: (keys) =>
      Effect.map(
        Effect.suspend(() => pgEvents(server.url("lockdb"), keys, begins)),
        (now) => [...concerning(before, keys), ...now]
      ),
    backup: {
      take: Effect.as(copy.take, "PostgreSQL's data directory was copied while it was down").pipe(
        Effect.mapError(wrong("copy PostgreSQL's data"))
      ),
      putBack: Effect.gen(function* () {
        before = [...before, ...(yield* pgEvents(server.url("lockdb"), undefined, begins))]
        const pid = yield* server.pid
        yield* copy.putBack
        begins = yield* lastEvent(server.url("lockdb"))
        return `PostgreSQL ${pid} was killed, ${yield* server.pid} serves from the copy`
      }).pipe(Effect.mapError(wrong("put PostgreSQL back to its copy")))
    }
  } satisfies LockBackend
})

const pgPair = Effect.gen(function* () {
  const pair = yield* PgPair.start()
  yield* lockdbOf(pair.primary)
  let leader = pair.primary
  return {
    kind: "pg",
    replicated: true,
    ports: Effect.sync(() => [leader.port]),
    settings: (ports) => pgSettings(leader.url, ports),
    kill: Effect.gen(function* () {
      const pid = yield* leader.pid
      yield* leader.kill
      yield* gone("the primary", leader.pid)
      return `the primary ${pid} is gone`
    }).pipe(Effect.mapError(wrong("kill the primary"))),
    recover: Effect.gen(function* () {
      if (leader === pair.standby) {
        // The second outage in a row: nobody is left to take over.
        yield* Effect.mapError(leader.restart, wrong("restart PostgreSQL"))
        return `PostgreSQL ${yield* leader.pid} serves again`
      }
      yield* Effect.mapError(pair.promote, wrong("promote the standby"))
      leader = pair.standby
      return `the standby at port ${leader.port} was promoted`
    }),
    events: (keys) => Effect.suspend(() => pgEvents(leader.url("lockdb"), keys))
  } satisfies LockBackend
})

const lastEvent = Effect.fnUntraced(function* (lockdb: Redacted.Redacted) {
  const lock = yield* Pg.make({ url: lockdb, applicationName: "dlock-harness", maxConnections: 1 })
  const [row] = yield* lock<{ last: number }>`SELECT coalesce(max(event_id), 0)::int4 AS last FROM lock.lock_event`
  return row?.last ?? 0
}, Effect.scoped)

/** The audit of these keys (absent: of all), and of the sessions that ever held one of them, behind this event. */
export const pgEvents = Effect.fnUntraced(
  function* (lockdb: Redacted.Redacted, wanted: ReadonlySet<string> | undefined, behind = 0) {
    const keys = [...(wanted ?? [])]
    const lock = yield* Pg.make({ url: lockdb, applicationName: "dlock-harness", maxConnections: 1 })
    const rows = yield* lock<Record<string, unknown>>`
      SELECT CASE WHEN kind LIKE 'session\_%' THEN 'session_ended' ELSE kind END AS kind,
             lock.ms(at) AS at, lock_key AS "key", fencing_token AS token, session_id AS "sessionId", actor AS "ownerId"
        FROM lock.lock_event e
       WHERE event_id > ${behind}::int4 AND (${wanted === undefined}::bool OR lock_key = ANY(${keys}::text[])
          OR (lock_key IS NULL AND session_id IN (SELECT session_id FROM lock.lock_event WHERE lock_key = ANY(${keys}::text[]))))
       ORDER BY event_id`
    // Decoded with the rest of the history.
    return rows.map((row) => ({ ...row, at: Number(row["at"]), expiresAt: null }) as unknown as LockEvent)
  },
  Effect.scoped,
  Effect.mapError(wrong("read lockdb's audit"))
)
