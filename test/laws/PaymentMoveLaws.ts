/** Claim, post, fail, ambiguous and resolve (P4 to P8): under which token, on what evidence, and with what effect. */
import { assert } from "@effect/vitest"
import { Effect } from "effect"
import { imbalance } from "../../src/core/payment/Ledger.ts"
import { PaymentStore } from "../../src/core/payment/PaymentStore.ts"
import { SubmissionStore } from "../../src/core/rail/SubmissionStore.ts"
import {
  account,
  ambiguous,
  AMOUNT,
  claim,
  fail,
  failure,
  fencedOut,
  type Law,
  law,
  open,
  OPENING,
  ops,
  order,
  ordered,
  post,
  posted,
  railSays,
  read,
  refused,
  resolve,
  seal,
  submit,
  T,
  unknownOutcome,
  w1,
  w2
} from "./paymentLawScenes.ts"

export const claims: ReadonlyArray<Law> = [
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

export const settlements: ReadonlyArray<Law> = [
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

export const resolutions: ReadonlyArray<Law> = [
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
