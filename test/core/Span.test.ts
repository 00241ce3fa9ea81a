/** One id per trace, whether spans are kept or not. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, References, Tracer } from "effect"
import { activeSpan, beginsTrace, spanned, traceparent } from "../../src/core/Span.ts"
import { currentTraceId, TraceId } from "../../src/core/TraceId.ts"

const active = Effect.withFiber((fiber) => Effect.succeed(activeSpan(fiber)))
const withoutSpans = Effect.provideService(References.TracerEnabled, false)
const traceIdOf = (header: string) => /^00-([0-9a-f]{32})-[0-9a-f]{16}-0[01]$/u.exec(header)?.[1]

describe("where spans are kept", () => {
  it.effect("work that begins a trace is a span, and what it calls is told of it", () =>
    Effect.gen(function* () {
      const [span, header] = yield* Effect.all([active, spanned("inner")(traceparent)]).pipe(beginsTrace("turn"))
      assert.strictEqual(span?._tag === "Span" ? span.name : "", "turn")
      assert.strictEqual(traceIdOf(header), span?.traceId)
      assert.notInclude(header, span?.spanId ?? "-")
    })
  )
})

describe("where no spans are kept", () => {
  it.effect("work that begins a trace has one id, which it tells whomever it calls, and no span", () =>
    Effect.gen(function* () {
      const seen = yield* Effect.all([currentTraceId, traceparent, spanned("inner")(traceparent), active]).pipe(
        beginsTrace("turn")
      )
      const [traceId, header, inner, span] = seen
      assert.strictEqual(traceIdOf(header), traceId)
      assert.strictEqual(inner, header)
      assert.isUndefined(span)
      const another = yield* beginsTrace("turn")(currentTraceId)
      assert.notStrictEqual(another, traceId)
    }).pipe(withoutSpans)
  )

  it.effect("a trace that has begun already goes on", () =>
    Effect.gen(function* () {
      const traceId = "0af7651916cd43dd8448eb211c80319c"
      const header = yield* traceparent.pipe(beginsTrace("turn"), Effect.provideService(TraceId, traceId))
      assert.strictEqual(traceIdOf(header), traceId)
    }).pipe(withoutSpans)
  )

  it.effect("what Effect puts in the place of a span is not sent as one", () =>
    Effect.gen(function* () {
      const placeholder = yield* Tracer.ParentSpan
      assert.strictEqual(placeholder.traceId, "noop")
      assert.isDefined(traceIdOf(yield* traceparent))
    }).pipe(Effect.withSpan("sql.transaction"), withoutSpans)
  )
})
