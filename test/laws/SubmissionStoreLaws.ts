/**
 * What every submission store has to do, whatever it is made of: the laws of `core/rail/SubmissionStore.ts`, one test each,
 * beside the payment store over the same paydb.
 *
 * The laws of one suite share a database, so each has accounts of its own; a token is compared within its account only.
 */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Exit, type Layer } from "effect"
import { AcquireId, FencingToken, OwnerId } from "../../src/core/lock/Lock.ts"
import { type Payout, AccountId, PayoutId } from "../../src/core/payment/Payout.ts"
import { PaymentStore } from "../../src/core/payment/PaymentStore.ts"
import { SubmissionStore } from "../../src/core/rail/SubmissionStore.ts"

type Needs = SubmissionStore | PaymentStore

interface Law {
  readonly name: string
  readonly holds: Effect.Effect<void, unknown, Needs>
}

const w1 = OwnerId.make("w1")
const w2 = OwnerId.make("w2")
const ops = OwnerId.make("ops")
const T = (n: number) => FencingToken.make(BigInt(n))

/** Unique within a run and between runs on one database. */
let names = 0
const unique = () => `${process.pid.toString(16)}${(++names).toString(16).padStart(6, "0")}`

const openAccount = Effect.gen(function* () {
  const payments = yield* PaymentStore
  const accountId = AccountId.make(`acct-${unique()}`)
  yield* payments.createAccount({ accountId, currency: "EUR", openingBalanceMinor: 100_000n, actor: ops })
  return accountId
})

const orderOn = Effect.fnUntraced(function* (accountId: AccountId) {
  const payments = yield* PaymentStore
  const { payout } = yield* payments.createPayout({
    idempotencyKey: AcquireId.make(`order-${unique()}`),
    actor: ops,
    payoutId: PayoutId.make(`00000000-0000-4000-8000-${unique().padStart(12, "0").slice(-12)}`),
    accountId,
    amountMinor: 2_500n,
    currency: "EUR",
    beneficiary: "DE02120300000000202051"
  })
  return payout
})

const ordered = Effect.flatMap(openAccount, orderOn)

const claim = ({ payoutId }: Payout, token: number, actor = w1) =>
  Effect.flatMap(PaymentStore, (payments) => payments.claim({ payoutId, token: T(token), actor }))

/** PENDING, then claimed under the token. */
const claimed = (token: number) => Effect.tap(ordered, (payout) => claim(payout, token))

const requestOf = (payout: Payout, token: number, actor = w1) => ({
  token: T(token),
  actor,
  idempotencyKey: AcquireId.make(`submit-${payout.payoutId}`),
  payoutId: payout.payoutId,
  accountId: payout.accountId,
  amountMinor: payout.amountMinor,
  currency: payout.currency,
  beneficiary: payout.beneficiary
})

const intend = (payout: Payout, token: number, actor = w1) =>
  Effect.flatMap(SubmissionStore, (store) => store.recordIntent(requestOf(payout, token, actor)))

const sendable = Effect.fnUntraced(function* (payout: Payout, token: number) {
  const intent = yield* intend(payout, token)
  return intent._tag === "Send" ? intent : yield* Effect.die(`already recorded: ${JSON.stringify(intent._tag)}`)
})

const settle = Effect.fnUntraced(function* (
  payout: Payout,
  token: number,
  outcome: "ACKED" | "DECLINED" | "TIMEOUT",
  railReference = `R-${unique()}`
) {
  const store = yield* SubmissionStore
  const { submissionId } = yield* sendable(payout, token)
  return yield* store.recordOutcome(
    submissionId,
    outcome,
    outcome === "ACKED" ? { railReference } : outcome === "DECLINED" ? { railCode: "AC04" } : {}
  )
})

const seal = ({ payoutId }: Payout, token: number) =>
  Effect.flatMap(SubmissionStore, (store) =>
    store.seal({ payoutId, token: T(token), actor: ops, reason: "customer cancelled" })
  )

const stepOf = ({ payoutId }: Payout) =>
  Effect.flatMap(PaymentStore, (payments) => Effect.map(payments.readPayout(payoutId), ({ nextStep }) => nextStep))

/** The failure, as plain fields. */
const failure = <A, E extends { readonly _tag: string }, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.exit(effect), (exit) => {
    const found = Exit.findErrorOption(exit)
    return found._tag === "Some"
      ? ({ ...found.value } as Record<string, unknown>)
      : { _tag: Exit.isSuccess(exit) ? "success" : String(exit.cause) }
  })

const tagOf = <A, E extends { readonly _tag: string }, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(failure(effect), ({ _tag }) => _tag)

const fencedOut = (op: string, { accountId }: Payout, presented: number, highest: number) => ({
  _tag: "FencedOut",
  point: "rail",
  op,
  resource: accountId,
  presented: BigInt(presented),
  highest: BigInt(highest)
})

const fenced: ReadonlyArray<Law> = [
  {
    name: "records the intent and tells what to send, and until when the send may start",
    holds: Effect.gen(function* () {
      const store = yield* SubmissionStore
      const payout = yield* claimed(7)
      const intent = yield* sendable(payout, 7)
      assert.strictEqual(intent.clientReference, payout.clientReference)
      const record = yield* store.read(payout.payoutId)
      assert.deepInclude(record, { payoutId: payout.payoutId, token: T(7), outcome: "INTENT", railReference: null })
      assert.isNull(record.outcomeAt)
      assert.strictEqual(record.sendBy, intent.sendBy)
      assert.approximately(record.sendBy - record.intentAt, 2_000, 50)
      assert.strictEqual(yield* stepOf(payout), "AWAIT")
    })
  },
  {
    name: "answers the same token with the record, whatever became of it, and lets nobody send again",
    holds: Effect.gen(function* () {
      const store = yield* SubmissionStore
      const payout = yield* claimed(7)
      const { submissionId } = yield* sendable(payout, 7)
      const early = yield* intend(payout, 7)
      assert.deepInclude(early, { _tag: "Recorded", sameToken: true })
      yield* store.recordOutcome(submissionId, "ACKED", { railReference: `R-${unique()}` })
      const late = yield* intend(payout, 7)
      assert.strictEqual(late._tag === "Recorded" ? late.submission.outcome : late._tag, "ACKED")
    })
  },
  {
    name: "accepts a later token, tells it whose record there is, and fences out every earlier one from then on",
    holds: Effect.gen(function* () {
      const payout = yield* claimed(7)
      yield* settle(payout, 7, "TIMEOUT")
      yield* claim(payout, 8, w2)
      const second = yield* intend(payout, 8, w2)
      assert.deepInclude(second, { _tag: "Recorded", sameToken: false })
      assert.deepInclude(second._tag === "Recorded" ? second.submission : {}, { token: 7n, outcome: "TIMEOUT" })
      assert.deepStrictEqual(yield* failure(intend(payout, 7)), fencedOut("submit", payout, 7, 8))
    })
  },
  {
    name: "fences out a stale token, and changes nothing",
    holds: Effect.gen(function* () {
      const store = yield* SubmissionStore
      const accountId = yield* openAccount
      const done = yield* orderOn(accountId)
      yield* claim(done, 9)
      yield* settle(done, 9, "DECLINED")
      const payout = yield* orderOn(accountId)
      assert.deepStrictEqual(yield* failure(intend(payout, 8)), fencedOut("submit", payout, 8, 9))
      assert.strictEqual(yield* tagOf(store.read(payout.payoutId)), "PayoutNotFound")
      // The mark is where it was.
      assert.strictEqual(yield* tagOf(intend(done, 9)), "success")
    })
  },
  {
    name: "says of a current token that was spent on another payout that it is used, which is no incident",
    holds: Effect.gen(function* () {
      const payments = yield* PaymentStore
      const accountId = yield* openAccount
      const first = yield* orderOn(accountId)
      yield* claim(first, 9)
      yield* settle(first, 9, "DECLINED")
      yield* payments.fail({ payoutId: first.payoutId, token: T(9), actor: w1, reason: "RAIL_DECLINED" })
      const second = yield* orderOn(accountId)
      assert.deepStrictEqual(yield* failure(intend(second, 9)), {
        _tag: "TokenAlreadyUsed",
        payoutId: second.payoutId,
        token: 9n
      })
    })
  },
  {
    name: "(c2) accepts only the token that the payout is claimed under; a refused one moves no mark",
    holds: Effect.gen(function* () {
      const pending = yield* ordered
      assert.deepStrictEqual(yield* failure(intend(pending, 5)), fencedOut("submit", pending, 5, 0))
      const payout = yield* claimed(7)
      // A forged or future token is above every mark, and still not the claimant's.
      assert.deepStrictEqual(yield* failure(intend(payout, 1_000)), fencedOut("submit", payout, 1_000, 7))
      assert.deepStrictEqual(yield* failure(intend(payout, 6)), fencedOut("submit", payout, 6, 7))
      yield* sendable(payout, 7)
    })
  },
  {
    name: "(c2) refuses the old claimant from the moment of the new claim, before anybody submits",
    holds: Effect.gen(function* () {
      const payout = yield* claimed(7)
      yield* claim(payout, 8, w2)
      assert.deepStrictEqual(yield* failure(intend(payout, 7)), fencedOut("submit", payout, 7, 8))
      yield* sendable(payout, 8)
    })
  },
  {
    name: "sends what was ordered or nothing: every field that differs is named",
    holds: Effect.gen(function* () {
      const store = yield* SubmissionStore
      const payout = yield* claimed(7)
      const request = requestOf(payout, 7)
      const refused = yield* failure(
        store.recordIntent({
          ...request,
          accountId: AccountId.make("someone-else"),
          amountMinor: 2_501n,
          currency: "USD",
          beneficiary: "NL00TEST0000000001"
        })
      )
      assert.strictEqual(refused["_tag"], "ValidationFailed")
      assert.deepStrictEqual(
        (refused["fields"] as ReadonlyArray<{ readonly path: string }>).map(({ path }) => path),
        ["payload.accountId", "payload.amountMinor", "payload.currency", "payload.beneficiary"]
      )
      yield* sendable(payout, 7)
    })
  },
  {
    name: "knows no payout that does not exist",
    holds: Effect.gen(function* () {
      const store = yield* SubmissionStore
      const payout = yield* ordered
      const payoutId = PayoutId.make("ffffffff-ffff-4fff-8fff-ffffffffffff")
      const nobody = { ...payout, payoutId }
      assert.deepStrictEqual(
        yield* Effect.all([
          tagOf(intend(nobody, 7)),
          tagOf(seal(nobody, 7)),
          tagOf(store.read(payoutId)),
          tagOf(store.beginLookup(payoutId)),
          tagOf(
            store.recordEvidence({ payoutId, token: T(7), actor: ops, finding: "EXECUTED", reason: "statement line" })
          )
        ]),
        ["PayoutNotFound", "PayoutNotFound", "PayoutNotFound", "PayoutNotFound", "PayoutNotFound"]
      )
      // Ordered, and nothing submitted yet.
      assert.strictEqual(yield* tagOf(store.read(payout.payoutId)), "PayoutNotFound")
    })
  },
  {
    name: "writes an outcome once: repeating it, or another, changes nothing and answers what is on record",
    holds: Effect.gen(function* () {
      const store = yield* SubmissionStore
      const payout = yield* claimed(7)
      const { submissionId } = yield* sendable(payout, 7)
      const railReference = `R-${unique()}`
      const first = yield* store.recordOutcome(submissionId, "ACKED", { railReference })
      assert.deepInclude(first, { outcome: "ACKED", railReference })
      assert.deepStrictEqual(yield* store.recordOutcome(submissionId, "ACKED", { railReference }), first)
      assert.deepStrictEqual(yield* store.recordOutcome(submissionId, "TIMEOUT", {}), first)
      assert.deepStrictEqual(yield* store.recordOutcome(submissionId, "DECLINED", { railCode: "AC04" }), first)
      assert.deepStrictEqual(yield* store.read(payout.payoutId), first)
    })
  },
  {
    name: "turns an outcome into the next step, and keeps the code of a decline",
    holds: Effect.gen(function* () {
      const [acked, declined, lost] = [yield* claimed(7), yield* claimed(7), yield* claimed(7)]
      yield* settle(acked, 7, "ACKED")
      yield* settle(declined, 7, "DECLINED")
      yield* settle(lost, 7, "TIMEOUT")
      assert.deepStrictEqual(yield* Effect.all([stepOf(acked), stepOf(declined), stepOf(lost)]), [
        "POST",
        "FAIL",
        "AMBIGUOUS"
      ])
      const again = yield* intend(declined, 7)
      assert.strictEqual(again._tag === "Recorded" ? again.railCode : again._tag, "AC04")
    })
  },
  {
    name: "records a rail reference that acknowledged another payout as DUPLICATE_ACK, which is ambiguous",
    holds: Effect.gen(function* () {
      const railReference = `R-${unique()}`
      const [first, second] = [yield* claimed(7), yield* claimed(7)]
      assert.strictEqual((yield* settle(first, 7, "ACKED", railReference)).outcome, "ACKED")
      const repeated = yield* settle(second, 7, "ACKED", railReference)
      assert.deepInclude(repeated, { outcome: "DUPLICATE_ACK", railReference })
      assert.strictEqual(yield* stepOf(second), "AMBIGUOUS")
      const again = yield* intend(second, 7)
      assert.strictEqual(again._tag === "Recorded" ? again.submission.outcome : again._tag, "DUPLICATE_ACK")
    })
  },
  {
    name: "lets one of many sends at once, under one token",
    holds: Effect.gen(function* () {
      const payout = yield* claimed(7)
      const intents = yield* Effect.all(
        Array.from({ length: 12 }, () => intend(payout, 7)),
        { concurrency: "unbounded" }
      )
      assert.strictEqual(intents.filter(({ _tag }) => _tag === "Send").length, 1)
      assert.isTrue(intents.every((intent) => intent._tag === "Send" || intent.sameToken))
    })
  },
  {
    name: "lets one send at most while claims and submits of many tokens race",
    holds: Effect.gen(function* () {
      const payout = yield* ordered
      const outcomes = yield* Effect.forEach(
        Array.from({ length: 12 }, (_, i) => i + 1),
        (token) => Effect.exit(Effect.andThen(claim(payout, token), intend(payout, token))),
        { concurrency: "unbounded" }
      )
      const sends = outcomes.filter((exit) => Exit.isSuccess(exit) && exit.value._tag === "Send")
      assert.isAtMost(sends.length, 1)
      // Whoever comes last with the highest token is told, or sends.
      yield* Effect.exit(claim(payout, 99))
      const last = yield* intend(payout, 99)
      assert.strictEqual(sends.length + (last._tag === "Send" ? 1 : 0), 1)
    })
  },
  {
    name: "seals a payout that nobody claimed: nothing was and nothing can be sent, under any token",
    holds: Effect.gen(function* () {
      const store = yield* SubmissionStore
      const payout = yield* ordered
      const sealed = yield* seal(payout, 7)
      assert.deepInclude(sealed, { token: T(7), outcome: "VOIDED", railReference: null })
      assert.isNotNull(sealed.outcomeAt)
      assert.deepStrictEqual(yield* store.read(payout.payoutId), sealed)
      assert.strictEqual(yield* stepOf(payout), "FAIL")
      assert.strictEqual(yield* tagOf(claim(payout, 8)), "EvidenceMissing")
      const later = yield* intend(payout, 9)
      assert.deepInclude(later, { _tag: "Recorded", sameToken: false })
      // Repeating it answers again, under the same token and under a later one.
      assert.deepStrictEqual(yield* seal(payout, 9), sealed)
    })
  },
  {
    name: "seals a claimed payout for its claimant only",
    holds: Effect.gen(function* () {
      const payout = yield* claimed(7)
      assert.deepStrictEqual(yield* failure(seal(payout, 8)), fencedOut("void", payout, 8, 7))
      assert.strictEqual((yield* seal(payout, 7)).outcome, "VOIDED")
      assert.strictEqual(yield* stepOf(payout), "FAIL")
      const again = yield* intend(payout, 7)
      assert.deepInclude(again, { _tag: "Recorded", sameToken: true })
    })
  },
  {
    name: "seals nothing that was submitted, and tells what became of it, as often as it is asked",
    holds: Effect.gen(function* () {
      const payout = yield* claimed(7)
      yield* settle(payout, 7, "TIMEOUT")
      const lost = { _tag: "DuplicateSubmission", payoutId: payout.payoutId, outcome: "TIMEOUT", token: 7n }
      assert.deepStrictEqual(yield* failure(seal(payout, 7)), lost)
      assert.deepStrictEqual(yield* failure(seal(payout, 8)), lost)
      // 8 was accepted all the same.
      assert.deepStrictEqual(yield* failure(seal(payout, 7)), fencedOut("void", payout, 7, 8))
    })
  },
  {
    name: "gives the slot to one of a seal and a submit that race",
    holds: Effect.forEach(
      Array.from({ length: 6 }),
      Effect.fnUntraced(function* () {
        const payout = yield* claimed(7)
        const [submitted, sealed] = yield* Effect.all([Effect.exit(intend(payout, 7)), Effect.exit(seal(payout, 7))], {
          concurrency: "unbounded"
        })
        const sent = Exit.isSuccess(submitted) && submitted.value._tag === "Send"
        assert.strictEqual(sent, Exit.isFailure(sealed))
      }),
      { discard: true }
    )
  },
  {
    name: "keeps what a lookup said as evidence, dated before the rail was asked",
    holds: Effect.gen(function* () {
      const store = yield* SubmissionStore
      const payout = yield* claimed(7)
      yield* settle(payout, 7, "TIMEOUT")
      const { payoutId } = payout
      const { askedAt, clientReference } = yield* store.beginLookup(payoutId)
      assert.strictEqual(clientReference, payout.clientReference)
      assert.isAtLeast(askedAt, (yield* store.read(payoutId)).intentAt)
      const blind = { payoutId, executedCount: 0, railReference: null, actor: ops, askedAt }
      for (const finding of ["UNAVAILABLE", "PENDING", "NOT_FOUND"] as const) {
        assert.deepStrictEqual(yield* store.recordLookup({ ...blind, finding }), { lateExecution: false })
        assert.strictEqual(yield* stepOf(payout), "AMBIGUOUS")
      }
      yield* store.recordLookup({
        payoutId,
        finding: "EXECUTED",
        executedCount: 1,
        railReference: `R-${unique()}`,
        actor: ops,
        askedAt
      })
      assert.strictEqual(yield* stepOf(payout), "POST")
    })
  },
  {
    name: "detects an execution after FAILED, once",
    holds: Effect.gen(function* () {
      const payments = yield* PaymentStore
      const store = yield* SubmissionStore
      const payout = yield* claimed(7)
      const { payoutId } = payout
      yield* settle(payout, 7, "DECLINED")
      yield* payments.fail({ payoutId, token: T(7), actor: w1, reason: "RAIL_DECLINED" })
      const { askedAt } = yield* store.beginLookup(payoutId)
      const found = {
        payoutId,
        finding: "EXECUTED",
        executedCount: 1,
        railReference: `R-${unique()}`,
        actor: ops,
        askedAt
      } as const
      assert.deepStrictEqual(
        yield* store.recordLookup({ ...found, finding: "NOT_FOUND", executedCount: 0, railReference: null }),
        { lateExecution: false }
      )
      assert.deepStrictEqual(yield* store.recordLookup(found), { lateExecution: true })
      assert.deepStrictEqual(yield* store.recordLookup(found), { lateExecution: false })
    })
  },
  {
    name: "lets the newest operator evidence settle a contradiction, under a token that passes the fence",
    holds: Effect.gen(function* () {
      const store = yield* SubmissionStore
      const payout = yield* claimed(7)
      const { payoutId } = payout
      yield* settle(payout, 7, "TIMEOUT")
      const evidence = (finding: "EXECUTED" | "REJECTED" | "NOT_FOUND", token: number) =>
        store.recordEvidence({
          payoutId,
          token: T(token),
          actor: ops,
          finding,
          reason: "statement of the day",
          ...(finding === "EXECUTED" ? { railReference: "R-statement" } : {})
        })
      assert.deepStrictEqual(yield* evidence("EXECUTED", 7), {
        payoutId,
        finding: "EXECUTED",
        executedCount: 1,
        railReference: "R-statement"
      })
      assert.strictEqual(yield* stepOf(payout), "POST")
      yield* evidence("REJECTED", 8)
      assert.strictEqual(yield* stepOf(payout), "FAIL")
      yield* evidence("EXECUTED", 9)
      assert.strictEqual(yield* stepOf(payout), "POST")
      assert.deepStrictEqual(yield* failure(evidence("REJECTED", 8)), fencedOut("evidence", payout, 8, 9))
      assert.strictEqual(yield* stepOf(payout), "POST")
    })
  },
  {
    name: "has its guards, and no row that was written unfenced",
    holds: Effect.gen(function* () {
      const store = yield* SubmissionStore
      yield* store.ping
      assert.deepStrictEqual(yield* store.guards, { missing: [], switchOn: true, unfencedRows: false })
    })
  }
]

/** With both keys turned: the guards stand aside, and say so for ever. */
const unfenced: ReadonlyArray<Law> = [
  {
    name: "sends a stale submit again",
    holds: Effect.gen(function* () {
      const store = yield* SubmissionStore
      const payout = yield* claimed(7)
      yield* claim(payout, 8, w2)
      const second = yield* sendable(payout, 8)
      const first = yield* sendable(payout, 7)
      assert.notStrictEqual(first.submissionId, second.submissionId)
      yield* store.recordOutcome(second.submissionId, "ACKED", { railReference: `R-${unique()}` })
      yield* store.recordOutcome(first.submissionId, "ACKED", { railReference: `R-${unique()}` })
      assert.deepInclude(yield* store.guards, { missing: [], switchOn: false, unfencedRows: true })
    })
  },
  {
    name: "still answers the same token with its record",
    holds: Effect.gen(function* () {
      const payout = yield* claimed(7)
      yield* settle(payout, 7, "TIMEOUT")
      assert.deepInclude(yield* intend(payout, 7), { _tag: "Recorded", sameToken: true })
    })
  }
]

const disagreeing: ReadonlyArray<Law> = [
  {
    name: "records nothing while one key is turned and the other is not",
    holds: Effect.gen(function* () {
      const store = yield* SubmissionStore
      const payout = yield* claimed(7)
      const { payoutId } = payout
      const evidence = { payoutId, token: T(7), actor: ops, finding: "EXECUTED", reason: "statement line" } as const
      assert.deepStrictEqual(
        yield* Effect.all([
          // Nor is anybody told that he is fenced out, by a fence that half stands.
          tagOf(intend(payout, 6)),
          tagOf(intend(payout, 7)),
          tagOf(seal(payout, 7)),
          tagOf(store.recordEvidence(evidence))
        ]),
        ["BackendUnavailable", "BackendUnavailable", "BackendUnavailable", "BackendUnavailable"]
      )
      assert.strictEqual(yield* tagOf(store.read(payout.payoutId)), "PayoutNotFound")
      assert.strictEqual(yield* stepOf(payout), "SUBMIT")
    })
  }
]

export interface SubmissionStores<E> {
  readonly fenced: Layer.Layer<Needs, E>
  /** Setting and switch of the rail off. */
  readonly unfenced: Layer.Layer<Needs, E>
  readonly settingOnly: Layer.Layer<Needs, E>
  readonly switchOnly: Layer.Layer<Needs, E>
}

/** `live`: on the real clock; else on the test clock. */
export const describeSubmissionStore = <E>(
  name: string,
  stores: SubmissionStores<E>,
  options: { readonly live: boolean }
) =>
  describe(name, () => {
    for (const [when, layer, laws] of [
      ["with the fence on", stores.fenced, fenced],
      ["with the fence off", stores.unfenced, unfenced],
      ["with the setting off only", stores.settingOnly, disagreeing],
      ["with the switch off only", stores.switchOnly, disagreeing]
    ] as const) {
      describe(when, () => {
        it.layer(layer, { excludeTestServices: options.live, timeout: "60 seconds" })((it) => {
          for (const law of laws) it.effect(law.name, () => law.holds, 30_000)
        })
      })
    }
  })
