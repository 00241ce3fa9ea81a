/** A lock-server in this process, on free ports, reached over real sockets. */
import { assert } from "@effect/vitest"
import { ConfigProvider, Effect, Layer, Logger, Metric, References } from "effect"
import type { LockStore } from "../../../src/core/lock/LockStore.ts"
import { defaults } from "../../../src/core/Settings.ts"
import { LockHttpApi } from "../../../src/services/api/LockHttpApi.ts"
import * as AdminHandlers from "../../../src/services/lock-server/AdminHandlers.ts"
import * as LockHandlers from "../../../src/services/lock-server/LockHandlers.ts"
import * as LockServer from "../../../src/services/lock-server/LockServer.ts"
import * as LockService from "../../../src/services/lock-server/LockService.ts"
import * as HttpServer from "../../../src/services/platform/HttpServer.ts"
import * as Management from "../../../src/services/platform/Management.ts"
import * as ServiceConfig from "../../../src/services/platform/ServiceConfig.ts"

type Line = { readonly level: string; readonly message: string; readonly [name: string]: unknown }

interface Needs {
  readonly layer: Layer.Layer<never, unknown, ServiceConfig.ServiceConfig | Management.Draining>
  readonly environment: Readonly<Record<string, string>>
}

const running = Effect.fnUntraced(function* ({ environment, layer }: Needs) {
  const log: Array<Line> = []
  const logger = Logger.make(({ fiber, logLevel, message }) => {
    log.push({ ...fiber.getRef(References.CurrentLogAnnotations), level: logLevel, message: String(message) })
  })
  yield* Layer.build(
    layer.pipe(
      Layer.provide([
        Management.Draining.layer,
        Logger.layer([logger]),
        Layer.succeed(Metric.MetricRegistry, new Map()),
        ServiceConfig.layer("lock-server")
      ]),
      Layer.provide(
        ConfigProvider.layer(ConfigProvider.fromEnvRecord({ HTTP_PORT: "0", MANAGEMENT_PORT: "0", ...environment }))
      )
    )
  )
  const ports = log.find(({ event }) => event === "listening")
  const at = (port: unknown) => `http://127.0.0.1:${Number(port)}`
  return { log, url: at(ports?.["port"]), managementUrl: at(ports?.["managementPort"]) }
})

/** Handlers and service over a store of the test's choice. */
export const startOver = (store: Layer.Layer<LockStore>) =>
  running({
    environment: {},
    layer: HttpServer.serve({ api: LockHttpApi, handlers: LockHandlers.layer, admin: AdminHandlers }).pipe(
      Layer.provide([LockService.layer(defaults.lock), Management.Readiness.layer()]),
      Layer.provide(store)
    )
  })

/** The whole process layer. Ends with the scope, as on SIGTERM. */
export const start = (environment: Readonly<Record<string, string>>) =>
  running({ environment, layer: LockServer.layer })

export interface Answer {
  readonly status: number
  readonly headers: Headers
  readonly text: string
  readonly json: Readonly<Record<string, unknown>>
}

export interface Request {
  readonly method?: string
  readonly owner?: string
  readonly token?: string
  readonly id?: string
  readonly body?: unknown
  readonly signal?: AbortSignal
}

export const send = (url: string, path: string, { body, id, method = "GET", owner, signal, token }: Request = {}) =>
  Effect.promise((interrupted) =>
    fetch(`${url}${path}`, {
      method,
      headers: {
        ...(owner === undefined ? {} : { "x-owner-id": owner }),
        ...(token === undefined ? {} : { "x-fencing-token": token }),
        ...(id === undefined ? {} : { "x-idempotency-key": id }),
        ...(body === undefined ? {} : { "content-type": "application/json" })
      },
      body: body === undefined ? null : typeof body === "string" ? body : JSON.stringify(body),
      signal: signal ?? interrupted
    }).then((response) =>
      response.text().then((text): Answer => {
        const json: unknown = text.startsWith("{") ? JSON.parse(text) : {}
        return { status: response.status, headers: response.headers, text, json: json as Answer["json"] }
      })
    )
  )

/** The code in an envelope that is right in every other way. */
export const codeOf = ({ headers, json, status }: Answer): string => {
  assert.isTrue(status >= 400, `${status}`)
  assert.strictEqual(headers.get("content-type"), "application/json; charset=utf-8")
  assert.deepStrictEqual(Object.keys(json), ["code", "message", "retrySafe", "retryAfterMillis", "details", "traceId"])
  assert.match(String(json["traceId"]), /^[0-9a-f]{32}$/)
  assert.strictEqual(typeof json["message"], "string")
  assert.strictEqual(typeof json["retrySafe"], "boolean")
  return String(json["code"])
}

export const open = (url: string, owner: string, ttlMillis = 60_000) =>
  Effect.map(send(url, "/v1/sessions", { method: "POST", owner, body: { ttlMillis } }), ({ json, status }) => {
    assert.strictEqual(status, 201)
    return String(json["sessionId"])
  })

export const acquire = (
  url: string,
  key: string,
  owner: string,
  sessionId: string,
  rest: { readonly ttlMillis?: number; readonly waitMillis?: number; readonly id?: string } = {}
) => {
  const { id, ...body } = rest
  return send(url, `/v1/locks/${encodeURIComponent(key)}/acquire`, {
    method: "POST",
    owner,
    ...(id === undefined ? {} : { id }),
    body: { sessionId, ...body }
  })
}
