/**
 * The trace that a request belongs to, on its way to another service. Where spans are kept, Effect's HTTP client makes one of
 * each request and sends it as `traceparent`; where none are, the id of the trace travels alone.
 */
import { Effect, References, Tracer } from "effect"
import { HttpClient, HttpClientRequest } from "effect/http"
import { activeSpan, spanIdOf, traceparent } from "../../core/Span.ts"
import { TraceId } from "../../core/TraceId.ts"

/**
 * Every request of this client carries the `traceparent` of the active span, else of the trace id that its caller works under,
 * so that one id is found on both sides. What belongs to no trace (a heartbeat) begins one where spans are kept; elsewhere the
 * service that is asked gives it an id.
 */
export const traced = <E, R>(client: HttpClient.HttpClient.With<E, R>): HttpClient.HttpClient.With<E, R> =>
  HttpClient.makeWith<E, R, E, R>(
    (request) =>
      Effect.withFiber((fiber) => {
        const traceId = fiber.getRef(TraceId)
        if (traceId === undefined || activeSpan(fiber) !== undefined) return client.postprocess(request)
        return fiber.getRef(References.TracerEnabled)
          ? Effect.withParentSpan(
              client.postprocess(request),
              Tracer.externalSpan({ traceId, spanId: spanIdOf(traceId), sampled: true })
            )
          : client.postprocess(Effect.flatMap(request, withTraceparent))
      }),
    client.preprocess
  )

const withTraceparent = (request: HttpClientRequest.HttpClientRequest) =>
  Effect.map(traceparent, (value) => HttpClientRequest.setHeader(request, "traceparent", value))
