/**
 * Every guard of paydb, shown to hold by trying to violate it: as each role that can connect, and as the superuser, who
 * has no privilege to be refused by. Each attempt is followed by what would have been legal, where there is such a thing:
 * a guard that refuses everything guards nothing.
 */
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import {
  legalTransitions,
  nextStep,
  NextStep,
  PayoutState,
  RailVerdict,
  SubmissionOutcome
} from "../../../src/core/payment/Payout.ts"
import * as PgPaydb from "../../../src/services/payment-resource/PgPaydb.ts"
import { TestDatabase } from "../../support/pg.ts"
import * as Scene from "./paydbScene.ts"

const FORBIDDEN = "42501"
const tables = [
  "account",
  "payout",
  "rail_high_water",
  "rail_submission",
  "rail_lookup",
  "journal",
  "ledger_entry",
  "payout_transition"
] as const

describe("paydb", () => {
  it.layer(Scene.layer, { excludeTestServices: true, timeout: "60 seconds" })((it) => {
    it.effect("has every guard in place, for everyone who asks", () =>
      Effect.gen(function* () {
        const hands = yield* Scene.Hands
        for (const role of ["dlock_payment", "dlock_rail", "dlock_readonly", "postgres"] as const) {
          assert.deepStrictEqual(yield* hands[role]`SELECT missing FROM pay.guard_missing`, [])
        }
      })
    )

    it.effect("nobody deletes or truncates, and evidence and ledger are never changed, replica mode or not", () =>
      Effect.gen(function* () {
        const hands = yield* Scene.Hands
        yield* Scene.posted
        yield* Scene.railSays(yield* Scene.ambiguous, "EXECUTED")
        const appendOnly = [
          `UPDATE pay.journal SET memo = 'x'`,
          `UPDATE pay.ledger_entry SET amount_minor = amount_minor + 1`,
          `UPDATE pay.payout_transition SET actor = 'nobody'`,
          `UPDATE pay.rail_lookup SET result = 'REJECTED', executed_count = 0`
        ]
        const destructive = tables.flatMap((table) => [`DELETE FROM pay.${table}`, `TRUNCATE pay.${table} CASCADE`])
        for (const statement of [...appendOnly, ...destructive]) {
          assert.strictEqual(yield* Scene.attempt(hands.postgres, statement), "DL004", statement)
          const replica = "SET LOCAL session_replication_role = replica"
          assert.strictEqual(yield* Scene.attempt(hands.postgres, replica, statement), "DL004", `replica: ${statement}`)
          for (const role of ["dlock_payment", "dlock_rail", "dlock_readonly", "dlock_lab"] as const) {
            assert.strictEqual(yield* Scene.attempt(hands[role], statement), FORBIDDEN, `${role}: ${statement}`)
          }
        }
      })
    )

    it.effect("a fence never goes back, and an account's identity, balance and reserve are not written by hand", () =>
      Effect.gen(function* () {
        const hands = yield* Scene.Hands
        const { accountId } = yield* Scene.claimed
        const set = (what: string) => `UPDATE pay.account SET ${what} WHERE account_id = '${accountId}'`
        for (const role of ["postgres", "dlock_payment"] as const) {
          assert.strictEqual(yield* Scene.attempt(hands[role], set("fence = 6")), "DL001")
          assert.strictEqual(yield* Scene.attempt(hands[role], set("fence = 8")), "accepted")
        }
        for (const what of [
          "balance_minor = 1",
          "reserved_minor = 0",
          "currency = 'USD'",
          "kind = 'FUNDING'",
          "account_id = 'other'",
          "created_at = now()"
        ]) {
          assert.strictEqual(yield* Scene.attempt(hands.postgres, set(what)), "DL004", what)
          assert.strictEqual(yield* Scene.attempt(hands.dlock_payment, set(what)), FORBIDDEN, what)
        }
        const born = (columns: string, values: string) =>
          `INSERT INTO pay.account (account_id, currency, ${columns}) VALUES ('acct-born', 'EUR', ${values})`
        assert.strictEqual(yield* Scene.attempt(hands.postgres, born("balance_minor", "5")), "DL004")
        assert.strictEqual(yield* Scene.attempt(hands.postgres, born("reserved_minor", "5")), "DL004")
        assert.strictEqual(yield* Scene.attempt(hands.postgres, born("fence", "5")), "DL004")
        assert.strictEqual(yield* Scene.attempt(hands.dlock_payment, born("kind", "'SUSPENSE'")), FORBIDDEN)
        assert.strictEqual(yield* Scene.attempt(hands.postgres, born("kind", "'SUSPENSE'")), "23514")
        const named = (name: string) => `INSERT INTO pay.account (account_id, currency) VALUES ('${name}', 'EUR')`
        assert.strictEqual(yield* Scene.attempt(hands.dlock_payment, named("clearing-chf")), "23514")
        assert.strictEqual(yield* Scene.attempt(hands.dlock_payment, named("acct-new")), "accepted")
      })
    )

    it.effect("a payout is born PENDING, from a customer's account, and what was ordered never changes", () =>
      Effect.gen(function* () {
        const hands = yield* Scene.Hands
        const { accountId, payoutId } = yield* Scene.claimed
        const born = (account: string, columns: string, values: string) =>
          `INSERT INTO pay.payout (payout_id, account_id, currency, amount_minor, beneficiary_ref, client_ref,
             idempotency_key, request_hash, last_actor ${columns})
           VALUES (gen_random_uuid(), '${account}', 'EUR', 1, 'b', 'c-${Scene.unique()}', 'k-${Scene.unique()}', '', 'w1' ${values})`
        assert.strictEqual(yield* Scene.attempt(hands.dlock_payment, born(accountId, "", "")), "accepted")
        assert.strictEqual(yield* Scene.attempt(hands.dlock_payment, born("clearing-eur", "", "")), "DL002")
        assert.strictEqual(
          yield* Scene.attempt(
            hands.postgres,
            born(accountId, ", state, claim_token, last_token", ", 'CLAIMED', 7, 7")
          ),
          "DL002"
        )
        assert.strictEqual(yield* Scene.attempt(hands.postgres, born(accountId, ", last_token", ", 7")), "DL002")
        assert.strictEqual(yield* Scene.attempt(hands.dlock_payment, born(accountId, ", last_token", ", 7")), FORBIDDEN)
        for (const what of [
          "amount_minor = 1",
          "currency = 'USD'",
          "beneficiary_ref = 'me'",
          "client_ref = 'c'",
          "idempotency_key = 'k'",
          "request_hash = ''",
          "created_at = now()",
          "payout_id = gen_random_uuid()",
          "account_id = 'clearing-eur'"
        ]) {
          const statement = `UPDATE pay.payout SET ${what} WHERE payout_id = '${payoutId}'`
          assert.strictEqual(yield* Scene.attempt(hands.postgres, statement), "DL004", what)
          assert.strictEqual(yield* Scene.attempt(hands.dlock_payment, statement), FORBIDDEN, what)
        }
      })
    )

    // Every state with every verdict that it can have, to every state: what core calls legal is accepted, all else not.
    it.effect("a payout moves as the table of legal transitions says and not otherwise, on every verdict", () =>
      Effect.gen(function* () {
        const hands = yield* Scene.Hands
        const conflict = ["EXECUTED", "REJECTED"] as const
        const scenes = [
          ["PENDING", "NONE", Scene.pending],
          ["PENDING", "NOT_EXECUTED", Effect.tap(Scene.pending, (payout) => Scene.seal(payout, 7))],
          ["CLAIMED", "NONE", Scene.claimed],
          ["CLAIMED", "UNKNOWN", Scene.submitted()],
          ["CLAIMED", "EXECUTED", Scene.submitted("ACKED")],
          ["CLAIMED", "NOT_EXECUTED", Scene.submitted("DECLINED")],
          [
            "CLAIMED",
            "CONFLICT",
            Effect.tap(Scene.submitted("TIMEOUT"), (payout) => Scene.railSays(payout, ...conflict))
          ],
          ["RAIL_AMBIGUOUS", "UNKNOWN", Scene.ambiguous],
          ["RAIL_AMBIGUOUS", "EXECUTED", Effect.tap(Scene.ambiguous, (payout) => Scene.railSays(payout, "EXECUTED"))],
          [
            "RAIL_AMBIGUOUS",
            "NOT_EXECUTED",
            Effect.tap(Scene.ambiguous, (payout) => Scene.railSays(payout, "REJECTED"))
          ],
          ["RAIL_AMBIGUOUS", "CONFLICT", Effect.tap(Scene.ambiguous, (payout) => Scene.railSays(payout, ...conflict))],
          ["POSTED", "EXECUTED", Scene.posted],
          ["FAILED", "NOT_EXECUTED", Scene.failed]
        ] as const
        let accepted = 0
        for (const [from, verdict, scene] of scenes) {
          const payout = yield* scene
          const { accountId, payoutId } = payout
          const found = yield* hands.postgres<{ state: string; verdict: string }>`
            SELECT state, verdict FROM pay.payout_next_step WHERE payout_id = ${payoutId}::uuid`
          assert.deepStrictEqual(found, [{ state: from, verdict }])
          for (const to of PayoutState.literals) {
            // The token that the move needs: a claim's own for what follows a claim, a new one for all the rest.
            const token = from === "CLAIMED" && to !== "CLAIMED" ? 7 : 8
            const claimToken = to === "FAILED" ? "claim_token" : to === "PENDING" ? "NULL" : token
            const reason = to === "FAILED" ? "'CANCELLED'" : "NULL"
            const statements = [
              `UPDATE pay.account SET fence = ${token} WHERE account_id = '${accountId}' AND fence <= ${token}`,
              `UPDATE pay.payout SET state = '${to}', claim_token = ${claimToken}, last_token = ${token}, fail_reason = ${reason}
                WHERE payout_id = '${payoutId}'`,
              ...(to === "POSTED" ? postingOf(payout, token) : [])
            ]
            const needs = legalTransitions.find((move) => move.from === from && move.to === to)?.needs
            const legal = needs === "any" || needs?.includes(verdict) === true
            const expected = legal ? "accepted" : needs === undefined ? "DL002" : "DL003"
            for (const role of ["postgres", "dlock_payment"] as const) {
              assert.strictEqual(
                yield* Scene.attempt(hands[role], ...statements),
                expected,
                `${from} ${verdict} > ${to}`
              )
            }
            if (legal) accepted++
          }
        }
        assert.strictEqual(accepted, 13)
      })
    )

    it.effect("a move needs the token that the fence stands at, and after a claim the claim's own", () =>
      Effect.gen(function* () {
        const hands = yield* Scene.Hands
        const payout = yield* Scene.submitted("TIMEOUT")
        const { accountId, payoutId } = payout
        const mark = (token: number, claimToken: number) =>
          `UPDATE pay.payout SET state = 'RAIL_AMBIGUOUS', claim_token = ${claimToken}, last_token = ${token}
            WHERE payout_id = '${payoutId}'`
        const fence = `UPDATE pay.account SET fence = 9 WHERE account_id = '${accountId}'`
        for (const role of ["postgres", "dlock_payment"] as const) {
          assert.strictEqual(yield* Scene.attempt(hands[role], mark(7, 7)), "accepted")
          assert.strictEqual(yield* Scene.attempt(hands[role], mark(6, 6)), "DL001")
          assert.strictEqual(yield* Scene.attempt(hands[role], mark(8, 8)), "DL001")
          assert.strictEqual(yield* Scene.attempt(hands[role], mark(7, 6)), "DL001")
          // A holder who has not claimed this payout.
          assert.strictEqual(yield* Scene.attempt(hands[role], fence, mark(9, 9)), "DL001")
          assert.strictEqual(yield* Scene.attempt(hands[role], fence, mark(9, 7)), "DL001")
          assert.strictEqual(yield* Scene.attempt(hands[role], fence, mark(7, 7)), "DL001")
        }
      })
    )

    it.effect("one payout of an account is claimed at a time, and a claim needs the funds", () =>
      Effect.gen(function* () {
        const hands = yield* Scene.Hands
        const first = yield* Scene.claimed
        const second = yield* Scene.order(first.accountId)
        const tooMuch = yield* Scene.order(yield* Scene.openAccount(2_499n))
        const take = ({ accountId, payoutId }: typeof first) => [
          `UPDATE pay.account SET fence = 8 WHERE account_id = '${accountId}'`,
          `UPDATE pay.payout SET state = 'CLAIMED', claim_token = 8, last_token = 8 WHERE payout_id = '${payoutId}'`
        ]
        assert.strictEqual(yield* Scene.attempt(hands.postgres, ...take(second)), "23505")
        assert.strictEqual(yield* Scene.attempt(hands.postgres, ...take(tooMuch)), "23514")
        assert.strictEqual(yield* Scene.attempt(hands.postgres, ...take(first)), "accepted")
      })
    )

    it.effect("a posting is exactly the two entries of a POSTED payout, once", () =>
      Effect.gen(function* () {
        const hands = yield* Scene.Hands
        const payout = yield* Scene.submitted("ACKED")
        const done = yield* Scene.posted
        const { accountId, payoutId } = payout
        const toPosted = `UPDATE pay.payout SET state = 'POSTED', last_token = 7 WHERE payout_id = '${payoutId}'`
        const other = yield* Scene.openAccount()
        const attempts: ReadonlyArray<readonly [what: string, code: string, statements: ReadonlyArray<string>]> = [
          ["state and posting", "accepted", [toPosted, ...postingOf(payout, 7)]],
          ["state without posting", "DL005", [toPosted]],
          ["posting without state", "DL005", postingOf(payout, 7)],
          ["another amount", "DL005", [toPosted, journal("PAYOUT", payoutId, 7, [accountId, -1], ["clearing-eur", 1])]],
          [
            "another payer",
            "DL005",
            [toPosted, journal("PAYOUT", payoutId, 7, [other, -2_500], ["clearing-eur", 2_500])]
          ],
          ["another payee", "DL005", [toPosted, journal("PAYOUT", payoutId, 7, [accountId, -2_500], [other, 2_500])]],
          [
            "a third entry",
            "DL005",
            [
              toPosted,
              journal(
                "PAYOUT",
                payoutId,
                7,
                [accountId, -2_500],
                ["clearing-eur", 2_500],
                [other, 1],
                ["clearing-eur", -1]
              )
            ]
          ],
          ["another token", "DL005", [toPosted, ...postingOf(payout, 8)]],
          ["no entries", "DL005", [toPosted, journal("PAYOUT", payoutId, 7)]],
          ["a second posting", "23505", postingOf(done, 7)],
          ["a second posting beside the first", "23505", [toPosted, ...postingOf(payout, 7), ...postingOf(payout, 7)]]
        ]
        for (const [what, code, statements] of attempts) {
          for (const role of ["postgres", "dlock_payment"] as const) {
            assert.strictEqual(yield* Scene.attempt(hands[role], ...statements), code, `${role}: ${what}`)
          }
        }
      })
    )

    it.effect(
      "a journal balances, in one currency, between the accounts of its kind, and is closed with its transaction",
      () =>
        Effect.gen(function* () {
          const hands = yield* Scene.Hands
          const { accountId, payoutId } = yield* Scene.posted
          const other = yield* Scene.openAccount()
          const attempts: ReadonlyArray<readonly [what: string, code: string, statements: ReadonlyArray<string>]> = [
            ["funding", "accepted", [journal("FUNDING", null, null, [other, 5], ["funding-eur", -5])]],
            ["one entry", "DL005", [journal("FUNDING", null, null, [other, 5])]],
            ["a sum", "DL005", [journal("FUNDING", null, null, [other, 5], ["funding-eur", -4])]],
            ["an entry of nothing", "23514", [journal("FUNDING", null, null, [other, 0], ["funding-eur", 0])]],
            ["money between customers", "DL005", [journal("FUNDING", null, null, [other, 5], [accountId, -5])]],
            ["money from clearing", "DL005", [journal("FUNDING", null, null, [other, 5], ["clearing-eur", -5])]],
            [
              "an adjustment",
              "accepted",
              [journal("ADJUSTMENT", payoutId, null, ["suspense-eur", 5], ["clearing-eur", -5])]
            ],
            [
              "an adjustment of nothing",
              "23514",
              [journal("ADJUSTMENT", null, null, ["suspense-eur", 5], ["clearing-eur", -5])]
            ],
            [
              "an adjustment past suspense",
              "DL005",
              [journal("ADJUSTMENT", payoutId, null, [other, 5], ["clearing-eur", -5])]
            ],
            ["an overdraft", "23514", [journal("FUNDING", null, null, [other, -10_001], ["funding-eur", 10_001])]],
            [
              "the currency of another account",
              "23503",
              [journal("FUNDING", null, null, [other, 5], ["funding-usd", -5])]
            ],
            [
              "balanced entries in a closed journal",
              "DL004",
              [
                `INSERT INTO pay.ledger_entry (journal_id, account_id, currency, amount_minor)
               SELECT max(journal_id), '${other}', 'EUR', 5 FROM pay.journal`
              ]
            ],
            [
              "entries added after the check",
              "DL005",
              [
                journal("FUNDING", null, null, [other, 5], ["funding-eur", -5]),
                "SET CONSTRAINTS ALL IMMEDIATE",
                `INSERT INTO pay.ledger_entry (journal_id, account_id, currency, amount_minor)
               SELECT max(journal_id), '${other}', 'EUR', 5 FROM pay.journal`
              ]
            ]
          ]
          for (const [what, code, statements] of attempts) {
            for (const role of ["postgres", "dlock_payment"] as const) {
              assert.strictEqual(yield* Scene.attempt(hands[role], ...statements), code, `${role}: ${what}`)
            }
            assert.strictEqual(yield* Scene.attempt(hands.dlock_rail, ...statements), FORBIDDEN, what)
          }
          // Neither the transaction nor the fence is the writer's to claim.
          const forged = `INSERT INTO pay.journal (kind, actor, created_xid, fenced) VALUES ('FUNDING', 'x', '1', false)`
          assert.strictEqual(yield* Scene.attempt(hands.dlock_payment, forged), FORBIDDEN)
          assert.strictEqual(
            yield* Scene.attempt(
              hands.postgres,
              forged,
              `INSERT INTO pay.ledger_entry (journal_id, account_id, currency, amount_minor)
             SELECT max(journal_id), v.* FROM pay.journal, (VALUES ('${other}', 'EUR', 5), ('funding-eur', 'EUR', -5)) v
              GROUP BY column1, column2, column3`,
              `SELECT 1 / (count(*) - 1) FROM pay.journal WHERE NOT fenced`
            ),
            "accepted"
          )
        })
    )

    it.effect("the rail's mark only rises, and a submission needs it, the claim, and the one slot", () =>
      Effect.gen(function* () {
        const hands = yield* Scene.Hands
        const payout = yield* Scene.claimed
        const { accountId, payoutId } = payout
        const mark = (token: number, of = payoutId as string) =>
          `INSERT INTO pay.rail_high_water AS h (account_id, highest_token, payout_id, actor)
           VALUES ('${accountId}', ${token}, '${of}', 'w1')
           ON CONFLICT (account_id) DO UPDATE SET highest_token = EXCLUDED.highest_token, payout_id = EXCLUDED.payout_id`
        const sent = yield* Scene.submitted()
        const unclaimed = yield* Scene.pending
        const other = "00000000-0000-4000-8000-000000000000"
        const attempts: ReadonlyArray<readonly [what: string, code: string, statements: ReadonlyArray<string>]> = [
          ["the claimant's own", "accepted", [mark(7), submission(payout, 7)]],
          ["no mark", "DL006", [submission(payout, 7)]],
          ["a mark spent on another payout", "DL006", [mark(7, other), submission(payout, 7)]],
          ["a lower token than the mark", "DL006", [mark(8), submission(payout, 7)]],
          ["a token above the claim", "DL007", [mark(8), submission(payout, 8)]],
          ["a token below the claim", "DL007", [mark(6), submission(payout, 6)]],
          ["a mark that goes back", "DL006", [mark(7), mark(6)]],
          ["a mark that stays", "DL006", [mark(7), mark(7)]],
          ["an outcome before its intent", "DL002", [mark(7), submission(payout, 7, "outcome", "'TIMEOUT'")]],
          ["another amount than was ordered", "23503", [mark(7), submission({ ...payout, amountMinor: 1n }, 7)]],
          ["a second submission", "23505", [submission(sent, 7)]],
          ["a void of what was sent", "23505", [submission(sent, 7, "outcome", "'VOIDED'")]],
          [
            "an unclaimed payout",
            "DL007",
            [
              mark(7).replaceAll(accountId, unclaimed.accountId).replaceAll(payoutId, unclaimed.payoutId),
              submission(unclaimed, 7)
            ]
          ],
          [
            "the void of an unclaimed payout",
            "accepted",
            [
              mark(7).replaceAll(accountId, unclaimed.accountId).replaceAll(payoutId, unclaimed.payoutId),
              submission(unclaimed, 7, "outcome", "'VOIDED'")
            ]
          ],
          [
            "a mark of another account",
            "DL004",
            [mark(7), `UPDATE pay.rail_high_water SET account_id = 'clearing-usd' WHERE account_id = '${accountId}'`]
          ]
        ]
        for (const [what, code, statements] of attempts) {
          assert.strictEqual(yield* Scene.attempt(hands.postgres, ...statements), code, what)
          const asRail = what === "a mark of another account" ? FORBIDDEN : code
          assert.strictEqual(yield* Scene.attempt(hands.dlock_rail, ...statements), asRail, `dlock_rail: ${what}`)
          assert.strictEqual(yield* Scene.attempt(hands.dlock_payment, ...statements), FORBIDDEN, what)
        }
      })
    )

    it.effect("an outcome is written once, and nothing else of a submission ever", () =>
      Effect.gen(function* () {
        const hands = yield* Scene.Hands
        const { payoutId } = yield* Scene.submitted()
        const set = (what: string) => `UPDATE pay.rail_submission SET ${what} WHERE payout_id = '${payoutId}'`
        const ack = (ref: string) => set(`outcome = 'ACKED', outcome_at = now(), rail_ref = '${ref}'`)
        assert.strictEqual(yield* Scene.attempt(hands.dlock_rail, ack("R-once")), "accepted")
        assert.strictEqual(yield* Scene.attempt(hands.dlock_rail, ack("R-once"), ack("R-twice")), "DL004")
        assert.strictEqual(
          yield* Scene.attempt(hands.dlock_rail, set("outcome = 'VOIDED', outcome_at = now()")),
          "DL004"
        )
        assert.strictEqual(
          yield* Scene.attempt(hands.dlock_rail, set("outcome = 'ACKED', outcome_at = now()")),
          "23514"
        )
        for (const what of [
          "token = 8",
          "send_by = now()",
          "fenced = false",
          "proxy_instance = 'me'",
          "client_ref = 'x'"
        ]) {
          assert.strictEqual(yield* Scene.attempt(hands.dlock_rail, set(what)), FORBIDDEN, what)
          assert.strictEqual(yield* Scene.attempt(hands.postgres, set(what)), "DL004", what)
        }
        // One payment acknowledged for two payouts.
        const first = yield* Scene.submitted()
        assert.strictEqual(
          yield* Scene.attempt(hands.dlock_rail, ack("R-same"), ack("R-same").replace(payoutId, first.payoutId)),
          "23505"
        )
      })
    )

    it.effect(
      "what the rail said can not be dated into the future, and an operator says under which token and why",
      () =>
        Effect.gen(function* () {
          const hands = yield* Scene.Hands
          const { payoutId } = yield* Scene.ambiguous
          const said = (columns: string, values: string) =>
            `INSERT INTO pay.rail_lookup (payout_id, result, source, actor, ${columns}) VALUES ('${payoutId}', 'NOT_FOUND', ${values})`
          const asked = (source: string, at: string) => said("asked_at", `'${source}', 'x', ${at}`)
          assert.strictEqual(yield* Scene.attempt(hands.dlock_rail, asked("LOOKUP", "now()")), "accepted")
          assert.strictEqual(
            yield* Scene.attempt(hands.dlock_rail, asked("LOOKUP", "now() + interval '1 hour'")),
            "23514"
          )
          assert.strictEqual(yield* Scene.attempt(hands.dlock_rail, asked("OPERATOR", "now()")), "23514")
          assert.strictEqual(
            yield* Scene.attempt(
              hands.dlock_rail,
              said("asked_at, token, reason", `'OPERATOR', 'x', now(), 9, 'seen'`)
            ),
            "accepted"
          )
          assert.strictEqual(yield* Scene.attempt(hands.dlock_payment, asked("LOOKUP", "now()")), FORBIDDEN)
        })
    )

    it.effect("each role can do its own and nothing else", () =>
      Effect.gen(function* () {
        const hands = yield* Scene.Hands
        const can = (role: Scene.Role, statement: string) =>
          Effect.map(Scene.attempt(hands[role], statement), (code) => code === "accepted")
        const readable: Record<Scene.Role, ReadonlyArray<string>> = {
          postgres: tables,
          dlock_payment: tables.filter((table) => table !== "rail_high_water"),
          dlock_rail: ["rail_high_water", "rail_submission", "rail_lookup"],
          dlock_readonly: tables,
          dlock_lab: []
        }
        for (const role of Scene.roles) {
          for (const table of tables) {
            assert.strictEqual(
              yield* can(role, `SELECT one IS NULL FROM pay.${table} one LIMIT 1`),
              readable[role].includes(table),
              `${role} reads ${table}`
            )
          }
        }
        assert.isTrue(yield* can("dlock_rail", "SELECT payout_id, state, claim_token FROM pay.payout LIMIT 1"))
        assert.isFalse(yield* can("dlock_rail", "SELECT idempotency_key FROM pay.payout LIMIT 1"))
        const switchOff = "UPDATE pay.fencing_switch SET enabled = false"
        const policy = "UPDATE pay.rail_policy SET finality_window = '0'"
        for (const role of ["dlock_payment", "dlock_rail", "dlock_readonly", "dlock_lab"] as const) {
          for (const statement of [
            switchOff,
            policy,
            "ALTER TABLE pay.payout DISABLE TRIGGER ALL",
            "DROP TABLE pay.journal",
            "CREATE TABLE pay.mine (x int)",
            "SET LOCAL session_replication_role = replica",
            "INSERT INTO pay.payout_transition (payout_id, to_state, actor, db_role) VALUES (gen_random_uuid(), 'POSTED', 'x', 'x')"
          ]) {
            assert.strictEqual(yield* Scene.attempt(hands[role], statement), FORBIDDEN, `${role}: ${statement}`)
          }
        }
      })
    )

    it.effect("a missing guard is named", () =>
      Effect.gen(function* () {
        const { postgres } = yield* Scene.Hands
        const damage: ReadonlyArray<readonly [statement: string, missing: string]> = [
          ["ALTER TABLE pay.payout DISABLE TRIGGER aa_guard", "trigger payout.aa_guard"],
          ["ALTER TABLE pay.journal ENABLE TRIGGER zz_immutable", "trigger journal.zz_immutable"],
          ["DROP TRIGGER zz_balanced ON pay.ledger_entry", "trigger ledger_entry.zz_balanced"],
          ["DROP INDEX pay.journal_one_per_payout", "unique index journal_one_per_payout"],
          ["ALTER TABLE pay.account DROP CONSTRAINT account_no_overdraft", "check account_no_overdraft"],
          [
            "GRANT SELECT ON pay.rail_high_water TO dlock_payment",
            "privilege: dlock_payment may SELECT rail_high_water"
          ],
          [
            "GRANT UPDATE (balance_minor) ON pay.account TO dlock_payment",
            "privilege: dlock_payment may UPDATE account.balance_minor"
          ],
          ["GRANT UPDATE (state) ON pay.payout TO dlock_rail", "privilege: dlock_rail may UPDATE payout"],
          ["GRANT DELETE ON pay.payout TO dlock_readonly", "privilege: dlock_readonly may DELETE payout"],
          ["GRANT dlock_owner TO dlock_rail", "privilege: dlock_rail is a member of dlock_owner"]
        ]
        for (const [statement, missing] of damage) {
          const told = yield* Effect.gen(function* () {
            yield* postgres.unsafe(statement)
            return yield* Effect.flip(
              Effect.flatMap(postgres<{ missing: string }>`SELECT missing FROM pay.guard_missing`, Effect.fail)
            )
          }).pipe(Effect.flatMap(Effect.fail), postgres.withTransaction, Effect.flip)
          assert.include(JSON.stringify(told), missing, statement)
        }
        assert.deepStrictEqual(yield* postgres`SELECT missing FROM pay.guard_missing`, [])
      })
    )

    it.effect("next_step says in SQL what nextStep says in core, for every state, submission and verdict", () =>
      Effect.gen(function* () {
        const { dlock_payment } = yield* Scene.Hands
        const seen = new Set<string>()
        for (const state of PayoutState.literals) {
          for (const submission of [undefined, ...SubmissionOutcome.literals]) {
            for (const verdict of RailVerdict.literals) {
              const [row] = yield* dlock_payment<{ step: string }>`
                SELECT pay.next_step(${state}, ${submission ?? null}::text, ${verdict}) AS step`
              assert.strictEqual(row?.step, nextStep(state, submission, verdict), `${state} ${submission} ${verdict}`)
              seen.add(row?.step ?? "")
            }
          }
        }
        assert.deepStrictEqual([...seen].toSorted(), [...NextStep.literals].toSorted())
      })
    )

    it.effect("the house has its accounts, and the token floor is the greatest token seen anywhere", () =>
      Effect.gen(function* () {
        const { dlock_readonly } = yield* Scene.Hands
        const house = yield* dlock_readonly<{ account_id: string }>`
          SELECT account_id FROM pay.account WHERE kind <> 'CUSTOMER' ORDER BY account_id`
        assert.deepStrictEqual(
          house.map((row) => row.account_id),
          ["clearing", "funding", "suspense"].flatMap((kind) => ["eur", "gbp", "usd"].map((one) => `${kind}-${one}`))
        )
        const payout = yield* Scene.pending
        yield* Scene.seal(payout, 4_000)
        yield* Scene.claim(yield* Scene.pending, 3_000)
        assert.deepStrictEqual(yield* dlock_readonly`SELECT floor FROM pay.token_floor`, [{ floor: 4_000n }])
      })
    )
  })

  it.layer(Scene.layer, { excludeTestServices: true, timeout: "60 seconds" })("of an experiment", (it) => {
    it.effect("has a role that may turn the switches and the policy, and do nothing else", () =>
      Effect.gen(function* () {
        const hands = yield* Scene.Hands
        const { url } = yield* TestDatabase
        assert.deepStrictEqual(yield* PgPaydb.migrateLab(url), ["0001_switches"])
        assert.deepStrictEqual(yield* PgPaydb.migrateLab(url), [])
        const accepted = [
          "UPDATE pay.fencing_switch SET enabled = false WHERE point = 'resource'",
          "UPDATE pay.rail_policy SET finality_window = '1 second', min_not_found = 1, min_spacing = '0'"
        ]
        for (const statement of accepted)
          assert.strictEqual(yield* Scene.attempt(hands.dlock_lab, statement), "accepted")
        for (const statement of [
          "DELETE FROM pay.fencing_switch",
          "INSERT INTO pay.fencing_switch VALUES ('rail', false)",
          "UPDATE pay.fencing_switch SET point = 'rail'",
          "SELECT * FROM pay.payout"
        ]) {
          assert.strictEqual(yield* Scene.attempt(hands.dlock_lab, statement), FORBIDDEN, statement)
        }
        assert.deepStrictEqual(yield* hands.postgres`SELECT missing FROM pay.guard_missing`, [])
      })
    )

    it.effect("keeps two switches and one policy", () =>
      Effect.gen(function* () {
        const { postgres } = yield* Scene.Hands
        const attempt = (statement: string) => Scene.attempt(postgres, statement)
        assert.strictEqual(yield* attempt("INSERT INTO pay.fencing_switch VALUES ('both', false)"), "23514")
        assert.strictEqual(yield* attempt("INSERT INTO pay.fencing_switch VALUES ('rail', false)"), "23505")
        assert.strictEqual(yield* attempt("INSERT INTO pay.rail_policy DEFAULT VALUES"), "23505")
        assert.strictEqual(yield* attempt("INSERT INTO pay.rail_policy (one) VALUES (false)"), "23514")
      })
    )

    it.effect("a policy for the lab is parsed strictly and refused in production", () =>
      Effect.gen(function* () {
        const { postgres } = yield* Scene.Hands
        const { url } = yield* TestDatabase
        assert.deepStrictEqual(yield* PgPaydb.parseLabPolicy("local", "3000,2,1000"), {
          finalityWindowMillis: 3_000,
          minNotFound: 2,
          minSpacingMillis: 1_000
        })
        for (const text of ["", "1", "1,2", "1,0,1", "-1,1,1", "1,1,1,1", "1.5,1,1", "1,1,x", " 1,1,1"]) {
          assert.strictEqual((yield* Effect.flip(PgPaydb.parseLabPolicy("dev", text)))._tag, "ConfigProblem", text)
        }
        assert.include((yield* Effect.flip(PgPaydb.parseLabPolicy("production", "1,1,1"))).message, "production")
        yield* Effect.flip(PgPaydb.applyLabPolicy("production", url, "1,1,1"))
        yield* PgPaydb.applyLabPolicy("local", url, "1500,3,250")
        assert.deepStrictEqual(
          yield* postgres`SELECT finality_window::text, min_not_found, min_spacing::text FROM pay.rail_policy`,
          [{ finality_window: "00:00:01.5", min_not_found: 3, min_spacing: "00:00:00.25" }]
        )
      })
    )
  })
})

type Entry = readonly [accountId: string, amount: number]

/** A journal with its entries, as one statement. */
const journal = (kind: string, payoutId: string | null, token: number | null, ...entries: ReadonlyArray<Entry>) => {
  const made = `WITH made AS (INSERT INTO pay.journal (kind, payout_id, actor, token)
    VALUES ('${kind}', ${payoutId === null ? "NULL" : `'${payoutId}'`}, 'w1', ${token ?? "NULL"}) RETURNING journal_id)`
  if (entries.length === 0) return `${made} SELECT journal_id FROM made`
  const values = entries.map(([accountId, amount]) => `('${accountId}', ${amount}::int8)`).join(", ")
  return `${made} INSERT INTO pay.ledger_entry (journal_id, account_id, currency, amount_minor)
    SELECT journal_id, e.account_id, 'EUR', e.amount FROM made, (VALUES ${values}) e (account_id, amount)`
}

const postingOf = (
  { accountId, amountMinor, payoutId }: { accountId: string; amountMinor: bigint; payoutId: string },
  token: number
) => [journal("PAYOUT", payoutId, token, [accountId, -Number(amountMinor)], ["clearing-eur", Number(amountMinor)])]

const submission = (
  payout: { payoutId: string; accountId: string; amountMinor: bigint; clientReference: string },
  token: number,
  column = "outcome",
  value = "NULL"
) =>
  `INSERT INTO pay.rail_submission (payout_id, account_id, currency, amount_minor, client_ref, token, actor, proxy_instance,
     send_by, ${column}, outcome_at)
   VALUES ('${payout.payoutId}', '${payout.accountId}', 'EUR', ${payout.amountMinor}, '${payout.clientReference}', ${token}, 'w1',
     'test', now(), ${value}, CASE WHEN ${value}::text IS NOT NULL THEN now() END)`
