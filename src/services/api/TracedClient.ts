/**
 * The trace that a request belongs to, on its way to another service. Where spans are kept, Effect's HTTP client makes one of
 * each request and sends it as `traceparent`; where none are, the id of the trace travels alone.
 */
import { Effect, References, Tracer } from "effect"
import { HttpClient, HttpClientRequest } from "effect/http"
import { activeSpan, spanIdOf, traceparent } from "../../core/Span.ts"
import { TraceId } from "../../core/TraceId.ts"

/**
 * Every request of this client carries a `traceparent`: of the active span, else of the trace id that the caller's own request
 * came with, so that one id is found on both sides, else of a trace of its own.
 */
export const traced = <E, R>(client: HttpClient.HttpClient.With<E, R>): HttpClient.HttpClient.With<E, R> =>
  HttpClient.makeWith<E, R, E, R>(
    (request) =>
      Effect.withFiber((fiber) => {
        if (!fiber.getRef(References.TracerEnabled)) return client.postprocess(Effect.flatMap(request, withTraceparent))
        const sent = client.postprocess(request)
        const traceId = fiber.getRef(TraceId)
        return traceId === undefined || activeSpan(fiber) !== undefined
          ? sent
          : Effect.withParentSpan(sent, Tracer.externalSpan({ traceId, spanId: spanIdOf(traceId), sampled: true }))
      }),
    client.preprocess
  )

const withTraceparent = (request: HttpClientRequest.HttpClientRequest) =>
  Effect.map(traceparent, (value) => HttpClientRequest.setHeader(request, "traceparent", value))
