/**
 * lock-server as a process: the surface L1 to L8 over the backend that `lock.backend` names.
 *
 * It listens whether or not the backend is there: without it, it is alive and not ready, answers BACKEND_UNAVAILABLE, and
 * goes on by itself when the backend comes. Only what waiting does not mend ends it.
 */
import { Deferred, Effect, Layer, type Redacted, Schedule } from "effect"
import { LockStore } from "../../core/lock/LockStore.ts"
import { LockHttpApi } from "../api/LockHttpApi.ts"
import { database } from "../platform/Database.ts"
import * as HttpServer from "../platform/HttpServer.ts"
import { Draining, Readiness } from "../platform/Management.ts"
import * as Migrations from "../platform/Migrations.ts"
import * as Pg from "../platform/Pg.ts"
import { ServiceConfig } from "../platform/ServiceConfig.ts"
import { readTls } from "../platform/TlsFiles.ts"
import * as AdminHandlers from "./AdminHandlers.ts"
import type * as EtcdBackend from "./EtcdBackend.ts"
import * as LockHandlers from "./LockHandlers.ts"
import * as LockService from "./LockService.ts"
import * as PgLockStore from "./PgLockStore.ts"

const pg = Layer.unwrap(
  Effect.gen(function* () {
    const config = yield* ServiceConfig
    const url = yield* database("lockdb", config.lock.pg)
    if (config.migrate && Pg.userOf(url) === PgLockStore.ROLE) {
      yield* Effect.logInfo(`${PgLockStore.ROLE} may create no tables: the schema is left to \`migrate lockdb\``)
    } else if (config.migrate) {
      yield* migrate(url)
    }
    return PgLockStore.layer({
      url,
      tls: yield* readTls("lock.pg.tls", config.lock.pg.tls),
      timeoutMillis: config.settings.lock.backendTimeoutMillis,
      applicationName: config.instance
    })
  })
)

/** Tried once before anything else starts; while the database is away, again and again behind a service that is not ready. */
const migrate = (url: Redacted.Redacted) => {
  const once = Migrations.migrate({ url, directory: PgLockStore.MIGRATIONS })
  const later = once.pipe(
    Effect.retry({ while: (error) => error.reason === "unavailable", schedule: Schedule.spaced("1 second") }),
    Effect.tapCause((cause) => Effect.logError("lockdb could not be brought up to date: not ready", cause)),
    Effect.ignore
  )
  return Effect.catchIf(
    once,
    (error) => error.reason === "unavailable",
    () => Effect.asVoid(Effect.forkScoped(later))
  )
}

const backend = Layer.unwrap(
  Effect.gen(function* () {
    const { lock } = yield* ServiceConfig
    // Widened by hand: `unwrap` wants one type. etcd's client is loaded (0.2 s) only where it is used.
    const chosen: Layer.Layer<
      LockStore,
      Layer.Error<typeof pg> | Layer.Error<typeof EtcdBackend.layer>,
      ServiceConfig
    > = lock.backend === "pg" ? pg : (yield* Effect.promise(() => import("./EtcdBackend.ts"))).layer
    return chosen
  })
)

const readiness = Layer.effect(
  Readiness,
  Effect.gen(function* () {
    const { lock } = yield* ServiceConfig
    const store = yield* LockStore
    return [{ name: "lockBackend", run: Effect.as(store.ping, { backend: lock.backend }) }]
  })
)

const service = Layer.unwrap(Effect.map(ServiceConfig, ({ settings }) => LockService.layer(settings.lock)))

/** Who waits for a lock would keep a stopping process open: it is answered as soon as the process is told to stop. */
const dismissal = Layer.effectDiscard(
  Effect.gen(function* () {
    const draining = yield* Draining
    const waiters = yield* LockService.LockWaiters
    yield* Effect.forkScoped(Effect.andThen(Deferred.await(draining), waiters.dismiss))
  })
)

export const layer = HttpServer.serve({
  api: LockHttpApi,
  handlers: LockHandlers.layer,
  admin: AdminHandlers
}).pipe(
  // Beneath the ports, so that it outlives their closing.
  Layer.provide(dismissal),
  Layer.provide([service, readiness]),
  Layer.provide(backend)
)
