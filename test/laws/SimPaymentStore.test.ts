import { assert, describe, it } from "@effect/vitest"
import { Effect, Exit, Layer } from "effect"
import { TestClock } from "effect/testing"
import { AcquireId } from "../../src/core/lock/Lock.ts"
import { FencedOut } from "../../src/core/lock/LockErrors.ts"
import type { ProtectedWrite } from "../../src/core/payment/PaymentResource.ts"
import { PaymentStore } from "../../src/core/payment/PaymentStore.ts"
import type { FailReason } from "../../src/core/payment/Payout.ts"
import { defaults } from "../../src/core/Settings.ts"
import * as SimPaydb from "../../src/sim/SimPaydb.ts"
import * as SimPaymentStore from "../../src/sim/SimPaymentStore.ts"
import * as SimSubmissionStore from "../../src/sim/SimSubmissionStore.ts"
import type { LawWorld } from "./paymentLawScenes.ts"
import { describePaymentStore, laws } from "./PaymentStoreLaws.ts"

const policy: SimPaydb.RailPolicy = { finalityWindowMillis: 0, minNotFound: 2, minSpacingMillis: 1 }

const world: LawWorld = {
  elapse: (millis) => TestClock.adjust(millis + 1),
  sendWindowMillis: defaults.rail.sendWindowMillis
}

const stores = (resource: boolean) =>
  Layer.merge(SimPaymentStore.layer, SimSubmissionStore.layer(defaults.rail)).pipe(
    Layer.provide(SimPaydb.layer({ policy, switches: { resource, rail: true } }))
  )

describePaymentStore("SimPaymentStore", { fenced: stores(true), unfenced: stores(false) }, { ...world, live: false })

type Store = PaymentStore["Service"]
type Write = ProtectedWrite & { readonly reason?: FailReason }
const operations = ["claim", "post", "fail", "ambiguous", "resolve"] as const

/** Stores that break one promise each; the laws have to notice every one of them. */
const broken: Readonly<Record<string, (store: Store, db: SimPaydb.SimPaydbState) => Partial<Store>>> = {
  "lets a lower token claim": (store, db) => ({
    claim: (write) => Effect.suspend(() => (rewind(db, write), store.claim(write)))
  }),
  "lets a lower token post": (store, db) => ({
    post: (write) => Effect.suspend(() => (rewind(db, write), pretend(db, write), store.post(write)))
  }),
  "lets a lower token resolve": (store, db) => ({
    resolve: (write) => Effect.suspend(() => (rewind(db, write), store.resolve(write)))
  }),
  "keeps the fence of a claim that it refused": (store, db) => ({
    claim: (write) => Effect.tapError(store.claim(write), () => Effect.sync(() => advance(db, write)))
  }),
  "keeps the fence of a resolution that it refused": (store, db) => ({
    resolve: (write) => Effect.tapError(store.resolve(write), () => Effect.sync(() => advance(db, write)))
  }),
  "keeps the fence of a failure that it refused": (store, db) => ({
    fail: (write) => Effect.tapError(store.fail(write), () => Effect.sync(() => advance(db, write)))
  }),
  "does not take the fence along": (store, db) => ({
    claim: (write) =>
      Effect.tap(store.claim(write), ({ payout }) =>
        Effect.sync(() => {
          const account = db.accounts.get(payout.accountId)
          if (account !== undefined) account.fence = 0n
        })
      )
  }),
  "tells the wrong highest token": (store) => ({
    claim: (write) =>
      store
        .claim(write)
        .pipe(
          Effect.catchTag("FencedOut", (refusal) =>
            Effect.fail(new FencedOut({ ...refusal, highest: refusal.presented + 100n }))
          )
        )
  }),
  "claims a second payout of a busy account": (store, db) => ({
    claim: (write) =>
      store.claim(write).pipe(
        Effect.catchTag("AccountBusy", ({ unfinishedPayoutId }) => {
          const other = db.payouts.get(unfinishedPayoutId)
          if (other !== undefined) other.state = "RAIL_AMBIGUOUS"
          return Effect.orDie(store.claim(write))
        })
      )
  }),
  "spends a token twice": (store, db) => ({
    claim: (write) =>
      store
        .claim(write)
        .pipe(Effect.catchTag("TokenAlreadyUsed", () => Effect.suspend(() => (rewind(db, write), store.claim(write)))))
  }),
  "claims what the account can not pay": (store, db) => ({
    claim: (write) =>
      store.claim(write).pipe(
        Effect.catchTag("InsufficientFunds", ({ accountId }) => {
          const account = db.accounts.get(accountId)
          if (account !== undefined) account.balanceMinor += 1_000_000n
          return store.claim(write)
        })
      )
  }),
  "reserves nothing": (store, db) => ({
    claim: (write) =>
      Effect.tap(store.claim(write), ({ payout }) =>
        Effect.sync(() => {
          const account = db.accounts.get(payout.accountId)
          if (account !== undefined) account.reservedMinor = 0n
        })
      )
  }),
  "posts without evidence": (store, db) => ({
    post: (write) => Effect.suspend(() => (acknowledge(db, write), store.post(write)))
  }),
  "fails without evidence": (store, db) => ({
    fail: (write) => Effect.suspend(() => (decline(db, write), store.fail(write)))
  }),
  "posts again when it is asked again": (store, db) => ({
    post: (write) =>
      Effect.tap(store.post(write), ({ replayed }) =>
        Effect.sync(() => {
          const posting = db.journals.find((one) => one.payoutId === write.payoutId)
          if (replayed && posting !== undefined)
            db.journals.push({ ...posting, journalId: BigInt(db.journals.length + 1) })
        })
      )
  }),
  "writes one entry of two": (store, db) => ({
    post: (write) =>
      Effect.tap(store.post(write), ({ replayed }) =>
        Effect.sync(() => {
          const posting = db.journals.at(-1)
          if (!replayed && posting !== undefined)
            db.journals.splice(-1, 1, { ...posting, entries: posting.entries.slice(0, 1) })
        })
      )
  }),
  "calls a repeat a new write": (store) =>
    Object.fromEntries(
      operations.map((op) => [
        op,
        (write: never) => Effect.map(store[op](write), ({ payout }) => ({ payout, replayed: false }))
      ])
    ),
  "fails what is ambiguous": (store, db) => ({
    fail: (write) =>
      Effect.suspend(() => {
        const row = db.payouts.get(write.payoutId)
        return row?.state === "RAIL_AMBIGUOUS"
          ? ((row.state = "PENDING"), decline(db, write), store.fail(write))
          : store.fail(write)
      })
  }),
  "gives the reserve of an ambiguous payout back": (store, db) => ({
    ambiguous: (write) =>
      Effect.tap(store.ambiguous(write), ({ payout }) =>
        Effect.sync(() => {
          const account = db.accounts.get(payout.accountId)
          if (account !== undefined) account.reservedMinor = 0n
        })
      )
  }),
  "resolves an ambiguous payout by guessing": (store, db) => ({
    resolve: (write) => Effect.suspend(() => (acknowledge(db, write), store.resolve(write)))
  }),
  "orders twice under one key": (store) => ({
    createPayout: (order) => {
      const key = AcquireId.make(`${order.idempotencyKey}-${Math.floor(performance.now() * 1_000)}`)
      return store.createPayout({ ...order, idempotencyKey: key })
    }
  }),
  "answers other content with the first payout": (store, db) => ({
    createPayout: (order) =>
      store.createPayout(order).pipe(
        Effect.catchTag("ValidationFailed", (refusal) => {
          const known = [...db.payouts.values()].find((one) => one.idempotencyKey === order.idempotencyKey)
          return known === undefined
            ? Effect.fail(refusal)
            : Effect.map(Effect.orDie(store.readPayout(known.payoutId)), (payout) => ({ payout, replayed: true }))
        })
      )
  }),
  "says nothing of what to do next": (store) => ({
    createPayout: (order) =>
      Effect.map(store.createPayout(order), (written) => ({
        ...written,
        payout: { ...written.payout, nextStep: "NONE" as const }
      }))
  }),
  "gives a taken payout id a new one": (store) => ({
    createPayout: (order) =>
      store
        .createPayout(order)
        .pipe(
          Effect.catchTag("ValidationFailed", (refusal) =>
            refusal.fields.some((field) => field.path === "payload.payoutId")
              ? store.createPayout({ ...order, payoutId: undefined })
              : Effect.fail(refusal)
          )
        )
  }),
  "takes an order in any currency": (store, db) => ({
    createPayout: (order) =>
      store.createPayout({ ...order, currency: db.accounts.get(order.accountId)?.currency ?? order.currency })
  }),
  "writes a journal for nothing": (store, db) => ({
    createAccount: (request) =>
      Effect.tap(store.createAccount(request), ({ account, created }) =>
        Effect.sync(() => {
          if (!created || request.openingBalanceMinor > 0n) return
          const entry = { accountId: account.accountId, currency: request.currency, amountMinor: 0n }
          db.journals.push({
            journalId: BigInt(db.journals.length + 1),
            kind: "FUNDING",
            payoutId: null,
            actor: request.actor,
            token: null,
            fenced: true,
            at: db.now(),
            entries: [entry, entry]
          })
        })
      )
  }),
  "answers an account with whatever it has": (store) => ({
    createAccount: (request) =>
      store.createAccount(request).pipe(
        Effect.catchTag("ValidationFailed", (refusal) =>
          store.readAccount(request.accountId).pipe(
            Effect.map((account) => ({ account, created: false })),
            Effect.catchTag("AccountNotFound", () => Effect.fail(refusal))
          )
        )
      )
  }),
  "makes what was acknowledged ambiguous": (store, db) => ({
    ambiguous: (write) =>
      Effect.suspend(() => {
        const sent = SimPaydb.submissionOf(db, write.payoutId)
        if (sent !== undefined) sent.outcome = "TIMEOUT"
        return store.ambiguous(write)
      })
  }),
  "promises a page that is empty": (store) => ({
    listPayouts: (query) =>
      Effect.map(store.listPayouts(query), ({ items }) => ({ items, next: items.at(-1)?.payoutId ?? null }))
  }),
  "knows accounts that nobody opened": (store) => ({
    readAccount: (accountId) =>
      store
        .readAccount(accountId)
        .pipe(
          Effect.catchTag("AccountNotFound", () =>
            Effect.succeed({ accountId, currency: "EUR", balanceMinor: 0n, reservedMinor: 0n, fence: 0n })
          )
        )
  }),
  "opens an account twice": (store) => ({
    createAccount: (request) => Effect.map(store.createAccount(request), ({ account }) => ({ account, created: true }))
  }),
  "skips a payout at the end of a page": (store) => ({
    listPayouts: (query) =>
      Effect.map(store.listPayouts(query), ({ items, next }) => ({ items: items.slice(0, 2), next }))
  }),
  "starts a page again from the front": (store) => ({
    listPayouts: (query) => store.listPayouts({ ...query, after: undefined })
  }),
  "loses who did it": (store) => ({
    readHistory: (payoutId) =>
      Effect.map(store.readHistory(payoutId), (rows) => rows.map((row) => ({ ...row, token: null })))
  })
}

const accountOf = (db: SimPaydb.SimPaydbState, { payoutId }: Write) => {
  const row = db.payouts.get(payoutId)
  return row === undefined ? undefined : db.accounts.get(row.accountId)
}
const rewind = (db: SimPaydb.SimPaydbState, write: Write) => {
  const account = accountOf(db, write)
  if (account !== undefined && account.fence >= write.token) account.fence = write.token - 1n
}
const advance = (db: SimPaydb.SimPaydbState, write: Write) => {
  const account = accountOf(db, write)
  if (account !== undefined && account.fence < write.token) account.fence = write.token
}
/** The fence and the claim say what the writer wants to hear. */
const pretend = (db: SimPaydb.SimPaydbState, write: Write) => {
  const account = accountOf(db, write)
  const row = db.payouts.get(write.payoutId)
  if (account === undefined || row?.state !== "CLAIMED") return
  account.fence = write.token
  row.claimToken = write.token
}
const acknowledge = (db: SimPaydb.SimPaydbState, { payoutId }: Write) => {
  const sent = SimPaydb.submissionOf(db, payoutId)
  if (sent !== undefined) sent.outcome = "ACKED"
}
const decline = (db: SimPaydb.SimPaydbState, { payoutId }: Write) => {
  const sent = SimPaydb.submissionOf(db, payoutId)
  if (sent !== undefined) sent.outcome = "DECLINED"
}

describe("the laws notice a store that", () => {
  const noticed = new Set<string>()
  for (const [what, breakIt] of Object.entries(broken)) {
    it.effect(what, () =>
      Effect.gen(function* () {
        const payments = Layer.effect(
          PaymentStore,
          Effect.gen(function* () {
            const store = yield* PaymentStore
            return PaymentStore.of({ ...store, ...breakIt(store, yield* SimPaydb.SimPaydb) })
          })
        ).pipe(Layer.provide(SimPaymentStore.layer))
        const layer = Layer.merge(payments, SimSubmissionStore.layer(defaults.rail)).pipe(
          Layer.provide(SimPaydb.layer({ policy }))
        )
        const found: Array<string> = []
        for (const { holds, name } of laws) {
          const exit = yield* Effect.exit(Effect.provide(holds(world), layer, { local: true }))
          if (Exit.isFailure(exit)) found.push(name)
        }
        assert.isNotEmpty(found, "no law noticed")
        for (const name of found) noticed.add(name)
      })
    )
  }

  it("breaks any of them: no law is without a store that breaks it", () =>
    assert.deepStrictEqual(
      laws.map((law) => law.name).filter((name) => !noticed.has(name)),
      []
    ))
})
