/**
 * payment-resource: `PaymentResource` over a `PaymentStore`. It adds what a store has not: log events, counters, gauges.
 * It decides nothing and keeps no state, so any number of instances may run on one store.
 */
import { Effect, Layer, Schedule } from "effect"
import { reached } from "../../core/FaultPoint.ts"
import type { BackendUnavailable, FencedOut } from "../../core/lock/LockErrors.ts"
import { logInfo } from "../../core/Log.ts"
import * as Metrics from "../../core/Metrics.ts"
import { PaymentResource, type ProtectedWrite } from "../../core/payment/PaymentResource.ts"
import { checkedInvariants, PaymentStore, type Written } from "../../core/payment/PaymentStore.ts"

/** How often the gauges are computed. An alert looks at minutes, and at the age of the last computation. */
const WATCH_MILLIS = 10_000

export const make = Effect.gen(function* () {
  const store = yield* PaymentStore
  yield* Metrics.register(Metrics.payment)
  yield* Effect.forkScoped(Effect.repeat(watch(store), Schedule.spaced(WATCH_MILLIS)))

  const protectedWrite =
    <Request extends ProtectedWrite, E extends { readonly _tag: string }>(
      op: string,
      write: (request: Request) => Effect.Effect<Written, E | FencedOut>
    ) =>
    (request: Request) =>
      performed(op, request, write(request))

  return PaymentResource.of({
    listPayouts: store.listPayouts,
    readPayout: store.readPayout,
    createPayout: (order) => Effect.flatMap(store.createPayout(order), (written) => moved(written, order)),
    claim: protectedWrite("claim", store.claim),
    post: protectedWrite("post", store.post),
    fail: protectedWrite("fail", store.fail),
    ambiguous: protectedWrite("ambiguous", store.ambiguous),
    resolve: protectedWrite("resolve", store.resolve),
    readAccount: store.readAccount,
    readLedger: store.readLedger,
    createAccount: store.createAccount,
    readHistory: store.readHistory
  })
})

export const layer: Layer.Layer<PaymentResource, never, PaymentStore> = Layer.effect(PaymentResource, make)

// -----------------------------------------------------------------------------
// internal
// -----------------------------------------------------------------------------

const performed = Effect.fnUntraced(function* <E extends { readonly _tag: string }>(
  op: string,
  request: ProtectedWrite,
  write: Effect.Effect<Written, E | FencedOut>
) {
  yield* reached(`payment.${op}.before`)
  const written = yield* Effect.tapError(write, (failure) =>
    isFencedOut(failure) ? fencedOut(failure, request) : Effect.void
  )
  yield* reached(`payment.${op}.after`)
  return yield* moved(written, request)
})

const fencedOut = ({ highest, op, presented, resource }: FencedOut, { actor, payoutId }: ProtectedWrite) =>
  Effect.andThen(
    op in Metrics.payment.fencedOut
      ? Metrics.increment(Metrics.payment.fencedOut[op as keyof typeof Metrics.payment.fencedOut])
      : Effect.void,
    Effect.logError("a stale token was refused: somebody acted after he had lost his lock").pipe(
      Effect.annotateLogs({
        event: "fenced_out",
        point: "resource",
        op,
        payoutId,
        accountId: resource,
        fencingToken: presented.toString(),
        highest: highest.toString(),
        ownerId: actor
      })
    )
  )

/** What every write of a payout is worth telling, and nothing of a repeat. */
const moved = Effect.fnUntraced(function* (
  { payout, replayed }: Written,
  { actor, token }: { readonly actor: string; readonly token?: bigint | undefined }
) {
  const { accountId, createdAt, failReason, payoutId, state, updatedAt } = payout
  if (!replayed) {
    yield* Metrics.record((set) => {
      set(Metrics.payment.transition[state], 1)
      if (state === "POSTED" || state === "FAILED") {
        set(Metrics.payment.leadTime, Math.max(0, updatedAt - createdAt) / 1_000)
      }
    })
  }
  yield* logInfo(replayed ? "a repeated write is answered again" : `payout is ${state}`, {
    event: replayed ? "payout_write_repeated" : "payout_transition",
    payoutId,
    accountId,
    ownerId: actor,
    ...(token === undefined ? {} : { fencingToken: token.toString() }),
    outcome: state,
    ...(failReason === null ? {} : { failReason })
  })
  return payout
})

const isFencedOut = (failure: { readonly _tag: string }): failure is FencedOut => failure._tag === "FencedOut"

/** Computes the gauges. When the store does not answer they keep their values, and their timestamps grow old. */
const watch = Effect.fnUntraced(
  function* (store: PaymentStore["Service"]) {
    const backlog = yield* store.backlog
    const { backlog: gauges, backlogAge, claimedAge, ambiguousAge, invariantViolations } = Metrics.payment
    yield* Metrics.record((set) => {
      set(gauges.PENDING, backlog.byState.PENDING)
      set(gauges.CLAIMED, backlog.byState.CLAIMED)
      set(gauges.RAIL_AMBIGUOUS, backlog.byState.RAIL_AMBIGUOUS)
      set(backlogAge, backlog.oldestPendingMillis / 1_000)
      set(claimedAge, backlog.oldestClaimedMillis / 1_000)
      set(ambiguousAge, backlog.oldestAmbiguousMillis / 1_000)
      set(Metrics.payment.imbalance, Number(backlog.imbalanceMinor))
      for (const invariant of checkedInvariants) set(invariantViolations[invariant], backlog.violations[invariant])
    })
    yield* Metrics.setToNow(Metrics.payment.backlogRefreshed)
    for (const invariant of checkedInvariants) {
      const violations = backlog.violations[invariant]
      if (violations > 0) {
        yield* Effect.logError("the ledger violates an invariant: see the view pay.invariant_violation").pipe(
          Effect.annotateLogs({ event: "invariant_violation", invariant, violations })
        )
      }
    }
    yield* Metrics.setToNow(Metrics.payment.verifyTimestamp)
  },
  Effect.catchTag("BackendUnavailable", ({ cause }: BackendUnavailable) =>
    Effect.logWarning("the backlog could not be computed").pipe(Effect.annotateLogs({ cause }))
  )
)
