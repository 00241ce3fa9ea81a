/** `check`: its flags. What it does is in `Check.ts`, which is loaded when it is asked for. */
import { Effect, Option } from "effect"
import { Argument, Command, Flag } from "effect/cli"
import { finish } from "./Finish.ts"

export const check = Command.make(
  "check",
  {
    file: Argument.String("file").pipe(
      Argument.withDescription(
        "a run saved by `scenario run`, or a history; absent: what is running, by the services' settings"
      ),
      Argument.optional,
      Argument.map(Option.getOrUndefined)
    ),
    config: Flag.String("config").pipe(
      Flag.withDescription("settings from a JSON or .env file; environment variables win"),
      Flag.optional,
      Flag.map(Option.getOrUndefined)
    ),
    json: Flag.Boolean("json").pipe(Flag.withDescription("print one JSON document"), Flag.withDefault(false))
  },
  (flags) =>
    Effect.flatMap(
      Effect.promise(() => import("./Check.ts")),
      ({ run }) => run(flags)
    ).pipe(finish)
).pipe(Command.withDescription("the invariants, on a saved run or on what is running; exit 5 when one is violated"))
