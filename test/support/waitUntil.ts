import { type Duration, Effect } from "effect"

/** Waits for a condition, on the real clock; fails with its description after 20 s, or what is given. */
export const waitUntil = <E, R>(
  description: string,
  condition: Effect.Effect<boolean, E, R>,
  duration: Duration.Input = "20 seconds"
) =>
  Effect.gen(function* () {
    while (!(yield* condition)) yield* Effect.sleep("20 millis")
  }).pipe(Effect.timeoutOrElse({ duration, orElse: () => Effect.die(`gave up waiting until ${description}`) }))
