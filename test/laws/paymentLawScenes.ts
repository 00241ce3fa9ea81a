/** What the laws of a payment store are written in: payouts in every state, what the rail did, and what a refusal is. */
import { assert } from "@effect/vitest"
import { Effect, Exit } from "effect"
import { AcquireId, FencingToken, OwnerId } from "../../src/core/lock/Lock.ts"
import type { BackendUnavailable, FencedOut } from "../../src/core/lock/LockErrors.ts"
import type { EvidenceMissing, IllegalTransition, PayoutNotFound } from "../../src/core/payment/PaymentErrors.ts"
import { PaymentStore, type Written } from "../../src/core/payment/PaymentStore.ts"
import { AccountId, type Payout } from "../../src/core/payment/Payout.ts"
import type { LookupResult } from "../../src/core/rail/RailProxy.ts"
import { SubmissionStore } from "../../src/core/rail/SubmissionStore.ts"

export type Needs = PaymentStore | SubmissionStore

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
export const w2 = OwnerId.make("w2")
export const ops = OwnerId.make("ops")
export const T = (n: number) => FencingToken.make(BigInt(n))
export const OPENING = 10_000n
export const AMOUNT = 2_500n

/** Unique within a run and between runs on one database. */
let names = 0
export const unique = () => `${process.pid.toString(16)}${(++names).toString(16).padStart(6, "0")}`

export const open = Effect.fnUntraced(function* (openingBalanceMinor = OPENING) {
  const payments = yield* PaymentStore
  const accountId = AccountId.make(`acct-${unique()}`)
  yield* payments.createAccount({ accountId, currency: "EUR", openingBalanceMinor, actor: ops })
  return accountId
})

export const orderOf = (accountId: AccountId, amountMinor = AMOUNT) => ({
  idempotencyKey: AcquireId.make(`order-${unique()}`),
  actor: ops,
  accountId,
  amountMinor,
  currency: "EUR",
  beneficiary: "DE02 1203 0000 0000 2020 51"
})

export const order = (accountId: AccountId, amountMinor = AMOUNT) =>
  Effect.flatMap(PaymentStore, (payments) =>
    Effect.map(payments.createPayout(orderOf(accountId, amountMinor)), ({ payout }) => payout)
  )

export const ordered = Effect.flatMap(open(), (accountId) => order(accountId))

export type Writes = "claim" | "post" | "ambiguous" | "resolve"
export const write =
  (op: Writes) =>
  ({ payoutId }: Pick<Payout, "payoutId">, token: number, actor = w1) =>
    Effect.flatMap(PaymentStore, (payments) => payments[op]({ payoutId, token: T(token), actor }))
export const claim = write("claim")
// These four share a failure channel, and claim has more.
export type Settled = Effect.Effect<
  Written,
  FencedOut | IllegalTransition | EvidenceMissing | PayoutNotFound | BackendUnavailable,
  PaymentStore
>
export const post = write("post") as (...args: Parameters<typeof claim>) => Settled
export const ambiguous = write("ambiguous") as (...args: Parameters<typeof claim>) => Settled
export const resolve = write("resolve") as (...args: Parameters<typeof claim>) => Settled
export const fail = ({ payoutId }: Payout, token: number, reason: "RAIL_DECLINED" | "CANCELLED" = "RAIL_DECLINED") =>
  Effect.flatMap(PaymentStore, (payments) => payments.fail({ payoutId, token: T(token), actor: w1, reason }))

export const read = ({ payoutId }: Payout) => Effect.flatMap(PaymentStore, (payments) => payments.readPayout(payoutId))
export const account = ({ accountId }: Pick<Payout, "accountId">) =>
  Effect.flatMap(PaymentStore, (payments) => payments.readAccount(accountId))

/** Submits under the token; the outcome, if one is given, is recorded. */
export const submit = Effect.fnUntraced(function* (
  payout: Payout,
  token: number,
  outcome?: "ACKED" | "DECLINED" | "TIMEOUT"
) {
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

export const seal = ({ payoutId }: Payout, token: number) =>
  Effect.flatMap(SubmissionStore, (rail) => rail.seal({ payoutId, token: T(token), actor: w1, reason: "cancelled" }))

export const railSays = Effect.fnUntraced(function* ({ payoutId }: Payout, finding: LookupResult) {
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
export const unknownOutcome = Effect.fnUntraced(function* (token: number) {
  const payout = yield* ordered
  yield* claim(payout, token)
  yield* submit(payout, token, "TIMEOUT")
  yield* ambiguous(payout, token)
  return payout
})

export const posted = Effect.fnUntraced(function* (token: number) {
  const payout = yield* ordered
  yield* claim(payout, token)
  yield* submit(payout, token, "ACKED")
  yield* post(payout, token)
  return payout
})

/** The failure, as plain fields. */
export const failure = <A, E extends { readonly _tag: string }, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.exit(effect), (exit): Readonly<Record<string, unknown>> => {
    const found = Exit.findErrorOption(exit)
    return found._tag === "Some" ? { ...found.value } : { _tag: Exit.isSuccess(exit) ? "success" : String(exit.cause) }
  })

/** Refused with these fields, and nothing of payout, account and history is other than before. */
export const refused = <E extends { readonly _tag: string }, R>(
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

export const fencedOut = (op: string, { accountId }: Payout, presented: number, highest: number) => ({
  _tag: "FencedOut" as const,
  point: "resource",
  op,
  resource: accountId,
  presented: BigInt(presented),
  highest: BigInt(highest)
})

export const invalid = (path: string, effect: Effect.Effect<unknown, { readonly _tag: string }, PaymentStore>) =>
  Effect.map(failure(effect), (found) => {
    assert.strictEqual(found["_tag"], "ValidationFailed")
    assert.deepInclude((found["fields"] as ReadonlyArray<{ readonly path: string }>)[0], { path })
  })

export const law = (name: string, holds: Effect.Effect<void, unknown, Needs>): Law => ({ name, holds: () => holds })
