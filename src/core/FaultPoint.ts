/**
 * Named places at which an experiment may stop, kill or delay a participant: `yield* FaultPoint.reached("submit.before")`.
 * The reference does nothing by default and costs one context lookup.
 */
import { Context, Effect } from "effect"

export const FaultPoint = Context.Reference<(name: string) => Effect.Effect<void>>("dlock/core/FaultPoint", {
  defaultValue: () => () => Effect.void
})

export const reached = (name: string): Effect.Effect<void> =>
  Effect.withFiber((fiber) => fiber.getRef(FaultPoint)(name))
