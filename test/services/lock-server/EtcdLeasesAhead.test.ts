import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Exit, Fiber, Scope } from "effect"
import { TestClock } from "effect/testing"
import { AcquireId, LockKey, OwnerId } from "../../../src/core/lock/Lock.ts"
import { type EtcdClient, EtcdOutage } from "../../../src/services/lock-server/EtcdClient.ts"
import * as EtcdLeases from "../../../src/services/lock-server/EtcdLeases.ts"
import * as EtcdLeasesAhead from "../../../src/services/lock-server/EtcdLeasesAhead.ts"
import * as EtcdLockStore from "../../../src/services/lock-server/EtcdLockStore.ts"
import * as EmbeddedEtcd from "../../../src/services/platform/EmbeddedEtcd.ts"
import { etcdClient, leases } from "../../support/etcd.ts"
import { waitUntil } from "../../support/waitUntil.ts"

const OUTAGE = new EtcdOutage({ effect: "none", noLeader: false, message: "down" })

/** etcd as far as leases go: which of them there are, and which were ever granted. */
const makeScene = Effect.gen(function* () {
  const granted: Array<string> = []
  const alive = new Map<string, number>()
  const calls = { revokes: 0, down: false }
  const gate = { current: undefined as Deferred.Deferred<void> | undefined }
  const client = {
    budget: () => Effect.succeed({ endsAt: 0n }),
    grantLease: (id: string, ttlMillis: number) =>
      Effect.suspend(() => {
        if (calls.down) return Effect.fail(OUTAGE)
        granted.push(id)
        const seconds = Math.ceil(ttlMillis / 1_000)
        alive.set(id, seconds)
        const answer = Effect.succeed({ id, ttlMillis: seconds * 1_000 })
        return gate.current === undefined ? answer : Effect.andThen(Deferred.await(gate.current), answer)
      }),
    revokeLease: (id: string) =>
      Effect.sync(() => {
        calls.revokes++
        assert.isTrue(alive.delete(id), "a lease is revoked once")
      })
  } as unknown as EtcdClient
  const all = yield* EtcdLeases.makeLeases(client)
  const ahead = yield* EtcdLeasesAhead.make(all)
  const take = (ttlMillis = 15_000) => Effect.uninterruptible(ahead.take(ttlMillis, { endsAt: 0n }))
  /** What is done in the background is done. */
  const settled = TestClock.adjust(0)
  return { ahead, all, alive, calls, gate, granted, settled, take }
})

/** The clock goes on while the scope closes. */
const close = (scope: Scope.Closeable) =>
  Effect.gen(function* () {
    const closing = yield* Effect.forkChild(Scope.close(scope, Exit.void))
    yield* TestClock.adjust(1_000)
    yield* Fiber.join(closing)
  })

const inScene = <A, E>(test: (scene: Effect.Success<typeof makeScene>) => Effect.Effect<A, E>) =>
  Effect.gen(function* () {
    const scope = yield* Scope.make()
    return yield* Effect.ensuring(Effect.flatMap(Scope.provide(makeScene, scope), test), close(scope))
  })

describe("EtcdLeasesAhead", () => {
  it.effect("who comes alone leaves no lease behind, and to a crowd each lease is given once", () =>
    inScene(
      Effect.fnUntraced(function* ({ alive, granted, settled, take }) {
        yield* take()
        yield* settled
        assert.strictEqual(granted.length, 1)
        yield* TestClock.adjust(5_000)
        yield* take()
        yield* settled
        assert.strictEqual(granted.length, 2)
        const taken = new Set<string>()
        for (let i = 0; i < 100; i++) {
          taken.add((yield* take()).id)
          yield* TestClock.adjust(2)
        }
        assert.strictEqual(taken.size, 100)
        // The first of them found none.
        assert.isAtLeast(granted.length, 103)
        assert.isAtMost(alive.size - 102, 16)
      })
    )
  )

  it.effect("what nobody takes is revoked in little more than a second, and what was taken is not", () =>
    inScene(
      Effect.fnUntraced(function* ({ alive, settled, take }) {
        const taken: Array<string> = []
        for (let i = 0; i < 20; i++) taken.push((yield* take()).id)
        yield* settled
        assert.isAbove(alive.size, taken.length)
        yield* TestClock.adjust(1_500)
        assert.sameMembers([...alive.keys()], taken)
      })
    )
  )

  it.effect("a lease is promised for what remains of it, and when too little remains another one is granted", () =>
    inScene(
      Effect.fnUntraced(function* ({ ahead, alive, granted, settled, take }) {
        for (const [ttlMillis, ageMillis] of [
          [15_000, 700],
          [2_000, 90]
        ] as const) {
          yield* take(ttlMillis)
          yield* take(ttlMillis)
          yield* settled
          const before = granted.length
          yield* TestClock.adjust(ageMillis)
          const lease = yield* take(ttlMillis)
          assert.isTrue(granted.slice(0, before).includes(lease.id))
          assert.strictEqual(ahead.remainingMillis(lease), ttlMillis - ageMillis)
        }
        yield* settled
        const known = new Set(granted)
        yield* TestClock.adjust(110)
        const fresh = yield* take(2_000)
        assert.isFalse(known.has(fresh.id))
        assert.strictEqual(ahead.remainingMillis(fresh), 2_000)
        yield* TestClock.adjust(250)
        assert.isTrue(alive.has(fresh.id))
      })
    )
  )

  it.effect("no lease serves another ttl than its own", () =>
    inScene(
      Effect.fnUntraced(function* ({ alive, settled, take }) {
        for (let i = 0; i < 10; i++) {
          yield* settled
          assert.strictEqual(alive.get((yield* take(3_000)).id), 3)
          assert.strictEqual(alive.get((yield* take(2_500)).id), 3)
          assert.strictEqual(alive.get((yield* take(30_000)).id), 30)
        }
      })
    )
  )

  it.effect("a lease that comes back from its grant serves the next, until too little of it remains", () =>
    inScene(
      Effect.fnUntraced(function* ({ ahead, alive, calls, granted, settled, take }) {
        const used = new Map<string, number>()
        for (let i = 0; i < 1_000; i++) {
          const lease = yield* take()
          assert.isAtLeast(ahead.remainingMillis(lease), 14_250)
          used.set(lease.id, (used.get(lease.id) ?? 0) + 1)
          yield* TestClock.adjust(1)
          yield* ahead.giveBack(lease)
        }
        // None lasts longer than 750 ms, and one or two are enough for one who comes again and again.
        assert.isAtMost(granted.length, 8)
        assert.isAtLeast(Math.max(...used.values()), 100)
        const late = yield* take()
        yield* TestClock.adjust(800)
        yield* ahead.giveBack(late)
        yield* TestClock.adjust(2_000)
        yield* settled
        assert.strictEqual(alive.size, 0)
        assert.strictEqual(calls.revokes, granted.length)
      })
    )
  )

  it.effect("what comes back unused is given to the next, and what was doubted of is forgotten and revoked", () =>
    inScene(
      Effect.fnUntraced(function* ({ ahead, alive, take }) {
        const unused = yield* take()
        yield* ahead.giveBack(unused)
        assert.strictEqual((yield* take()).id, unused.id)
        yield* ahead.giveBack(unused)
        yield* ahead.forget
        yield* TestClock.adjust(250)
        assert.isFalse(alive.has(unused.id))
      })
    )
  )

  it.effect("while etcd is down a failure is told, and nothing is left on the way", () =>
    inScene(
      Effect.fnUntraced(function* ({ alive, calls, settled, take }) {
        yield* take()
        yield* take()
        yield* settled
        calls.down = true
        // What is there already is still of use.
        yield* take()
        yield* settled
        assert.strictEqual((yield* Effect.flip(take()))._tag, "EtcdOutage")
        calls.down = false
        yield* take()
        yield* TestClock.adjust(2_000)
        assert.strictEqual(alive.size, 4)
      })
    )
  )

  it.effect("whoever gives up while a lease is granted leaves it to be revoked, and so does the end of the store", () =>
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      const { alive, gate, settled, take } = yield* Scope.provide(makeScene, scope)
      const own = yield* take()
      gate.current = Deferred.makeUnsafe()
      const waiting = yield* Effect.forkChild(take())
      yield* settled
      yield* Fiber.interrupt(waiting)
      yield* Deferred.succeed(gate.current, undefined)
      gate.current = undefined
      yield* take()
      yield* settled
      assert.isAbove(alive.size, 2)
      yield* close(scope)
      assert.strictEqual(alive.size, 2)
      assert.isTrue(alive.has(own.id))
    })
  )

  it.effect("finished leases are revoked together: at once when they are many, soon when they are few", () =>
    inScene(
      Effect.fnUntraced(function* ({ all, calls, settled, take }) {
        const finish = (count: number) =>
          Effect.forEach(Array.from({ length: count }), () => Effect.flatMap(take(), ({ id }) => all.finish(id)))
        yield* finish(15)
        yield* settled
        assert.strictEqual(calls.revokes, 0)
        yield* finish(1)
        yield* settled
        assert.strictEqual(calls.revokes, 16)
        yield* finish(1)
        yield* TestClock.adjust(199)
        assert.strictEqual(calls.revokes, 16)
        yield* TestClock.adjust(1)
        assert.strictEqual(calls.revokes, 17)
      })
    )
  )

  it.live("a busy store leaves as many leases as there are grants, and a wrong guess costs none", () =>
    Effect.gen(function* () {
      const server = yield* EmbeddedEtcd.start({ storage: { kind: "temporary" }, fast: true })
      const etcd = yield* etcdClient(server.endpoint)
      const options = { endpoints: [server.endpoint], timeoutMillis: 5_000 }
      const [store, other] = [yield* EtcdLockStore.make(options), yield* EtcdLockStore.make(options)]
      const ownerId = OwnerId.make("w1")
      const session = (of: typeof store, name: string) =>
        of.openSession({ ownerId, ttlMillis: 60_000, openId: AcquireId.make(name) })
      const { sessionId } = yield* session(store, "one")
      const acquire = (client: number, n: number, ttlMillis: number) =>
        store.tryAcquire({
          key: LockKey.make(`k${client}`),
          ownerId,
          sessionId,
          ttlMillis,
          acquireId: AcquireId.make(`${client}-${n}`)
        })
      const held: Array<LockKey> = []
      const used = new Set<string>()
      yield* Effect.forEach(
        Array.from({ length: 16 }, (_, i) => i),
        (client) =>
          Effect.gen(function* () {
            for (let n = 0; n < 12; n++) {
              const ttlMillis = n % 3 === 0 ? 30_000 : 60_000
              const grant = yield* acquire(client, n, ttlMillis)
              const { lease } = yield* Effect.promise(() =>
                etcd.kv.range({ key: Buffer.from(`/dlock/lock/${grant.key}`) })
              ).pipe(Effect.map(({ kvs }) => kvs[0] ?? { lease: "none" }))
              const { keys } = yield* Effect.promise(() => etcd.leaseClient.leaseTimeToLive({ ID: lease, keys: true }))
              assert.deepStrictEqual(
                keys.map(String),
                [`/dlock/lock/${grant.key}`],
                "a lease serves one grant at a time"
              )
              used.add(lease)
              assert.isAtLeast(grant.ttlMillis, ttlMillis * 0.95)
              assert.isAtMost(grant.ttlMillis, ttlMillis)
              if (n === 11 && client % 2 === 0) held.push(grant.key)
              else yield* store.release(grant.key, ownerId, grant.token)
            }
          }),
        { concurrency: "unbounded", discard: true }
      )
      assert.isAtMost(used.size, 80, "of 192 grants most had a lease of a grant before")
      const stranger = yield* session(other, "two")
      for (const key of held) {
        const refused = yield* Effect.flip(other.tryAcquire({ ...stranger, key, acquireId: AcquireId.make(key) }))
        assert.strictEqual(refused._tag, "LockContended")
      }
      yield* waitUntil(
        "two sessions and the grants, besides what two stores remember for minutes",
        Effect.map(leases(etcd), (all) => {
          const keys = all.filter(({ grantedSeconds }) => grantedSeconds < 100).map((one) => one.keys.join())
          const of = (prefix: string) => keys.filter((one) => one.includes(prefix)).length
          return of("/dlock/lock/") === held.length && of("/dlock/session/") === 2 && !keys.includes("")
        })
      )
    })
  )
})
