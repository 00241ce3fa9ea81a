/**
 * A process that runs an embedded PostgreSQL until it is stopped, as `npm start` does; prints `{port, pid}` as JSON.
 * Argument: the directory of persistent data; none: temporary.
 */
import { NodeRuntime } from "@effect/platform-node"
import { Effect } from "effect"
import * as EmbeddedPostgres from "../../src/services/platform/EmbeddedPostgres.ts"

const directory = process.argv[2]

Effect.gen(function* () {
  const { port, pid } = yield* EmbeddedPostgres.start({
    storage: directory === undefined ? { kind: "temporary" } : { kind: "persistent", directory },
    fast: true
  })
  process.stdout.write(`${JSON.stringify({ port, pid: yield* pid })}\n`)
  return yield* Effect.never
}).pipe(Effect.scoped, NodeRuntime.runMain)
