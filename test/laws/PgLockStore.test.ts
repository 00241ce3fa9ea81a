import { Effect, Layer } from "effect"
import * as PgLockStore from "../../src/services/lock-server/PgLockStore.ts"
import * as Migrations from "../../src/services/platform/Migrations.ts"
import { TestDatabase } from "../support/pg.ts"
import { describeLockStore } from "./LockStoreLaws.ts"

const database = TestDatabase.layer("lockdb", (url) => Migrations.migrate({ url, directory: PgLockStore.MIGRATIONS }))

const store = Layer.unwrap(
  Effect.map(TestDatabase, ({ url }) => PgLockStore.layer({ url, timeoutMillis: 5_000 }))
).pipe(Layer.provide(database))

describeLockStore("PgLockStore", store, {
  leaseMillis: 600,
  elapse: (millis) => Effect.sleep(millis + 20),
  live: true
})
