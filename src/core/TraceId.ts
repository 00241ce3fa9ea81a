/**
 * The id under which one request is found in the error envelope, the log and the payout's history: 32 hex digits. The
 * HTTP edge sets it from the active span or the caller's `traceparent`. It identifies and authorises nothing.
 */
import { Context, Effect, Random } from "effect"

export const TraceId = Context.Reference<string | undefined>("dlock/core/TraceId", { defaultValue: () => undefined })

const half = (random: Random.Random): string =>
  Math.floor(random.nextDoubleUnsafe() * 2 ** 48)
    .toString(16)
    .padStart(12, "0")

/** Never all zeros, which W3C trace context calls invalid: the first eight digits are fixed. */
export const randomTraceId: Effect.Effect<string> = Effect.withFiber((fiber) => {
  const random = fiber.getRef(Random.Random)
  return Effect.succeed(`d10c0000${half(random)}${half(random)}`)
})

export const currentTraceId: Effect.Effect<string> = Effect.withFiber((fiber) => {
  const id = fiber.getRef(TraceId)
  return id === undefined ? randomTraceId : Effect.succeed(id)
})

/** For what is done on behalf of that request. */
export const withTraceId =
  (traceId: string) =>
  <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.withFiber((fiber) =>
      fiber.getRef(TraceId) === traceId ? self : Effect.provideService(self, TraceId, traceId)
    )
