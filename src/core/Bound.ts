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
        const forgetTimer = timer.addObserver(() => {
          forgetCall()
          call.interruptUnsafe()
          resume(Effect.fail(orElse()))
        })
        const forgetCall = call.addObserver((exit) => {
          forgetTimer()
          timer.interruptUnsafe()
          resume(exit)
        })
        return Effect.sync(() => {
          forgetTimer()
          forgetCall()
          timer.interruptUnsafe()
          call.interruptUnsafe()
        })
      })
    )
