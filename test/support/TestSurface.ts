/** A small surface, served for real: what every surface has, and nothing of any box. */
import { ConfigProvider, Context, Deferred, Effect, Layer, Logger, Metric, References, Schema } from "effect"
import { HttpApi, HttpApiBuilder, HttpApiEndpoint, HttpApiGroup, HttpApiSchema } from "effect/http-api"
import { LockKey } from "../../src/core/lock/Lock.ts"
import { LockLost } from "../../src/core/lock/LockErrors.ts"
import { errors } from "../../src/services/api/ApiError.ts"
import { RequestErrors } from "../../src/services/api/RequestErrors.ts"
import { limitFromString, tokenHeader } from "../../src/services/api/Wire.ts"
import * as HttpServer from "../../src/services/platform/HttpServer.ts"
import * as Management from "../../src/services/platform/Management.ts"
import * as ServiceConfig from "../../src/services/platform/ServiceConfig.ts"

const Renewed = Schema.Struct({ token: Schema.String, ttlMillis: Schema.NullOr(Schema.Int) })

class ThingsGroup extends HttpApiGroup.make("things").add(
  HttpApiEndpoint.get("list", "/v1/things", {
    query: { limit: Schema.optionalKey(limitFromString(500)) },
    success: Schema.Struct({ limit: Schema.Int })
  }),
  HttpApiEndpoint.post("renew", "/v1/things/:key/renew", {
    params: { key: LockKey },
    headers: tokenHeader,
    payload: [
      HttpApiSchema.NoContent,
      Schema.Struct({
        ttlMillis: Schema.optionalKey(Schema.Int.check(Schema.isBetween({ minimum: 1_000, maximum: 9_000 })))
      })
    ],
    success: Renewed,
    error: errors("LockLost")
  }),
  HttpApiEndpoint.post("slow", "/v1/slow", { success: HttpApiSchema.NoContent }),
  HttpApiEndpoint.get("boom", "/v1/boom", { success: HttpApiSchema.NoContent })
) {}

export class TestApi extends HttpApi.make("test-surface")
  .add(ThingsGroup)
  .middleware(RequestErrors)
  .annotate(HttpApi.ParseOptions, { errors: "all", onExcessProperty: "error" })
  .annotate(HttpApi.HeadersParseOptions, { errors: "all" }) {}

/** What a test holds of the handlers: when a slow request has come in, and when it may go on. */
export class SlowRequests extends Context.Service<
  SlowRequests,
  { readonly arrived: Deferred.Deferred<void>; readonly release: Deferred.Deferred<void> }
>()("dlock/test/support/SlowRequests") {}

export const secret = "the secret of a defect"

const handlers = HttpApiBuilder.group(
  TestApi,
  "things",
  Effect.fnUntraced(function* (group) {
    const slow = yield* SlowRequests
    return group.handleAll({
      list: ({ query }) => Effect.succeed({ limit: query.limit ?? 0 }),
      renew: ({ headers, params, payload }) =>
        params.key === "lost"
          ? Effect.fail(new LockLost({ key: params.key, token: headers["x-fencing-token"], reason: "expired" }))
          : Effect.succeed({ token: String(headers["x-fencing-token"]), ttlMillis: payload?.ttlMillis ?? null }),
      slow: () => Effect.andThen(Deferred.succeed(slow.arrived, undefined), Deferred.await(slow.release)),
      boom: () => Effect.die(new Error(secret))
    })
  })
)

export interface Running {
  readonly port: number
  readonly managementPort: number
  readonly url: string
  readonly managementUrl: string
  readonly slow: SlowRequests["Service"]
  /** Everything logged so far. */
  readonly log: ReadonlyArray<{ readonly level: string; readonly message: string; readonly [name: string]: unknown }>
}

export interface StartOptions {
  readonly checks?: ReadonlyArray<Management.ReadinessCheck>
  readonly drainMillis?: number
  readonly service?: ServiceConfig.ServiceName
  readonly environment?: Readonly<Record<string, string>>
}

/** Ends with the scope, as on SIGTERM. */
export const start = Effect.fnUntraced(function* (options: StartOptions = {}) {
  const slow = { arrived: yield* Deferred.make<void>(), release: yield* Deferred.make<void>() }
  const log: Array<Running["log"][number]> = []
  const logger = Logger.make(({ cause, fiber, logLevel, message }) => {
    log.push({
      ...fiber.getRef(References.CurrentLogAnnotations),
      level: logLevel,
      message: String(message),
      cause: cause.reasons
    })
  })
  const environment = { HTTP_PORT: "0", MANAGEMENT_PORT: "0", ...options.environment }
  yield* Layer.build(
    HttpServer.serve({
      api: TestApi,
      handlers: Layer.provide(handlers, Layer.succeed(SlowRequests, slow)),
      drainMillis: options.drainMillis ?? 5_000
    }).pipe(
      Layer.provide([
        Management.Readiness.layer(...(options.checks ?? [])),
        Management.Draining.layer,
        Logger.layer([logger]),
        Layer.succeed(Metric.MetricRegistry, new Map())
      ]),
      Layer.provide(ServiceConfig.layer(options.service ?? "lock-server")),
      Layer.provide(ConfigProvider.layer(ConfigProvider.fromEnvRecord(environment)))
    )
  )
  const ports = log.find(({ event }) => event === "listening")
  const port = Number(ports?.["port"])
  const managementPort = Number(ports?.["managementPort"])
  return {
    port,
    managementPort,
    url: `http://127.0.0.1:${port}`,
    managementUrl: `http://127.0.0.1:${managementPort}`,
    slow,
    log
  } satisfies Running
})
