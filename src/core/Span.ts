/**
 * Spans that cost nothing where nobody keeps them: a span of Effect's own changes the context twice and back, which every
 * fiber below has to look up again, whether or not a tracer is there.
 */
import { Effect, References } from "effect"

/** A span of that name around the effect, if spans are kept. */
export const spanned =
  (name: string) =>
  <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.withFiber((fiber) => {
      const kept: Effect.Effect<A, E, R> = fiber.getRef(References.TracerEnabled) ? Effect.withSpan(name)(self) : self
      return kept
    })
