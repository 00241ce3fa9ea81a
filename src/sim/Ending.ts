/** Fibers whose end needs no further step: they are spared the detours that others are watched by. */
import type { Fiber } from "effect"

/** What of a fiber's inside is looked at; no part of its type. */
interface Inside {
  readonly _stack: ReadonlyArray<unknown>
  readonly _interruptedCause: unknown
  readonly interruptible: boolean
}

/** Whether the operation that it is at is its last. */
export const doesNothingElse = (fiber: Fiber.Fiber<unknown, unknown>): boolean =>
  (fiber as unknown as Inside)._stack.length === 0

/** Whether it was interrupted, and nothing will hear of that but who watches its end. */
export const isEnding = (fiber: Fiber.Fiber<unknown, unknown>): boolean => {
  const { _interruptedCause, interruptible } = fiber as unknown as Inside
  return _interruptedCause !== undefined && interruptible && doesNothingElse(fiber)
}
