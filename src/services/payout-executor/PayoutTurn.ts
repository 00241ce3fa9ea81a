/**
 * One turn of the executor settles one payout of one account under one token:
 *
 *     acquire payout:{A}           token T
 *     find A's unfinished payout   read under the lock; CLAIMED before PENDING, so recovery comes before new work
 *     claim(P, T)                  fence point (a); from here on only the row that the claim returned is acted on
 *     submit(P, T)                 fence point (c); never repeated
 *     post | fail | ambiguous      under T
 *     release T
 *
 * Why the row of the claim and nothing read before it: W1 holds T1 and submits; its lease runs out; W2 gets T2 and reads
 * "nothing submitted"; W1's submission lands; W2 claims. Once W2's claim is committed the proxy refuses every older token,
 * so what W2 reads then can change in one way only: an outcome may still be recorded.
 *
 * `checkStillHeld` comes before every step. It narrows the window between "I hold it" and the side effect and can not close
 * it: W1 checks, is stopped for 20 s, W2 gets T2 and claims, W1 wakes and writes under T1. The token in each request, and
 * its comparison by the resource, is what makes that harmless.
 */
import { Clock, Effect, Fiber, Result } from "effect"
import { boundedBy } from "../../core/Bound.ts"
import { codeOf } from "../../core/ErrorCode.ts"
import { reached } from "../../core/FaultPoint.ts"
import { AcquireId, type OwnerId } from "../../core/lock/Lock.ts"
import {
  backendUnavailable,
  type BackendUnavailable,
  type FencedOut,
  type LockLost
} from "../../core/lock/LockErrors.ts"
import { logError, logInfo } from "../../core/Log.ts"
import { increment, lock as lockMetrics } from "../../core/Metrics.ts"
import type { IllegalTransition, PayoutNotFound } from "../../core/payment/PaymentErrors.ts"
import { PaymentResource } from "../../core/payment/PaymentResource.ts"
import {
  type AccountId,
  type FailReason,
  lockKeyOf,
  type Payout,
  type SubmissionOutcome
} from "../../core/payment/Payout.ts"
import { RailProxy } from "../../core/rail/RailProxy.ts"
import { retryOn } from "../../core/Retry.ts"
import type { ExecutorSettings, RetrySettings } from "../../core/Settings.ts"
import { beginsTrace } from "../../core/Span.ts"
import { type HeldLock, LockClient } from "../lock-client/LockClient.ts"

export interface TurnOptions {
  /** Who the audit says it was. */
  readonly actor: OwnerId
  readonly settings: ExecutorSettings
  /** For repeating an own write whose answer was lost, under the same token and while the lock is held. */
  readonly retry: RetrySettings
  /**
   * Experiment only: goes on after the lock was lost and after FENCED_OUT, to show what stands between such a worker and
   * the money.
   */
  readonly staleHolder: boolean
}

/**
 * - POSTED, FAILED, RAIL_AMBIGUOUS: the payout is out of the executor's hands
 * - NOTHING: the account has no unfinished payout
 * - LATER: it could not be finished under this token; a later turn decides by its state
 * - FENCED_OUT, LOCK_LOST: stopped at once, nothing more was done
 * - CONTENDED, UNAVAILABLE: no grant, so nothing was executed (fail closed)
 */
export type TurnOutcome =
  | "POSTED"
  | "FAILED"
  | "RAIL_AMBIGUOUS"
  | "NOTHING"
  | "LATER"
  | "FENCED_OUT"
  | "LOCK_LOST"
  | "CONTENDED"
  | "UNAVAILABLE"

type Hop = "claim" | "submit" | "seal" | "post" | "fail" | "ambiguous"

/** A payout in the hands of the holder of its account's lock. */
interface Work {
  readonly turn: Turn
  readonly lock: HeldLock
  readonly payout: Payout
}

/** Why a turn ended before its payout was settled. */
type Unsettled = LockLost | FencedOut | IllegalTransition | PayoutNotFound | BackendUnavailable
type Settling = Effect.Effect<TurnOutcome, Unsettled>

/** How often one turn reads again because the record moved on under it. Each time is one recorded outcome; two is plenty. */
const REREADS = 3

const failReasonOf = (outcome: SubmissionOutcome): FailReason =>
  outcome === "DECLINED" ? "RAIL_DECLINED" : outcome === "VOIDED" ? "CANCELLED" : "RAIL_NOT_EXECUTED"

/** What each step was answered, with which token: one line a hop. A fence that refused us is an incident. */
const tell = (event: string, hop: { readonly op: string; readonly outcome: string; readonly [name: string]: string }) =>
  (hop.outcome === "FENCED_OUT" ? logError : logInfo)(`${hop.op} was answered ${hop.outcome}`, { event, ...hop })

/** Runs to its end even if the caller is interrupted, and can still time out its own calls. */
const shielded = <A, E, R>(section: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.uninterruptible(Effect.flatMap(Effect.forkDetach(section), Fiber.join))

/** What all turns of an executor share. */
interface Turn {
  readonly payments: PaymentResource["Service"]
  readonly rail: RailProxy["Service"]
  readonly locks: LockClient["Service"]
  readonly options: TurnOptions
  readonly stopping: () => boolean
}

/** Builds the one turn. It never fails: what can go wrong is in its outcome, and in the log with its token. */
export const makeTurn = Effect.fnUntraced(function* (options: TurnOptions, stopping: () => boolean = () => false) {
  const turn: Turn = {
    payments: yield* PaymentResource,
    rail: yield* RailProxy,
    locks: yield* LockClient,
    options,
    stopping
  }
  return (accountId: AccountId) => settleOne(turn, accountId)
})

const stillHeld = ({ lock, turn }: Work): Effect.Effect<void, LockLost> =>
  turn.options.staleHolder
    ? Effect.catchTag(lock.checkStillHeld, "LockLost", (lost) =>
        Effect.logWarning("the lock is lost and this experiment goes on").pipe(
          Effect.annotateLogs({ event: "lock_lost", outcome: lost.reason, ignored: true })
        )
      )
    : lock.checkStillHeld

/** Of interest to the experiment alone. */
const isStale = ({ lock, turn }: Work): Effect.Effect<boolean> =>
  turn.options.staleHolder ? Effect.map(Effect.result(lock.checkStillHeld), Result.isFailure) : Effect.succeed(false)

/** One request that carries the token: check, (the window), ask, say what it was answered. */
const hop = Effect.fnUntraced(function* <A, E extends { readonly _tag: string }>(
  work: Work,
  op: Hop,
  request: Effect.Effect<A, E>,
  outcomeOf: (answer: A) => string
) {
  yield* stillHeld(work)
  yield* reached(`${op}.before`)
  const answer = yield* Effect.result(request)
  const outcome = Result.isSuccess(answer) ? outcomeOf(answer.success) : codeOf(answer.failure)
  const event = (yield* isStale(work)) ? "stale_hop" : "payout_hop"
  const { lock, payout } = work
  const { accountId, payoutId } = payout
  yield* tell(event, { op, token: String(lock.token), outcome, payoutId, accountId })
  yield* reached(`${op}.after`)
  return yield* Effect.fromResult(answer)
})

/**
 * An own write of which the answer was lost may be asked again under the same token: it is answered again and changes
 * nothing twice. Bounded, and each time only while the lock is held. Submit is not among them: nobody repeats it.
 */
const answerLost = ["BackendUnavailable"] as const

const underToken = ({ lock, payout, turn }: Work) => ({
  payoutId: payout.payoutId,
  token: lock.token,
  actor: turn.options.actor
})
const stateOf = (payout: Payout): string => payout.state
const retryOf = ({ turn }: Work): RetrySettings => turn.options.retry

const post = (work: Work, rereads: number): Settling =>
  retryOn(hop(work, "post", work.turn.payments.post(underToken(work)), stateOf), answerLost, retryOf(work)).pipe(
    Effect.as<TurnOutcome>("POSTED"),
    Effect.catchTag("EvidenceMissing", () => reread(work, rereads))
  )

const fail = (work: Work, reason: FailReason, rereads: number): Settling =>
  retryOn(
    hop(work, "fail", work.turn.payments.fail({ ...underToken(work), reason }), stateOf),
    answerLost,
    retryOf(work)
  ).pipe(
    Effect.as<TurnOutcome>("FAILED"),
    Effect.catchTag("EvidenceMissing", () => reread(work, rereads))
  )

const ambiguous = (work: Work, rereads: number): Settling =>
  retryOn(
    hop(work, "ambiguous", work.turn.payments.ambiguous(underToken(work)), stateOf),
    answerLost,
    retryOf(work)
  ).pipe(
    Effect.as<TurnOutcome>("RAIL_AMBIGUOUS"),
    // Either the intent never came to be, or an outcome was recorded meanwhile.
    Effect.catchTag("EvidenceMissing", () => reread(work, rereads))
  )

/**
 * The intent is on record without an outcome: the proxy may still be in the call. Waits until the proxy's own budget is
 * over, then calls it ambiguous. A matter of patience only: ambiguous is always safe to say, and what the proxy records
 * after that makes the reconciler post. So two different clocks may be compared here; the wait is bounded either way.
 */
const awaitOutcome = Effect.fnUntraced(function* (work: Work, rereads: number) {
  const { options, payments, rail } = work.turn
  const { pollIntervalMillis, railTimeoutMillis } = options.settings
  const { payoutId } = work.payout
  const { intentAt } = yield* rail.readSubmission(payoutId)
  const remaining = intentAt + railTimeoutMillis - (yield* Clock.currentTimeMillis)
  let left = Math.min(Math.max(remaining, 0), railTimeoutMillis)
  for (;;) {
    yield* stillHeld(work)
    const payout = yield* payments.readPayout(payoutId)
    if (payout.nextStep !== "AWAIT") return yield* settleRecorded({ ...work, payout }, rereads)
    if (left <= 0) return yield* ambiguous(work, rereads)
    const pause = Math.min(pollIntervalMillis, left)
    yield* Effect.sleep(pause)
    left -= pause
  }
})

/** Every next step but SUBMIT. */
const settleRecorded = (work: Work, rereads: number): Settling => {
  switch (work.payout.nextStep) {
    case "POST":
      return post(work, rereads)
    case "FAIL":
      return Effect.flatMap(work.turn.rail.readSubmission(work.payout.payoutId), ({ outcome }) =>
        fail(work, failReasonOf(outcome), rereads)
      )
    case "AMBIGUOUS":
      return ambiguous(work, rereads)
    case "AWAIT":
      return awaitOutcome(work, rereads)
    default:
      return Effect.succeed("LATER")
  }
}

/**
 * After an answer that decides nothing. If nothing is on record, the request may yet arrive at the proxy, so this turn
 * does not submit again; the next turn's claim shuts the door behind its token first.
 */
const reread = (work: Work, rereads: number): Settling =>
  rereads === 0
    ? Effect.succeed("LATER")
    : Effect.flatMap(work.turn.payments.readPayout(work.payout.payoutId), (payout) =>
        settleRecorded({ ...work, payout }, rereads - 1)
      )

/** R1, once per turn. */
const submit = Effect.fnUntraced(function* (work: Work): Effect.fn.Return<TurnOutcome, Unsettled> {
  const { payout, turn } = work
  const { settings, staleHolder } = turn.options
  const request = turn.rail
    .submit({
      ...underToken(work),
      idempotencyKey: AcquireId.make(payout.payoutId),
      accountId: payout.accountId,
      amountMinor: payout.amountMinor,
      currency: payout.currency,
      beneficiary: payout.beneficiary
    })
    .pipe(boundedBy(settings.railTimeoutMillis, () => backendUnavailable("submit", "no answer in time")))
  const answer = yield* Effect.result(hop(work, "submit", request, ({ outcome }) => outcome))
  if (yield* isStale(work)) return yield* goOnStale(work)
  if (Result.isSuccess(answer)) return yield* post(work, REREADS)
  const error = answer.failure
  switch (error._tag) {
    case "RailDeclined":
      return yield* fail(work, "RAIL_DECLINED", REREADS)
    case "RailAmbiguous":
      return yield* ambiguous(work, REREADS)
    case "DuplicateSubmission":
    case "BackendUnavailable":
      return yield* reread(work, REREADS)
    case "TokenAlreadyUsed":
      return "LATER"
    case "FencedOut":
      return yield* staleHolder ? goOnStale(work) : Effect.fail(error)
    case "ValidationFailed":
      // What was ordered and what was sent differ: nothing was sent, and no later try will do better.
      return yield* Effect.die(error)
    default:
      return yield* error
  }
})

/**
 * The experiment: a worker that lost its lock, was perhaps told FENCED_OUT, and still claims and posts. What it is
 * answered is the point; it never matters to what it does next.
 */
const goOnStale = (work: Work): Settling =>
  Effect.andThen(Effect.result(hop(work, "claim", work.turn.payments.claim(underToken(work)), stateOf)), post(work, 0))

/** Not enough money at the claim: sealed first, so that "never sent" is on record, then failed under the same token. */
const refuseForFunds = (work: Work): Settling =>
  retryOn(
    hop(
      work,
      "seal",
      work.turn.rail.seal({ ...underToken(work), reason: "INSUFFICIENT_FUNDS" }),
      (sealed) => sealed.outcome
    ),
    answerLost,
    retryOf(work)
  ).pipe(
    Effect.matchEffect({
      onSuccess: () => fail(work, "INSUFFICIENT_FUNDS", 0),
      onFailure: (error): Settling => {
        switch (error._tag) {
          case "DuplicateSubmission":
            return reread(work, REREADS)
          case "TokenAlreadyUsed":
            return Effect.succeed("LATER")
          default:
            return Effect.fail(error)
        }
      }
    })
  )

/**
 * A claim was fenced out although the lock service says, asked afterwards, that this token is that of the live grant: then
 * some earlier token of the key was higher, which must never happen (a lock backend restored from a backup).
 */
const watchRegression = (work: Work, fenced: FencedOut): Effect.Effect<void> =>
  Effect.matchEffect(work.lock.renew, {
    onFailure: () => Effect.void,
    onSuccess: () =>
      increment(lockMetrics.tokenRegression).pipe(
        Effect.andThen(Effect.logError("the live grant's token is below the account's fence")),
        Effect.annotateLogs({
          event: "token_regression",
          fencingToken: String(fenced.presented),
          highest: String(fenced.highest)
        })
      )
  })

const claim = (work: Work): Settling =>
  retryOn(hop(work, "claim", work.turn.payments.claim(underToken(work)), stateOf), answerLost, retryOf(work)).pipe(
    Effect.matchEffect({
      onSuccess: (payout) =>
        payout.nextStep === "SUBMIT" ? submit({ ...work, payout }) : settleRecorded({ ...work, payout }, REREADS),
      onFailure: (error): Settling => {
        switch (error._tag) {
          case "FencedOut":
            if (work.turn.options.staleHolder) return submit(work)
            return Effect.andThen(watchRegression(work, error), Effect.fail(error))
          case "InsufficientFunds":
            return refuseForFunds(work)
          case "EvidenceMissing":
            // Sealed since it was read: what is left is to fail it.
            return error.nextStep === "FAIL" ? reread(work, REREADS) : Effect.succeed("LATER")
          case "AccountBusy":
          case "TokenAlreadyUsed":
            return Effect.succeed("LATER")
          default:
            return Effect.fail(error)
        }
      }
    })
  )

/** FR-14: whatever was seen before the lock was held is forgotten. */
const unfinishedOf = Effect.fnUntraced(function* ({ payments }: Turn, accountId: AccountId) {
  const claimed = yield* payments.listPayouts({ accountId, state: "CLAIMED", limit: 1 })
  if (claimed.items[0] !== undefined) return claimed.items[0]
  const pending = yield* payments.listPayouts({ accountId, state: "PENDING", limit: 1 })
  return pending.items[0]
})

const underLock = Effect.fnUntraced(function* (turn: Turn, accountId: AccountId, lock: HeldLock) {
  yield* tell("payout_hop", { op: "acquire", token: String(lock.token), outcome: "GRANTED", accountId })
  yield* reached("acquire.after")
  if (turn.stopping()) return "LATER"
  const payout = yield* unfinishedOf(turn, accountId)
  if (payout === undefined) return "NOTHING"
  const work = { turn, lock, payout }
  // Sealed before it was claimed, and its finisher died: P6 adopts the token, a claim would be refused.
  const sealed = payout.state === "PENDING" && payout.nextStep === "FAIL"
  const outcome = yield* sealed ? settleRecorded(work, REREADS) : claim(work)
  yield* reached("release.before")
  return outcome
})

const settleOne = Effect.fnUntraced(function* (turn: Turn, accountId: AccountId) {
  const key = lockKeyOf(accountId)
  return yield* turn.locks
    .withLock(key)((lock) => {
      const section = Effect.annotateLogs(underLock(turn, accountId, lock), { fencingToken: String(lock.token) })
      return turn.options.staleHolder ? shielded(section) : section
    })
    .pipe(
      Effect.catchTags({
        FencedOut: () => Effect.succeed<TurnOutcome>("FENCED_OUT"),
        LockLost: (lost) =>
          Effect.logWarning("the lock was lost, the turn ends here").pipe(
            Effect.annotateLogs({ event: "lock_lost", outcome: lost.reason }),
            Effect.as<TurnOutcome>("LOCK_LOST")
          ),
        ContentionExceeded: () => Effect.succeed<TurnOutcome>("CONTENDED"),
        LockUnavailable: () => Effect.succeed<TurnOutcome>("UNAVAILABLE"),
        BackendUnavailable: () => Effect.succeed<TurnOutcome>("UNAVAILABLE"),
        IllegalTransition: () => Effect.succeed<TurnOutcome>("LATER"),
        PayoutNotFound: () => Effect.succeed<TurnOutcome>("LATER")
      }),
      Effect.annotateLogs({ accountId, lockKey: key })
    )
}, beginsTrace("PayoutExecutor.turn"))
