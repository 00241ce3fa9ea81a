/** `sim`: its flags and subcommands. What they do is in `Simulate.ts`, which is loaded when one of them is asked for. */
import { Effect, Option } from "effect"
import { Argument, Command, Flag } from "effect/cli"

const load = Effect.promise(() => import("./Simulate.ts"))

const scenario = Argument.String("scenario").pipe(Argument.withDescription("uc-01 .. uc-08, uc-03b or all"))
const onOff = (name: string, what: string) =>
  Flag.Literals(name, ["on", "off"]).pipe(
    Flag.withDescription(what),
    Flag.withDefault("on"),
    Flag.map((value) => value === "on")
  )
const optionalInt = (name: string, what: string) =>
  Flag.Int(name).pipe(Flag.withDescription(what), Flag.optional, Flag.map(Option.getOrUndefined))
const optionalString = (name: string, what: string) =>
  Flag.String(name).pipe(Flag.withDescription(what), Flag.optional, Flag.map(Option.getOrUndefined))

const workers = optionalInt("workers", "threads; default: one per core")
const json = Flag.Boolean("json").pipe(Flag.withDescription("print one JSON document"), Flag.withDefault(false))
const seed = optionalInt("seed", "what the runs are drawn from; default: a fresh one, printed")
const world = {
  paymentFencing: onOff("payment-fencing", "fence point (a), at payment-resource"),
  railFencing: onOff("rail-fencing", "fence point (c), at rail-proxy"),
  guardsOff: Flag.Boolean("guards-off").pipe(
    Flag.withDescription("also without (c2), the read of the record and the unique index: to see what each is for"),
    Flag.withDefault(false)
  ),
  wire: Flag.Literals("wire", ["typed", "http"]).pipe(
    Flag.withDescription("calls as values, or through the production HTTP encoding"),
    Flag.withDefault("typed")
  )
}
const report = optionalString("report", "directory of the HTML timeline of a failure")

const run = Command.make(
  "run",
  {
    scenario,
    runs: Flag.Int("runs").pipe(Flag.withDescription("how many"), Flag.withDefault(2_000)),
    seed,
    workers,
    ...world,
    mutant: optionalString("mutant", "with this deliberate bug; see `sim mutants`"),
    report,
    json
  },
  (flags) => Effect.flatMap(load, ({ run: go }) => go(flags))
).pipe(Command.withDescription("runs drawn at random, judged; a failure is shrunk, told and can be replayed"))

const exhaust = Command.make(
  "exhaust",
  {
    scenario,
    faults: Flag.Int("faults").pipe(
      Flag.withDescription("1: every single fault; 2: every pair too"),
      Flag.withDefault(1)
    ),
    workers,
    ...world,
    report,
    json
  },
  (flags) => Effect.flatMap(load, ({ exhaust: go }) => go(flags))
).pipe(Command.withDescription("every fault that can befall the fault-free run, and every pair of them"))

const replay = Command.make(
  "replay",
  {
    line: Argument.String("run").pipe(
      Argument.withDescription(
        "a run as one line of JSON, or a file that holds it, or a real run saved by `scenario run`"
      )
    ),
    wire: Flag.Literals("wire", ["typed", "http"]).pipe(
      Flag.withDescription("default: as the run says"),
      Flag.optional,
      Flag.map(Option.getOrUndefined)
    ),
    trace: Flag.Boolean("trace").pipe(Flag.withDescription("every event, not only the story"), Flag.withDefault(false)),
    report,
    json
  },
  (flags) => Effect.flatMap(load, ({ replay: go }) => go(flags))
).pipe(Command.withDescription("one run again: the same trace, told in sentences"))

const list = Command.make("list", { json }, (flags) => Effect.flatMap(load, ({ list: go }) => go(flags))).pipe(
  Command.withDescription("the scenarios, what each expects, and which situations it promises to reach")
)

const mutants = Command.make(
  "mutants",
  {
    only: optionalString("only", "one mutant by name"),
    runs: Flag.Int("runs").pipe(Flag.withDescription("at most, for each"), Flag.withDefault(1_000)),
    seed,
    workers,
    json
  },
  (flags) => Effect.flatMap(load, ({ mutants: go }) => go(flags))
).pipe(Command.withDescription("deliberate bugs, one at a time: does the simulation find them?"))

export const sim = Command.make("sim").pipe(
  Command.withDescription("deterministic simulation: the production programs in virtual time, thousands of histories"),
  Command.withSubcommands([run, exhaust, replay, list, mutants])
)
