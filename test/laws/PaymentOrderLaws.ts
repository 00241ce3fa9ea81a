/** Ordering a payout (P3), opening an account (P11), and reading what there is (P1, P2, P9, P10, P12). */
import { assert } from "@effect/vitest"
import { Effect, Schema } from "effect"
import { clearingAccountOf, OPENING_BALANCE_MAX } from "../../src/core/payment/Ledger.ts"
import type { ProtectedWrite } from "../../src/core/payment/PaymentResource.ts"
import { PaymentStore } from "../../src/core/payment/PaymentStore.ts"
import { AccountId, type Payout, PayoutId } from "../../src/core/payment/Payout.ts"
import { TraceId } from "../../src/core/TraceId.ts"
import {
  account,
  AMOUNT,
  claim,
  fail,
  failure,
  invalid,
  type Law,
  law,
  open,
  OPENING,
  ops,
  order,
  ordered,
  orderOf,
  post,
  posted,
  read,
  submit,
  T,
  unique,
  unknownOutcome,
  w1,
  w2
} from "./paymentLawScenes.ts"

export const orders: ReadonlyArray<Law> = [
  law(
    "an order is PENDING, and says that it wants to be claimed",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const request = orderOf(yield* open())
      const { payout, replayed } = yield* payments.createPayout(request)
      assert.isFalse(replayed)
      assert.deepInclude(payout, {
        accountId: request.accountId,
        amountMinor: AMOUNT,
        currency: "EUR",
        beneficiary: request.beneficiary,
        state: "PENDING",
        claimToken: null,
        railReference: null,
        failReason: null,
        nextStep: "CLAIM"
      })
      assert.isTrue(Schema.is(PayoutId)(payout.payoutId))
      assert.match(payout.clientReference, /^[A-Za-z0-9-]{1,35}$/)
      assert.deepStrictEqual(yield* read(payout), payout)
      assert.deepInclude(yield* account(payout), { balanceMinor: OPENING, reservedMinor: 0n, fence: 0n })
    })
  ),
  law(
    "the same key and content is the same payout, the same key with other content is refused",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const request = orderOf(yield* open())
      const first = yield* payments.createPayout(request)
      const again = yield* payments.createPayout({ ...request, actor: w2 })
      assert.deepStrictEqual(again, { payout: first.payout, replayed: true })
      const others = [
        { ...request, amountMinor: AMOUNT + 1n },
        { ...request, beneficiary: "somebody else" },
        { ...request, payoutId: PayoutId.make("11111111-0000-4000-8000-000000000000") },
        { ...request, accountId: yield* open() }
      ]
      for (const other of others) yield* invalid("headers.x-idempotency-key", payments.createPayout(other))
      assert.lengthOf((yield* payments.listPayouts({ accountId: request.accountId, limit: 10 })).items, 1)
    })
  ),
  law(
    "a repeated order is answered with what has become of it",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const request = orderOf(yield* open())
      const { payout } = yield* payments.createPayout(request)
      yield* claim(payout, 7)
      assert.deepInclude((yield* payments.createPayout(request)).payout, {
        payoutId: payout.payoutId,
        state: "CLAIMED"
      })
    })
  ),
  law(
    "orders that arrive at once under one key are one payout",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const request = orderOf(yield* open())
      const answers = yield* Effect.all(
        Array.from({ length: 8 }, () => payments.createPayout(request)),
        { concurrency: 8 }
      )
      assert.lengthOf(new Set(answers.map(({ payout }) => payout.payoutId)), 1)
      assert.lengthOf(
        answers.filter(({ replayed }) => !replayed),
        1
      )
    })
  ),
  law(
    "a payout id serves one order",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const accountId = yield* open()
      const payoutId = PayoutId.make(`22222222-0000-4000-8000-${unique().padStart(12, "0").slice(-12)}`)
      const { payout } = yield* payments.createPayout({ ...orderOf(accountId), payoutId })
      assert.strictEqual(payout.payoutId, payoutId)
      yield* invalid("payload.payoutId", payments.createPayout({ ...orderOf(accountId), payoutId }))
    })
  ),
  law(
    "an order needs a customer's account in its currency, and an amount in bounds",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const accountId = yield* open()
      const nobody = AccountId.make(`acct-${unique()}`)
      assert.deepInclude(yield* failure(payments.createPayout(orderOf(nobody))), {
        _tag: "AccountNotFound",
        accountId: nobody
      })
      yield* invalid("payload.currency", payments.createPayout({ ...orderOf(accountId), currency: "USD" }))
      yield* invalid("payload.accountId", payments.createPayout(orderOf(AccountId.make(clearingAccountOf("EUR")))))
      for (const amount of [0n, -1n, 10n ** 14n + 1n]) {
        yield* invalid("payload.amountMinor", payments.createPayout(orderOf(accountId, amount)))
      }
      assert.isEmpty((yield* payments.listPayouts({ accountId, limit: 10 })).items)
    })
  )
]

export const accounts: ReadonlyArray<Law> = [
  law(
    "an account opens with its balance as a FUNDING journal; repeating the same is answered",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const request = {
        accountId: AccountId.make(`acct-${unique()}`),
        currency: "GBP",
        openingBalanceMinor: 77n,
        actor: ops
      }
      const { account, created } = yield* payments.createAccount(request)
      assert.isTrue(created)
      assert.deepStrictEqual(account, {
        accountId: request.accountId,
        currency: "GBP",
        balanceMinor: 77n,
        reservedMinor: 0n,
        fence: 0n
      })
      assert.deepStrictEqual(yield* payments.createAccount(request), { account, created: false })
      const { items } = yield* payments.readLedger({ accountId: request.accountId, limit: 10 })
      assert.lengthOf(items, 1)
      assert.deepInclude(items[0], { kind: "FUNDING", payoutId: null, actor: ops, token: null })
      assert.deepStrictEqual(items[0]?.entries, [
        { accountId: request.accountId, currency: "GBP", amountMinor: 77n },
        { accountId: "funding-gbp", currency: "GBP", amountMinor: -77n }
      ])
    })
  ),
  law(
    "an account without a balance has no journal",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const accountId = yield* open(0n)
      assert.deepStrictEqual(yield* payments.readLedger({ accountId, limit: 10 }), { items: [], next: null })
    })
  ),
  law(
    "the same account with something else is refused, and so are names of the house and unknown currencies",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const accountId = yield* open()
      const request = { accountId, currency: "EUR", openingBalanceMinor: OPENING, actor: ops }
      yield* invalid("payload.accountId", payments.createAccount({ ...request, openingBalanceMinor: OPENING + 1n }))
      yield* invalid("payload.accountId", payments.createAccount({ ...request, currency: "USD" }))
      const other = { ...request, accountId: AccountId.make(`acct-${unique()}`) }
      yield* invalid("payload.currency", payments.createAccount({ ...other, currency: "CHF" }))
      yield* invalid("payload.openingBalanceMinor", payments.createAccount({ ...other, openingBalanceMinor: -1n }))
      yield* invalid(
        "payload.openingBalanceMinor",
        payments.createAccount({ ...other, openingBalanceMinor: OPENING_BALANCE_MAX + 1n })
      )
      for (const house of ["clearing-eur", "funding-usd", "suspense-gbp", "clearing-chf"]) {
        yield* invalid("payload.accountId", payments.createAccount({ ...other, accountId: AccountId.make(house) }))
      }
      assert.deepInclude(yield* failure(payments.readAccount(other.accountId)), { _tag: "AccountNotFound" })
      assert.deepInclude(yield* account({ accountId }), { balanceMinor: OPENING })
    })
  ),
  law(
    "accounts that open at once under one name are one account",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const accountId = AccountId.make(`acct-${unique()}`)
      const answers = yield* Effect.all(
        Array.from({ length: 6 }, () =>
          payments.createAccount({ accountId, currency: "USD", openingBalanceMinor: 5n, actor: ops })
        ),
        { concurrency: 6 }
      )
      assert.lengthOf(
        answers.filter(({ created }) => created),
        1
      )
      assert.deepInclude(yield* account({ accountId }), { balanceMinor: 5n })
    })
  )
]

export const reading: ReadonlyArray<Law> = [
  law(
    "pages go through all payouts in order of creation, whatever becomes of them meanwhile",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const accountId = yield* open(100_000n)
      const made: Array<Payout> = []
      for (let i = 0; i < 7; i++) made.push(yield* order(accountId))
      const first = yield* payments.listPayouts({ accountId, limit: 3 })
      const [one, two] = made
      if (one === undefined || two === undefined) return assert.fail("seven were made")
      // Both are behind the reader; neither may come again, and none may be skipped.
      yield* claim(one, 7)
      yield* submit(one, 7, "ACKED")
      yield* post(one, 7)
      yield* claim(two, 8)
      const late = yield* order(accountId)
      const rest = yield* payments.listPayouts({ accountId, limit: 3, after: first.next ?? undefined })
      const last = yield* payments.listPayouts({ accountId, limit: 3, after: rest.next ?? undefined })
      assert.isNull(last.next)
      assert.deepStrictEqual(
        [first, rest, last].flatMap(({ items }) => items.map(({ payoutId }) => payoutId)),
        [...made, late].map(({ payoutId }) => payoutId)
      )
      const states = (state: "PENDING" | "CLAIMED" | "POSTED") =>
        Effect.map(payments.listPayouts({ accountId, state, limit: 500 }), ({ items }) => items.length)
      assert.deepStrictEqual(yield* Effect.all([states("PENDING"), states("CLAIMED"), states("POSTED")]), [6, 1, 1])
    })
  ),
  law(
    "a page that is exactly full is the last one",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const accountId = yield* open()
      yield* order(accountId)
      yield* order(accountId)
      assert.isNull((yield* payments.listPayouts({ accountId, limit: 2 })).next)
      assert.isNotNull((yield* payments.listPayouts({ accountId, limit: 1 })).next)
    })
  ),
  law(
    "the ledger is read in pages, journal by journal",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const first = yield* posted(7)
      const { accountId } = first
      const second = yield* order(accountId)
      yield* claim(second, 8)
      yield* submit(second, 8, "ACKED")
      yield* post(second, 8)
      const page = yield* payments.readLedger({ accountId, limit: 2 })
      assert.lengthOf(page.items, 2)
      const rest = yield* payments.readLedger({ accountId, limit: 2, after: page.next ?? undefined })
      assert.deepStrictEqual(
        [...page.items, ...rest.items].map(({ kind, payoutId }) => ({ kind, payoutId })),
        [
          { kind: "FUNDING" as const, payoutId: null },
          { kind: "PAYOUT" as const, payoutId: first.payoutId },
          { kind: "PAYOUT" as const, payoutId: second.payoutId }
        ]
      )
      assert.isNull(rest.next)
    })
  ),
  law(
    "history names actor, token, fence, evidence and trace of every move",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const payout = yield* ordered
      const traceId = "0123456789abcdef0123456789abcdef"
      yield* Effect.provideService(claim(payout, 7), TraceId, traceId)
      yield* submit(payout, 7, "DECLINED")
      yield* claim(payout, 8, w2)
      yield* fail(payout, 8)
      const history = yield* payments.readHistory(payout.payoutId)
      const told = history.map(({ actor, evidence, fenceSeen, from, reason, to, token }) =>
        [from, to, actor, token, fenceSeen, evidence, reason].join(" ")
      )
      assert.deepStrictEqual(told, [
        " PENDING ops  0 NONE ",
        "PENDING CLAIMED w1 7 7 NONE ",
        "CLAIMED CLAIMED w2 8 8 NOT_EXECUTED ",
        "CLAIMED FAILED w1 8 8 NOT_EXECUTED RAIL_DECLINED"
      ])
      assert.strictEqual(history[1]?.traceId, traceId)
      for (const one of history) assert.match(one.traceId ?? "", /^[0-9a-f]{32}$/)
    })
  ),
  law(
    "what nobody knows is told so",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const payoutId = PayoutId.make("99999999-0000-4000-8000-000000000000")
      const accountId = AccountId.make(`acct-${unique()}`)
      const request: ProtectedWrite = { payoutId, token: T(1), actor: w1 }
      const noPayout = { _tag: "PayoutNotFound", payoutId }
      for (const attempt of [
        failure(payments.readPayout(payoutId)),
        failure(payments.readHistory(payoutId)),
        failure(payments.claim(request)),
        failure(payments.post(request)),
        failure(payments.fail({ ...request, reason: "CANCELLED" })),
        failure(payments.ambiguous(request)),
        failure(payments.resolve(request))
      ]) {
        assert.deepInclude(yield* attempt, noPayout)
      }
      assert.deepInclude(yield* failure(payments.readAccount(accountId)), { _tag: "AccountNotFound", accountId })
      assert.deepInclude(yield* failure(payments.readLedger({ accountId, limit: 1 })), { _tag: "AccountNotFound" })
    })
  ),
  law(
    "the backlog counts every state, and finds nothing wrong with a ledger that is right",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const before = yield* payments.backlog
      yield* ordered
      yield* claim(yield* ordered, 7)
      yield* unknownOutcome(7)
      yield* posted(7)
      const after = yield* payments.backlog
      const grown = (state: keyof typeof after.byState) => after.byState[state] - before.byState[state]
      assert.deepStrictEqual(
        [grown("PENDING"), grown("CLAIMED"), grown("RAIL_AMBIGUOUS"), grown("POSTED"), grown("FAILED")],
        [1, 1, 1, 1, 0]
      )
      assert.deepStrictEqual(after.violations, {
        "INV-02": 0,
        "INV-03": 0,
        "INV-05": 0,
        "INV-06": 0,
        "INV-08": 0,
        "ONE-POSTING": 0,
        "ONE-TOKEN-ONE-CLAIM": 0
      })
      assert.strictEqual(after.imbalanceMinor, 0n)
      for (const age of [after.oldestPendingMillis, after.oldestClaimedMillis, after.oldestAmbiguousMillis]) {
        assert.isAtLeast(age, 0)
      }
      yield* payments.ping
      assert.deepStrictEqual(yield* payments.guards, { missing: [], switchOn: true, unfencedRows: false })
    })
  )
]
