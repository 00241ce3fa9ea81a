/** What payment-resource reads from paydb. Nothing here locks, and no decision to write rests on it. */
import type { PgClient } from "@effect/sql-pg"
import { Effect } from "effect"
import type { FencingToken, OwnerId } from "../../core/lock/Lock.ts"
import type { Journal, JournalKind } from "../../core/payment/Ledger.ts"
import { AccountNotFound, PayoutNotFound } from "../../core/payment/PaymentErrors.ts"
import type { PaymentOperations } from "../../core/payment/PaymentResource.ts"
import type { CheckedInvariant, PaymentStore } from "../../core/payment/PaymentStore.ts"
import type {
  Account,
  AccountId,
  FailReason,
  NextStep,
  Payout,
  PayoutId,
  PayoutState,
  PayoutTransition,
  RailVerdict
} from "../../core/payment/Payout.ts"
import type * as PgCall from "./PgCall.ts"

interface PayoutRow {
  readonly payout_id: PayoutId
  readonly account_id: AccountId
  readonly amount_minor: bigint
  readonly currency: string
  readonly beneficiary_ref: string
  readonly client_ref: string
  readonly state: PayoutState
  readonly claim_token: FencingToken | null
  readonly rail_ref: string | null
  readonly fail_reason: FailReason | null
  readonly next_step: NextStep
  readonly created_at: bigint
  readonly updated_at: bigint
}

const payoutOf = (row: PayoutRow): Payout => ({
  payoutId: row.payout_id,
  accountId: row.account_id,
  amountMinor: row.amount_minor,
  currency: row.currency,
  beneficiary: row.beneficiary_ref,
  clientReference: row.client_ref,
  state: row.state,
  claimToken: row.claim_token,
  railReference: row.rail_ref,
  failReason: row.fail_reason,
  nextStep: row.next_step,
  createdAt: Number(row.created_at),
  updatedAt: Number(row.updated_at)
})

interface JournalRow {
  readonly journal_id: bigint
  readonly kind: JournalKind
  readonly payout_id: PayoutId | null
  readonly actor: OwnerId
  readonly token: FencingToken | null
  readonly at: bigint
  /** int64 does not survive a JSON number. */
  readonly entries: ReadonlyArray<{
    readonly accountId: string
    readonly currency: string
    readonly amountMinor: string
  }>
}

/** A page of `limit` rows out of one more, which only says that there is a next page. */
const pageOf = <Row, Item, Key>(
  rows: ReadonlyArray<Row>,
  limit: number,
  itemOf: (row: Row) => Item,
  keyOf: (row: Row) => Key
): { readonly items: ReadonlyArray<Item>; readonly next: Key | null } => {
  const shown = rows.slice(0, limit)
  const last = shown.at(-1)
  return { items: shown.map(itemOf), next: rows.length > limit && last !== undefined ? keyOf(last) : null }
}

type Reads = Pick<
  PaymentStore["Service"],
  "listPayouts" | "readPayout" | "readAccount" | "readLedger" | "readHistory" | "backlog" | "ping" | "guards"
>

export const make = (sql: PgClient.PgClient, call: ReturnType<typeof PgCall.make>) => {
  const millis = (column: string) => sql.literal(`floor(extract(epoch FROM ${column}) * 1000)::int8`)

  /** The page is taken first, and next steps are computed for its rows only. */
  const payouts = (page: ReturnType<typeof sql<PayoutRow>>) =>
    Effect.map(
      sql<PayoutRow>`
        SELECT p.payout_id::text, p.account_id, p.amount_minor, p.currency, p.beneficiary_ref, p.client_ref, p.state,
               p.claim_token, n.rail_ref, p.fail_reason, n.next_step,
               ${millis("p.created_at")} AS created_at, ${millis("p.updated_at")} AS updated_at
          FROM (${page}) p JOIN pay.payout_next_step n USING (payout_id) ORDER BY p.created_at, p.payout_id`,
      (rows) => rows
    )

  const payout = Effect.fnUntraced(function* (payoutId: PayoutId) {
    const [row] = yield* payouts(sql`SELECT * FROM pay.payout WHERE payout_id = ${payoutId}::uuid`)
    return row === undefined ? yield* new PayoutNotFound({ payoutId }) : payoutOf(row)
  })

  const account = Effect.fnUntraced(function* (accountId: AccountId) {
    const [row] = yield* sql<{
      currency: string
      balance_minor: bigint
      reserved_minor: bigint
      fence: bigint
    }>`SELECT currency, balance_minor, reserved_minor, fence FROM pay.account WHERE account_id = ${accountId}`
    if (row === undefined) return yield* new AccountNotFound({ accountId })
    const found: Account = {
      accountId,
      currency: row.currency,
      balanceMinor: row.balance_minor,
      reservedMinor: row.reserved_minor,
      fence: row.fence
    }
    return found
  })

  /**
   * Keyset paging in order of creation. A payout never leaves its place, so a page does not shift when others change
   * state between two calls.
   */
  const listPayouts: PaymentOperations["listPayouts"] = ({ accountId, after, limit, state }) =>
    call.read(
      "listPayouts",
      Effect.map(
        payouts(
          sql`SELECT * FROM pay.payout WHERE ${sql.and([
            sql`true`,
            ...(state === undefined ? [] : [sql`state = ${state}`]),
            ...(accountId === undefined ? [] : [sql`account_id = ${accountId}`]),
            ...(after === undefined
              ? []
              : [
                  sql`(created_at, payout_id) >
                      (SELECT created_at, payout_id FROM pay.payout WHERE payout_id = ${after}::uuid)`
                ])
          ])} ORDER BY created_at, payout_id LIMIT ${limit + 1}`
        ),
        (rows) => pageOf(rows, limit, payoutOf, (row) => row.payout_id)
      )
    )

  const readLedger: PaymentOperations["readLedger"] = ({ accountId, after, limit }) =>
    call.read(
      "readLedger",
      Effect.andThen(
        account(accountId),
        Effect.map(
          sql<JournalRow>`
            SELECT j.journal_id, j.kind, j.payout_id::text, j.actor, j.token, ${millis("j.created_at")} AS at,
                   (SELECT json_agg(json_build_object('accountId', e.account_id, 'currency', e.currency,
                                                      'amountMinor', e.amount_minor::text) ORDER BY e.entry_id)
                      FROM pay.ledger_entry e WHERE e.journal_id = j.journal_id) AS entries
              FROM (SELECT DISTINCT journal_id FROM pay.ledger_entry
                     WHERE account_id = ${accountId} AND journal_id > ${after ?? 0n}
                     ORDER BY journal_id LIMIT ${limit + 1}) page
              JOIN pay.journal j USING (journal_id) ORDER BY j.journal_id`,
          (rows) =>
            pageOf(
              rows,
              limit,
              (row): Journal => ({
                journalId: row.journal_id,
                kind: row.kind,
                payoutId: row.payout_id,
                actor: row.actor,
                token: row.token,
                at: Number(row.at),
                entries: row.entries.map((entry) => ({ ...entry, amountMinor: BigInt(entry.amountMinor) }))
              }),
              (row) => row.journal_id
            )
        )
      )
    )

  const readHistory: PaymentOperations["readHistory"] = (payoutId) =>
    call.read(
      "readHistory",
      Effect.gen(function* () {
        const rows = yield* sql<{
          from_state: PayoutState | null
          to_state: PayoutState
          actor: OwnerId
          token: FencingToken | null
          fence_seen: bigint | null
          evidence: RailVerdict | null
          reason: FailReason | null
          trace_id: string | null
          at: bigint
        }>`SELECT from_state, to_state, actor, token, fence_seen, evidence, reason, trace_id, ${millis("at")} AS at
             FROM pay.payout_transition WHERE payout_id = ${payoutId}::uuid ORDER BY transition_id`
        if (rows.length === 0) return yield* new PayoutNotFound({ payoutId })
        return rows.map((row): PayoutTransition => ({
          from: row.from_state,
          to: row.to_state,
          actor: row.actor,
          token: row.token,
          fenceSeen: row.fence_seen,
          evidence: row.evidence,
          reason: row.reason,
          traceId: row.trace_id,
          at: Number(row.at)
        }))
      })
    )

  const backlog = call.read(
    "backlog",
    Effect.gen(function* () {
      const states = yield* sql<{ state: PayoutState; n: bigint; ordered: bigint; moved: bigint }>`
        SELECT state, count(*) AS n, greatest(0, ${millis("clock_timestamp() - min(created_at)")}) AS ordered,
               greatest(0, ${millis("clock_timestamp() - min(updated_at)")}) AS moved
          FROM pay.payout GROUP BY state`
      const violations = yield* sql<{ invariant: CheckedInvariant; n: bigint }>`
        SELECT i.invariant, count(v.subject) AS n FROM pay.invariant i LEFT JOIN pay.invariant_violation v USING (invariant)
         GROUP BY i.invariant`
      const [ledger] = yield* sql<{ imbalance: string }>`
        SELECT coalesce(sum(abs(total)), 0)::text AS imbalance
          FROM (SELECT sum(amount_minor) AS total FROM pay.ledger_entry GROUP BY currency) totals`
      const of = (state: PayoutState) => states.find((row) => row.state === state)
      const count = (state: PayoutState) => Number(of(state)?.n ?? 0)
      return {
        byState: {
          PENDING: count("PENDING"),
          CLAIMED: count("CLAIMED"),
          POSTED: count("POSTED"),
          FAILED: count("FAILED"),
          RAIL_AMBIGUOUS: count("RAIL_AMBIGUOUS")
        },
        oldestPendingMillis: Number(of("PENDING")?.ordered ?? 0),
        oldestClaimedMillis: Number(of("CLAIMED")?.moved ?? 0),
        oldestAmbiguousMillis: Number(of("RAIL_AMBIGUOUS")?.moved ?? 0),
        // The view `invariant` has every name exactly once.
        violations: Object.fromEntries(violations.map(({ invariant, n }) => [invariant, Number(n)])) as Record<
          CheckedInvariant,
          number
        >,
        imbalanceMinor: BigInt(ledger?.imbalance ?? "0")
      }
    })
  )

  const guards = call.read(
    "guards",
    Effect.gen(function* () {
      const missing = yield* sql<{ missing: string }>`SELECT missing FROM pay.guard_missing`
      const [row] = yield* sql<{ switch_on: boolean; unfenced: boolean }>`
        SELECT enabled AS switch_on, EXISTS (SELECT FROM pay.unfenced_row) AS unfenced
          FROM pay.fencing_switch WHERE point = 'resource'`
      return {
        missing: missing.map((one) => one.missing),
        switchOn: row?.switch_on === true,
        unfencedRows: row?.unfenced === true
      }
    })
  )

  const operations: Reads = {
    listPayouts,
    readPayout: (payoutId) => call.read("readPayout", payout(payoutId)),
    readAccount: (accountId) => call.read("readAccount", account(accountId)),
    readLedger,
    readHistory,
    backlog,
    ping: call.read("ping", Effect.asVoid(sql`SELECT 1`)),
    guards
  }
  return { operations, payout, account }
}
