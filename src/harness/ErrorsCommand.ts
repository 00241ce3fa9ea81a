/** `errors graph`: its flags. What it does is in `ErrorGraphRun.ts`, loaded when asked for. */
import { Effect } from "effect"
import { Command, Flag } from "effect/cli"

const graph = Command.make(
  "graph",
  {
    format: Flag.Literals("format", ["json", "mermaid", "html"]).pipe(
      Flag.withDescription("what to print"),
      Flag.withDefault("json" as const)
    ),
    check: Flag.Boolean("check").pipe(
      Flag.withDescription(
        "print nothing but the edges that docs/errors does not have, or has too many; 5 when there are any"
      ),
      Flag.withDefault(false)
    ),
    write: Flag.Boolean("write").pipe(Flag.withDescription("bring docs/errors up to date"), Flag.withDefault(false))
  },
  (flags) =>
    Effect.flatMap(
      Effect.promise(() => import("./ErrorGraphRun.ts")),
      ({ run }) => run(flags)
    )
).pipe(
  Command.withDescription(
    "every public operation and its failures; where each is made, handled, and what it is on the wire"
  )
)

export const errors = Command.make("errors").pipe(
  Command.withDescription("what can fail, and how, as the type checker knows it (needs the sources)"),
  Command.withSubcommands([graph])
)
