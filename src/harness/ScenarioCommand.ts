/** `scenario`: its flags and subcommands. What they do is in `ScenarioRun.ts`, which is loaded when one of them is asked for. */
import { Console, Effect } from "effect"
import { Argument, Command, Flag } from "effect/cli"
import { finish } from "./Finish.ts"

const onOff = (name: string, what: string) =>
  Flag.Literals(name, ["on", "off"]).pipe(
    Flag.withDescription(what),
    Flag.withDefault("on"),
    Flag.map((value) => value === "on")
  )
const json = Flag.Boolean("json").pipe(Flag.withDescription("print one JSON document"), Flag.withDefault(false))
const report = Flag.String("report").pipe(
  Flag.withDescription("directory of the timelines, histories and JUnit results"),
  Flag.withDefault(".dlock/report")
)
const backend = Flag.Literals("backend", ["pg", "etcd"]).pipe(
  Flag.withDescription("what the lock service stands on"),
  Flag.withDefault("pg" as const)
)

const run = Command.make(
  "run",
  {
    scenarios: Argument.String("scenario").pipe(
      Argument.withDescription(
        "uc-01 .. uc-08, uc-03b, all, variants, or one run by its name; several are run in one world"
      ),
      Argument.variadic({ min: 1 })
    ),
    backend,
    target: Flag.Literals("target", ["processes", "compose", "kubernetes"]).pipe(
      Flag.withDescription("where the system runs: this machine, containers of compose.yaml, or pods"),
      Flag.withDefault("processes" as const)
    ),
    paymentFencing: onOff("payment-fencing", "fence point (a), at payment-resource"),
    railFencing: onOff("rail-fencing", "fence point (c), at rail-proxy"),
    rounds: Flag.Int("rounds").pipe(
      Flag.withDescription("how often each is run"),
      Flag.withDefault(1),
      Flag.filter(
        (rounds) => rounds >= 1 && rounds <= 1_000,
        () => "wants 1 to 1000"
      )
    ),
    report,
    json
  },
  (flags) =>
    Effect.flatMap(
      Effect.promise(() => import("./ScenarioRun.ts")),
      (scenarios) => scenarios.run(flags)
    ).pipe(finish)
).pipe(
  Command.withDescription("use cases on real processes with real faults, judged; exit 5 when one is not as expected")
)

const list = Command.make("list", { json }, (flags) =>
  Effect.gen(function* () {
    const { drills, variants } = yield* Effect.promise(() => import("./Drills.ts"))
    const all = [
      ...drills.map((drill) => ({ ...drill, part: "all" })),
      ...variants.map((drill) => ({ ...drill, part: "variants" }))
    ]
    if (flags.json) {
      return yield* Console.log(
        JSON.stringify(
          all.map(({ boundMillis, name, part, promises, scenario, shows, spec }) => ({
            name,
            part,
            title: scenario.title,
            expectation: scenario.expectation,
            shows,
            promises,
            boundMillis,
            spec
          }))
        )
      )
    }
    let last = ""
    for (const { name, part, promises, scenario, shows } of all) {
      const title = `${scenario.id}  ${scenario.title}${part === "all" ? "" : " (variant)"}`
      if (title !== last) yield* Console.log(`\n${title}\n    ${scenario.expectation}`)
      last = title
      yield* Console.log(`  - ${name}: ${shows}\n      must be seen: ${promises.join(", ")}`)
    }
  })
).pipe(Command.withDescription("the use cases, what each expects, and what must have been seen"))

export const scenario = Command.make("scenario").pipe(
  Command.withDescription("the use cases on real processes, with real faults"),
  Command.withSubcommands([list, run])
)
