/**
 * The outside world: a payment rail that takes no token and no key, is not idempotent, and can be asked read-only.
 */
import { Context, type Effect, Schema } from "effect"

/**
 * An error that occurs when the rail's answer is not an explicit, parsed yes or no: no answer in time, a connection
 * error, a 5xx, an HTML body, an unknown code. The payment may or may not have been made.
 */
export class RailNoAnswer extends Schema.TaggedError<RailNoAnswer>()("RailNoAnswer", {
  cause: Schema.String,
  /** True when the request can not have left this process (refused connection, deadline before the send). */
  neverSent: Schema.Boolean
}) {}

export interface RailPayment {
  readonly clientReference: string
  readonly amountMinor: bigint
  readonly currency: string
  readonly beneficiary: string
}

export type RailAnswer =
  | { readonly _tag: "Acknowledged"; readonly railReference: string }
  | { readonly _tag: "Declined"; readonly code: string }

export type RailFinding =
  | { readonly _tag: "EXECUTED"; readonly count: number; readonly railReference: string }
  | { readonly _tag: "REJECTED" }
  | { readonly _tag: "PENDING" }
  | { readonly _tag: "NOT_FOUND" }

export class Rail extends Context.Service<
  Rail,
  {
    /**
     * Pays, every time it is called. Sent at most once: nothing between here and the rail may repeat it. The send does
     * not start after `sendNotAfterNanos` of the monotonic clock, which is looked at when the connection stands (opening
     * one takes time), right before the fault point `rail.send.before`. Interruption ends it at once.
     */
    readonly submit: (payment: RailPayment, sendNotAfterNanos: bigint) => Effect.Effect<RailAnswer, RailNoAnswer>
    /** Read-only. */
    readonly lookup: (clientReference: string) => Effect.Effect<RailFinding, RailNoAnswer>
    readonly ping: Effect.Effect<void, RailNoAnswer>
  }
>()("dlock/core/rail/Rail") {}
