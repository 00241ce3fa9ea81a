import type { PgClient } from "@effect/sql-pg"
import { Effect, Layer } from "effect"
import * as PgPaymentStore from "../../src/services/payment-resource/PgPaymentStore.ts"
import * as Migrations from "../../src/services/platform/Migrations.ts"
import * as Pg from "../../src/services/platform/Pg.ts"
import * as PgSubmissionStore from "../../src/services/rail-proxy/PgSubmissionStore.ts"
import { TestDatabase } from "../support/pg.ts"
import { describeSubmissionStore } from "./SubmissionStoreLaws.ts"

const directory = new URL("../../src/services/payment-resource/migrations/", import.meta.url)
const database = TestDatabase.layer("paydb", (url) => Migrations.migrate({ url, directory }))

/** A pool that may do what the role may. */
const as = (role: "dlock_payment" | "dlock_rail") =>
  Layer.unwrap(
    Effect.map(TestDatabase, ({ url }) =>
      Pg.layer({ url, applicationName: role, maxConnections: 8, parameters: { role } })
    )
  )

const turnSwitch = (point: string, enabled: boolean) =>
  Layer.effectDiscard(
    Effect.gen(function* () {
      const sql: PgClient.PgClient = yield* (yield* TestDatabase).pool()
      yield* sql`UPDATE pay.fencing_switch SET enabled = ${enabled} WHERE point = ${point}`
    })
  )

const stores = (fencingEnabled: boolean, switchOn: boolean) =>
  Layer.merge(
    PgPaymentStore.layer({ fencingEnabled: true, callTimeoutMillis: 5_000 }).pipe(Layer.provide(as("dlock_payment"))),
    PgSubmissionStore.layer({ fencingEnabled, sendWindowMillis: 2_000, proxyInstance: "proxy-1" }).pipe(
      Layer.provide(as("dlock_rail"))
    )
  ).pipe(Layer.provide(turnSwitch("rail", switchOn)), Layer.provide(database))

describeSubmissionStore(
  "PgSubmissionStore",
  {
    fenced: stores(true, true),
    unfenced: stores(false, false),
    settingOnly: stores(false, true),
    switchOnly: stores(true, false)
  },
  { live: true }
)
