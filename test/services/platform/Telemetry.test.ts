/** The line of a log: what is on it, and that no value breaks it. */
import { assert, describe, it } from "@effect/vitest"
import { ConfigProvider, Effect, Exit, Logger, Redacted, Tracer } from "effect"
import { TestConsole } from "effect/testing"
import { TraceId } from "../../../src/core/TraceId.ts"
import { jsonLines, layer } from "../../../src/services/platform/Telemetry.ts"

/** The lines that an effect logs. */
const linesOf = <A, E>(effect: Effect.Effect<A, E>) => {
  const lines: Array<string> = []
  const logger = Logger.map(jsonLines("lock-server"), (line) => {
    lines.push(line)
  })
  return Effect.as(Effect.exit(Effect.provide(effect, Logger.layer([logger]))), lines)
}

const lineOf = <A, E>(effect: Effect.Effect<A, E>) =>
  Effect.map(linesOf(effect), (lines) => {
    assert.strictEqual(lines.length, 1)
    const [line = ""] = lines
    assert.notInclude(line, "\n")
    return JSON.parse(line) as Record<string, unknown>
  })

describe("a log line", () => {
  it.effect("has time, level, message and service first, then the annotations under their own names", () =>
    Effect.gen(function* () {
      const line = yield* lineOf(
        Effect.logInfo("granted").pipe(
          Effect.annotateLogs({ event: "lock_granted", lockKey: "payout:acct-1", fencingToken: 9007199254740993n })
        )
      )
      assert.deepStrictEqual(Object.keys(line), [
        "timestamp",
        "level",
        "message",
        "service",
        "event",
        "lockKey",
        "fencingToken"
      ])
      assert.deepStrictEqual(line, {
        timestamp: "1970-01-01T00:00:00.000Z",
        level: "INFO",
        message: "granted",
        service: "lock-server",
        event: "lock_granted",
        lockKey: "payout:acct-1",
        fencingToken: "9007199254740993"
      })
    })
  )

  it.effect("carries the trace of the request, or of the span when there is one", () =>
    Effect.gen(function* () {
      const traceId = "0af7651916cd43dd8448eb211c80319c"
      const request = yield* lineOf(Effect.provideService(Effect.logInfo("x"), TraceId, traceId))
      assert.deepStrictEqual([request["traceId"], request["spanId"]], [traceId, undefined])
      const span = yield* lineOf(
        Effect.provideService(
          Effect.logInfo("x"),
          Tracer.ParentSpan,
          Tracer.externalSpan({ traceId, spanId: "b7ad6b7169203331" })
        )
      )
      assert.deepStrictEqual([span["traceId"], span["spanId"]], [traceId, "b7ad6b7169203331"])
    })
  )

  it.effect("lets no annotation overwrite what the line says of itself", () =>
    Effect.gen(function* () {
      const line = yield* lineOf(
        Effect.logInfo("real").pipe(
          Effect.annotateLogs({ message: "forged", level: "FATAL", service: "other", timestamp: "never" })
        )
      )
      assert.deepStrictEqual([line["message"], line["level"], line["service"]], ["real", "INFO", "lock-server"])
      assert.notStrictEqual(line["timestamp"], "never")
    })
  )

  it.effect("stays one line, and JSON, whatever is in it", () =>
    Effect.gen(function* () {
      const circle: Record<string, unknown> = { token: 1n }
      circle["self"] = circle
      const values: ReadonlyArray<unknown> = [
        "a\nb\u2028c",
        circle,
        { a: 1n },
        [1n, 2n],
        undefined,
        null,
        Symbol("s"),
        () => 1,
        new Map([[1n, 2n]]),
        new Error("bad\nthing"),
        "\ud800"
      ]
      for (const value of values) yield* lineOf(Effect.logInfo(value))
      for (const value of values) yield* lineOf(Effect.annotateLogs(Effect.logInfo("x"), { value }))
    })
  )

  it.effect("tells a cause, and no secret", () =>
    Effect.gen(function* () {
      const failed = yield* lineOf(
        Effect.catchCause(Effect.die(new Error("broken pipe")), (cause) => Effect.logError("failed", cause))
      )
      assert.include(String(failed["cause"]), "broken pipe")
      assert.strictEqual(failed["message"], "failed")
      const secret = yield* lineOf(
        Effect.annotateLogs(Effect.logInfo({ url: Redacted.make("hunter2") }), { other: Redacted.make("hunter2") })
      )
      assert.notInclude(JSON.stringify(secret), "hunter2")
    })
  )
})

describe("telemetry", () => {
  const withEnvironment = <A, E>(
    environment: Record<string, string>,
    to: "stdout" | "stderr",
    effect: Effect.Effect<A, E>
  ) =>
    effect.pipe(
      Effect.provide(layer({ service: "dlock", to })),
      Effect.provideService(
        ConfigProvider.ConfigProvider,
        ConfigProvider.fromEnvRecord({ LOG_FORMAT: "json", ...environment })
      )
    )

  it.effect("writes to stdout for services and to stderr for commands", () =>
    Effect.gen(function* () {
      yield* withEnvironment({}, "stdout", Effect.logInfo("a service"))
      assert.deepStrictEqual([(yield* TestConsole.logLines).length, (yield* TestConsole.errorLines).length], [1, 0])
      yield* withEnvironment({}, "stderr", Effect.logInfo("a command"))
      assert.deepStrictEqual([(yield* TestConsole.logLines).length, (yield* TestConsole.errorLines).length], [1, 1])
    }).pipe(Effect.provide(TestConsole.layer))
  )

  it.effect("writes what LOG_LEVEL asks for, in any case", () =>
    Effect.gen(function* () {
      yield* withEnvironment({}, "stdout", Effect.logDebug("hidden"))
      assert.strictEqual((yield* TestConsole.logLines).length, 0)
      yield* withEnvironment({ LOG_LEVEL: "DEBUG" }, "stdout", Effect.logDebug("shown"))
      assert.strictEqual((yield* TestConsole.logLines).length, 1)
      const wrong = yield* Effect.exit(withEnvironment({ LOG_LEVEL: "loud" }, "stdout", Effect.void))
      assert.isTrue(Exit.isFailure(wrong))
    }).pipe(Effect.provide(TestConsole.layer))
  )

  it.effect("is pretty without colours when asked for that", () =>
    Effect.gen(function* () {
      yield* withEnvironment({ LOG_FORMAT: "pretty", NO_COLOR: "1" }, "stdout", Effect.logInfo("hello"))
      const [line = ""] = yield* TestConsole.logLines
      assert.include(String(line), "hello")
      assert.notInclude(String(line), "\u001b")
    }).pipe(Effect.provide(TestConsole.layer))
  )

  it.effect("makes no span without an endpoint, and a line has the trace id alone", () =>
    Effect.gen(function* () {
      const spans: Array<string> = []
      const counting = Tracer.make({
        span: (options) => {
          spans.push(options.name)
          return new Tracer.NativeSpan(options)
        }
      })
      const traceId = "0af7651916cd43dd8448eb211c80319c"
      const work = Effect.logInfo("paid").pipe(Effect.withSpan("turn"), Effect.provideService(TraceId, traceId))
      yield* withEnvironment({}, "stdout", Effect.provideService(work, Tracer.Tracer, counting))
      assert.deepStrictEqual(spans, [])
      const [line] = yield* TestConsole.logLines
      const { spanId, traceId: told } = JSON.parse(String(line)) as Record<string, unknown>
      assert.deepStrictEqual([told, spanId], [traceId, undefined])
      // The planted violation: it is the layer that keeps the span from being made.
      yield* Effect.provideService(work, Tracer.Tracer, counting)
      assert.deepStrictEqual(spans, ["turn"])
    }).pipe(Effect.provide(TestConsole.layer))
  )
})
