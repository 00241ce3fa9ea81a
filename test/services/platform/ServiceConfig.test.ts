/** Settings: what is accepted, what is refused and how that is said, and what production refuses. */
import { assert, describe, it } from "@effect/vitest"
import { ConfigProvider, Effect, Exit, FileSystem, Logger, Metric, Redacted, References } from "effect"
import { NodeFileSystem } from "@effect/platform-node"
import * as Metrics from "../../../src/core/Metrics.ts"
import { defaults } from "../../../src/core/Settings.ts"
import {
  announceExperiments,
  load,
  type LoadOptions,
  ServiceConfig,
  type ServiceName,
  services
} from "../../../src/services/platform/ServiceConfig.ts"

type Environment = Readonly<Record<string, string>>

const loadFrom = (environment: Environment, service: ServiceName = "lock-server", options?: LoadOptions) =>
  load(service, options).pipe(
    Effect.provideService(ConfigProvider.ConfigProvider, ConfigProvider.fromEnvRecord(environment))
  )

/** `setting` to what is said of it; fails when the settings are accepted. */
const problemsOf = (environment: Environment, options?: LoadOptions) =>
  Effect.map(Effect.flip(loadFrom(environment, "lock-server", options)), (problem) =>
    Object.fromEntries(problem.problems.map(({ allowed, setting, value }) => [setting, { value, allowed }]))
  )

describe("ServiceConfig", () => {
  it.effect("has the documented defaults, ports included", () =>
    Effect.gen(function* () {
      for (const [service, ports] of Object.entries(services)) {
        const config = yield* loadFrom({}, service as ServiceName)
        assert.deepStrictEqual(config.settings, defaults)
        assert.deepStrictEqual([config.port, config.managementPort], [ports.port ?? 0, ports.managementPort])
        assert.deepStrictEqual(
          [config.env, config.host, config.migrate, config.staleHolder, config.faultPoints.length],
          ["local", "127.0.0.1", true, false, 0]
        )
        assert.deepStrictEqual(config.fencing, { payment: true, rail: true })
      }
      const { lock, payment, rail } = yield* loadFrom({})
      assert.deepStrictEqual(
        [lock.backend, lock.url, payment.url, rail.proxyUrl, rail.url],
        ["pg", "http://127.0.0.1:8080", "http://127.0.0.1:8081", "http://127.0.0.1:8082", "http://127.0.0.1:8083"]
      )
    })
  )

  it.effect("reads a duration with a unit, or as milliseconds", () =>
    Effect.gen(function* () {
      const cases = {
        "15 s": 15_000,
        "15s": 15_000,
        "2000": 2_000,
        "2500 ms": 2_500,
        "0.5 min": 30_000,
        "1.5 s": 1_500
      }
      for (const [written, millis] of Object.entries(cases)) {
        const { settings } = yield* loadFrom({
          LOCK_DEFAULT_TTL: written,
          LOCK_SESSION_TTL: "60 s",
          LOCK_CLIENT_SAFETY_MARGIN: "1 s"
        })
        assert.strictEqual(settings.lock.defaultTtlMillis, millis, written)
      }
      for (const wrong of ["15 parsecs", "-1 s", "1e3", "s", "0.0001 s", "Infinity", "NaN", "15 seconds please"]) {
        const problems = yield* problemsOf({ LOCK_DEFAULT_TTL: wrong })
        assert.strictEqual(problems["lock.default.ttl"]?.value, wrong)
        assert.include(problems["lock.default.ttl"]?.allowed, "15 s")
      }
    })
  )

  it.effect("tells every problem at once, with the setting, its value and what is allowed", () =>
    Effect.gen(function* () {
      const problems = yield* problemsOf({
        HTTP_PORT: "80808",
        LOCK_BACKEND: "redis",
        PAYMENT_FENCING_ENABLED: "0",
        RAIL_URL: "ftp://rail",
        PAYOUT_EXECUTOR_CONCURRENCY: "many",
        DLOCK_FAULT_POINT: "submit.before:explode"
      })
      assert.deepStrictEqual(Object.keys(problems).sort(), [
        "dlock.fault-point",
        "http.port",
        "lock.backend",
        "payment.fencing.enabled",
        "payout.executor.concurrency",
        "rail.url"
      ])
      assert.deepStrictEqual(problems["lock.backend"], { value: "redis", allowed: "pg, etcd" })
      assert.deepStrictEqual(problems["payment.fencing.enabled"], { value: "0", allowed: "true or false" })
    })
  )

  it.effect("refuses settings that contradict each other", () =>
    Effect.gen(function* () {
      const slow = yield* problemsOf({ RAIL_READ_TIMEOUT: "12 s", PAYOUT_EXECUTOR_RAIL_TIMEOUT: "10 s" })
      assert.include(slow["payout.executor.rail-timeout"]?.allowed, "above rail.read-timeout (12000 ms)")
      const margin = yield* problemsOf({ LOCK_CLIENT_SAFETY_MARGIN: "15 s" })
      assert.isDefined(margin["lock.client.safety-margin"])
      const heartbeat = yield* problemsOf({ LOCK_CLIENT_HEARTBEAT_INTERVAL: "6 s" })
      assert.isDefined(heartbeat["lock.client.heartbeat-interval"])
      // The executor's own bound follows the proxy's when it is not set.
      const { settings } = yield* loadFrom({ RAIL_READ_TIMEOUT: "12 s" })
      assert.strictEqual(settings.executor.railTimeoutMillis, 14_000)
    })
  )

  it.effect("never shows a secret, in a problem or among the effective settings", () =>
    Effect.gen(function* () {
      const config = yield* loadFrom({
        LOCK_PG_URL: "postgres://u:hunter2@db/lockdb",
        LOCK_ETCD_PASSWORD: "hunter2",
        PAYMENT_PG_URL: ""
      })
      assert.strictEqual(Redacted.value(config.lock.pg.url ?? Redacted.make("")), "postgres://u:hunter2@db/lockdb")
      assert.isUndefined(config.payment.pg.url)
      assert.notInclude(JSON.stringify(config), "hunter2")
      assert.strictEqual(config.effective["lock.pg.url"], "<hidden>")
      const problem = yield* Effect.flip(
        loadFrom({
          LOCK_PG_URL: "mysql://u:hunter2@db",
          LOCK_URL: "http://u:hunter2@lock",
          LOCK_ETCD_ENDPOINTS: "http://u:hunter2@e:1"
        })
      )
      assert.notInclude(`${problem.message}${JSON.stringify(problem)}`, "hunter2")
      assert.strictEqual(problem.problems.length, 3)
    })
  )

  it.effect("reads a JSON file nested or dotted and a .env file, and the environment wins", () =>
    Effect.gen(function* () {
      const fs = yield* FileSystem.FileSystem
      const directory = yield* fs.makeTempDirectoryScoped()
      const write = (name: string, text: string) =>
        Effect.as(fs.writeFileString(`${directory}/${name}`, text), `${directory}/${name}`)
      const files = [
        yield* write(
          "nested.json",
          '{"lock":{"default":{"ttl":"10 s"},"client":{"safety-margin":500}},"http":{"port":0}}'
        ),
        yield* write("dotted.json", '{"lock.default.ttl":"10 s","LOCK_CLIENT_SAFETY_MARGIN":500,"http.port":0}'),
        yield* write("settings.env", "# a comment\nLOCK_DEFAULT_TTL=10 s\nLOCK_CLIENT_SAFETY_MARGIN=500\nHTTP_PORT=0\n")
      ]
      for (const file of files) {
        const { port, settings } = yield* loadFrom({}, "lock-server", { file })
        assert.deepStrictEqual(
          [port, settings.lock.defaultTtlMillis, settings.client.safetyMarginMillis],
          [0, 10_000, 500],
          file
        )
        const won = yield* loadFrom({ LOCK_DEFAULT_TTL: "12 s" }, "lock-server", { file })
        assert.strictEqual(won.settings.lock.defaultTtlMillis, 12_000)
      }
      const typo = yield* write("typo.json", '{"lock":{"default":{"tll":"10 s"}}}')
      assert.deepStrictEqual(Object.keys(yield* problemsOf({}, { file: typo })), ["LOCK_DEFAULT_TLL"])
      for (const text of ["{", "[1]", '"x"', '{"a":']) {
        const broken = yield* write("broken.json", text)
        assert.deepStrictEqual(Object.keys(yield* problemsOf({}, { file: broken })), ["--config"], text)
      }
      assert.include((yield* problemsOf({}, { file: `${directory}/none` }))["--config"]?.allowed, "ENOENT")
    }).pipe(Effect.scoped, Effect.provide(NodeFileSystem.layer))
  )

  it.effect("understands a list of fault points", () =>
    Effect.gen(function* () {
      const { faultPoints } = yield* loadFrom({ DLOCK_FAULT_POINT: "submit.before:stop, post.after:kill#3" })
      assert.deepStrictEqual(faultPoints, [
        { point: "submit.before", action: "stop", visit: 1 },
        { point: "post.after", action: "kill", visit: 3 }
      ])
    })
  )

  const experiments: ReadonlyArray<Environment> = [
    { PAYMENT_FENCING_ENABLED: "false" },
    { RAIL_FENCING_ENABLED: "false" },
    { PAYOUT_EXECUTOR_STALE_HOLDER: "true" },
    { DLOCK_FAULT_POINT: "submit.before:stop" }
  ]
  for (const environment of experiments) {
    const [name = ""] = Object.keys(environment)
    it.effect(`refuses ${name}=${environment[name]} in production, in every service, and nowhere else`, () =>
      Effect.gen(function* () {
        for (const service of Object.keys(services) as ReadonlyArray<ServiceName>) {
          const refused = yield* Effect.exit(loadFrom({ ...environment, DLOCK_ENV: "production" }, service))
          assert.isTrue(Exit.isFailure(refused), service)
          yield* loadFrom({ ...environment, DLOCK_ENV: "dev" }, service)
        }
        yield* loadFrom({ DLOCK_ENV: "production" })
      })
    )
  }

  it.effect("says at ERROR which fence is off, and sets the gauge of the own fence", () =>
    Effect.gen(function* () {
      const log: Array<readonly [level: string, annotations: Readonly<Record<string, unknown>>]> = []
      const logger = Logger.make(({ fiber, logLevel }) => {
        log.push([logLevel, fiber.getRef(References.CurrentLogAnnotations)])
      })
      const gauge = (service: ServiceName, environment: Environment) =>
        Effect.gen(function* () {
          log.length = 0
          const config = yield* loadFrom(environment, service)
          yield* announceExperiments.pipe(
            Effect.provideService(ServiceConfig, config),
            Effect.provide(Logger.layer([logger]))
          )
          const metric = service === "rail-proxy" ? Metrics.rail.fencingEnabled : Metrics.payment.fencingEnabled
          return (yield* Metric.value(metric)).value
        }).pipe(Effect.provideService(Metric.MetricRegistry, new Map()))
      const off = { PAYMENT_FENCING_ENABLED: "false" }
      assert.strictEqual(yield* gauge("payment-resource", off), 0)
      assert.deepStrictEqual(
        log.map(([level, { event, setting }]) => [level, event, setting]),
        [["Error", "fencing_disabled", "payment.fencing.enabled"]]
      )
      assert.strictEqual(yield* gauge("payment-resource", {}), 1)
      assert.deepStrictEqual(log, [])
      assert.strictEqual(yield* gauge("rail-proxy", { RAIL_FENCING_ENABLED: "false" }), 0)
      assert.strictEqual(yield* gauge("rail-proxy", off), 1)
    })
  )
})
