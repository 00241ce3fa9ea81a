/**
 * The experiment on the stores themselves, in PostgreSQL: W1 claims under T1 and is stopped before it submits; W2 claims
 * under T2, submits, posts; W1 wakes, submits and posts under T1. Both keys of each switch as the row says.
 */
import { PgClient } from "@effect/sql-pg"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Exit, Layer } from "effect"
import { switchMatrix } from "../../../src/core/Fencing.ts"
import { AcquireId, OwnerId } from "../../../src/core/lock/Lock.ts"
import { PaymentStore } from "../../../src/core/payment/PaymentStore.ts"
import { SubmissionStore } from "../../../src/core/rail/SubmissionStore.ts"
import { defaults } from "../../../src/core/Settings.ts"
import * as PgPaydb from "../../../src/services/payment-resource/PgPaydb.ts"
import * as PgPaymentStore from "../../../src/services/payment-resource/PgPaymentStore.ts"
import * as PgSubmissionStore from "../../../src/services/rail-proxy/PgSubmissionStore.ts"
import { TestDatabase } from "../../support/pg.ts"
import * as Scene from "./paydbScene.ts"

const poolAs = (role: string) =>
  Layer.effect(
    PgClient.PgClient,
    Effect.flatMap(TestDatabase, ({ pool }) => pool({ parameters: { role } }))
  )

const storesOf = (payment: boolean, rail: boolean) =>
  Layer.merge(
    PgPaymentStore.layer({ fencingEnabled: payment, callTimeoutMillis: 20_000 }).pipe(
      Layer.provide(poolAs("dlock_payment"))
    ),
    PgSubmissionStore.layer({ fencingEnabled: rail, ...defaults.rail, proxyInstance: "test" }).pipe(
      Layer.provide(poolAs("dlock_rail"))
    )
  )

const w1 = OwnerId.make("w1")
const w2 = OwnerId.make("w2")

const tagOf = <A, E extends { readonly _tag: string }, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.exit(effect), (exit) => {
    const failure = Exit.findErrorOption(exit)
    return failure._tag === "Some" ? failure.value._tag : Exit.isSuccess(exit) ? "accepted" : String(exit.cause)
  })

const expected = [
  { submit: "FencedOut", post: "FencedOut", executions: 1, postings: 1, balanceMinor: 7_500n, unfenced: [] },
  { submit: "FencedOut", post: "accepted", executions: 1, postings: 2, balanceMinor: 5_000n, unfenced: ["resource"] },
  { submit: "accepted", post: "FencedOut", executions: 2, postings: 1, balanceMinor: 7_500n, unfenced: ["rail"] },
  {
    submit: "accepted",
    post: "accepted",
    executions: 2,
    postings: 2,
    balanceMinor: 5_000n,
    unfenced: ["rail", "resource"]
  }
]

describe("the kill-switch matrix on paydb", () => {
  it.layer(TestDatabase.layer("paydb", PgPaydb.migrate), { excludeTestServices: true, timeout: "60 seconds" })((it) => {
    for (const [index, { payment, rail }] of switchMatrix.entries()) {
      it.effect(`resource ${payment ? "on" : "OFF"}, rail ${rail ? "on" : "OFF"}`, () =>
        Effect.gen(function* () {
          const { url } = yield* TestDatabase
          yield* PgPaydb.setSwitches(url, { resource: payment, rail })
          const found = yield* Effect.gen(function* () {
            const payments = yield* PaymentStore
            const submissions = yield* SubmissionStore
            const accountId = yield* Scene.openAccount(10_000n)
            const payout = yield* Scene.order(accountId, 2_500n)
            let executions = 0
            const submit = (token: number, actor: OwnerId) =>
              submissions
                .recordIntent({ ...payout, token: Scene.T(token), actor, idempotencyKey: AcquireId.make("submit") })
                .pipe(
                  Effect.tap((intent) =>
                    intent._tag === "Send"
                      ? Effect.suspend(() =>
                          submissions.recordOutcome(intent.submissionId, "ACKED", {
                            railReference: `R-${payout.payoutId}-${++executions}`
                          })
                        )
                      : Effect.void
                  )
                )
            const write = (token: number, actor: OwnerId) => ({
              payoutId: payout.payoutId,
              token: Scene.T(token),
              actor
            })
            yield* payments.claim(write(1, w1))
            yield* payments.claim(write(2, w2))
            yield* submit(2, w2)
            yield* payments.post(write(2, w2))
            const staleSubmit = yield* tagOf(submit(1, w1))
            const stalePost = yield* tagOf(payments.post(write(1, w1)))
            const { balanceMinor } = yield* payments.readAccount(accountId)
            const { items } = yield* payments.readLedger({ accountId, limit: 10 })
            const { imbalanceMinor, violations } = yield* payments.backlog
            // Sum-zero proves nothing about duplicates: the ledger balances in all four.
            assert.strictEqual(imbalanceMinor, 0n)
            assert.strictEqual(violations["INV-03"], 0)
            return {
              submit: staleSubmit,
              post: stalePost,
              executions,
              postings: items.filter(({ kind }) => kind === "PAYOUT").length,
              balanceMinor,
              accountId
            }
          }).pipe(Effect.provide(storesOf(payment, rail), { local: true }))
          const sql = yield* Effect.flatMap(TestDatabase, ({ pool }) => pool())
          const unfenced = yield* sql<{ point: string }>`
            SELECT DISTINCT point FROM pay.unfenced_row u
             WHERE u.row_id IN (SELECT journal_id::text FROM pay.ledger_entry WHERE account_id = ${found.accountId})
                OR u.row_id IN (SELECT submission_id::text FROM pay.rail_submission WHERE account_id = ${found.accountId})
             ORDER BY point`
          const { accountId: _, ...row } = { ...found, unfenced: unfenced.map(({ point }) => point) }
          assert.deepStrictEqual(row, expected[index])
        })
      )
    }
  })
})
