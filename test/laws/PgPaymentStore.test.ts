import { PgClient } from "@effect/sql-pg"
import { Effect, Layer } from "effect"
import { defaults } from "../../src/core/Settings.ts"
import * as PgPaydb from "../../src/services/payment-resource/PgPaydb.ts"
import * as PgPaymentStore from "../../src/services/payment-resource/PgPaymentStore.ts"
import * as PgSubmissionStore from "../../src/services/rail-proxy/PgSubmissionStore.ts"
import { TestDatabase } from "../support/pg.ts"
import { describePaymentStore } from "./PaymentStoreLaws.ts"

const poolAs = (role: string) =>
  Layer.effect(
    PgClient.PgClient,
    Effect.flatMap(TestDatabase, ({ pool }) => pool({ parameters: { role }, maxConnections: 8 }))
  )

/** In a database of its own: rail verdicts become final at once, and its switch says what the store is told. */
const stores = (fencingEnabled: boolean) => {
  const payments = PgPaymentStore.layer({ fencingEnabled, callTimeoutMillis: 10_000 }).pipe(
    Layer.provide(poolAs("dlock_payment"))
  )
  const rail = PgSubmissionStore.layer({
    fencingEnabled: true,
    sendWindowMillis: defaults.rail.sendWindowMillis,
    proxyInstance: "test"
  }).pipe(Layer.provide(poolAs("dlock_rail")))
  const setUp = Layer.effectDiscard(
    Effect.flatMap(TestDatabase, ({ url }) =>
      Effect.andThen(
        PgPaydb.setLabPolicy(url, { finalityWindowMillis: 0, minNotFound: 2, minSpacingMillis: 1 }),
        PgPaydb.setSwitches(url, { resource: fencingEnabled, rail: true })
      )
    )
  )
  return Layer.merge(payments, rail).pipe(
    Layer.provide(setUp),
    Layer.provide(TestDatabase.layer("paydb", PgPaydb.migrate))
  )
}

describePaymentStore(
  "PgPaymentStore",
  { fenced: stores(true), unfenced: stores(false) },
  {
    live: true,
    elapse: (millis) => Effect.sleep(millis + 20),
    sendWindowMillis: defaults.rail.sendWindowMillis
  }
)
