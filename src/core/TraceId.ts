/**
 * The id under which one request is found in the error envelope, the log and the payout's history: 32 hex digits. The
 * HTTP edge sets it from the active span or the caller's `traceparent`. It identifies and authorises nothing.
 */
import { Context, Effect, Random } from "effect"

export const TraceId = Context.Reference<string | undefined>("dlock/core/TraceId", { defaultValue: () => undefined })

const half = Effect.map(Random.nextIntBetween(0, 0xffff_ffff_ffff), (n) => n.toString(16).padStart(12, "0"))

/** Never all zeros, which W3C trace context calls invalid: the first eight digits are fixed. */
export const randomTraceId: Effect.Effect<string> = Effect.map(Effect.all([half, half]), ([a, b]) => `d10c0000${a}${b}`)

export const currentTraceId: Effect.Effect<string> = Effect.flatMap(TraceId, (id) =>
  id === undefined ? randomTraceId : Effect.succeed(id)
)
