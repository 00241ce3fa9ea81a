/**
 * The one retry policy: full jitter, exponential, bounded (base 50 ms, cap 1 s, at most 5 tries).
 *
 * It takes only failures that carry `retryAfterMillis`, that is those after which repeating the same call is safe. A
 * terminal failure such as `LockLost` or `FencedOut` has none, so retrying it does not compile.
 */
import { type Effect, Random } from "effect"
import type { RetrySettings } from "./Settings.ts"

export interface RetrySafe {
  readonly _tag: string
  readonly retryAfterMillis: number
}

/** The pause before try `attempt + 1` (`attempt` from 1): uniform in 0 .. min(cap, base * 2^(attempt - 1)), in ms. */
export const pauseMillis = (settings: RetrySettings, attempt: number): Effect.Effect<number> =>
  Random.nextIntBetween(0, Math.min(settings.capMillis, settings.baseMillis * 2 ** (attempt - 1)) + 1)
