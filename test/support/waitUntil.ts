import { Effect } from "effect"

/** Waits for a condition, on the real clock; fails with its description after 20 s. */
export const waitUntil = <E, R>(description: string, condition: Effect.Effect<boolean, E, R>) =>
  Effect.gen(function* () {
    while (!(yield* condition)) yield* Effect.sleep("20 millis")
  }).pipe(
    Effect.timeoutOrElse({ duration: "20 seconds", orElse: () => Effect.die(`gave up waiting until ${description}`) })
  )
