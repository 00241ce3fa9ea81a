/**
 * The payment store in memory, with the semantics of paydb: fence point (a), states, evidence, double entry, reserve and
 * audit. Every operation is one synchronous step, which is what a serialized transaction is.
 *
 * With the database's switch for the resource off, fence and state predicates stand aside and journals carry
 * `fenced: false`, as there.
 */
import { Effect, Layer, Schema } from "effect"
import { isCurrent, mayAdvance } from "../core/Fencing.ts"
import type { FencingToken, OwnerId } from "../core/lock/Lock.ts"
import { FencedOut } from "../core/lock/LockErrors.ts"
import { type Decision, onClaim, onResolve, onSettle, type PayoutLook } from "../core/payment/Decision.ts"
import {
  clearingAccountOf,
  fundingAccountOf,
  imbalance,
  type Journal,
  OPENING_BALANCE_MAX,
  payoutEntries
} from "../core/payment/Ledger.ts"
import { AccountNotFound, PayoutNotFound } from "../core/payment/PaymentErrors.ts"
import { contentOf, type PaymentOperations, type ProtectedWrite } from "../core/payment/PaymentResource.ts"
import { PaymentStore, type Written } from "../core/payment/PaymentStore.ts"
import {
  type Account,
  type AccountId,
  AmountMinor,
  type FailReason,
  type Payout,
  type PayoutId,
  type PayoutState,
  type PayoutTransition
} from "../core/payment/Payout.ts"
import { invalidField, type ValidationFailed } from "../core/RequestFailures.ts"
import { currentTraceId } from "../core/TraceId.ts"
import * as SimPaydb from "./SimPaydb.ts"

type Op = "claim" | "post" | "fail" | "ambiguous" | "resolve"

const INT64_MAX = 2n ** 63n - 1n

export const make = Effect.gen(function* () {
  const db = yield* SimPaydb.SimPaydb
  const accountOf = (accountId: AccountId): SimPaydb.SimAccount => {
    const account = db.accounts.get(accountId)
    if (account === undefined) throw new Error(`no account ${accountId}`)
    return account
  }

  const answer = (row: SimPaydb.SimPayout): Payout => ({
    payoutId: row.payoutId,
    accountId: row.accountId,
    amountMinor: row.amountMinor,
    currency: row.currency,
    beneficiary: row.beneficiary,
    clientReference: row.clientReference,
    state: row.state,
    claimToken: row.claimToken,
    railReference: SimPaydb.railReferenceOf(db, row.payoutId),
    failReason: row.failReason,
    nextStep: SimPaydb.nextStepOf(db, row),
    createdAt: row.createdAt,
    updatedAt: row.updatedAt
  })

  const answerAccount = ({
    accountId,
    balanceMinor,
    currency,
    fence,
    reservedMinor
  }: SimPaydb.SimAccount): Account => ({
    accountId,
    currency,
    balanceMinor,
    reservedMinor,
    fence
  })

  const journal = (entry: Omit<SimPaydb.SimJournal, "journalId" | "at" | "fenced">) => {
    const problems = imbalance(entry.entries)
    if (problems.length > 0) throw new Error(problems.join("; "))
    db.journals.push({
      ...entry,
      journalId: BigInt(db.journals.length + 1),
      fenced: db.switches.resource,
      at: db.now()
    })
    for (const { accountId, amountMinor } of entry.entries) {
      accountOf(accountId as AccountId).balanceMinor += amountMinor
    }
  }

  const audit = (row: SimPaydb.SimPayout, from: PayoutState | null, actor: OwnerId, traceId: string) => {
    db.transitions.push({
      payoutId: row.payoutId,
      accountId: row.accountId,
      from,
      to: row.state,
      actor,
      token: row.lastToken,
      fenceSeen: accountOf(row.accountId).fence,
      evidence: SimPaydb.verdictOf(db, row.payoutId),
      reason: row.failReason,
      traceId,
      at: db.now()
    })
  }

  const lookAt = (row: SimPaydb.SimPayout, account: SimPaydb.SimAccount): PayoutLook => ({
    payoutId: row.payoutId,
    accountId: row.accountId,
    amountMinor: row.amountMinor,
    state: row.state,
    claimToken: row.claimToken,
    lastToken: row.lastToken,
    submission: SimPaydb.submissionOf(db, row.payoutId)?.outcome,
    verdict: SimPaydb.verdictOf(db, row.payoutId),
    availableMinor: account.balanceMinor - account.reservedMinor,
    busyWith:
      [...db.payouts.values()].find(
        (other) => other.accountId === row.accountId && other.state === "CLAIMED" && other !== row
      )?.payoutId ?? null
  })

  const isHeld = (state: PayoutState) => state === "CLAIMED" || state === "RAIL_AMBIGUOUS"

  const move = (
    row: SimPaydb.SimPayout,
    account: SimPaydb.SimAccount,
    { actor, token }: ProtectedWrite,
    to: PayoutState,
    reason: FailReason | null,
    traceId: string
  ) => {
    const from = row.state
    if (isHeld(from) !== isHeld(to)) account.reservedMinor += isHeld(to) ? row.amountMinor : -row.amountMinor
    row.state = to
    if (to !== "FAILED") row.claimToken = token
    row.lastToken = token
    row.failReason = reason
    row.updatedAt = db.now()
    audit(row, from, actor, traceId)
    if (to === "POSTED") {
      const entries = payoutEntries(row.accountId, clearingAccountOf(row.currency), row.currency, row.amountMinor)
      journal({ kind: "PAYOUT", payoutId: row.payoutId, actor, token, entries })
    }
  }

  const passes = { claim: mayAdvance, adopt: (fence: bigint, token: FencingToken) => token >= fence, hold: isCurrent }

  const protectedWrite = <E>(
    op: Op,
    write: ProtectedWrite,
    meet: "claim" | "hold" | "adopt",
    decide: (look: PayoutLook, context: { readonly spent: boolean; readonly enforced: boolean }) => Decision<E>,
    reason: (look: PayoutLook) => FailReason
  ) =>
    Effect.flatMap(currentTraceId, (traceId) =>
      Effect.suspend((): Effect.Effect<Written, E | FencedOut | PayoutNotFound> => {
        const { payoutId, token } = write
        const row = db.payouts.get(payoutId)
        if (row === undefined) return Effect.fail(new PayoutNotFound({ payoutId }))
        const account = accountOf(row.accountId)
        const enforced = db.switches.resource
        const refused = enforced && !passes[meet](account.fence, token)
        const fencedOut = () =>
          Effect.fail(
            new FencedOut({ point: "resource", op, resource: row.accountId, presented: token, highest: account.fence })
          )
        const stale = refused && account.fence > token
        if (stale && op === "claim") return fencedOut()
        const look = lookAt(row, account)
        const decision = decide(look, { spent: refused && account.fence === token, enforced })
        if (decision._tag === "Replay") {
          // Without its predicate the statement of the fence writes also when the rest is a repeat.
          if (!enforced && meet !== "hold") account.fence = token
          return Effect.succeed({ payout: answer(row), replayed: true })
        }
        if (stale) return fencedOut()
        if (decision._tag === "Refuse") return Effect.fail(decision.failure)
        if (refused) return Effect.die(`${op} of ${payoutId} would write without its fence`)
        if (meet !== "hold") account.fence = token
        move(row, account, write, decision.to, decision.to === "FAILED" ? reason(look) : null, traceId)
        return Effect.succeed({ payout: answer(row), replayed: false })
      })
    )

  const settle = (op: Op, to: "POSTED" | "RAIL_AMBIGUOUS") => (write: ProtectedWrite) =>
    protectedWrite(
      op,
      write,
      "hold",
      (look, { enforced }) => onSettle(look, write.token, to, enforced),
      () => "RAIL_NOT_EXECUTED"
    )

  const createPayout: PaymentStore["Service"]["createPayout"] = (order) =>
    Effect.flatMap(currentTraceId, (traceId) =>
      Effect.suspend((): Effect.Effect<Written, AccountNotFound | ValidationFailed> => {
        const { accountId, actor, amountMinor, beneficiary, currency, idempotencyKey } = order
        const account = db.accounts.get(accountId)
        if (account === undefined) return Effect.fail(new AccountNotFound({ accountId }))
        if (account.kind !== "CUSTOMER") {
          return Effect.fail(invalidField("payload.accountId", "payouts are made from customers' accounts only"))
        }
        const content = contentOf(order)
        const known = [...db.payouts.values()].find((payout) => payout.idempotencyKey === idempotencyKey)
        if (known !== undefined) {
          return known.content === content
            ? Effect.succeed({ payout: answer(known), replayed: true })
            : Effect.fail(invalidField("headers.x-idempotency-key", "was used for an order with another content"))
        }
        if (account.currency !== currency) {
          return Effect.fail(invalidField("payload.currency", `the account is in ${account.currency}`))
        }
        if (!Schema.is(AmountMinor)(amountMinor)) {
          return Effect.fail(invalidField("payload.amountMinor", "must be 1..10^14 minor units"))
        }
        const number = (db.payouts.size + 1).toString(16).padStart(12, "0")
        const payoutId = order.payoutId ?? (`00000000-0000-4000-8000-${number}` as PayoutId)
        if (db.payouts.has(payoutId)) {
          return Effect.fail(invalidField("payload.payoutId", "is taken by another order"))
        }
        const row: SimPaydb.SimPayout = {
          payoutId,
          accountId,
          amountMinor,
          currency,
          beneficiary,
          clientReference: payoutId.replaceAll("-", ""),
          idempotencyKey,
          content,
          createdAt: db.now(),
          state: "PENDING",
          claimToken: null,
          lastToken: null,
          failReason: null,
          updatedAt: db.now()
        }
        db.payouts.set(payoutId, row)
        audit(row, null, actor, traceId)
        return Effect.succeed({ payout: answer(row), replayed: false })
      })
    )

  const createAccount: PaymentOperations["createAccount"] = ({ accountId, actor, currency, openingBalanceMinor }) =>
    Effect.suspend((): ReturnType<PaymentOperations["createAccount"]> => {
      if (openingBalanceMinor < 0n || openingBalanceMinor > OPENING_BALANCE_MAX) {
        return Effect.fail(invalidField("payload.openingBalanceMinor", "must be 0..10^15 minor units"))
      }
      if (!SimPaydb.currencies.includes(currency)) {
        const known = SimPaydb.currencies.join(", ")
        return Effect.fail(invalidField("payload.currency", `there are house accounts for ${known} only`))
      }
      const known = db.accounts.get(accountId)
      if (known !== undefined) {
        const opening = db.journals
          .filter((one) => one.kind === "FUNDING")
          .flatMap((one) => one.entries.filter((entry) => entry.accountId === accountId))
          .reduce((sum, entry) => sum + entry.amountMinor, 0n)
        return known.kind === "CUSTOMER" && known.currency === currency && opening === openingBalanceMinor
          ? Effect.succeed({ account: answerAccount(known), created: false })
          : Effect.fail(invalidField("payload.accountId", "exists with another currency or opening balance"))
      }
      if (/^(clearing|suspense|funding)-[a-z]{3}$/.test(accountId)) {
        return Effect.fail(invalidField("payload.accountId", "is a name of the house"))
      }
      const funding = fundingAccountOf(currency)
      if (accountOf(funding as AccountId).balanceMinor - openingBalanceMinor < -INT64_MAX) {
        return Effect.fail(invalidField("payload.openingBalanceMinor", "is more than the ledger can hold"))
      }
      const account: SimPaydb.SimAccount = {
        accountId,
        kind: "CUSTOMER",
        currency,
        balanceMinor: 0n,
        reservedMinor: 0n,
        fence: 0n
      }
      db.accounts.set(accountId, account)
      if (openingBalanceMinor > 0n) {
        const entries = [
          { accountId, currency, amountMinor: openingBalanceMinor },
          { accountId: funding, currency, amountMinor: -openingBalanceMinor }
        ]
        journal({ kind: "FUNDING", payoutId: null, actor, token: null, entries })
      }
      return Effect.succeed({ account: answerAccount(account), created: true })
    })

  const pageOf = <Item, Key>(rows: ReadonlyArray<Item>, limit: number, keyOf: (item: Item) => Key) => {
    const items = rows.slice(0, limit)
    const last = items.at(-1)
    return { items, next: rows.length > limit && last !== undefined ? keyOf(last) : null }
  }

  const listPayouts: PaymentOperations["listPayouts"] = ({ accountId, after, limit, state }) =>
    Effect.sync(() => {
      const all = [...db.payouts.values()]
      const start = after === undefined ? 0 : all.findIndex((row) => row.payoutId === after) + 1 || all.length
      const rows = all
        .slice(start)
        .filter(
          (row) =>
            (state === undefined || row.state === state) && (accountId === undefined || row.accountId === accountId)
        )
      return pageOf(rows.slice(0, limit + 1).map(answer), limit, (payout) => payout.payoutId)
    })

  const readLedger: PaymentOperations["readLedger"] = ({ accountId, after, limit }) =>
    Effect.suspend(() => {
      if (!db.accounts.has(accountId)) return Effect.fail(new AccountNotFound({ accountId }))
      const rows = db.journals
        .filter((one) => one.journalId > (after ?? 0n) && one.entries.some((entry) => entry.accountId === accountId))
        .map(({ actor, at, entries, journalId, kind, payoutId, token }): Journal => ({
          journalId,
          kind,
          payoutId,
          actor,
          token,
          at,
          entries
        }))
      return Effect.succeed(pageOf(rows, limit, (one) => one.journalId))
    })

  const backlog: PaymentStore["Service"]["backlog"] = Effect.sync(() => {
    const rows = [...db.payouts.values()]
    const inState = (state: PayoutState) => rows.filter((row) => row.state === state)
    const oldest = (times: ReadonlyArray<number>) => Math.max(0, ...times.map((at) => db.now() - at))
    return {
      byState: {
        PENDING: inState("PENDING").length,
        CLAIMED: inState("CLAIMED").length,
        POSTED: inState("POSTED").length,
        FAILED: inState("FAILED").length,
        RAIL_AMBIGUOUS: inState("RAIL_AMBIGUOUS").length
      },
      oldestPendingMillis: oldest(inState("PENDING").map((row) => row.createdAt)),
      oldestClaimedMillis: oldest(inState("CLAIMED").map((row) => row.updatedAt)),
      oldestAmbiguousMillis: oldest(inState("RAIL_AMBIGUOUS").map((row) => row.updatedAt)),
      violations: SimPaydb.violationsOf(db),
      imbalanceMinor: 0n
    }
  })

  return PaymentStore.of({
    listPayouts,
    readPayout: (payoutId) =>
      Effect.suspend(() => {
        const row = db.payouts.get(payoutId)
        return row === undefined ? Effect.fail(new PayoutNotFound({ payoutId })) : Effect.succeed(answer(row))
      }),
    createPayout,
    claim: (write) =>
      protectedWrite(
        "claim",
        write,
        "claim",
        (look, context) => onClaim(look, write.token, context),
        () => "RAIL_NOT_EXECUTED"
      ),
    post: settle("post", "POSTED"),
    ambiguous: settle("ambiguous", "RAIL_AMBIGUOUS"),
    fail: (write) =>
      protectedWrite(
        "fail",
        write,
        "adopt",
        (look, { enforced }) => onSettle(look, write.token, "FAILED", enforced),
        () => write.reason
      ),
    resolve: (write) =>
      protectedWrite(
        "resolve",
        write,
        "adopt",
        (look) => onResolve(look, write.token),
        (look) => (look.submission === "DECLINED" ? "RAIL_DECLINED" : "RAIL_NOT_EXECUTED")
      ),
    readAccount: (accountId) =>
      Effect.suspend(() => {
        const account = db.accounts.get(accountId)
        return account === undefined
          ? Effect.fail(new AccountNotFound({ accountId }))
          : Effect.succeed(answerAccount(account))
      }),
    readLedger,
    createAccount,
    readHistory: (payoutId) =>
      Effect.suspend(() => {
        const rows = db.transitions
          .filter((one) => one.payoutId === payoutId)
          .map(({ actor, at, evidence, fenceSeen, from, reason, to, token, traceId }): PayoutTransition => ({
            from,
            to,
            actor,
            token,
            fenceSeen,
            evidence,
            reason,
            traceId,
            at
          }))
        return rows.length === 0 ? Effect.fail(new PayoutNotFound({ payoutId })) : Effect.succeed(rows)
      }),
    backlog,
    ping: Effect.void,
    guards: Effect.sync(() => ({
      missing: [],
      switchOn: db.switches.resource,
      unfencedRows: db.journals.some((one) => !one.fenced) || db.submissions.some((one) => !one.fenced)
    }))
  })
})

export const layer: Layer.Layer<PaymentStore, never, SimPaydb.SimPaydb> = Layer.effect(PaymentStore, make)
