/** `tokens floor` on etcd: tokens that went back are found and taken above every fence, a strange cluster is taken over. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Redacted } from "effect"
import { AcquireId, LockKey, OwnerId } from "../../../src/core/lock/Lock.ts"
import * as EtcdLockStore from "../../../src/services/lock-server/EtcdLockStore.ts"
import * as EmbeddedEtcd from "../../../src/services/platform/EmbeddedEtcd.ts"
import * as Pg from "../../../src/services/platform/Pg.ts"
import { etcdClient } from "../../support/etcd.ts"
import { document } from "../../support/operator.ts"
import { TestDatabase } from "../../support/pg.ts"

/** All that the command reads of paydb. */
const floorOnly = (url: Redacted.Redacted) =>
  Effect.scoped(
    Effect.gen(function* () {
      const sql = yield* Pg.make({ url, applicationName: "test", maxConnections: 1 })
      yield* sql`CREATE SCHEMA pay`
      yield* sql`CREATE VIEW pay.token_floor AS SELECT 5000::int8 AS floor`
    })
  )

const granter = Effect.fnUntraced(function* (endpoint: string, life: string) {
  const store = yield* EtcdLockStore.make({ endpoints: [endpoint], timeoutMillis: 5_000 })
  const ownerId = OwnerId.make("w1")
  const key = LockKey.make("payout:acct-1")
  const { sessionId } = yield* store.openSession({ openId: AcquireId.make(`${life}-open`), ownerId, ttlMillis: 60_000 })
  let calls = 0
  return Effect.gen(function* () {
    const acquireId = AcquireId.make(`${life}-${++calls}`)
    const { token } = yield* store.tryAcquire({ acquireId, key, ownerId, sessionId, ttlMillis: 60_000 })
    yield* store.release(key, ownerId, token)
    return token
  })
})

describe("tokens floor on etcd", () => {
  it.layer(TestDatabase.layer("floor", floorOnly), { excludeTestServices: true })((it) => {
    it.effect("finds tokens that went back, raises them once, and the service that runs grants above them", () =>
      Effect.gen(function* () {
        const { endpoint } = yield* EmbeddedEtcd.start({ storage: { kind: "temporary" }, fast: true })
        const { url } = yield* TestDatabase
        const environment = {
          LOCK_BACKEND: "etcd",
          LOCK_ETCD_ENDPOINTS: endpoint,
          PAYMENT_PG_URL: Redacted.value(url)
        }
        const floor = (...more: ReadonlyArray<string>) => document(["tokens", "floor", ...more], environment)
        const grant = yield* granter(endpoint, "before")
        const low = yield* grant
        assert.isTrue(low < 5_000n)
        const found = yield* document(["tokens", "floor"], environment, 5)
        assert.deepStrictEqual([found["safe"], found["foreign"], found["floor"]], [false, false, "5000"])

        const raised = yield* floor("--raise", "--yes")
        assert.deepStrictEqual([raised["safe"], raised["raised"]], [true, true])
        const high = yield* grant
        // Also above what was granted and never presented to a fence.
        assert.isTrue(high > 1_000_000_000n)
        assert.strictEqual((yield* floor("--raise", "--yes"))["raised"], false)
        assert.isTrue((yield* grant) - high < 100n, "raised again, although nothing was wrong")

        // What a snapshot is restored to: the same keys, another cluster.
        const etcd = yield* etcdClient(endpoint)
        const kept = String(yield* Effect.promise(() => etcd.get("/dlock/floor").string()))
        const strange = kept.replace(/"clusterId":"[0-9]+"/, '"clusterId":"1"')
        assert.notStrictEqual(strange, kept)
        yield* Effect.promise(() => etcd.put("/dlock/floor").value(strange).exec())
        const started = yield* granter(endpoint, "restored")
        const refused = yield* Effect.flip(started)
        assert.strictEqual(refused._tag, "BackendUnavailable")
        if (refused._tag === "BackendUnavailable") assert.match(refused.cause, /^token_floor/)
        assert.strictEqual((yield* document(["tokens", "floor"], environment, 5))["foreign"], true)
        const taken = yield* floor("--raise", "--yes")
        assert.deepStrictEqual([taken["safe"], taken["foreign"], taken["raised"]], [true, false, true])
        assert.isTrue((yield* started) > high)
      })
    )
  })
})
