/**
 * Sessions on etcd: opened under a lease that a heartbeat keeps alive, ended by closing or with the lease.
 */
import { Effect } from "effect"
import type { IKeyValue } from "etcd3"
import type { AcquireId, OwnerId, SessionId } from "../../core/lock/Lock.ts"
import { SessionExpired, SessionUnknown } from "../../core/lock/LockErrors.ts"
import type { OpenSession } from "../../core/lock/LockStore.ts"
import type { Budget } from "./EtcdClient.ts"
import { found, leaseOf, put, range, readOpened, readSession, remove, revisionIs, sessionOf } from "./EtcdLayout.ts"
import { type Doubt, isUnknown, look, ROUNDS, type State, undecided } from "./EtcdState.ts"

export const openSession = Effect.fnUntraced(function* (
  state: State,
  { openId, ownerId, ttlMillis }: OpenSession,
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
      const expiresAt = openedAt + lease.ttlMillis
      state.sessions.set(sessionId, { ownerId, expiresAt })
      return { sessionId, ownerId, ttlMillis: lease.ttlMillis, expiresAt }
    }
    yield* leases.finish(lease.id)
    if (before === undefined) continue
    // The repeat counts from its own sending, so the session has to last that long.
    const kept = yield* Effect.option(heartbeat(state, before, ownerId, budget))
    if (kept._tag === "Some") return kept.value
  }
  return yield* undecided("openSession")
})

export const heartbeat = Effect.fnUntraced(function* (
  state: State,
  sessionId: SessionId,
  ownerId: OwnerId,
  budget: Budget
) {
  const { client } = state
  const lease = leaseOf(sessionId)
  if (lease === undefined) return yield* new SessionUnknown({ sessionId })
  // Who is not its owner does not keep it alive; the owner of a session never changes.
  if (state.sessions.get(sessionId) === undefined) yield* liveSession(state, sessionId, ownerId, budget)
  if (state.sessions.get(sessionId)?.ownerId !== ownerId) return yield* new SessionUnknown({ sessionId })
  for (let round = 0; round < ROUNDS; round++) {
    const sentAt = state.now()
    const alive = yield* client.keepAlive(lease, budget)
    const { term } = yield* liveSession(state, sessionId, ownerId, budget)
    if (alive === null || alive.term !== term) continue
    const expiresAt = sentAt + alive.ttlMillis
    state.sessions.set(sessionId, { ownerId, expiresAt })
    return { sessionId, ownerId, ttlMillis: alive.ttlMillis, expiresAt }
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
  if (state.sessions.get(sessionId) === undefined) state.sessions.set(sessionId, { ownerId, expiresAt: undefined })
  return { openId: session.openId, revision: kv.mod_revision, term: value.header.raft_term }
})

export const sessionKeys = ({ at }: State, sessionId: SessionId) => [
  at.session(sessionId),
  at.opened(sessionId),
  at.expired(sessionId)
]

/** `opened` without its session, or what the sweep made of it: it ended by itself. A closed one leaves nothing. */
export const sessionFailure = (
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
export const closeSession = Effect.fnUntraced(function* (
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
    .pipe(Effect.onError(() => leases.finishIf(lease, isGone(state, at.session(sessionId), revision))))
  if (!value.succeeded) {
    const [session, opened, expired] = found(value)
    const failure = sessionFailure(sessionId, ownerId, session, opened, expired)
    // Our first try may have closed it; then it left nothing.
    if (!repeated || failure._tag === "SessionExpired") return yield* failure
  }
  state.sessions.delete(sessionId)
  yield* leases.finish(lease)
})

/** Whoever has closed it: the lease of a session serves nothing else. */
const isGone =
  ({ client }: State, key: string, revision: string) =>
  (budget: Budget) =>
    Effect.map(client.txn({ compare: [revisionIs(key, revision)] }, budget), ({ value }) => !value.succeeded)
