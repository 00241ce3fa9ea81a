// @effect-diagnostics nodeBuiltinImport:off
/** A receiver of traces as an OTLP collector is one: HTTP on a free port, JSON in, kept for looking at. */
import { Effect, type Scope } from "effect"
import * as Http from "node:http"
import type { AddressInfo } from "node:net"

export interface ReceivedSpan {
  readonly service: string
  readonly traceId: string
  readonly spanId: string
  readonly parentSpanId: string | undefined
  readonly name: string
}

export interface Receiver {
  readonly endpoint: string
  readonly spans: () => ReadonlyArray<ReceivedSpan>
}

interface Exported {
  readonly resourceSpans?: ReadonlyArray<{
    readonly resource?: {
      readonly attributes?: ReadonlyArray<{ readonly key: string; readonly value: { readonly stringValue?: string } }>
    }
    readonly scopeSpans?: ReadonlyArray<{
      readonly spans?: ReadonlyArray<{
        readonly traceId: string
        readonly spanId: string
        readonly parentSpanId?: string
        readonly name: string
      }>
    }>
  }>
}

const spansOf = ({ resourceSpans = [] }: Exported): ReadonlyArray<ReceivedSpan> =>
  resourceSpans.flatMap(({ resource, scopeSpans = [] }) => {
    const service = resource?.attributes?.find(({ key }) => key === "service.name")?.value.stringValue ?? "unknown"
    return scopeSpans.flatMap(({ spans = [] }) =>
      spans.map(({ name, parentSpanId, spanId, traceId }) => ({
        service,
        traceId,
        spanId,
        parentSpanId: parentSpanId === undefined || parentSpanId === "" ? undefined : parentSpanId,
        name
      }))
    )
  })

export const receiver: Effect.Effect<Receiver, never, Scope.Scope> = Effect.acquireRelease(
  Effect.callback<{ readonly server: Http.Server; readonly spans: Array<ReceivedSpan> }>((resume) => {
    const spans: Array<ReceivedSpan> = []
    const server = Http.createServer((request, response) => {
      const chunks: Array<Buffer> = []
      request.on("data", (chunk: Buffer) => chunks.push(chunk))
      request.on("end", () => {
        // What an exporter sends to /v1/traces.
        spans.push(...spansOf(JSON.parse(Buffer.concat(chunks).toString("utf8")) as Exported))
        response.writeHead(200, { "content-type": "application/json" }).end("{}")
      })
    })
    server.listen(0, "127.0.0.1", () => resume(Effect.succeed({ server, spans })))
  }),
  ({ server }) =>
    Effect.callback<void>((resume) => {
      server.closeAllConnections()
      server.close(() => resume(Effect.void))
    })
).pipe(
  Effect.map(({ server, spans }) => ({
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    spans: () => spans
  }))
)
