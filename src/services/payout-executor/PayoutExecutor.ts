/**
 * Finds payouts with work left and gives each account one turn at a time (`PayoutTurn.ts` has the steps).
 *
 * Nothing that is read here decides what is done with a payout: the list says only where a turn may be worth its lock.
 *
 * - A CLAIMED payout may have no holder any more, but mostly it has one that is at work: it is taken up once it was seen
 *   under the same token for a poll interval. When that is too early, the lock says so and the account rests.
 * - The order is drawn anew each time, so that executors which poll the same list do not march in step.
 * - An account whose turn came to nothing rests for a while that doubles, so that it does not take the slots of others.
 */
import { Cause, Clock, Context, Effect, FiberMap, Latch, Layer, Random } from "effect"
import { boundedBy } from "../../core/Bound.ts"
import type { FencingToken } from "../../core/lock/Lock.ts"
import type { BackendUnavailable } from "../../core/lock/LockErrors.ts"
import { PaymentResource } from "../../core/payment/PaymentResource.ts"
import type { AccountId, Payout, PayoutId, PayoutState } from "../../core/payment/Payout.ts"
import type { RailProxy } from "../../core/rail/RailProxy.ts"
import { pauseMillis } from "../../core/Retry.ts"
import type { LockClient } from "../lock-client/LockClient.ts"
import { makeTurn, type TurnOptions, type TurnOutcome } from "./PayoutTurn.ts"

export class PayoutExecutor extends Context.Service<
  PayoutExecutor,
  {
    /** One turn of an account. Never fails; interrupting it releases the lock. */
    readonly turn: (accountId: AccountId) => Effect.Effect<TurnOutcome>
    /** Polls and starts turns until interrupted. Turns under way go on until `drain` or until the layer is closed. */
    readonly run: Effect.Effect<never>
    /** No further payout is begun; returns when the turns under way are over, or after a bound longer than a submit. */
    readonly drain: Effect.Effect<void>
  }
>()("dlock/services/payout-executor/PayoutExecutor") {}

const PAGE_SIZE = 100
/** How many pages one poll walks at most, so that a long queue of one busy account hides the others only for a while. */
const PAGES = 4
/** An account that gets nowhere is tried again after at most this many poll intervals. */
const REST_MAX = 16

interface Seen {
  readonly token: FencingToken | null
  readonly sinceNanos: bigint
}

interface Rest {
  readonly misses: number
  readonly untilNanos: bigint
}

export const layer = (
  options: TurnOptions
): Layer.Layer<PayoutExecutor, never, PaymentResource | RailProxy | LockClient> =>
  Layer.effect(PayoutExecutor, make(options))

const make = Effect.fnUntraced(function* (options: TurnOptions) {
  const { pollIntervalMillis, ...settings } = options.settings
  const seenForNanos = BigInt(pollIntervalMillis) * 1_000_000n
  const payments = yield* PaymentResource
  const turns = yield* FiberMap.make<AccountId, void, never>()
  const wake = yield* Latch.make()
  const resting = new Map<AccountId, Rest>()
  let claimedSeen: ReadonlyMap<PayoutId, Seen> = new Map()
  let after: PayoutId | undefined
  let draining = false
  let listable = true
  const turn = yield* makeTurn(options, () => draining)

  /** Up to `PAGES` pages from `from` on, and where the next poll goes on; undefined: from the beginning. */
  const pages = Effect.fnUntraced(function* (state: PayoutState, from: PayoutId | undefined) {
    const items: Array<Payout> = []
    let next = from
    for (let page = 0; page < PAGES; page++) {
      const answer = yield* payments.listPayouts({ state, limit: PAGE_SIZE, after: next })
      items.push(...answer.items)
      next = answer.next ?? undefined
      if (next === undefined) break
    }
    return { items, next }
  })

  const candidates: Effect.Effect<ReadonlyArray<AccountId>, BackendUnavailable> = Effect.gen(function* () {
    const now = yield* Clock.monotonicTimeNanos
    const claimed = (yield* pages("CLAIMED", undefined)).items
    claimedSeen = new Map(
      claimed.map(({ claimToken, payoutId }) => {
        const seen = claimedSeen.get(payoutId)
        return [payoutId, seen?.token === claimToken ? seen : { token: claimToken, sinceNanos: now }]
      })
    )
    const waited = (payout: Payout) => now - (claimedSeen.get(payout.payoutId)?.sinceNanos ?? now) >= seenForNanos
    const pending = yield* pages("PENDING", after)
    after = pending.next
    const claimedAccounts = new Set(claimed.map((payout) => payout.accountId))
    const accounts = new Set([
      ...claimed.filter(waited).map((payout) => payout.accountId),
      ...pending.items.map((payout) => payout.accountId).filter((accountId) => !claimedAccounts.has(accountId))
    ])
    const free = [...accounts].filter(
      (accountId) => !FiberMap.hasUnsafe(turns, accountId) && (resting.get(accountId)?.untilNanos ?? 0n) <= now
    )
    return yield* Random.shuffle(free)
  })

  const rest = Effect.fnUntraced(function* (accountId: AccountId, outcome: TurnOutcome) {
    if (outcome === "POSTED" || outcome === "FAILED" || outcome === "RAIL_AMBIGUOUS" || outcome === "NOTHING") {
      resting.delete(accountId)
      return
    }
    const misses = (resting.get(accountId)?.misses ?? 0) + 1
    const millis = yield* pauseMillis(
      { baseMillis: pollIntervalMillis, capMillis: pollIntervalMillis * REST_MAX, attempts: misses },
      misses
    )
    const untilNanos = (yield* Clock.monotonicTimeNanos) + BigInt(millis) * 1_000_000n
    resting.set(accountId, { misses, untilNanos })
    yield* Effect.logInfo("the account is left for later").pipe(
      Effect.annotateLogs({ event: "payout_requeued", accountId, outcome, restMillis: millis })
    )
  })

  const start = (accountId: AccountId) =>
    turn(accountId).pipe(
      Effect.flatMap((outcome) => rest(accountId, outcome)),
      // A defect ends one turn, not the executor.
      Effect.catchCauseIf(
        (cause) => !Cause.hasInterruptsOnly(cause),
        (cause) => Effect.andThen(Effect.logError("a turn died", cause), rest(accountId, "LATER"))
      ),
      Effect.ensuring(wake.open)
    )

  /** Said when it changes: an outage is two lines, not two a second. */
  const reachable = (cause: string | undefined) =>
    Effect.suspend(() => {
      if ((cause === undefined) === listable) return Effect.void
      listable = cause === undefined
      return listable
        ? Effect.logInfo("payouts can be listed again")
        : Effect.annotateLogs(Effect.logWarning("payouts can not be listed"), { outcome: "BACKEND_UNAVAILABLE", cause })
    })

  const poll = Effect.gen(function* () {
    const slots = settings.concurrency - (yield* FiberMap.size(turns))
    if (draining || slots <= 0) return
    const accounts = yield* candidates
    yield* reachable(undefined)
    for (const accountId of accounts.slice(0, slots)) {
      yield* FiberMap.run(turns, accountId, start(accountId), { onlyIfMissing: true })
    }
  }).pipe(Effect.catchTag("BackendUnavailable", ({ cause }) => reachable(cause)))

  const run = Effect.gen(function* () {
    yield* wake.close
    yield* Effect.catchCauseIf(
      poll,
      (cause) => !Cause.hasInterruptsOnly(cause),
      (cause) => Effect.logError("a poll died", cause)
    )
    // From half the interval to one and a half of it; the end of a turn cuts it short.
    const millis = yield* Random.nextIntBetween(pollIntervalMillis >> 1, pollIntervalMillis + (pollIntervalMillis >> 1))
    yield* wake.await.pipe(
      boundedBy(millis, () => "nothing ended"),
      Effect.ignore
    )
  }).pipe(Effect.forever)

  const drain = Effect.suspend(() => {
    draining = true
    return FiberMap.awaitEmpty(turns)
  }).pipe(Effect.timeoutOption(settings.railTimeoutMillis * 2), Effect.asVoid)

  return { turn, run, drain }
})
