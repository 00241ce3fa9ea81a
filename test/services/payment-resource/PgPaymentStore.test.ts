/** What only a real database can show of the payment store: races, waits, lost connections, and who deadlocks. */
import { PgClient } from "@effect/sql-pg"
import { assert, describe, it } from "@effect/vitest"
import { Clock, Deferred, Effect, Exit, Fiber, Random } from "effect"
import { PaymentStore } from "../../../src/core/payment/PaymentStore.ts"
import type { Payout } from "../../../src/core/payment/Payout.ts"
import { SubmissionStore } from "../../../src/core/rail/SubmissionStore.ts"
import * as PgPaymentStore from "../../../src/services/payment-resource/PgPaymentStore.ts"
import { TestDatabase } from "../../support/pg.ts"
import { waitUntil } from "../../support/waitUntil.ts"
import * as Scene from "./paydbScene.ts"

const write = ({ payoutId }: Payout, token: number) => ({ payoutId, token: Scene.T(token), actor: Scene.W1 })

const tagOf = <A, E extends { readonly _tag: string }, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.exit(effect), (exit) => {
    const found = Exit.findErrorOption(exit)
    return found._tag === "Some" ? found.value._tag : Exit.isSuccess(exit) ? "success" : String(exit.cause)
  })

/** Runs `use` while another transaction has run `statement` and not committed; it commits when `use` asks for it. */
const whileOpen = <A, E, R>(
  statement: string,
  use: (commit: Effect.Effect<void>, waits: (what: string) => Effect.Effect<void>) => Effect.Effect<A, E, R>
) =>
  Effect.gen(function* () {
    const { pool } = yield* TestDatabase
    const { postgres } = yield* Scene.Hands
    const other = yield* pool({ maxConnections: 1 })
    const [own] = yield* other<{ pid: number }>`SELECT pg_backend_pid() AS pid`
    const ready = yield* Deferred.make<void>()
    const go = yield* Deferred.make<void>()
    const transaction = yield* Effect.forkChild(
      Effect.gen(function* () {
        yield* other.unsafe(statement)
        yield* Deferred.succeed(ready, undefined)
        yield* Deferred.await(go)
      }).pipe(other.withTransaction)
    )
    yield* Deferred.await(ready)
    const waits = (what: string) =>
      waitUntil(
        `${what} waits for the other transaction`,
        Effect.map(
          Effect.orDie(
            postgres`SELECT FROM pg_stat_activity WHERE ${own?.pid ?? 0}::int4 = ANY (pg_blocking_pids(pid))`
          ),
          (rows) => rows.length > 0
        )
      )
    const commit = Effect.andThen(Deferred.succeed(go, undefined), Effect.ignore(Fiber.join(transaction)))
    return yield* Effect.ensuring(use(commit, waits), commit)
  }).pipe(Effect.scoped)

describe("PgPaymentStore", () => {
  it.layer(Scene.layer, { excludeTestServices: true, timeout: "60 seconds" })((it) => {
    it.effect("a post that waits while a higher token claims is fenced out when the claim commits", () =>
      Effect.gen(function* () {
        const payments = yield* PaymentStore
        const payout = yield* Scene.submitted("ACKED")
        const claimBy8 = `UPDATE pay.account SET fence = 8 WHERE account_id = '${payout.accountId}' AND fence < 8`
        const tag = yield* whileOpen(claimBy8, (commit, waits) =>
          Effect.gen(function* () {
            const post = yield* Effect.forkChild(tagOf(payments.post(write(payout, 7))))
            yield* waits("the post")
            yield* commit
            return yield* Fiber.join(post)
          })
        )
        assert.strictEqual(tag, "FencedOut")
        assert.deepInclude(yield* payments.readAccount(payout.accountId), { balanceMinor: 10_000n, fence: 8n })
      })
    )

    it.effect("a post that was first wins: the claim that waits for it finds the payout POSTED", () =>
      Effect.gen(function* () {
        const payments = yield* PaymentStore
        const payout = yield* Scene.submitted("ACKED")
        const posting = `UPDATE pay.payout SET state = 'POSTED', last_token = 7 WHERE payout_id = '${payout.payoutId}';`
        const entries = `WITH made AS (INSERT INTO pay.journal (kind, payout_id, actor, token)
            VALUES ('PAYOUT', '${payout.payoutId}', 'w1', 7) RETURNING journal_id)
          INSERT INTO pay.ledger_entry (journal_id, account_id, currency, amount_minor)
          SELECT journal_id, e.account_id, 'EUR', e.amount FROM made,
                 (VALUES ('${payout.accountId}', -2500::int8), ('clearing-eur', 2500::int8)) e (account_id, amount)`
        const whole = `DO $$ BEGIN ${posting} ${entries}; END $$`
        const tag = yield* whileOpen(whole, (commit, waits) =>
          Effect.gen(function* () {
            const claim = yield* Effect.forkChild(tagOf(payments.claim(write(payout, 8))))
            yield* waits("the claim")
            yield* commit
            return yield* Fiber.join(claim)
          })
        )
        assert.strictEqual(tag, "IllegalTransition")
        assert.deepInclude(yield* payments.readAccount(payout.accountId), { balanceMinor: 7_500n, fence: 7n })
      })
    )

    // W1's submission is on its way to being committed while W2 claims. W2 must not be told to submit.
    it.effect("a claim that waited for a submission is answered with what that submission says", () =>
      Effect.gen(function* () {
        const payments = yield* PaymentStore
        const payout = yield* Scene.claimed
        const intent = `DO $$ BEGIN
          INSERT INTO pay.rail_high_water (account_id, highest_token, payout_id, actor)
          VALUES ('${payout.accountId}', 7, '${payout.payoutId}', 'w1');
          INSERT INTO pay.rail_submission (payout_id, account_id, currency, amount_minor, client_ref, token, actor, proxy_instance, send_by)
          VALUES ('${payout.payoutId}', '${payout.accountId}', 'EUR', 2500, '${payout.clientReference}', 7, 'w1', 'test', now());
        END $$`
        const { payout: claimed } = yield* whileOpen(intent, (commit, waits) =>
          Effect.gen(function* () {
            const claim = yield* Effect.forkChild(payments.claim(write(payout, 8)))
            yield* waits("the claim")
            yield* commit
            return yield* Fiber.join(claim)
          })
        )
        assert.deepInclude(claimed, { state: "CLAIMED", claimToken: Scene.T(8), nextStep: "AWAIT" })
      })
    )

    it.effect("a move whose evidence changes between look and write looks again", () =>
      Effect.gen(function* () {
        const payments = yield* PaymentStore
        const payout = yield* Scene.submitted()
        // Locks the payout's row, so that `ambiguous` has looked (UNKNOWN) and waits when the acknowledgement is recorded.
        const hold = `SELECT FROM pay.payout WHERE payout_id = '${payout.payoutId}' FOR SHARE`
        const { postgres } = yield* Scene.Hands
        const failure = yield* whileOpen(hold, (commit, waits) =>
          Effect.gen(function* () {
            const mark = yield* Effect.forkChild(Effect.flip(payments.ambiguous(write(payout, 7))))
            yield* waits("the mark")
            yield* postgres`UPDATE pay.rail_submission SET outcome = 'ACKED', outcome_at = now(), rail_ref = ${`R-${Scene.unique()}`}
              WHERE payout_id = ${payout.payoutId}::uuid`
            yield* commit
            return yield* Fiber.join(mark)
          })
        )
        assert.deepInclude({ ...failure }, { _tag: "EvidenceMissing", verdict: "EXECUTED", nextStep: "POST" })
      })
    )

    it.effect(
      "a write that waits longer than its bound is BACKEND_UNAVAILABLE, and changes nothing afterwards either",
      () =>
        Effect.gen(function* () {
          const { pool } = yield* TestDatabase
          const sql = yield* pool({ parameters: { role: "dlock_payment" }, maxConnections: 2 })
          const impatient = yield* PgPaymentStore.make({ fencingEnabled: true, callTimeoutMillis: 1_500 }).pipe(
            Effect.provideService(PgClient.PgClient, sql)
          )
          const payout = yield* Scene.pending
          const hold = `SELECT FROM pay.account WHERE account_id = '${payout.accountId}' FOR UPDATE`
          yield* whileOpen(hold, (_commit, waits) =>
            Effect.gen(function* () {
              const before = yield* Clock.currentTimeMillis
              const claim = yield* Effect.forkChild(tagOf(impatient.claim(write(payout, 7))))
              yield* waits("the claim")
              assert.strictEqual(yield* Fiber.join(claim), "BackendUnavailable")
              assert.isBelow((yield* Clock.currentTimeMillis) - before, 5_000)
            })
          )
          const payments = yield* PaymentStore
          const { postgres } = yield* Scene.Hands
          yield* waitUntil(
            "the abandoned statement is gone",
            Effect.map(
              postgres`SELECT FROM pg_stat_activity
                WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()`,
              (rows) => rows.length === 0
            )
          )
          assert.deepInclude(yield* payments.readPayout(payout.payoutId), { state: "PENDING" })
          assert.deepInclude(yield* payments.readAccount(payout.accountId), { fence: 0n, reservedMinor: 0n })
          assert.isFalse((yield* payments.claim(write(payout, 7))).replayed)
        })
    )

    it.effect("a connection that dies in the middle is BACKEND_UNAVAILABLE, and the next call works", () =>
      Effect.gen(function* () {
        const payments = yield* PaymentStore
        const { postgres } = yield* Scene.Hands
        const payout = yield* Scene.pending
        const hold = `SELECT FROM pay.account WHERE account_id = '${payout.accountId}' FOR UPDATE`
        const tag = yield* whileOpen(hold, (_commit, waits) =>
          Effect.gen(function* () {
            const claim = yield* Effect.forkChild(tagOf(payments.claim(write(payout, 7))))
            yield* waits("the claim")
            yield* postgres`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
              WHERE wait_event_type = 'Lock' AND datname = current_database()`
            return yield* Fiber.join(claim)
          })
        )
        assert.strictEqual(tag, "BackendUnavailable")
        assert.strictEqual((yield* payments.claim(write(payout, 7))).payout.state, "CLAIMED")
      })
    )

    // A lock service that grants everyone: every worker has a higher token than all before, on few accounts.
    it.effect("without any mutual exclusion nothing deadlocks, nothing is paid twice and the books are right", () =>
      Effect.gen(function* () {
        const payments = yield* PaymentStore
        const rail = yield* SubmissionStore
        const { postgres } = yield* Scene.Hands
        const deadlocks = Effect.map(
          postgres<{ deadlocks: bigint }>`SELECT pg_stat_get_db_deadlocks(oid) AS deadlocks FROM pg_database
            WHERE datname = current_database()`,
          ([row]) => row?.deadlocks
        )
        const before = yield* deadlocks
        const accounts = yield* Effect.forEach([1, 2, 3], () => Scene.openAccount(100_000n))
        const payouts = yield* Effect.forEach(Array.from({ length: 24 }), (_, i) =>
          Scene.order(accounts[i % 3] ?? accounts[0]!, 1_000n)
        )
        let token = 0
        let sent = 0
        const unexpected = new Set<string>()
        const worker = Effect.gen(function* () {
          for (let round = 0; round < 60; round++) {
            const open = payouts.filter((_, i) => i % 3 === round % 3)
            const payout = open[yield* Random.nextIntBetween(0, open.length)]
            if (payout === undefined) continue
            const own = write(payout, ++token)
            const turn = Effect.gen(function* () {
              const { payout: claimed } = yield* payments.claim(own)
              if (claimed.nextStep === "SUBMIT") {
                const intent = yield* rail.recordIntent({ ...payout, ...own, idempotencyKey: "k" as never })
                if (intent._tag === "Send") {
                  sent++
                  yield* rail.recordOutcome(intent.submissionId, "ACKED", { railReference: `R-${intent.submissionId}` })
                }
              }
              yield* payments.post(own)
            })
            const tag = yield* tagOf(turn)
            if (!/^(success|FencedOut|IllegalTransition|AccountBusy|EvidenceMissing|TokenAlreadyUsed)$/.test(tag)) {
              unexpected.add(tag)
            }
          }
        })
        yield* Effect.all(
          Array.from({ length: 8 }, () => worker),
          { concurrency: 8 }
        )
        assert.deepStrictEqual([...unexpected], [])
        for (const accountId of accounts) {
          // What was left claimed is finished by the next holder.
          for (const state of ["CLAIMED", "PENDING"] as const) {
            for (const payout of (yield* payments.listPayouts({ accountId, state, limit: 100 })).items) {
              const own = write(payout, ++token)
              const { payout: claimed } = yield* payments.claim(own)
              if (claimed.nextStep === "SUBMIT") {
                yield* Scene.submit(payout, token, "ACKED")
                sent++
              }
              yield* payments.post(own)
            }
          }
          assert.deepInclude(yield* payments.readAccount(accountId), { balanceMinor: 92_000n, reservedMinor: 0n })
        }
        assert.strictEqual(sent, 24)
        assert.strictEqual(yield* deadlocks, before)
        const backlog = yield* payments.backlog
        assert.deepStrictEqual([...new Set(Object.values(backlog.violations))], [0])
      })
    )
  })
})
