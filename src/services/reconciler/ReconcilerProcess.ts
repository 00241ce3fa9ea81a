/** The reconciler as a process: its lock client, the services it asks, and its management port. */
import { Effect, Layer } from "effect"
import { OwnerId } from "../../core/lock/Lock.ts"
import * as Metrics from "../../core/Metrics.ts"
import * as LockClient from "../lock-client/LockClient.ts"
import * as HttpServer from "../platform/HttpServer.ts"
import type { Draining } from "../platform/Management.ts"
import * as RemoteServices from "../platform/RemoteServices.ts"
import { type ConfigProblem, ServiceConfig } from "../platform/ServiceConfig.ts"
import * as Reconciler from "./Reconciler.ts"

export const layer: Layer.Layer<never, ConfigProblem, ServiceConfig | Draining> = Layer.unwrap(
  Effect.map(ServiceConfig, ({ instance, settings }) => {
    const actor = OwnerId.make(instance)
    const locks = LockClient.layer({
      ownerId: actor,
      settings: settings.client,
      sessionTtlMillis: settings.lock.sessionTtlMillis,
      lockTtlMillis: settings.lock.defaultTtlMillis
    })
    const reconciler = Reconciler.layer({ actor, settings: settings.reconcile }).pipe(Layer.provide(locks))
    return running.pipe(Layer.provide(reconciler), Layer.provideMerge(HttpServer.serveManagement()))
  })
).pipe(Layer.provide(RemoteServices.layer))

/** A pass that is cut short changes nothing that the next one, here or elsewhere, does not find again. */
const running = Layer.effectDiscard(
  Effect.gen(function* () {
    const reconciler = yield* Reconciler.Reconciler
    yield* Metrics.register(Metrics.lockClient, Metrics.reconciler, Metrics.railEvidence)
    yield* Effect.forkScoped(reconciler.run)
  })
)
