/** What needs no fence because it moves nobody's payout: ordering one (P3) and opening an account (P11). */
import type { PgClient } from "@effect/sql-pg"
import { Effect } from "effect"
import type { SqlError } from "effect/sql"
import { fundingAccountOf, OPENING_BALANCE_MAX } from "../../core/payment/Ledger.ts"
import { AccountNotFound } from "../../core/payment/PaymentErrors.ts"
import { contentOf } from "../../core/payment/PaymentResource.ts"
import type { PaymentStore } from "../../core/payment/PaymentStore.ts"
import type { PayoutId } from "../../core/payment/Payout.ts"
import { invalidField, type ValidationFailed } from "../../core/RequestFailures.ts"
import { currentTraceId } from "../../core/TraceId.ts"
import * as Pg from "../platform/Pg.ts"
import type * as PgCall from "./PgCall.ts"
import type * as PgPaymentReads from "./PgPaymentReads.ts"

type Orders = Pick<PaymentStore["Service"], "createPayout" | "createAccount">

/** A refusal by SQLSTATE or constraint, as the field of the request that it is about. */
const asInvalid =
  (fields: Readonly<Record<string, readonly [path: string, reason: string]>>) =>
  (error: SqlError.SqlError): Effect.Effect<never, ValidationFailed | SqlError.SqlError> => {
    const failure = Pg.classify(error)
    const constraint = failure._tag === "Sqlstate" ? failure.constraint : undefined
    const field = fields[constraint ?? failure.code ?? ""]
    return Effect.fail(field === undefined ? error : invalidField(...field))
  }

export const make = (
  sql: PgClient.PgClient,
  call: ReturnType<typeof PgCall.make>,
  reads: ReturnType<typeof PgPaymentReads.make>
): Orders => ({
  /** Callers under one key queue on its unique index: the first inserts, the others read what it inserted. */
  createPayout: (order) =>
    call.read(
      "createPayout",
      Effect.gen(function* () {
        const { accountId, actor, amountMinor, beneficiary, currency, idempotencyKey } = order
        const hash = sql`sha256(convert_to(${contentOf(order)}, 'UTF8'))`
        const [account] = yield* sql<{ kind: string; currency: string }>`
          SELECT kind, currency FROM pay.account WHERE account_id = ${accountId}`
        if (account === undefined) return yield* new AccountNotFound({ accountId })
        if (account.kind !== "CUSTOMER") {
          return yield* invalidField("payload.accountId", "payouts are made from customers' accounts only")
        }
        const inserted = yield* sql<{ payout_id: PayoutId }>`
          INSERT INTO pay.payout (payout_id, account_id, currency, amount_minor, beneficiary_ref, client_ref,
                                  idempotency_key, request_hash, last_actor, trace_id)
          SELECT id, ${accountId}, ${currency}, ${amountMinor}::int8, ${beneficiary}, replace(id::text, '-', ''),
                 ${idempotencyKey}, ${hash}, ${actor}, ${(yield* currentTraceId).slice(0, 64)}
            FROM coalesce(${order.payoutId ?? null}::uuid, gen_random_uuid()) id
          ON CONFLICT (idempotency_key) DO NOTHING RETURNING payout_id::text`.pipe(
          Effect.catch(
            asInvalid({
              payout_pkey: ["payload.payoutId", "is taken by another order"],
              payout_client_ref_key: ["payload.payoutId", "is taken by another order"],
              payout_account_id_currency_fkey: ["payload.currency", `the account is in ${account.currency}`],
              payout_amount_minor_check: ["payload.amountMinor", "must be 1..10^14 minor units"]
            })
          )
        )
        const created = inserted[0]
        if (created !== undefined) return { payout: yield* reads.payout(created.payout_id), replayed: false }
        const [known] = yield* sql<{ payout_id: PayoutId; same: boolean }>`
          SELECT payout_id::text, request_hash = ${hash} AS same FROM pay.payout WHERE idempotency_key = ${idempotencyKey}`
        if (known?.same !== true) {
          return yield* invalidField("headers.x-idempotency-key", "was used for an order with another content")
        }
        return { payout: yield* reads.payout(known.payout_id), replayed: true }
      }).pipe(Effect.catchTag("PayoutNotFound", Effect.die))
    ),

  createAccount: ({ accountId, actor, currency, openingBalanceMinor }) =>
    call.transaction(
      "createAccount",
      Effect.gen(function* () {
        if (openingBalanceMinor < 0n || openingBalanceMinor > OPENING_BALANCE_MAX) {
          return yield* invalidField("payload.openingBalanceMinor", "must be 0..10^15 minor units")
        }
        const house = yield* sql<{ currency: string }>`
          SELECT currency FROM pay.account WHERE kind = 'FUNDING' ORDER BY currency`
        if (!house.some((one) => one.currency === currency)) {
          const known = house.map((one) => one.currency).join(", ")
          return yield* invalidField("payload.currency", `there are house accounts for ${known} only`)
        }
        const inserted = yield* sql`
          INSERT INTO pay.account (account_id, currency) VALUES (${accountId}, ${currency})
          ON CONFLICT (account_id) DO NOTHING RETURNING account_id`
        if (inserted.length === 0) {
          const [known] = yield* sql<{ same: boolean }>`
            SELECT a.kind = 'CUSTOMER' AND a.currency = ${currency} AND ${openingBalanceMinor}::int8 = coalesce((
                     SELECT sum(e.amount_minor) FROM pay.ledger_entry e JOIN pay.journal j USING (journal_id)
                      WHERE e.account_id = a.account_id AND j.kind = 'FUNDING'), 0) AS same
              FROM pay.account a WHERE a.account_id = ${accountId}`
          if (known?.same !== true) {
            return yield* invalidField("payload.accountId", "exists with another currency or opening balance")
          }
        } else if (openingBalanceMinor > 0n) {
          yield* sql`
            WITH funding AS (
              INSERT INTO pay.journal (kind, actor, memo) VALUES ('FUNDING', ${actor}, 'opening balance') RETURNING journal_id)
            INSERT INTO pay.ledger_entry (journal_id, account_id, currency, amount_minor)
            SELECT journal_id, entry.account_id, ${currency}, entry.amount
              FROM funding, (VALUES (${accountId}, ${openingBalanceMinor}::int8),
                                    (${fundingAccountOf(currency)}, -${openingBalanceMinor}::int8)) entry (account_id, amount)`
        }
        return { account: yield* reads.account(accountId), created: inserted.length > 0 }
      }).pipe(Effect.catchTags({ SqlError: asInvalid(accountFields), AccountNotFound: Effect.die }))
    )
})

/** 22003: the funding account of the currency would leave the int64 range. */
const accountFields = {
  account_house_name: ["payload.accountId", "is a name of the house"],
  account_account_id_check: ["payload.accountId", "is no account id"],
  "22003": ["payload.openingBalanceMinor", "is more than the ledger can hold"]
} as const
