/**
 * A process that runs an embedded etcd until it is stopped, as `npm start` does; prints `{endpoint, pid}` as JSON.
 * Argument: the directory of persistent data; none: temporary.
 */
import { NodeRuntime } from "@effect/platform-node"
import { Effect } from "effect"
import * as EmbeddedEtcd from "../../src/services/platform/EmbeddedEtcd.ts"

const directory = process.argv[2]

Effect.gen(function* () {
  const { endpoint, pid } = yield* EmbeddedEtcd.start({
    storage: directory === undefined ? { kind: "temporary" } : { kind: "persistent", directory },
    fast: true
  })
  process.stdout.write(`${JSON.stringify({ endpoint, pid: yield* pid })}\n`)
  return yield* Effect.never
}).pipe(Effect.scoped, NodeRuntime.runMain)
