/** What an operator is told of a payout: for every state and record one next step, with who, why, and what never to do. */
import { assert, describe, it } from "@effect/vitest"
import { FencingToken, LockKey, OwnerId, SessionId } from "../../../src/core/lock/Lock.ts"
import {
  AccountId,
  nextStep,
  type Payout,
  PayoutId,
  type PayoutState,
  type RailVerdict,
  type SubmissionOutcome
} from "../../../src/core/payment/Payout.ts"
import { explain, explanationText } from "../../../src/services/operator/Explain.ts"
import type { Dossier } from "../../../src/services/operator/Payouts.ts"

const payoutId = PayoutId.make("3f2b8a52-6a0e-4f6c-9f0e-6f1f6f0d7a11")
const accountId = AccountId.make("acct-1")
const T7 = FencingToken.make(7n)
const T8 = FencingToken.make(8n)
const now = 1_800_000_000_000

const dossier = (
  state: PayoutState,
  outcome: SubmissionOutcome | undefined,
  verdict: RailVerdict,
  changes: Partial<Payout> = {},
  rest: Partial<Dossier> = {}
): Dossier => ({
  payout: {
    payoutId,
    accountId,
    amountMinor: 2_500n,
    currency: "EUR",
    beneficiary: "Ada Example",
    clientReference: "ref-1",
    state,
    claimToken: state === "PENDING" ? null : T7,
    railReference: null,
    failReason: null,
    nextStep: nextStep(state, outcome, verdict),
    createdAt: now - 60_000,
    updatedAt: now - 30_000,
    ...changes
  },
  account: { accountId, currency: "EUR", balanceMinor: 10_000n, reservedMinor: 0n, fence: 7n },
  submission:
    outcome === undefined
      ? null
      : { payoutId, token: T7, outcome, railReference: null, intentAt: now - 40_000, sendBy: now, outcomeAt: null },
  lock: null,
  missing: [],
  ...rest
})

const lock = {
  key: LockKey.make("payout:acct-1"),
  held: true,
  fencingToken: T8,
  ownerId: OwnerId.make("W2"),
  sessionId: SessionId.make("s-1"),
  grantedAt: now,
  expiresAt: now + 15_000,
  lastRevocation: { operator: "anna", reason: "W1 hangs", at: now },
  waiters: 2
}

const words = (given: Dossier, slaMillis = 14_400_000) => explanationText(explain(given, { now, slaMillis }))

describe("a payout is explained", () => {
  it("in every state with every record: never without a next step, a reason and a warning", () => {
    for (const state of ["PENDING", "CLAIMED", "POSTED", "FAILED", "RAIL_AMBIGUOUS"] as const) {
      for (const outcome of [undefined, "INTENT", "ACKED", "DECLINED", "TIMEOUT", "DUPLICATE_ACK", "VOIDED"] as const) {
        for (const verdict of ["NONE", "EXECUTED", "NOT_EXECUTED", "CONFLICT", "UNKNOWN"] as const) {
          const text = words(dossier(state, outcome, verdict))
          assert.match(text, /^Payout \S+ \(2500 minor units EUR from acct-1 to Ada Example\) is /)
          assert.match(text, /Next step: (?:none, for|[A-Z]+, by)/)
          assert.match(text, /Never: /)
          assert.notInclude(text, "undefined")
        }
      }
    }
  })

  it("by its record: what was sent, under which token, and what is missing", () => {
    const text = words(dossier("CLAIMED", "INTENT", "NONE"))
    assert.include(text, "no outcome is on record")
    assert.include(text, "Next step: AWAIT")
    assert.include(words(dossier("CLAIMED", undefined, "NONE")), "Nothing was submitted to the rail.")
    assert.include(words(dossier("CLAIMED", "DECLINED", "NOT_EXECUTED")), "because the rail said no")
    assert.include(words(dossier("CLAIMED", "VOIDED", "NOT_EXECUTED")), "sealed before anything was sent")
  })

  it("with who holds its lock, that the claim is an earlier holder's, and the last revocation", () => {
    const text = words(dossier("CLAIMED", undefined, "NONE", {}, { lock }))
    assert.include(text, "held by W2 under token 8")
    assert.include(text, "2 wait")
    assert.include(text, "The claim is of an earlier holder (token 7)")
    assert.include(text, "by anna: W1 hangs")
    assert.include(text, "locks revoke payout:acct-1")
  })

  it("to a human when the evidence contradicts itself, or when it is ambiguous past the SLA", () => {
    const conflict = words(dossier("RAIL_AMBIGUOUS", "TIMEOUT", "CONFLICT"))
    assert.include(conflict, "Next step: ESCALATE, by you")
    assert.include(conflict, `reconcile resolve ${payoutId}`)
    const young = words(dossier("RAIL_AMBIGUOUS", "TIMEOUT", "UNKNOWN"))
    assert.include(young, `reconcile run --payout ${payoutId}`)
    const old = words(dossier("RAIL_AMBIGUOUS", "TIMEOUT", "UNKNOWN"), 10_000)
    assert.include(old, "longer than the SLA of 10 s")
    assert.include(old, "ref-1")
  })

  it("with what could not be asked, when somebody gives no answer", () => {
    const text = words(dossier("PENDING", undefined, "NONE", {}, { missing: ["rail-proxy: nobody answers"] }))
    assert.include(text, "Not asked, no answer: rail-proxy: nobody answers")
  })
})
