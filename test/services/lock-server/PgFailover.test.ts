import { describe, it } from "@effect/vitest"
import { Context, Effect, Layer, Redacted } from "effect"
import { LockStore } from "../../../src/core/lock/LockStore.ts"
import * as PgPair from "../../../src/harness/PgPair.ts"
import * as TcpFaults from "../../../src/harness/TcpFaults.ts"
import * as PgLockStore from "../../../src/services/lock-server/PgLockStore.ts"
import * as Migrations from "../../../src/services/platform/Migrations.ts"
import { median, rounds, survive } from "../../support/failover.ts"

/** Most of it is the time that a server takes to promote itself, which is this machine's. Below ttl - margin. */
const LIMIT_MILLIS = 10_000

/** A pair has one failover in it. */
const round = Effect.gen(function* () {
  const pair = yield* PgPair.start()
  const url = pair.primary.url("lockdb")
  yield* Migrations.ensureDatabase({ adminUrl: pair.primary.url("postgres"), database: "lockdb" })
  yield* Migrations.migrate({ url, directory: PgLockStore.MIGRATIONS })
  // The name under which the service finds the primary, wherever that is.
  const address = yield* TcpFaults.start({ target: { port: pair.primary.port } })
  const target = new URL(Redacted.value(url))
  target.port = String(address.port)
  const layer = PgLockStore.layer({ url: Redacted.make(target.href), timeoutMillis: 2_000 })
  const store = Context.get(yield* Layer.build(layer), LockStore)
  const fault = pair.primary.kill.pipe(
    Effect.andThen(pair.promote),
    Effect.andThen(address.retarget(pair.standby.port)),
    Effect.andThen(address.reset)
  )
  return yield* survive(store, [{ name: "primary killed, standby promoted", fault, heal: Effect.void }], LIMIT_MILLIS)
}).pipe(Effect.scoped)

describe("PgLockStore without its primary", () => {
  it.live(
    "a lock is held throughout, nothing acknowledged is forgotten, no token goes back",
    () =>
      Effect.gen(function* () {
        const outages = (yield* Effect.forEach(Array.from({ length: yield* rounds }), () => round)).flat()
        yield* Effect.logInfo(
          `median ${Math.round(median(outages))} ms, longest ${Math.round(Math.max(...outages))} ms`
        )
      }),
    600_000
  )
})
