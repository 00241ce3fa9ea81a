/** Whoever ends a grant owns its lease: nobody else revokes it, since it may serve another grant by then. */
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import type { ITxnRequest } from "etcd3"
import { AcquireId, type LockGrant, LockKey, OwnerId, type SessionId } from "../../../src/core/lock/Lock.ts"
import * as EtcdClient from "../../../src/services/lock-server/EtcdClient.ts"
import * as EtcdGrants from "../../../src/services/lock-server/EtcdGrants.ts"
import * as EtcdLockStore from "../../../src/services/lock-server/EtcdLockStore.ts"
import * as EtcdSweep from "../../../src/services/lock-server/EtcdSweep.ts"
import { makeState } from "../../../src/services/lock-server/EtcdState.ts"
import * as EmbeddedEtcd from "../../../src/services/platform/EmbeddedEtcd.ts"
import { etcdClient, leases } from "../../support/etcd.ts"
import { waitUntil } from "../../support/waitUntil.ts"

const ownerId = OwnerId.make("w1")
const [k1, k2] = [LockKey.make("k1"), LockKey.make("k2")]
const TTL = 20_000

const nothing: (request: ITxnRequest) => Effect.Effect<unknown> = () => Effect.void

/** Two instances, the second with what it says to etcd in our hands. */
const scene = Effect.gen(function* () {
  const server = yield* EmbeddedEtcd.start({ storage: { kind: "temporary" }, fast: true })
  const etcd = yield* etcdClient(server.endpoint)
  const options = { endpoints: [server.endpoint], timeoutMillis: 5_000 }
  const first = yield* EtcdLockStore.make(options)
  const client = yield* EtcdClient.make(options)
  const said = { keepAlives: 0, after: nothing, silent: false, next: undefined as LockGrant | undefined }
  const second = yield* makeState(
    {
      ...client,
      keepAlive: (id, budget) => Effect.suspend(() => (said.keepAlives++, client.keepAlive(id, budget))),
      remaining: (id, budget) => (said.silent ? Effect.succeed(null) : client.remaining(id, budget)),
      txn: (request, budget) => Effect.tap(client.txn(request, budget), () => said.after(request))
    },
    options
  )
  const open = (name: string) =>
    Effect.map(
      first.openSession({ ownerId, ttlMillis: 60_000, openId: AcquireId.make(name) }),
      ({ sessionId }) => sessionId
    )
  const request = (key: LockKey, sessionId: SessionId, id: string) => ({
    key,
    ownerId,
    sessionId,
    ttlMillis: TTL,
    acquireId: AcquireId.make(id)
  })
  const leaseOf = (key: LockKey) =>
    Effect.map(
      Effect.promise(() => etcd.kv.range({ key: Buffer.from(`/dlock/lock/${key}`) })),
      ({ kvs }) => kvs[0]?.lease
    )
  const isThere = (id: string | undefined) => Effect.map(leases(etcd), (all) => all.some((lease) => lease.id === id))
  /** What the second instance finishes it revokes in one go, so this one goes with what it has meant to revoke before. */
  const revoked = Effect.gen(function* () {
    const { id } = yield* second.leases.grant(TTL, yield* client.budget(5_000))
    yield* second.leases.finish(id)
    yield* waitUntil(
      "the second instance has revoked what it meant to",
      Effect.map(isThere(id), (there) => !there)
    )
  })
  const budget = client.budget(5_000)
  const session = yield* open("first")
  const { token } = yield* first.tryAcquire(request(k1, session, "a1"))
  const lease = yield* leaseOf(k1)
  /** The first instance acquires until the lease of k1 serves a grant again. */
  const reused = Effect.gen(function* () {
    const next = yield* open("second")
    for (let i = 0; i < 8; i++) {
      const key = LockKey.make(`next-${i}`)
      const grant = yield* first.tryAcquire(request(key, next, key))
      if ((yield* leaseOf(key)) !== lease) continue
      said.next = grant
      return
    }
    return assert.fail("the lease serves no other grant")
  })
  /** After all that the second instance has meant to revoke. */
  const servesOn = Effect.gen(function* () {
    yield* revoked
    assert.isTrue(yield* isThere(lease))
    const next = said.next ?? assert.fail("there is no next grant")
    assert.isTrue((yield* first.inspect(next.key)).held)
    return next
  })
  return { budget, first, isThere, lease, leaseOf, open, request, reused, said, second, servesOn, session, token }
})

describe("the owner of a lease", () => {
  it.live("a lease of a grant that another instance has ended is that instance's, and is not used again", () =>
    Effect.gen(function* () {
      const { budget, first, isThere, lease, leaseOf, request, second, session, token } = yield* scene
      yield* EtcdGrants.revoke(
        second,
        { key: k1, expectedToken: undefined, operator: "op", reason: "test", revocationId: AcquireId.make("r1") },
        yield* budget
      )
      assert.strictEqual((yield* Effect.flip(first.release(k1, ownerId, token)))._tag, "LockLost")
      yield* first.tryAcquire(request(k2, session, "a2"))
      assert.notStrictEqual(yield* leaseOf(k2), lease)
      yield* waitUntil(
        "it is revoked",
        Effect.map(isThere(lease), (there) => !there)
      )
      assert.isTrue((yield* first.inspect(k2)).held)
    })
  )

  it.live("who holds on to a grant that is no more keeps the lease alive once, and ends nothing", () =>
    Effect.gen(function* () {
      const { budget, first, reused, said, second, servesOn, token } = yield* scene
      const renew = Effect.flatMap(budget, (bound) => EtcdGrants.renew(second, k1, ownerId, token, bound))
      yield* renew
      yield* first.release(k1, ownerId, token)
      yield* reused
      for (let i = 0; i < 3; i++) assert.strictEqual((yield* Effect.flip(renew))._tag, "LockLost")
      assert.strictEqual(said.keepAlives, 2)
      const release = Effect.flatMap(budget, (bound) => EtcdGrants.release(second, k1, ownerId, token, bound))
      assert.strictEqual((yield* Effect.flip(release))._tag, "LockLost")
      const { key, token: next } = yield* servesOn
      assert.strictEqual((yield* first.renew(key, ownerId, next, TTL)).token, next)
    })
  )

  it.live(
    "who finds a key whose session is gone, and comes too late for it, leaves the lease to whoever was faster",
    () =>
      Effect.gen(function* () {
        const { budget, first, open, request, reused, said, second, servesOn, session, token } = yield* scene
        const stranger = yield* open("third")
        let looked = false
        // t0 the second instance sees k1 held   t1 the first ends it, grants another under its lease, and the session closes
        said.after = ({ compare, success }) => {
          if (looked || compare !== undefined || success?.length !== 7) return Effect.void
          looked = true
          return first
            .release(k1, ownerId, token)
            .pipe(Effect.andThen(reused), Effect.andThen(first.closeSession(session, ownerId)), Effect.orDie)
        }
        second.contended.set(k1, true)
        yield* EtcdGrants.tryAcquire(second, request(k1, stranger, "b1"), yield* budget)
        assert.isTrue(looked)
        yield* servesOn
      })
  )

  it.live(
    "a sweep that finds a grant whose session is gone, and is not the first to end it, leaves the lease alone",
    () =>
      Effect.gen(function* () {
        const { budget, first, open, request, reused, said, second, servesOn, session } = yield* scene
        yield* first.closeSession(session, ownerId)
        const next = yield* open("third")
        let swept = false
        // t0 the sweep reads what has ended   t1 the first instance ends it for the next holder, and its lease serves another
        said.after = ({ success }) => {
          if (swept || success?.length !== 4) return Effect.void
          swept = true
          return Effect.orDie(Effect.andThen(first.tryAcquire(request(k1, next, "a3")), reused))
        }
        const { expiredGrants } = yield* EtcdSweep.sweep(second, yield* budget)
        assert.isTrue(swept)
        assert.deepStrictEqual(expiredGrants, [])
        yield* servesOn
      })
  )

  it.live("a grant that is all but over is ended by a transaction, and only then is its lease", () =>
    Effect.gen(function* () {
      const { budget, first, isThere, leaseOf, request, reused, said, second, servesOn, session, token } = yield* scene
      const again = Effect.flatMap(budget, (bound) =>
        Effect.flip(EtcdGrants.tryAcquire(second, request(k1, session, "a1"), bound))
      )
      let released = false
      // t0 etcd says that nothing remains, and the key is still there   t1 it is released, and the lease serves another
      said.silent = true
      said.after = ({ compare, success }) => {
        if (released || compare?.length !== 1 || success?.length !== 0) return Effect.void
        released = true
        return Effect.orDie(Effect.andThen(first.release(k1, ownerId, token), reused))
      }
      assert.strictEqual((yield* again)._tag, "LockLost")
      assert.isTrue(released)
      yield* servesOn

      yield* first.tryAcquire(request(k1, session, "a3"))
      const over = yield* leaseOf(k1)
      const end = yield* Effect.flatMap(budget, (bound) =>
        Effect.flip(EtcdGrants.tryAcquire(second, request(k1, session, "a3"), bound))
      )
      assert.strictEqual(end._tag, "LockLost")
      assert.isFalse((yield* first.inspect(k1)).held)
      yield* waitUntil(
        "its lease is revoked",
        Effect.map(isThere(over), (there) => !there)
      )
    })
  )
})
