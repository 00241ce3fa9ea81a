/**
 * What a lock store may answer, said a second time and as simply as possible: a reference model that is stepped at each
 * commit, in commit order, with the store's own clock. The first wrong answer names the exact operation.
 *
 * It sees more than a checker of calls and answers (what was done although nobody heard of it), so it finds a broken store
 * in a handful of runs where a search through histories needs hundreds. It is written from the laws in
 * `core/lock/LockStore.ts` and shares nothing with the store that it judges.
 */
import { Exit, Option } from "effect"
import type { LockEvent } from "../core/History.ts"
import type { FencingToken, LockGrant, Session } from "../core/lock/Lock.ts"
import type { AcquireRequest, OpenSession, RevokedGrant, RevokeRequest } from "../core/lock/LockStore.ts"

interface SessionModel {
  readonly sessionId: string
  readonly ownerId: string
  readonly ttlMillis: number
  expiresAt: number
  closed: boolean
}

export interface HolderModel {
  readonly token: FencingToken
  readonly session: SessionModel
  readonly attempt: string
  expiresAt: number
}

interface KeyModel {
  last: bigint
  holder: HolderModel | undefined
}

/** The operations that decide something. Reads are not modelled. */
export type LockCommit =
  | { readonly op: "openSession"; readonly request: OpenSession }
  | { readonly op: "heartbeat" | "closeSession"; readonly sessionId: string; readonly ownerId: string }
  | { readonly op: "tryAcquire"; readonly request: AcquireRequest }
  | {
      readonly op: "renew" | "release"
      readonly key: string
      readonly ownerId: string
      readonly token: bigint
      readonly ttlMillis: number
    }
  | { readonly op: "revoke"; readonly request: RevokeRequest }

export class Oracle {
  /** The audit that the invariants judge. */
  readonly events: Array<LockEvent> = []
  readonly #sessions = new Map<string, SessionModel>()
  readonly #openIds = new Map<string, SessionModel>()
  readonly #keys = new Map<string, KeyModel>()
  /** The one grant of each attempt. */
  readonly #attempts = new Map<string, bigint>()
  readonly #grants = new Map<bigint, HolderModel>()
  readonly #revocations = new Map<string, bigint>()

  /** One commit at `now` of the store's clock. What is wrong with its answer, or undefined. */
  step(commit: LockCommit, answer: Exit.Exit<unknown, unknown>, now: number): string | undefined {
    const failure = Exit.isFailure(answer) ? tagOf(Option.getOrUndefined(Exit.findErrorOption(answer))) : undefined
    const value: unknown = Exit.isSuccess(answer) ? answer.value : undefined
    switch (commit.op) {
      case "openSession":
        return failure === undefined ? this.#opened(commit.request, value as Session, now) : `open failed: ${failure}`
      case "heartbeat":
      case "closeSession":
        return this.#session(commit.op, commit.sessionId, commit.ownerId, failure, now)
      case "tryAcquire":
        return failure === undefined
          ? this.#granted(commit.request, value as LockGrant, now)
          : this.#refused(commit.request, failure, now)
      case "renew":
      case "release":
        return this.#own(commit, failure, value, now)
      case "revoke":
        return this.#revoked(commit.request, failure, value, now)
    }
  }

  /** Who holds the key by the store's clock, whatever anybody believes. */
  holderOf(key: string, now: number): HolderModel | undefined {
    const holder = this.#keys.get(key)?.holder
    return holder !== undefined && lives(holder, now) ? holder : undefined
  }

  /** Keys that are held now. */
  held(now: number): ReadonlyArray<readonly [key: string, holder: HolderModel]> {
    return [...this.#keys].flatMap(([key, { holder }]) =>
      holder !== undefined && lives(holder, now) ? [[key, holder] as const] : []
    )
  }

  /** When that grant ends by time, released or revoked as it may be: with its lease or its session. */
  endOf(token: bigint): number | undefined {
    const grant = this.#grants.get(token)
    return grant === undefined ? undefined : Math.min(grant.expiresAt, grant.session.expiresAt)
  }

  #opened({ openId, ownerId, ttlMillis }: OpenSession, answer: Session, now: number): string | undefined {
    const name = `${ownerId} ${openId}`
    const known = this.#openIds.get(name)
    const repeated = known !== undefined && sessionLives(known, now)
    if (answer.expiresAt !== now + ttlMillis) return `the session ends at ${answer.expiresAt}, not ${ttlMillis} ms on`
    if (repeated) {
      known.expiresAt = now + ttlMillis
      return answer.sessionId === known.sessionId ? undefined : `one open, two sessions: ${answer.sessionId}`
    }
    if (this.#sessions.has(answer.sessionId)) return `${answer.sessionId} was opened twice`
    const session = { sessionId: answer.sessionId, ownerId, ttlMillis, expiresAt: now + ttlMillis, closed: false }
    this.#sessions.set(session.sessionId, session)
    this.#openIds.set(name, session)
    return undefined
  }

  #session(op: string, sessionId: string, ownerId: string, failure: string | undefined, now: number) {
    const session = this.#sessions.get(sessionId)
    const alive = session !== undefined && session.ownerId === ownerId && sessionLives(session, now)
    if (failure !== undefined) return alive ? `${op} of a live session was answered ${failure}` : undefined
    if (!alive) return `${op} of the dead session ${sessionId} went well`
    if (op === "heartbeat") session.expiresAt = now + session.ttlMillis
    else {
      session.closed = true
      this.#tell("session_ended", now, null, null, session)
    }
    return undefined
  }

  #granted(request: AcquireRequest, grant: LockGrant, now: number): string | undefined {
    const { acquireId, key, ownerId, sessionId, ttlMillis } = request
    const attempt = attemptOf(request)
    const state = this.#key(key)
    const before = this.#attempts.get(attempt)
    if (before !== undefined) {
      const { holder } = state
      const live = holder?.token === before && lives(holder, now)
      if (!live) return `attempt ${acquireId} was granted again after its grant ${before} had ended`
      return grant.token === before ? undefined : `one attempt was granted ${before} and ${grant.token}`
    }
    const session = this.#sessions.get(sessionId)
    if (session === undefined || session.ownerId !== ownerId || !sessionLives(session, now)) {
      return `granted to the dead session ${sessionId}`
    }
    const held = state.holder
    const problem =
      held !== undefined && lives(held, now)
        ? `token ${grant.token} was granted while ${held.token} is live for another ${held.expiresAt - now} ms`
        : grant.token <= state.last
          ? `token ${grant.token} was granted after ${state.last}`
          : grant.expiresAt !== now + ttlMillis
            ? `the lease ends at ${grant.expiresAt}, not ${ttlMillis} ms on`
            : undefined
    if (held !== undefined && !lives(held, now)) this.#lapsed(key, held)
    state.last = grant.token > state.last ? grant.token : state.last
    state.holder = { token: grant.token, session, attempt, expiresAt: now + ttlMillis }
    this.#attempts.set(attempt, grant.token)
    this.#grants.set(grant.token, state.holder)
    this.#tell("granted", now, key, grant.token, session, state.holder.expiresAt)
    return problem
  }

  #refused(request: AcquireRequest, failure: string, now: number): string | undefined {
    const { holder } = this.#key(request.key)
    const live = holder !== undefined && lives(holder, now)
    const session = this.#sessions.get(request.sessionId)
    const sessionAlive = session !== undefined && session.ownerId === request.ownerId && sessionLives(session, now)
    switch (failure) {
      case "LockContended":
        if (!live) return "contended, but the key is free"
        return holder.attempt === attemptOf(request) ? "told to contend with itself" : undefined
      case "LockLost":
        return this.#attempts.has(attemptOf(request)) ? undefined : "a new attempt was answered LockLost"
      default:
        return sessionAlive ? `acquire under a live session was answered ${failure}` : undefined
    }
  }

  #own(
    { key, op, ownerId, token, ttlMillis }: Extract<LockCommit, { readonly op: "renew" | "release" }>,
    failure: string | undefined,
    value: unknown,
    now: number
  ): string | undefined {
    const state = this.#key(key)
    const { holder } = state
    const own = holder?.token === token && holder.session.ownerId === ownerId && lives(holder, now)
    if (failure !== undefined) return own ? `${op} of the live grant ${token} was answered ${failure}` : undefined
    if (!own) return `${op} under ${token} went well, but ${holder?.token ?? "nothing"} is the grant`
    if (op === "release") {
      state.holder = undefined
      this.#tell("released", now, key, token as FencingToken, holder.session)
      return undefined
    }
    const { expiresAt, token: answered } = value as LockGrant
    if (answered !== token) {
      // Follow the store, so that one fault is told of once.
      state.holder = { ...holder, token: answered }
      return `renew of ${token} answered ${answered}`
    }
    holder.expiresAt = Math.max(holder.expiresAt, now + ttlMillis)
    return expiresAt === holder.expiresAt ? undefined : `renewed until ${expiresAt}, not ${holder.expiresAt}`
  }

  #revoked(request: RevokeRequest, failure: string | undefined, value: unknown, now: number): string | undefined {
    const state = this.#key(request.key)
    const { holder } = state
    const live = holder !== undefined && lives(holder, now)
    const name = `${request.key} ${request.revocationId}`
    const before = this.#revocations.get(name)
    if (failure === "FencedOut") {
      return live && request.expectedToken === holder.token ? "the expected token was refused" : undefined
    }
    if (failure !== undefined) return live && before === undefined ? `revoke was answered ${failure}` : undefined
    const { newTokenFloor, revokedToken } = value as RevokedGrant
    if (before !== undefined) return revokedToken === before ? undefined : "a repeated revoke hit another grant"
    if (!live || revokedToken !== holder.token) return `revoked ${revokedToken}, which is not the live grant`
    if (newTokenFloor < revokedToken) return `the floor ${newTokenFloor} is below the revoked ${revokedToken}`
    state.holder = undefined
    state.last = newTokenFloor > state.last ? newTokenFloor : state.last
    this.#revocations.set(name, revokedToken)
    this.#tell("revoked", now, request.key, revokedToken, holder.session)
    return undefined
  }

  #key(key: string): KeyModel {
    let state = this.#keys.get(key)
    if (state === undefined) this.#keys.set(key, (state = { last: 0n, holder: undefined }))
    return state
  }

  #tell(
    kind: LockEvent["kind"],
    at: number,
    key: string | null,
    token: FencingToken | null,
    { ownerId, sessionId }: SessionModel,
    expiresAt: number | null = null
  ): void {
    this.events.push({ kind, at, key, token, sessionId, ownerId, expiresAt })
  }

  /** It ended by itself some time ago: by its lease or with its session, whichever was first. */
  #lapsed(key: string, { expiresAt, session, token }: HolderModel): void {
    // that of a closed session is in the audit already
    if (session.closed) return
    if (session.expiresAt < expiresAt) this.#tell("session_ended", session.expiresAt, null, null, session)
    else this.#tell("expired", expiresAt, key, token, session)
  }
}

const attemptOf = ({ acquireId, key, sessionId }: AcquireRequest): string => `${sessionId} ${key} ${acquireId}`

const sessionLives = (session: SessionModel, now: number): boolean => !session.closed && now < session.expiresAt

const lives = (holder: HolderModel, now: number): boolean => now < holder.expiresAt && sessionLives(holder.session, now)

const tagOf = (failure: unknown): string =>
  typeof failure === "object" && failure !== null && "_tag" in failure ? String(failure._tag) : String(failure)
