/** The flags that the operator commands share. Nothing here loads what a command does. */
import { Option } from "effect"
import { Argument, Flag } from "effect/cli"
import { LockKey } from "../../core/lock/Lock.ts"
import { PayoutId } from "../../core/payment/Payout.ts"

export interface CommonFlags {
  readonly configFile: string | undefined
  readonly json: boolean
}

export const common = {
  configFile: Flag.String("config").pipe(
    Flag.withDescription("settings from a JSON or .env file; environment variables win"),
    Flag.optional,
    Flag.map(Option.getOrUndefined)
  ),
  json: Flag.Boolean("json").pipe(Flag.withDescription("print one JSON document"), Flag.withDefault(false))
}

export const optionalText = (name: string, what: string) =>
  Flag.String(name).pipe(Flag.withDescription(what), Flag.optional, Flag.map(Option.getOrUndefined))

/** For what can not be taken back. */
export const acting = {
  operator: optionalText("operator", "who acts, for the audit; default: your login name"),
  yes: Flag.Boolean("yes").pipe(Flag.withDescription("do not ask"), Flag.withDefault(false))
}

export const limit = Flag.Int("limit").pipe(
  Flag.withDescription("at most so many"),
  Flag.withDefault(100),
  Flag.filter(
    (n) => n >= 1 && n <= 100_000,
    () => "wants 1 to 100000"
  )
)

/** Why: kept in the audit for ever. */
export const reason = (atLeast: number) =>
  Flag.String("reason").pipe(
    Flag.withDescription(`why, at least ${atLeast} characters; kept in the audit`),
    Flag.filter(
      (text) => text.trim().length >= atLeast && text.length <= 500,
      () => `wants ${atLeast} to 500 characters`
    )
  )

export const key = Argument.String("key").pipe(
  Argument.withDescription("lock key, such as payout:acct-1"),
  Argument.withSchema(LockKey)
)
export const payoutId = Argument.String("payout").pipe(
  Argument.withDescription("payout id"),
  Argument.withSchema(PayoutId)
)
