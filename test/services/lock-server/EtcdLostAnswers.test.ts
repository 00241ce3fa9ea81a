import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as TcpFaults from "../../../src/harness/TcpFaults.ts"
import * as EtcdLockStore from "../../../src/services/lock-server/EtcdLockStore.ts"
import * as EmbeddedEtcd from "../../../src/services/platform/EmbeddedEtcd.ts"
import { etcdClient, leases } from "../../support/etcd.ts"
import { loseEach, type LossyWorld, orphanEnds, writes } from "../../support/lostAnswers.ts"
import { waitUntil } from "../../support/waitUntil.ts"

const world = (server: EmbeddedEtcd.EmbeddedEtcd, prefix: string, timeoutMillis: number) =>
  Effect.gen(function* () {
    const faults = yield* TcpFaults.start({ target: { port: server.ports.client }, answers: "http2" })
    const made: LossyWorld = {
      faults,
      lossy: yield* EtcdLockStore.make({
        endpoints: [`http://127.0.0.1:${faults.port}`],
        timeoutMillis,
        prefix
      }),
      sound: yield* EtcdLockStore.make({ endpoints: [server.endpoint], timeoutMillis: 10_000, prefix }),
      lateMillis: timeoutMillis + 300
    }
    return made
  })

/** Those under which something is remembered are granted for minutes and shared by all. */
const REMEMBERING_SECONDS = 100

describe("EtcdLockStore when answers are lost", () => {
  /** Each in a world of its own, on one server; answers how many leases of sessions and grants are left in the end. */
  const loseAll = Effect.fnUntraced(function* (names: ReadonlyArray<string>, mayStay: (unknown: number) => number) {
    const server = yield* EmbeddedEtcd.start({ storage: { kind: "temporary" }, fast: true })
    const results = yield* Effect.forEach(
      Object.entries(writes).filter(([name]) => names.includes(name)),
      ([name, write]) =>
        world(server, `/lossy-${name}/`, 800).pipe(
          Effect.flatMap((lossy) => loseEach(lossy, name, write)),
          Effect.map((result) => ({ name, ...result }))
        ),
      { concurrency: "unbounded" }
    )
    for (const { lost, name, unknown } of results) yield* Effect.logInfo(`${name}: ${lost} lost, ${unknown} unknown`)
    const etcd = yield* etcdClient(server.endpoint)
    const unknown = results.reduce((sum, result) => sum + result.unknown, 0)
    yield* waitUntil(
      "the leases of sessions and grants that ended are revoked",
      Effect.map(
        leases(etcd),
        (all) => all.filter(({ grantedSeconds }) => grantedSeconds < REMEMBERING_SECONDS).length <= mayStay(unknown)
      )
    )
  })

  it.live(
    "what ends something ends with the truth or as unknown, its repeat gives the first answer, and no lease is left",
    () => loseAll(["renew", "release", "revoke", "heartbeat", "close"], () => 0),
    90_000
  )

  it.live(
    "the same is true of what begins something; a lease is left to run out only where it may be in use",
    () => loseAll(["acquire", "open"], (unknown) => unknown),
    90_000
  )

  it.live("a grant that nobody was told of ends with its lease", () =>
    Effect.gen(function* () {
      const server = yield* EmbeddedEtcd.start({ storage: { kind: "temporary" }, fast: true })
      yield* orphanEnds(yield* world(server, "/dlock/", 4_000), 2_000, 3_000)
    })
  )

  it.live(
    "a client that takes a lost comparison for a refusal is contended by itself: what the read-back prevents",
    () =>
      Effect.gen(function* () {
        // The naive store: put if absent, once more when the answer is lost, and believe the comparison.
        const server = yield* EmbeddedEtcd.start({ storage: { kind: "temporary" }, fast: true })
        const faults = yield* TcpFaults.start({ target: { port: server.ports.client }, answers: "http2" })
        const etcd = yield* etcdClient(`http://127.0.0.1:${faults.port}`)
        yield* faults.loseAnswer({ nth: 1, how: "reset" })
        const create = Effect.tryPromise(() =>
          etcd.if("key", "Create", "==", 0).then(etcd.put("key").value("mine")).commit()
        )
        const { succeeded } = yield* Effect.retry(create, { times: 1 })
        assert.isFalse(succeeded)
        assert.strictEqual(yield* Effect.promise(() => etcd.get("key").string()), "mine")
        assert.strictEqual((yield* faults.counts).answersLost, 1)
      })
  )
})
