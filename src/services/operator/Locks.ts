/**
 * What an operator does with locks: look, watch, and, when nothing else helps, revoke.
 *
 * A revoke takes the lock away from its holder; it does not stop him. What he has begun can still land until the next claim
 * reaches the fence of the resource, so the next claim is what ends the danger, and `fenceNow` makes it at once.
 */
import { Clock, Context, Effect, Option, Random } from "effect"
import { AcquireId, type FencingToken, type LockKey, type OwnerId, type Revocation } from "../../core/lock/Lock.ts"
import { LockApi } from "../../core/lock/LockApi.ts"
import { type BackendUnavailable, LockNotFound } from "../../core/lock/LockErrors.ts"
import { PaymentResource } from "../../core/payment/PaymentResource.ts"
import { AccountId, type Payout, type PayoutId } from "../../core/payment/Payout.ts"
import type { Submission } from "../../core/rail/RailProxy.ts"
import { RailProxy } from "../../core/rail/RailProxy.ts"
import { LockClient } from "../lock-client/LockClient.ts"
import { LockAdmin, type LockView, type SessionView, type WatchedLock } from "./LockAdmin.ts"

/** Who acts, for the audit: a name for people, and the owner id that its sessions and writes carry. */
export class Operator extends Context.Service<Operator, { readonly name: string; readonly actor: OwnerId }>()(
  "dlock/services/operator/Locks/Operator"
) {}

const PAGE_SIZE = 100

/** Page after page until there is no next one, or until the caller has enough. */
const everyPage = Effect.fnUntraced(function* <A>(
  page: (
    after: string
  ) => Effect.Effect<{ readonly items: ReadonlyArray<A>; readonly next: string | null }, BackendUnavailable>,
  enough: (items: ReadonlyArray<A>) => boolean
) {
  const items: Array<A> = []
  let after: string | null = ""
  while (after !== null && !enough(items)) {
    const found: { readonly items: ReadonlyArray<A>; readonly next: string | null } = yield* page(after)
    items.push(...found.items)
    after = found.next
  }
  return items
})

export const list = Effect.fnUntraced(function* (options: {
  readonly prefix: string
  readonly heldOnly: boolean
  readonly limit: number
}): Effect.fn.Return<ReadonlyArray<LockView>, BackendUnavailable, LockAdmin> {
  const admin = yield* LockAdmin
  const wanted = (items: ReadonlyArray<LockView>) => items.filter((lock) => lock.held || !options.heldOnly)
  const items = yield* everyPage(
    (after) => admin.locks({ prefix: options.prefix, after, limit: PAGE_SIZE }),
    (found) => wanted(found).length >= options.limit
  )
  return wanted(items).slice(0, options.limit)
})

export const sessions = Effect.fnUntraced(function* (options: {
  readonly limit: number
}): Effect.fn.Return<ReadonlyArray<SessionView>, BackendUnavailable, LockAdmin> {
  const admin = yield* LockAdmin
  const items = yield* everyPage(
    (after) => admin.sessions({ prefix: "", after, limit: PAGE_SIZE }),
    (found) => found.length >= options.limit
  )
  return items.slice(0, options.limit)
})

// -----------------------------------------------------------------------------
// what runs under a lock
// -----------------------------------------------------------------------------

/** What is at stake while somebody holds the key. */
export type Beneath =
  | { readonly _tag: "Payout"; readonly payout: Payout; readonly submission: Submission | null }
  /** The account has nothing claimed; `pending` is what the holder may be about to claim. */
  | { readonly _tag: "Idle"; readonly accountId: AccountId; readonly pending: PayoutId | null }
  /** No lock of a payout: what it protects is known to its holders alone. */
  | { readonly _tag: "Other" }
  | { readonly _tag: "Unknown"; readonly cause: string }

const accountOf = (key: LockKey): AccountId | undefined => {
  const account = /^payout:(.*)$/.exec(key)?.[1]
  return account === undefined ? undefined : Option.getOrUndefined(AccountId.makeOption(account))
}

export const beneath = Effect.fnUntraced(function* (
  key: LockKey
): Effect.fn.Return<Beneath, never, PaymentResource | RailProxy> {
  const payments = yield* PaymentResource
  const rail = yield* RailProxy
  const accountId = accountOf(key)
  if (accountId === undefined) return { _tag: "Other" }
  const look: Effect.Effect<Beneath, BackendUnavailable> = Effect.gen(function* () {
    const [claimed] = (yield* payments.listPayouts({ accountId, state: "CLAIMED", limit: 1 })).items
    if (claimed !== undefined) {
      const submission = yield* Effect.catchTag(rail.readSubmission(claimed.payoutId), "PayoutNotFound", () =>
        Effect.succeed(null)
      )
      return { _tag: "Payout", payout: claimed, submission }
    }
    const [pending] = (yield* payments.listPayouts({ accountId, state: "PENDING", limit: 1 })).items
    return { _tag: "Idle", accountId, pending: pending?.payoutId ?? null }
  })
  // The lock is shown all the same: an operator may need it while the ledger is away.
  return yield* Effect.catchTag(look, "BackendUnavailable", ({ cause }) =>
    Effect.succeed<Beneath>({ _tag: "Unknown", cause })
  )
})

export interface LockReport {
  readonly lock: WatchedLock
  readonly beneath: Beneath
}

export const get = Effect.fnUntraced(function* (
  key: LockKey
): Effect.fn.Return<LockReport, LockNotFound | BackendUnavailable, LockAdmin | PaymentResource | RailProxy> {
  const lock = yield* Effect.flatMap(LockAdmin, (admin) => admin.lock(key))
  return { lock, beneath: yield* beneath(key) }
})

// -----------------------------------------------------------------------------
// watch
// -----------------------------------------------------------------------------

export interface LockEvent {
  readonly at: number
  readonly event: "granted" | "free" | "revoked" | "waiters" | "unseen" | "no answer"
  readonly lock: WatchedLock | null
  readonly cause?: string
}

/** What happened between two looks, the newest last. */
export const eventsBetween = (
  before: WatchedLock | null | undefined,
  now: WatchedLock | null,
  at: number
): ReadonlyArray<LockEvent> => {
  if (now === null) return before === null ? [] : [{ at, event: "unseen", lock: null }]
  const known = before ?? undefined
  const events: Array<LockEvent> = []
  const revokedAt = now.lastRevocation?.at
  if (known !== undefined && revokedAt !== undefined && revokedAt !== known.lastRevocation?.at) {
    events.push({ at, event: "revoked", lock: now })
  }
  if (now.held && !(known?.held === true && known.fencingToken === now.fencingToken)) {
    events.push({ at, event: "granted", lock: now })
  }
  if (!now.held && (known === undefined || known.held || known.fencingToken !== now.fencingToken)) {
    events.push({ at, event: "free", lock: now })
  }
  if (known !== undefined && events.length === 0 && known.waiters !== now.waiters) {
    events.push({ at, event: "waiters", lock: now })
  }
  return events
}

/**
 * Looks again and again and tells what changed, until `until` is so (for ever without it). Looks, not a stream: a grant
 * that came and went between two looks shows as a higher token. Lost answers are told once and do not end it.
 */
export const watch = Effect.fnUntraced(function* <R>(
  options: {
    readonly key: LockKey
    readonly intervalMillis: number
    readonly until: "held" | "free" | undefined
  },
  tell: (event: LockEvent) => Effect.Effect<void, never, R>
): Effect.fn.Return<void, never, LockAdmin | R> {
  const admin = yield* LockAdmin
  let before: WatchedLock | null | undefined
  let answering = true
  for (;;) {
    const at = yield* Clock.currentTimeMillis
    const now = yield* admin.lock(options.key).pipe(
      Effect.catchTags({
        LockNotFound: () => Effect.succeed(null),
        BackendUnavailable: ({ cause }) => Effect.succeed({ cause })
      })
    )
    if (now !== null && "cause" in now) {
      if (answering) yield* tell({ at, event: "no answer", lock: null, cause: now.cause })
      answering = false
    } else {
      answering = true
      for (const event of eventsBetween(before, now, at)) yield* tell(event)
      before = now
      if (options.until !== undefined && (now?.held === true) === (options.until === "held")) return
    }
    yield* Effect.sleep(options.intervalMillis)
  }
})

// -----------------------------------------------------------------------------
// revoke
// -----------------------------------------------------------------------------

export interface RevokeOptions {
  readonly key: LockKey
  readonly reason: string
  /** The token that was looked at: a revoke must not hit the holder's successor. Absent when a revoke is repeated. */
  readonly expectedToken: FencingToken | undefined
  readonly revocationId: AcquireId
}

export const newRevocationId: Effect.Effect<AcquireId> = Effect.map(
  Effect.all([Random.nextIntBetween(0, 2 ** 48), Random.nextIntBetween(0, 2 ** 48)]),
  (parts) => AcquireId.make(`revoke-${parts.map((n) => n.toString(16).padStart(12, "0")).join("")}`)
)

/** Before a revoke: the live grant, or `LockNotFound`. */
export const held = Effect.fnUntraced(function* (key: LockKey) {
  const report = yield* get(key)
  return report.lock.held ? report : yield* new LockNotFound({ key })
})

export const revoke = Effect.fnUntraced(function* (options: RevokeOptions) {
  const locks = yield* LockApi
  const { name } = yield* Operator
  return yield* locks.revoke({ ...options, operator: name })
})

export interface Fenced {
  readonly payoutId: PayoutId
  readonly token: FencingToken
  readonly fence: bigint
}

/**
 * Claims at once under a fresh token, so that the account's fence is above the revoked one; null when the account has
 * nothing that could be claimed, and then nothing that the old holder could still do but be refused by the next claim.
 * An executor finishes what was claimed here by its state.
 */
export const fenceNow = Effect.fnUntraced(function* (revocation: Revocation) {
  const payments = yield* PaymentResource
  const locks = yield* LockClient
  const { actor } = yield* Operator
  const accountId = accountOf(revocation.key)
  if (accountId === undefined) return null
  return yield* locks.withLock(revocation.key)((lock) =>
    Effect.gen(function* () {
      const [claimed] = (yield* payments.listPayouts({ accountId, state: "CLAIMED", limit: 1 })).items
      const [pending] = (yield* payments.listPayouts({ accountId, state: "PENDING", limit: 1 })).items
      const payout = claimed ?? pending
      if (payout === undefined) return null
      yield* lock.checkStillHeld
      yield* payments.claim({ payoutId: payout.payoutId, token: lock.token, actor })
      const { fence } = yield* payments.readAccount(accountId)
      return { payoutId: payout.payoutId, token: lock.token, fence } satisfies Fenced
    })
  )
})
