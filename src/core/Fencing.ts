/**
 * The one comparison that makes a lock safe, and the switches that turn it off for the experiment.
 *
 * W1 holds 7 and is stopped; its lease runs out; W2 gets 8 and writes; W1 wakes and writes under 7. Nothing W1 can do
 * prevents that; the resource can: it has seen 8.
 *
 * In production the comparison is made by the database, in the statement that writes. These functions say the same
 * thing for fake stores and judges, so that there is one definition to test against.
 */
import type { FencingToken } from "./lock/Lock.ts"

/** Advancing writes (claim, submit): strictly greater than everything the fence has accepted. */
export const mayAdvance = (fence: bigint, presented: FencingToken): boolean => presented > fence

/** Later writes of the same holder (post, fail, ..): exactly the token the fence stands at. */
export const isCurrent = (fence: bigint, presented: FencingToken): boolean => presented === fence

/** On for both unless an experiment says otherwise; a service with one off refuses to start in production. */
export interface FencingSwitches {
  /** Fence point (a), `payment.fencing.enabled`. */
  readonly payment: boolean
  /** Fence point (c), `rail.fencing.enabled`. */
  readonly rail: boolean
}

export const fencingOn: FencingSwitches = { payment: true, rail: true }

/** The four rows of the experiment, in the order in which they are shown. */
export const switchMatrix: ReadonlyArray<FencingSwitches> = [
  { payment: true, rail: true },
  { payment: false, rail: true },
  { payment: true, rail: false },
  { payment: false, rail: false }
]
