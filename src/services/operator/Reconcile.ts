/**
 * Reconciliation by hand: the reconciler's own program run once, now, and an operator's evidence where the rail's lookup
 * does not settle it. Nothing here submits anything.
 */
import { Effect, Layer } from "effect"
import { PaymentResource } from "../../core/payment/PaymentResource.ts"
import { EvidenceMissing, IllegalTransition } from "../../core/payment/PaymentErrors.ts"
import { lockKeyOf, type PayoutId } from "../../core/payment/Payout.ts"
import { type EvidenceRequest, RailProxy } from "../../core/rail/RailProxy.ts"
import type { ReconcileSettings } from "../../core/Settings.ts"
import { LockClient } from "../lock-client/LockClient.ts"
import * as Reconciler from "../reconciler/Reconciler.ts"
import { Operator } from "./Locks.ts"

const reconciler = (settings: ReconcileSettings) =>
  Layer.unwrap(Effect.map(Operator, ({ actor }) => Reconciler.layer({ actor, settings })))

/** What became of each payout that was looked at. */
export const run = Effect.fnUntraced(function* (payoutId: PayoutId | undefined, settings: ReconcileSettings) {
  const payments = yield* PaymentResource
  const only = payoutId === undefined ? undefined : yield* payments.readPayout(payoutId)
  // The program of the process, built for one pass.
  const context = yield* Layer.build(reconciler(settings))
  const passes = Effect.flatMap(Reconciler.Reconciler, (each) =>
    only === undefined
      ? Effect.map(each.pass, (pass) => [...pass])
      : Effect.map(each.reconcile(only), (outcome) => [[only.payoutId, outcome] as const])
  )
  return yield* Effect.provideContext(passes, context)
})

/**
 * An operator's word on what the rail did, then the move that it proves, under one token. The word is evidence like the
 * rail's own (source OPERATOR, with who and why) and the newest of it settles contradictions; what it proves is still the
 * database's verdict, so a word that proves nothing is kept and moves nothing.
 */
export const resolve = Effect.fnUntraced(function* (evidence: Omit<EvidenceRequest, "token" | "actor">) {
  const payments = yield* PaymentResource
  const rail = yield* RailProxy
  const locks = yield* LockClient
  const { actor } = yield* Operator
  const { payoutId } = evidence
  const { accountId } = yield* payments.readPayout(payoutId)
  return yield* locks.withLock(lockKeyOf(accountId))((lock) =>
    Effect.gen(function* () {
      const before = yield* payments.readPayout(payoutId)
      if (before.state !== "RAIL_AMBIGUOUS") {
        return yield* new IllegalTransition({
          payoutId,
          state: before.state,
          attempted: evidence.finding === "EXECUTED" ? "POSTED" : "FAILED"
        })
      }
      yield* lock.checkStillHeld
      yield* rail.evidence({ ...evidence, token: lock.token, actor })
      const { nextStep, state } = yield* payments.readPayout(payoutId)
      if (nextStep !== "RESOLVE") return yield* new EvidenceMissing({ payoutId, state, verdict: "UNKNOWN", nextStep })
      yield* lock.checkStillHeld
      return yield* payments.resolve({ payoutId, token: lock.token, actor })
    })
  )
})
