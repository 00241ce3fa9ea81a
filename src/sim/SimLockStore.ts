/**
 * The lock store in memory: what a store has to do, said as simply as it can be said. The laws judge it and the real
 * stores alike; the simulation runs on it.
 *
 * Every operation is one synchronous step, so it decides on one state and one reading of the clock. That clock is the
 * one of the fiber that made the store, not the caller's: a service whose clock is wrong does not get to judge a lease.
 *
 * Nothing is ever forgotten: a store lives as long as a test or a run.
 */
import { Clock, Effect, Layer, PubSub, Stream } from "effect"
import type {
  AcquireId,
  FencingToken,
  LockGrant,
  LockInfo,
  LockKey,
  OwnerId,
  Session,
  SessionId
} from "../core/lock/Lock.ts"
import {
  FencedOut,
  LockContended,
  LockLost,
  type LockLostReason,
  LockNotFound,
  SessionExpired,
  SessionUnknown
} from "../core/lock/LockErrors.ts"
import {
  type ExpiredGrant,
  type LockChange,
  type LockRecord,
  LockStore,
  type Page,
  type RevokedGrant
} from "../core/lock/LockStore.ts"

interface SessionRow {
  readonly sessionId: SessionId
  readonly ownerId: OwnerId
  readonly ttlMillis: number
  expiresAt: number
  end: { readonly how: "closed" | "expired"; readonly at: number } | null
}

type GrantEnd = "released" | "expired" | "revoked" | "session"

/** The last grant of a key, live or not. */
interface GrantRow {
  readonly key: LockKey
  readonly token: FencingToken
  readonly session: SessionRow
  readonly acquireId: AcquireId
  readonly grantedAt: number
  expiresAt: number
  end: GrantEnd | null
}

const nameOf = (...parts: ReadonlyArray<string>): string => JSON.stringify(parts)

export interface SimLockStoreOptions {
  /** The first token is one more. Default 0. */
  readonly lastToken?: bigint
}

export const make = Effect.fnUntraced(function* (options?: SimLockStoreOptions) {
  const clock = yield* Clock.Clock
  const changes = yield* PubSub.unbounded<LockChange>()

  let lastToken = options?.lastToken ?? 0n
  let opened = 0
  const sessions = new Map<SessionId, SessionRow>()
  const sessionByOpenId = new Map<string, SessionRow>()
  const grants = new Map<LockKey, GrantRow>()
  /** By session, key and acquire id: an id grants once. */
  const grantByAcquireId = new Map<string, GrantRow>()
  const ends = new Map<FencingToken, GrantRow>()
  const revocations = new Map<string, RevokedGrant>()
  const lastRevocation = new Map<LockKey, NonNullable<LockRecord["lastRevocation"]>>()
  let untoldGrants: Array<ExpiredGrant> = []
  let untoldSessions = 0

  // Minted only where the grant is written, in the same step: no slower caller can come later with a smaller one.
  const mint = (): FencingToken => (lastToken = lastToken + 1n) as FencingToken

  const changed = (key: LockKey) => PubSub.publishUnsafe(changes, { key })

  const sessionLives = (row: SessionRow, now: number): boolean => {
    if (row.end !== null) return false
    if (now < row.expiresAt) return true
    row.end = { how: "expired", at: row.expiresAt }
    untoldSessions++
    return false
  }

  const end = (row: GrantRow, how: GrantEnd, at: number): number => {
    row.end = how
    ends.set(row.token, row)
    changed(row.key)
    return Math.max(0, at - row.grantedAt)
  }

  const grantLives = (row: GrantRow, now: number): boolean => {
    if (row.end !== null) return false
    const sessionAlive = sessionLives(row.session, now)
    if (now < row.expiresAt && sessionAlive) return true
    const leaseEndedFirst = row.expiresAt <= (row.session.end?.at ?? row.expiresAt)
    const how = leaseEndedFirst ? "expired" : "session"
    const heldMillis = end(row, how, leaseEndedFirst ? row.expiresAt : (row.session.end?.at ?? now))
    untoldGrants.push({ key: row.key, token: row.token, ownerId: row.session.ownerId, heldMillis, end: how })
    return false
  }

  const liveSession = (sessionId: SessionId, ownerId: OwnerId, now: number) => {
    const row = sessions.get(sessionId)
    if (row === undefined || row.ownerId !== ownerId) return new SessionUnknown({ sessionId })
    if (sessionLives(row, now)) return row
    return row.end?.how === "closed" ? new SessionUnknown({ sessionId }) : new SessionExpired({ sessionId })
  }

  /** The live grant that `token` names, or how it was lost. */
  const ownGrant = (key: LockKey, ownerId: OwnerId, token: FencingToken, now: number) => {
    const row = grants.get(key)
    const isCurrent = row !== undefined && row.token === token && row.session.ownerId === ownerId
    if (isCurrent && grantLives(row, now)) return row
    const ended = ends.get(token)
    const reason: LockLostReason =
      ended?.key === key && ended.session.ownerId === ownerId && ended.end !== null ? ended.end : "superseded"
    return new LockLost({ key, token, reason })
  }

  const answerSession = (row: SessionRow): Session => ({
    sessionId: row.sessionId,
    ownerId: row.ownerId,
    ttlMillis: row.ttlMillis,
    expiresAt: row.expiresAt
  })

  const answerGrant = (row: GrantRow, now: number): LockGrant => ({
    key: row.key,
    token: row.token,
    ownerId: row.session.ownerId,
    sessionId: row.session.sessionId,
    grantedAt: row.grantedAt,
    expiresAt: row.expiresAt,
    ttlMillis: row.expiresAt - now
  })

  const answerRecord = (row: GrantRow, now: number): LockRecord => ({
    key: row.key,
    held: grantLives(row, now),
    token: row.token,
    ownerId: row.session.ownerId,
    sessionId: row.session.sessionId,
    acquireId: row.acquireId,
    grantedAt: row.grantedAt,
    expiresAt: row.expiresAt,
    lastRevocation: lastRevocation.get(row.key) ?? null
  })

  const pageOf = <A>(rows: Iterable<A>, name: (row: A) => string, page: Page): ReadonlyArray<A> =>
    [...rows]
      .filter((row) => name(row).startsWith(page.prefix) && name(row) > page.after)
      .sort((a, b) => (name(a) < name(b) ? -1 : 1))
      .slice(0, page.limit)

  /** One step of the store at its own time: a value, or the failure to answer with. */
  const step = <R>(run: (now: number) => R): Effect.Effect<Exclude<R, Failure>, Extract<R, Failure>> =>
    Effect.suspend(() => {
      const answer = run(clock.currentTimeMillisUnsafe())
      // The test does not narrow a type parameter.
      return isFailure(answer)
        ? Effect.fail(answer as Extract<R, Failure>)
        : Effect.succeed(answer as Exclude<R, Failure>)
    })

  return LockStore.of({
    openSession: ({ openId, ownerId, ttlMillis }) =>
      step((now) => {
        const name = nameOf(ownerId, openId)
        const known = sessionByOpenId.get(name)
        if (known !== undefined && sessionLives(known, now)) {
          // The repeat counts from its own sending, so the session has to last that long.
          known.expiresAt = now + known.ttlMillis
          return answerSession(known)
        }
        const sessionId = `session-${++opened}` as SessionId
        const row: SessionRow = { sessionId, ownerId, ttlMillis, expiresAt: now + ttlMillis, end: null }
        sessions.set(sessionId, row)
        sessionByOpenId.set(name, row)
        return answerSession(row)
      }),

    heartbeat: (sessionId, ownerId) =>
      step((now) => {
        const row = liveSession(sessionId, ownerId, now)
        if (isFailure(row)) return row
        row.expiresAt = now + row.ttlMillis
        return answerSession(row)
      }),

    closeSession: (sessionId, ownerId) =>
      step((now) => {
        const row = liveSession(sessionId, ownerId, now)
        if (isFailure(row)) return row
        row.end = { how: "closed", at: now }
        for (const grant of grants.values()) if (grant.session === row) grantLives(grant, now)
      }),

    tryAcquire: ({ acquireId, key, ownerId, sessionId, ttlMillis }) =>
      step((now) => {
        const session = liveSession(sessionId, ownerId, now)
        if (isFailure(session)) return session
        const name = nameOf(sessionId, key, acquireId)
        const before = grantByAcquireId.get(name)
        if (before !== undefined) {
          if (grantLives(before, now)) return answerGrant(before, now)
          return new LockLost({ key, token: before.token, reason: before.end ?? "superseded" })
        }
        const held = grants.get(key)
        if (held !== undefined && grantLives(held, now)) {
          return new LockContended({
            key,
            outcome: "HELD_BY_OTHER",
            holderOwnerId: held.session.ownerId,
            holderExpiresAt: held.expiresAt,
            retryAfterMillis: Math.min(1_000, Math.max(1, held.expiresAt - now))
          })
        }
        const row: GrantRow = {
          key,
          token: mint(),
          session,
          acquireId,
          grantedAt: now,
          expiresAt: now + ttlMillis,
          end: null
        }
        grants.set(key, row)
        grantByAcquireId.set(name, row)
        return answerGrant(row, now)
      }),

    renew: (key, ownerId, token, ttlMillis) =>
      step((now) => {
        const row = ownGrant(key, ownerId, token, now)
        if (isFailure(row)) return row
        row.expiresAt = Math.max(row.expiresAt, now + ttlMillis)
        return answerGrant(row, now)
      }),

    release: (key, ownerId, token) =>
      step((now) => {
        const row = ownGrant(key, ownerId, token, now)
        if (isFailure(row)) return row
        return { heldMillis: end(row, "released", now) }
      }),

    inspect: (key) =>
      step((now) => {
        const row = grants.get(key)
        if (row === undefined) return new LockNotFound({ key })
        const held = grantLives(row, now)
        const info: LockInfo = {
          key,
          held,
          holderOwnerId: held ? row.session.ownerId : null,
          expiresAt: held ? row.expiresAt : null
        }
        return info
      }),

    revoke: ({ expectedToken, key, operator, reason, revocationId }) =>
      step((now) => {
        const name = nameOf(key, revocationId)
        const before = revocations.get(name)
        if (before !== undefined) return { ...before, heldMillis: null }
        const row = grants.get(key)
        if (row === undefined || !grantLives(row, now)) return new LockNotFound({ key })
        if (expectedToken !== undefined && expectedToken !== row.token) {
          return new FencedOut({
            point: "lock",
            op: "revoke",
            resource: key,
            presented: expectedToken,
            highest: row.token
          })
        }
        const heldMillis = end(row, "revoked", now)
        const revoked = { key, revokedToken: row.token, newTokenFloor: mint(), revocationId, heldMillis }
        revocations.set(name, revoked)
        lastRevocation.set(key, { operator, reason, at: now })
        return revoked
      }),

    changes: Stream.fromPubSub(changes),

    sweep: step((now) => {
      const liveGrants = [...grants.values()].filter((row) => grantLives(row, now)).length
      const liveSessions = [...sessions.values()].filter((row) => sessionLives(row, now)).length
      const found = { expiredGrants: untoldGrants, expiredSessions: untoldSessions, liveSessions, liveGrants }
      untoldGrants = []
      untoldSessions = 0
      return found
    }),

    records: (page) =>
      step((now) => pageOf(grants.values(), (row) => row.key, page).map((row) => answerRecord(row, now))),

    record: (key) =>
      step((now) => {
        const row = grants.get(key)
        return row === undefined ? new LockNotFound({ key }) : answerRecord(row, now)
      }),

    sessions: (page) =>
      step((now) =>
        pageOf(
          [...sessions.values()].filter((row) => sessionLives(row, now)),
          (row) => row.sessionId,
          page
        ).map(answerSession)
      ),

    ping: Effect.void
  })
})

export const layer: Layer.Layer<LockStore> = Layer.effect(LockStore, make())

type Failure = LockContended | LockLost | SessionUnknown | SessionExpired | LockNotFound | FencedOut

const isFailure = (answer: unknown): answer is Failure => answer instanceof Error
