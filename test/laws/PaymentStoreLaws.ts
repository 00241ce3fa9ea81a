/**
 * What every payment store has to do, whatever it is made of: one test a law, beside the submission store over the same
 * paydb, which says what the rail did.
 *
 * The laws of one suite share a database, so each has accounts of its own; a token is compared within its account only.
 */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Exit, type Layer, Schema } from "effect"
import { AcquireId, FencingToken, OwnerId } from "../../src/core/lock/Lock.ts"
import type { BackendUnavailable, FencedOut } from "../../src/core/lock/LockErrors.ts"
import { clearingAccountOf, imbalance, OPENING_BALANCE_MAX } from "../../src/core/payment/Ledger.ts"
import type { EvidenceMissing, IllegalTransition, PayoutNotFound } from "../../src/core/payment/PaymentErrors.ts"
import type { ProtectedWrite } from "../../src/core/payment/PaymentResource.ts"
import { PaymentStore, type Written } from "../../src/core/payment/PaymentStore.ts"
import { AccountId, type Payout, PayoutId } from "../../src/core/payment/Payout.ts"
import type { LookupResult } from "../../src/core/rail/RailProxy.ts"
import { SubmissionStore } from "../../src/core/rail/SubmissionStore.ts"
import { TraceId } from "../../src/core/TraceId.ts"

type Needs = PaymentStore | SubmissionStore

export interface LawWorld {
  /** Lets so much of the database's time pass, and a little more. */
  readonly elapse: (millis: number) => Effect.Effect<void>
  /** How long after its intent a submission may be sent; the rail's finality window of the database is 0. */
  readonly sendWindowMillis: number
}

export interface Law {
  readonly name: string
  readonly holds: (world: LawWorld) => Effect.Effect<void, unknown, Needs>
}

export const w1 = OwnerId.make("w1")
const w2 = OwnerId.make("w2")
const ops = OwnerId.make("ops")
const T = (n: number) => FencingToken.make(BigInt(n))
const OPENING = 10_000n
const AMOUNT = 2_500n

/** Unique within a run and between runs on one database. */
let names = 0
const unique = () => `${process.pid.toString(16)}${(++names).toString(16).padStart(6, "0")}`

const open = Effect.fnUntraced(function* (openingBalanceMinor = OPENING) {
  const payments = yield* PaymentStore
  const accountId = AccountId.make(`acct-${unique()}`)
  yield* payments.createAccount({ accountId, currency: "EUR", openingBalanceMinor, actor: ops })
  return accountId
})

const orderOf = (accountId: AccountId, amountMinor = AMOUNT) => ({
  idempotencyKey: AcquireId.make(`order-${unique()}`),
  actor: ops,
  accountId,
  amountMinor,
  currency: "EUR",
  beneficiary: "DE02 1203 0000 0000 2020 51"
})

const order = (accountId: AccountId, amountMinor = AMOUNT) =>
  Effect.flatMap(PaymentStore, (payments) =>
    Effect.map(payments.createPayout(orderOf(accountId, amountMinor)), ({ payout }) => payout)
  )

const ordered = Effect.flatMap(open(), (accountId) => order(accountId))

type Writes = "claim" | "post" | "ambiguous" | "resolve"
const write =
  (op: Writes) =>
  ({ payoutId }: Pick<Payout, "payoutId">, token: number, actor = w1) =>
    Effect.flatMap(PaymentStore, (payments) => payments[op]({ payoutId, token: T(token), actor }))
const claim = write("claim")
// These four share a failure channel, and claim has more.
type Settled = Effect.Effect<
  Written,
  FencedOut | IllegalTransition | EvidenceMissing | PayoutNotFound | BackendUnavailable,
  PaymentStore
>
const post = write("post") as (...args: Parameters<typeof claim>) => Settled
const ambiguous = write("ambiguous") as (...args: Parameters<typeof claim>) => Settled
const resolve = write("resolve") as (...args: Parameters<typeof claim>) => Settled
const fail = ({ payoutId }: Payout, token: number, reason: "RAIL_DECLINED" | "CANCELLED" = "RAIL_DECLINED") =>
  Effect.flatMap(PaymentStore, (payments) => payments.fail({ payoutId, token: T(token), actor: w1, reason }))

const read = ({ payoutId }: Payout) => Effect.flatMap(PaymentStore, (payments) => payments.readPayout(payoutId))
const account = ({ accountId }: Pick<Payout, "accountId">) =>
  Effect.flatMap(PaymentStore, (payments) => payments.readAccount(accountId))

/** Submits under the token; the outcome, if one is given, is recorded. */
const submit = Effect.fnUntraced(function* (payout: Payout, token: number, outcome?: "ACKED" | "DECLINED" | "TIMEOUT") {
  const rail = yield* SubmissionStore
  const intent = yield* rail.recordIntent({
    token: T(token),
    actor: w1,
    idempotencyKey: AcquireId.make(`submit-${payout.payoutId}`),
    payoutId: payout.payoutId,
    accountId: payout.accountId,
    amountMinor: payout.amountMinor,
    currency: payout.currency,
    beneficiary: payout.beneficiary
  })
  if (intent._tag !== "Send") return yield* Effect.die("there was a submission already")
  if (outcome === undefined) return
  const detail = outcome === "ACKED" ? { railReference: `R-${unique()}` } : {}
  yield* rail.recordOutcome(intent.submissionId, outcome, detail)
})

const seal = ({ payoutId }: Payout, token: number) =>
  Effect.flatMap(SubmissionStore, (rail) => rail.seal({ payoutId, token: T(token), actor: w1, reason: "cancelled" }))

const railSays = Effect.fnUntraced(function* ({ payoutId }: Payout, finding: LookupResult) {
  const rail = yield* SubmissionStore
  const { askedAt } = yield* rail.beginLookup(payoutId)
  const executedCount = finding === "EXECUTED" ? 1 : 0
  yield* rail.recordLookup({
    payoutId,
    finding,
    executedCount,
    railReference: finding === "EXECUTED" ? `R-${unique()}` : null,
    actor: ops,
    askedAt
  })
})

/** A payout that was claimed and submitted under the token, and whose outcome nobody knows. */
const unknownOutcome = Effect.fnUntraced(function* (token: number) {
  const payout = yield* ordered
  yield* claim(payout, token)
  yield* submit(payout, token, "TIMEOUT")
  yield* ambiguous(payout, token)
  return payout
})

const posted = Effect.fnUntraced(function* (token: number) {
  const payout = yield* ordered
  yield* claim(payout, token)
  yield* submit(payout, token, "ACKED")
  yield* post(payout, token)
  return payout
})

/** The failure, as plain fields. */
const failure = <A, E extends { readonly _tag: string }, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.exit(effect), (exit): Readonly<Record<string, unknown>> => {
    const found = Exit.findErrorOption(exit)
    return found._tag === "Some" ? { ...found.value } : { _tag: Exit.isSuccess(exit) ? "success" : String(exit.cause) }
  })

/** Refused with these fields, and nothing of payout, account and history is other than before. */
const refused = <E extends { readonly _tag: string }, R>(
  payout: Payout,
  effect: Effect.Effect<Written, E, R>,
  expected: { readonly _tag: E["_tag"] } & Record<string, unknown>
) =>
  Effect.gen(function* () {
    const payments = yield* PaymentStore
    const look = Effect.all([read(payout), account(payout), payments.readHistory(payout.payoutId)])
    const before = yield* look
    assert.deepInclude(yield* failure(effect), expected)
    assert.deepStrictEqual(yield* look, before)
  })

const fencedOut = (op: string, { accountId }: Payout, presented: number, highest: number) => ({
  _tag: "FencedOut" as const,
  point: "resource",
  op,
  resource: accountId,
  presented: BigInt(presented),
  highest: BigInt(highest)
})

const invalid = (path: string, effect: Effect.Effect<unknown, { readonly _tag: string }, PaymentStore>) =>
  Effect.map(failure(effect), (found) => {
    assert.strictEqual(found["_tag"], "ValidationFailed")
    assert.deepInclude((found["fields"] as ReadonlyArray<{ readonly path: string }>)[0], { path })
  })

const law = (name: string, holds: Effect.Effect<void, unknown, Needs>): Law => ({ name, holds: () => holds })

const orders: ReadonlyArray<Law> = [
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

const accounts: ReadonlyArray<Law> = [
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

const claims: ReadonlyArray<Law> = [
  law(
    "a claim reserves the amount and takes the fence to the token",
    Effect.gen(function* () {
      const payout = yield* ordered
      const { payout: claimed, replayed } = yield* claim(payout, 7)
      assert.isFalse(replayed)
      assert.deepInclude(claimed, { state: "CLAIMED", claimToken: T(7), nextStep: "SUBMIT" })
      assert.deepInclude(yield* account(payout), { balanceMinor: OPENING, reservedMinor: AMOUNT, fence: 7n })
    })
  ),
  law(
    "repeating one's own claim is answered and changes nothing",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const payout = yield* ordered
      const first = yield* claim(payout, 7)
      assert.deepStrictEqual(yield* claim(payout, 7), { payout: first.payout, replayed: true })
      assert.deepInclude(yield* account(payout), { reservedMinor: AMOUNT, fence: 7n })
      assert.lengthOf(yield* payments.readHistory(payout.payoutId), 2)
    })
  ),
  law(
    "a lower token is fenced out, told the highest, and changes nothing",
    Effect.gen(function* () {
      const payout = yield* ordered
      yield* claim(payout, 8)
      yield* refused(payout, claim(payout, 7), fencedOut("claim", payout, 7, 8))
    })
  ),
  law(
    "a higher token claims again, and the old claimant is fenced out of everything",
    Effect.gen(function* () {
      const payout = yield* ordered
      yield* claim(payout, 7)
      yield* submit(payout, 7, "ACKED")
      const { payout: reclaimed } = yield* claim(payout, 8, w2)
      assert.deepInclude(reclaimed, { state: "CLAIMED", claimToken: T(8), nextStep: "POST" })
      yield* refused(payout, claim(payout, 7), fencedOut("claim", payout, 7, 8))
      yield* refused(payout, post(payout, 7), fencedOut("post", payout, 7, 8))
      yield* refused(payout, fail(payout, 7), fencedOut("fail", payout, 7, 8))
      yield* refused(payout, ambiguous(payout, 7), fencedOut("ambiguous", payout, 7, 8))
      yield* refused(payout, resolve(payout, 7), fencedOut("resolve", payout, 7, 8))
      assert.deepInclude(yield* account(payout), { balanceMinor: OPENING, reservedMinor: AMOUNT })
      assert.strictEqual((yield* post(payout, 8)).payout.state, "POSTED")
    })
  ),
  law(
    "one token claims one payout",
    Effect.gen(function* () {
      const first = yield* posted(7)
      const second = yield* order(first.accountId)
      yield* refused(second, claim(second, 7), { _tag: "TokenAlreadyUsed", payoutId: second.payoutId, token: 7n })
      assert.strictEqual((yield* claim(second, 8)).payout.state, "CLAIMED")
    })
  ),
  law(
    "an unfinished claim of the account comes first, and is named; the fence stays",
    Effect.gen(function* () {
      const accountId = yield* open()
      const first = yield* order(accountId)
      const second = yield* order(accountId)
      yield* claim(first, 7)
      yield* refused(second, claim(second, 8), {
        _tag: "AccountBusy",
        accountId,
        unfinishedPayoutId: first.payoutId
      })
      assert.strictEqual((yield* claim(first, 8)).payout.claimToken, 8n)
    })
  ),
  law(
    "a claim that the account can not pay is refused; the fence stays, and the token is still good for the rest",
    Effect.gen(function* () {
      const accountId = yield* open(AMOUNT + 1n)
      const [first, second] = [yield* order(accountId), yield* order(accountId)]
      yield* claim(first, 7)
      yield* submit(first, 7, "TIMEOUT")
      yield* ambiguous(first, 7)
      yield* refused(second, claim(second, 8), { _tag: "InsufficientFunds", accountId, payoutId: second.payoutId })
      yield* seal(second, 8)
      assert.deepInclude((yield* fail(second, 8)).payout, { state: "FAILED", claimToken: null })
      assert.deepInclude(yield* account({ accountId }), { balanceMinor: AMOUNT + 1n, reservedMinor: AMOUNT, fence: 8n })
    })
  ),
  law(
    "what is final can not be claimed, and the fence stays",
    Effect.gen(function* () {
      const payout = yield* posted(7)
      yield* refused(payout, claim(payout, 8), {
        _tag: "IllegalTransition",
        payoutId: payout.payoutId,
        state: "POSTED",
        attempted: "CLAIMED"
      })
    })
  ),
  law(
    "what was sealed before it was claimed can only fail",
    Effect.gen(function* () {
      const payout = yield* ordered
      yield* seal(payout, 7)
      assert.strictEqual((yield* read(payout)).nextStep, "FAIL")
      yield* refused(payout, claim(payout, 8), {
        _tag: "EvidenceMissing",
        state: "PENDING",
        verdict: "NOT_EXECUTED",
        nextStep: "FAIL"
      })
    })
  ),
  law(
    "of claims that arrive at once the greatest token has the last word",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const payout = yield* ordered
      const tokens = [3, 8, 1, 6, 2, 7, 5, 4]
      const tags = yield* Effect.all(
        tokens.map((token) => failure(claim(payout, token))),
        { concurrency: tokens.length }
      )
      for (const { _tag } of tags) assert.include(["success", "FencedOut"], _tag)
      assert.deepInclude(yield* read(payout), { state: "CLAIMED", claimToken: T(8) })
      assert.deepInclude(yield* account(payout), { reservedMinor: AMOUNT, fence: 8n })
      const accepted = (yield* payments.readHistory(payout.payoutId)).flatMap(({ token }) => token ?? [])
      assert.deepStrictEqual(
        accepted,
        accepted.toSorted((a, b) => Number(a - b))
      )
    })
  )
]

const settlements: ReadonlyArray<Law> = [
  law(
    "a post needs the rail's acknowledgement, and moves the money once",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const payout = yield* ordered
      yield* claim(payout, 7)
      const missing = { _tag: "EvidenceMissing" as const, state: "CLAIMED" }
      yield* refused(payout, post(payout, 7), { ...missing, verdict: "NONE", nextStep: "SUBMIT" })
      yield* submit(payout, 7, "ACKED")
      const { payout: done, replayed } = yield* post(payout, 7)
      assert.isFalse(replayed)
      assert.deepInclude(done, { state: "POSTED", claimToken: T(7), failReason: null, nextStep: "NONE" })
      assert.match(done.railReference ?? "", /^R-/)
      assert.deepInclude(yield* account(payout), { balanceMinor: OPENING - AMOUNT, reservedMinor: 0n })
      const { items } = yield* payments.readLedger({ accountId: payout.accountId, limit: 10 })
      assert.deepInclude(items[1], { kind: "PAYOUT", payoutId: payout.payoutId, actor: w1, token: T(7) })
      assert.deepStrictEqual(items[1]?.entries, [
        { accountId: payout.accountId, currency: "EUR", amountMinor: -AMOUNT },
        { accountId: "clearing-eur", currency: "EUR", amountMinor: AMOUNT }
      ])
      for (const journal of items) assert.isEmpty(imbalance(journal.entries))
    })
  ),
  law(
    "an intent without an outcome proves nothing yet",
    Effect.gen(function* () {
      const payout = yield* ordered
      yield* claim(payout, 7)
      yield* submit(payout, 7)
      const missing = { _tag: "EvidenceMissing" as const, state: "CLAIMED", verdict: "UNKNOWN", nextStep: "AWAIT" }
      yield* refused(payout, post(payout, 7), missing)
      yield* refused(payout, fail(payout, 7), missing)
    })
  ),
  law(
    "repeating one's own post is answered again, also when the fence has moved on",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const payout = yield* posted(7)
      assert.deepStrictEqual(yield* post(payout, 7), { payout: yield* read(payout), replayed: true })
      yield* claim(yield* order(payout.accountId), 8)
      assert.isTrue((yield* post(payout, 7)).replayed)
      assert.deepInclude(yield* account(payout), { balanceMinor: OPENING - AMOUNT })
      assert.lengthOf((yield* payments.readLedger({ accountId: payout.accountId, limit: 10 })).items, 2)
      yield* refused(payout, post(payout, 6), fencedOut("post", payout, 6, 8))
    })
  ),
  law(
    "posts that arrive at once are one posting",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const payout = yield* ordered
      yield* claim(payout, 7)
      yield* submit(payout, 7, "ACKED")
      const answers = yield* Effect.all(
        Array.from({ length: 8 }, () => post(payout, 7)),
        { concurrency: 8 }
      )
      assert.lengthOf(
        answers.filter(({ replayed }) => !replayed),
        1
      )
      assert.lengthOf((yield* payments.readLedger({ accountId: payout.accountId, limit: 10 })).items, 2)
      assert.deepInclude(yield* account(payout), { balanceMinor: OPENING - AMOUNT, reservedMinor: 0n })
    })
  ),
  law(
    "a token that never claimed can not settle",
    Effect.gen(function* () {
      const payout = yield* ordered
      const notClaimed = { _tag: "IllegalTransition" as const, state: "PENDING" }
      yield* refused(payout, post(payout, 9), { ...notClaimed, attempted: "POSTED" })
      yield* refused(payout, ambiguous(payout, 9), { ...notClaimed, attempted: "RAIL_AMBIGUOUS" })
      yield* claim(payout, 7)
      yield* submit(payout, 7, "ACKED")
      const claimed = { _tag: "IllegalTransition" as const, state: "CLAIMED" }
      yield* refused(payout, post(payout, 9), { ...claimed, attempted: "POSTED" })
      yield* refused(payout, fail(payout, 9), { ...claimed, attempted: "FAILED" })
      yield* refused(payout, ambiguous(payout, 9), { ...claimed, attempted: "RAIL_AMBIGUOUS" })
    })
  ),
  law(
    "a decline fails the payout and gives the reserve back",
    Effect.gen(function* () {
      const payout = yield* ordered
      yield* claim(payout, 7)
      yield* submit(payout, 7, "DECLINED")
      assert.strictEqual((yield* read(payout)).nextStep, "FAIL")
      const { payout: failed } = yield* fail(payout, 7)
      assert.deepInclude(failed, { state: "FAILED", failReason: "RAIL_DECLINED", claimToken: T(7), nextStep: "NONE" })
      assert.deepInclude(yield* account(payout), { balanceMinor: OPENING, reservedMinor: 0n })
      assert.isTrue((yield* fail(payout, 7)).replayed)
      yield* refused(payout, post(payout, 7), { _tag: "IllegalTransition", state: "FAILED", attempted: "POSTED" })
    })
  ),
  law(
    "a payout that was never claimed fails by its seal alone, and the refusal leaves the fence",
    Effect.gen(function* () {
      const payout = yield* ordered
      yield* refused(payout, fail(payout, 7, "CANCELLED"), {
        _tag: "EvidenceMissing",
        state: "PENDING",
        verdict: "NONE",
        nextStep: "CLAIM"
      })
      yield* seal(payout, 7)
      const { payout: failed } = yield* fail(payout, 7, "CANCELLED")
      assert.deepInclude(failed, { state: "FAILED", failReason: "CANCELLED", claimToken: null })
      assert.deepInclude(yield* account(payout), { balanceMinor: OPENING, reservedMinor: 0n, fence: 7n })
    })
  ),
  law(
    "an unknown outcome is ambiguous: the reserve is kept, and only reconciliation goes on",
    Effect.gen(function* () {
      const payout = yield* ordered
      yield* claim(payout, 7)
      yield* refused(payout, ambiguous(payout, 7), { _tag: "EvidenceMissing", verdict: "NONE", nextStep: "SUBMIT" })
      yield* submit(payout, 7, "TIMEOUT")
      const { payout: unknown } = yield* ambiguous(payout, 7)
      assert.deepInclude(unknown, { state: "RAIL_AMBIGUOUS", claimToken: T(7), nextStep: "LOOKUP" })
      assert.deepInclude(yield* account(payout), { balanceMinor: OPENING, reservedMinor: AMOUNT })
      assert.isTrue((yield* ambiguous(payout, 7)).replayed)
      const stuck = { _tag: "IllegalTransition" as const, state: "RAIL_AMBIGUOUS" }
      yield* refused(payout, claim(payout, 8), { ...stuck, attempted: "CLAIMED" })
      yield* refused(payout, post(payout, 7), { ...stuck, attempted: "POSTED" })
      yield* refused(payout, fail(payout, 8), { ...stuck, attempted: "FAILED" })
    })
  ),
  law(
    "what the rail acknowledged is not ambiguous",
    Effect.gen(function* () {
      const payout = yield* ordered
      yield* claim(payout, 7)
      yield* submit(payout, 7, "ACKED")
      yield* refused(payout, ambiguous(payout, 7), { _tag: "EvidenceMissing", verdict: "EXECUTED", nextStep: "POST" })
    })
  ),
  law(
    "an ambiguous payout does not keep its account from working on",
    Effect.gen(function* () {
      const unknown = yield* unknownOutcome(7)
      const next = yield* order(unknown.accountId)
      yield* claim(next, 8)
      yield* submit(next, 8, "ACKED")
      yield* post(next, 8)
      assert.deepInclude(yield* account(next), { balanceMinor: OPENING - AMOUNT, reservedMinor: AMOUNT })
    })
  )
]

const resolutions: ReadonlyArray<Law> = [
  law(
    "without evidence nothing is resolved, and the fence stays",
    Effect.gen(function* () {
      const payout = yield* unknownOutcome(7)
      const missing = {
        _tag: "EvidenceMissing" as const,
        state: "RAIL_AMBIGUOUS",
        verdict: "UNKNOWN",
        nextStep: "LOOKUP"
      }
      yield* refused(payout, resolve(payout, 8), missing)
      for (const finding of ["PENDING", "UNAVAILABLE", "NOT_FOUND", "NOT_FOUND"] as const) {
        yield* railSays(payout, finding)
        yield* refused(payout, resolve(payout, 8), missing)
      }
    })
  ),
  law(
    "what the rail executed is posted, under the reconciler's token",
    Effect.gen(function* () {
      const payout = yield* unknownOutcome(7)
      yield* railSays(payout, "EXECUTED")
      assert.deepInclude(yield* read(payout), { nextStep: "RESOLVE" })
      const { payout: done } = yield* resolve(payout, 8, ops)
      assert.deepInclude(done, { state: "POSTED", claimToken: T(8) })
      assert.match(done.railReference ?? "", /^R-/)
      assert.deepInclude(yield* account(payout), { balanceMinor: OPENING - AMOUNT, reservedMinor: 0n, fence: 8n })
      assert.isTrue((yield* resolve(payout, 8, ops)).replayed)
      yield* refused(payout, resolve(payout, 7), fencedOut("resolve", payout, 7, 8))
    })
  ),
  law(
    "what the rail rejected is failed",
    Effect.gen(function* () {
      const payout = yield* unknownOutcome(7)
      yield* railSays(payout, "REJECTED")
      const { payout: done } = yield* resolve(payout, 8, ops)
      assert.deepInclude(done, { state: "FAILED", failReason: "RAIL_NOT_EXECUTED" })
      assert.deepInclude(yield* account(payout), { balanceMinor: OPENING, reservedMinor: 0n, fence: 8n })
    })
  ),
  {
    name: "not found counts from when nothing can be sent any more, and not before it was said twice",
    holds: ({ elapse, sendWindowMillis }) =>
      Effect.gen(function* () {
        const payout = yield* unknownOutcome(7)
        yield* railSays(payout, "NOT_FOUND")
        yield* railSays(payout, "NOT_FOUND")
        yield* elapse(sendWindowMillis)
        yield* railSays(payout, "NOT_FOUND")
        assert.strictEqual((yield* read(payout)).nextStep, "LOOKUP")
        yield* elapse(10)
        yield* railSays(payout, "NOT_FOUND")
        const { payout: done } = yield* resolve(payout, 8, ops)
        assert.deepInclude(done, { state: "FAILED", failReason: "RAIL_NOT_EXECUTED" })
      })
  },
  law(
    "a contradiction is for a human, and his newest word counts",
    Effect.gen(function* () {
      const rail = yield* SubmissionStore
      const payout = yield* unknownOutcome(7)
      yield* railSays(payout, "REJECTED")
      yield* railSays(payout, "EXECUTED")
      assert.strictEqual((yield* read(payout)).nextStep, "ESCALATE")
      yield* refused(payout, resolve(payout, 8), { _tag: "EvidenceMissing", verdict: "CONFLICT", nextStep: "ESCALATE" })
      const evidence = (finding: "EXECUTED" | "REJECTED", token: number) =>
        rail.recordEvidence({
          payoutId: payout.payoutId,
          token: T(token),
          actor: ops,
          finding,
          reason: "the statement"
        })
      yield* evidence("REJECTED", 8)
      yield* evidence("EXECUTED", 9)
      assert.strictEqual((yield* resolve(payout, 9, ops)).payout.state, "POSTED")
    })
  ),
  law(
    "only what is ambiguous is resolved",
    Effect.gen(function* () {
      const payout = yield* ordered
      yield* refused(payout, resolve(payout, 7), { _tag: "IllegalTransition", state: "PENDING" })
      yield* claim(payout, 7)
      yield* submit(payout, 7, "ACKED")
      yield* refused(payout, resolve(payout, 8), {
        _tag: "IllegalTransition",
        state: "CLAIMED",
        attempted: "POSTED"
      })
    })
  ),
  law(
    "of two reconcilers one resolves",
    Effect.gen(function* () {
      const payments = yield* PaymentStore
      const payout = yield* unknownOutcome(7)
      yield* railSays(payout, "EXECUTED")
      const tags = yield* Effect.all([failure(resolve(payout, 8)), failure(resolve(payout, 9))], { concurrency: 2 })
      assert.lengthOf(
        tags.filter(({ _tag }) => _tag === "success"),
        1
      )
      assert.lengthOf((yield* payments.readLedger({ accountId: payout.accountId, limit: 10 })).items, 2)
    })
  )
]

const reading: ReadonlyArray<Law> = [
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

export const laws: ReadonlyArray<Law> = [...orders, ...accounts, ...claims, ...settlements, ...resolutions, ...reading]

/**
 * The negative control, with both keys turned: W1 claims under 7 and is stopped, W2 claims 8, submits and posts; W1 wakes
 * and writes under 7, and nothing but the fence was there to stop it.
 */
const corrupted = Effect.gen(function* () {
  const payments = yield* PaymentStore
  const payout = yield* ordered
  yield* claim(payout, 7)
  yield* claim(payout, 8, w2)
  yield* submit(payout, 8, "ACKED")
  yield* post(payout, 8, w2)
  return { payments, payout }
})

export const unfencedLaws: ReadonlyArray<Law> = [
  law(
    "a stale post writes a second posting, and every journal says that it was not fenced",
    Effect.gen(function* () {
      const { payments, payout } = yield* corrupted
      assert.deepInclude(yield* account(payout), { balanceMinor: 7_500n })
      assert.strictEqual((yield* post(payout, 7)).payout.state, "POSTED")
      assert.deepInclude(yield* account(payout), { balanceMinor: 5_000n, reservedMinor: 0n })
      const { items } = yield* payments.readLedger({ accountId: payout.accountId, limit: 10 })
      assert.deepStrictEqual(
        items.map(({ kind, token }) => [kind, token]),
        [
          ["FUNDING", null],
          ["PAYOUT", T(8)],
          ["PAYOUT", T(7)]
        ]
      )
      // Double entry is none the wiser.
      for (const journal of items) assert.isEmpty(imbalance(journal.entries))
      const { imbalanceMinor, violations } = yield* payments.backlog
      assert.strictEqual(imbalanceMinor, 0n)
      assert.deepInclude(violations, { "INV-03": 0, "ONE-POSTING": 1 })
      assert.isAbove(violations["INV-05"], 0)
      assert.deepStrictEqual(yield* payments.guards, { missing: [], switchOn: false, unfencedRows: true })
    })
  ),
  law(
    "a stale claim goes through as well, and its holder posts once more",
    Effect.gen(function* () {
      const { payout } = yield* corrupted
      const { payout: claimed } = yield* claim(payout, 7)
      assert.deepInclude(claimed, { state: "CLAIMED", claimToken: T(7), nextStep: "POST" })
      assert.deepInclude(yield* account(payout), { reservedMinor: AMOUNT, fence: 7n })
      yield* post(payout, 7)
      assert.deepInclude(yield* account(payout), { balanceMinor: 5_000n, reservedMinor: 0n })
    })
  ),
  law(
    "repeating one's own post is still a repeat",
    Effect.gen(function* () {
      const { payout } = yield* corrupted
      assert.isTrue((yield* post(payout, 8, w2)).replayed)
      assert.deepInclude(yield* account(payout), { balanceMinor: 7_500n })
    })
  ),
  law(
    "what the rail did is still not up for debate",
    Effect.gen(function* () {
      const payout = yield* ordered
      yield* claim(payout, 7)
      yield* refused(payout, post(payout, 6), { _tag: "EvidenceMissing", verdict: "NONE" })
      yield* refused(payout, fail(payout, 6), { _tag: "EvidenceMissing", verdict: "NONE" })
    })
  )
]

export interface PaymentStores<E> {
  readonly fenced: Layer.Layer<Needs, E>
  /** Setting and switch of the resource both off. */
  readonly unfenced: Layer.Layer<Needs, E>
}

/** `live`: on the real clock; else on the test clock. */
export const describePaymentStore = <E>(
  name: string,
  stores: PaymentStores<E>,
  world: LawWorld & { readonly live: boolean }
) =>
  describe(name, () => {
    it.layer(stores.fenced, { excludeTestServices: world.live, timeout: "60 seconds" })((it) => {
      for (const { holds, name } of laws) it.effect(name, () => holds(world), 30_000)
    })
    it.layer(stores.unfenced, { excludeTestServices: world.live, timeout: "60 seconds" })(
      "with the fence off",
      (it) => {
        for (const { holds, name } of unfencedLaws) it.effect(name, () => holds(world), 30_000)
      }
    )
  })
