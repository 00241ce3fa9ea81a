/**
 * What a program looks like that forgets the token, or a loss, to the compiler: every `@ts-expect-error` here is needed,
 * and `tsc` complains about one that is not (INV-07).
 */
import { Effect } from "effect"
import type { FencingToken, OwnerId } from "../../src/core/lock/Lock.ts"
import type { BackendError, FencedOut, LockContended, LockLost } from "../../src/core/lock/LockErrors.ts"
import type { PaymentResource } from "../../src/core/payment/PaymentResource.ts"
import type { PayoutId } from "../../src/core/payment/Payout.ts"
import type { RailProxy, SubmitRequest } from "../../src/core/rail/RailProxy.ts"
import { pauseAfter, retryOn } from "../../src/core/Retry.ts"
import { defaults } from "../../src/core/Settings.ts"
import type { HeldLock, LockClient } from "../../src/services/lock-client/LockClient.ts"

declare const payments: PaymentResource["Service"]
declare const rail: RailProxy["Service"]
declare const locks: LockClient["Service"]
declare const lock: HeldLock
declare const payoutId: PayoutId
declare const actor: OwnerId
declare const token: FencingToken
declare const submission: Omit<SubmitRequest, "token">

const target = { payoutId, actor }
const sealed = { ...target, reason: "cancelled by its owner" }

// --- no protected call without a token -----------------------------------------------------------------------------
// @ts-expect-error
payments.claim(target)
// @ts-expect-error
payments.post(target)
// @ts-expect-error
payments.fail({ ...target, reason: "CANCELLED" })
// @ts-expect-error
payments.ambiguous(target)
// @ts-expect-error
payments.resolve(target)
// @ts-expect-error
rail.submit(submission)
// @ts-expect-error
rail.seal(sealed)
// @ts-expect-error
rail.evidence({ ...sealed, finding: "NOT_FOUND" })

// --- nor with what only looks like one: a number read somewhere is not a grant ---------------------------------------
// @ts-expect-error
payments.claim({ ...target, token: 7n })
// @ts-expect-error
payments.post({ ...target, token: 7 })
// @ts-expect-error
payments.fail({ ...target, reason: "CANCELLED", token: "7" })
// @ts-expect-error
payments.ambiguous({ ...target, token: undefined })
// @ts-expect-error
payments.resolve({ ...target, token: null })
// @ts-expect-error
rail.submit({ ...submission, token: 7n })
// @ts-expect-error
rail.seal({ ...sealed, token: 7n })
// @ts-expect-error
rail.evidence({ ...sealed, finding: "NOT_FOUND", token: 7n })

// --- and with it they do compile --------------------------------------------------------------------------------------
export const protectedCalls = [
  payments.claim({ ...target, token: lock.token }),
  payments.post({ ...target, token }),
  payments.fail({ ...target, token, reason: "CANCELLED" }),
  payments.ambiguous({ ...target, token }),
  payments.resolve({ ...target, token }),
  rail.submit({ ...submission, token }),
  rail.seal({ ...sealed, token }),
  rail.evidence({ ...sealed, token, finding: "NOT_FOUND" })
]

// --- only what is retry-safe can be retried --------------------------------------------------------------------------
declare const renew: Effect.Effect<void, LockLost | BackendError>
declare const claim: Effect.Effect<void, FencedOut | BackendError>
declare const lost: LockLost
declare const contended: LockContended
const { retry } = defaults.client

export const retried = retryOn(renew, ["BackendUnavailable", "NotLeader"], retry)
// @ts-expect-error a lost lock does not come back
retryOn(renew, ["LockLost"], retry)
// @ts-expect-error a stale token does not become fresh
retryOn(claim, ["BackendUnavailable", "FencedOut"], retry)
// @ts-expect-error what can not happen
retryOn(renew, ["LockContended"], retry)
export const pause = pauseAfter(contended, retry, 1)
// @ts-expect-error there is no pause after which it would be sensible
pauseAfter(lost, retry, 1)

// --- a loss can not be forgotten ----------------------------------------------------------------------------------------
// @ts-expect-error LockLost is left over
export const forgotten: Effect.Effect<void> = locks
  .withLock("k" as never)(() => Effect.void)
  .pipe(Effect.catchTags({ ContentionExceeded: () => Effect.void, LockUnavailable: () => Effect.void }))

export const handled: Effect.Effect<void> = locks
  .withLock("k" as never)(() => Effect.void)
  .pipe(
    Effect.catchTags({
      ContentionExceeded: () => Effect.void,
      LockUnavailable: () => Effect.void,
      LockLost: () => Effect.void
    })
  )

// @ts-expect-error a check is no boolean
export const asked: Effect.Effect<boolean, LockLost> = lock.checkStillHeld

// @ts-expect-error there is no lock without a scope that ends it
export const leaked: Effect.Effect<unknown, unknown> = locks.acquire("k" as never)
