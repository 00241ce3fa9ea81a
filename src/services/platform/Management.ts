// @effect-diagnostics nodeBuiltinImport:off
/**
 * What an operator, a probe and Prometheus see of a process: the `/actuator` routes, on the management port and, for
 * convenience, on the service port too.
 */
import { type Cause, Context, Deferred, Effect, Exit, Fiber, Layer, Metric } from "effect"
import { HttpRouter, HttpServerResponse } from "effect/http"
import { PrometheusMetrics } from "effect/observability"
import { monitorEventLoopDelay } from "node:perf_hooks"
import * as Metrics from "../../core/Metrics.ts"
import type { RoutePattern } from "../api/Envelope.ts"
import { ServiceConfig, type ServiceConfigValues } from "./ServiceConfig.ts"
import { version } from "./Version.ts"

/** One part that the service needs: one trivial round trip to it, and what is worth showing of it. */
export interface ReadinessCheck {
  /** `lockBackend`, `payDb`, `rail` */
  readonly name: string
  readonly run: Effect.Effect<Readonly<Record<string, unknown>>, { readonly _tag: string; readonly message?: string }>
  /** False: shown, but DOWN does not make the service unready (recovery needs R2 while the rail is down). */
  readonly required?: boolean
}

/** What a service is ready by. Run once per request; nothing is cached. */
export class Readiness extends Context.Service<Readiness, ReadonlyArray<ReadinessCheck>>()(
  "dlock/services/platform/Management/Readiness"
) {
  static layer(...checks: ReadonlyArray<ReadinessCheck>): Layer.Layer<Readiness> {
    return Layer.succeed(Readiness, checks)
  }
}

/**
 * Done when the process was told to stop: it finishes what is under way and takes nothing new. What waits for a long
 * time (an acquire in its queue) waits for this as well, and answers at once.
 */
export class Draining extends Context.Service<Draining, Deferred.Deferred<void>>()(
  "dlock/services/platform/Management/Draining"
) {
  static readonly layer: Layer.Layer<Draining> = Layer.effect(Draining, Deferred.make<void>())
}

export const paths = {
  liveness: "/actuator/health/liveness",
  readiness: "/actuator/health/readiness",
  health: "/actuator/health",
  info: "/actuator/info",
  prometheus: "/actuator/prometheus"
} as const

export const actuatorRoutes: ReadonlyArray<RoutePattern> = Object.values(paths).map((path) => ["GET", path])

/** The whole check of one part takes at most this, however stuck the part is. */
const checkMillis = 1_000

type Status = "UP" | "DOWN"
interface Component {
  readonly status: Status
  readonly details: Readonly<Record<string, unknown>>
}

/**
 * Never later than its bound: `Effect.timeout` would wait for the interruption, which a driver on a frozen server
 * finishes seconds later. The loser ends in the background.
 */
const check = ({ name, run }: ReadinessCheck): Effect.Effect<Component> =>
  Effect.flatMap(Effect.forkDetach(Effect.exit(Effect.interruptible(run))), (fiber) =>
    Fiber.join(fiber).pipe(
      Effect.timeoutOrElse({ duration: checkMillis, orElse: () => Effect.succeed("timeout" as const) }),
      Effect.ensuring(Effect.sync(() => fiber.interruptUnsafe())),
      Effect.flatMap((exit) => {
        if (exit === "timeout") return down(name, { error: `no answer within ${checkMillis} ms` }, undefined)
        if (Exit.isSuccess(exit)) return Effect.succeed<Component>({ status: "UP", details: exit.value })
        const failure = exit.cause.reasons.find((reason) => reason._tag === "Fail")
        return down(name, { error: failure === undefined ? "internal error" : failure.error._tag }, exit.cause)
      })
    )
  )

/** The cause may name hosts and users: it is for the log, the answer has only the kind. */
const down = (
  component: string,
  details: Component["details"],
  cause: Cause.Cause<unknown> | undefined
): Effect.Effect<Component> =>
  Effect.as(
    Effect.annotateLogs(
      cause === undefined ? Effect.logWarning("a component is down") : Effect.logWarning("a component is down", cause),
      { component, ...details }
    ),
    { status: "DOWN", details }
  )

const readiness = Effect.gen(function* () {
  const checks = yield* Readiness
  const draining = yield* Effect.flatMap(Draining, Deferred.isDone)
  const components = yield* Effect.forEach(checks, (one) => Effect.map(check(one), (found) => [one, found] as const), {
    concurrency: "unbounded"
  })
  const up = !draining && components.every(([{ required }, { status }]) => required === false || status === "UP")
  return {
    status: up ? ("UP" as const) : ("DOWN" as const),
    ...(draining ? { draining } : {}),
    components: Object.fromEntries(components.map(([{ name }, component]) => [name, component]))
  }
})

const answer = (body: { readonly status: Status; readonly [detail: string]: unknown }) =>
  HttpServerResponse.jsonUnsafe(body, { status: body.status === "UP" ? 200 : 503, headers: noStore })

const noStore = { "cache-control": "no-store" }

/** The fence that this process owns; a process without one shows whether its environment has both. */
const fencingIsOn = ({ fencing, service, staleHolder }: ServiceConfigValues): boolean => {
  switch (service) {
    case "payment-resource":
      return fencing.payment
    case "rail-proxy":
      return fencing.rail
    default:
      return fencing.payment && fencing.rail && !staleHolder
  }
}

/** Everything under `/actuator`. */
export const routes: Layer.Layer<never, never, HttpRouter.HttpRouter | Readiness | Draining | ServiceConfig> =
  HttpRouter.use((router) =>
    Effect.gen(function* () {
      const config = yield* ServiceConfig
      const context = yield* Effect.context<Readiness | Draining>()
      const info = {
        service: config.service,
        instance: config.instance,
        version,
        backend: config.service === "lock-server" ? config.lock.backend : undefined,
        environment: config.env,
        node: process.version
      }
      const fencing = fencingIsOn(config) ? "on" : "OFF"
      const ready = Effect.provideContext(readiness, context)
      yield* Metrics.register(Metrics.process)
      yield* Effect.sync(() => delay.enable())

      yield* router.add("GET", paths.liveness, Effect.succeed(answer({ status: "UP" })))
      yield* router.add("GET", paths.readiness, Effect.map(ready, answer))
      yield* router.add(
        "GET",
        paths.health,
        Effect.map(ready, (body) => answer({ ...body, liveness: "UP", fencing }))
      )
      yield* router.add("GET", paths.info, Effect.succeed(HttpServerResponse.jsonUnsafe(info, { headers: noStore })))
      yield* router.add(
        "GET",
        paths.prometheus,
        Effect.map(Effect.andThen(collectProcessMetrics, PrometheusMetrics.format()), (text) =>
          HttpServerResponse.text(text, { contentType: "text/plain; version=0.0.4; charset=utf-8", headers: noStore })
        )
      )
    })
  )

// -----------------------------------------------------------------------------
// process metrics
// -----------------------------------------------------------------------------

const resolutionMillis = 20
const delay = monitorEventLoopDelay({ resolution: resolutionMillis })
let cpuSeen = 0

/**
 * Updates the process metrics; run at each scrape. A stop of the whole process (SIGSTOP, a frozen virtual machine)
 * shows as a stall too, because the monotonic clock goes on: that is how a paused worker is found.
 */
const collectProcessMetrics: Effect.Effect<void> = Effect.gen(function* () {
  const { heapUsed, rss } = process.memoryUsage()
  const { system, user } = process.cpuUsage()
  const cpu = (system + user) / 1e6
  // The monitor measures from tick to tick, so its own interval is part of every sample; NaN before the first one.
  const seconds = (nanos: number) => Math.max(0, (Number.isFinite(nanos) ? nanos : 0) / 1e9 - resolutionMillis / 1e3)
  const pause = delay.count === 0 ? 0 : seconds(delay.max)
  const lag = seconds(delay.mean)
  delay.reset()
  yield* Metric.update(Metrics.process.pause, pause)
  yield* Metric.update(Metrics.process.eventLoopLag, lag)
  yield* Metric.update(Metrics.process.cpu, cpu - cpuSeen)
  cpuSeen = cpu
  yield* Metric.update(Metrics.process.heap, heapUsed)
  yield* Metric.update(Metrics.process.resident, rss)
  yield* Metric.update(Metrics.process.uptime, process.uptime())
  yield* Metric.update(Metrics.process.startTime, performance.timeOrigin / 1e3)
})
