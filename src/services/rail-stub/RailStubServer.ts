// @effect-diagnostics nodeBuiltinImport:off
/**
 * The rail as a process. What it does badly it does below the surface, on the socket: the envelope and the schemas of a
 * well-behaved service never see it.
 *
 * One replica: the book is in the memory of this process.
 */
import * as NodeHttpServerRequest from "@effect/platform-node/NodeHttpServerRequest"
import { Deferred, Effect, Layer } from "effect"
import { HttpServerRequest, HttpServerResponse } from "effect/http"
import { HttpApiBuilder } from "effect/http-api"
import type * as Http from "node:http"
import { RailStubHttpApi } from "../api/RailStubHttpApi.ts"
import * as HttpServer from "../platform/HttpServer.ts"
import { Draining, Readiness } from "../platform/Management.ts"
import type { ConfigProblem, ServiceConfig } from "../platform/ServiceConfig.ts"
import * as RailStub from "./RailStub.ts"

/** Answers on the socket, past everything that would make it a proper answer. */
const onTheSocket = (
  misbehave: (response: Http.ServerResponse) => void
): Effect.Effect<HttpServerResponse.HttpServerResponse, never, HttpServerRequest.HttpServerRequest> =>
  Effect.flatMap(HttpServerRequest.HttpServerRequest, (request) =>
    Effect.sync(() => {
      // HTTP/1 only: the server was made with node:http.
      misbehave(NodeHttpServerRequest.toServerResponse(request) as Http.ServerResponse)
      // Seen by nobody: the response is ended or destroyed.
      return HttpServerResponse.empty()
    })
  )

const plain = (status: number, contentType: string, body: string) => (response: Http.ServerResponse) => {
  response.writeHead(status, { "content-type": contentType, "content-length": Buffer.byteLength(body) })
  response.end(body)
}

const railHandlers = HttpApiBuilder.group(
  RailStubHttpApi,
  "rail",
  Effect.fnUntraced(function* (handlers) {
    const stub = yield* RailStub.RailStub
    const draining = yield* Draining
    return handlers.handleAll({
      submit: Effect.fnUntraced(function* ({ payload }) {
        const fate = yield* stub.submit(payload)
        const { clientReference } = payload
        switch (fate._tag) {
          case "Acknowledged": {
            const { railReference } = fate
            return { clientReference, status: "ACSC" as const, railReference, code: null }
          }
          case "Rejected":
            return { clientReference, status: "RJCT" as const, railReference: null, code: fate.code }
          case "Silence":
            // A stopping rail keeps nobody waiting.
            yield* Effect.timeoutOption(Deferred.await(draining), fate.holdMillis)
            return yield* onTheSocket((response) => response.destroy())
          case "ServerError":
            return yield* onTheSocket(plain(503, "text/plain", "upstream connect error or reset before headers"))
          case "Html":
            return yield* onTheSocket(
              plain(200, "text/html", "<!doctype html><title>Maintenance</title><h1>Back soon</h1>")
            )
          case "Reset":
            return yield* onTheSocket((response) => {
              response.socket?.resetAndDestroy()
              response.destroy()
            })
          case "UnknownStatus": {
            const body = JSON.stringify({ clientReference, status: "XXXX", railReference: null, code: null })
            return yield* onTheSocket(plain(200, "application/json", body))
          }
        }
      }),
      lookup: Effect.fnUntraced(function* ({ query }) {
        const fate = yield* stub.lookup(query.clientReference)
        return fate._tag === "Answered"
          ? fate.answer
          : yield* onTheSocket(plain(503, "text/plain", "the lookup is out of order"))
      }),
      payments: () => stub.payments
    })
  })
)

const controlHandlers = HttpApiBuilder.group(
  RailStubHttpApi,
  "control",
  Effect.fnUntraced(function* (handlers) {
    const stub = yield* RailStub.RailStub
    return handlers.handleAll({
      read: () => stub.control,
      replace: ({ payload }) => stub.replaceControl(payload)
    })
  })
)

export const layer: Layer.Layer<never, ConfigProblem, ServiceConfig> = HttpServer.serve({
  api: RailStubHttpApi,
  handlers: Layer.merge(railHandlers, controlHandlers)
}).pipe(Layer.provide([RailStub.layer, Readiness.layer(), Draining.layer]))
