// @effect-diagnostics nodeBuiltinImport:off
/**
 * lock-server as a process: the surface L1 to L8 over the backend that `lock.backend` names.
 *
 * It listens whether or not the backend is there: without it, it is alive and not ready, answers BACKEND_UNAVAILABLE, and
 * goes on by itself when the backend comes. Only what waiting does not mend ends it.
 */
import { Deferred, Effect, Layer, Redacted, Schedule } from "effect"
import * as fs from "node:fs"
import type { ConnectionOptions } from "node:tls"
import { LockStore } from "../../core/lock/LockStore.ts"
import { LockHttpApi } from "../api/LockHttpApi.ts"
import { database } from "../platform/Database.ts"
import * as HttpServer from "../platform/HttpServer.ts"
import { Draining, Readiness } from "../platform/Management.ts"
import * as Migrations from "../platform/Migrations.ts"
import { configProblem, ServiceConfig, type TlsFiles } from "../platform/ServiceConfig.ts"
import * as AdminHandlers from "./AdminHandlers.ts"
import * as EtcdBackend from "./EtcdBackend.ts"
import * as LockHandlers from "./LockHandlers.ts"
import * as LockService from "./LockService.ts"
import * as PgLockStore from "./PgLockStore.ts"

const readTls = ({ ca, cert, key }: TlsFiles) =>
  Effect.try({
    try: (): ConnectionOptions => ({
      ...(ca === undefined ? {} : { ca: fs.readFileSync(ca) }),
      ...(cert === undefined ? {} : { cert: fs.readFileSync(cert) }),
      ...(key === undefined ? {} : { key: fs.readFileSync(key) })
    }),
    catch: (cause) => configProblem("lock.pg.tls", String(cause), "paths of readable PEM files")
  })

const userOf = (url: Redacted.Redacted) => decodeURIComponent(URL.parse(Redacted.value(url))?.username ?? "")

const pg = Layer.unwrap(
  Effect.gen(function* () {
    const config = yield* ServiceConfig
    const url = yield* database("lockdb", config.lock.pg)
    if (config.migrate && userOf(url) === PgLockStore.ROLE) {
      yield* Effect.logInfo(`${PgLockStore.ROLE} may create no tables: the schema is left to \`migrate lockdb\``)
    } else if (config.migrate) {
      yield* migrate(url)
    }
    return PgLockStore.layer({
      url,
      tls: yield* readTls(config.lock.pg.tls),
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
    const etcd = EtcdBackend.layer
    // Widened by hand: `unwrap` wants one type.
    const chosen: Layer.Layer<LockStore, Layer.Error<typeof pg> | Layer.Error<typeof etcd>, ServiceConfig> =
      lock.backend === "pg" ? pg : etcd
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
