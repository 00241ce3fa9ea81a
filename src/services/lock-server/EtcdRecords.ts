/**
 * What others see of the locks on etcd: inspection, the operators' lists, and the stream of changes.
 */
import { Deferred, Effect, Queue, Stream } from "effect"
import type { IKeyValue } from "etcd3"
import type { LockInfo, LockKey, Session, SessionId } from "../../core/lock/Lock.ts"
import { LockNotFound } from "../../core/lock/LockErrors.ts"
import type { LockChange, LockRecord, Page } from "../../core/lock/LockStore.ts"
import { type Budget, type EtcdOutage, type LeaseGone, rangeEnd } from "./EtcdClient.ts"
import { exists, found, leaseOf, readRevocation, readSeen, readSession, readStored } from "./EtcdLayout.ts"
import { expiryToShow, look, type State } from "./EtcdState.ts"

type Doubt = EtcdOutage | LeaseGone

// -----------------------------------------------------------------------------
// one key
// -----------------------------------------------------------------------------

export const inspect = (state: State, key: LockKey, budget: Budget): Effect.Effect<LockInfo, LockNotFound | Doubt> =>
  Effect.map(lastGrant(state, key, budget), ({ expiresAt, held, ownerId }) => ({
    key,
    held,
    holderOwnerId: held ? ownerId : null,
    expiresAt: held ? expiresAt : null
  }))

export const record = (state: State, key: LockKey, budget: Budget): Effect.Effect<LockRecord, LockNotFound | Doubt> =>
  Effect.zipWith(
    lastGrant(state, key, budget),
    lastRevocation(state, key, budget),
    (grant, revocation) => ({ ...grant, lastRevocation: revocation }),
    { concurrent: true }
  )

/** The live one, else the one that ended last. */
const lastGrant = Effect.fnUntraced(function* (
  state: State,
  key: LockKey,
  budget: Budget
): Effect.fn.Return<Omit<LockRecord, "lastRevocation">, LockNotFound | Doubt> {
  const { at, client } = state
  const { value } = yield* look(state, [at.lock(key), at.held(key), at.seen(key)], budget)
  const [lock, held, seen] = found(value)
  const stored = readStored(lock) ?? readStored(held)
  const ended = readSeen(seen)
  if (stored === undefined) {
    if (ended === undefined) return yield* new LockNotFound({ key })
    const { acquireId, grantedAt, ownerId, sessionId, token, ttlMillis } = ended
    const expiresAt = grantedAt + ttlMillis
    return { key, held: false, token, ownerId, sessionId, acquireId, grantedAt, expiresAt }
  }
  const { acquireId, grantedAt, ownerId, sessionId } = stored.grant
  const session = yield* client.txn({ compare: [exists(at.session(sessionId))] }, budget)
  return {
    key,
    held: lock !== undefined && session.value.succeeded,
    token: stored.token,
    ownerId,
    sessionId,
    acquireId,
    grantedAt,
    expiresAt: yield* expiryToShow(state, key, stored, budget)
  }
})

const lastRevocation = ({ at, client }: State, key: LockKey, budget: Budget) => {
  const prefix = at.revocation(key, "")
  return Effect.map(
    client.txn(
      {
        success: [
          {
            request_range: {
              key: Buffer.from(prefix),
              range_end: rangeEnd(prefix),
              sort_order: "Descend",
              sort_target: "Create",
              limit: 1
            }
          }
        ]
      },
      budget
    ),
    ({ value }) => {
      const last = readRevocation(found(value)[0])
      return last === undefined ? null : { operator: last.operator, reason: last.reason, at: last.at }
    }
  )
}

// -----------------------------------------------------------------------------
// lists
// -----------------------------------------------------------------------------

export const records = Effect.fnUntraced(function* (
  state: State,
  page: Page,
  budget: Budget
): Effect.fn.Return<ReadonlyArray<LockRecord>, Doubt> {
  const { at } = state
  const held = yield* pageOf(state, at.held(""), page, budget)
  const seen = yield* pageOf(state, at.seen(""), page, budget)
  const keys = [...new Set([...held, ...seen].map(([key]) => key))].sort(byBytes).slice(0, page.limit)
  const rows = yield* Effect.forEach(
    keys,
    (key) =>
      // Forgotten since the list was read.
      Effect.catchTag(record(state, key as LockKey, budget), "LockNotFound", () => Effect.void),
    { concurrency: 16 }
  )
  return rows.filter((row) => row !== undefined)
})

export const sessions = Effect.fnUntraced(function* (
  state: State,
  page: Page,
  budget: Budget
): Effect.fn.Return<ReadonlyArray<Session>, Doubt> {
  const rows = yield* pageOf(state, state.at.session(""), page, budget)
  return yield* Effect.forEach(
    rows.flatMap(([id, kv]) => {
      const session = readSession(kv)
      return session === undefined ? [] : [{ sessionId: id as SessionId, ...session }]
    }),
    ({ ownerId, sessionId, ttlMillis }) =>
      Effect.map(state.client.remaining(leaseOf(sessionId) ?? "0", budget), (millis) => ({
        sessionId,
        ownerId,
        ttlMillis,
        expiresAt: state.now() + (millis ?? 0)
      })),
    { concurrency: 16 }
  )
})

/** Names after `page.after` that start with `page.prefix`, in order. */
const pageOf = ({ client }: State, space: string, { after, limit, prefix }: Page, budget: Budget) => {
  const first = byBytes(prefix, after) > 0 ? space + prefix : `${space}${after}\0`
  const end = rangeEnd(space + prefix)
  if (Buffer.compare(Buffer.from(first), end) >= 0) return Effect.succeed([])
  return Effect.map(
    client.txn({ success: [{ request_range: { key: Buffer.from(first), range_end: end, limit } }] }, budget),
    ({ value }) =>
      (value.responses[0]?.response_range.kvs ?? []).map((kv): readonly [string, IKeyValue] => [
        kv.key.toString().slice(space.length),
        kv
      ])
  )
}

const byBytes = (a: string, b: string) => Buffer.compare(Buffer.from(a), Buffer.from(b))

// -----------------------------------------------------------------------------
// changes
// -----------------------------------------------------------------------------

const AGAIN_MILLIS = 250

/**
 * Deletions of locks and sessions as one member sees them. The watch is set up again, at whichever member answers, when
 * it ends, when that member falls silent (the connection notices within 8 s), or when calls have moved on to another;
 * `null` says so, and that something may have been missed.
 */
export const changes = (state: State): Stream.Stream<LockChange> =>
  Stream.callback<LockChange>((queue) =>
    Effect.gen(function* () {
      const { at, client } = state
      const ended = yield* Queue.unbounded<string>()
      yield* Effect.forkScoped(tellGrantsOf(state, ended, queue))
      return yield* Effect.scoped(
        Effect.gen(function* () {
          const over = yield* Deferred.make<void>()
          yield* client.watchDeletes([at.lock(""), at.session("")], {
            started: () => Queue.offerUnsafe(queue, { key: null }),
            deleted: (name) => {
              if (name.startsWith(at.lock(""))) {
                Queue.offerUnsafe(queue, { key: name.slice(at.lock("").length) as LockKey })
              } else {
                Queue.offerUnsafe(ended, name.slice(at.session("").length))
              }
            },
            ended: () => Deferred.doneUnsafe(over, Effect.void)
          })
          yield* Deferred.await(over)
        })
      ).pipe(Effect.ignore, Effect.andThen(Effect.sleep(AGAIN_MILLIS)), Effect.forever)
    })
  )

/** A session that ended has freed the keys of its grants, which are still there. */
const tellGrantsOf = (state: State, ended: Queue.Dequeue<string>, queue: Queue.Enqueue<LockChange>) =>
  Effect.gen(function* () {
    const ids = new Set(yield* Queue.takeAll(ended))
    const space = state.at.held("")
    const freed = yield* Effect.flatMap(state.client.budget(state.timeoutMillis), (budget) =>
      state.client.txn(
        { success: [{ request_range: { key: Buffer.from(space), range_end: rangeEnd(space) } }] },
        budget
      )
    ).pipe(
      Effect.map(({ value }): ReadonlyArray<LockKey | null> =>
        (value.responses[0]?.response_range.kvs ?? [])
          .filter((kv) => ids.has(readStored(kv)?.grant.sessionId ?? ""))
          .map((kv) => kv.key.toString().slice(space.length) as LockKey)
      ),
      Effect.orElseSucceed((): ReadonlyArray<LockKey | null> => [null])
    )
    for (const key of freed) Queue.offerUnsafe(queue, { key })
  }).pipe(Effect.forever)
