/**
 * The seam to paydb: the operations of `PaymentResource` with fence point (a) inside, and what an operator watches.
 */
import { Context, type Effect } from "effect"
import type { BackendUnavailable } from "../lock/LockErrors.ts"
import type { PaymentOperations } from "./PaymentResource.ts"
import type { Payout, PayoutState } from "./Payout.ts"

/** What a write came to. `replayed`: it had been done before, is answered again and changed nothing. */
export interface Written {
  readonly payout: Payout
  readonly replayed: boolean
}

type Writes = "createPayout" | "claim" | "post" | "fail" | "ambiguous" | "resolve"
type Telling<Operation> = Operation extends (request: infer Request) => Effect.Effect<Payout, infer E>
  ? (request: Request) => Effect.Effect<Written, E>
  : never

/** What paydb itself checks, in the view `invariant_violation`. */
export const checkedInvariants = [
  "INV-02",
  "INV-03",
  "INV-05",
  "INV-06",
  "INV-08",
  "ONE-POSTING",
  "ONE-TOKEN-ONE-CLAIM"
] as const
export type CheckedInvariant = (typeof checkedInvariants)[number]

export interface Backlog {
  readonly byState: Readonly<Record<PayoutState, number>>
  readonly oldestPendingMillis: number
  readonly oldestClaimedMillis: number
  readonly oldestAmbiguousMillis: number
  /** Rows of `invariant_violation`, by name of the invariant; rows written unfenced are not among them. */
  readonly violations: Readonly<Record<CheckedInvariant, number>>
  /** The sum of all entries, absolute, over the currencies: 0 unless the ledger lies. */
  readonly imbalanceMinor: bigint
}

export class PaymentStore extends Context.Service<
  PaymentStore,
  Omit<PaymentOperations, Writes> & {
    readonly [Name in Writes]: Telling<PaymentOperations[Name]>
  } & {
    readonly backlog: Effect.Effect<Backlog, BackendUnavailable>
    readonly ping: Effect.Effect<void, BackendUnavailable>
    /** What is missing of the database's guards (`guard_missing`), and the kill switch of fence point (a) there. */
    readonly guards: Effect.Effect<
      { readonly missing: ReadonlyArray<string>; readonly switchOn: boolean; readonly unfencedRows: boolean },
      BackendUnavailable
    >
  }
>()("dlock/core/payment/PaymentStore") {}
