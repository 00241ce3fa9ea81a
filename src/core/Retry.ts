/**
 * The one retry policy: full jitter, exponential, bounded (base 50 ms, cap 1 s, at most 5 tries).
 *
 * It takes only failures that carry `retryAfterMillis`, that is those after which repeating the same call is safe. A
 * terminal failure such as `LockLost` or `FencedOut` has none, so retrying it does not compile.
 */
import { Effect, Random } from "effect"
import type { RetrySettings } from "./Settings.ts"

export interface RetrySafe {
  readonly _tag: string
  readonly retryAfterMillis: number
}

/** The tags of those failures in `E` after which the same call may be repeated. */
export type RetrySafeTag<E> = E extends RetrySafe ? E["_tag"] : never

/** The pause before try `attempt + 1` (`attempt` from 1): uniform in 0 .. min(cap, base * 2^(attempt - 1)), in ms. */
export const pauseMillis = (settings: RetrySettings, attempt: number): Effect.Effect<number> =>
  Random.nextIntBetween(0, Math.min(settings.capMillis, settings.baseMillis * 2 ** (attempt - 1)))

/** The same, for who has the failure in hand: there is no pause before repeating what must not be repeated. */
export const pauseAfter = (_failure: RetrySafe, settings: RetrySettings, attempt: number): Effect.Effect<number> =>
  pauseMillis(settings, attempt)

/**
 * Repeats `self` after failures with the named tags, at most `settings.attempts` tries in all; every other failure passes
 * at once, and so does the last one. Only tags of retry-safe failures can be named.
 */
export const retryOn = <A, E extends { readonly _tag: string }, R>(
  self: Effect.Effect<A, E, R>,
  tags: ReadonlyArray<RetrySafeTag<E>>,
  settings: RetrySettings,
  attempt = 1
): Effect.Effect<A, E, R> =>
  Effect.catchIf(
    self,
    (failure) => attempt < settings.attempts && (tags as ReadonlyArray<string>).includes(failure._tag),
    () =>
      Effect.flatMap(pauseMillis(settings, attempt), (millis) =>
        Effect.andThen(Effect.sleep(millis), retryOn(self, tags, settings, attempt + 1))
      )
  )
