/** `soak`: its flags. What it does is in `Soak.ts`, which is loaded when it is asked for. */
import { Effect, Option } from "effect"
import { Command, Flag } from "effect/cli"
import { finish } from "./Finish.ts"

const onOff = (name: string, what: string) =>
  Flag.Literals(name, ["on", "off"]).pipe(
    Flag.withDescription(what),
    Flag.withDefault("on"),
    Flag.map((value) => value === "on")
  )
const count = (name: string, what: string, fallback: number, most: number) =>
  Flag.Int(name).pipe(
    Flag.withDescription(what),
    Flag.withDefault(fallback),
    Flag.filter(
      (value) => value >= 1 && value <= most,
      () => `wants 1 to ${most}`
    )
  )

export const soak = Command.make(
  "soak",
  {
    minutes: count("minutes", "of faults; healing and settling come on top", 10, 1_440),
    seed: Flag.Int("seed").pipe(
      Flag.withDescription("what the faults are drawn from; default: a fresh one, printed"),
      Flag.optional,
      Flag.map(Option.getOrUndefined)
    ),
    backend: Flag.Literals("backend", ["pg", "etcd"]).pipe(Flag.withDefault("pg" as const)),
    paymentFencing: onOff("payment-fencing", "fence point (a), at payment-resource"),
    railFencing: onOff("rail-fencing", "fence point (c), at rail-proxy"),
    payouts: count("payouts", "ordered while the faults last", 200, 100_000),
    workers: count("workers", "processes that work them off", 12, 64),
    report: Flag.String("report").pipe(
      Flag.withDescription("directory of the timeline, the history and JUnit results"),
      Flag.withDefault(".dlock/report")
    ),
    json: Flag.Boolean("json").pipe(Flag.withDescription("print one JSON document"), Flag.withDefault(false))
  },
  (flags) =>
    Effect.flatMap(
      Effect.promise(() => import("./Soak.ts")),
      ({ run }) => run(flags)
    ).pipe(finish)
).pipe(
  Command.withDescription("many payouts, many workers, faults all the time; then everything must be settled and right")
)
