/** `fencing` and `doctor`: their flags. What they do is in `ShowStatus.ts`, loaded when asked for. */
import { Effect } from "effect"
import { Command } from "effect/cli"
import { common } from "./Flags.ts"

const load = Effect.promise(() => import("./ShowStatus.ts"))

export const fencing = Command.make("fencing").pipe(
  Command.withDescription("are the fences on?"),
  Command.withSubcommands([
    Command.make("status", common, (flags) => Effect.flatMap(load, ({ fencing: go }) => go(flags))).pipe(
      Command.withDescription(
        "each fence point: the service's setting, the database's switch, and what an experiment left"
      )
    )
  ])
)

export const doctor = Command.make("doctor", common, (flags) =>
  Effect.flatMap(load, ({ doctor: go }) => go(flags))
).pipe(
  Command.withDescription("is this installation fit to move money? services, clocks, schemas, guards, unsafe settings")
)
