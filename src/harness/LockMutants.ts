/** Deliberate bugs of lock store, lock client and lock service. */
import { edit, everywhere, before, type Mutant } from "./Mutant.ts"

const store = "sim/SimLockStore.ts"
const held = "lock-client/HeldLock.ts"
const acquire = "lock-client/Acquire.ts"
const session = "lock-client/ClientSession.ts"
const service = "lock-server/LockService.ts"
const liveHolder = "if (held !== undefined && grantLives(held, now)) {"
const lapsed = "if (now < row.expiresAt && sessionAlive) return true"

export const lockMutants: ReadonlyArray<Mutant> = [
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
  {
    id: "S03",
    what: "a heartbeat keeps the grants of its session",
    edits: [
      before(
        store,
        "row.expiresAt = now + row.ttlMillis",
        "for (const grant of grants.values()) if (grant.session === row && grant.end === null) grant.expiresAt = Math.max(grant.expiresAt, now + row.ttlMillis); "
      )
    ]
  },
  {
    id: "S04",
    what: "renew revives a lease that has run out",
    edits: [
      edit(
        store,
        "renew: (key, ownerId, token, ttlMillis) =>",
        "renew: (key, ownerId, token, ttlMillis, revived = grants.get(key)?.token === token && Object.assign(grants.get(key) ?? {}, { end: null, expiresAt: Infinity })) =>"
      )
    ]
  },
  {
    id: "S05",
    what: "a dead session acquires",
    edits: [
      edit(
        store,
        "const session = liveSession(sessionId, ownerId, now) if (isFailure(session)) return session const name",
        "const session = sessions.get(sessionId) ?? liveSession(sessionId, ownerId, now); if (isFailure(session)) return session; const name"
      )
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
    edits: [
      edit(
        session,
        "this.run(Effect.gen(() => this.keepAlive(session, sentAt, answer.ttlMillis)))",
        "void this.keepAlive"
      )
    ],
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
  {
    id: "C03",
    what: "there is no safety margin",
    edits: [
      edit(held, "grant.answer.ttlMillis - env.settings.safetyMarginMillis", "grant.answer.ttlMillis"),
      edit(held, "answer.ttlMillis - settings.safetyMarginMillis", "answer.ttlMillis")
    ]
  },
  {
    id: "C04",
    what: "a renewal's deadline counts from its answer",
    edits: [
      edit(
        held,
        "const deadline = deadlineOf(sentAt, answer.ttlMillis",
        "const deadline = deadlineOf(yield* Clock.monotonicTimeNanos, answer.ttlMillis"
      )
    ]
  },
  {
    id: "C05",
    what: "the session's deadline counts from the heartbeat's answer",
    edits: [
      edit(
        session,
        "const deadline = deadlineOf(sentAt, answer.success.ttlMillis - margin)",
        "const deadline = deadlineOf(yield* Clock.monotonicTimeNanos, answer.success.ttlMillis - margin)"
      )
    ],
    // where the session can end before the lease
    under: [{ scenario: "uc-03", fixed: { scale: "longLease" } }]
  },
  {
    id: "C06",
    what: "a loss does not stop the section",
    edits: [edit(held, "this.body?.interruptUnsafe()", "void this.body")],
    survives: "the section stops itself at its next check, and what it has sent meanwhile meets the fences"
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
  {
    id: "L03",
    what: "a release is answered and never reaches the store",
    edits: [
      edit(
        service,
        'write(instance, "release", instance.store.release(key, ownerId, token))',
        "Effect.succeed({ heldMillis: 0 })"
      )
    ],
    under: [{ scenario: "uc-01" }]
  }
]
