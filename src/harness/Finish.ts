/** How the harness's commands end: with logs on stderr, and a failure of the harness itself told once. */
import { Cause, Console, Effect, References, type Scope } from "effect"
import { Exited, exitCodeOf, exitCodes } from "../services/platform/ExitCodes.ts"
import * as Telemetry from "../services/platform/Telemetry.ts"
import { HarnessError } from "./Processes.ts"

export const finish = <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, Exited, Exclude<R, Scope.Scope>> =>
  self.pipe(
    Effect.scoped,
    Effect.catchCause((cause) => {
      if (Cause.hasInterruptsOnly(cause)) return Effect.interrupt
      const failure: unknown = Cause.squash(cause)
      if (failure instanceof Exited) return Effect.fail(failure)
      const text = failure instanceof HarnessError ? `${failure.step}: ${failure.message}` : Cause.pretty(cause)
      return Effect.andThen(
        Console.error(`the experiment could not be carried out: ${text}`),
        Effect.fail(new Exited({ code: exitCodeOf(cause) }))
      )
    }),
    // What participants that live in the harness have to say is no news.
    Effect.provideService(References.MinimumLogLevel, "Error"),
    // @effect-diagnostics-next-line strictEffectProvide:off (the entry point of one command)
    Effect.provide(Telemetry.layer({ service: "dlock", to: "stderr" })),
    Effect.catchTag("ConfigProblem", (problem) =>
      Effect.andThen(Console.error(problem.message), Effect.fail(new Exited({ code: exitCodes.usage })))
    )
  )
