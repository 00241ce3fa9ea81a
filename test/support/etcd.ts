/**
 * What tests need of etcd: a store below a prefix of its own, the law world, and a count of everything that could leak.
 */
import { noop } from "cockatiel"
import { Effect, Layer, Random } from "effect"
import { Etcd3 } from "etcd3"
import { LockStore } from "../../src/core/lock/LockStore.ts"
import * as EtcdLockStore from "../../src/services/lock-server/EtcdLockStore.ts"
import type { LawWorld } from "../laws/LockStoreLaws.ts"
import { waitUntil } from "./waitUntil.ts"

/** A plain client, without retries. */
export const etcdClient = (endpoint: string) =>
  Effect.acquireRelease(
    Effect.sync(() => new Etcd3({ hosts: endpoint, faultHandling: { global: noop, host: () => noop } })),
    (etcd) => Effect.sync(() => etcd.close())
  )

const freshPrefix = Effect.map(
  Random.nextIntBetween(0, Number.MAX_SAFE_INTEGER),
  (n) => `/dlock-test-${n.toString(36)}/`
)

/** A store that shares nothing with others on the same etcd. */
export const freshStore = (
  options: Omit<EtcdLockStore.EtcdLockStoreOptions, "timeoutMillis"> & { readonly timeoutMillis?: number }
) =>
  Layer.effect(
    LockStore,
    Effect.flatMap(freshPrefix, (prefix) => EtcdLockStore.make({ timeoutMillis: 2_000, prefix, ...options }))
  )

/** Leases of etcd, by id, with what remains of them in seconds; -1: ran out, about to be deleted. */
export const leases = (etcd: Etcd3) =>
  Effect.promise(() =>
    etcd.leaseClient
      .leaseLeases()
      .then((answer) =>
        Promise.all(answer.leases.map(({ ID }) => etcd.leaseClient.leaseTimeToLive({ ID, keys: true })))
      )
  ).pipe(
    Effect.map((found) =>
      found.map(({ ID, TTL, grantedTTL, keys }) => ({
        id: ID,
        seconds: Number(TTL),
        grantedSeconds: Number(grantedTTL),
        keys: (keys ?? []).map(String)
      }))
    )
  )

const LEASE_MILLIS = 3_000

/** etcd deletes what ran out up to half a second later: time has passed when nothing of that is left. */
export const lawWorld = (endpoint: string): LawWorld => ({
  leaseMillis: LEASE_MILLIS,
  elapse: (millis) =>
    Effect.scoped(
      Effect.gen(function* () {
        yield* Effect.sleep(millis)
        if (millis < LEASE_MILLIS) return
        const etcd = yield* etcdClient(endpoint)
        // Below a second etcd says 0, also a little after the end.
        const due = (yield* leases(etcd)).filter(({ seconds }) => seconds <= 0).map(({ id }) => id)
        yield* waitUntil(
          "what ran out is deleted",
          Effect.map(leases(etcd), (now) => !now.some(({ id, seconds }) => due.includes(id) && seconds <= 0))
        )
      })
    )
})
