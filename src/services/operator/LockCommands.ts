/** `locks`, `sessions` and `tokens`: their flags and subcommands. What they do is in `ShowLocks.ts`, loaded when asked for. */
import { Effect, Option } from "effect"
import { Command, Flag } from "effect/cli"
import { AcquireId, FencingTokenFromString } from "../../core/lock/Lock.ts"
import { acting, common, key, limit, reason } from "./Flags.ts"

const load = Effect.promise(() => import("./ShowLocks.ts"))

const list = Command.make(
  "list",
  {
    ...common,
    prefix: Flag.String("prefix").pipe(Flag.withDescription("keys that begin so"), Flag.withDefault("")),
    held: Flag.Boolean("held").pipe(Flag.withDescription("only those that are held"), Flag.withDefault(false)),
    limit
  },
  (flags) => Effect.flatMap(load, ({ list: go }) => go(flags))
).pipe(Command.withDescription("every lock that was ever granted: holder, token, lease"))

const get = Command.make("get", { ...common, key }, (flags) => Effect.flatMap(load, ({ get: go }) => go(flags))).pipe(
  Command.withDescription("one lock: holder, token, waiters, last revocation, and what runs under it")
)

const watch = Command.make(
  "watch",
  {
    ...common,
    key,
    interval: Flag.Int("interval").pipe(
      Flag.withDescription("milliseconds between two looks"),
      Flag.withDefault(500),
      Flag.filter(
        (millis) => millis >= 50 && millis <= 60_000,
        () => "wants 50 to 60000"
      )
    ),
    until: Flag.Literals("until", ["held", "free"]).pipe(
      Flag.withDescription("end when it is so; otherwise with Ctrl-C"),
      Flag.optional,
      Flag.map(Option.getOrUndefined)
    )
  },
  (flags) => Effect.flatMap(load, ({ watch: go }) => go(flags))
).pipe(Command.withDescription("what happens to a lock, line by line"))

const revoke = Command.make(
  "revoke",
  {
    ...common,
    ...acting,
    key,
    reason: reason(8),
    expectedToken: Flag.String("expected-token").pipe(
      Flag.withDescription("refuse unless this is the live token; default: the one that is shown before you are asked"),
      Flag.withSchema(FencingTokenFromString),
      Flag.optional,
      Flag.map(Option.getOrUndefined)
    ),
    revocationId: Flag.String("revocation-id").pipe(
      Flag.withDescription("of a revoke whose answer was lost: repeating it changes nothing twice"),
      Flag.withSchema(AcquireId),
      Flag.optional,
      Flag.map(Option.getOrUndefined)
    ),
    fence: Flag.Boolean("fence").pipe(
      Flag.withDescription("claim at once, so that the old holder's next write is refused"),
      Flag.withDefault(false)
    )
  },
  (flags) => Effect.flatMap(load, ({ revoke: go }) => go(flags))
).pipe(Command.withDescription("break-glass: take a lock away from its holder; audited"))

export const locks = Command.make("locks").pipe(
  Command.withDescription("look at locks, watch one, and, when nothing else helps, revoke it"),
  Command.withSubcommands([list, get, watch, revoke])
)

export const sessions = Command.make("sessions").pipe(
  Command.withDescription("who is connected to the lock service"),
  Command.withSubcommands([
    Command.make("list", { ...common, limit }, (flags) => Effect.flatMap(load, ({ sessions: go }) => go(flags))).pipe(
      Command.withDescription("every live session: owner, lease")
    )
  ])
)

export const tokens = Command.make("tokens").pipe(
  Command.withDescription("fencing tokens never go back; after a restore, see to it"),
  Command.withSubcommands([
    Command.make(
      "floor",
      {
        ...common,
        yes: acting.yes,
        raise: Flag.Boolean("raise").pipe(
          Flag.withDescription("take the lock backend's tokens above the floor"),
          Flag.withDefault(false)
        )
      },
      (flags) => Effect.flatMap(load, ({ floor: go }) => go(flags))
    ).pipe(Command.withDescription("the greatest token that a fence has accepted, and where the lock backend stands"))
  ])
)
