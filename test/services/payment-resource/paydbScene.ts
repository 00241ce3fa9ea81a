/** A paydb of its own with its two stores, payouts in every state that there is, and hands that try to break it. */
import { PgClient } from "@effect/sql-pg"
import { Context, Effect, Exit, Layer } from "effect"
import type { SqlError } from "effect/sql"
import { AcquireId, FencingToken, OwnerId } from "../../../src/core/lock/Lock.ts"
import { PaymentStore } from "../../../src/core/payment/PaymentStore.ts"
import { AccountId, type Payout } from "../../../src/core/payment/Payout.ts"
import { SubmissionStore } from "../../../src/core/rail/SubmissionStore.ts"
import { defaults } from "../../../src/core/Settings.ts"
import * as PgPaydb from "../../../src/services/payment-resource/PgPaydb.ts"
import * as PgPaymentStore from "../../../src/services/payment-resource/PgPaymentStore.ts"
import * as Pg from "../../../src/services/platform/Pg.ts"
import * as PgSubmissionStore from "../../../src/services/rail-proxy/PgSubmissionStore.ts"
import { TestDatabase } from "../../support/pg.ts"

export const roles = ["postgres", "dlock_payment", "dlock_rail", "dlock_readonly", "dlock_lab"] as const
export type Role = (typeof roles)[number]

/** Everybody who can connect to paydb, the superuser included. */
export class Hands extends Context.Service<Hands, Readonly<Record<Role, PgClient.PgClient>>>()("dlock/test/Hands") {
  static readonly layer = Layer.effect(
    Hands,
    Effect.gen(function* () {
      const { pool } = yield* TestDatabase
      const as = (role: Role) => pool(role === "postgres" ? {} : { parameters: { role } })
      return {
        postgres: yield* as("postgres"),
        dlock_payment: yield* as("dlock_payment"),
        dlock_rail: yield* as("dlock_rail"),
        dlock_readonly: yield* as("dlock_readonly"),
        dlock_lab: yield* as("dlock_lab")
      }
    })
  )
}

const storeOf = <I>(
  role: "dlock_payment" | "dlock_rail",
  layer: Layer.Layer<I, never, PgClient.PgClient>
): Layer.Layer<I, never, Hands> =>
  Layer.provide(
    layer,
    Layer.effect(
      PgClient.PgClient,
      Effect.map(Hands, (hands) => hands[role])
    )
  )

export const stores = Layer.merge(
  storeOf("dlock_payment", PgPaymentStore.layer({ fencingEnabled: true, callTimeoutMillis: 10_000 })),
  storeOf(
    "dlock_rail",
    PgSubmissionStore.layer({
      fencingEnabled: true,
      sendWindowMillis: defaults.rail.sendWindowMillis,
      proxyInstance: "test"
    })
  )
)

export const layer = Layer.provideMerge(stores, Hands.layer).pipe(
  Layer.provideMerge(TestDatabase.layer("paydb", PgPaydb.migrate))
)

/** Rolled back whatever comes of it; deferred constraints are asked before. */
export const attempt = (sql: PgClient.PgClient, ...statements: ReadonlyArray<string>) =>
  Effect.gen(function* () {
    for (const statement of statements) yield* sql.unsafe(statement)
    yield* sql`SET CONSTRAINTS ALL IMMEDIATE`
    return yield* Effect.fail("accepted" as const)
  }).pipe(
    sql.withTransaction,
    Effect.exit,
    Effect.map((exit) => {
      const failure = Exit.findErrorOption(exit)
      if (failure._tag === "None") return String(Exit.isFailure(exit) ? exit.cause : "committed")
      return failure.value === "accepted" ? "accepted" : codeOf(failure.value)
    })
  )

export const codeOf = (error: SqlError.SqlError): string => {
  const { code, message } = Pg.classify(error)
  return code ?? message
}

export const W1 = OwnerId.make("w1")
export const T = (n: number) => FencingToken.make(BigInt(n))
let names = 0
export const unique = () => `${process.pid.toString(16)}${(++names).toString(16).padStart(6, "0")}`

export const openAccount = Effect.fnUntraced(function* (openingBalanceMinor = 10_000n) {
  const payments = yield* PaymentStore
  const accountId = AccountId.make(`acct-${unique()}`)
  yield* payments.createAccount({ accountId, currency: "EUR", openingBalanceMinor, actor: W1 })
  return accountId
})

export const order = Effect.fnUntraced(function* (accountId: AccountId, amountMinor = 2_500n) {
  const payments = yield* PaymentStore
  const { payout } = yield* payments.createPayout({
    idempotencyKey: AcquireId.make(`order-${unique()}`),
    actor: W1,
    accountId,
    amountMinor,
    currency: "EUR",
    beneficiary: "Ada Example"
  })
  return payout
})

export const pending = Effect.flatMap(openAccount(), (accountId) => order(accountId))

export const claim = ({ payoutId }: Payout, token: number) =>
  Effect.flatMap(PaymentStore, (payments) => payments.claim({ payoutId, token: T(token), actor: W1 }))

/** Each account has its own token 7. */
export const claimed = Effect.tap(pending, (payout) => claim(payout, 7))

export const submit = Effect.fnUntraced(function* (
  payout: Payout,
  token: number,
  outcome?: "ACKED" | "DECLINED" | "TIMEOUT"
) {
  const rail = yield* SubmissionStore
  const intent = yield* rail.recordIntent({
    ...payout,
    token: T(token),
    actor: W1,
    idempotencyKey: AcquireId.make(`submit-${payout.payoutId}`)
  })
  if (intent._tag !== "Send") return yield* Effect.die("there was a submission already")
  if (outcome !== undefined) {
    yield* rail.recordOutcome(
      intent.submissionId,
      outcome,
      outcome === "ACKED" ? { railReference: `R-${unique()}` } : {}
    )
  }
})

export const seal = ({ payoutId }: Payout, token: number) =>
  Effect.flatMap(SubmissionStore, (rail) => rail.seal({ payoutId, token: T(token), actor: W1, reason: "cancelled" }))

export const railSays = ({ payoutId }: Payout, ...findings: ReadonlyArray<"EXECUTED" | "REJECTED">) =>
  Effect.gen(function* () {
    const rail = yield* SubmissionStore
    for (const finding of findings) {
      const { askedAt } = yield* rail.beginLookup(payoutId)
      const executed = finding === "EXECUTED"
      yield* rail.recordLookup({
        payoutId,
        finding,
        executedCount: executed ? 1 : 0,
        railReference: executed ? `R-${unique()}` : null,
        actor: W1,
        askedAt
      })
    }
  })

export const submitted = (outcome?: "ACKED" | "DECLINED" | "TIMEOUT") =>
  Effect.tap(claimed, (payout) => submit(payout, 7, outcome))

export const ambiguous = Effect.tap(submitted("TIMEOUT"), ({ payoutId }) =>
  Effect.flatMap(PaymentStore, (payments) => payments.ambiguous({ payoutId, token: T(7), actor: W1 }))
)

export const posted = Effect.tap(submitted("ACKED"), ({ payoutId }) =>
  Effect.flatMap(PaymentStore, (payments) => payments.post({ payoutId, token: T(7), actor: W1 }))
)

export const failed = Effect.tap(submitted("DECLINED"), ({ payoutId }) =>
  Effect.flatMap(PaymentStore, (payments) =>
    payments.fail({ payoutId, token: T(7), actor: W1, reason: "RAIL_DECLINED" })
  )
)
