/**
 * Payouts and ledger in paydb, as role `dlock_payment`.
 *
 * Every protected write is one transaction under READ COMMITTED, and always goes the same way:
 *
 * 1. the fence, on the account's row, which stays locked from here on (`PgFence`);
 * 2. the look: the payout and what the rail's record proves, read after the lock is held, so that no other write to the
 *    account can come between look and write;
 * 3. the write, whose predicate names the token once more;
 * 4. the answer, read by a statement of its own: one that also wrote would answer from the snapshot taken before it
 *    waited for the row, and could miss a submission that was committed meanwhile.
 *
 * The lock order is account, then payout, everywhere. What is legal is refused by the tables' guards too; those are
 * reached only when the look was outrun by the rail's record, and then the transaction is run again.
 *
 * Rejected: one plpgsql function an operation, a round trip instead of six. It would hide the predicate in a migration,
 * and is not needed: claim, intent, outcome and post of a payout together run 124 times a second with 8 workers on 2 busy
 * cores with fsync on, all of them waiting for the one row of the clearing account; 0.56 is the peak that is asked for.
 */
import { PgClient } from "@effect/sql-pg"
import { Effect, Layer } from "effect"
import type { FencingToken } from "../../core/lock/Lock.ts"
import { backendUnavailable, type FencedOut } from "../../core/lock/LockErrors.ts"
import { type Decision, onClaim, onResolve, onSettle, type PayoutLook } from "../../core/payment/Decision.ts"
import { clearingAccountOf } from "../../core/payment/Ledger.ts"
import { PayoutNotFound } from "../../core/payment/PaymentErrors.ts"
import type { ProtectedWrite } from "../../core/payment/PaymentResource.ts"
import { PaymentStore } from "../../core/payment/PaymentStore.ts"
import type { AccountId, FailReason, PayoutId, PayoutState } from "../../core/payment/Payout.ts"
import { currentTraceId } from "../../core/TraceId.ts"
import * as PgFence from "../platform/PgFence.ts"
import * as PgCall from "./PgCall.ts"
import * as PgOrders from "./PgOrders.ts"
import * as PgPaymentReads from "./PgPaymentReads.ts"

export interface PgPaymentStoreOptions {
  /** `payment.fencing.enabled` */
  readonly fencingEnabled: boolean
  /** Every call ends within this, one way or the other. */
  readonly callTimeoutMillis: number
}

type Op = "claim" | "post" | "fail" | "ambiguous" | "resolve"

export const make = Effect.fnUntraced(function* (options: PgPaymentStoreOptions) {
  const sql = yield* PgClient.PgClient
  const { fencingEnabled } = options
  const call = PgCall.make(sql, options.callTimeoutMillis)
  const reads = PgPaymentReads.make(sql, call)
  const orders = PgOrders.make(sql, call, reads)
  const fence = PgFence.make(sql, {
    point: "resource",
    table: "pay.account",
    resource: "account_id",
    highest: "fence",
    rows: "exist",
    enabled: fencingEnabled
  })

  const accountOf = Effect.fnUntraced(function* (payoutId: PayoutId) {
    // What was ordered never changes, so it can be read before anything is locked.
    const [row] = yield* sql<{ account_id: AccountId }>`
      SELECT account_id FROM pay.payout WHERE payout_id = ${payoutId}::uuid`
    return row?.account_id ?? (yield* new PayoutNotFound({ payoutId }))
  })

  interface LookRow {
    readonly amount_minor: bigint
    readonly currency: string
    readonly state: PayoutState
    readonly claim_token: bigint | null
    readonly last_token: bigint | null
    readonly submission: PayoutLook["submission"] | null
    readonly verdict: PayoutLook["verdict"]
    readonly available: bigint
    readonly busy_with: PayoutId | null
    readonly switch_on: boolean
  }

  const lookAt = Effect.fnUntraced(function* (op: Op, payoutId: PayoutId, accountId: AccountId) {
    const [row] = yield* sql<LookRow>`
      SELECT p.amount_minor, p.currency, p.state, p.claim_token, p.last_token, n.submission, n.verdict,
             a.balance_minor - a.reserved_minor AS available,
             (SELECT b.payout_id::text FROM pay.payout b
               WHERE b.account_id = p.account_id AND b.state = 'CLAIMED' AND b.payout_id <> p.payout_id) AS busy_with,
             (SELECT enabled FROM pay.fencing_switch WHERE point = 'resource') AS switch_on
        FROM pay.payout p JOIN pay.account a USING (account_id) JOIN pay.payout_next_step n USING (payout_id)
       WHERE p.payout_id = ${payoutId}::uuid`
    if (row === undefined) return yield* Effect.die(`payout ${payoutId} is gone`)
    // Two keys turn the fence off. With one of them, some rows would say something else than what was enforced.
    if (row.switch_on !== fencingEnabled) {
      return yield* backendUnavailable(op, "payment.fencing.enabled and the database's fencing_switch disagree")
    }
    const look: PayoutLook = {
      payoutId,
      accountId,
      amountMinor: row.amount_minor,
      state: row.state,
      claimToken: row.claim_token,
      lastToken: row.last_token,
      submission: row.submission ?? undefined,
      verdict: row.verdict,
      availableMinor: row.available,
      busyWith: row.busy_with
    }
    return { look, currency: row.currency }
  })

  /** The state that was looked at, and whose claim it must be; in the experiment both stand aside with the fence. */
  const own = ({ claimToken, state }: PayoutLook) =>
    fencingEnabled ? sql`state = ${state} AND claim_token IS NOT DISTINCT FROM ${claimToken}::int8` : sql`true`

  const move = Effect.fnUntraced(function* (
    look: PayoutLook,
    { actor, payoutId, token }: ProtectedWrite,
    to: PayoutState,
    reason: FailReason | null
  ) {
    const claimToken = to === "FAILED" ? look.claimToken : token
    const moved = yield* sql`UPDATE pay.payout
      SET state = ${to}, claim_token = ${claimToken}::int8, fail_reason = ${reason}, last_token = ${token},
          last_actor = ${actor}, trace_id = ${(yield* currentTraceId).slice(0, 64)}, updated_at = now()
      WHERE payout_id = ${payoutId}::uuid AND ${own(look)} RETURNING payout_id`
    if (moved.length !== 1) return yield* Effect.die(`payout ${payoutId} changed under the lock of its account`)
  })

  /** After the payout's own row: the reserve is released by then, and the debit never meets it. */
  const postEntries = (look: PayoutLook, { actor, payoutId, token }: ProtectedWrite, currency: string) =>
    sql`WITH posting AS (
          INSERT INTO pay.journal (kind, payout_id, actor, token) VALUES ('PAYOUT', ${payoutId}::uuid, ${actor}, ${token})
          RETURNING journal_id)
        INSERT INTO pay.ledger_entry (journal_id, account_id, currency, amount_minor)
        SELECT journal_id, entry.account_id, ${currency}, entry.amount
          FROM posting, (VALUES (${look.accountId}, -${look.amountMinor}::int8),
                                (${clearingAccountOf(currency)}, ${look.amountMinor}::int8)) entry (account_id, amount)`

  const protectedWrite = <E>(
    op: Op,
    write: ProtectedWrite,
    /**
     * `claim`: above every token seen. `hold`: exactly the one that the fence stands at. `adopt`: either, for writes
     * that need no claim of their own; it is rolled back with the rest when the write is refused.
     */
    meet: "claim" | "hold" | "adopt",
    decide: (look: PayoutLook, refused: FencedOut | undefined) => Decision<E>,
    reason: (look: PayoutLook) => FailReason
  ) => {
    const { payoutId, token } = write
    return Effect.flatMap(call.read(op, accountOf(payoutId)), (accountId) =>
      call.transaction(
        op,
        Effect.gen(function* () {
          const refused = yield* fence[meet](op, accountId, token).pipe(
            Effect.as(undefined),
            Effect.catchTag("FencedOut", (failure) => Effect.succeed(failure))
          )
          const { currency, look } = yield* lookAt(op, payoutId, accountId)
          const stale = refused !== undefined && refused.highest > token
          // A repeated claim of somebody who lost his lock is no repeat: he would go on to submit.
          if (stale && op === "claim") return yield* refused
          const decision = decide(look, refused)
          if (decision._tag === "Replay") return { payout: yield* reads.payout(payoutId), replayed: true }
          if (stale) return yield* refused
          if (decision._tag === "Refuse") return yield* Effect.fail(decision.failure)
          if (refused !== undefined) return yield* Effect.die(`${op} of ${payoutId} would write without its fence`)
          yield* move(look, write, decision.to, decision.to === "FAILED" ? reason(look) : null)
          if (decision.to === "POSTED") yield* postEntries(look, write, currency)
          return { payout: yield* reads.payout(payoutId), replayed: false }
        })
      )
    )
  }

  const settle = (op: Op, to: "POSTED" | "RAIL_AMBIGUOUS") => (write: ProtectedWrite) =>
    protectedWrite(
      op,
      write,
      "hold",
      (look) => onSettle(look, write.token, to, fencingEnabled),
      () => "RAIL_NOT_EXECUTED"
    )

  const spentBy = (refused: FencedOut | undefined, token: FencingToken) => refused?.highest === token

  return PaymentStore.of({
    ...reads.operations,
    ...orders,
    claim: (write) =>
      protectedWrite(
        "claim",
        write,
        "claim",
        (look, refused) =>
          onClaim(look, write.token, { spent: spentBy(refused, write.token), enforced: fencingEnabled }),
        () => "RAIL_NOT_EXECUTED"
      ),
    post: settle("post", "POSTED"),
    ambiguous: settle("ambiguous", "RAIL_AMBIGUOUS"),
    fail: (write) =>
      protectedWrite(
        "fail",
        write,
        "adopt",
        (look) => onSettle(look, write.token, "FAILED", fencingEnabled),
        () => write.reason
      ),
    resolve: (write) =>
      protectedWrite(
        "resolve",
        write,
        "adopt",
        (look) => onResolve(look, write.token),
        (look) => (look.submission === "DECLINED" ? "RAIL_DECLINED" : "RAIL_NOT_EXECUTED")
      )
  })
})

export const layer = (options: PgPaymentStoreOptions): Layer.Layer<PaymentStore, never, PgClient.PgClient> =>
  Layer.effect(PaymentStore, make(options))
