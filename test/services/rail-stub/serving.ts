import { ConfigProvider, Deferred, Effect, Exit, Layer, Logger, Metric, References, Scope } from "effect"
import * as ServiceConfig from "../../../src/services/platform/ServiceConfig.ts"

export interface Serving {
  readonly url: string
  readonly managementUrl: string
  /** As SIGTERM does. */
  readonly stop: Effect.Effect<void>
  /** Every line so far: message and annotations. */
  readonly log: ReadonlyArray<Readonly<Record<string, unknown>>>
}

/** A service in this process, as its own process would run it, on free ports; stops with the scope. */
export const serving = <E>(
  service: ServiceConfig.ServiceName,
  layer: Layer.Layer<never, E, ServiceConfig.ServiceConfig>,
  environment: Readonly<Record<string, string>> = {}
): Effect.Effect<Serving, E | ServiceConfig.ConfigProblem, Scope.Scope> =>
  Effect.gen(function* () {
    const log: Array<Readonly<Record<string, unknown>>> = []
    const ports = yield* Deferred.make<{ readonly port: number; readonly managementPort: number }>()
    const logger = Logger.make<unknown, void>(({ fiber, logLevel, message }) => {
      const fields = { ...fiber.getRef(References.CurrentLogAnnotations) }
      log.push({ level: logLevel, message: String(Array.isArray(message) ? message[0] : message), ...fields })
      if (fields["event"] === "listening") {
        Deferred.doneUnsafe(ports, Effect.succeed(fields as { port: number; managementPort: number }))
      }
    })
    const scope = yield* Scope.make()
    yield* Effect.addFinalizer(() => Scope.close(scope, Exit.void))
    yield* Layer.buildWithScope(
      layer.pipe(
        Layer.provide(ServiceConfig.layer(service)),
        Layer.provide(
          Layer.mergeAll(
            Logger.layer([logger]),
            ConfigProvider.layer(
              ConfigProvider.fromEnvRecord({ HTTP_PORT: "0", MANAGEMENT_PORT: "0", ...environment })
            ),
            Layer.succeed(Metric.MetricRegistry, new Map())
          )
        )
      ),
      scope
    )
    const { managementPort, port } = yield* Deferred.await(ports)
    return {
      url: `http://127.0.0.1:${port}`,
      managementUrl: `http://127.0.0.1:${managementPort}`,
      stop: Scope.close(scope, Exit.void),
      log
    }
  })
