/**
 * Spans that cost nothing where nobody keeps them (`References.TracerEnabled` is off), and the trace id that is there all the
 * same. A span of Effect's own changes the context twice and back, which every fiber below has to look up again, whether or
 * not a tracer is there.
 */
import { Context, Effect, type Fiber, References, Tracer } from "effect"
import { currentTraceId, TraceId } from "./TraceId.ts"

/** A span of that name around the effect, if spans are kept. */
export const spanned =
  (name: string, options?: Tracer.SpanOptionsNoTrace, trace?: Tracer.TraceOptions) =>
  <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.withFiber((fiber) => {
      const kept: Effect.Effect<A, E, R> = fiber.getRef(References.TracerEnabled)
        ? Effect.withSpan(name, options, trace)(self)
        : self
      return kept
    })

/** The same for work that nobody asked for, with which a trace begins: without spans under a trace id of its own. */
export const beginsTrace =
  (name: string) =>
  <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.withFiber((fiber) => {
      const begun: Effect.Effect<A, E, R> = fiber.getRef(References.TracerEnabled)
        ? Effect.withSpan(name)(self)
        : Effect.provideServiceEffect(self, TraceId, currentTraceId)
      return begun
    })

/** The span a fiber is in. Where none are kept, Effect leaves one with the id "noop" around transactions and HTTP requests. */
export const activeSpan = (fiber: Fiber.Fiber<unknown, unknown>): Tracer.AnySpan | undefined =>
  fiber.getRef(References.TracerEnabled) ? Context.getOrUndefined(fiber.context, Tracer.ParentSpan) : undefined

/** The span id of a trace that has only its own id: nobody looks it up. */
export const spanIdOf = (traceId: string): string => traceId.slice(16)

/** W3C trace context for a call to another service: of the active span, else of the trace id, else of a random one. */
export const traceparent: Effect.Effect<string> = Effect.withFiber((fiber) => {
  const span = activeSpan(fiber)
  return span === undefined
    ? Effect.map(currentTraceId, (traceId) => `00-${traceId}-${spanIdOf(traceId)}-01`)
    : Effect.succeed(`00-${span.traceId}-${span.spanId}-${span.sampled ? "01" : "00"}`)
})
