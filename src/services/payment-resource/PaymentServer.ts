// @effect-diagnostics nodeBuiltinImport:off
/**
 * payment-resource as a process: the surface over PostgreSQL, as role `dlock_payment`.
 *
 * Ready means: paydb answers, every guard of it is in place, and its kill switch says what this process was told. In
 * production a database that an experiment has written to is never ready.
 */
import { Effect, Layer, Redacted, Schedule, Schema } from "effect"
import * as fs from "node:fs"
import type { ConnectionOptions } from "node:tls"
import { PaymentStore } from "../../core/payment/PaymentStore.ts"
import { PaymentHttpApi } from "../api/PaymentHttpApi.ts"
import { database } from "../platform/Database.ts"
import * as HttpServer from "../platform/HttpServer.ts"
import { Readiness } from "../platform/Management.ts"
import * as Pg from "../platform/Pg.ts"
import { configProblem, ServiceConfig, type TlsFiles } from "../platform/ServiceConfig.ts"
import * as PaymentHandlers from "./PaymentHandlers.ts"
import * as PaymentService from "./PaymentService.ts"
import * as PgPaydb from "./PgPaydb.ts"
import * as PgPaymentStore from "./PgPaymentStore.ts"

const ROLE = "dlock_payment"

/** An error that occurs when triggers, indexes or privileges of paydb are not as the migrations made them. */
export class GuardsMissing extends Schema.TaggedError<GuardsMissing>()("GuardsMissing", {
  missing: Schema.Array(Schema.String)
}) {
  override get message(): string {
    return this.missing.join("; ")
  }
}

/** An error that occurs when the setting and the database say different things about fence point (a). */
export class FencingDisagrees extends Schema.TaggedError<FencingDisagrees>()("FencingDisagrees", {
  setting: Schema.Boolean,
  database: Schema.Boolean
}) {
  override get message(): string {
    return `payment.fencing.enabled is ${this.setting}, pay.fencing_switch is ${this.database}`
  }
}

/** An error that occurs when production finds rows that were written while a fence was off. */
export class UnfencedRows extends Schema.TaggedError<UnfencedRows>()("UnfencedRows", {}) {
  override get message(): string {
    return "an experiment has written to this database: see the view pay.unfenced_row"
  }
}

/** Exported for its test. */
export const payDbCheck = (env: ServiceConfig["Service"]["env"], fencingEnabled: boolean) =>
  Effect.gen(function* () {
    const store = yield* PaymentStore
    const { missing, switchOn, unfencedRows } = yield* store.guards
    if (missing.length > 0) return yield* new GuardsMissing({ missing })
    if (switchOn !== fencingEnabled) return yield* new FencingDisagrees({ setting: fencingEnabled, database: switchOn })
    if (env === "production" && unfencedRows) return yield* new UnfencedRows()
    return { guards: "in place", fencing: switchOn ? "on" : "OFF", unfencedRows }
  })

const readiness = Layer.effect(
  Readiness,
  Effect.gen(function* () {
    const config = yield* ServiceConfig
    const store = yield* PaymentStore
    const run = payDbCheck(config.env, config.fencing.payment)
    return [{ name: "payDb", run: Effect.provideService(run, PaymentStore, store) }]
  })
)

const readTls = ({ ca, cert, key }: TlsFiles) =>
  Effect.try({
    try: (): ConnectionOptions => ({
      ...(ca === undefined ? {} : { ca: fs.readFileSync(ca) }),
      ...(cert === undefined ? {} : { cert: fs.readFileSync(cert) }),
      ...(key === undefined ? {} : { key: fs.readFileSync(key) })
    }),
    catch: (cause) => configProblem("payment.pg.tls", String(cause), "paths of readable PEM files")
  })

const userOf = (url: Redacted.Redacted) => decodeURIComponent(URL.parse(Redacted.value(url))?.username ?? "")

const paydb = Layer.unwrap(
  Effect.gen(function* () {
    const config = yield* ServiceConfig
    const url = yield* database("paydb", config.payment.pg)
    const serviceRole = userOf(url) === ROLE
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
      tls: yield* readTls(config.payment.pg.tls),
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

export const layer = HttpServer.serve({ api: PaymentHttpApi, handlers: PaymentHandlers.layer }).pipe(
  Layer.provide(PaymentService.layer),
  Layer.provide(readiness),
  Layer.provide(store),
  Layer.provide(paydb)
)
