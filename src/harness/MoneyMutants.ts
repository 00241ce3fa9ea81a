/** Deliberate bugs of the two fences and of the stores behind them. */
import { edit, before, type Mutant } from "./Mutant.ts"

const payments = "sim/SimPaymentStore.ts"
const submissions = "sim/SimSubmissionStore.ts"
const paydb = "sim/SimPaydb.ts"
const proxy = "rail-proxy/RailService.ts"
const decision = "core/payment/Decision.ts"
const fencing = "core/Fencing.ts"
const fenceMet = "const refused = enforced && !passes[meet](account.fence, token)"
const ownClaim = 'const own = look.state === "CLAIMED" && (look.claimToken === token || !enforced)'
const settled = "if (!unclaimed && !own) return illegal(look, to)"

export const moneyMutants: ReadonlyArray<Mutant> = [
  // ---- fence point (a)
  {
    id: "M33",
    what: "a claim passes under the very token that the fence stands at",
    edits: [edit(fencing, "presented > fence", "presented >= fence")],
    survives: "equivalent while one grant claims one payout; the law 'one token, one payout' of the stores kills it"
  },
  {
    id: "M34",
    what: "post skips the fence",
    edits: [edit(payments, fenceMet, fenceMet.replace("enforced &&", 'enforced && op !== "post" &&'))],
    survives: "the claim's token is compared once more with the payout's own; M34b takes that away too"
  },
  {
    id: "M34b",
    what: "post skips the fence and the claim's token",
    edits: [
      edit(payments, fenceMet, fenceMet.replace("enforced &&", 'enforced && op !== "post" &&')),
      edit(decision, ownClaim, 'const own = look.state === "CLAIMED" || look.state === "POSTED"'),
      edit(decision, settled, 'if (to === "POSTED" && look.verdict === "EXECUTED") return write(to)')
    ]
  },
  {
    id: "M35",
    what: "claim skips the fence",
    edits: [edit(payments, fenceMet, fenceMet.replace("enforced &&", 'enforced && op !== "claim" &&'))]
  },
  {
    id: "M36",
    what: "claim does not move the fence",
    edits: [
      edit(payments, 'if (meet !== "hold") account.fence = token', 'if (meet === "adopt") account.fence = token')
    ],
    canary: true
  },
  {
    id: "M40",
    what: "post has no state predicate",
    edits: [edit(decision, ownClaim, "const own = look.claimToken === token || !enforced")],
    survives: "only a CLAIMED payout has a legal move to POSTED, which is asked once more"
  },
  {
    id: "M41",
    what: "fail and ambiguous skip the fence and the claim's token",
    edits: [
      edit(payments, fenceMet, fenceMet.replace("enforced &&", 'enforced && op !== "fail" && op !== "ambiguous" &&')),
      edit(decision, ownClaim, 'const own = look.state === "CLAIMED"')
    ],
    survives: "the evidence decides these moves, whoever makes them, and the state lets only one of them happen"
  },
  {
    id: "M42",
    what: "resolve skips the fence",
    edits: [edit(payments, fenceMet, fenceMet.replace("enforced &&", 'enforced && op !== "resolve" &&'))],
    survives: "one reconciler runs here; two of them meet in the laws of the payment stores"
  },
  {
    id: "A01",
    what: "the balance goes the wrong way",
    edits: [edit(payments, ".balanceMinor += amountMinor", ".balanceMinor -= amountMinor")],
    canary: true
  },
  {
    id: "A02",
    what: "the reserve is not given back",
    edits: [
      edit(
        payments,
        "account.reservedMinor += isHeld(to) ? row.amountMinor : -row.amountMinor",
        "account.reservedMinor += isHeld(to) ? row.amountMinor : 0n"
      )
    ],
    canary: true
  },
  {
    id: "A03",
    what: "any move is legal whatever the evidence",
    edits: [edit(decision, 'return needs === "any" || needs?.includes(look.verdict) === true', "return true")]
  },
  {
    id: "A04",
    what: "a repeated claim under the own token is refused",
    edits: [edit(decision, 'if (state === "CLAIMED" && look.claimToken === token) return replay', "")]
  },

  // ---- fence point (c)
  {
    id: "M43",
    what: "the rail's fence lets everything pass",
    edits: [
      edit(
        submissions,
        "if (!fencingEnabled || mark === undefined || mayAdvance(mark.token, token)) return Result.succeed(advance)",
        "if (mark !== null) return Result.succeed(advance)"
      )
    ]
  },
  {
    id: "M44",
    what: "the high water is not kept",
    edits: [edit(submissions, "db.highWater.set(accountId, { token, payoutId, actor })", "undefined")]
  },
  {
    id: "M45",
    what: "the rail is called before the intent is on record",
    edits: [
      before(
        proxy,
        'yield* reached("rail.intent.before")',
        'yield* Effect.ignore(rail.submit({ clientReference: request.payoutId.replaceAll("-", ""), amountMinor: request.amountMinor, currency: request.currency, beneficiary: request.beneficiary }, startedAt + 10_000_000_000n)); '
      )
    ],
    canary: true
  },
  {
    id: "M46",
    what: "the proxy repeats a submit that got no answer",
    edits: [
      edit(
        proxy,
        'Effect.catchTag("RailNoAnswer", Effect.succeed),',
        'Effect.catchTag("RailNoAnswer", () => Effect.catchTag(send(request, intent.clientReference, startedAt), "RailNoAnswer", Effect.succeed)),'
      )
    ],
    under: [{ scenario: "uc-05" }]
  },
  {
    id: "M47",
    what: "no answer counts as a decline",
    edits: [
      edit(
        proxy,
        'store.recordOutcome(submissionId, "TIMEOUT", {})',
        'store.recordOutcome(submissionId, "DECLINED", {})'
      )
    ],
    under: [{ scenario: "uc-05" }]
  },
  {
    id: "M48",
    what: "a timeout deletes the record of the intent",
    edits: [
      before(
        submissions,
        'row.outcome = repeated ? "DUPLICATE_ACK" : outcome',
        'if (outcome === "TIMEOUT") db.submissions.splice(db.submissions.indexOf(row), 1); '
      )
    ],
    under: [{ scenario: "uc-05" }]
  },
  {
    id: "M49",
    what: "the one slot of a payout is not kept",
    edits: [edit(submissions, "const ownOnly = !fencingEnabled || without.slot === true", "const ownOnly = true")],
    survives: "(c2) refuses who could take a second slot; without both, `--guards-off` finds duplicates"
  },
  {
    id: "M50",
    what: "the proxy compares with the resource's fence instead of its own",
    edits: [
      edit(
        submissions,
        "const mark = db.highWater.get(accountId)\n",
        "const mark = { token: db.accounts.get(accountId)?.fence ?? 0n, payoutId }\n"
      )
    ],
    survives:
      "the resource's fence is never behind the rail's own while it is on; with it off, (c2) and the slot stand behind"
  },
  {
    id: "P01",
    what: "(c2): whoever passes the fence may submit",
    edits: [
      edit(
        submissions,
        "if (!fencingEnabled || without.claimant === true || allowed) return passed",
        "if (passed !== null) return passed"
      )
    ]
  },
  {
    id: "P02",
    what: "a payment is sent however late",
    edits: [
      edit(proxy, "if (now > sendNotAfter) return", "if (now < 0n) return"),
      edit("sim/SimRail.ts", "> sendNotAfterNanos) {", "> sendNotAfterNanos + 60_000_000_000n) {")
    ],
    under: [{ scenario: "uc-03b" }]
  },
  {
    id: "P03",
    what: "an outcome is written over",
    edits: [edit(submissions, 'if (row.outcome === "INTENT") {', "if (row.outcome !== null) {")],
    survives: "the proxy writes the outcome of a submission once; that the store insists is a law of the store"
  },
  {
    id: "P04",
    what: "a seal takes no slot",
    edits: [
      edit(
        submissions,
        "const row = existing ?? insert(order, request, reason)",
        "const row = existing ?? insert(order, request, reason); if (existing === undefined) db.submissions.pop()"
      )
    ],
    under: [{ scenario: "uc-04" }]
  },
  {
    id: "P05",
    what: "a token that has submitted one payout submits another",
    edits: [edit(submissions, "return mark.payoutId === payoutId", "return mark.payoutId !== null")],
    survives: "a token claims one payout, and only the claimant gets as far; the law 'one token, one payout' kills it"
  },
  {
    id: "P06",
    what: "one 'not found' after the window is enough",
    edits: [
      edit(
        paydb,
        "return final.length >= minNotFound && spread >= minSpacingMillis * (minNotFound - 1)",
        "return final.length >= 1"
      )
    ],
    survives: "the window alone is longer than any delivery; the second look is for a rail whose book lags behind"
  }
]
