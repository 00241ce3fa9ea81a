/**
 * The whole payout system in one process and in virtual time: lock service, paydb in memory, a rail that does as told, and
 * as many executors, reconcilers and rail-proxies as a test starts and kills.
 */
import { Clock, Context, Effect, Layer } from "effect"
import { TestClock } from "effect/testing"
import { type FencingSwitches, fencingOn } from "../../src/core/Fencing.ts"
import { reached } from "../../src/core/FaultPoint.ts"
import { AcquireId, OwnerId } from "../../src/core/lock/Lock.ts"
import { LockApi } from "../../src/core/lock/LockApi.ts"
import { LockStore } from "../../src/core/lock/LockStore.ts"
import { PaymentResource } from "../../src/core/payment/PaymentResource.ts"
import { PaymentStore } from "../../src/core/payment/PaymentStore.ts"
import { AccountId, PayoutId } from "../../src/core/payment/Payout.ts"
import { Rail, type RailFinding, RailNoAnswer, type RailPayment } from "../../src/core/rail/Rail.ts"
import { SubmissionStore } from "../../src/core/rail/SubmissionStore.ts"
import { defaults } from "../../src/core/Settings.ts"
import * as LockService from "../../src/services/lock-server/LockService.ts"
import * as PaymentService from "../../src/services/payment-resource/PaymentService.ts"
import * as SimLockStore from "../../src/sim/SimLockStore.ts"
import * as SimPaydb from "../../src/sim/SimPaydb.ts"
import * as SimPaymentStore from "../../src/sim/SimPaymentStore.ts"
import * as SimSubmissionStore from "../../src/sim/SimSubmissionStore.ts"
import { makeProxy, type Ports, startExecutor, startReconciler } from "./InProcess.ts"

/** What the rail does with a submit (`lost`: no answer), or that it does not answer lookups either. */
export type RailMood = "ack" | "decline" | "lost-paid" | "lost-unpaid" | "silent"

export interface BookEntry extends RailPayment {
  readonly railReference: string
}

/** Not idempotent: pays as often as it is asked. */
export const makeRail = () => {
  const book: Array<BookEntry> = []
  let mood: RailMood = "ack"
  let submits = 0
  const rail = Rail.of({
    submit: Effect.fnUntraced(function* (payment: RailPayment, sendNotAfterNanos: bigint) {
      if ((yield* Clock.monotonicTimeNanos) > sendNotAfterNanos) {
        return yield* new RailNoAnswer({ cause: "the send window has passed", neverSent: true })
      }
      yield* reached("rail.send.before")
      submits++
      const paid = mood === "ack" || mood === "lost-paid"
      const railReference = `rail-${submits}`
      if (paid) book.push({ ...payment, railReference })
      if (mood === "ack") return { _tag: "Acknowledged" as const, railReference }
      if (mood === "decline") return { _tag: "Declined" as const, code: "AC04" }
      return yield* Effect.never
    }),
    lookup: (clientReference) =>
      Effect.suspend((): Effect.Effect<RailFinding> => {
        if (mood === "silent") return Effect.never
        const own = book.filter((entry) => entry.clientReference === clientReference)
        const first = own[0]
        return Effect.succeed(
          first === undefined
            ? { _tag: "NOT_FOUND" }
            : { _tag: "EXECUTED", count: own.length, railReference: first.railReference }
        )
      }),
    ping: Effect.void
  })
  return {
    rail,
    book,
    submits: () => submits,
    be: (next: RailMood) => {
      mood = next
    }
  }
}

export interface WorldOptions {
  readonly switches?: FencingSwitches
  readonly policy?: SimPaydb.RailPolicy
  /** What lies between everybody and payment-resource. */
  readonly payments?: (payments: PaymentResource["Service"]) => PaymentResource["Service"]
}

export const ACCOUNT = AccountId.make("acct-1")
export const OPENING_MINOR = 10_000n
export const AMOUNT_MINOR = 2_500n

const payoutIdOf = (n: number) => PayoutId.make(`00000000-0000-4000-8000-${String(n).padStart(12, "0")}`)

export const makeWorld = Effect.fnUntraced(function* (options: WorldOptions = {}) {
  const switches = options.switches ?? fencingOn
  const rail = makeRail()
  const db = yield* SimPaydb.make({
    policy: options.policy,
    switches: { resource: switches.payment, rail: switches.rail }
  })
  const paydb = Layer.succeed(SimPaydb.SimPaydb, db)
  const context = yield* Layer.build(
    Layer.mergeAll(
      LockService.layer(defaults.lock).pipe(Layer.provideMerge(SimLockStore.layer)),
      PaymentService.layer.pipe(Layer.provideMerge(SimPaymentStore.layer), Layer.provide(paydb)),
      SimSubmissionStore.layer(defaults.rail).pipe(Layer.provide(paydb))
    )
  )
  const payments = Context.get(context, PaymentResource)
  const ports: Ports = {
    locks: Context.get(context, LockApi),
    payments: options.payments?.(payments) ?? payments,
    submissions: Context.get(context, SubmissionStore),
    rail: rail.rail
  }
  const { isDown, proxy, restart } = yield* makeProxy(ports)
  const orderer = OwnerId.make("orders")
  let ordered = 0

  const openAccount = (accountId: AccountId = ACCOUNT, openingBalanceMinor = OPENING_MINOR) =>
    payments.createAccount({ accountId, currency: "EUR", openingBalanceMinor, actor: orderer })

  const order = (accountId: AccountId = ACCOUNT, amountMinor = AMOUNT_MINOR) =>
    payments.createPayout({
      idempotencyKey: AcquireId.make(`order-${++ordered}`),
      actor: orderer,
      payoutId: payoutIdOf(ordered),
      accountId,
      amountMinor,
      currency: "EUR",
      beneficiary: "NL00TEST0000000001"
    })

  /** The figures of C1: what the rail's own book and the ledger say of a payout, whatever anybody believes. */
  const figures = Effect.fnUntraced(function* (payoutId: PayoutId) {
    const payout = yield* payments.readPayout(payoutId)
    const account = yield* payments.readAccount(payout.accountId)
    const ledger = yield* payments.readLedger({ accountId: payout.accountId, limit: 100 })
    return {
      state: payout.state,
      executions: rail.book.filter((entry) => entry.clientReference === payout.clientReference).length,
      postings: ledger.items.filter((journal) => journal.kind === "PAYOUT" && journal.payoutId === payoutId).length,
      balance: account.balanceMinor,
      reserved: account.reservedMinor
    }
  })

  return {
    db,
    rail,
    ports,
    proxy,
    restartProxy: restart,
    proxyIsDown: isDown,
    lockStore: Context.get(context, LockStore),
    paymentStore: Context.get(context, PaymentStore),
    openAccount,
    order,
    figures,
    /** @param alter what lies between this one and the others */
    executor: (options: Parameters<typeof startExecutor>[2], alter: (ports: Ports) => Ports = (same) => same) =>
      startExecutor(alter(ports), proxy, options),
    reconciler: (options: Parameters<typeof startReconciler>[2], alter: (ports: Ports) => Ports = (same) => same) =>
      startReconciler(alter(ports), proxy, options)
  }
})

/** Lets virtual time pass in steps until the condition holds. */
export const passUntil = <E>(
  description: string,
  condition: Effect.Effect<boolean, E>,
  options: { readonly stepMillis?: number; readonly atMostMillis?: number } = {}
) =>
  Effect.gen(function* () {
    const { atMostMillis = 120_000, stepMillis = 50 } = options
    for (let passed = 0; passed <= atMostMillis; passed += stepMillis) {
      if (yield* condition) return
      yield* TestClock.adjust(stepMillis)
    }
    return yield* Effect.die(`after ${atMostMillis} ms of virtual time it was not so that ${description}`)
  })
