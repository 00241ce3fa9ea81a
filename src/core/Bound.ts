import { Effect } from "effect"

/**
 * A hard upper bound on the time until the caller goes on. `Effect.timeout` is none: it waits until the interruption of
 * the call is through, and a socket may be drained or a commit finished before that. Here the call is interrupted in the
 * background and whatever it answers later is dropped, so what it was about to change is unknown.
 */
export const boundedBy =
  <E2>(millis: number, orElse: () => E2) =>
  <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E | E2, R> =>
    Effect.uninterruptibleMask((restore) =>
      Effect.flatMap(Effect.forkDetach(self, { startImmediately: true }), (call) => {
        const answered = call.pollUnsafe()
        if (answered !== undefined) return answered
        // Two fibers and no race between fibers that wait for them: this is around every remote call.
        return Effect.flatMap(Effect.forkDetach(Effect.sleep(millis), { startImmediately: true }), (timer) =>
          Effect.onExit(
            restore(
              Effect.callback<A, E | E2>((resume) => {
                const late = timer.addObserver(() => resume(Effect.fail(orElse())))
                const done = call.addObserver((exit) => resume(exit))
                return Effect.sync(() => {
                  late()
                  done()
                })
              })
            ),
            () =>
              Effect.sync(() => {
                timer.interruptUnsafe()
                call.interruptUnsafe()
              })
          )
        )
      })
    )
