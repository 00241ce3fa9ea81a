import { type Context, Effect } from "effect"

/**
 * A hard upper bound on the time until the caller goes on. `Effect.timeout` is none: it waits until the interruption of
 * the call is through, and a socket may be drained or a commit finished before that. Here the call is interrupted in the
 * background and whatever it answers later is dropped, so what it was about to change is unknown.
 */
export const boundedBy =
  <E2>(millis: number, orElse: () => E2) =>
  <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E | E2, R> =>
    // Two fibers whose ends are observed, and no race between fibers that wait for them: this is around every remote call.
    Effect.contextWith((context: Context.Context<R>) =>
      Effect.callback<A, E | E2>((resume) => {
        const fork = Effect.runForkWith(context)
        const call = fork(self)
        const answered = call.pollUnsafe()
        if (answered !== undefined) return resume(answered)
        const timer = fork(Effect.sleep(millis))
        let over = false
        const end = (): void => {
          over = true
          timer.interruptUnsafe()
          call.interruptUnsafe()
        }
        call.addObserver((exit) => {
          if (over) return
          end()
          resume(exit)
        })
        timer.addObserver(() => {
          if (over) return
          end()
          resume(Effect.fail(orElse()))
        })
        return Effect.sync(end)
      })
    )
