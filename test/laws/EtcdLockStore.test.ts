/**
 * The laws on real etcd. They mostly wait for leases to run out, so all of them run side by side, each with a store below
 * a prefix of its own: a sweep tells what ended only once, and must not tell it to another law.
 */
import { beforeAll, describe, it } from "@effect/vitest"
import { Deferred, Effect, Exit, Scope } from "effect"
import * as EtcdCluster from "../../src/harness/EtcdCluster.ts"
import * as EmbeddedEtcd from "../../src/services/platform/EmbeddedEtcd.ts"
import { freshStore, lawWorld } from "../support/etcd.ts"
import { laws, runLiveLaw } from "./LockStoreLaws.ts"

const AT_ONCE = 4

const settings = {
  "EtcdLockStore on one etcd": Effect.map(EmbeddedEtcd.start({ storage: { kind: "temporary" }, fast: true }), (one) => [
    one.endpoint
  ]),
  "EtcdLockStore on three": Effect.map(EtcdCluster.start({ fast: true }), ({ endpoints }) => endpoints)
}

const suites = Object.entries(settings).map(([name, start]) => ({
  name,
  start,
  verdicts: new Map(laws.map((law) => [law, Deferred.makeUnsafe<void, unknown>()]))
}))

beforeAll(() => {
  const scope = Scope.makeUnsafe()
  const judge = Effect.fnUntraced(function* ({ start, verdicts }: (typeof suites)[number]) {
    const endpoints = yield* start
    yield* Effect.forEach(
      verdicts,
      ([law, verdict]) =>
        runLiveLaw(law, lawWorld(endpoints[0] ?? "")).pipe(
          Effect.provide(freshStore({ endpoints, timeoutMillis: 20_000 }), { local: true }),
          Effect.exit,
          Effect.flatMap((exit) => Deferred.done(verdict, exit))
        ),
      { concurrency: AT_ONCE }
    ).pipe(Effect.forkScoped)
  })
  return Effect.forEach(suites, judge, { concurrency: 2 }).pipe(
    Scope.provide(scope),
    Effect.as(() => Effect.runPromise(Scope.close(scope, Exit.void))),
    Effect.runPromise
  )
})

for (const { name, verdicts } of suites) {
  describe(name, () => {
    for (const [law, verdict] of verdicts) it.live(law.name, () => Deferred.await(verdict), 120_000)
  })
}
