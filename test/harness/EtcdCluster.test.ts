import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as EtcdCluster from "../../src/harness/EtcdCluster.ts"
import { etcdClient } from "../support/etcd.ts"
import { waitUntil } from "../support/waitUntil.ts"

describe("EtcdCluster", () => {
  it.live(
    "another member leads when the leader is killed or paused, and what was written is there",
    () =>
      Effect.gen(function* () {
        const cluster = yield* EtcdCluster.start()
        for (const fault of ["kill", "pause"] as const) {
          const first = yield* cluster.leader
          assert.isDefined(first)
          if (first === undefined) return
          const etcd = yield* etcdClient(first.endpoint)
          yield* Effect.promise(() => etcd.put(fault).value("7").exec())
          yield* first[fault]
          yield* waitUntil(
            `another member leads after ${fault}`,
            Effect.map(cluster.leader, (now) => now !== undefined && now.name !== first.name)
          )
          const now = yield* cluster.leader
          const other = yield* etcdClient(now?.endpoint ?? "")
          assert.strictEqual(yield* Effect.promise(() => other.get(fault).string()), "7")
          yield* fault === "kill" ? first.restart : first.resume
          yield* waitUntil(
            "it follows the new leader",
            Effect.map(
              Effect.promise(() => etcd.maintenance.status().catch(() => undefined)),
              (status) => status !== undefined && status.leader !== "0" && status.leader !== status.header.member_id
            )
          )
        }
      }),
    60_000
  )
})
