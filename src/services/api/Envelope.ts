/**
 * Everything that does not come out of an endpoint also wears the envelope: unknown routes, other methods, bodies too
 * large or of another type, and defects. No HTML and no empty error body, ever: an HTML 503 breaks the parser of every
 * client.
 */
import { ByteSize, Cause, Effect, Layer, Schema } from "effect"
import {
  FindMyWay,
  HttpIncomingMessage,
  HttpRouter,
  HttpServerError,
  HttpServerRequest,
  HttpServerResponse
} from "effect/http"
import { HttpApi, type HttpApiGroup } from "effect/http-api"
import { backendUnavailable } from "../../core/lock/LockErrors.ts"
import { invalidField } from "../../core/RequestFailures.ts"
import { limits } from "../../core/Settings.ts"
import { withTraceId } from "../../core/TraceId.ts"
import {
  ENVELOPE_CONTENT_TYPE,
  Internal,
  MethodNotAllowed,
  PayloadTooLarge,
  RouteNotFound,
  UnsupportedMediaType,
  wire,
  type WireError,
  type WireTag,
  rowOf
} from "./ApiError.ts"
import { requestTraceId } from "./RequestErrors.ts"

/**
 * The router's own limit of a path parameter is 100 characters; a longer key must be told what is wrong, not 404. And a
 * path is taken as it is: with an empty id, `/v1/payouts/` is not the list of all payouts.
 */
export const routerConfig = { maxParamLength: 4096, ignoreTrailingSlash: false, ignoreDuplicateSlashes: false }

const encoders = new Map<WireTag, (failure: WireError) => Effect.Effect<unknown, Schema.SchemaError>>()

/** The body of one failure, outside any endpoint. */
export const bodyOf = (failure: WireError): Effect.Effect<string> => {
  let encode = encoders.get(failure._tag)
  if (encode === undefined) {
    encode = Schema.encodeUnknownEffect(Schema.toCodecJson(wire(failure._tag)) as Schema.Codec<unknown>)
    encoders.set(failure._tag, encode)
  }
  // The failure is one of ours: that it does not encode is a bug.
  return Effect.map(Effect.orDie(encode(failure)), (body) => JSON.stringify(body))
}

/** The response of one failure, outside any endpoint. */
export const respond = (failure: WireError): Effect.Effect<HttpServerResponse.HttpServerResponse> =>
  Effect.map(bodyOf(failure), (body) =>
    HttpServerResponse.text(body, {
      status: rowOf(failure).status,
      contentType: ENVELOPE_CONTENT_TYPE,
      headers: failure._tag === "MethodNotAllowed" ? { allow: failure.allow.join(", ") } : {}
    })
  )

/** A route as the router knows it: `["GET", "/v1/locks/:key"]`. */
export type RoutePattern = readonly [method: string, path: string]

/** The routes of a surface, from the same value that serves it. */
export const routesOf = <Id extends string, Groups extends HttpApiGroup.Constraint>(
  api: HttpApi.HttpApi<Id, Groups>
): ReadonlyArray<RoutePattern> => {
  const routes: Array<RoutePattern> = []
  HttpApi.reflect(api, {
    onGroup() {},
    onEndpoint({ endpoint }) {
      routes.push([endpoint.method, endpoint.path])
    }
  })
  return routes
}

export interface KnownPath {
  readonly path: string
  readonly methods: ReadonlyArray<string>
}

/** Which pattern an URL belongs to, whatever the method: tells 404 from 405, and names the route in metrics. */
export const pathTable = (routes: ReadonlyArray<RoutePattern>): ((url: string) => KnownPath | undefined) => {
  const byPath = new Map<string, Array<string>>()
  for (const [method, path] of routes) {
    const methods = byPath.get(path) ?? []
    // The router answers HEAD wherever it answers GET.
    methods.push(...(method === "GET" ? ["GET", "HEAD"] : [method]))
    byPath.set(path, methods)
  }
  const router = FindMyWay.make<KnownPath>(routerConfig)
  for (const [path, methods] of byPath) router.on("GET", path as `/${string}`, { path, methods })
  return (url) => router.find("GET", url)?.handler
}

const hasBody = (request: HttpServerRequest.HttpServerRequest): boolean =>
  request.headers["transfer-encoding"] !== undefined || Number(request.headers["content-length"] ?? 0) > 0

const isJson = (contentType: string | undefined): boolean =>
  contentType !== undefined && /^application\/json\s*(;|$)/i.test(contentType.trim())

export const layer = <Id extends string, Groups extends HttpApiGroup.Constraint>(api: HttpApi.HttpApi<Id, Groups>) =>
  layerOf(routesOf(api))

export const layerOf = (routes: ReadonlyArray<RoutePattern>) => {
  const pathOf = pathTable(routes)

  const fromUnknown = (u: unknown, request: HttpServerRequest.HttpServerRequest): WireError => {
    if (HttpServerError.isHttpServerError(u)) {
      switch (u.reason._tag) {
        case "RouteNotFound": {
          const known = pathOf(request.url)
          return known === undefined
            ? new RouteNotFound({ path: (request.url.split("?")[0] ?? "").slice(0, 256) })
            : new MethodNotAllowed({ allow: known.methods })
        }
        case "RequestParseError":
          return u.reason.reason === "BodyTooLarge"
            ? new PayloadTooLarge({ limitBytes: limits.bodyBytes })
            : invalidField("payload", "the body is no readable JSON")
        default:
          return new Internal()
      }
    }
    return new Internal()
  }

  const onFailure = (cause: Cause.Cause<unknown>, request: HttpServerRequest.HttpServerRequest) => {
    if (Cause.hasInterruptsOnly(cause)) {
      const clientGone = cause.reasons.some((reason) => reason.annotations.has(HttpServerError.ClientAbort.key))
      // Nobody reads an answer; or the service stops, and how far the request got is not known.
      // @effect-diagnostics-next-line anyUnknownInErrorContext:off (interruptions only, which have no error)
      return clientGone ? Effect.failCause(cause) : respond(backendUnavailable("request", "the service is stopping"))
    }
    const squashed = Cause.squash(cause)
    if (HttpServerResponse.isHttpServerResponse(squashed)) return onSuccess(squashed, request)
    const failure = fromUnknown(squashed, request)
    return Effect.andThen(
      failure._tag === "Internal" ? Effect.logError("a failure without a row in the error table", cause) : Effect.void,
      respond(failure)
    )
  }

  // Responses that the platform made by itself (415, empty 4xx and 5xx).
  const onSuccess = (response: HttpServerResponse.HttpServerResponse, request: HttpServerRequest.HttpServerRequest) => {
    const contentType = "contentType" in response.body ? response.body.contentType : undefined
    if (
      response.status < 400 ||
      // A health answer has its own body (503 DOWN).
      request.url.startsWith("/actuator/") ||
      contentType === ENVELOPE_CONTENT_TYPE
    ) {
      return Effect.succeed(
        contentType === "application/json"
          ? HttpServerResponse.setHeader(response, "content-type", ENVELOPE_CONTENT_TYPE)
          : response
      )
    }
    switch (response.status) {
      case 413:
        return respond(new PayloadTooLarge({ limitBytes: limits.bodyBytes }))
      case 415:
        return respond(new UnsupportedMediaType({ expected: "application/json" }))
      default:
        return Effect.andThen(
          Effect.logError("a response without an envelope", response.status),
          respond(new Internal())
        )
    }
  }

  return HttpRouter.middleware(
    (effect) =>
      Effect.flatMap(HttpServerRequest.HttpServerRequest, (request) =>
        // Here, around everything: the id in the answer is the one in every log line of the request.
        Effect.flatMap(requestTraceId, (traceId) =>
          (hasBody(request) && !isJson(request.headers["content-type"]) && pathOf(request.url) !== undefined
            ? respond(new UnsupportedMediaType({ expected: "application/json" }))
            : // The type wants the failure channel left alone; answering every failure is the point here.
              // @effect-diagnostics-next-line anyUnknownInErrorContext:off
              (Effect.matchCauseEffect(effect, {
                onFailure: (cause) => onFailure(cause, request),
                onSuccess: (response) => onSuccess(response, request)
              }) as unknown as typeof effect)
          ).pipe(withTraceId(traceId))
        )
      ),
    { global: true }
  )
}

/** To be provided to the layer made by `HttpRouter.serve`: every request fiber inherits it. */
export const maxBody = Layer.succeed(HttpIncomingMessage.MaxBodySize, ByteSize.bytes(limits.bodyBytes))
