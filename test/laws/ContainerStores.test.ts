/**
 * The laws of a lock store on the image that is deployed, in a container: `DLOCK_TESTCONTAINERS=1`, where Docker is there, and
 * `TESTCONTAINERS_RYUK_DISABLED=true` where its own images can not be had. Everywhere else the same laws run on the same
 * PostgreSQL without Docker.
 */
import { describe } from "@effect/vitest"
import { Config, Effect, Layer, Redacted } from "effect"
import { GenericContainer, Wait } from "testcontainers"
import * as PgLockStore from "../../src/services/lock-server/PgLockStore.ts"
import * as Migrations from "../../src/services/platform/Migrations.ts"
import { describeLockStore } from "./LockStoreLaws.ts"

const setting = (name: string, fallback: string) =>
  Effect.runSync(Config.String(name).pipe(Config.withDefault(fallback)))
const isAsked = setting("DLOCK_TESTCONTAINERS", "") === "1"

const running = (container: GenericContainer, port: number) =>
  Effect.acquireRelease(
    Effect.promise(() => container.withExposedPorts(port).start()),
    (started) => Effect.promise(() => started.stop())
  ).pipe(Effect.map((started) => `${started.getHost()}:${started.getMappedPort(port)}`))

const pg = Layer.unwrap(
  Effect.gen(function* () {
    const address = yield* running(
      new GenericContainer(setting("DLOCK_POSTGRES_IMAGE", "postgres:16.14"))
        .withEnvironment({ POSTGRES_PASSWORD: "postgres", POSTGRES_DB: "lockdb" })
        // Once while it is being set up, and once for everybody.
        .withWaitStrategy(Wait.forLogMessage(/ready to accept connections/, 2)),
      5432
    )
    const url = Redacted.make(`postgres://postgres:postgres@${address}/lockdb`)
    yield* Migrations.migrate({ url, directory: PgLockStore.MIGRATIONS })
    return PgLockStore.layer({ url, timeoutMillis: 5_000 })
  })
)

describe.skipIf(!isAsked)("in a container (DLOCK_TESTCONTAINERS=1)", () => {
  describeLockStore("PgLockStore", pg, {
    // Longer than without: another container is a little further away.
    leaseMillis: 1_500,
    elapse: (millis) => Effect.sleep(millis + 50),
    live: true,
    timeoutMillis: 60_000
  })
})
