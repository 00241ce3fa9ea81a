/**
 * The only way to the rail: record the intent, send once, record the outcome.
 *
 * - Nothing is sent without a confirmed commit of its intent; whose intent it is sends, once, and nobody else ever.
 * - Nothing is sent late. R1 has one budget on the monotonic clock, counted from before the intent is recorded, and the
 *   send starts within the first part of it. The record's `sendBy` is the store's clock in the statement plus the same
 *   window, so it is never earlier than the limit that is kept here.
 * - Once it has begun, a submission runs to its recorded outcome whatever becomes of its caller, and a stopping process
 *   waits for it. A caller that waits long enough is answered before its own timeout ends.
 * - Nothing but an explicit, parsed refusal is a decline. Everything else is TIMEOUT: money may have moved.
 *
 * The hole that no fence can close, since the rail takes no token: this process is stopped between the check of the send
 * window and the write to the socket (`rail.send.before`), and wakes after the payout was settled as never sent.
 *
 *     proxy       intent committed, window open, stopped
 *     reconciler  rail: NOT_FOUND, and again after the finality window: FAILED, funds released
 *     proxy       wakes, writes to the socket: paid
 *
 * A stop of any length before the check sends nothing. The rest is found by the rail's book: `lookup` sees the execution
 * of a FAILED payout, counts it and pages, and an ADJUSTMENT journal closes it.
 */
import { Clock, Effect, Fiber, FiberSet, Layer } from "effect"
import { reached } from "../../core/FaultPoint.ts"
import type { BackendUnavailable, FencedOut } from "../../core/lock/LockErrors.ts"
import { logError, logInfo } from "../../core/Log.ts"
import * as Metrics from "../../core/Metrics.ts"
import {
  DuplicateSubmission,
  type PayoutNotFound,
  RailAmbiguous,
  RailDeclined,
  type TokenAlreadyUsed
} from "../../core/payment/PaymentErrors.ts"
import type { PayoutId } from "../../core/payment/Payout.ts"
import { Rail, type RailAnswer, RailNoAnswer } from "../../core/rail/Rail.ts"
import {
  type EvidenceRequest,
  type LookupFinding,
  RailProxy,
  type SealRequest,
  type Submission,
  type SubmitRequest
} from "../../core/rail/RailProxy.ts"
import { type Intent, SubmissionStore } from "../../core/rail/SubmissionStore.ts"
import type { ValidationFailed } from "../../core/RequestFailures.ts"
import { pauseMillis } from "../../core/Retry.ts"
import { defaults, type RailSettings } from "../../core/Settings.ts"
import { spanned } from "../../core/Span.ts"

/** After the budget the outcome is written; the caller is told that it is not known yet when that takes longer. */
const answerSlackMillis = 1_000
/** The outcome is written again and again for so long; then the record keeps its intent, which is ambiguous too. */
const outcomeWriteMillis = 10_000

type Acked = { readonly payoutId: PayoutId; readonly outcome: "ACKED"; readonly railReference: string }
type SubmitFailure =
  | FencedOut
  | TokenAlreadyUsed
  | DuplicateSubmission
  | RailAmbiguous
  | RailDeclined
  | PayoutNotFound
  | ValidationFailed
  | BackendUnavailable

const nanos = (millis: number): bigint => BigInt(millis) * 1_000_000n

/** What the operations of a proxy share. */
interface Proxy {
  readonly store: SubmissionStore["Service"]
  readonly rail: Rail["Service"]
  readonly submissions: FiberSet.FiberSet<Acked, SubmitFailure>
  readonly settings: RailSettings
}

export const make = Effect.fnUntraced(function* (settings: RailSettings) {
  const store = yield* SubmissionStore
  const rail = yield* Rail
  const submissions = yield* FiberSet.make<Acked, SubmitFailure>()
  // Runs before the set interrupts what is left in it: a stopping process drains, each within its budget.
  yield* Effect.addFinalizer(() => FiberSet.awaitEmpty(submissions))
  const proxy: Proxy = { store, rail, submissions, settings }

  return RailProxy.of({
    submit: (request) => submit(proxy, request),
    readSubmission: store.read,
    lookup: (request) => lookup(proxy, request),
    seal: (request) => seal(proxy, request),
    evidence: (request) => evidence(proxy, request)
  })
})

/** The one call to the rail, bounded by what is left of the budget. */
const send = Effect.fnUntraced(function* (
  { rail, settings }: Proxy,
  request: SubmitRequest,
  clientReference: string,
  startedAt: bigint
) {
  const sendNotAfter = startedAt + nanos(settings.sendWindowMillis)
  const now = yield* Clock.monotonicTimeNanos
  if (now > sendNotAfter) return yield* new RailNoAnswer({ cause: "the send window has passed", neverSent: true })
  const { amountMinor, beneficiary, currency } = request
  const left = startedAt + nanos(settings.readTimeoutMillis) - now
  return yield* rail.submit({ clientReference, amountMinor, currency, beneficiary }, sendNotAfter).pipe(
    Effect.timeoutOrElse({
      duration: Number(left / 1_000_000n),
      orElse: () => Effect.fail(new RailNoAnswer({ cause: "no answer in time", neverSent: false }))
    })
  )
})

/** A write to the database, not to the rail: repeating it is safe, and ACKED is answered only when it is confirmed. */
const recordOutcome = Effect.fnUntraced(function* (
  { store }: Proxy,
  submissionId: string,
  result: RailAnswer | RailNoAnswer
) {
  const giveUpAt = (yield* Clock.monotonicTimeNanos) + nanos(outcomeWriteMillis)
  const write =
    result._tag === "Acknowledged"
      ? store.recordOutcome(submissionId, "ACKED", { railReference: result.railReference })
      : result._tag === "Declined"
        ? store.recordOutcome(submissionId, "DECLINED", { railCode: result.code })
        : store.recordOutcome(submissionId, "TIMEOUT", {})
  const attempt = (tries: number): Effect.Effect<Submission, BackendUnavailable> =>
    Effect.catchTag(write, "BackendUnavailable", (failure) =>
      Effect.flatMap(Clock.monotonicTimeNanos, (now) =>
        now > giveUpAt
          ? Effect.fail(failure)
          : Effect.flatMap(pauseMillis(defaults.client.retry, tries), (pause) =>
              Effect.delay(attempt(tries + 1), pause)
            )
      )
    )
  return yield* attempt(1)
})

const forward = Effect.fnUntraced(function* (
  proxy: Proxy,
  request: SubmitRequest,
  intent: Extract<Intent, { readonly _tag: "Send" }>,
  startedAt: bigint
): Effect.fn.Return<Acked, RailAmbiguous | RailDeclined> {
  const { payoutId } = request
  yield* logInfo("intent recorded, sending once", {
    event: "rail_intent",
    clientReference: intent.clientReference,
    sendBy: intent.sendBy
  })
  yield* reached("rail.intent.after")
  const result = yield* send(proxy, request, intent.clientReference, startedAt).pipe(
    Effect.catchTag("RailNoAnswer", Effect.succeed),
    Metrics.timed((exit) =>
      exit._tag === "Success" ? Metrics.rail.submit[seriesOf(exit.value)] : Metrics.rail.submit.timeout
    )
  )
  yield* reached("rail.send.after")
  yield* reached("rail.outcome.before")
  const submission = yield* recordOutcome(proxy, intent.submissionId, result).pipe(
    Effect.catchTag("BackendUnavailable", ({ cause }) =>
      Effect.logError("the outcome could not be recorded: the payout is ambiguous").pipe(
        Effect.annotateLogs({ event: "rail_outcome", outcome: "INTENT", result: result._tag, cause }),
        Effect.andThen(Effect.fail(new RailAmbiguous({ payoutId, outcome: "INTENT" })))
      )
    )
  )
  yield* reached("rail.outcome.after")
  const { outcome, railReference } = submission
  yield* (outcome === "ACKED" || outcome === "DECLINED" ? logInfo : logError)("outcome recorded", {
    event: "rail_outcome",
    outcome,
    railReference,
    ...(result._tag === "RailNoAnswer" ? { cause: result.cause, neverSent: result.neverSent } : {}),
    ...(result._tag === "Declined" ? { railCode: result.code } : {})
  })
  if (outcome === "ACKED") return yield* acked(submission)
  if (outcome === "DECLINED") {
    return yield* new RailDeclined({ payoutId, railCode: result._tag === "Declined" ? result.code : null })
  }
  if (outcome === "DUPLICATE_ACK") yield* Metrics.increment(Metrics.railEvidence.duplicateDetected)
  return yield* new RailAmbiguous({ payoutId, outcome })
})

/** There was a record already: it is answered, and nothing is sent. */
const answerRecord = Effect.fnUntraced(function* (
  payoutId: PayoutId,
  { railCode, sameToken, submission }: Extract<Intent, { readonly _tag: "Recorded" }>
): Effect.fn.Return<Acked, DuplicateSubmission | RailAmbiguous | RailDeclined> {
  const { outcome, token } = submission
  if (!sameToken || outcome === "VOIDED") {
    yield* Metrics.increment(Metrics.rail.duplicateAttempted)
    yield* Effect.logError("a second submission of a payout was attempted and not sent").pipe(
      Effect.annotateLogs({ event: "rail_duplicate_attempted", outcome, submittedUnder: String(token) })
    )
    return yield* new DuplicateSubmission({ payoutId, outcome, token })
  }
  if (outcome === "ACKED") return yield* acked(submission)
  if (outcome === "DECLINED") return yield* new RailDeclined({ payoutId, railCode })
  return yield* new RailAmbiguous({ payoutId, outcome })
})

const run = Effect.fnUntraced(function* (
  proxy: Proxy,
  request: SubmitRequest,
  startedAt: bigint
): Effect.fn.Return<Acked, SubmitFailure> {
  yield* reached("rail.intent.before")
  const intent = yield* proxy.store.recordIntent(request)
  return intent._tag === "Send"
    ? yield* forward(proxy, request, intent, startedAt)
    : yield* answerRecord(request.payoutId, intent)
})

const submit = Effect.fnUntraced(function* (proxy: Proxy, request: SubmitRequest) {
  const { settings, submissions } = proxy
  const startedAt = yield* Clock.monotonicTimeNanos
  // A fiber of its own: an interrupted caller (a client that hung up) leaves it running.
  const running = yield* FiberSet.run(submissions, run(proxy, request, startedAt).pipe(watched, attributed(request)))
  return yield* Fiber.join(running).pipe(
    Effect.timeoutOrElse({
      duration: settings.readTimeoutMillis + answerSlackMillis,
      orElse: () => Effect.fail(new RailAmbiguous({ payoutId: request.payoutId, outcome: "INTENT" }))
    })
  )
}, spanned("RailService.submit"))

const lookup = Effect.fnUntraced(
  function* ({ rail, settings, store }: Proxy, request: Parameters<RailProxy["Service"]["lookup"]>[0]) {
    const { actor, payoutId } = request
    const { askedAt, clientReference } = yield* store.beginLookup(payoutId)
    const found = yield* rail.lookup(clientReference).pipe(
      Effect.timeoutOrElse({
        duration: settings.readTimeoutMillis,
        orElse: () => Effect.fail(new RailNoAnswer({ cause: "no answer in time", neverSent: false }))
      }),
      Effect.catchTag("RailNoAnswer", ({ cause }) =>
        Effect.as(Effect.logWarning("the rail's lookup gave no answer", cause), { _tag: "UNAVAILABLE" } as const)
      )
    )
    const executed = found._tag === "EXECUTED"
    const finding: LookupFinding = {
      payoutId,
      finding: found._tag,
      executedCount: executed ? found.count : 0,
      railReference: executed ? found.railReference : null
    }
    const { lateExecution } = yield* store.recordLookup({ ...finding, actor, askedAt })
    if (lateExecution) {
      yield* Metrics.increment(Metrics.railEvidence.lateExecution)
      yield* Effect.logError("the rail executed a payout that had failed: adjust the ledger").pipe(
        Effect.annotateLogs({ event: "late_execution", railReference: finding.railReference })
      )
    }
    if (finding.executedCount > 1) {
      yield* Metrics.increment(Metrics.railEvidence.duplicateDetected)
      yield* Effect.logError("the rail executed a payout more than once").pipe(
        Effect.annotateLogs({ event: "rail_duplicate_detected", executedCount: finding.executedCount })
      )
    }
    return finding
  },
  (effect, _proxy, { actor, payoutId }) => Effect.annotateLogs(effect, { payoutId, actor }),
  spanned("RailService.lookup")
)

const seal = Effect.fnUntraced(function* ({ store }: Proxy, request: SealRequest) {
  return yield* store.seal(request).pipe(
    Effect.tap(({ token }) =>
      Effect.logInfo("sealed: nothing was and nothing will be sent").pipe(
        Effect.annotateLogs({
          event: "rail_outcome",
          outcome: "VOIDED",
          reason: request.reason,
          sealedUnder: String(token)
        })
      )
    ),
    watched,
    attributed(request)
  )
}, spanned("RailService.seal"))

const evidence = Effect.fnUntraced(function* ({ store }: Proxy, request: EvidenceRequest) {
  return yield* store.recordEvidence(request).pipe(
    Effect.tap(({ finding, railReference }) =>
      Effect.logWarning("an operator gave evidence").pipe(
        Effect.annotateLogs({ event: "rail_evidence", finding, railReference, reason: request.reason })
      )
    ),
    watched,
    attributed(request)
  )
}, spanned("RailService.evidence"))

export const layer = (settings: RailSettings): Layer.Layer<RailProxy, never, SubmissionStore | Rail> =>
  Layer.effect(RailProxy, make(settings))

/** ACKED is never recorded without the rail's reference. */
const acked = ({ payoutId, railReference }: Submission): Effect.Effect<Acked> =>
  railReference === null
    ? Effect.die(`submission of ${payoutId}: ACKED without a rail reference`)
    : Effect.succeed({ payoutId, outcome: "ACKED", railReference })

const seriesOf = (result: RailAnswer | RailNoAnswer): keyof typeof Metrics.rail.submit =>
  result._tag === "Acknowledged" ? "acked" : result._tag === "Declined" ? "declined" : "timeout"

/** A stale token at this fence is an incident: counted and told with its whole context, and passed on unchanged. */
const watched = <A, E extends { readonly _tag: string }, R>(self: Effect.Effect<A, E | FencedOut, R>) =>
  Effect.tapError(self, (failure) => {
    if (!isFencedOut(failure)) return Effect.void
    const { highest, op, point, presented, resource } = failure
    const counted = op === "submit" || op === "void" || op === "evidence" ? Metrics.rail.fencedOut[op] : undefined
    return Effect.logError("a stale token met the rail fence").pipe(
      Effect.annotateLogs({
        event: "fenced_out",
        point,
        op,
        accountId: resource,
        fencingToken: String(presented),
        highest: String(highest)
      }),
      Effect.andThen(counted === undefined ? Effect.void : Metrics.increment(counted))
    )
  })

const isFencedOut = (failure: { readonly _tag: string }): failure is FencedOut => failure._tag === "FencedOut"

const attributed =
  (request: Pick<SealRequest, "payoutId" | "token" | "actor">) =>
  <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.annotateLogs(self, {
      payoutId: request.payoutId,
      fencingToken: String(request.token),
      actor: request.actor
    })
