// @effect-diagnostics nodeBuiltinImport:off
/**
 * How a process is reached: its surface on the service port, its `/actuator` (and `/admin`) on the management port.
 *
 * Every answer wears the envelope, also those which no route gives: broken HTTP, headers too large, a request too slow,
 * a method that HTTP knows and we do not. Nothing that a client sends or leaves out keeps a connection for ever.
 *
 * Stopping: the ports stay, new connections are refused, what is under way is finished, within a bound; then whatever
 * still runs is interrupted and answered BACKEND_UNAVAILABLE. The management port goes last.
 */
import * as NodeHttpServer from "@effect/platform-node/NodeHttpServer"
import { Clock, Deferred, Effect, Layer, Metric, type Scope } from "effect"
import { HttpRouter, HttpServer, HttpServerRequest, HttpServerResponse } from "effect/http"
import { type HttpApi, HttpApiBuilder, type HttpApiGroup } from "effect/http-api"
import * as Http from "node:http"
import type { Duplex } from "node:stream"
import * as Metrics from "../../core/Metrics.ts"
import {
  ENVELOPE_CONTENT_TYPE,
  HeadersTooLarge,
  MalformedRequest,
  MethodNotAllowed,
  RequestTimeout,
  rowOf,
  type WireError
} from "../api/ApiError.ts"
import * as Envelope from "../api/Envelope.ts"
import { backendUnavailable } from "../../core/lock/LockErrors.ts"
import * as RequestErrors from "../api/RequestErrors.ts"
import * as Management from "./Management.ts"
import { announceExperiments, type ConfigProblem, configProblem, ServiceConfig } from "./ServiceConfig.ts"

/** How long requests under way may take to finish once the process was told to stop, unless said otherwise. */
const drainMillis = 10_000

export interface AdminRoutes<E, R> {
  /** For 404 and 405, and the names in metrics. */
  readonly routes: ReadonlyArray<Envelope.RoutePattern>
  /** Adds them to the router. */
  readonly layer: Layer.Layer<never, E, R>
}

type Platform = HttpRouter.HttpRouter | Layer.Success<typeof NodeHttpServer.layerHttpServices>
type Needs = ServiceConfig | Management.Readiness | Management.Draining

/**
 * Serves a surface on the service port and the management routes on the management port; logs `listening` with the
 * ports once both are bound. `handlers` is what `HttpApiBuilder.group` made for each group of the surface.
 */
export const serve = <
  Id extends string,
  Groups extends HttpApiGroup.Constraint,
  E,
  R,
  AE = never,
  AR = never
>(options: {
  readonly api: HttpApi.HttpApi<Id, Groups>
  readonly handlers: Layer.Layer<HttpApiGroup.ToService<Id, Groups>, E, R>
  readonly admin?: AdminRoutes<AE, AR>
  readonly drainMillis?: number
}): Layer.Layer<
  never,
  ConfigProblem | E | AE,
  Needs | Exclude<Exclude<R, RequestErrors.RequestErrors> | AR, Platform>
> => {
  const app = HttpApiBuilder.layer(options.api, { openapiPath: "/openapi.json" }).pipe(
    Layer.provide(options.handlers),
    Layer.provide(RequestErrors.layer)
  )
  const routes: ReadonlyArray<Envelope.RoutePattern> = [
    ...Envelope.routesOf(options.api),
    ["GET", "/openapi.json"],
    ...Management.actuatorRoutes
  ]
  return Layer.effectDiscard(
    Effect.gen(function* () {
      const config = yield* ServiceConfig
      const managementPort = yield* management(options.admin)
      const port = yield* listen(
        "http.port",
        config.port,
        routes,
        Layer.merge(app, Management.routes),
        options.drainMillis
      )
      yield* listening({ port, managementPort })
    })
  )
}

/** For a process without a surface of its own. */
export const serveManagement = <AE = never, AR = never>(
  admin?: AdminRoutes<AE, AR>
): Layer.Layer<never, ConfigProblem | AE, Needs | Exclude<AR, Platform>> =>
  Layer.effectDiscard(Effect.flatMap(management(admin), (managementPort) => listening({ managementPort })))

const management = <AE, AR>(admin: AdminRoutes<AE, AR> | undefined) =>
  Effect.gen(function* () {
    const config = yield* ServiceConfig
    yield* announceExperiments
    return yield* listen(
      "management.port",
      config.managementPort,
      [...Management.actuatorRoutes, ...(admin?.routes ?? [])],
      admin === undefined ? Management.routes : Layer.merge(Management.routes, admin.layer)
    )
  })

/** The line that tells a parent process, a test or an operator where to find this one. */
const listening = (ports: { readonly port?: number; readonly managementPort: number }) =>
  Effect.gen(function* () {
    const { host, instance, service } = yield* ServiceConfig
    yield* Effect.logInfo("listening").pipe(
      Effect.annotateLogs({ event: "listening", service, instance, host, ...ports, pid: process.pid })
    )
  })

// -----------------------------------------------------------------------------
// one port
// -----------------------------------------------------------------------------

/** Succeeds with the port when requests are being answered on it. */
const listen = <E, R>(
  setting: "http.port" | "management.port",
  wanted: number,
  routes: ReadonlyArray<Envelope.RoutePattern>,
  app: Layer.Layer<never, E, R>,
  drainWithin = drainMillis
): Effect.Effect<number, ConfigProblem | E, Exclude<R, Platform> | ServiceConfig | Management.Draining | Scope.Scope> =>
  Effect.gen(function* () {
    const { host } = yield* ServiceConfig
    const { early, server } = yield* makeNodeServer
    const http = yield* Layer.build(
      NodeHttpServer.layer(() => server, { host, port: wanted, disablePreemptiveShutdown: true })
    ).pipe(
      Effect.catchTag("ServeError", ({ cause }) =>
        Effect.fail(configProblem(setting, String(wanted), `a port that is free on ${host} (${codeOf(cause)})`))
      )
    )
    // Closed in reverse order: drain; interrupt what still runs; cut what is still connected; release the port.
    yield* Effect.addFinalizer(() => Effect.sync(() => server.closeAllConnections()))
    const router = Layer.mergeAll(app, Envelope.layerOf(routes)).pipe(Layer.provideMerge(requestTimer(routes)))
    yield* Layer.build(
      HttpRouter.serve(router, {
        disableLogger: true,
        disableListenLog: true,
        routerConfig: Envelope.routerConfig
      }).pipe(Layer.provide(Envelope.maxBody), Layer.provide(Layer.succeedContext(http)))
    )
    server.off("request", early)
    const draining = yield* Management.Draining
    if (setting === "http.port") yield* Effect.addFinalizer(() => drain(server, draining, drainWithin))
    const { address } = yield* Effect.provideContext(HttpServer.HttpServer, http)
    return address._tag === "UnixPathAddress" ? wanted : address.port
  }) as never

const codeOf = (cause: unknown): string =>
  typeof cause === "object" && cause !== null && "code" in cause ? String(cause.code) : "it can not be bound"

/** No new connection, no new request on an old one; returns when all have left or the time is up. */
const drain = (server: Http.Server, draining: Deferred.Deferred<void>, withinMillis: number): Effect.Effect<void> =>
  Effect.gen(function* () {
    yield* Deferred.succeed(draining, undefined)
    yield* Effect.logInfo("draining").pipe(Effect.annotateLogs({ event: "draining" }))
    let open = true
    server.close(() => {
      open = false
    })
    // A connection that becomes idle later than `close` is closed by nobody else.
    yield* Effect.sync(() => server.closeIdleConnections()).pipe(
      Effect.andThen(Effect.sleep(20)),
      Effect.repeat({ while: () => open }),
      Effect.timeoutOrElse({ duration: withinMillis, orElse: () => Effect.void })
    )
  })

/** Counts every answered request by its route template; a request whose client went away has no status. */
const requestTimer = (routes: ReadonlyArray<Envelope.RoutePattern>) => {
  const pathOf = Envelope.pathTable(routes)
  const methods = new Set(routes.map(([method]) => method))
  return HttpRouter.middleware(
    Effect.map(
      Management.Draining,
      (draining) => (effect) =>
        Effect.flatMap(
          Effect.all([HttpServerRequest.HttpServerRequest, Clock.monotonicTimeNanos]),
          ([request, start]) =>
            Effect.flatMap(effect, (response) =>
              Effect.flatMap(Clock.monotonicTimeNanos, (end) => {
                const metric = Metrics.httpServerRequest(
                  methods.has(request.method) ? request.method : "other",
                  pathOf(request.url)?.path ?? "unmatched",
                  `${Math.trunc(response.status / 100)}xx` as Metrics.StatusClass
                )
                return Effect.as(
                  Metric.update(metric, Number(end - start) / 1e9),
                  Deferred.isDoneUnsafe(draining)
                    ? HttpServerResponse.setHeader(response, "connection", "close")
                    : response
                )
              })
            )
        )
    ),
    { global: true }
  )
}

// -----------------------------------------------------------------------------
// what Node answers by itself, before any route
// -----------------------------------------------------------------------------

const makeNodeServer = Effect.gen(function* () {
  const run = Effect.runSyncWith(yield* Effect.context<never>())
  const server = Http.createServer({
    // The whole request, headers and body, must have arrived by then; checked every second.
    requestTimeout: 10_000,
    headersTimeout: 5_000,
    connectionsCheckingInterval: 1_000,
    // Longer than the idle time of load balancers, so that they and not we close an idle connection.
    keepAliveTimeout: 65_000,
    maxHeaderSize: 8 * 1024,
    // Node would answer a missing Host by itself, with an empty body; nothing here depends on it.
    requireHostHeader: false
  })
  const responding = new WeakMap<Duplex, Http.ServerResponse>()

  const rawAnswer = (socket: Duplex, failure: WireError) => {
    // Half of a response is on its way: nothing can be said any more.
    if (!socket.writable || responding.get(socket)?.headersSent === true) return void socket.destroy()
    const body = run(Envelope.bodyOf(failure))
    const { status } = rowOf(failure)
    const allow = failure._tag === "MethodNotAllowed" ? `allow: ${failure.allow.join(", ")}\r\n` : ""
    socket.end(
      `HTTP/1.1 ${status} ${Http.STATUS_CODES[status]}\r\ncontent-type: ${ENVELOPE_CONTENT_TYPE}\r\n${allow}` +
        `content-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`
    )
    // The peer may never close its half.
    socket.once("finish", () => socket.destroy())
  }

  server.on("request", (request: Http.IncomingMessage, response: Http.ServerResponse) => {
    responding.set(request.socket, response)
    // An answer that ends the connection, or came before the request was read, stays the last word on it.
    response.once("finish", () => {
      if (request.complete && response.shouldKeepAlive) responding.delete(request.socket)
    })
  })
  server.on("clientError", (error: NodeJS.ErrnoException, socket: Duplex) => {
    if (error.code === "ECONNRESET") return void socket.destroy()
    rawAnswer(
      socket,
      error.code === "HPE_HEADER_OVERFLOW"
        ? new HeadersTooLarge()
        : error.code === "ERR_HTTP_REQUEST_TIMEOUT"
          ? new RequestTimeout()
          : new MalformedRequest()
    )
  })
  // Without a listener Node cuts the connection.
  server.on("connect", (_request: Http.IncomingMessage, socket: Duplex) => {
    socket.on("error", () => socket.destroy())
    rawAnswer(socket, new MethodNotAllowed({ allow: ["GET", "HEAD", "POST", "PUT", "DELETE"] }))
  })
  const plain = (failure: WireError) => (_request: Http.IncomingMessage, response: Http.ServerResponse) => {
    const body = run(Envelope.bodyOf(failure))
    response.writeHead(rowOf(failure).status, {
      "content-type": ENVELOPE_CONTENT_TYPE,
      "content-length": Buffer.byteLength(body),
      connection: "close"
    })
    response.end(body)
  }
  // `Expect:` anything but 100-continue; Node would answer 417 with an empty body.
  server.on("checkExpectation", plain(new MalformedRequest()))
  // Between the binding of the port and the first route there would be no listener, and so no answer.
  const early = plain(backendUnavailable("request", "the service is starting"))
  server.on("request", early)
  return { server, early }
})
