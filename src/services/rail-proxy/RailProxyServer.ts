/**
 * rail-proxy as a process. It brings no schema up to date: paydb and its migrations belong to payment-resource, and as
 * role `dlock_rail` it could not. Until they are applied it runs and is not ready.
 *
 * Stopping: the port closes, submissions under way run to their recorded outcome, then the pool goes.
 */
import { Effect, Layer, Random } from "effect"
import type { SqlError } from "effect/sql"
import * as Metrics from "../../core/Metrics.ts"
import { Rail } from "../../core/rail/Rail.ts"
import { SubmissionStore } from "../../core/rail/SubmissionStore.ts"
import { RailHttpApi } from "../api/RailHttpApi.ts"
import * as Database from "../platform/Database.ts"
import type { EmbeddedPostgresError } from "../platform/PostgresBinaries.ts"
import * as HttpServer from "../platform/HttpServer.ts"
import { Draining, Readiness } from "../platform/Management.ts"
import type { MigrationError } from "../platform/Migrations.ts"
import * as PaydbReadiness from "../platform/PaydbReadiness.ts"
import * as Pg from "../platform/Pg.ts"
import { type ConfigProblem, ServiceConfig } from "../platform/ServiceConfig.ts"
import { readTls } from "../platform/TlsFiles.ts"
import * as HttpRail from "./HttpRail.ts"
import * as PgSubmissionStore from "./PgSubmissionStore.ts"
import * as RailHandlers from "./RailHandlers.ts"
import * as RailService from "./RailService.ts"

const ROLE = "dlock_rail"

/** Names this process in the record of what it may send; another process, also its successor, has another. */
const bootId = Effect.map(Random.nextIntBetween(0, 0x1_0000_0000_0000), (drawn) => drawn.toString(16).padStart(12, "0"))

const pool = Layer.unwrap(
  Effect.gen(function* () {
    const { instance, rail } = yield* ServiceConfig
    const url = yield* Database.database("paydb", rail.pg)
    return Pg.layer({
      url,
      applicationName: instance,
      maxConnections: 16,
      // Longer than the deadline of a call: the answer to a commit that is on its way may still be of use.
      answerTimeout: "3 seconds",
      tls: yield* readTls("rail.pg.tls", rail.pg.tls),
      // Whoever connects, what this process runs is bound to its role.
      parameters: Pg.userOf(url) === ROLE ? {} : { role: ROLE }
    })
  })
)

const store = Layer.unwrap(
  Effect.gen(function* () {
    const { fencing, settings } = yield* ServiceConfig
    const proxyInstance = yield* bootId
    return PgSubmissionStore.layer({
      fencingEnabled: fencing.rail,
      sendWindowMillis: settings.rail.sendWindowMillis,
      proxyInstance
    })
  })
)

const rail = Layer.unwrap(Effect.map(ServiceConfig, (config) => HttpRail.layer(config.rail.url)))

const service = Layer.unwrap(Effect.map(ServiceConfig, ({ settings }) => RailService.layer(settings.rail)))

const readiness = Layer.effect(
  Readiness,
  Effect.gen(function* () {
    const { fencing } = yield* ServiceConfig
    const { guards } = yield* SubmissionStore
    const { ping } = yield* Rail
    return [
      yield* PaydbReadiness.check(guards, fencing.rail, Metrics.rail.fencingDatabase),
      // Shown only: recovery needs the record (R2) while the rail is down.
      { name: "rail", run: Effect.as(ping, {}), required: false }
    ]
  })
)

export const layer: Layer.Layer<
  never,
  ConfigProblem | EmbeddedPostgresError | MigrationError | SqlError.SqlError,
  ServiceConfig
> = Layer.mergeAll(
  HttpServer.serve({ api: RailHttpApi, handlers: RailHandlers.layer }),
  Layer.effectDiscard(Metrics.register(Metrics.rail, Metrics.railEvidence))
).pipe(Layer.provide([service, readiness, Draining.layer]), Layer.provide([store, rail]), Layer.provide(pool))
