/**
 * Is this installation fit to move money? Each check asks one thing and says what it found and what to do about it. What can
 * not be asked (no URL of a database is set) is said to be skipped: a check that was not made is not a check that passed.
 */
import { Effect } from "effect"
import { Actuator, type ServiceView } from "./Actuator.ts"
import { type Check, fail, ok, warn } from "./Check.ts"
import { databaseChecks } from "./DoctorDatabases.ts"
import { etcdChecks } from "./DoctorEtcd.ts"
import * as Fencing from "./Fencing.ts"
import { LockAdmin } from "./LockAdmin.ts"
import { ServiceConfig } from "../platform/ServiceConfig.ts"
import { version } from "../platform/Version.ts"

/** HTTP tells whole seconds, and the way takes some time: less than this is no finding. */
const CLOCK_TOLERANCE_MILLIS = 2_000

export const serviceChecks = (
  service: string,
  setting: string,
  url: string,
  view: ServiceView | { readonly cause: string },
  environment: string
): ReadonlyArray<Check> => {
  if ("cause" in view) return [fail(service, `${url}: ${view.cause}`, `start it, or set ${setting} to where it is`)]
  const { clockAheadMillis, health, info } = view
  if (info.service !== service) {
    return [fail(service, `at ${url} there is ${info.service}`, `set ${setting} to where ${service} is`)]
  }
  const down = Object.entries(health.components).filter(([, component]) => component.status === "DOWN")
  return [
    health.status === "UP"
      ? ok(service, `ready at ${url}, ${info.instance}`)
      : fail(
          service,
          `not ready: ${down.map(([name, { details }]) => `${name} ${String(details["error"] ?? "DOWN")}`).join(", ")}`,
          "its log names the cause; the runbooks say what to do"
        ),
    ...(info.version === version
      ? []
      : [
          warn(
            `${service} version`,
            `${info.version}, this command is ${version}`,
            "use the command of the same release"
          )
        ]),
    ...(info.environment === environment
      ? []
      : [
          warn(
            `${service} environment`,
            `${info.environment}, this command is set to ${environment}`,
            "set dlock.env, or ask the right installation"
          )
        ]),
    ...(clockAheadMillis === null
      ? []
      : [
          Math.abs(clockAheadMillis) > CLOCK_TOLERANCE_MILLIS
            ? warn(
                `${service} clock`,
                `${(Math.abs(clockAheadMillis) / 1_000).toFixed(1)} s ${clockAheadMillis > 0 ? "ahead of" : "behind"} this machine`,
                "let both follow NTP: nothing depends on it for safety, but logs and ages will not fit"
              )
            : ok(`${service} clock`, "within 2 s of this machine's")
        ])
  ]
}

export const fenceChecks = (points: ReadonlyArray<Fencing.FencePoint>): ReadonlyArray<Check> =>
  points.map(({ cause, database, point, setting, unfencedRows, verdict }) => {
    const name = `fence at the ${point}`
    const both = `setting ${setting}, database ${database}`
    switch (verdict) {
      case "on":
        return unfencedRows === true
          ? warn(name, `on; an experiment has written here`, "never use this database in production")
          : ok(name, both)
      case "unknown":
        return fail(name, `${both}${cause === null ? "" : ` (${cause})`}`, "make its service ready first")
      default:
        return fail(name, both, "docs/runbooks/fencing-disabled.md")
    }
  })

const adminCheck = Effect.gen(function* () {
  const admin = yield* LockAdmin
  const { lock } = yield* ServiceConfig
  return yield* admin.sessions({ prefix: "", after: "", limit: 1 }).pipe(
    Effect.as(ok("management port", `lock-server's /admin answers at ${lock.managementUrl}`)),
    Effect.catchTag("BackendUnavailable", ({ cause }) =>
      Effect.succeed(fail("management port", cause, "set lock.management.url to lock-server's management port"))
    )
  )
})

/** Every check, in an order in which the first that fails usually explains the rest. */
export const examine = Effect.gen(function* () {
  const config = yield* ServiceConfig
  const { look } = yield* Actuator
  const services = [
    ["lock-server", "lock.url", config.lock.url],
    ["payment-resource", "payment.url", config.payment.url],
    ["rail-proxy", "rail.proxy.url", config.rail.proxyUrl]
  ] as const
  const views = yield* Effect.forEach(
    services,
    ([, , url]) => Effect.catchTag(look(url), "BackendUnavailable", ({ cause }) => Effect.succeed({ cause })),
    { concurrency: "unbounded" }
  )
  const [lockView, paymentView, railView] = views
  const reachability = services.flatMap(([service, setting, url], index) =>
    serviceChecks(service, setting, url, views[index] ?? { cause: "not asked" }, config.env)
  )
  const fences = fenceChecks([
    Fencing.pointOf("resource", "payment-resource", paymentView ?? { cause: "not asked" }),
    Fencing.pointOf("rail", "rail-proxy", railView ?? { cause: "not asked" })
  ])
  const backend =
    lockView !== undefined && "info" in lockView ? (lockView.info.backend ?? config.lock.backend) : config.lock.backend
  return [
    ok("settings", `dlock.env ${config.env}; every relation between the settings holds`),
    ...reachability,
    yield* adminCheck,
    ...fences,
    ...(yield* databaseChecks(backend === "pg")),
    ...(backend === "etcd" ? yield* etcdChecks : [])
  ]
})
