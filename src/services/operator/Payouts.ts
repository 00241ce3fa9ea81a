/**
 * What an operator does with payouts. Reads go to payment-resource and rail-proxy; the one write that there is besides an
 * order, a cancellation, is a write of the account like any other: under its lock, with the lock's token, sealed at the
 * proxy first. There is no retry: a payout that waits is taken up by an executor, and a submission is never repeated.
 */
import { Effect, Random } from "effect"
import { AcquireId } from "../../core/lock/Lock.ts"
import type { BackendUnavailable } from "../../core/lock/LockErrors.ts"
import { EvidenceMissing, IllegalTransition } from "../../core/payment/PaymentErrors.ts"
import { PaymentResource, type PayoutOrder } from "../../core/payment/PaymentResource.ts"
import {
  type Account,
  type AccountId,
  lockKeyOf,
  type Payout,
  type PayoutId,
  type PayoutState,
  type PayoutTransition
} from "../../core/payment/Payout.ts"
import { RailProxy, type Submission } from "../../core/rail/RailProxy.ts"
import { LockClient } from "../lock-client/LockClient.ts"
import { LockAdmin, type WatchedLock } from "./LockAdmin.ts"
import { Operator } from "./Locks.ts"

const PAGE_SIZE = 100

export const list = Effect.fnUntraced(function* (query: {
  readonly state: PayoutState | undefined
  readonly accountId: AccountId | undefined
  readonly limit: number
}) {
  const payments = yield* PaymentResource
  const items: Array<Payout> = []
  let after: PayoutId | undefined
  do {
    const page = yield* payments.listPayouts({ ...query, limit: Math.min(PAGE_SIZE, query.limit), after })
    items.push(...page.items)
    after = page.next ?? undefined
  } while (after !== undefined && items.length < query.limit)
  return items.slice(0, query.limit)
})

/** Everything that is known of a payout, from everybody who knows something. */
export interface Dossier {
  readonly payout: Payout
  readonly account: Account
  /** Null: nothing was, or is being, submitted. */
  readonly submission: Submission | null
  /** Of the account's lock; null when nobody ever held it, or when lock-server gives no answer. */
  readonly lock: WatchedLock | null
  /** What could not be asked. */
  readonly missing: ReadonlyArray<string>
}

export const dossier = Effect.fnUntraced(function* (payoutId: PayoutId) {
  const payments = yield* PaymentResource
  const rail = yield* RailProxy
  const admin = yield* LockAdmin
  const payout = yield* payments.readPayout(payoutId)
  const account = yield* payments.readAccount(payout.accountId).pipe(
    // Its payout is there: the account is too, and nobody can delete it.
    Effect.catchTag("AccountNotFound", Effect.die)
  )
  const missing: Array<string> = []
  const orMissing = <A>(who: string, look: Effect.Effect<A, BackendUnavailable>): Effect.Effect<A | null> =>
    Effect.catchTag(look, "BackendUnavailable", ({ cause }) =>
      Effect.sync(() => {
        missing.push(`${who}: ${cause}`)
        return null
      })
    )
  const submission = yield* orMissing(
    "rail-proxy",
    Effect.catchTag(rail.readSubmission(payoutId), "PayoutNotFound", () => Effect.succeed(null))
  )
  const lock = yield* orMissing(
    "lock-server",
    Effect.catchTag(admin.lock(lockKeyOf(payout.accountId)), "LockNotFound", () => Effect.succeed(null))
  )
  return { payout, account, submission, lock, missing } satisfies Dossier
})

export const transitions = (
  payoutId: PayoutId
): Effect.Effect<
  ReadonlyArray<PayoutTransition>,
  Effect.Error<ReturnType<PaymentResource["Service"]["readHistory"]>>,
  PaymentResource
> => Effect.flatMap(PaymentResource, (payments) => payments.readHistory(payoutId))

export const newOrderKey: Effect.Effect<AcquireId> = Effect.map(
  Effect.all([Random.nextIntBetween(0, 2 ** 48), Random.nextIntBetween(0, 2 ** 48)]),
  (parts) => AcquireId.make(`order-${parts.map((n) => n.toString(16).padStart(12, "0")).join("")}`)
)

export const create = Effect.fnUntraced(function* (order: Omit<PayoutOrder, "actor">) {
  const payments = yield* PaymentResource
  const { actor } = yield* Operator
  return yield* payments.createPayout({ ...order, actor })
})

/**
 * Sealed, then failed, under one token. The seal takes the payout's one submission slot, so what makes the cancellation safe
 * is not that nothing was sent so far but that nothing can be sent from now on. A payout that was submitted is not
 * cancelled by anybody.
 */
export const cancel = Effect.fnUntraced(function* (payoutId: PayoutId, reason: string) {
  const payments = yield* PaymentResource
  const rail = yield* RailProxy
  const locks = yield* LockClient
  const { actor } = yield* Operator
  const { accountId } = yield* payments.readPayout(payoutId)
  return yield* locks.withLock(lockKeyOf(accountId))((lock) =>
    Effect.gen(function* () {
      const write = { payoutId, token: lock.token, actor }
      const payout = yield* payments.readPayout(payoutId)
      const { nextStep, state } = payout
      if (state === "FAILED" && payout.failReason === "CANCELLED") return payout
      const open = nextStep === "CLAIM" || nextStep === "SUBMIT"
      // Sealed by an operator before us, who got no further.
      const sealed = nextStep === "FAIL" && (yield* outcomeOf(payoutId)) === "VOIDED"
      if (!open && !sealed) {
        return yield* state === "CLAIMED"
          ? new EvidenceMissing({ payoutId, state, verdict: "UNKNOWN", nextStep })
          : new IllegalTransition({ payoutId, state, attempted: "FAILED" })
      }
      if (state === "CLAIMED") {
        yield* lock.checkStillHeld
        yield* payments.claim(write)
      }
      if (open) {
        yield* lock.checkStillHeld
        yield* rail.seal({ ...write, reason })
      }
      yield* lock.checkStillHeld
      return yield* payments.fail({ ...write, reason: "CANCELLED" })
    })
  )
})

const outcomeOf = (payoutId: PayoutId) =>
  Effect.flatMap(RailProxy, (rail) => Effect.map(rail.readSubmission(payoutId), ({ outcome }) => outcome))
