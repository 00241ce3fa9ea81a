/** Probes and scrapes: what they touch, how long they may take, and what they show. */
import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Ref } from "effect"
import { backendUnavailable } from "../../../src/core/lock/LockErrors.ts"
import type { ReadinessCheck } from "../../../src/services/platform/Management.ts"
import { start } from "../../support/TestSurface.ts"

const get = (url: string, path: string) =>
  Effect.promise(() => fetch(`${url}${path}`).then((response) => response.text().then((text) => ({ response, text }))))

const getJson = (url: string, path: string) =>
  Effect.map(get(url, path), ({ response, text }) => [response.status, JSON.parse(text) as unknown] as const)

const up = (name: string): ReadinessCheck => ({ name, run: Effect.succeed({ database: "lockdb" }) })
const broken: ReadinessCheck = {
  name: "payDb",
  run: Effect.fail(backendUnavailable("ping", "connect ECONNREFUSED db.internal.example:5432"))
}

describe("management", () => {
  it.live("is up, on both ports, while everything answers", () =>
    Effect.gen(function* () {
      const { managementUrl, url } = yield* start({ checks: [up("lockBackend")] })
      for (const base of [managementUrl, url]) {
        assert.deepStrictEqual(yield* getJson(base, "/actuator/health/liveness"), [200, { status: "UP" }])
        const components = { lockBackend: { status: "UP", details: { database: "lockdb" } } }
        assert.deepStrictEqual(yield* getJson(base, "/actuator/health/readiness"), [200, { status: "UP", components }])
        assert.deepStrictEqual(yield* getJson(base, "/actuator/health"), [
          200,
          { status: "UP", components, liveness: "UP", fencing: "on" }
        ])
      }
    }).pipe(Effect.scoped)
  )

  it.live("is not ready when a required part is down, tells its kind and not its address, and stays alive", () =>
    Effect.gen(function* () {
      const { log, managementUrl } = yield* start({ checks: [up("lockBackend"), broken] })
      const [status, body] = yield* getJson(managementUrl, "/actuator/health/readiness")
      assert.deepStrictEqual(
        [status, body],
        [
          503,
          {
            status: "DOWN",
            components: {
              lockBackend: { status: "UP", details: { database: "lockdb" } },
              payDb: { status: "DOWN", details: { error: "BackendUnavailable" } }
            }
          }
        ]
      )
      assert.strictEqual((yield* getJson(managementUrl, "/actuator/health"))[0], 503)
      assert.strictEqual((yield* getJson(managementUrl, "/actuator/health/liveness"))[0], 200)
      assert.isTrue(log.some(({ component, level }) => component === "payDb" && level === "Warn"))
    }).pipe(Effect.scoped)
  )

  it.live("shows a part that it can do without, and is ready all the same", () =>
    Effect.gen(function* () {
      const { managementUrl } = yield* start({ checks: [{ ...broken, name: "rail", required: false }] })
      const [status, body] = yield* getJson(managementUrl, "/actuator/health/readiness")
      assert.strictEqual(status, 200)
      assert.deepStrictEqual((body as { components: unknown }).components, {
        rail: { status: "DOWN", details: { error: "BackendUnavailable" } }
      })
    }).pipe(Effect.scoped)
  )

  it.live("answers within its bound when a part is frozen, even one that can not be interrupted", () =>
    Effect.gen(function* () {
      const frozen: ReadinessCheck = {
        name: "frozen",
        run: Effect.uninterruptible(Effect.sleep("5 seconds").pipe(Effect.as({})))
      }
      const defect: ReadinessCheck = { name: "defect", run: Effect.die(new Error("a bug")) }
      const { managementUrl } = yield* start({ checks: [frozen, defect, up("other")] })
      const before = yield* Clock.currentTimeMillis
      const [status, body] = yield* getJson(managementUrl, "/actuator/health/readiness")
      assert.isBelow((yield* Clock.currentTimeMillis) - before, 2_000)
      assert.strictEqual(status, 503)
      assert.deepStrictEqual(body, {
        status: "DOWN",
        components: {
          frozen: { status: "DOWN", details: { error: "no answer within 1000 ms" } },
          defect: { status: "DOWN", details: { error: "internal error" } },
          other: { status: "UP", details: { database: "lockdb" } }
        }
      })
    }).pipe(Effect.scoped)
  )

  it.live("runs each check once per request, keeps nothing, and touches none for liveness", () =>
    Effect.gen(function* () {
      const runs = yield* Ref.make(0)
      const counted = {
        name: "counted",
        run: Effect.as(
          Ref.update(runs, (n) => n + 1),
          {}
        )
      }
      const { managementUrl } = yield* start({ checks: [counted] })
      yield* getJson(managementUrl, "/actuator/health/liveness")
      yield* get(managementUrl, "/actuator/prometheus")
      yield* getJson(managementUrl, "/actuator/info")
      assert.strictEqual(yield* Ref.get(runs), 0)
      yield* getJson(managementUrl, "/actuator/health/readiness")
      yield* getJson(managementUrl, "/actuator/health/readiness")
      yield* getJson(managementUrl, "/actuator/health")
      assert.strictEqual(yield* Ref.get(runs), 3)
    }).pipe(Effect.scoped)
  )

  it.live("shows that a fence is off, and says so in the log", () =>
    Effect.gen(function* () {
      const { log, managementUrl } = yield* start({
        service: "payment-resource",
        environment: { PAYMENT_FENCING_ENABLED: "false" }
      })
      const [, body] = yield* getJson(managementUrl, "/actuator/health")
      assert.strictEqual((body as { fencing: string }).fencing, "OFF")
      assert.isTrue(log.some(({ event, level }) => event === "fencing_disabled" && level === "Error"))
      assert.match((yield* get(managementUrl, "/actuator/prometheus")).text, /^fencing_enabled\{point="resource"\} 0$/m)
    }).pipe(Effect.scoped)
  )

  it.live("exposes Prometheus text with process metrics and request times by route template", () =>
    Effect.gen(function* () {
      const { managementUrl, url } = yield* start()
      yield* get(url, "/v1/things?limit=7")
      yield* get(url, "/nope/acct-1")
      const { response, text } = yield* get(managementUrl, "/actuator/prometheus")
      assert.strictEqual(response.headers.get("content-type"), "text/plain; version=0.0.4; charset=utf-8")
      for (const name of [
        "process_pause_seconds",
        "process_event_loop_lag_seconds",
        "process_cpu_seconds_total",
        "process_heap_bytes",
        "process_uptime_seconds"
      ]) {
        assert.match(text, new RegExp(`^${name} [0-9.e+-]+$`, "m"))
      }
      assert.include(text, 'http_server_request_seconds_count{method="GET",route="/v1/things",status="2xx"} 1')
      assert.include(text, 'http_server_request_seconds_count{method="GET",route="unmatched",status="4xx"} 1')
      assert.notInclude(text, "acct-1")
      const line =
        /^(?:#.*|[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{[a-zA-Z_][a-zA-Z0-9_]*="[^"\\\n]*"(?:,[a-zA-Z_][a-zA-Z0-9_]*="[^"\\\n]*")*\})? (?:[-+0-9.e]+|\+Inf|-Inf|NaN))$/
      for (const one of text.trimEnd().split("\n")) assert.match(one, line)
    }).pipe(Effect.scoped)
  )

  it.live("says who it is", () =>
    Effect.gen(function* () {
      const { managementUrl } = yield* start()
      const [status, body] = yield* getJson(managementUrl, "/actuator/info")
      assert.strictEqual(status, 200)
      assert.containsAllKeys(body as object, ["service", "version", "backend", "environment"])
    }).pipe(Effect.scoped)
  )
})
