/**
 * payment-resource as a process: the surface over PostgreSQL, as role `dlock_payment`.
 *
 * Ready means: paydb answers, every guard of it is in place, and its kill switch says what this process was told. In
 * production a database that an experiment has written to is never ready.
 */
import { Effect, Layer, Schedule } from "effect"
import type { SqlError } from "effect/sql"
import * as Metrics from "../../core/Metrics.ts"
import { PaymentStore } from "../../core/payment/PaymentStore.ts"
import { PaymentHttpApi } from "../api/PaymentHttpApi.ts"
import { database } from "../platform/Database.ts"
import * as HttpServer from "../platform/HttpServer.ts"
import type { EmbeddedPostgresError } from "../platform/PostgresBinaries.ts"
import { Draining, Readiness } from "../platform/Management.ts"
import type { MigrationError } from "../platform/Migrations.ts"
import * as PaydbReadiness from "../platform/PaydbReadiness.ts"
import * as Pg from "../platform/Pg.ts"
import { type ConfigProblem, ServiceConfig } from "../platform/ServiceConfig.ts"
import { readTls } from "../platform/TlsFiles.ts"
import * as PaymentHandlers from "./PaymentHandlers.ts"
import * as PaymentService from "./PaymentService.ts"
import * as PgPaydb from "./PgPaydb.ts"
import * as PgPaymentStore from "./PgPaymentStore.ts"

const ROLE = "dlock_payment"

const readiness = Layer.effect(
  Readiness,
  Effect.gen(function* () {
    const { fencing } = yield* ServiceConfig
    const { guards } = yield* PaymentStore
    return [yield* PaydbReadiness.check(guards, fencing.payment, Metrics.payment.fencingDatabase)]
  })
)

const paydb = Layer.unwrap(
  Effect.gen(function* () {
    const config = yield* ServiceConfig
    const url = yield* database("paydb", config.payment.pg)
    const serviceRole = Pg.userOf(url) === ROLE
    if (config.migrate && serviceRole) {
      yield* Effect.logInfo(`${ROLE} may create no tables: the schema is left to \`migrate paydb\``)
    } else if (config.migrate) {
      yield* PgPaydb.migrate(url).pipe(
        // Two services that start together with their database; anything else does not get better by waiting.
        Effect.retry({
          while: (error) => error.reason === "unavailable",
          schedule: Schedule.spaced("1 second"),
          times: 30
        })
      )
    }
    return Pg.layer({
      url,
      applicationName: config.instance,
      tls: yield* readTls("payment.pg.tls", config.payment.pg.tls),
      // Whoever may migrate could do anything; what this process runs is bound to its role.
      parameters: serviceRole ? {} : { role: ROLE }
    })
  })
)

const store = Layer.unwrap(
  Effect.map(ServiceConfig, ({ fencing, settings }) =>
    PgPaymentStore.layer({
      fencingEnabled: fencing.payment,
      callTimeoutMillis: settings.lock.backendTimeoutMillis
    })
  )
)

export const layer: Layer.Layer<
  never,
  ConfigProblem | EmbeddedPostgresError | MigrationError | SqlError.SqlError,
  ServiceConfig
> = HttpServer.serve({ api: PaymentHttpApi, handlers: PaymentHandlers.layer }).pipe(
  Layer.provide([PaymentService.layer, readiness, Draining.layer]),
  Layer.provide(store),
  Layer.provide(paydb)
)
