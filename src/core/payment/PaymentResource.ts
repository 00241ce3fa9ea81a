/**
 * What payment-resource offers (P1 to P12). Its seam to paydb, `PaymentStore`, has the same operations on purpose: fence
 * point (a) is inside `claim` and every later write, in the statement, so nobody above the store can forget it.
 *
 * No protected write can be expressed without a token: `ProtectedWrite.token` is required and branded (INV-07).
 */
import { Context, type Effect } from "effect"
import type { AcquireId, FencingToken, OwnerId } from "../lock/Lock.ts"
import type { BackendUnavailable, FencedOut } from "../lock/LockErrors.ts"
import type { ValidationFailed } from "../RequestFailures.ts"
import type { Journal } from "./Ledger.ts"
import type {
  AccountBusy,
  AccountNotFound,
  EvidenceMissing,
  IllegalTransition,
  InsufficientFunds,
  PayoutNotFound,
  TokenAlreadyUsed
} from "./PaymentErrors.ts"
import type { Account, AccountId, FailReason, Payout, PayoutId, PayoutState, PayoutTransition } from "./Payout.ts"

export interface PayoutQuery {
  readonly state?: PayoutState | undefined
  readonly accountId?: AccountId | undefined
  readonly limit: number
  /** The payout id after which the page starts (keyset paging in order of creation). */
  readonly after?: PayoutId | undefined
}

export interface PayoutPage {
  readonly items: ReadonlyArray<Payout>
  /** What to pass as `after` for the next page; null at the end. */
  readonly next: PayoutId | null
}

export interface PayoutOrder {
  readonly idempotencyKey: AcquireId
  readonly actor: OwnerId
  readonly payoutId?: PayoutId | undefined
  readonly accountId: AccountId
  readonly amountMinor: bigint
  readonly currency: string
  readonly beneficiary: string
}

/** What makes two orders under one idempotency key the same order. Who sends it is no part of that. */
export const contentOf = ({ accountId, amountMinor, beneficiary, currency, payoutId }: PayoutOrder): string =>
  JSON.stringify([payoutId ?? null, accountId, amountMinor.toString(), currency, beneficiary])

export interface ProtectedWrite {
  readonly payoutId: PayoutId
  readonly token: FencingToken
  readonly actor: OwnerId
}

type Settled = FencedOut | IllegalTransition | EvidenceMissing | PayoutNotFound | BackendUnavailable

export interface PaymentOperations {
  readonly listPayouts: (query: PayoutQuery) => Effect.Effect<PayoutPage, BackendUnavailable>
  readonly readPayout: (payoutId: PayoutId) => Effect.Effect<Payout, PayoutNotFound | BackendUnavailable>
  /** The same key and content answers the same payout; the same key with other content is `ValidationFailed`. */
  readonly createPayout: (
    order: PayoutOrder
  ) => Effect.Effect<Payout, AccountNotFound | ValidationFailed | BackendUnavailable>
  /** Fence point (a). Idempotent per (payout, token); a re-claim under a higher token is legal. */
  readonly claim: (
    write: ProtectedWrite
  ) => Effect.Effect<Payout, Settled | TokenAlreadyUsed | AccountBusy | InsufficientFunds>
  /** Both entries, the balance and the state in one transaction. Needs the rail's acknowledgement on record. */
  readonly post: (write: ProtectedWrite) => Effect.Effect<Payout, Settled>
  /** Needs evidence that the rail did not and can not pay. */
  readonly fail: (write: ProtectedWrite & { readonly reason: FailReason }) => Effect.Effect<Payout, Settled>
  readonly ambiguous: (write: ProtectedWrite) => Effect.Effect<Payout, Settled>
  /** From RAIL_AMBIGUOUS to what the recorded evidence says. */
  readonly resolve: (write: ProtectedWrite) => Effect.Effect<Payout, Settled>
  readonly readAccount: (accountId: AccountId) => Effect.Effect<Account, AccountNotFound | BackendUnavailable>
  readonly readLedger: (query: {
    readonly accountId: AccountId
    readonly limit: number
    readonly after?: bigint | undefined
  }) => Effect.Effect<
    { readonly items: ReadonlyArray<Journal>; readonly next: bigint | null },
    AccountNotFound | BackendUnavailable
  >
  /** `created` is false when the same account with the same opening balance existed. */
  readonly createAccount: (request: {
    readonly accountId: AccountId
    readonly currency: string
    readonly openingBalanceMinor: bigint
    readonly actor: OwnerId
  }) => Effect.Effect<{ readonly account: Account; readonly created: boolean }, ValidationFailed | BackendUnavailable>
  readonly readHistory: (
    payoutId: PayoutId
  ) => Effect.Effect<ReadonlyArray<PayoutTransition>, PayoutNotFound | BackendUnavailable>
}

/** What the executor, the reconciler and the operator depend on. */
export class PaymentResource extends Context.Service<PaymentResource, PaymentOperations>()(
  "dlock/core/payment/PaymentResource"
) {}
