import { assert, describe, it } from "@effect/vitest"
import { Effect, Fiber, Redacted, Stream } from "effect"
import * as fs from "node:fs/promises"
import * as os from "node:os"
import * as path from "node:path"
import { AcquireId, LockKey, OwnerId } from "../../../src/core/lock/Lock.ts"
import type { LockStore } from "../../../src/core/lock/LockStore.ts"
import * as TcpFaults from "../../../src/harness/TcpFaults.ts"
import { isOld } from "../../../src/services/lock-server/EtcdClient.ts"
import * as EtcdLockStore from "../../../src/services/lock-server/EtcdLockStore.ts"
import * as EmbeddedEtcd from "../../../src/services/platform/EmbeddedEtcd.ts"
import { etcdClient, leases } from "../../support/etcd.ts"
import { waitUntil } from "../../support/waitUntil.ts"

const temporary = { storage: { kind: "temporary" }, fast: true } as const
const w1 = OwnerId.make("w1")
const key = LockKey.make("k")

const grant = (store: LockStore["Service"], name: string) =>
  Effect.gen(function* () {
    const { sessionId } = yield* store.openSession({ ownerId: w1, ttlMillis: 60_000, openId: AcquireId.make(name) })
    const acquireId = AcquireId.make(name)
    return yield* store.tryAcquire({ key, ownerId: w1, sessionId, ttlMillis: 60_000, acquireId })
  })

describe.concurrent("EtcdClient", () => {
  it.live("speaks TLS to a server whose certificate it can verify, and to no other", () =>
    Effect.gen(function* () {
      const directory = yield* Effect.acquireRelease(
        Effect.promise(() => fs.mkdtemp(path.join(os.tmpdir(), "dlock-test-"))),
        (made) => Effect.promise(() => fs.rm(made, { recursive: true, force: true, maxRetries: 5 }))
      )
      const ports = yield* EmbeddedEtcd.freePorts
      const endpoint = `https://127.0.0.1:${ports.client}`
      yield* EmbeddedEtcd.start({
        storage: { kind: "persistent", directory },
        ports,
        fast: true,
        flags: { "auto-tls": "true", "listen-client-urls": endpoint, "advertise-client-urls": endpoint }
      })
      const ca = yield* Effect.promise(() => fs.readFile(path.join(directory, "data/fixtures/client/cert.pem")))
      const store = yield* EtcdLockStore.make({ endpoints: [endpoint], timeoutMillis: 5_000, tls: { ca } })
      yield* grant(store, "tls")
      const stranger = yield* EtcdLockStore.make({ endpoints: [endpoint], timeoutMillis: 1_000 })
      assert.strictEqual((yield* Effect.flip(stranger.ping))._tag, "BackendUnavailable")
    })
  )

  it.live("logs in, and again when its login has become void; a wrong password is unavailable and says why", () =>
    Effect.gen(function* () {
      const server = yield* EmbeddedEtcd.start(temporary)
      const etcd = yield* etcdClient(server.endpoint)
      yield* Effect.promise(() =>
        etcd
          .role("root")
          .create()
          .then(() => etcd.user("root").create("secret"))
          .then((user) => user.addRole("root"))
          .then(() => etcd.auth.authEnable())
      )
      const options = { endpoints: [server.endpoint], username: "root" }
      const store = yield* EtcdLockStore.make({ ...options, timeoutMillis: 5_000, password: Redacted.make("secret") })
      const { token } = yield* grant(store, "auth")
      // It forgets who has logged in.
      yield* server.restart
      yield* waitUntil("the store has logged in again", Effect.isSuccess(store.ping))
      yield* store.renew(key, w1, token, 60_000)
      yield* store.release(key, w1, token)
      const wrong = yield* EtcdLockStore.make({ ...options, timeoutMillis: 5_000, password: Redacted.make("wrong") })
      const refused = yield* Effect.flip(wrong.ping)
      assert.strictEqual(refused._tag, "BackendUnavailable")
      assert.include(refused._tag === "BackendUnavailable" ? refused.cause : "", "authentication failed")
      const nobody = yield* EtcdLockStore.make({ endpoints: [server.endpoint], timeoutMillis: 1_000 })
      assert.strictEqual((yield* Effect.flip(nobody.ping))._tag, "BackendUnavailable")
    })
  )

  it.live("passes over members that are down or silent, and every call ends within its time", () =>
    Effect.gen(function* () {
      const [up, silent, down] = yield* Effect.all([
        EmbeddedEtcd.start(temporary),
        EmbeddedEtcd.start(temporary),
        EmbeddedEtcd.freePorts
      ])
      yield* silent.pause
      const dead = [silent.endpoint, `http://127.0.0.1:${down.client}`]
      const store = yield* EtcdLockStore.make({ endpoints: [...dead, up.endpoint], timeoutMillis: 2_000 })
      yield* store.ping
      const lost = yield* EtcdLockStore.make({ endpoints: dead, timeoutMillis: 700 })
      const startedAt = performance.now()
      assert.strictEqual((yield* Effect.flip(lost.ping))._tag, "BackendUnavailable")
      assert.isAtMost(performance.now() - startedAt, 2_000)
      yield* silent.resume
    })
  )

  it.live("the changes go on after the connection was lost, and say that something may have been missed", () =>
    Effect.gen(function* () {
      const server = yield* EmbeddedEtcd.start(temporary)
      const faults = yield* TcpFaults.start({ target: { port: server.ports.client }, answers: "http2" })
      const endpoints = [`http://127.0.0.1:${faults.port}`]
      const store = yield* EtcdLockStore.make({ endpoints, timeoutMillis: 5_000 })
      const seen: Array<string | null> = []
      const follower = yield* Effect.forkChild(
        Stream.runForEach(store.changes, (change) => Effect.sync(() => seen.push(change.key)))
      )
      const starts = () => seen.filter((one) => one === null).length
      yield* waitUntil(
        "the watch is in place",
        Effect.sync(() => starts() === 1)
      )
      const first = yield* grant(store, "one")
      yield* store.release(key, w1, first.token)
      yield* waitUntil(
        "the release is announced",
        Effect.sync(() => seen.includes(key))
      )
      yield* faults.cut
      yield* faults.heal
      yield* waitUntil(
        "the watch is in place again",
        Effect.sync(() => starts() === 2)
      )
      const second = yield* grant(store, "two")
      yield* store.release(key, w1, second.token)
      yield* waitUntil(
        "the second release is announced",
        Effect.sync(() => seen.filter((one) => one === key).length === 2)
      )
      yield* Fiber.interrupt(follower)
    })
  )

  it.live("as many leases as sessions and grants, and two to remember under; none is kept alive by the store", () =>
    Effect.gen(function* () {
      const server = yield* EmbeddedEtcd.start(temporary)
      const etcd = yield* etcdClient(server.endpoint)
      const store = yield* EtcdLockStore.make({ endpoints: [server.endpoint], timeoutMillis: 5_000 })
      const sessions = yield* Effect.forEach(Array.from({ length: 3 }), (_, i) =>
        store.openSession({ ownerId: w1, ttlMillis: 60_000, openId: AcquireId.make(`s${i}`) })
      )
      const acquire = (name: string, i: number) =>
        Effect.suspend(() => {
          const session = sessions[i % 3]
          assert.isDefined(session)
          return store.tryAcquire({ ...session, key: LockKey.make(name), acquireId: AcquireId.make(name) })
        })
      const grants = yield* Effect.forEach(Array.from({ length: 20 }), (_, i) => acquire(`k${i}`, i), {
        concurrency: 4
      })
      // Refused or repeated: no lease.
      yield* Effect.flip(acquire("k1", 2))
      yield* acquire("k1", 1)
      for (const one of grants.slice(0, 10)) yield* store.release(one.key, w1, one.token)
      const count = Effect.map(leases(etcd), (all) => all.length)
      yield* waitUntil(
        "3 sessions, 10 grants, 2 memories",
        Effect.map(count, (n) => n === 15)
      )
      yield* Effect.forEach(sessions, ({ sessionId }) => store.closeSession(sessionId, w1))
      yield* store.sweep
      yield* waitUntil(
        "the memories alone",
        Effect.map(count, (n) => n === 2)
      )
    })
  )

  it("3.5 is the oldest that is accepted", () => {
    for (const version of ["3.4.23", "3.0.0", "2.3.8", "x"]) assert.isTrue(isOld(version), version)
    for (const version of ["3.5.0", "3.5.16", "3.6.1", "4.0.0", "3.10.0"]) assert.isFalse(isOld(version), version)
  })
})
