/**
 * The lock store on etcd. What lies there is described in `EtcdLayout.ts`.
 *
 * - **Acquire** is one transaction: nobody holds the key, my session lives, this id was not granted yet; then the grant is
 *   put under a lease of its own, and the revision is the token. The look before it decides nothing: it keeps contenders
 *   from writing and from taking leases.
 * - **A renewal** never puts: that would change the revision, and so the token. It keeps the lease alive first and then
 *   looks whether the key is still ours; the other way round a revoke in between would be answered as a success.
 * - **The term.** A leader that was deposed and does not know it yet answers keep-alives, but its successor counts the lease
 *   from its own election. So an answer about a lease counts only with a linearizable look in the same term:
 *
 *       t0  leader A is cut off, B is elected and counts every lease anew
 *       t1  A answers a keep-alive: "15 s from t1"     (term 7)
 *       t2  B answers the look: the key is yours       (term 8: ask again)
 *
 *   In one term there is one leader, and it was still the leader when it answered the look.
 * - **Doubt.** A repeated write finds what its first try has done: an acquire its id, a release or revoke the name of the
 *   call. Nobody is contended by himself.
 * - **What ended by itself** is told by the sweep: whoever's transaction removes `held` (or `opened`) tells it, nobody else.
 *   An instance that dies between the two never tells it; nothing but a log line and a metric depends on it.
 */
import { Effect, Layer, type Scope } from "effect"
import type { IKeyValue } from "etcd3"
import type { AcquireId, FencingToken, LockGrant, LockKey, OwnerId, SessionId } from "../../core/lock/Lock.ts"
import {
  backendUnavailable,
  FencedOut,
  LockContended,
  LockLost,
  LockNotFound,
  SessionExpired,
  SessionUnknown
} from "../../core/lock/LockErrors.ts"
import { type AcquireRequest, LockStore, type RevokeRequest } from "../../core/lock/LockStore.ts"
import type { Budget, EtcdOutage, EtcdOptions, EtcdTooOld, Lease, LeaseGone } from "./EtcdClient.ts"
import * as EtcdClient from "./EtcdClient.ts"
import {
  exists,
  found,
  type GrantEnd,
  leaseOf,
  put,
  range,
  readAcquired,
  readEnded,
  readOpened,
  readRevocation,
  readSession,
  readStored,
  remove,
  revisionIs,
  sessionOf,
  type Stored,
  tokenOf
} from "./EtcdLayout.ts"
import * as EtcdRecords from "./EtcdRecords.ts"
import {
  expiryToShow,
  floorOf,
  heldMillis,
  isGrant,
  knowFloor,
  knownExpiry,
  look,
  makeState,
  operation,
  remember,
  type State,
  type StateOptions
} from "./EtcdState.ts"
import * as EtcdSweep from "./EtcdSweep.ts"

export interface EtcdLockStoreOptions extends EtcdOptions, StateOptions {}

/** Fails only when the cluster answers and is too old; while it does not answer, so do the operations. */
export const make = Effect.fnUntraced(function* (
  options: EtcdLockStoreOptions
): Effect.fn.Return<LockStore["Service"], EtcdTooOld, Scope.Scope> {
  const client = yield* EtcdClient.make(options)
  const state = yield* makeState(client, options)
  yield* Effect.flatMap(client.budget(options.timeoutMillis), client.checkVersions).pipe(
    Effect.catchTag("EtcdOutage", ({ message }) =>
      Effect.logWarning("etcd does not answer yet").pipe(Effect.annotateLogs({ reason: message }))
    )
  )
  return LockStore.of({
    openSession: ({ openId, ownerId, ttlMillis }) =>
      operation(state, "openSession", (budget) => openSession(state, { openId, ownerId, ttlMillis }, budget)),
    heartbeat: (sessionId, ownerId) =>
      operation(state, "heartbeat", (budget) => heartbeat(state, sessionId, ownerId, budget)),
    closeSession: (sessionId, ownerId) =>
      operation(state, "closeSession", (budget) => closeSession(state, sessionId, ownerId, budget)),
    tryAcquire: (request) => operation(state, "tryAcquire", (budget) => tryAcquire(state, request, budget)),
    renew: (key, ownerId, token) => operation(state, "renew", (budget) => renew(state, key, ownerId, token, budget)),
    release: (key, ownerId, token) =>
      operation(state, "release", (budget) => release(state, key, ownerId, token, budget)),
    revoke: (request) => operation(state, "revoke", (budget) => revoke(state, request, budget)),
    inspect: (key) => operation(state, "inspect", (budget) => EtcdRecords.inspect(state, key, budget)),
    record: (key) => operation(state, "record", (budget) => EtcdRecords.record(state, key, budget)),
    records: (page) => operation(state, "records", (budget) => EtcdRecords.records(state, page, budget)),
    sessions: (page) => operation(state, "sessions", (budget) => EtcdRecords.sessions(state, page, budget)),
    ping: operation(state, "ping", (budget) => Effect.asVoid(look(state, [state.at.floor], budget))),
    changes: EtcdRecords.changes(state),
    sweep: operation(state, "sweep", (budget) => EtcdSweep.sweep(state, budget))
  })
})

export const layer = (options: EtcdLockStoreOptions): Layer.Layer<LockStore, EtcdTooOld> =>
  Layer.effect(LockStore, make(options))

type Doubt = EtcdOutage | LeaseGone

/** It may have been applied: what it names may be in use. */
const isUnknown = (failure: Doubt) => failure._tag === "EtcdOutage" && failure.effect === "unknown"

/** How often a call starts over because somebody else was faster, before it says that it could not decide. */
const ROUNDS = 8

const undecided = (name: string) => backendUnavailable(name, "the lock changed faster than it could be read")

// -----------------------------------------------------------------------------
// sessions
// -----------------------------------------------------------------------------

const openSession = Effect.fnUntraced(function* (
  state: State,
  { openId, ownerId, ttlMillis }: Parameters<LockStore["Service"]["openSession"]>[0],
  budget: Budget
) {
  const { at, client, leases } = state
  const open = at.open(ownerId, openId)
  for (let round = 0; round < ROUNDS; round++) {
    const openedAt = state.now()
    const lease = yield* leases.grant(ttlMillis, budget)
    const sessionId = sessionOf(lease.id)
    const value = { ownerId, openId, ttlMillis: lease.ttlMillis }
    const { value: answer } = yield* client
      .txn(
        {
          compare: [revisionIs(open, "0")],
          success: [
            put(open, { sessionId }, lease.id),
            put(at.session(sessionId), value, lease.id),
            put(at.opened(sessionId), value)
          ],
          failure: [range(open)]
        },
        budget
      )
      .pipe(Effect.tapError((failure) => (isUnknown(failure) ? Effect.void : leases.finish(lease.id))))
    const before = answer.succeeded ? sessionId : readOpened(found(answer)[0])?.sessionId
    if (before === sessionId) {
      state.owners.set(sessionId, ownerId)
      return { sessionId, ownerId, ttlMillis: lease.ttlMillis, expiresAt: openedAt + lease.ttlMillis }
    }
    yield* leases.finish(lease.id)
    if (before === undefined) continue
    // The repeat counts from its own sending, so the session has to last that long.
    const kept = yield* Effect.option(heartbeat(state, before, ownerId, budget))
    if (kept._tag === "Some") return kept.value
  }
  return yield* undecided("openSession")
})

const heartbeat = Effect.fnUntraced(function* (state: State, sessionId: SessionId, ownerId: OwnerId, budget: Budget) {
  const { client } = state
  const lease = leaseOf(sessionId)
  if (lease === undefined) return yield* new SessionUnknown({ sessionId })
  // Who is not its owner does not keep it alive; the owner of a session never changes.
  if (state.owners.get(sessionId) === undefined) yield* liveSession(state, sessionId, ownerId, budget)
  if (state.owners.get(sessionId) !== ownerId) return yield* new SessionUnknown({ sessionId })
  for (let round = 0; round < ROUNDS; round++) {
    const sentAt = state.now()
    const alive = yield* client.keepAlive(lease, budget)
    const { term } = yield* liveSession(state, sessionId, ownerId, budget)
    if (alive === null || alive.term !== term) continue
    return { sessionId, ownerId, ttlMillis: alive.ttlMillis, expiresAt: sentAt + alive.ttlMillis }
  }
  return yield* undecided("heartbeat")
})

const liveSession = Effect.fnUntraced(function* (
  state: State,
  sessionId: SessionId,
  ownerId: OwnerId,
  budget: Budget
): Effect.fn.Return<
  { readonly openId: AcquireId; readonly revision: string; readonly term: string },
  SessionUnknown | SessionExpired | Doubt
> {
  const { value } = yield* look(state, sessionKeys(state, sessionId), budget)
  const [kv, opened, expired] = found(value)
  const session = readSession(kv)
  if (kv === undefined || session?.ownerId !== ownerId) {
    return yield* sessionFailure(sessionId, ownerId, kv, opened, expired)
  }
  state.owners.set(sessionId, ownerId)
  return { openId: session.openId, revision: kv.mod_revision, term: value.header.raft_term }
})

const sessionKeys = ({ at }: State, sessionId: SessionId) => [
  at.session(sessionId),
  at.opened(sessionId),
  at.expired(sessionId)
]

/** `opened` without its session, or what the sweep made of it: it ended by itself. A closed one leaves nothing. */
const sessionFailure = (
  sessionId: SessionId,
  ownerId: OwnerId,
  session: IKeyValue | undefined,
  opened: IKeyValue | undefined,
  expired: IKeyValue | undefined
) =>
  session === undefined && (readSession(opened) ?? readSession(expired))?.ownerId === ownerId
    ? new SessionExpired({ sessionId })
    : new SessionUnknown({ sessionId })

/** Its grants are free by this alone: whoever looks at them looks at their session. The sweep ends and tells them. */
const closeSession = Effect.fnUntraced(function* (
  state: State,
  sessionId: SessionId,
  ownerId: OwnerId,
  budget: Budget
) {
  const { at, client, leases } = state
  const lease = leaseOf(sessionId)
  if (lease === undefined) return yield* new SessionUnknown({ sessionId })
  const { openId, revision } = yield* liveSession(state, sessionId, ownerId, budget)
  const { repeated, value } = yield* client
    .txn(
      {
        compare: [revisionIs(at.session(sessionId), revision)],
        success: [remove(at.session(sessionId)), remove(at.opened(sessionId)), remove(at.open(ownerId, openId))],
        failure: sessionKeys(state, sessionId).map(range)
      },
      budget
    )
    .pipe(Effect.onError(() => leases.finishIfGone(lease, at.session(sessionId), revision)))
  if (!value.succeeded) {
    const [session, opened, expired] = found(value)
    const failure = sessionFailure(sessionId, ownerId, session, opened, expired)
    // Our first try may have closed it; then it left nothing.
    if (!repeated || failure._tag === "SessionExpired") return yield* failure
  }
  state.owners.delete(sessionId)
  yield* leases.finish(lease)
})

// -----------------------------------------------------------------------------
// acquire
// -----------------------------------------------------------------------------

const tryAcquire = Effect.fnUntraced(function* (state: State, request: AcquireRequest, budget: Budget) {
  const { at, client, leases, memory, shortMemory } = state
  const { acquireId, key, ownerId, sessionId, ttlMillis } = request
  const acquired = at.acquire(sessionId, key, acquireId)
  const keys = [...sessionKeys(state, sessionId), acquired, at.lock(key), at.held(key), at.floor]

  /** The lease for the grant, and whether a transaction that may have been applied put something under it. */
  let lease: Lease | undefined
  let used = false

  const attempt = Effect.gen(function* () {
    let floor = yield* knowFloor(state, budget)
    let { value: view } = yield* look(state, keys, budget)
    for (let round = 0; round < ROUNDS; round++) {
      const [session, opened, expired, before, lock, held] = found(view)
      if (readSession(session)?.ownerId !== ownerId) {
        return yield* sessionFailure(sessionId, ownerId, session, opened, expired)
      }
      const holder = readStored(lock)
      const isOwn = holder?.grant.sessionId === sessionId && holder.grant.acquireId === acquireId
      if (before !== undefined || isOwn) {
        used = holder !== undefined && holder.lease === lease?.id
        const again = yield* answerAgain(state, request, before, view, budget)
        if (again !== undefined) return again
        view = (yield* look(state, keys, budget)).value
        continue
      }
      if (lock !== undefined && (holder === undefined || (yield* isAlive(state, holder, sessionId, budget)))) {
        const expiresAt = holder === undefined ? null : yield* expiryToShow(state, key, holder, budget)
        return yield* new LockContended({
          key,
          outcome: "HELD_BY_OTHER",
          holderOwnerId: holder?.grant.ownerId ?? null,
          holderExpiresAt: expiresAt,
          retryAfterMillis: Math.min(1_000, Math.max(1, (expiresAt ?? 0) - state.now()))
        })
      }
      if (floor.foreign) return yield* backendUnavailable("tryAcquire", "token_floor")

      const grantedAt = state.now()
      lease ??= yield* leases.grant(ttlMillis, budget)
      const { offset } = floor
      const grant = { sessionId, ownerId, acquireId, ttlMillis: lease.ttlMillis, grantedAt, offset }
      // The grant before, whose end nobody has told yet, ends here at the latest.
      const last = readStored(held)
      const end = holder === undefined ? "expired" : "session"
      const ids = yield* memory.lease(1, budget)
      const ends = last === undefined ? undefined : yield* shortMemory.lease(1, budget)
      // From here on: should the call be given up, its fate is unknown.
      used = true
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
              put(at.lock(key), grant, lease.id),
              put(at.held(key), grant),
              put(acquired, { offset }, ids),
              ...(last === undefined
                ? []
                : [put(at.ended(key, last.token), { ownerId: last.grant.ownerId, end, by: state.callName() }, ends)])
            ],
            failure: keys.map(range)
          },
          budget
        )
        .pipe(
          Effect.tapError((failure) => Effect.sync(() => (used = isUnknown(failure)))),
          // Without its session the grant before is free, whoever gets the key now.
          Effect.ensuring(holder === undefined ? Effect.void : leases.finish(holder.lease))
        )
      const isGranted = value.succeeded || (repeated && readStored(found(value)[4])?.lease === lease.id)
      if (isGranted && last !== undefined) tell(state, key, last, end)
      used = isGranted
      if (value.succeeded) {
        const stored = {
          grant,
          revision: value.header.revision,
          token: tokenOf(value.header.revision, offset),
          lease: lease.id
        }
        const expiresAt = grantedAt + lease.ttlMillis
        remember(state, key, stored, expiresAt)
        return answerOf(key, stored, expiresAt, lease.ttlMillis)
      }
      floor = state.floor = floorOf(value, 6) ?? floor
      view = value
    }
    return yield* undecided("tryAcquire")
  })

  return yield* Effect.ensuring(
    attempt,
    Effect.suspend(() => (lease === undefined || used ? Effect.void : leases.finish(lease.id)))
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
  const { at, client, leases } = state
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
    // Less than a second is nothing to work with, and a definite end is better than a grant that dies on the way.
    yield* leases.finish(holder.lease)
    return yield* new LockLost({ key, token: holder.token, reason: "expired" })
  }
  if (before === undefined) return undefined
  const token = tokenOf(before.create_revision, readAcquired(before)?.offset ?? "0")
  return yield* lost(state, key, ownerId, token, budget)
})

// -----------------------------------------------------------------------------
// renew, release, revoke
// -----------------------------------------------------------------------------

const renew = Effect.fnUntraced(function* (
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

const release = Effect.fnUntraced(function* (
  state: State,
  key: LockKey,
  ownerId: OwnerId,
  token: FencingToken,
  budget: Budget
) {
  const { at, client, leases } = state
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
    .pipe(Effect.onError(() => leases.finishIfGone(own.lease, at.lock(key), own.revision)))
  const isOurs = value.succeeded || (repeated && readEnded(found(value)[0])?.by === by)
  if (!isOurs) return yield* lost(state, key, ownerId, token, budget)
  state.grants.delete(key)
  yield* leases.finish(own.lease)
  return { heldMillis: Math.max(0, state.now() - own.grant.grantedAt) }
})

const revoke = Effect.fnUntraced(function* (state: State, request: RevokeRequest, budget: Budget) {
  const { at, client, leases } = state
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
      if (done.by === by && tried !== undefined) yield* leases.finish(tried.lease)
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
      .pipe(Effect.onError(() => leases.finishIfGone(holder.lease, at.lock(key), holder.revision)))
    if (value.succeeded) {
      state.grants.delete(key)
      yield* leases.finish(holder.lease)
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
