/**
 * The lock store on etcd. What lies there is described in `EtcdLayout.ts`.
 *
 * - **Acquire** is one transaction: nobody holds the key, my session lives, this id was not granted yet; then the grant is
 *   put under a lease, and the revision is the token. Where the key is known to be held there is a look before
 *   it, which decides nothing: it keeps contenders from writing and from taking leases.
 * - **A lease** serves one grant at a time, and comes back from a grant that this instance has ended, to serve the next one
 *   (`EtcdLeasesAhead.ts` says why that is safe). Those that are finished are revoked together.
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
 * - **What ended by itself** is told by the sweep: the one whose transaction removes `held` (or `opened`) tells it, nobody else.
 *   An instance that dies between the two never tells it; nothing but a log line and a metric depends on it.
 */
import { Effect, Layer, type Scope } from "effect"
import { LockStore } from "../../core/lock/LockStore.ts"
import type { EtcdOptions, EtcdTooOld } from "./EtcdClient.ts"
import * as EtcdBatches from "./EtcdBatches.ts"
import * as EtcdClient from "./EtcdClient.ts"
import * as EtcdGrants from "./EtcdGrants.ts"
import * as EtcdRecords from "./EtcdRecords.ts"
import * as EtcdSessions from "./EtcdSessions.ts"
import { look, makeState, operation, type StateOptions } from "./EtcdState.ts"
import * as EtcdSweep from "./EtcdSweep.ts"

export interface EtcdLockStoreOptions extends EtcdOptions, StateOptions {}

/** Fails only when the cluster answers and is too old; while it does not answer, so do the operations. */
export const make = Effect.fnUntraced(function* (
  options: EtcdLockStoreOptions
): Effect.fn.Return<LockStore["Service"], EtcdTooOld, Scope.Scope> {
  const client = yield* EtcdBatches.over(yield* EtcdClient.make(options))
  const state = yield* makeState(client, options)
  yield* Effect.flatMap(client.budget(options.timeoutMillis), client.checkVersions).pipe(
    Effect.catchTag("EtcdOutage", ({ message }) =>
      Effect.logWarning("etcd does not answer yet").pipe(Effect.annotateLogs({ reason: message }))
    )
  )
  return LockStore.of({
    openSession: ({ openId, ownerId, ttlMillis }) =>
      operation(state, "openSession", (budget) =>
        EtcdSessions.openSession(state, { openId, ownerId, ttlMillis }, budget)
      ),
    heartbeat: (sessionId, ownerId) =>
      operation(state, "heartbeat", (budget) => EtcdSessions.heartbeat(state, sessionId, ownerId, budget)),
    closeSession: (sessionId, ownerId) =>
      operation(state, "closeSession", (budget) => EtcdSessions.closeSession(state, sessionId, ownerId, budget)),
    tryAcquire: (request) => operation(state, "tryAcquire", (budget) => EtcdGrants.tryAcquire(state, request, budget)),
    renew: (key, ownerId, token) =>
      operation(state, "renew", (budget) => EtcdGrants.renew(state, key, ownerId, token, budget)),
    release: (key, ownerId, token) =>
      operation(state, "release", (budget) => EtcdGrants.release(state, key, ownerId, token, budget)),
    revoke: (request) => operation(state, "revoke", (budget) => EtcdGrants.revoke(state, request, budget)),
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
