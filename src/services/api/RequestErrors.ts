/**
 * The middleware that every endpoint carries: it gives the request its trace id and turns a request that does not
 * decode into `ValidationFailed` or `InvalidToken`, before any service code runs. Every typed failure passes here once
 * and is logged at the level of its row.
 */
import { Context, Effect, Layer, Option, SchemaIssue } from "effect"
import { HttpServerRequest, HttpTraceContext } from "effect/http"
import { HttpApiError, HttpApiMiddleware } from "effect/http-api"
import { InvalidToken, ValidationFailed } from "../../core/RequestFailures.ts"
import { activeSpan } from "../../core/Span.ts"
import { randomTraceId, TraceId, withTraceId } from "../../core/TraceId.ts"
import { errors, isWireError, rowOf } from "./ApiError.ts"

/** What any endpoint may answer whatever it is for, besides `ValidationFailed`. */
const aboutNoOperation = [
  "InvalidToken",
  "RouteNotFound",
  "MethodNotAllowed",
  "PayloadTooLarge",
  "UnsupportedMediaType",
  "MalformedRequest",
  "RequestTimeout",
  "HeadersTooLarge",
  "Internal"
] as const

/** What any endpoint may answer before its service is asked, and for a defect. */
export const requestFailures = ["ValidationFailed", ...aboutNoOperation] as const

/** For a client: what says nothing about the operation. The transport, the platform, a defect at the other end. */
export const noAnswer = ["HttpClientError", "SchemaError", ...aboutNoOperation] as const

export class RequestErrors extends HttpApiMiddleware.Service<RequestErrors>()("dlock/services/api/RequestErrors", {
  error: errors(...requestFailures)
}) {}

/** What is set already; the active span's trace id; without tracing the caller's `traceparent`; else a random one. */
export const requestTraceId: Effect.Effect<string> = Effect.withFiber((fiber) => {
  const known = fiber.getRef(TraceId) ?? activeSpan(fiber)?.traceId
  if (known !== undefined) return Effect.succeed(known)
  const request = Context.getOrUndefined(fiber.context, HttpServerRequest.HttpServerRequest)
  const parent = request === undefined ? Option.none() : HttpTraceContext.fromHeaders(request.headers)
  return Option.isSome(parent) ? Effect.succeed(parent.value.traceId) : randomTraceId
})

const issuesOf = SchemaIssue.makeFormatterStandardSchemaV1()

const decodeFailure = (failure: HttpApiError.HttpApiSchemaError): ValidationFailed | InvalidToken => {
  const slot = failure.kind.toLowerCase()
  const fields = issuesOf(failure.cause.issue).issues.map((issue) => ({
    path: [slot, ...(issue.path ?? []).map((step) => String(typeof step === "object" ? step.key : step))].join("."),
    reason: issue.message.slice(0, 300)
  }))
  const token = fields.find((field) => field.path === "headers.x-fencing-token")
  return token !== undefined && fields.length === 1
    ? new InvalidToken({ reason: token.reason })
    : new ValidationFailed({ fields })
}

export const layer = Layer.succeed(RequestErrors, (endpointEffect, { endpoint }) =>
  Effect.flatMap(requestTraceId, (traceId) =>
    Effect.catch(endpointEffect, (failure: unknown) => {
      // A response that does not encode is our own bug: the 500 branch.
      if (
        HttpApiError.HttpApiSchemaError.is(failure) &&
        (failure.kind === "Body" || failure.kind === "ResponseHeaders")
      ) {
        return Effect.die(failure)
      }
      const error = HttpApiError.HttpApiSchemaError.is(failure) ? decodeFailure(failure) : failure
      if (!isWireError(error)) return Effect.die(error)
      const row = rowOf(error)
      // A revoke that expected another token met no protected write: nobody acted after losing a lock.
      const level = error._tag === "FencedOut" && error.point === "lock" ? "Warn" : row.log
      return Effect.logWithLevel(level)(row.message(error)).pipe(
        Effect.annotateLogs({ code: row.code, endpoint: endpoint.identifier, traceId }),
        // The endpoint's own failures pass unchanged; its type names them, the middleware's names only its additions.
        // @effect-diagnostics-next-line unsafeEffectTypeAssertion:off
        Effect.andThen(Effect.fail(error as ValidationFailed))
      )
    }).pipe(withTraceId(traceId))
  )
)
