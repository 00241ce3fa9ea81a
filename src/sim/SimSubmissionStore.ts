/**
 * The submission record in memory: fence point (c), the one slot of a payout, and what the rail said, over `SimPaydb`.
 * Every operation is one synchronous step, which is what a transaction is here, and refuses before it changes anything:
 * the generators below are of `Result`, so the scheduler can not get in between.
 */
import { Effect, Layer, Result } from "effect"
import { mayAdvance } from "../core/Fencing.ts"
import type { FencingToken, OwnerId } from "../core/lock/Lock.ts"
import { type BackendUnavailable, backendUnavailable, FencedOut } from "../core/lock/LockErrors.ts"
import { DuplicateSubmission, PayoutNotFound, TokenAlreadyUsed } from "../core/payment/PaymentErrors.ts"
import type { PayoutId } from "../core/payment/Payout.ts"
import type { EvidenceRequest, SealRequest, Submission, SubmitRequest } from "../core/rail/RailProxy.ts"
import { type Intent, SubmissionStore } from "../core/rail/SubmissionStore.ts"
import { ValidationFailed } from "../core/RequestFailures.ts"
import type { RailSettings } from "../core/Settings.ts"
import { SimPaydb, type SimPaydbState, type SimPayout, type SimSubmission, submissionOf } from "./SimPaydb.ts"

export interface SimSubmissionStoreOptions {
  /** `rail.fencing.enabled`; default: what the database's switch says, so that the two keys agree. */
  readonly fencingEnabled?: boolean
  /** What stands behind the fence, to be taken away one by one: a run without it must go wrong, or it guards nothing. */
  readonly without?: {
    /** (c2): the payout is CLAIMED under the submitting token. */
    readonly claimant?: boolean
    /** The look at the record before a new one is made, and the unique index of the slot. */
    readonly slot?: boolean
  }
}

type Spend = { readonly payoutId: PayoutId; readonly token: FencingToken; readonly actor: OwnerId }
type FenceOp = "submit" | "void" | "evidence"

const passed: Result.Result<void> = Result.succeed(undefined)

/** What a transaction consists of. */
interface Steps {
  readonly db: SimPaydbState
  readonly fencingEnabled: boolean
  readonly without: NonNullable<SimSubmissionStoreOptions["without"]>
  readonly orderOf: (op: FenceOp, payoutId: PayoutId) => Result.Result<SimPayout, PayoutNotFound | BackendUnavailable>
  readonly fence: (
    op: FenceOp,
    order: SimPayout,
    spend: Spend
  ) => Result.Result<() => void, FencedOut | TokenAlreadyUsed>
  readonly claimant: (op: FenceOp, order: SimPayout, token: FencingToken) => Result.Result<void, FencedOut>
  readonly insert: (order: SimPayout, spend: Spend, reason: string | null) => SimSubmission
}

export const make = Effect.fnUntraced(function* (settings: RailSettings, options: SimSubmissionStoreOptions = {}) {
  const db: SimPaydbState = yield* SimPaydb
  const { fencingEnabled = db.switches.rail, without = {} } = options

  const orderOf = (op: FenceOp, payoutId: PayoutId): Result.Result<SimPayout, PayoutNotFound | BackendUnavailable> => {
    const order = db.payouts.get(payoutId)
    if (order === undefined) return Result.fail(new PayoutNotFound({ payoutId }))
    return db.switches.rail === fencingEnabled
      ? Result.succeed(order)
      : Result.fail(backendUnavailable(op, "rail.fencing.enabled and the switch of the database disagree"))
  }

  /** Fence point (c): the failure, or what to do when the rest of the transaction holds. */
  const fence = (
    op: FenceOp,
    { accountId }: SimPayout,
    { actor, payoutId, token }: Spend
  ): Result.Result<() => void, FencedOut | TokenAlreadyUsed> => {
    const mark = db.highWater.get(accountId)
    const advance = () => void db.highWater.set(accountId, { token, payoutId, actor })
    if (!fencingEnabled || mark === undefined || mayAdvance(mark.token, token)) return Result.succeed(advance)
    if (mark.token !== token) {
      return Result.fail(
        new FencedOut({ point: "rail", op, resource: accountId, presented: token, highest: mark.token })
      )
    }
    return mark.payoutId === payoutId
      ? Result.succeed(() => {})
      : Result.fail(new TokenAlreadyUsed({ payoutId, token }))
  }

  /** (c2), independent of (c): only the current claimant submits, and only what was not sent is voided. */
  const claimant = (op: FenceOp, order: SimPayout, token: FencingToken): Result.Result<void, FencedOut> => {
    const { accountId, claimToken, state } = order
    const allowed = (state === "CLAIMED" && claimToken === token) || (op === "void" && state === "PENDING")
    if (!fencingEnabled || without.claimant === true || allowed) return passed
    const marked = db.highWater.get(accountId)?.token ?? 0n
    const highest = claimToken !== null && claimToken > marked ? claimToken : marked
    return Result.fail(new FencedOut({ point: "rail", op, resource: accountId, presented: token, highest }))
  }

  const insert = (order: SimPayout, { actor, payoutId, token }: Spend, reason: string | null): SimSubmission => {
    const now = db.now()
    const row: SimSubmission = {
      submissionId: `submission-${db.submissions.length + 1}`,
      payoutId,
      accountId: order.accountId,
      token,
      actor,
      fenced: fencingEnabled,
      intentAt: now,
      sendBy: reason === null ? now + settings.sendWindowMillis : now,
      reason,
      outcome: reason === null ? "INTENT" : "VOIDED",
      outcomeAt: reason === null ? null : now,
      railReference: null,
      railCode: null
    }
    db.submissions.push(row)
    return row
  }

  const steps: Steps = { db, fencingEnabled, without, orderOf, fence, claimant, insert }
  const intentOf = (request: SubmitRequest) => Result.gen(() => intent(steps, request))

  const recordOutcome: SubmissionStore["Service"]["recordOutcome"] = (submissionId, outcome, detail) =>
    Effect.suspend(() => {
      const row = db.submissions.find((submission) => submission.submissionId === submissionId)
      if (row === undefined) return Effect.die(`there is no submission ${submissionId}`)
      if (row.outcome === "INTENT") {
        const railReference = detail.railReference ?? null
        const repeated =
          outcome === "ACKED" &&
          row.fenced &&
          db.submissions.some(
            (other) => other.fenced && other.outcome === "ACKED" && other.railReference === railReference
          )
        row.outcome = repeated ? "DUPLICATE_ACK" : outcome
        row.outcomeAt = db.now()
        row.railReference = railReference
        row.railCode = detail.railCode ?? null
      }
      return Effect.succeed(toSubmission(row))
    })

  const sealed = (request: SealRequest) => Result.gen(() => seal(steps, request))

  const evidenceOf = (request: EvidenceRequest) => Result.gen(() => evidence(steps, request))

  const recordLookup: SubmissionStore["Service"]["recordLookup"] = ({ finding, ...found }) =>
    Effect.sync(() => {
      const before = db.lookups.some(({ payoutId, result }) => payoutId === found.payoutId && result === "EXECUTED")
      db.lookups.push({ ...found, result: finding, source: "LOOKUP" })
      const failed = db.payouts.get(found.payoutId)?.state === "FAILED"
      return { lateExecution: finding === "EXECUTED" && failed && !before }
    })

  return SubmissionStore.of({
    recordIntent: (request) => Effect.suspend(() => Effect.fromResult(intentOf(request))),
    recordOutcome,
    read: (payoutId) =>
      Effect.suspend(() => {
        const row = submissionOf(db, payoutId)
        return row === undefined ? Effect.fail(new PayoutNotFound({ payoutId })) : Effect.succeed(toSubmission(row))
      }),
    seal: (request) => Effect.suspend(() => Effect.fromResult(sealed(request))),
    beginLookup: (payoutId) =>
      Effect.suspend(() => {
        const order = db.payouts.get(payoutId)
        return order === undefined
          ? Effect.fail(new PayoutNotFound({ payoutId }))
          : Effect.succeed({ clientReference: order.clientReference, askedAt: db.now() })
      }),
    recordLookup,
    recordEvidence: (request) => Effect.suspend(() => Effect.fromResult(evidenceOf(request))),
    ping: Effect.void,
    guards: Effect.sync(() => ({
      missing: [
        ...(without.claimant === true ? ["trigger rail_submission.aa_birth"] : []),
        ...(without.slot === true ? ["unique index rail_submission_one_per_payout"] : [])
      ],
      switchOn: db.switches.rail,
      unfencedRows: db.submissions.some(({ fenced }) => !fenced)
    }))
  })
})

// The transactions, made once for all worlds: a generator function that is made in one keeps it (see Speed in the docs).

function* intent({ claimant, db, fence, fencingEnabled, insert, orderOf, without }: Steps, request: SubmitRequest) {
  const { payoutId, token } = request
  const order = yield* orderOf("submit", payoutId)
  const differs = differences(request, order)
  if (differs.length > 0) yield* Result.fail(new ValidationFailed({ fields: differs }))
  const advance = yield* fence("submit", order, request)
  const ownOnly = !fencingEnabled || without.slot === true
  const existing = ownOnly
    ? db.submissions.find((row) => row.payoutId === payoutId && row.token === token)
    : submissionOf(db, payoutId)
  if (existing === undefined) yield* claimant("submit", order, token)
  advance()
  if (existing === undefined) {
    const { sendBy, submissionId } = insert(order, request, null)
    const intent: Intent = { _tag: "Send", submissionId, clientReference: order.clientReference, sendBy }
    return intent
  }
  const intent: Intent = {
    _tag: "Recorded",
    submission: toSubmission(existing),
    railCode: existing.railCode,
    sameToken: existing.token === token
  }
  return intent
}

function* seal({ claimant, db, fence, insert, orderOf }: Steps, request: SealRequest) {
  const { payoutId, reason, token } = request
  const order = yield* orderOf("void", payoutId)
  const advance = yield* fence("void", order, request)
  const existing = submissionOf(db, payoutId)
  if (existing === undefined) yield* claimant("void", order, token)
  advance()
  const row = existing ?? insert(order, request, reason)
  if (row.outcome !== "VOIDED") {
    yield* Result.fail(new DuplicateSubmission({ payoutId, outcome: row.outcome, token: row.token }))
  }
  return toSubmission(row)
}

function* evidence({ db, fence, orderOf }: Steps, { actor, finding, payoutId, railReference, token }: EvidenceRequest) {
  const order = yield* orderOf("evidence", payoutId)
  const advance = yield* fence("evidence", order, { payoutId, token, actor })
  advance()
  const found = { payoutId, executedCount: finding === "EXECUTED" ? 1 : 0, railReference: railReference ?? null }
  db.lookups.push({ ...found, result: finding, source: "OPERATOR", actor, askedAt: db.now() })
  return { ...found, finding }
}

export const layer = (
  settings: RailSettings,
  options?: SimSubmissionStoreOptions
): Layer.Layer<SubmissionStore, never, SimPaydb> => Layer.effect(SubmissionStore, make(settings, options))

const toSubmission = ({
  intentAt,
  outcome,
  outcomeAt,
  payoutId,
  railReference,
  sendBy,
  token
}: SimSubmission): Submission => ({ payoutId, token, outcome, railReference, intentAt, sendBy, outcomeAt })

/** What is sent is what was ordered: each field of the request that says something else. */
const differences = (request: SubmitRequest, order: SimPayout) =>
  (["accountId", "amountMinor", "currency", "beneficiary"] as const)
    .filter((field) => request[field] !== order[field])
    .map((field) => ({ path: `payload.${field}`, reason: "differs from the order" }))
