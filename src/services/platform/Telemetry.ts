// @effect-diagnostics nodeBuiltinImport:off
/**
 * Logs and traces of a process.
 *
 * A log line is one JSON object: `timestamp, level, message, service`, `traceId` and `spanId` when there is one, then
 * every annotation under its own name; an object given as message is annotations too. Services write to stdout,
 * commands to stderr, so that a command's output is its own. On a terminal it is the pretty format instead.
 *
 * Traces leave over OTLP/HTTP when `OTEL_EXPORTER_OTLP_ENDPOINT` is set. Otherwise nothing is loaded and no span is made: work
 * has a trace id (`core/Span.ts`), which is in the logs and goes from service to service.
 */
import { Cause, Config, Effect, Layer, Logger, type LogLevel, Option, References } from "effect"
import { HttpClient, HttpMiddleware } from "effect/http"
import { activeSpan } from "../../core/Span.ts"
import { TraceId } from "../../core/TraceId.ts"
import { type ConfigProblem, configProblem } from "./ServiceConfig.ts"

export interface TelemetryOptions {
  /** `service` of every line; for a command `dlock`. */
  readonly service: string
  readonly to: "stdout" | "stderr"
}

export const layer = (options: TelemetryOptions): Layer.Layer<never, ConfigProblem> =>
  Layer.merge(logging(options), tracing(options.service))

// -----------------------------------------------------------------------------
// logs
// -----------------------------------------------------------------------------

const levels: ReadonlyArray<LogLevel.LogLevel> = ["All", "Trace", "Debug", "Info", "Warn", "Error", "Fatal", "None"]

const logging = ({ service, to }: TelemetryOptions): Layer.Layer<never, ConfigProblem> =>
  Layer.unwrap(
    Effect.gen(function* () {
      const current = yield* References.MinimumLogLevel
      // Set already by `--log-level`, which is nearer than the environment.
      const wanted = current === "Info" ? yield* setting("LOG_LEVEL", "Info") : current
      const level = levels.find((one) => one.toLowerCase() === wanted.toLowerCase())
      if (level === undefined) return yield* configProblem("log.level", wanted, levels.join(", ").toLowerCase())
      const format = yield* setting("LOG_FORMAT", process[to].isTTY ? "pretty" : "json")
      if (format !== "pretty" && format !== "json") {
        return yield* configProblem("log.format", format, "json, pretty")
      }
      const noColor = (yield* setting("NO_COLOR", "")) !== ""
      const logger =
        format === "pretty"
          ? Logger.consolePretty({ colors: noColor ? false : process[to].isTTY })
          : to === "stderr"
            ? Logger.withConsoleError(jsonLines(service))
            : Logger.withConsoleLog(jsonLines(service))
      return Layer.mergeAll(
        Logger.layer([logger]),
        Layer.succeed(References.MinimumLogLevel, level),
        Layer.succeed(Logger.LogToStderr, to === "stderr")
      )
    })
  )

const setting = (name: string, fallback: string): Effect.Effect<string> =>
  // The source is the environment in memory, and any text is a text: it cannot fail.
  Effect.map(
    Effect.orDie(Config.option(Config.String(name))),
    Option.getOrElse(() => fallback)
  )

/** One line without its end. */
export const jsonLines = (service: string): Logger.Logger<unknown, string> =>
  Logger.make(({ cause, date, fiber, logLevel, message }) => {
    const words: Array<string> = []
    const fields: Record<string, unknown> = { ...fiber.getRef(References.CurrentLogAnnotations) }
    for (const part of Array.isArray(message) ? (message as ReadonlyArray<unknown>) : [message]) {
      if (Cause.isCause(part)) fields["cause"] = Cause.pretty(part)
      else if (part instanceof Error) words.push(part.message === "" ? part.name : part.message)
      else if (typeof part === "object" && part !== null && !Array.isArray(part)) Object.assign(fields, part)
      else words.push(typeof part === "string" ? part : (json(part) ?? String(part)))
    }
    if (cause.reasons.length > 0) fields["cause"] = Cause.pretty(cause)
    const span = activeSpan(fiber)
    const traceId = span?.traceId ?? fields["traceId"] ?? fiber.getRef(TraceId)
    const line = {
      timestamp: date.toISOString(),
      level: logLevel.toUpperCase(),
      message: words.join(" "),
      service,
      ...(traceId === undefined ? {} : { traceId }),
      ...(span === undefined ? {} : { spanId: span.spanId })
    }
    for (const name of Object.keys(fields)) {
      // What a line says of itself is not overwritten by an annotation of the same name.
      if (name in line) delete fields[name]
    }
    return json({ ...line, ...fields }) ?? json({ ...line, unprintable: Object.keys(fields).join(" ") }) ?? ""
  })

/** Tokens are bigint and JSON.stringify throws on them. Undefined for what JSON can not say (a circle). */
const json = (value: unknown): string | undefined => {
  try {
    return JSON.stringify(value, (_key, part: unknown) => (typeof part === "bigint" ? part.toString() : part))
  } catch {
    return undefined
  }
}

// -----------------------------------------------------------------------------
// traces
// -----------------------------------------------------------------------------

/** A span that nobody keeps costs as much as one that is kept. Only a client would send one that was not made. */
const withoutSpans = Layer.merge(
  Layer.succeed(References.TracerEnabled, false),
  Layer.succeed(HttpClient.TracerDisabledWhen, () => true)
)

const tracing = (service: string): Layer.Layer<never> =>
  Layer.unwrap(
    Effect.gen(function* () {
      const endpoint = yield* setting("OTEL_EXPORTER_OTLP_ENDPOINT", "")
      if (endpoint === "") return withoutSpans
      // Loaded only when asked for: it costs 200 ms of start-up.
      const [NodeSdk, { OTLPTraceExporter }, { BatchSpanProcessor }] = yield* Effect.promise(() =>
        Promise.all([
          import("@effect/opentelemetry/NodeSdk"),
          import("@opentelemetry/exporter-trace-otlp-http"),
          import("@opentelemetry/sdk-trace-base")
        ])
      )
      const url = `${endpoint.replace(/\/+$/, "")}/v1/traces`
      return Layer.merge(
        NodeSdk.layer(() => ({
          resource: { serviceName: service },
          spanProcessor: new BatchSpanProcessor(new OTLPTraceExporter({ url })),
          shutdownTimeout: "2 seconds"
        })),
        // Probes and scrapes would drown the traces of payouts.
        Layer.succeed(HttpMiddleware.TracerDisabledWhen, (request) => request.url.startsWith("/actuator/"))
      )
    })
  )
