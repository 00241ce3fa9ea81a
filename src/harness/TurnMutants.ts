/** Deliberate bugs of those who decide about payouts: executor, reconciler, and the decisions that they share with the store. */
import { edit, type Mutant } from "./Mutant.ts"

const paydb = "sim/SimPaydb.ts"
const turn = "payout-executor/PayoutTurn.ts"
const reconciler = "reconciler/Reconciler.ts"
const decision = "core/payment/Decision.ts"
const payout = "core/payment/Payout.ts"
const settled = "if (!unclaimed && !own) return illegal(look, to)"

/** A holder that is fenced out while its own deadline is still to come: revoked while it is stopped before its claim. */
const revokedBeforeItsClaim: NonNullable<Mutant["under"]>[number] = {
  scenario: "uc-06",
  fixed: {
    faults: [{ kind: "pause", node: "w1", when: { at: "point", name: "claim.before", nth: 1 }, millis: 700 }]
  }
}

export const turnMutants: ReadonlyArray<Mutant> = [
  {
    id: "M52",
    what: "an ambiguous payout goes back to PENDING",
    edits: [edit(decision, settled, `${settled}; if (to === "RAIL_AMBIGUOUS") return write("PENDING")`)],
    under: [{ scenario: "uc-05" }]
  },
  {
    id: "M53",
    what: "a declined payout goes back to PENDING",
    edits: [
      edit(
        decision,
        settled,
        `${settled}; if (to === "FAILED" && look.submission === "DECLINED") return write("PENDING")`
      )
    ],
    under: [{ scenario: "uc-05" }]
  },
  {
    id: "M55",
    what: "recovery submits without asking the record",
    edits: [edit(turn, 'payout.nextStep === "SUBMIT" ? submit(', 'payout.nextStep !== "NONE" ? submit(')]
  },
  {
    id: "M56",
    what: '"not found" at the rail is believed at once',
    edits: [edit(paydb, "askedAt >= sent.sendBy + finalityWindowMillis", "askedAt >= 0")],
    under: [
      {
        scenario: "uc-05",
        // a payment that is on its way for longer than the reconciler asks
        fixed: {
          rail: [],
          faults: [
            { kind: "delay", from: "rail-proxy", to: "rail", label: "rail.pay", leg: "request", nth: 1, millis: 9_000 }
          ]
        }
      }
    ]
  },
  {
    id: "D01",
    what: "an unknown outcome counts as paid",
    edits: [
      edit(
        paydb,
        'if (sent.outcome === "ACKED") return "EXECUTED"',
        'if (sent.outcome === "ACKED" || sent.outcome === "TIMEOUT") return "EXECUTED"'
      )
    ],
    under: [{ scenario: "uc-05" }]
  },
  {
    id: "D02",
    what: "a payout whose outcome is awaited may be submitted",
    edits: [
      edit(
        payout,
        'return submission === "INTENT" ? "AWAIT" : "AMBIGUOUS"',
        'return submission === "INTENT" ? "SUBMIT" : "AMBIGUOUS"'
      )
    ]
  },
  {
    id: "D03",
    what: "the rail's word is taken from a declined submission as paid",
    edits: [edit(paydb, 'if (sent.outcome === "DECLINED" ||', 'if (sent.outcome === "DECLINED_" ||')],
    under: [{ scenario: "uc-05" }],
    survives: "the rail's lookup says REJECTED as well: the payout fails all the same, by way of the reconciler"
  },
  {
    id: "E01",
    what: "a write that was fenced out is repeated",
    edits: [
      edit(turn, 'const answerLost = ["BackendUnavailable"]', 'const answerLost = ["BackendUnavailable", "FencedOut"]')
    ],
    under: [revokedBeforeItsClaim]
  },
  {
    id: "E02",
    what: "the executor does not look whether it still holds the lock",
    edits: [edit(turn, ": lock.checkStillHeld\n", ": Effect.void\n")],
    survives: "the check narrows a window that the fences close; the client's own watch stops the turn at the deadline"
  },
  {
    id: "E03",
    what: "the executor posts what it was told is ambiguous",
    edits: [edit(turn, "return yield* ambiguous(work, REREADS)", "return yield* post(work, REREADS)")],
    under: [{ scenario: "uc-05" }],
    survives: "the resource wants evidence: the post is refused, the record is read again and says AMBIGUOUS"
  },
  {
    id: "E04",
    what: "a payout is claimed and never finished",
    edits: [
      edit(
        turn,
        "if (Result.isSuccess(answer)) return yield* post(work, REREADS)",
        'if (Result.isSuccess(answer)) return "LATER"'
      )
    ],
    survives: "the next turn finds the acknowledgement on record and posts: the recovery that UC-04 asks for"
  },
  {
    id: "R01",
    what: "the reconciler settles nothing",
    edits: [edit(reconciler, 'if (payout.nextStep !== "RESOLVE") return', 'if (payout.nextStep !== "X") return')],
    under: [{ scenario: "uc-05" }]
  },
  {
    id: "R02",
    what: "the reconciler asks the rail only once",
    edits: [
      edit(
        reconciler,
        'if (payout.nextStep === "LOOKUP") {',
        'if (payout.nextStep === "LOOKUP" && !instance.escalated.has(payoutId)) { instance.escalated.add(payoutId);'
      )
    ],
    under: [{ scenario: "uc-05" }]
  },
  {
    id: "E05",
    what: "a submit whose answer was lost is sent again",
    edits: [
      edit(
        turn,
        'const answer = yield* Effect.result(hop(work, "submit", request, ({ outcome }) => outcome))',
        'const answer = yield* Effect.result(retryOn(hop(work, "submit", request, ({ outcome }) => outcome), answerLost, retryOf(work)))'
      )
    ],
    survives: "the proxy answers the same token from its record and sends nothing: that is what the record is for"
  },
  {
    id: "E06",
    what: "the executor acts on what it read before its claim",
    edits: [
      edit(
        turn,
        'payout.nextStep === "SUBMIT" ? submit({',
        'payout.nextStep === "SUBMIT" || work.payout.nextStep === "SUBMIT" || work.payout.nextStep === "CLAIM" ? submit({'
      )
    ]
  },
  {
    id: "E07",
    what: "the executor submits although its claim was fenced out",
    edits: [
      edit(turn, "if (work.turn.options.staleHolder) return submit(work)", "if (work !== null) return submit(work)")
    ],
    under: [revokedBeforeItsClaim]
  },
  {
    id: "E08",
    what: "a payout without funds is failed without a seal",
    edits: [
      edit(
        turn,
        'case "InsufficientFunds": return refuseForFunds(work)',
        'case "InsufficientFunds": return fail(work, "INSUFFICIENT_FUNDS", 0)'
      )
    ],
    under: [{ scenario: "uc-04" }]
  },
  {
    id: "R03",
    what: "the reconciler settles without the lock, under the token of the claim",
    edits: [
      edit(
        reconciler,
        "instance.locks .withLock(key)((lock) =>",
        "((use) => use({ key, token: payout.claimToken, checkStillHeld: Effect.void }))((lock) =>"
      )
    ],
    under: [{ scenario: "uc-05" }]
  }
]
