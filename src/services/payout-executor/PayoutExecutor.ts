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

/** What the parts of an executor share. */
interface Executor {
  readonly settings: TurnOptions["settings"]
  readonly payments: PaymentResource["Service"]
  readonly turn: Effect.Success<ReturnType<typeof makeTurn>>
  readonly turns: FiberMap.FiberMap<AccountId, void, never>
  readonly wake: Latch.Latch
  readonly resting: Map<AccountId, Rest>
  claimedSeen: ReadonlyMap<PayoutId, Seen>
  after: PayoutId | undefined
  draining: boolean
  listable: boolean
}

const make = Effect.fnUntraced(function* (options: TurnOptions) {
  const { settings } = options
  const payments = yield* PaymentResource
  const turns = yield* FiberMap.make<AccountId, void, never>()
  const wake = yield* Latch.make()
  const executor: Executor = {
    settings,
    payments,
    turn: yield* makeTurn(options, () => executor.draining),
    turns,
    wake,
    resting: new Map(),
    claimedSeen: new Map(),
    after: undefined,
    draining: false,
    listable: true
  }
  const drain = Effect.suspend(() => {
    executor.draining = true
    return FiberMap.awaitEmpty(turns)
  }).pipe(Effect.timeoutOption(settings.railTimeoutMillis * 2), Effect.asVoid)

  return { turn: executor.turn, run: Effect.forever(round(executor)), drain }
})

/** Up to `PAGES` pages from `from` on, and where the next poll goes on; undefined: from the beginning. */
const pages = Effect.fnUntraced(function* ({ payments }: Executor, state: PayoutState, from: PayoutId | undefined) {
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

const candidates = Effect.fnUntraced(function* (executor: Executor) {
  const { resting, settings, turns } = executor
  const seenForNanos = BigInt(settings.pollIntervalMillis) * 1_000_000n
  const now = yield* Clock.monotonicTimeNanos
  const claimed = (yield* pages(executor, "CLAIMED", undefined)).items
  const { claimedSeen } = executor
  const stillSeen = new Map<PayoutId, Seen>(
    claimed.map(({ claimToken, payoutId }) => {
      const seen = claimedSeen.get(payoutId)
      return [payoutId, seen?.token === claimToken ? seen : { token: claimToken, sinceNanos: now }]
    })
  )
  executor.claimedSeen = stillSeen
  const waited = (payout: Payout) => now - (stillSeen.get(payout.payoutId)?.sinceNanos ?? now) >= seenForNanos
  const pending = yield* pages(executor, "PENDING", executor.after)
  executor.after = pending.next
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

const rest = Effect.fnUntraced(function* ({ resting, settings }: Executor, accountId: AccountId, outcome: TurnOutcome) {
  const { pollIntervalMillis } = settings
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

const start = (executor: Executor, accountId: AccountId) =>
  executor.turn(accountId).pipe(
    Effect.flatMap((outcome) => rest(executor, accountId, outcome)),
    // A defect ends one turn, not the executor.
    Effect.catchCauseIf(
      (cause) => !Cause.hasInterruptsOnly(cause),
      (cause) => Effect.andThen(Effect.logError("a turn died", cause), rest(executor, accountId, "LATER"))
    ),
    Effect.ensuring(executor.wake.open)
  )

/** Said when it changes: an outage is two lines, not two a second. */
const reachable = (executor: Executor, cause: string | undefined) =>
  Effect.suspend(() => {
    if ((cause === undefined) === executor.listable) return Effect.void
    executor.listable = cause === undefined
    return executor.listable
      ? Effect.logInfo("payouts can be listed again")
      : Effect.annotateLogs(Effect.logWarning("payouts can not be listed"), { outcome: "BACKEND_UNAVAILABLE", cause })
  })

const poll = Effect.fnUntraced(
  function* (executor: Executor) {
    const { settings, turns } = executor
    const slots = settings.concurrency - (yield* FiberMap.size(turns))
    if (executor.draining || slots <= 0) return
    const accounts = yield* candidates(executor)
    yield* reachable(executor, undefined)
    for (const accountId of accounts.slice(0, slots)) {
      yield* FiberMap.run(turns, accountId, start(executor, accountId), { onlyIfMissing: true })
    }
  },
  (self, executor) => Effect.catchTag(self, "BackendUnavailable", ({ cause }) => reachable(executor, cause))
)

/** One poll and the wait for the next. */
const round = Effect.fnUntraced(function* (executor: Executor) {
  const { settings, wake } = executor
  const { pollIntervalMillis } = settings
  yield* wake.close
  yield* Effect.catchCauseIf(
    poll(executor),
    (cause) => !Cause.hasInterruptsOnly(cause),
    (cause) => Effect.logError("a poll died", cause)
  )
  // From half the interval to one and a half of it; the end of a turn cuts it short.
  const millis = yield* Random.nextIntBetween(pollIntervalMillis >> 1, pollIntervalMillis + (pollIntervalMillis >> 1))
  yield* wake.await.pipe(
    boundedBy(millis, () => "nothing ended"),
    Effect.ignore
  )
})
