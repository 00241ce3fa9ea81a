/** `payouts` and `reconcile`: their flags and subcommands. What they do is in `ShowPayouts.ts`, loaded when asked for. */
import { Effect, Option } from "effect"
import { Command, Flag } from "effect/cli"
import { AcquireId } from "../../core/lock/Lock.ts"
import { AccountId, AmountMinorFromString, Beneficiary, Currency, PayoutId } from "../../core/payment/Payout.ts"
import { acting, common, limit, optionalText, payoutId, reason } from "./Flags.ts"

const load = Effect.promise(() => import("./ShowPayouts.ts"))

const account = Flag.String("account").pipe(Flag.withDescription("account id"), Flag.withSchema(AccountId))

const list = Command.make(
  "list",
  {
    ...common,
    state: Flag.Literals("state", ["PENDING", "CLAIMED", "POSTED", "FAILED", "RAIL_AMBIGUOUS"]).pipe(
      Flag.optional,
      Flag.map(Option.getOrUndefined)
    ),
    accountId: account.pipe(Flag.optional, Flag.map(Option.getOrUndefined)),
    limit
  },
  (flags) => Effect.flatMap(load, ({ list: go }) => go(flags))
).pipe(Command.withDescription("payouts in order of creation"))

const show = Command.make("show", { ...common, payoutId }, (flags) =>
  Effect.flatMap(load, ({ show: go }) => go(flags))
).pipe(Command.withDescription("a payout, its submission record, its account and its lock"))

const explain = Command.make("explain", { ...common, payoutId }, (flags) =>
  Effect.flatMap(load, ({ explain: go }) => go(flags))
).pipe(Command.withDescription("what happens to it next, who does it and why, in words"))

const transitions = Command.make("transitions", { ...common, payoutId }, (flags) =>
  Effect.flatMap(load, ({ transitions: go }) => go(flags))
).pipe(Command.withDescription("every move: who, under which token, on what evidence, in which trace"))

const create = Command.make(
  "create",
  {
    ...common,
    operator: acting.operator,
    accountId: account,
    amountMinor: Flag.String("amount").pipe(
      Flag.withDescription("in minor units (cents)"),
      Flag.withSchema(AmountMinorFromString)
    ),
    currency: Flag.String("currency").pipe(Flag.withDescription("ISO 4217"), Flag.withSchema(Currency)),
    beneficiary: Flag.String("beneficiary").pipe(Flag.withSchema(Beneficiary)),
    payoutId: Flag.String("payout-id").pipe(
      Flag.withDescription("a lower-case UUID; default: the service draws one"),
      Flag.withSchema(PayoutId),
      Flag.optional,
      Flag.map(Option.getOrUndefined)
    ),
    idempotencyKey: Flag.String("key").pipe(
      Flag.withDescription("of an order whose answer was lost: repeating it orders nothing twice"),
      Flag.withSchema(AcquireId),
      Flag.optional,
      Flag.map(Option.getOrUndefined)
    )
  },
  (flags) => Effect.flatMap(load, ({ create: go }) => go(flags))
).pipe(Command.withDescription("order a payout; an executor takes it up"))

const cancel = Command.make("cancel", { ...common, ...acting, payoutId, reason: reason(8) }, (flags) =>
  Effect.flatMap(load, ({ cancel: go }) => go(flags))
).pipe(Command.withDescription("seal a payout that was not submitted, then fail it; there is no retry"))

export const payouts = Command.make("payouts").pipe(
  Command.withDescription("look at payouts, understand one, order and cancel"),
  Command.withSubcommands([list, show, explain, transitions, create, cancel])
)

const run = Command.make(
  "run",
  {
    ...common,
    operator: acting.operator,
    payoutId: Flag.String("payout").pipe(
      Flag.withDescription("this one only"),
      Flag.withSchema(PayoutId),
      Flag.optional,
      Flag.map(Option.getOrUndefined)
    )
  },
  (flags) => Effect.flatMap(load, ({ reconcile: go }) => go(flags))
).pipe(Command.withDescription("one pass now: ask the rail about every ambiguous payout, settle what is proven"))

const resolve = Command.make(
  "resolve",
  {
    ...common,
    ...acting,
    payoutId,
    finding: Flag.Literals("finding", ["EXECUTED", "REJECTED", "NOT_FOUND"]).pipe(
      Flag.withDescription("what the rail's operator has told you, in writing")
    ),
    railReference: optionalText("rail-reference", "of the payment at the rail"),
    reason: reason(8)
  },
  (flags) => Effect.flatMap(load, ({ resolve: go }) => go(flags))
).pipe(Command.withDescription("put your word on record as evidence, then do what it proves"))

export const reconcile = Command.make("reconcile").pipe(
  Command.withDescription("settle ambiguous payouts by evidence; never submits"),
  Command.withSubcommands([run, resolve])
)
