// @effect-diagnostics nodeBuiltinImport:off
/** What is benched: a backend with the store on it, and a lock-server process with its clients. */
import * as NodeHttpClient from "@effect/platform-node/NodeHttpClient"
import { Context, Effect, Layer, Redacted, type Scope } from "effect"
import { HttpClient } from "effect/http"
import { noop } from "cockatiel"
import { Etcd3 } from "etcd3"
import { LockKey, OwnerId } from "../core/lock/Lock.ts"
import type { LockApi } from "../core/lock/LockApi.ts"
import type { LockStore } from "../core/lock/LockStore.ts"
import { defaults, limits } from "../core/Settings.ts"
import * as HttpLockApi from "../services/api/HttpLockApi.ts"
import * as LockClient from "../services/lock-client/LockClient.ts"
import * as EtcdLockStore from "../services/lock-server/EtcdLockStore.ts"
import * as PgLockStore from "../services/lock-server/PgLockStore.ts"
import * as EmbeddedEtcd from "../services/platform/EmbeddedEtcd.ts"
import * as EmbeddedPostgres from "../services/platform/EmbeddedPostgres.ts"
import * as Loopback from "../services/platform/Loopback.ts"
import * as Migrations from "../services/platform/Migrations.ts"
import * as Pg from "../services/platform/Pg.ts"
import type { Work } from "./BenchDriver.ts"
import * as BenchSubstrate from "./BenchSubstrate.ts"
import { HarnessError, type Processes, waitUntil } from "./Processes.ts"

type BenchFailure = { readonly _tag: string }

export interface Subject {
  readonly name: string
  readonly work: Work
}

/** A backend, the store on it, and what is compared with it. */
export interface Arena {
  readonly pid: number
  readonly store: Context.Context<LockStore>
  readonly environment: Readonly<Record<string, string>>
  /** kill -9, and up again. */
  readonly crash: Effect.Effect<void, BenchFailure>
  /** What it holds, by name: connections, leases, rows of each table. */
  readonly kept: Effect.Effect<Readonly<Record<string, number>>, BenchFailure>
  readonly subjects: (clients: number) => Effect.Effect<ReadonlyArray<Subject>, BenchFailure, Scope.Scope | LockStore>
}

// -----------------------------------------------------------------------------
// backends
// -----------------------------------------------------------------------------

const timeoutMillis = defaults.lock.backendTimeoutMillis

export const pgArena = Effect.gen(function* () {
  const postgres = yield* EmbeddedPostgres.start({ storage: { kind: "temporary" } })
  const database = "lockdb"
  yield* Migrations.ensureDatabase({ adminUrl: postgres.url("postgres"), database })
  const url = postgres.url(database)
  yield* Migrations.migrate({ url, directory: PgLockStore.MIGRATIONS })
  const sql = yield* Pg.make({ url, applicationName: "bench-kept", maxConnections: 1 })
  const arena: Arena = {
    pid: (yield* postgres.pid) ?? 0,
    store: yield* Layer.build(PgLockStore.layer({ url, timeoutMillis, applicationName: "bench-store" })),
    environment: { LOCK_BACKEND: "pg", LOCK_PG_URL: Redacted.value(url), DLOCK_MIGRATE: "false" },
    crash: Effect.andThen(postgres.kill, postgres.restart),
    kept: sql<{ readonly name: string; readonly count: number }>`
      SELECT 'connections' AS name, count(*)::int4 AS count FROM pg_stat_activity
        WHERE datname = ${database} AND pid <> pg_backend_pid()
      UNION ALL SELECT 'lock_grant rows', count(*)::int4 FROM lock.lock_grant
      UNION ALL SELECT 'lock_session rows (ended ones are remembered)', count(*)::int4 FROM lock.lock_session
      UNION ALL SELECT 'lock_untold rows', count(*)::int4 FROM lock.lock_untold
      UNION ALL SELECT 'lock_event rows (audit)', count(*)::int4 FROM lock.lock_event`.pipe(
      Effect.map((rows) => Object.fromEntries(rows.map(({ count, name }) => [name, count])))
    ),
    subjects: (clients) =>
      Effect.all([
        Effect.map(BenchSubstrate.pgBare(url, clients), (work) => ({ name: "bare", work })),
        Effect.map(BenchSubstrate.pgUpsert(url), (work) => ({ name: "upsert", work })),
        Effect.map(BenchSubstrate.pgAdvisory(url), (work) => ({ name: "advisory", work }))
      ])
  }
  return arena
})

export const etcdArena = Effect.gen(function* () {
  const etcd = yield* EmbeddedEtcd.start({ storage: { kind: "temporary" } })
  const endpoints = [etcd.endpoint]
  const client = yield* Effect.acquireRelease(
    Effect.sync(() => new Etcd3({ hosts: endpoints, faultHandling: { global: noop, host: () => noop } })),
    (one) => Effect.sync(() => one.close())
  )
  const ask = <A>(run: () => Promise<A>) =>
    Effect.tryPromise({ try: run, catch: (cause) => new HarnessError({ step: "etcd", message: String(cause) }) })
  const arena: Arena = {
    pid: (yield* etcd.pid) ?? 0,
    store: yield* Layer.build(EtcdLockStore.layer({ endpoints, timeoutMillis, allowOld: true })),
    environment: {
      LOCK_BACKEND: "etcd",
      LOCK_ETCD_ENDPOINTS: etcd.endpoint,
      LOCK_ETCD_ALLOW_OLD: "true"
    },
    crash: Effect.andThen(etcd.kill, etcd.restart),
    kept: Effect.gen(function* () {
      const { leases } = yield* ask(() => client.leaseClient.leaseLeases())
      const all = { key: Buffer.from("\0"), range_end: Buffer.from("\0"), count_only: true }
      const { count } = yield* ask(() => client.kv.range(all))
      const lasting = yield* Effect.forEach(leases, ({ ID }) => ask(() => client.leaseClient.leaseTimeToLive({ ID })), {
        concurrency: 8
      })
      // The store remembers for minutes; a session or a grant asks for seconds.
      const memory = lasting.filter(({ grantedTTL }) => Number(grantedTTL) > 60).length
      return {
        leases: leases.length - memory,
        "leases (under which ends are remembered)": memory,
        "keys (ends are remembered)": Number(count)
      }
    }),
    subjects: (clients) =>
      Effect.all([
        Effect.map(BenchSubstrate.etcdBare(endpoints, clients), (work) => ({ name: "bare", work })),
        Effect.map(BenchSubstrate.etcdLeased(endpoints), (work) => ({ name: "leased", work })),
        Effect.map(BenchSubstrate.etcdLeases(endpoints), (work) => ({ name: "leases", work }))
      ])
  }
  return arena
})

// -----------------------------------------------------------------------------
// the service
// -----------------------------------------------------------------------------

export interface Server {
  readonly pid: number
  readonly api: Context.Context<LockApi>
}

export const startServer = Effect.fnUntraced(function* (
  world: Processes,
  environment: Readonly<Record<string, string>>
) {
  const [port, managementPort] = [yield* freePort, yield* freePort]
  const service = yield* world.start("lock-server", ["lock-server"], {
    HTTP_PORT: String(port),
    MANAGEMENT_PORT: String(managementPort),
    // Two lines a pair would be read and kept by this process.
    LOG_LEVEL: "warn",
    ...environment
  })
  const http = yield* Layer.build(NodeHttpClient.layerUndici)
  const client = Context.get(http, HttpClient.HttpClient)
  yield* waitUntil(
    "lock-server is ready",
    client.get(`http://127.0.0.1:${managementPort}/actuator/health/readiness`).pipe(
      Effect.map(({ status }) => status === 200),
      Effect.orElseSucceed(() => false)
    ),
    "30 seconds"
  )
  const api = yield* Layer.build(
    HttpLockApi.layer({
      url: `http://127.0.0.1:${port}`,
      callTimeoutMillis: defaults.client.callTimeoutMillis
    }).pipe(Layer.provide(Layer.succeedContext(http)))
  )
  const server: Server = { pid: service.pid, api }
  return server
})

const freePort = Effect.flatMap(Loopback.freePort, (port) =>
  Effect.mapError(Effect.fromOption(port), () => new HarnessError({ step: "free port", message: "there is none" }))
)

/** A client each, as so many processes would have: its own owner and session. (Heartbeats are not what is measured.) */
export const sdk = Effect.fnUntraced(function* ({ api }: Server, clients: number) {
  const locks = yield* Effect.forEach(
    Array.from({ length: clients }, (_, i) => i),
    (i) => LockClient.make({ ownerId: OwnerId.make(`sdk-${i}`), sessionTtlMillis: limits.sessionTtlMillis.max }),
    { concurrency: 8 }
  ).pipe(Effect.provideContext(api))
  const work: Work = (client) =>
    locks[client]?.withLock(LockKey.make(`bench:sdk:${client}`))(() => Effect.void) ?? Effect.void
  return work
})
