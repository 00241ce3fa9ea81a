/** The payout executor as a process: its lock client, the services it asks, and its management port. */
import { Deferred, Effect, Layer } from "effect"
import { OwnerId } from "../../core/lock/Lock.ts"
import * as Metrics from "../../core/Metrics.ts"
import * as LockClient from "../lock-client/LockClient.ts"
import * as HttpServer from "../platform/HttpServer.ts"
import { Draining } from "../platform/Management.ts"
import * as RemoteServices from "../platform/RemoteServices.ts"
import { type ConfigProblem, ServiceConfig } from "../platform/ServiceConfig.ts"
import * as PayoutExecutor from "./PayoutExecutor.ts"

export const layer: Layer.Layer<never, ConfigProblem, ServiceConfig | Draining> = Layer.unwrap(
  Effect.map(ServiceConfig, ({ instance, settings, staleHolder }) => {
    const actor = OwnerId.make(instance)
    const locks = LockClient.layer({
      ownerId: actor,
      settings: settings.client,
      sessionTtlMillis: settings.lock.sessionTtlMillis,
      lockTtlMillis: settings.lock.defaultTtlMillis
    })
    const executor = PayoutExecutor.layer({
      actor,
      settings: settings.executor,
      retry: settings.client.retry,
      staleHolder
    }).pipe(Layer.provide(locks))
    // Stopping, in this order: no more polls; the payouts under way are finished; the session is closed, which frees its
    // grants; the management port goes last.
    return running.pipe(Layer.provide(executor), Layer.provideMerge(HttpServer.serveManagement()))
  })
).pipe(Layer.provide(RemoteServices.layer))

const running = Layer.effectDiscard(
  Effect.gen(function* () {
    const executor = yield* PayoutExecutor.PayoutExecutor
    const draining = yield* Draining
    yield* Metrics.register(Metrics.lockClient, Metrics.lock.tokenRegression)
    yield* Effect.addFinalizer(() =>
      Effect.andThen(Deferred.succeed(draining, undefined), Effect.andThen(Effect.logInfo("draining"), executor.drain))
    )
    yield* Effect.forkScoped(executor.run)
  })
)
