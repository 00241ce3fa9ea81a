/**
 * The submission record in paydb, as role `dlock_rail`: fence point (c), the one slot of a payout, and what the rail said.
 *
 * - The fence is one statement: the high-water mark of the account advances if, and only if, the token is above it. Its
 *   row stays locked until the intent is committed, so submissions of one account queue here. It is the first row locked,
 *   the payout the second, as everywhere.
 * - (c2), the payout is CLAIMED under this very token, and the unique index of the slot are in the database.
 * - The kill switch is in two places, the setting and `fencing_switch`, and both must agree: nothing is recorded while
 *   they do not. With the fence off nothing is compared, a second submission of a payout is another row, and every row
 *   carries `fenced = false`.
 */
import { PgClient } from "@effect/sql-pg"
import { Effect, Layer } from "effect"
import { SqlError } from "effect/sql"
import { boundedBy } from "../../core/Bound.ts"
import { FencingToken } from "../../core/lock/Lock.ts"
import { type BackendUnavailable, backendUnavailable, FencedOut } from "../../core/lock/LockErrors.ts"
import {
  DuplicateSubmission,
  PayoutNotFound,
  RailAmbiguous,
  TokenAlreadyUsed
} from "../../core/payment/PaymentErrors.ts"
import type { PayoutId, SubmissionOutcome } from "../../core/payment/Payout.ts"
import type { LookupFinding, SealRequest, Submission, SubmitRequest } from "../../core/rail/RailProxy.ts"
import { type Intent, SubmissionStore } from "../../core/rail/SubmissionStore.ts"
import { ValidationFailed } from "../../core/RequestFailures.ts"
import * as Pg from "../platform/Pg.ts"
import * as PgFence from "../platform/PgFence.ts"

export interface PgSubmissionStoreOptions {
  /** `rail.fencing.enabled` */
  readonly fencingEnabled: boolean
  readonly sendWindowMillis: number
  /** Boot id of this process: the one that may send what it recorded. */
  readonly proxyInstance: string
}

/** Every call ends within this, one way or the other. An intent has its send window at most. */
const callTimeoutMillis = 2_000

interface SubmissionRow {
  readonly submission_id: string
  readonly token: bigint
  readonly outcome: SubmissionOutcome
  readonly rail_ref: string | null
  readonly rail_code: string | null
  readonly intent_at: bigint
  readonly send_by: bigint
  readonly outcome_at: bigint | null
}

interface OrderRow {
  readonly account_id: string
  readonly currency: string
  readonly amount_minor: bigint
  readonly client_ref: string
  readonly beneficiary_ref: string
  readonly switch_on: boolean
}

type Spend = Pick<SealRequest, "payoutId" | "token" | "actor">
type FenceOp = "submit" | "void" | "evidence"

export const make = Effect.fnUntraced(function* (options: PgSubmissionStoreOptions) {
  const sql = yield* PgClient.PgClient
  const { fencingEnabled } = options

  /**
   * A connection that breaks in a transaction breaks its ROLLBACK too, and `withTransaction` makes a defect of that. It is
   * none: the server rolls back what nobody can commit any more.
   */
  const transaction = <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E | SqlError.SqlError, R> =>
    Effect.catchDefect(sql.withTransaction(self), (defect) =>
      SqlError.isSqlError(defect) ? Effect.fail(defect) : Effect.die(defect)
    )

  const columns = sql.literal(`submission_id::text, token, coalesce(outcome, 'INTENT') AS outcome, rail_ref, rail_code,
    floor(extract(epoch FROM intent_at) * 1000)::int8 AS intent_at, floor(extract(epoch FROM send_by) * 1000)::int8 AS send_by,
    floor(extract(epoch FROM outcome_at) * 1000)::int8 AS outcome_at`)

  /** The order as it was given, and whether the two keys of the kill switch agree. */
  const orderOf = Effect.fnUntraced(function* (operation: string, payoutId: PayoutId) {
    const [order] = yield* sql<OrderRow>`
      SELECT account_id, currency, amount_minor, client_ref, beneficiary_ref,
             (SELECT enabled FROM pay.fencing_switch WHERE point = 'rail') AS switch_on
        FROM pay.payout WHERE payout_id = ${payoutId}::uuid`
    if (order === undefined) return yield* new PayoutNotFound({ payoutId })
    if (order.switch_on !== fencingEnabled) return yield* disagreement(operation)
    return order
  })

  const fence = PgFence.make(sql, {
    point: "rail",
    table: "pay.rail_high_water",
    resource: "account_id",
    highest: "highest_token",
    enabled: fencingEnabled
  })

  /**
   * Fence point (c). A refused statement has locked the row as well, so what is read after it is why.
   *
   *     W1 holds 7 and is stopped; W2 gets 8 and submits: mark 8. W1 wakes and submits under 7: no row, fenced out.
   */
  const spend = (op: FenceOp, accountId: string, { actor, payoutId, token }: Spend) =>
    fence
      .claim(op, accountId, token, { payout_id: sql`${payoutId}::uuid`, actor: sql`${actor}`, updated_at: sql`now()` })
      .pipe(
        Effect.catchTag("FencedOut", (refused): Effect.Effect<void, FencedOut | TokenAlreadyUsed | SqlError.SqlError> =>
          refused.highest === token
            ? Effect.flatMap(
                sql`SELECT true FROM pay.rail_high_water WHERE account_id = ${accountId} AND payout_id = ${payoutId}::uuid`,
                // Spent on this payout: the same request again. One grant serves one payout.
                (rows) => (rows.length > 0 ? Effect.void : Effect.fail(new TokenAlreadyUsed({ payoutId, token })))
              )
            : Effect.fail(refused)
        )
      )

  /** The submission that counts; in the experiment the one of this token, since there every token has its own. */
  const recorded = (payoutId: PayoutId, token: FencingToken | undefined) =>
    Effect.map(
      token === undefined
        ? sql<SubmissionRow>`SELECT ${columns} FROM pay.payout_submission WHERE payout_id = ${payoutId}::uuid`
        : sql<SubmissionRow>`SELECT ${columns} FROM pay.rail_submission
            WHERE payout_id = ${payoutId}::uuid AND token = ${token} ORDER BY intent_at LIMIT 1`,
      ([row]) => row
    )

  /** Takes the slot; undefined when it is taken. */
  const take = Effect.fnUntraced(function* (
    operation: string,
    order: OrderRow,
    { actor, payoutId, token }: Spend,
    sendWithinMillis: number,
    sealed: { readonly reason: string } | undefined
  ) {
    const [row] = yield* sql<SubmissionRow & { readonly fenced: boolean }>`
      INSERT INTO pay.rail_submission (payout_id, account_id, currency, amount_minor, client_ref, token, actor,
        proxy_instance, send_by, outcome, outcome_at, reason)
      VALUES (${payoutId}::uuid, ${order.account_id}, ${order.currency}, ${order.amount_minor}, ${order.client_ref},
        ${token}, ${actor}, ${options.proxyInstance},
        clock_timestamp() + ${sendWithinMillis}::float8 * interval '1 millisecond',
        ${sealed === undefined ? null : "VOIDED"}::text,
        CASE WHEN ${sealed !== undefined} THEN clock_timestamp() END, ${sealed?.reason ?? null}::text)
      ON CONFLICT (payout_id) WHERE fenced DO NOTHING
      RETURNING ${columns}, fenced`
    // The switch was turned since it was read.
    if (row !== undefined && row.fenced !== fencingEnabled) return yield* disagreement(operation)
    return row
  })

  /** What the triggers refused is told as the fence that it is; the transaction is rolled back by then. */
  const refusedAs =
    (op: FenceOp, { payoutId, token }: Spend) =>
    (error: SqlError.SqlError): Effect.Effect<never, FencedOut | BackendUnavailable> => {
      const failure = Pg.classify(error)
      if (failure._tag !== "Sqlstate" || (failure.code !== "DL006" && failure.code !== "DL007")) {
        return outage(op)(error)
      }
      return sql<{ account_id: string; highest: bigint }>`
        SELECT p.account_id, greatest(p.claim_token, m.highest_token, 0) AS highest FROM pay.payout p
          LEFT JOIN pay.rail_high_water m USING (account_id) WHERE p.payout_id = ${payoutId}::uuid`.pipe(
        Effect.catchTag("SqlError", outage(op)),
        Effect.flatMap(([at]) =>
          Effect.fail(
            new FencedOut({
              point: "rail",
              op,
              resource: at?.account_id ?? payoutId,
              presented: token,
              highest: at?.highest ?? 0n
            })
          )
        )
      )
    }

  const intentIn = Effect.fnUntraced(function* (
    request: SubmitRequest
  ): Effect.fn.Return<
    Intent,
    FencedOut | TokenAlreadyUsed | PayoutNotFound | ValidationFailed | BackendUnavailable | SqlError.SqlError
  > {
    const { payoutId, token } = request
    const order = yield* orderOf("submit", payoutId)
    const differs = differences(request, order)
    if (differs.length > 0) return yield* new ValidationFailed({ fields: differs })
    yield* spend("submit", order.account_id, request)
    const existing = yield* recorded(payoutId, fencingEnabled ? undefined : token)
    if (existing !== undefined) return recordedIntent(request, existing)
    const row = yield* take("submit", order, request, options.sendWindowMillis, undefined)
    if (row !== undefined) {
      return {
        _tag: "Send",
        submissionId: row.submission_id,
        clientReference: order.client_ref,
        sendBy: Number(row.send_by)
      }
    }
    const winner = yield* recorded(payoutId, undefined)
    return winner === undefined
      ? yield* Effect.die(`payout ${payoutId}: the slot is taken by nobody`)
      : recordedIntent(request, winner)
  })

  const recordIntent: SubmissionStore["Service"]["recordIntent"] = (request) =>
    Effect.suspend(() => {
      // Who sets the first of the two decides: a transaction that was given up does not commit, and one that may have
      // committed is not told as one that did not.
      let committing = false
      let givenUp = false
      const unknown = () => new RailAmbiguous({ payoutId: request.payoutId, outcome: "INTENT" })
      return intentIn(request).pipe(
        Effect.tap(() =>
          Effect.suspend(() => {
            if (givenUp) return Effect.interrupt
            committing = true
            return Effect.void
          })
        ),
        transaction,
        Effect.catchTag("SqlError", (error): Effect.Effect<never, RailAmbiguous | FencedOut | BackendUnavailable> =>
          committing && mayBeCommitted(error) ? Effect.fail(unknown()) : refusedAs("submit", request)(error)
        ),
        boundedBy(Math.min(callTimeoutMillis, options.sendWindowMillis), (): RailAmbiguous | BackendUnavailable => {
          givenUp = true
          return committing ? unknown() : backendUnavailable("submit", "paydb did not answer in time")
        })
      )
    })

  const recordOutcome: SubmissionStore["Service"]["recordOutcome"] = (submissionId, outcome, detail) => {
    const write = (as: SubmissionOutcome) => sql<SubmissionRow & { readonly payout_id: PayoutId }>`
      UPDATE pay.rail_submission SET outcome = ${as}, outcome_at = clock_timestamp(),
             rail_ref = ${detail.railReference ?? null}::text, rail_code = ${detail.railCode ?? null}::text
       WHERE submission_id = ${submissionId}::uuid AND outcome IS NULL
      RETURNING ${columns}, payout_id::text`
    const onRecord = sql<SubmissionRow & { readonly payout_id: PayoutId }>`
      SELECT ${columns}, payout_id::text FROM pay.rail_submission WHERE submission_id = ${submissionId}::uuid`
    return write(outcome).pipe(
      Effect.catchTag("SqlError", (error) => {
        const failure = Pg.classify(error)
        return failure._tag === "Sqlstate" && failure.constraint === "rail_submission_rail_ref"
          ? write("DUPLICATE_ACK")
          : Effect.fail(error)
      }),
      Effect.filterOrElse(
        (rows) => rows.length > 0,
        () => onRecord
      ),
      Effect.flatMap(([row]) =>
        row === undefined
          ? Effect.die(`there is no submission ${submissionId}`)
          : Effect.succeed(submissionOf(row.payout_id, row))
      ),
      bounded("outcome")
    )
  }

  const seal: SubmissionStore["Service"]["seal"] = (request) =>
    Effect.gen(function* () {
      const { payoutId } = request
      const order = yield* orderOf("void", payoutId)
      yield* spend("void", order.account_id, request)
      const row =
        (yield* recorded(payoutId, undefined)) ??
        (yield* take("void", order, request, 0, { reason: request.reason })) ??
        (yield* recorded(payoutId, undefined))
      if (row === undefined) return yield* Effect.die(`payout ${payoutId}: the slot is taken by nobody`)
      return row.outcome === "VOIDED"
        ? { _tag: "Sealed" as const, row }
        : // The advanced mark is kept: this token was accepted.
          { _tag: "Submitted" as const, row }
    }).pipe(
      transaction,
      Effect.catchTag("SqlError", refusedAs("void", request)),
      Effect.flatMap(({ _tag, row }) =>
        _tag === "Sealed"
          ? Effect.succeed(submissionOf(request.payoutId, row))
          : Effect.fail(new DuplicateSubmission({ payoutId: request.payoutId, outcome: row.outcome, token: row.token }))
      ),
      boundedBy(callTimeoutMillis, () => backendUnavailable("void", "paydb did not answer in time"))
    )

  const recordEvidence: SubmissionStore["Service"]["recordEvidence"] = (request) =>
    Effect.gen(function* () {
      const { actor, finding, payoutId, reason, token } = request
      const order = yield* orderOf("evidence", payoutId)
      yield* spend("evidence", order.account_id, request)
      const executedCount = finding === "EXECUTED" ? 1 : 0
      const railReference = request.railReference ?? null
      yield* sql`INSERT INTO pay.rail_lookup
          (payout_id, result, executed_count, rail_ref, source, actor, token, reason, asked_at)
        VALUES (${payoutId}::uuid, ${finding}, ${executedCount}::int4, ${railReference}::text, 'OPERATOR', ${actor},
          ${token}, ${reason}, now())`
      const found: LookupFinding = { payoutId, finding, executedCount, railReference }
      return found
    }).pipe(
      transaction,
      Effect.catchTag("SqlError", refusedAs("evidence", request)),
      boundedBy(callTimeoutMillis, () => backendUnavailable("evidence", "paydb did not answer in time"))
    )

  const beginLookup: SubmissionStore["Service"]["beginLookup"] = (payoutId) =>
    sql<{ client_ref: string; asked_at: bigint }>`
      SELECT client_ref, floor(extract(epoch FROM clock_timestamp()) * 1000)::int8 AS asked_at
        FROM pay.payout WHERE payout_id = ${payoutId}::uuid`.pipe(
      Effect.flatMap(([row]) =>
        row === undefined
          ? Effect.fail(new PayoutNotFound({ payoutId }))
          : Effect.succeed({ clientReference: row.client_ref, askedAt: Number(row.asked_at) })
      ),
      bounded("lookup")
    )

  /**
   * One statement, so that "for the first time" is judged by what was there before. A payout that becomes FAILED between
   * this statement's snapshot and its commit is not seen here; the view `invariant_violation` finds that one.
   */
  const recordLookup: SubmissionStore["Service"]["recordLookup"] = (found) =>
    sql<{ late: boolean }>`
      WITH added AS (
        INSERT INTO pay.rail_lookup (payout_id, result, executed_count, rail_ref, source, actor, asked_at)
        VALUES (${found.payoutId}::uuid, ${found.finding}, ${found.executedCount}::int4, ${found.railReference}::text,
          'LOOKUP', ${found.actor},
          -- never in the future of this server, whichever server it is after a failover
          least(timestamptz 'epoch' + ${found.askedAt}::int8 * interval '1 millisecond', now()))
        RETURNING payout_id, result)
      SELECT added.result = 'EXECUTED' AND p.state = 'FAILED' AND NOT EXISTS (
               SELECT FROM pay.rail_lookup l WHERE l.payout_id = p.payout_id AND l.result = 'EXECUTED') AS late
        FROM added JOIN pay.payout p USING (payout_id)`.pipe(
      Effect.map(([row]) => ({ lateExecution: row?.late === true })),
      bounded("lookup")
    )

  const read: SubmissionStore["Service"]["read"] = (payoutId) =>
    recorded(payoutId, undefined).pipe(
      Effect.flatMap((row) =>
        row === undefined ? Effect.fail(new PayoutNotFound({ payoutId })) : Effect.succeed(submissionOf(payoutId, row))
      ),
      bounded("read")
    )

  const guards: SubmissionStore["Service"]["guards"] = sql<{
    missing: ReadonlyArray<string>
    switch_on: boolean
    unfenced: boolean
  }>`SELECT ARRAY(SELECT missing FROM pay.guard_missing) AS missing,
            (SELECT enabled FROM pay.fencing_switch WHERE point = 'rail') AS switch_on,
            EXISTS (SELECT FROM pay.unfenced_row WHERE point = 'rail') AS unfenced`.pipe(
    Effect.map(([row]) => ({
      missing: row?.missing ?? [],
      switchOn: row?.switch_on ?? false,
      unfencedRows: row?.unfenced ?? true
    })),
    bounded("guards")
  )

  return SubmissionStore.of({
    recordIntent,
    recordOutcome,
    read,
    seal,
    beginLookup,
    recordLookup,
    recordEvidence,
    ping: Effect.asVoid(sql`SELECT 1`).pipe(bounded("ping")),
    guards
  })
})

export const layer = (options: PgSubmissionStoreOptions): Layer.Layer<SubmissionStore, never, PgClient.PgClient> =>
  Layer.effect(SubmissionStore, make(options))

/** The failures of statements that no guard of ours refuses: an outage, or a bug. */
const outage =
  (operation: string) =>
  (error: SqlError.SqlError): Effect.Effect<never, BackendUnavailable> => {
    const failure = Pg.classify(error)
    return failure._tag === "Outage" ? Effect.fail(backendUnavailable(operation, failure.message)) : Effect.die(error)
  }

const bounded =
  (operation: string) =>
  <A, E>(self: Effect.Effect<A, E>): Effect.Effect<A, Exclude<E, SqlError.SqlError> | BackendUnavailable> =>
    self.pipe(
      Effect.catch((failure): Effect.Effect<never, Exclude<E, SqlError.SqlError> | BackendUnavailable> =>
        SqlError.isSqlError(failure)
          ? outage(operation)(failure)
          : // The guard takes SqlError out of the value; out of a type parameter only a cast can.
            Effect.fail(failure as Exclude<E, SqlError.SqlError>)
      ),
      boundedBy(callTimeoutMillis, () => backendUnavailable(operation, "paydb did not answer in time"))
    )

const mayBeCommitted = (error: SqlError.SqlError): boolean => {
  const failure = Pg.classify(error)
  return failure._tag === "Outage" && failure.effect === "unknown"
}

const disagreement = (operation: string) =>
  backendUnavailable(operation, "rail.fencing.enabled and the switch of the database disagree")

const submissionOf = (payoutId: PayoutId, row: SubmissionRow): Submission => ({
  payoutId,
  token: FencingToken.make(row.token),
  outcome: row.outcome,
  railReference: row.rail_ref,
  intentAt: Number(row.intent_at),
  sendBy: Number(row.send_by),
  outcomeAt: row.outcome_at === null ? null : Number(row.outcome_at)
})

const recordedIntent = (request: SubmitRequest, row: SubmissionRow): Intent => ({
  _tag: "Recorded",
  submission: submissionOf(request.payoutId, row),
  railCode: row.rail_code,
  sameToken: row.token === request.token
})

/** What is sent is what was ordered: each field of the request that says something else. */
const differences = (request: SubmitRequest, order: OrderRow) =>
  (
    [
      ["accountId", request.accountId === order.account_id],
      ["amountMinor", request.amountMinor === order.amount_minor],
      ["currency", request.currency === order.currency],
      ["beneficiary", request.beneficiary === order.beneficiary_ref]
    ] as const
  )
    .filter(([, same]) => !same)
    .map(([field]) => ({ path: `payload.${field}`, reason: "differs from the order" }))
