/**
 * Grants on etcd: acquired, renewed, released and revoked, each by one transaction that compares what it depends on.
 */
import { Effect } from "effect"
import type { IKeyValue } from "etcd3"
import type { FencingToken, LockGrant, LockKey, OwnerId, SessionId } from "../../core/lock/Lock.ts"
import { backendUnavailable, FencedOut, LockContended, LockLost, LockNotFound } from "../../core/lock/LockErrors.ts"
import type { AcquireRequest, RevokeRequest } from "../../core/lock/LockStore.ts"
import type { Budget } from "./EtcdClient.ts"
import {
  exists,
  found,
  type GrantEnd,
  put,
  range,
  readAcquired,
  readEnded,
  readRevocation,
  readSession,
  readStored,
  remove,
  revisionIs,
  type Stored,
  tokenOf
} from "./EtcdLayout.ts"
import type { GrantLease } from "./EtcdLeasesAhead.ts"
import { sessionFailure, sessionKeys } from "./EtcdSessions.ts"
import {
  type Doubt,
  endedHere,
  expiryToShow,
  floorOf,
  forget,
  heldMillis,
  isGrant,
  isUnknown,
  knowFloor,
  knownExpiry,
  look,
  remember,
  ROUNDS,
  type State,
  undecided
} from "./EtcdState.ts"

// -----------------------------------------------------------------------------
// acquire
// -----------------------------------------------------------------------------

/**
 * Whether the transaction may come without a look before it: as far as this instance knows nobody holds the key, and the
 * session is the caller's. A guess: the transaction decides, and when it finds the key held it has looked as well.
 */
const looksFree = ({ contended, grants, now, sessions }: State, { key, ownerId, sessionId }: AcquireRequest) =>
  contended.get(key) === undefined &&
  (grants.get(key)?.expiresAt ?? 0) <= now() &&
  // No transaction compares the owner of a session, who never changes.
  sessions.get(sessionId)?.ownerId === ownerId

export const tryAcquire = Effect.fnUntraced(function* (state: State, request: AcquireRequest, budget: Budget) {
  const { ahead, at, client, memory, shortMemory } = state
  const { acquireId, key, ownerId, sessionId, ttlMillis } = request
  const acquired = at.acquire(sessionId, key, acquireId)
  const lookAround = Effect.suspend(() =>
    look(state, [...sessionKeys(state, sessionId), acquired, at.lock(key), at.held(key), at.floor], budget)
  )

  /** The lease for the grant, whether it may be in use, and whether no transaction that may have been applied named it. */
  let lease: GrantLease | undefined
  let inUse = false
  let isNew = true
  const takeLease = Effect.uninterruptible(
    Effect.suspend(() =>
      lease === undefined
        ? Effect.map(ahead.take(ttlMillis, budget), (taken) => (lease = taken))
        : Effect.succeed(lease)
    )
  )

  const attempt = Effect.gen(function* () {
    let floor = yield* knowFloor(state, budget)
    let view = looksFree(state, request) ? undefined : (yield* lookAround).value
    for (let round = 0; round < ROUNDS; round++) {
      const [session, opened, expired, before, lock, held] = view === undefined ? [] : found(view)
      const holder = readStored(lock)
      if (view !== undefined) {
        if (readSession(session)?.ownerId !== ownerId) {
          return yield* sessionFailure(sessionId, ownerId, session, opened, expired)
        }
        if (state.sessions.get(sessionId) === undefined)
          state.sessions.set(sessionId, { ownerId, expiresAt: undefined })
        const isOwn = holder?.grant.sessionId === sessionId && holder.grant.acquireId === acquireId
        if (before !== undefined || isOwn) {
          inUse = holder !== undefined && holder.lease === lease?.id
          const again = yield* answerAgain(state, request, before, view, budget)
          if (again !== undefined) return again
          view = (yield* lookAround).value
          continue
        }
        if (lock !== undefined && (holder === undefined || (yield* isAlive(state, holder, sessionId, budget)))) {
          const expiresAt = holder === undefined ? null : yield* expiryToShow(state, key, holder, budget)
          state.contended.set(key, true)
          return yield* new LockContended({
            key,
            outcome: "HELD_BY_OTHER",
            holderOwnerId: holder?.grant.ownerId ?? null,
            holderExpiresAt: expiresAt,
            retryAfterMillis: Math.min(1_000, Math.max(1, (expiresAt ?? 0) - state.now()))
          })
        }
      }
      if (floor.foreign) return yield* backendUnavailable("tryAcquire", "token_floor")

      const own = yield* takeLease
      const grantedAt = state.now()
      const kept = ahead.remainingMillis(own)
      const { offset } = floor
      const grant = { sessionId, ownerId, acquireId, ttlMillis: kept, grantedAt, offset }
      // The grant before, whose end nobody has told yet, ends here at the latest.
      const last = readStored(held)
      const end = holder === undefined ? "expired" : "session"
      const ids = yield* memory.lease(1, budget)
      const ends = last === undefined ? undefined : yield* shortMemory.lease(1, budget)
      const written = Buffer.from(JSON.stringify(grant))
      // From here on: should the call be given up, its fate is unknown.
      inUse = true
      const { repeated, value } = yield* client
        .txn(
          {
            compare: [
              revisionIs(at.lock(key), lock?.mod_revision ?? "0"),
              revisionIs(at.held(key), held?.mod_revision ?? "0"),
              exists(at.session(sessionId)),
              revisionIs(acquired, "0"),
              revisionIs(at.floor, floor.revision),
              ...(holder === undefined ? [] : [revisionIs(at.session(holder.grant.sessionId), "0")])
            ],
            success: [
              put(at.lock(key), written, own.id),
              put(at.held(key), written),
              put(acquired, { offset }, ids),
              ...(last === undefined
                ? []
                : [put(at.ended(key, last.token), { ownerId: last.grant.ownerId, end, by: state.callName() }, ends)])
            ]
          },
          budget
        )
        .pipe(
          Effect.tapError((failure) =>
            Effect.sync(() => {
              inUse = isUnknown(failure)
              isNew = false
            })
          )
        )
      if (repeated) isNew = false
      if (value.succeeded) {
        const stored = {
          grant,
          revision: value.header.revision,
          token: tokenOf(value.header.revision, offset),
          lease: own.id
        }
        const expiresAt = grantedAt + kept
        if (last !== undefined) tell(state, key, last, end)
        if (holder !== undefined) yield* endedHere(state, key, holder)
        remember(state, key, stored, expiresAt, own)
        state.contended.delete(key)
        return answerOf(key, stored, expiresAt, kept)
      }
      if (!repeated) inUse = false
      view = (yield* lookAround).value
      inUse = repeated && readStored(found(view)[4])?.lease === own.id
      if (inUse && last !== undefined) tell(state, key, last, end)
      floor = state.floor = floorOf(view, 6) ?? floor
    }
    return yield* undecided("tryAcquire")
  })

  return yield* Effect.ensuring(
    attempt,
    Effect.suspend(() => {
      if (lease === undefined || inUse) return Effect.void
      return isNew ? ahead.giveBack(lease) : state.leases.finish(lease.id)
    })
  )
})

const answerOf = (key: LockKey, { grant, token }: Stored, expiresAt: number, ttlMillis: number): LockGrant => ({
  key,
  token,
  ownerId: grant.ownerId,
  sessionId: grant.sessionId,
  grantedAt: grant.grantedAt,
  expiresAt,
  ttlMillis
})

const isAlive = ({ at, client }: State, { grant }: Stored, own: SessionId, budget: Budget) =>
  grant.sessionId === own
    ? Effect.succeed(true)
    : Effect.map(client.txn({ compare: [exists(at.session(grant.sessionId))] }, budget), ({ value }) => value.succeeded)

const tell = (state: State, key: LockKey, stored: Stored, end: "expired" | "session") =>
  state.untold.push({
    key,
    token: stored.token,
    ownerId: stored.grant.ownerId,
    heldMillis: heldMillis(state, key, stored, end),
    end
  })

/** The id was granted before: the same answer while that grant lives. Undefined: it changed meanwhile, look again. */
const answerAgain = Effect.fnUntraced(function* (
  state: State,
  { key, ownerId }: AcquireRequest,
  before: IKeyValue | undefined,
  view: Parameters<typeof found>[0],
  budget: Budget
): Effect.fn.Return<LockGrant | undefined, LockLost | Doubt> {
  const { at, client } = state
  const holder = readStored(found(view)[4])
  if (holder !== undefined && (before === undefined || holder.revision === before.create_revision)) {
    const remaining = yield* client.remaining(holder.lease, budget)
    const { value } = yield* client.txn(
      { compare: [revisionIs(at.lock(key), holder.revision)], success: [], failure: [] },
      budget
    )
    if (!value.succeeded || value.header.raft_term !== view.header.raft_term) return undefined
    if (remaining !== null && remaining > 0) {
      const now = state.now()
      const known = knownExpiry(state, key, holder)
      // The lease says it to the second. What was said first is said again, if the two can both be true.
      const agrees = known > now + remaining - 250 && known < now + remaining + 1_250
      const expiresAt = agrees ? known : now + remaining
      remember(state, key, holder, expiresAt)
      return answerOf(key, holder, expiresAt, remaining)
    }
    // Less than a second is nothing to work with, and a definite end is better than a grant that dies on the way. The
    // sweep finds `held` alone and tells that it has expired.
    const gone = yield* client.txn(
      { compare: [revisionIs(at.lock(key), holder.revision)], success: [remove(at.lock(key))] },
      budget
    )
    if (!gone.value.succeeded) return undefined
    yield* endedHere(state, key, holder)
    return yield* new LockLost({ key, token: holder.token, reason: "expired" })
  }
  if (before === undefined) return undefined
  const token = tokenOf(before.create_revision, readAcquired(before)?.offset ?? "0")
  return yield* lost(state, key, ownerId, token, budget)
})

// -----------------------------------------------------------------------------
// renew, release, revoke
// -----------------------------------------------------------------------------

export const renew = Effect.fnUntraced(function* (
  state: State,
  key: LockKey,
  ownerId: OwnerId,
  token: FencingToken,
  budget: Budget
) {
  const { at, client } = state
  const own = yield* ownGrant(state, key, ownerId, token, budget)
  for (let round = 0; round < ROUNDS; round++) {
    const sentAt = state.now()
    const alive = yield* client.keepAlive(own.lease, budget)
    const { value } = yield* look(state, [at.lock(key), at.session(own.grant.sessionId)], budget)
    const [lock, session] = found(value)
    if (lock?.mod_revision !== own.revision || session === undefined)
      return yield* lost(state, key, ownerId, token, budget)
    if (alive === null || alive.term !== value.header.raft_term) continue
    const expiresAt = Math.max(knownExpiry(state, key, own), sentAt + alive.ttlMillis)
    remember(state, key, own, expiresAt)
    return answerOf(key, own, expiresAt, alive.ttlMillis)
  }
  return yield* undecided("renew")
})

/** What `token` names, if that is or was a grant of `ownerId`. Whether it lives the transaction after this decides. */
const ownGrant = Effect.fnUntraced(function* (
  state: State,
  key: LockKey,
  ownerId: OwnerId,
  token: FencingToken,
  budget: Budget
) {
  const known = state.grants.get(key)
  if (isGrant(known?.stored, ownerId, token)) return known.stored
  const { value } = yield* look(state, [state.at.lock(key)], budget)
  const stored = readStored(found(value)[0])
  if (isGrant(stored, ownerId, token)) return stored
  return yield* lost(state, key, ownerId, token, budget)
})

const lost = Effect.fnUntraced(function* (
  state: State,
  key: LockKey,
  ownerId: OwnerId,
  token: FencingToken,
  budget: Budget
): Effect.fn.Return<never, LockLost | Doubt> {
  const { at } = state
  forget(state, key, ownerId, token)
  const { value } = yield* look(state, [at.ended(key, token), at.held(key), at.lock(key)], budget)
  const [ended, held, lock] = found(value)
  const told = readEnded(ended)
  if (told?.ownerId === ownerId) return yield* new LockLost({ key, token, reason: told.end })
  const reason = !isGrant(readStored(held), ownerId, token)
    ? "superseded"
    : // Not told yet, so it ended by itself; with the lease still there it can only be the session.
      lock === undefined
      ? "expired"
      : "session"
  return yield* new LockLost({ key, token, reason })
})

/** What is written when a grant ends: by whom, and for whom to read. */
const ending = (state: State, key: LockKey, { grant, token }: Stored, end: GrantEnd, by: string, budget: Budget) =>
  Effect.gen(function* () {
    const { at, memory, shortMemory } = state
    const seen = yield* memory.lease(1, budget)
    const ends = yield* shortMemory.lease(1, budget)
    return [
      remove(at.lock(key)),
      remove(at.held(key)),
      put(at.seen(key), { ...grant, token: String(token) }, seen),
      put(at.ended(key, token), { ownerId: grant.ownerId, end, by }, ends)
    ]
  })

/** Whether it is this call that has ended the grant. */
const hasEnded = (state: State, key: LockKey, token: FencingToken, by: string) => (budget: Budget) =>
  Effect.map(look(state, [state.at.ended(key, token)], budget), ({ value }) => readEnded(found(value)[0])?.by === by)

export const release = Effect.fnUntraced(function* (
  state: State,
  key: LockKey,
  ownerId: OwnerId,
  token: FencingToken,
  budget: Budget
) {
  const { at, client } = state
  const own = yield* ownGrant(state, key, ownerId, token, budget)
  const by = state.callName()
  const { repeated, value } = yield* client
    .txn(
      {
        compare: [revisionIs(at.lock(key), own.revision), exists(at.session(own.grant.sessionId))],
        success: yield* ending(state, key, own, "released", by, budget),
        failure: [range(at.ended(key, token))]
      },
      budget
    )
    .pipe(Effect.onError(() => state.leases.finishIf(own.lease, hasEnded(state, key, token, by))))
  const isOurs = value.succeeded || (repeated && readEnded(found(value)[0])?.by === by)
  if (!isOurs) return yield* lost(state, key, ownerId, token, budget)
  yield* endedHere(state, key, own)
  return { heldMillis: Math.max(0, state.now() - own.grant.grantedAt) }
})

export const revoke = Effect.fnUntraced(function* (state: State, request: RevokeRequest, budget: Budget) {
  const { at, client } = state
  const { expectedToken, key, operator, reason, revocationId } = request
  const revocation = at.revocation(key, revocationId)
  const by = state.callName()
  let tried: Stored | undefined
  let floor = yield* knowFloor(state, budget)
  for (let round = 0; round < ROUNDS; round++) {
    const { value: view } = yield* look(state, [revocation, at.lock(key)], budget)
    const [before, lock] = found(view)
    const done = readRevocation(before)
    const holder = readStored(lock)
    if (before !== undefined && done !== undefined) {
      // Our own first try, whose answer was lost, has ended it.
      if (done.by === by && tried !== undefined) yield* endedHere(state, key, tried)
      return {
        key,
        revokedToken: BigInt(done.token) as FencingToken,
        newTokenFloor: tokenOf(before.create_revision, done.offset),
        revocationId,
        heldMillis: done.by === by ? Math.max(0, state.now() - done.grantedAt) : null
      }
    }
    if (holder === undefined) return yield* new LockNotFound({ key })
    if (!(yield* isAlive(state, holder, "" as SessionId, budget))) return yield* new LockNotFound({ key })
    if (expectedToken !== undefined && expectedToken !== holder.token) {
      const presented = expectedToken
      return yield* new FencedOut({ point: "lock", op: "revoke", resource: key, presented, highest: holder.token })
    }
    if (floor.foreign) return yield* backendUnavailable("revoke", "token_floor")
    tried = holder
    const { grantedAt } = holder.grant
    const revokedAt = state.now()
    const { offset } = floor
    const { value } = yield* client
      .txn(
        {
          compare: [
            revisionIs(at.lock(key), holder.revision),
            exists(at.session(holder.grant.sessionId)),
            revisionIs(revocation, "0"),
            revisionIs(at.floor, floor.revision)
          ],
          success: [
            ...(yield* ending(state, key, holder, "revoked", by, budget)),
            put(revocation, { operator, reason, at: revokedAt, token: String(holder.token), offset, grantedAt, by })
          ],
          failure: [range(at.floor)]
        },
        budget
      )
      .pipe(Effect.onError(() => state.leases.finishIf(holder.lease, hasEnded(state, key, holder.token, by))))
    if (value.succeeded) {
      yield* endedHere(state, key, holder)
      return {
        key,
        revokedToken: holder.token,
        newTokenFloor: tokenOf(value.header.revision, offset),
        revocationId,
        heldMillis: Math.max(0, revokedAt - grantedAt)
      }
    }
    floor = state.floor = floorOf(value, 0) ?? floor
  }
  return yield* undecided("revoke")
})
