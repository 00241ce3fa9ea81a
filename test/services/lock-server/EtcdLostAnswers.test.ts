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
  it.live(
    "every write ends with the truth or as unknown, its repeat gives the first answer, and no lease is left",
    () =>
      Effect.gen(function* () {
        const server = yield* EmbeddedEtcd.start({ storage: { kind: "temporary" }, fast: true })
        const lost = yield* Effect.forEach(
          Object.entries(writes),
          ([name, write]) =>
            world(server, `/lossy-${name}/`, 800).pipe(
              Effect.flatMap((lossy) => loseEach(lossy, name, write)),
              Effect.scoped,
              Effect.map((result) => `${name} ${result.lost}, of which unknown ${result.unknown}`)
            ),
          { concurrency: 7 }
        )
        yield* Effect.logInfo(`answers lost: ${lost.join("; ")}`)
        const etcd = yield* etcdClient(server.endpoint)
        yield* waitUntil(
          "the lease of every session and grant is revoked",
          Effect.map(leases(etcd), (all) => all.every(({ grantedSeconds }) => grantedSeconds > REMEMBERING_SECONDS))
        )
      }),
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
