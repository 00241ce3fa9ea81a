/**
 * Reads what truly happened from the systems that know it: lockdb's audit, paydb, and the rail's own book. The result
 * is a `History`, judged by the same invariants as everything else.
 */
import { Effect, type Redacted, Schema } from "effect"
import { HttpApiClient } from "effect/http-api"
import { emptyHistory, type FenceEvent, History } from "../core/History.ts"
import { RailStubHttpApi } from "../services/api/RailStubHttpApi.ts"
import * as Pg from "../services/platform/Pg.ts"
import { HarnessError, type LogRecord } from "./Processes.ts"

export interface Sources {
  /** paydb, as a role that may read all of it. */
  readonly paydb: Redacted.Redacted
  /** The lock backend's audit of these keys; absent: none in the history. */
  readonly lock?: ((keys: ReadonlySet<string>) => Effect.Effect<ReadonlyArray<unknown>, HarnessError>) | undefined
  /** Only what befell these accounts. Default: everything, the ledger's own accounts included. */
  readonly accounts?: ReadonlySet<string> | undefined
  /** Of the lock audit. Default: the keys of the accounts. */
  readonly keys?: ReadonlySet<string> | undefined
  /** What the rail's fence let through is read from the submissions. */
  readonly acceptedAtRail?: boolean
  readonly railUrl: string
  /** Faults have stopped and reconciliation has run. */
  readonly settled: boolean
  /** Logs of the fence points: what was refused leaves no row. */
  readonly logs?: ReadonlyArray<LogRecord> | undefined
}

const decode = Schema.decodeUnknownEffect(Schema.toType(History))

const millis = "(extract(epoch from %) * 1000)::int8"
const at = (column: string) => millis.replace("%", column)

export const collect = Effect.fnUntraced(
  function* (sources: Sources) {
    const pay = yield* Pg.make({ url: sources.paydb, applicationName: "dlock-harness", maxConnections: 1 })
    const isWanted = ({ accountId }: Record<string, unknown>) =>
      sources.accounts === undefined || sources.accounts.has(String(accountId))
    const all = (statement: string) => pay.unsafe<Record<string, unknown>>(statement)
    const rows = (statement: string) => Effect.map(all(statement), (found) => found.filter(isWanted))
    const payouts = yield* rows(
      `SELECT payout_id::text AS "payoutId", account_id AS "accountId", amount_minor AS "amountMinor",
              client_ref AS "clientReference", state, claim_token AS "claimToken" FROM pay.payout ORDER BY created_at`
    )
    const transitions = yield* rows(
      `SELECT ${at("t.at")} AS at, t.payout_id::text AS "payoutId", p.account_id AS "accountId", t.from_state AS "from",
              t.to_state AS "to", t.token, t.fence_seen AS "fenceSeen", t.evidence, t.reason, t.actor
         FROM pay.payout_transition t JOIN pay.payout p USING (payout_id) ORDER BY t.transition_id`
    )
    const submissions = yield* rows(
      `SELECT payout_id::text AS "payoutId", account_id AS "accountId", client_ref AS "clientReference", token,
              coalesce(outcome, 'INTENT') AS outcome, ${at("intent_at")} AS "intentAt", fenced
         FROM pay.rail_submission ORDER BY intent_at`
    )
    const booked = yield* all(
      `SELECT journal_id::text AS "journalId", kind, payout_id::text AS "payoutId", token, fenced,
              coalesce((SELECT json_agg(json_build_object('accountId', account_id, 'currency', currency,
                'amountMinor', amount_minor::text) ORDER BY entry_id)
                FROM pay.ledger_entry e WHERE e.journal_id = j.journal_id), '[]') AS entries
         FROM pay.journal j ORDER BY journal_id`
    )
    const accounts = yield* rows(
      `SELECT a.account_id AS "accountId", balance_minor AS "balanceMinor", reserved_minor AS "reservedMinor", fence,
              coalesce(h.highest_token, 0) AS "railHighWater"
         FROM pay.account a LEFT JOIN pay.rail_high_water h USING (account_id) ORDER BY 1`
    )
    const journals = booked
      .map((row) => ({
        ...row,
        entries: (row["entries"] as ReadonlyArray<Record<string, unknown>>).map((entry) => ({
          ...entry,
          amountMinor: BigInt(String(entry["amountMinor"]))
        }))
      }))
      .filter(({ entries }) => sources.accounts === undefined || entries.some(isWanted))
    const keys = sources.keys ?? new Set(accounts.map((account) => `payout:${String(account["accountId"])}`))
    const lock = sources.lock === undefined ? [] : yield* sources.lock(keys)
    const references = new Set(payouts.map((payout) => payout["clientReference"]))
    const stub = yield* HttpApiClient.make(RailStubHttpApi, { baseUrl: sources.railUrl })
    const book = yield* stub.rail.payments()
    return yield* decode({
      ...emptyHistory,
      settled: sources.settled,
      lock,
      payouts,
      transitions: transitions.map((row) => ({ ...row, at: Number(row["at"]) })),
      submissions: submissions.map((row) => ({ ...row, intentAt: Number(row["intentAt"]) })),
      journals,
      accounts,
      rail: book.payments
        .filter((payment) => references.has(payment.clientReference))
        .map((payment) => ({
          at: Date.parse(payment.at),
          clientReference: payment.clientReference,
          amountMinor: payment.amountMinor,
          railReference: payment.railReference
        })),
      fences: [
        ...(sources.acceptedAtRail === true ? acceptedByRail(submissions) : []),
        ...(sources.logs ?? []).flatMap(fenceEvent)
      ]
    })
  },
  Effect.scoped,
  Effect.mapError((cause) => new HarnessError({ step: "collect the evidence", message: String(cause) }))
)

/** A submission is the fence's yes: the mark was advanced in its transaction. A sealed slot is one, too. */
const acceptedByRail = (submissions: ReadonlyArray<Record<string, unknown>>): ReadonlyArray<unknown> => {
  const marks = new Map<unknown, bigint>()
  return submissions.map(({ accountId, outcome, payoutId, token }) => {
    const highest = marks.get(accountId) ?? 0n
    const presented = BigInt(String(token))
    if (presented > highest) marks.set(accountId, presented)
    return {
      point: "rail",
      op: outcome === "VOIDED" ? "void" : "submit",
      resource: accountId,
      payoutId,
      token: presented,
      accepted: true,
      rowsChanged: 2,
      highest
    } satisfies Record<keyof FenceEvent, unknown>
  })
}

/** A refusal is known from the log of the fence point that refused. */
const fenceEvent = (record: LogRecord): ReadonlyArray<unknown> =>
  record["event"] === "fenced_out"
    ? [
        {
          point: record["point"],
          op: record["op"],
          resource: record["accountId"],
          payoutId: record["payoutId"],
          token: BigInt(String(record["fencingToken"])),
          accepted: false,
          rowsChanged: 0,
          highest: BigInt(String(record["highest"]))
        } satisfies Record<keyof FenceEvent, unknown>
      ]
    : []
