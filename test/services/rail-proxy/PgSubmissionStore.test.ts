/** The submission store when paydb fails it: what is answered, and what is on record afterwards. */
import { assert, layer } from "@effect/vitest"
import { Clock, Context, Effect, Fiber, Layer, Redacted, type Scope } from "effect"
import * as net from "node:net"
import { AcquireId, FencingToken, OwnerId } from "../../../src/core/lock/Lock.ts"
import { type Payout, AccountId, PayoutId } from "../../../src/core/payment/Payout.ts"
import { PaymentStore } from "../../../src/core/payment/PaymentStore.ts"
import { SubmissionStore } from "../../../src/core/rail/SubmissionStore.ts"
import * as PgPaydb from "../../../src/services/payment-resource/PgPaydb.ts"
import * as PgPaymentStore from "../../../src/services/payment-resource/PgPaymentStore.ts"
import * as Pg from "../../../src/services/platform/Pg.ts"
import * as PgSubmissionStore from "../../../src/services/rail-proxy/PgSubmissionStore.ts"
import { TestDatabase } from "../../support/pg.ts"
import { waitUntil } from "../../support/waitUntil.ts"

const payments = Layer.unwrap(
  Effect.map(TestDatabase, ({ url }) =>
    PgPaymentStore.layer({ fencingEnabled: true, callTimeoutMillis: 5_000 }).pipe(
      Layer.provide(Pg.layer({ url, applicationName: "payments", parameters: { role: "dlock_payment" } }))
    )
  )
)
const World = payments.pipe(Layer.provideMerge(TestDatabase.layer("paydb", PgPaydb.migrate)))

const w1 = OwnerId.make("w1")
const T = (n: number) => FencingToken.make(BigInt(n))
let names = 0

const claimed = Effect.fnUntraced(function* (token: number) {
  const store = yield* PaymentStore
  const n = String(++names)
  const accountId = AccountId.make(`acct-${n}`)
  yield* store.createAccount({ accountId, currency: "EUR", openingBalanceMinor: 10_000n, actor: w1 })
  const { payout } = yield* store.createPayout({
    idempotencyKey: AcquireId.make(`order-${n}`),
    actor: w1,
    payoutId: PayoutId.make(`00000000-0000-4000-8000-${n.padStart(12, "0")}`),
    accountId,
    amountMinor: 2_500n,
    currency: "EUR",
    beneficiary: "DE02120300000000202051"
  })
  yield* store.claim({ payoutId: payout.payoutId, token: T(token), actor: w1 })
  return payout
})

const requestOf = (payout: Payout, token: number) => ({
  token: T(token),
  actor: w1,
  idempotencyKey: AcquireId.make(`submit-${payout.payoutId}`),
  payoutId: payout.payoutId,
  accountId: payout.accountId,
  amountMinor: payout.amountMinor,
  currency: payout.currency,
  beneficiary: payout.beneficiary
})

const storeAt = (url: Redacted.Redacted): Effect.Effect<SubmissionStore["Service"], unknown, Scope.Scope> =>
  Effect.map(
    Layer.build(
      PgSubmissionStore.layer({ fencingEnabled: true, sendWindowMillis: 1_000, proxyInstance: "proxy-1" }).pipe(
        Layer.provide(Pg.layer({ url, applicationName: "rail", parameters: { role: "dlock_rail" } }))
      )
    ),
    (built) => Context.get(built, SubmissionStore)
  )

const direct = Effect.flatMap(TestDatabase, ({ url }) => storeAt(url))

/**
 * A wire to paydb that is cut right behind a statement: the server has it, and its answer is lost. Once; everything
 * before and after passes. `silence`: the connection stays, and nothing comes any more.
 */
const cutBehind = Effect.fnUntraced(function* (statement: string, how: "break" | "silence" = "break") {
  const target = new URL(Redacted.value((yield* TestDatabase).url))
  let cut = false
  const server = net.createServer((client) => {
    const upstream = net.connect(Number(target.port), target.hostname)
    client.on("error", () => {})
    upstream.on("error", () => {})
    client.on("close", () => upstream.end())
    upstream.on("close", () => client.destroy())
    upstream.pipe(client)
    client.on("data", (chunk: Buffer) => {
      if (!cut && chunk.includes(statement)) {
        cut = true
        upstream.unpipe(client)
        // The server answers when it is done; nobody hears it.
        if (how === "break") upstream.once("data", () => client.destroy()).resume()
      }
      upstream.write(chunk)
    })
  })
  const port = yield* Effect.acquireRelease(
    Effect.callback<number>((resume) => {
      server.listen(0, "127.0.0.1", () => resume(Effect.succeed((server.address() as net.AddressInfo).port)))
    }),
    () => Effect.sync(() => server.close())
  )
  const url = new URL(target)
  url.hostname = "127.0.0.1"
  url.port = String(port)
  return { store: yield* storeAt(Redacted.make(url.href)), wasCut: () => cut }
})

const failure = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.flip(effect), (found) => ({ ...found }) as Record<string, unknown>)

layer(World, { excludeTestServices: true, timeout: "60 seconds" })("PgSubmissionStore on a failing paydb", (it) => {
  it.effect("says that the record may exist when the answer to its commit was lost, and then answers that record", () =>
    Effect.gen(function* () {
      const { store, wasCut } = yield* cutBehind("COMMIT")
      const payout = yield* claimed(7)
      assert.deepStrictEqual(yield* failure(store.recordIntent(requestOf(payout, 7))), {
        _tag: "RailAmbiguous",
        payoutId: payout.payoutId,
        outcome: "INTENT"
      })
      assert.isTrue(wasCut())
      // It was committed; the same request is answered with it, so nobody sends.
      assert.deepInclude(yield* store.recordIntent(requestOf(payout, 7)), { _tag: "Recorded", sameToken: true })
    }).pipe(Effect.scoped)
  )

  it.effect("says the same when no answer to its commit comes, within the send window", () =>
    Effect.gen(function* () {
      const { store, wasCut } = yield* cutBehind("COMMIT", "silence")
      const payout = yield* claimed(7)
      const before = yield* Clock.monotonicTimeNanos
      assert.deepInclude(yield* failure(store.recordIntent(requestOf(payout, 7))), { _tag: "RailAmbiguous" })
      assert.isBelow(Number((yield* Clock.monotonicTimeNanos) - before) / 1e6, 1_600)
      assert.isTrue(wasCut())
      assert.deepInclude(yield* store.read(payout.payoutId), { outcome: "INTENT" })
    }).pipe(Effect.scoped)
  )

  it.effect("says that nothing was recorded when the connection was lost before the commit", () =>
    Effect.gen(function* () {
      const { store, wasCut } = yield* cutBehind("INSERT INTO pay.rail_submission")
      const payout = yield* claimed(7)
      assert.deepInclude(yield* failure(store.recordIntent(requestOf(payout, 7))), { _tag: "BackendUnavailable" })
      assert.isTrue(wasCut())
      yield* waitUntil(
        "the server has rolled back, and the same token may begin",
        Effect.map(Effect.exit(store.recordIntent(requestOf(payout, 7))), ({ _tag }) => _tag === "Success")
      )
      assert.strictEqual((yield* store.read(payout.payoutId)).outcome, "INTENT")
    }).pipe(Effect.scoped)
  )

  it.effect("answers the same outcome when the write of it is repeated after a lost answer", () =>
    Effect.gen(function* () {
      const { store, wasCut } = yield* cutBehind("UPDATE pay.rail_submission")
      const payout = yield* claimed(7)
      const intent = yield* store.recordIntent(requestOf(payout, 7))
      const id = intent._tag === "Send" ? intent.submissionId : ""
      const write = store.recordOutcome(id, "ACKED", { railReference: "R-lost-answer" })
      assert.deepInclude(yield* failure(write), { _tag: "BackendUnavailable" })
      assert.isTrue(wasCut())
      assert.deepInclude(yield* write, { outcome: "ACKED", railReference: "R-lost-answer" })
      assert.deepInclude(yield* store.recordOutcome(id, "TIMEOUT", {}), { outcome: "ACKED" })
    }).pipe(Effect.scoped)
  )

  it.effect("gives up within the send window while it waits for a lock, and what it gave up is never recorded", () =>
    Effect.gen(function* () {
      const store = yield* direct
      const sql = yield* (yield* TestDatabase).pool()
      const payout = yield* claimed(7)
      // The first submission makes the row of the high-water mark.
      yield* sql`INSERT INTO pay.rail_high_water (account_id, highest_token, payout_id, actor)
        VALUES (${payout.accountId}, 1, ${payout.payoutId}::uuid, 'w0')`
      const holding =
        yield* sql`SELECT FROM pay.rail_high_water WHERE account_id = ${payout.accountId} FOR UPDATE`.pipe(
          Effect.andThen(Effect.sleep("2500 millis")),
          sql.withTransaction,
          Effect.forkChild
        )
      yield* Effect.sleep("200 millis")
      const before = yield* Clock.monotonicTimeNanos
      assert.deepInclude(yield* failure(store.recordIntent(requestOf(payout, 7))), { _tag: "BackendUnavailable" })
      assert.isBelow(Number((yield* Clock.monotonicTimeNanos) - before) / 1e6, 1_600)
      yield* Fiber.join(holding)
      yield* waitUntil(
        "no transaction of the rail is left",
        Effect.map(
          sql`SELECT FROM pg_stat_activity WHERE application_name = 'rail' AND state <> 'idle' AND datname = current_database()`,
          (rows) => rows.length === 0
        )
      )
      assert.deepInclude(yield* failure(store.read(payout.payoutId)), { _tag: "PayoutNotFound" })
      // The mark did not move: the same token begins.
      assert.deepInclude(yield* store.recordIntent(requestOf(payout, 7)), { _tag: "Send" })
    }).pipe(Effect.scoped)
  )

  it.effect("is BackendUnavailable while paydb can not be reached, within its bound", () =>
    Effect.gen(function* () {
      const store = yield* storeAt(Redacted.make("postgres://postgres@127.0.0.1:1/paydb"))
      const payout = yield* claimed(7)
      const { payoutId } = payout
      const before = yield* Clock.monotonicTimeNanos
      for (const call of [
        store.recordIntent(requestOf(payout, 7)),
        store.recordOutcome("00000000-0000-4000-8000-000000000000", "TIMEOUT", {}),
        store.read(payoutId),
        store.seal({ payoutId, token: T(7), actor: w1, reason: "because" }),
        store.beginLookup(payoutId),
        store.guards,
        store.ping
      ]) {
        assert.deepInclude(yield* failure(call as Effect.Effect<unknown, object>), { _tag: "BackendUnavailable" })
      }
      assert.isBelow(Number((yield* Clock.monotonicTimeNanos) - before) / 1e6, 15_000)
    }).pipe(Effect.scoped)
  )

  it.effect("records who may send, and who did what under which token", () =>
    Effect.gen(function* () {
      const store = yield* direct
      const sql = yield* (yield* TestDatabase).pool()
      const [sent, sealed] = [yield* claimed(7), yield* claimed(7)]
      yield* store.recordIntent(requestOf(sent, 7))
      yield* store.seal({ payoutId: sealed.payoutId, token: T(7), actor: OwnerId.make("ops"), reason: "fraud" })
      const rows = yield* sql`SELECT actor, token, proxy_instance, fenced, outcome, reason FROM pay.rail_submission
        WHERE payout_id IN (${sent.payoutId}::uuid, ${sealed.payoutId}::uuid) ORDER BY intent_at`
      assert.deepStrictEqual(
        rows.map((row) => ({ ...row })),
        [
          { actor: "w1", token: 7n, proxy_instance: "proxy-1", fenced: true, outcome: null, reason: null },
          { actor: "ops", token: 7n, proxy_instance: "proxy-1", fenced: true, outcome: "VOIDED", reason: "fraud" }
        ]
      )
      const marks =
        yield* sql`SELECT highest_token, actor FROM pay.rail_high_water WHERE account_id = ${sent.accountId}`
      assert.deepStrictEqual(
        marks.map((row) => ({ ...row })),
        [{ highest_token: 7n, actor: "w1" }]
      )
    }).pipe(Effect.scoped)
  )
})
