/**
 * Deliberate bugs, each a change of one or two places of a source file, made while the file is loaded and nowhere else. A
 * simulation that does not find them proves nothing by finding nothing.
 *
 * A bug behind a second guard lives, so some are run with that guard away, and compared with what its absence alone does.
 * Every survivor has its reason here; one without a reason fails the command.
 */
import type { Fixed } from "../sim/Arbitrary.ts"
import type { Edit } from "./SimPool.ts"

export interface Mutant {
  readonly id: string
  readonly what: string
  readonly edits: ReadonlyArray<Edit>
  /** Where it is looked for, in this order. Default: UC-03, then UC-05. */
  readonly under?: ReadonlyArray<{
    readonly scenario: string
    readonly fixed?: Fixed
    /** Checks that fail there without the mutant too. */
    readonly expected?: ReadonlyArray<string>
  }>
  /** Must be found within three runs, or the harness itself is broken. */
  readonly canary?: boolean
  /** Why it can not be found. */
  readonly survives?: string
}

const store = "sim/SimLockStore.ts"
const payments = "sim/SimPaymentStore.ts"
const submissions = "sim/SimSubmissionStore.ts"
const paydb = "sim/SimPaydb.ts"
const held = "lock-client/HeldLock.ts"
const acquire = "lock-client/Acquire.ts"
const session = "lock-client/ClientSession.ts"
const service = "lock-server/LockService.ts"
const turn = "payout-executor/PayoutTurn.ts"
const proxy = "rail-proxy/RailService.ts"
const reconciler = "reconciler/Reconciler.ts"
const decision = "core/payment/Decision.ts"
const payout = "core/payment/Payout.ts"
const fencing = "core/Fencing.ts"

const edit = (file: string, find: string, replace: string): Edit => ({ file, find, replace })
const everywhere = (file: string, find: string, replace: string): Edit => ({ file, find, replace, all: true })
/** The same statement with something in front of it. */
const before = (file: string, find: string, first: string): Edit => edit(file, find, `${first}${find}`)

const liveHolder = "if (held !== undefined && grantLives(held, now)) {"
const fenceMet = "const refused = enforced && !passes[meet](account.fence, token)"
const ownClaim = 'const own = look.state === "CLAIMED" && (look.claimToken === token || !enforced)'
const settled = "if (!unclaimed && !own) return illegal(look, to)"
const lapsed = "if (now < row.expiresAt && sessionAlive) return true"

export const mutants: ReadonlyArray<Mutant> = [
  // ---- the lock store
  {
    id: "M01",
    what: "the store decides by a reading of the clock that is 50 ms old",
    edits: [
      edit(
        store,
        "const answer = run(clock.currentTimeMillisUnsafe())",
        "const answer = run(clock.currentTimeMillisUnsafe() - 50)"
      )
    ]
  },
  {
    id: "M02",
    what: "grants although a live holder exists",
    edits: [edit(store, liveHolder, "if (held !== undefined && grantLives(held, now) && now < 0) {")],
    canary: true
  },
  {
    id: "M02b",
    what: "grants every third time although a live holder exists",
    edits: [edit(store, liveHolder, "if (held !== undefined && grantLives(held, now) && now % 3 !== 0) {")]
  },
  {
    id: "M03",
    what: "a takeover does not mint a new token",
    edits: [edit(store, "token: mint(),", "token: held?.token ?? mint(),")],
    canary: true
  },
  {
    id: "M05",
    what: "a release forgets the key, and its tokens start again",
    edits: [before(store, 'return { heldMillis: end(row, "released", now) }', "grants.delete(key); lastToken = 0n; ")],
    canary: true
  },
  {
    id: "M06",
    what: "renew mints a new token",
    edits: [
      edit(
        store,
        "row.expiresAt = Math.max(row.expiresAt, now + ttlMillis)",
        "row.expiresAt = Math.max(row.expiresAt, now + ttlMillis); row.token = mint()"
      )
    ]
  },
  {
    id: "M06b",
    what: "renew shortens a lease that lasts longer",
    edits: [
      edit(store, "row.expiresAt = Math.max(row.expiresAt, now + ttlMillis)", "row.expiresAt = now + ttlMillis / 2")
    ]
  },
  {
    id: "M09",
    what: "release goes by the key and ignores the token",
    edits: [
      edit(
        store,
        "release: (key, ownerId, token) =>",
        "release: (key, o, t, ownerId = grants.get(key)?.session.ownerId ?? o, token = grants.get(key)?.token ?? t) =>"
      )
    ]
  },
  {
    id: "M11",
    what: "revoke does not raise the token floor",
    edits: [edit(store, "newTokenFloor: mint()", "newTokenFloor: row.token")],
    under: [{ scenario: "uc-06" }],
    survives: "one counter mints all tokens, so the next one is above the revoked one anyway: nobody can tell"
  },
  {
    id: "M11b",
    what: "revoke leaves the grant live",
    edits: [edit(store, 'const heldMillis = end(row, "revoked", now)', "const heldMillis = 0")],
    under: [{ scenario: "uc-06" }]
  },
  {
    id: "M13",
    what: "closing a session does not end its grants at once",
    edits: [edit(store, "for (const grant of grants.values()) if (grant.session === row) grantLives(grant, now)", "")],
    survives: "whether a grant lives is asked of its session each time; this loop only tells of it earlier"
  },
  {
    id: "M13b",
    what: "a grant outlives its session",
    edits: [edit(store, lapsed, "if (now < row.expiresAt) return true")]
  },
  {
    id: "M15",
    what: "a heartbeat revives an expired session",
    edits: [
      edit(
        store,
        "heartbeat: (sessionId, ownerId) =>",
        "heartbeat: (sessionId, ownerId, revived = Object.assign(sessions.get(sessionId) ?? {}, { end: null, expiresAt: Infinity })) =>"
      )
    ]
  },
  {
    id: "M18",
    what: "an expiry is applied 20 s late",
    edits: [edit(store, lapsed, lapsed.replace("row.expiresAt", "row.expiresAt + 20_000"))]
  },
  {
    id: "M19",
    what: "an acquire is not recognised by its id",
    edits: [edit(store, "if (before !== undefined) {", "if (before !== undefined && now < 0) {")]
  },
  {
    id: "M20",
    what: "asking again under the same session answers the held token",
    edits: [
      before(
        store,
        liveHolder,
        "if (held !== undefined && grantLives(held, now) && held.session === session) return answerGrant(held, now); "
      )
    ]
  },
  {
    id: "S01",
    what: "a session lives half as long as was promised",
    edits: [edit(store, "row.expiresAt = now + row.ttlMillis", "row.expiresAt = now + row.ttlMillis / 2")]
  },
  {
    id: "S02",
    what: "two opens under one id make two sessions",
    edits: [
      edit(store, "if (known !== undefined && sessionLives(known, now)) {", "if (known !== undefined && now < 0) {")
    ]
  },

  // ---- the lock client
  {
    id: "M24",
    what: "the deadline counts from the answer, not from the send",
    edits: [edit(acquire, "const countedFrom = sentAt + millisToNanos(waitedMillis)", "const countedFrom = now")]
  },
  {
    id: "M24b",
    what: "a renewal's deadline counts from half a second after its send",
    edits: [
      edit(
        held,
        "const deadline = deadlineOf(sentAt, answer.ttlMillis - settings.safetyMarginMillis)",
        "const deadline = deadlineOf(sentAt + 500_000_000n, answer.ttlMillis - settings.safetyMarginMillis)"
      )
    ]
  },
  {
    id: "M25",
    what: "the safety margin is added instead of taken off",
    edits: [
      edit(
        held,
        "grant.answer.ttlMillis - env.settings.safetyMarginMillis",
        "grant.answer.ttlMillis + env.settings.safetyMarginMillis"
      )
    ]
  },
  {
    id: "M26",
    what: "checkStillHeld goes well whatever the time",
    edits: [edit(held, "if (now < this.deadline) return Effect.void", "if (now >= 0n) return Effect.void")]
  },
  {
    id: "M27",
    what: "the session's own deadline is ignored",
    edits: [
      edit(
        held,
        "const end = this.leaseDeadline < session.deadline ? this.leaseDeadline : session.deadline",
        "const end = this.leaseDeadline"
      )
    ]
  },
  {
    id: "M28",
    what: "deadlines are kept on the wall clock",
    edits: [acquire, held, session].map((file) =>
      everywhere(file, "Clock.monotonicTimeNanos", "Clock.currentTimeNanos")
    )
  },
  {
    id: "M29",
    what: "the session's deadline is a margin too late",
    edits: [
      edit(
        session,
        "const deadline = deadlineOf(sentAt, answer.success.ttlMillis - margin)",
        "const deadline = deadlineOf(sentAt, answer.success.ttlMillis + 2 * margin)"
      )
    ]
  },
  {
    id: "M30",
    what: "nothing is released",
    edits: [edit(held, 'this.phase = "releasing"', "return")],
    under: [{ scenario: "uc-01" }, { scenario: "uc-03" }]
  },
  {
    id: "M31",
    what: "no heartbeat is sent",
    edits: [edit(session, "run(keepAlive(session, sentAt, answer.ttlMillis))", "void keepAlive")],
    survives:
      "a session that lapses is replaced at the next acquire and its deadline stops the holder in time: slower, not wrong"
  },
  {
    id: "M32",
    what: "an acquire of unknown fate is repeated under a new id",
    edits: [edit(acquire, "if (call?.session !== session) call = {", "if (session) call = {")],
    survives:
      "it contends with its own first request until that one's lease ends: a wait of one lease, which LIVE-01 allows"
  },
  {
    id: "M32b",
    what: "an acquire that was given up is not settled",
    edits: [
      edit(acquire, "Exit.isFailure(exit) && unsettled !== undefined", "Exit.isFailure(exit) && unsettled === null")
    ],
    survives:
      "the grant that nobody heard of ends with its own lease, since heartbeats keep no grants: a wait of one lease"
  },
  {
    id: "C01",
    what: "what is lost with a session is not told to the holders of its locks",
    edits: [
      edit(
        session,
        "return Effect.forEach(Array.from(session.dependents), (lock) => lock.lose(reason), { discard: true })",
        "return Effect.void"
      )
    ],
    survives: "a holder's deadline is never later than its session's, so it stops by itself"
  },
  {
    id: "C02",
    what: "a lock that was lost can be used again after a good renewal",
    edits: [edit(held, "if (this.loss !== undefined) return Effect.fail(this.loss)", "")],
    survives: "whoever notices a loss interrupts the section, so nobody is left who could check again"
  },

  // ---- the lock service
  {
    id: "L01",
    what: "the service waits for no answer of the store",
    edits: [edit(service, "const before = lastTokens.get(key)", "const before = undefined")],
    survives:
      "it looks for a store that goes back in time; this one never does (the restored store is tried by its own tests)"
  },
  {
    id: "L02",
    what: "the service asks for a lease twice as long as was asked for",
    edits: [
      edit(
        service,
        "ttlMillis: within(limits.lockTtlMillis, request.ttlMillis ?? instance.settings.defaultTtlMillis)",
        "ttlMillis: 2 * within(limits.lockTtlMillis, request.ttlMillis ?? instance.settings.defaultTtlMillis)"
      )
    ],
    survives: "a longer lease is answered as what it is, and the client counts on what is answered"
  },

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
    edits: [
      edit(
        payments,
        "accountOf(accountId as AccountId).balanceMinor += amountMinor",
        "accountOf(accountId as AccountId).balanceMinor -= amountMinor"
      )
    ],
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
    ]
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

  // ---- who decides
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
    under: [{ scenario: "uc-03" }, { scenario: "uc-05" }]
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
    under: [{ scenario: "uc-05" }]
  },
  {
    id: "E01",
    what: "a write that was fenced out is repeated",
    edits: [
      edit(turn, 'const answerLost = ["BackendUnavailable"]', 'const answerLost = ["BackendUnavailable", "FencedOut"]')
    ]
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
        'if (payout.nextStep === "LOOKUP" && !escalated.has(payoutId)) { escalated.add(payoutId);'
      )
    ],
    under: [{ scenario: "uc-05" }]
  }
]

export const mutantOf = (id: string): Mutant | undefined => mutants.find((one) => one.id === id)
