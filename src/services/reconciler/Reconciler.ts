/**
 * Settles what nobody knows: each RAIL_AMBIGUOUS payout, by asking the rail what it did and by nothing else.
 *
 * A payout gets here when the rail's answer is unknown; from then on no token can submit it. The rail's read-only lookup is
 * asked by client reference and its answer recorded as evidence; the database alone judges it (`rail_verdict`): an execution
 * counts at once, "not found" only after the finality window and more than once. Without a verdict the payout stays
 * ambiguous, however long; past the deadline that the business set it is escalated to a human and still stays.
 *
 * The reconciler is a writer of the account like any other: it holds the lock and presents its token, so that two
 * reconcilers, or one that was stopped and came back, can not both settle a payout.
 *
 * It also keeps asking about payouts that FAILED on the rail's word. A proxy that is stopped between its last check and the
 * socket write, for longer than the finality window, sends after everybody believed it never would; no fence can close that
 * hole, since the rail takes no token. Such a late execution is found here and paged. Correcting the books is an operator's
 * decision, never a change of the payout's state.
 */
import { Cause, Clock, Context, Effect, Layer, Random, Result } from "effect"
import { codeOf } from "../../core/ErrorCode.ts"
import { reached } from "../../core/FaultPoint.ts"
import type { OwnerId } from "../../core/lock/Lock.ts"
import type { BackendUnavailable } from "../../core/lock/LockErrors.ts"
import { logError, logInfo } from "../../core/Log.ts"
import { increment, railEvidence, reconciler as reconcilerMetrics, setToNow } from "../../core/Metrics.ts"
import { PaymentResource } from "../../core/payment/PaymentResource.ts"
import { lockKeyOf, type Payout, type PayoutId, type PayoutState } from "../../core/payment/Payout.ts"
import { RailProxy } from "../../core/rail/RailProxy.ts"
import type { ReconcileSettings } from "../../core/Settings.ts"
import { beginsTrace } from "../../core/Span.ts"
import { type HeldLock, LockClient } from "../lock-client/LockClient.ts"

export interface ReconcilerOptions {
  readonly actor: OwnerId
  readonly settings: ReconcileSettings
}

/**
 * - POSTED, FAILED: settled
 * - UNKNOWN: the evidence proves nothing yet
 * - ESCALATED: contradicting evidence, or unknown for longer than the deadline; a human decides
 * - GONE: it was settled by another
 * - LATER: no lock, no answer, or fenced out; nothing was changed
 */
export type Reconciled = "POSTED" | "FAILED" | "UNKNOWN" | "ESCALATED" | "GONE" | "LATER"

export class Reconciler extends Context.Service<
  Reconciler,
  {
    /** One payout, lock and all. */
    readonly reconcile: (payout: Payout) => Effect.Effect<Reconciled>
    /** Every ambiguous payout once, then the look for late executions. */
    readonly pass: Effect.Effect<ReadonlyMap<PayoutId, Reconciled>, BackendUnavailable>
    /** A pass per interval, until interrupted. */
    readonly run: Effect.Effect<never>
  }
>()("dlock/services/reconciler/Reconciler") {}

const PAGE_SIZE = 100
/** Payouts worked on at once: a rail that does not answer must not make one pass last for hours. */
const CONCURRENCY = 4
/** For how long a FAILED payout is watched. The rail's own return period is a matter of days. */
const WATCH_MILLIS = 24 * 60 * 60 * 1_000

export const layer = (
  options: ReconcilerOptions
): Layer.Layer<Reconciler, never, PaymentResource | RailProxy | LockClient> => Layer.effect(Reconciler, make(options))

/** What the parts of a reconciler share. */
interface Instance {
  readonly payments: PaymentResource["Service"]
  readonly rail: RailProxy["Service"]
  readonly locks: LockClient["Service"]
  readonly actor: OwnerId
  readonly settings: ReconcileSettings
  /** Told once per process: the gauge of the oldest ambiguous payout keeps paging by itself. */
  readonly escalated: Set<PayoutId>
  readonly late: Set<PayoutId>
  /** FAILED payouts up to here are too old to be watched. */
  watchFrom: PayoutId | undefined
  /** When a watched payout is asked about again; its age doubles the pause. */
  readonly nextWatch: Map<PayoutId, number>
}

const make = Effect.fnUntraced(function* ({ actor, settings }: ReconcilerOptions) {
  const instance: Instance = {
    payments: yield* PaymentResource,
    rail: yield* RailProxy,
    locks: yield* LockClient,
    actor,
    settings,
    escalated: new Set(),
    late: new Set(),
    watchFrom: undefined,
    nextWatch: new Map()
  }
  const pass = passOf(instance)
  const run = pass.pipe(
    Effect.asVoid,
    Effect.catchTag("BackendUnavailable", later("reconcile_skipped")),
    // A defect ends one pass, not the reconciler.
    Effect.catchCauseIf(
      (cause) => !Cause.hasInterruptsOnly(cause),
      (cause) => Effect.logError("a reconciliation pass died", cause)
    ),
    Effect.andThen(Effect.sleep(settings.intervalMillis)),
    Effect.forever
  )
  return { reconcile: (payout: Payout) => reconcile(instance, payout), pass, run }
})

const everyPage = Effect.fnUntraced(function* ({ payments }: Instance, state: PayoutState, from: PayoutId | undefined) {
  const items: Array<Payout> = []
  let after = from
  do {
    const page = yield* payments.listPayouts({ state, limit: PAGE_SIZE, after })
    items.push(...page.items)
    after = page.next ?? undefined
  } while (after !== undefined)
  return items
})

/** One step that asks somebody else: check, (the window), ask, say what was answered. */
const hop = Effect.fnUntraced(function* <A, E extends { readonly _tag: string }>(
  lock: HeldLock,
  op: "lookup" | "resolve",
  request: Effect.Effect<A, E>,
  outcomeOf: (answer: A) => string
) {
  yield* lock.checkStillHeld
  yield* reached(`${op}.before`)
  const answer = yield* Effect.result(request)
  const outcome = Result.isSuccess(answer) ? outcomeOf(answer.success) : codeOf(answer.failure)
  yield* (outcome === "FENCED_OUT" ? logError : logInfo)(`${op} was answered ${outcome}`, {
    event: "payout_hop",
    op,
    token: String(lock.token),
    outcome
  })
  yield* reached(`${op}.after`)
  return yield* Effect.fromResult(answer)
})

const escalate = Effect.fnUntraced(function* ({ escalated }: Instance, payout: Payout, why: string) {
  if (escalated.has(payout.payoutId)) return
  escalated.add(payout.payoutId)
  yield* Effect.logError("an ambiguous payout needs a human").pipe(
    Effect.annotateLogs({ event: "payout_escalated", outcome: why, clientReference: payout.clientReference })
  )
})

/** Escalation changes nothing; so the wall clock, which may be wrong, may decide it. */
const unknown = Effect.fnUntraced(function* (instance: Instance, payout: Payout) {
  const ageMillis = (yield* Clock.currentTimeMillis) - payout.updatedAt
  if (ageMillis < instance.settings.slaMillis) return "UNKNOWN" as const
  yield* escalate(instance, payout, `ambiguous for ${Math.floor(ageMillis / 60_000)} min`)
  return "ESCALATED" as const
})

const underLock = Effect.fnUntraced(function* (instance: Instance, payoutId: PayoutId, lock: HeldLock) {
  const { actor, payments, rail } = instance
  yield* reached("reconcile.acquire.after")
  let payout = yield* payments.readPayout(payoutId)
  if (payout.state !== "RAIL_AMBIGUOUS") return "GONE" as const
  if (payout.nextStep === "LOOKUP") {
    const found = yield* hop(lock, "lookup", rail.lookup({ payoutId, actor }), (answer) => answer.finding)
    if (found.executedCount > 1) yield* duplicateDetected(payout, found.executedCount)
    payout = yield* payments.readPayout(payoutId)
  }
  if (payout.nextStep === "ESCALATE") {
    yield* escalate(instance, payout, "the evidence contradicts itself")
    return "ESCALATED" as const
  }
  if (payout.nextStep !== "RESOLVE") return yield* unknown(instance, payout)
  const resolved = yield* hop(
    lock,
    "resolve",
    payments.resolve({ payoutId, token: lock.token, actor }),
    (answer) => answer.state
  )
  yield* reached("reconcile.release.before")
  return resolved.state === "POSTED" ? ("POSTED" as const) : ("FAILED" as const)
})

const duplicateDetected = (payout: Payout, count: number) =>
  Effect.logError("the rail executed a payout more than once").pipe(
    Effect.annotateLogs({ event: "rail_duplicate_detected", count, clientReference: payout.clientReference }),
    Effect.andThen(increment(railEvidence.duplicateDetected))
  )

const later = (event: string) => (error: { readonly _tag: string }) =>
  Effect.logInfo("left for a later pass").pipe(
    Effect.annotateLogs({ event, outcome: codeOf(error) }),
    Effect.as<Reconciled>("LATER")
  )

const reconcile = Effect.fnUntraced(function* (instance: Instance, payout: Payout) {
  const { accountId, payoutId } = payout
  const key = lockKeyOf(accountId)
  return yield* instance.locks
    .withLock(key)((lock) =>
      Effect.annotateLogs(underLock(instance, payoutId, lock), { fencingToken: String(lock.token) })
    )
    .pipe(
      Effect.catchTags({
        // Already told at ERROR by the hop. Not repeated under this token; the next pass has another.
        FencedOut: () => Effect.succeed<Reconciled>("LATER"),
        LockLost: later("lock_lost"),
        ContentionExceeded: later("payout_requeued"),
        LockUnavailable: later("payout_requeued"),
        BackendUnavailable: later("payout_requeued"),
        EvidenceMissing: later("payout_requeued"),
        IllegalTransition: () => Effect.succeed<Reconciled>("GONE"),
        PayoutNotFound: () => Effect.succeed<Reconciled>("GONE")
      }),
      Effect.annotateLogs({ payoutId, accountId, lockKey: key })
    )
}, beginsTrace("Reconciler.reconcile"))

/** A payout that FAILED although something was, or may have been, sent. The rest never left the house. */
const mayStillExecute = (payout: Payout) =>
  payout.failReason === "RAIL_NOT_EXECUTED" || payout.failReason === "RAIL_DECLINED"

const watchFailed = Effect.fnUntraced(function* (instance: Instance) {
  const { nextWatch } = instance
  const failed = yield* everyPage(instance, "FAILED", instance.watchFrom)
  const now = yield* Clock.currentTimeMillis
  const tooOld = (payout: Payout) => now - payout.updatedAt > WATCH_MILLIS
  // The list is in order of creation, so only a leading run of old ones may be skipped for ever.
  for (const payout of failed) {
    if (!tooOld(payout)) break
    instance.watchFrom = payout.payoutId
    nextWatch.delete(payout.payoutId)
  }
  const due = failed.filter(
    (payout) => mayStillExecute(payout) && !tooOld(payout) && (nextWatch.get(payout.payoutId) ?? 0) <= now
  )
  yield* Effect.forEach(due, (payout) => lookForLate(instance, payout), { concurrency: CONCURRENCY, discard: true })
})

const lookForLate = Effect.fnUntraced(
  function* ({ actor, late, nextWatch, rail, settings }: Instance, payout: Payout) {
    const { payoutId } = payout
    const now = yield* Clock.currentTimeMillis
    nextWatch.set(payoutId, now + Math.max(settings.intervalMillis, now - payout.updatedAt))
    const found = yield* rail.lookup({ payoutId, actor })
    if (found.finding !== "EXECUTED" || late.has(payoutId)) return
    late.add(payoutId)
    yield* increment(railEvidence.lateExecution)
    yield* Effect.logError("the rail executed a payout that had failed: adjust the ledger").pipe(
      Effect.annotateLogs({
        event: "late_execution",
        clientReference: payout.clientReference,
        railReference: found.railReference,
        count: found.executedCount
      })
    )
  },
  (effect, _instance, payout) =>
    effect.pipe(
      Effect.catchTags({
        BackendUnavailable: later("payout_requeued"),
        PayoutNotFound: later("payout_requeued")
      }),
      Effect.annotateLogs({ payoutId: payout.payoutId, accountId: payout.accountId })
    )
)

const passOf = Effect.fnUntraced(function* (instance: Instance) {
  const ambiguous = yield* Effect.flatMap(everyPage(instance, "RAIL_AMBIGUOUS", undefined), Random.shuffle)
  const settled = yield* Effect.forEach(
    ambiguous,
    (payout) => Effect.map(reconcile(instance, payout), (outcome) => [payout.payoutId, outcome] as const),
    { concurrency: CONCURRENCY }
  )
  yield* watchFailed(instance)
  yield* setToNow(reconcilerMetrics.lastSuccess)
  return new Map(settled)
})
