// @effect-diagnostics nodeBuiltinImport:off
import { NodeHttpClient } from "@effect/platform-node"
import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Exit, Fiber, Layer, References, Scope } from "effect"
import { HttpClient } from "effect/http"
import * as Http from "node:http"
import type { AddressInfo, Socket } from "node:net"
import { AcquireId, FencingToken, LockKey, OwnerId, SessionId } from "../../../src/core/lock/Lock.ts"
import { LockApi } from "../../../src/core/lock/LockApi.ts"
import { TraceId } from "../../../src/core/TraceId.ts"
import * as HttpLockApi from "../../../src/services/api/HttpLockApi.ts"
import { waitUntil } from "../../support/waitUntil.ts"

interface Seen {
  readonly line: string
  readonly headers: Http.IncomingHttpHeaders
  readonly body: string
}

type Answer = (response: Http.ServerResponse, request: Http.IncomingMessage) => void

/** A server that answers everything with one thing, and remembers what it was asked. */
const serverOf = (answer: Answer) =>
  Effect.acquireRelease(
    Effect.callback<{
      url: string
      seen: Array<Seen>
      sockets: Set<Socket>
      connections: () => number
      close: () => void
    }>((resume) => {
      const seen: Array<Seen> = []
      const sockets = new Set<Socket>()
      let connections = 0
      const server = Http.createServer((request, response) => {
        let body = ""
        request.on("data", (chunk) => (body += String(chunk)))
        request.on("end", () => {
          seen.push({ line: `${request.method} ${request.url}`, headers: request.headers, body })
          answer(response, request)
        })
      })
      server.on("connection", (socket) => {
        connections++
        sockets.add(socket)
        socket.on("close", () => sockets.delete(socket))
      })
      server.listen(0, "127.0.0.1", () => {
        const { port } = server.address() as AddressInfo
        resume(
          Effect.succeed({
            url: `http://127.0.0.1:${port}`,
            seen,
            sockets,
            connections: () => connections,
            close: () => {
              server.close()
              for (const socket of sockets) socket.destroy()
            }
          })
        )
      })
    }),
    (server) => Effect.sync(server.close)
  )

const json =
  (status: number, body: unknown): Answer =>
  (response) => {
    response.writeHead(status, { "content-type": "application/json; charset=utf-8" }).end(JSON.stringify(body))
  }
const envelope = (status: number, code: string, details: object, retryAfterMillis: number | null = null): Answer =>
  json(status, {
    code,
    message: "..",
    retrySafe: retryAfterMillis !== null,
    retryAfterMillis,
    details,
    traceId: "d10c0000000000000000000000000001"
  })

/** Generous: only the test of the bound itself wants it short. */
const apiAt = (url: string, callTimeoutMillis = 10_000) =>
  Effect.map(
    Layer.build(HttpLockApi.layer({ url, callTimeoutMillis }).pipe(Layer.provide(NodeHttpClient.layerUndici))),
    (context) => context
  ).pipe(Effect.flatMap((context) => Effect.provideContext(LockApi, context)))

const key = LockKey.make("payout:a/b")
const ownerId = OwnerId.make("w1")
const sessionId = SessionId.make("s-1")
const token = FencingToken.make(9_223_372_036_854_775_807n)
const at = "2026-01-02T03:04:05.678Z"
const sessionJson = { sessionId, ownerId, ttlMillis: 15_000, expiresAt: at }
const grantJson = {
  key,
  fencingToken: String(token),
  ownerId,
  sessionId,
  grantedAt: at,
  expiresAt: at,
  ttlMillis: 15_000
}

describe("HttpLockApi", () => {
  it.live("sends each operation as the surface has it, the token in full", () =>
    Effect.gen(function* () {
      const server = yield* serverOf((response, request) => {
        const line = `${request.method} ${request.url}`
        if (request.method === "DELETE") response.writeHead(204).end()
        else if (line === "POST /v1/sessions") json(201, sessionJson)(response, request)
        else if (line.endsWith("/heartbeat")) json(200, sessionJson)(response, request)
        else if (line.endsWith("/acquire")) json(200, { ...grantJson, waitedMillis: 12 })(response, request)
        else if (line.endsWith("/renew")) json(200, grantJson)(response, request)
        else if (line.endsWith("/revoke")) {
          json(200, { key, revokedToken: "7", newTokenFloor: "8", revocationId: "r1" })(response, request)
        } else json(200, { key, held: true, holderOwnerId: "w2", expiresAt: at, advisory: true })(response, request)
      })
      const api = yield* apiAt(server.url)
      const acquireId = AcquireId.make("id-1")
      const session = yield* api.openSession({ ownerId, ttlMillis: 15_000, openId: acquireId })
      assert.strictEqual(session.expiresAt, Date.parse(at))
      yield* api.heartbeat(sessionId, ownerId)
      const grant = yield* api.acquire({ key, ownerId, sessionId, acquireId, ttlMillis: 15_000, waitMillis: 5 })
      assert.strictEqual(grant.token, token)
      assert.strictEqual(grant.waitedMillis, 12)
      yield* api.renew({ key, ownerId, token })
      yield* api.release({ key, ownerId, token })
      yield* api.closeSession(sessionId, ownerId)
      assert.deepStrictEqual(yield* api.inspect(key), {
        key,
        held: true,
        holderOwnerId: OwnerId.make("w2"),
        expiresAt: Date.parse(at)
      })
      const revocation = yield* api.revoke({
        key,
        operator: "Jane Doe",
        reason: "stuck since noon",
        expectedToken: token
      })
      assert.strictEqual(revocation.newTokenFloor, 8n)
      assert.deepStrictEqual(
        server.seen.map(({ body, line }) => `${line} ${body}`.trim()),
        [
          `POST /v1/sessions {"ttlMillis":15000}`,
          `POST /v1/sessions/s-1/heartbeat`,
          `POST /v1/locks/payout%3Aa%2Fb/acquire {"sessionId":"s-1","ttlMillis":15000,"waitMillis":5}`,
          `POST /v1/locks/payout%3Aa%2Fb/renew {}`,
          `DELETE /v1/locks/payout%3Aa%2Fb`,
          `DELETE /v1/sessions/s-1`,
          `GET /v1/locks/payout%3Aa%2Fb`,
          `POST /v1/locks/payout%3Aa%2Fb/revoke {"operator":"Jane Doe","reason":"stuck since noon","expectedToken":"${token}"}`
        ]
      )
      const headers = server.seen.map((seen) => seen.headers)
      assert.deepStrictEqual(
        headers.map((h) => h["x-owner-id"]),
        ["w1", "w1", "w1", "w1", "w1", "w1", undefined, "Jane_Doe"]
      )
      assert.strictEqual(headers[2]?.["x-idempotency-key"], "id-1")
      assert.strictEqual(headers[3]?.["x-fencing-token"], String(token))
      assert.strictEqual(headers[4]?.["x-fencing-token"], String(token))
      for (const h of headers) assert.match(String(h["traceparent"]), /^00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]$/u)
    })
  )

  it.live("carries the trace id of the caller's own request on, and the active span's before that", () =>
    Effect.gen(function* () {
      const server = yield* serverOf(json(200, sessionJson))
      const api = yield* apiAt(server.url)
      const traceId = "d10c00001111111122222222aaaaaaaa"
      yield* Effect.provideService(api.heartbeat(sessionId, ownerId), TraceId, traceId)
      assert.include(String(server.seen[0]?.headers["traceparent"]), traceId)
      const spanTraceId = yield* Effect.andThen(
        api.heartbeat(sessionId, ownerId),
        Effect.map(Effect.currentSpan, (span) => span.traceId)
      ).pipe(Effect.withSpan("payout"), Effect.provideService(TraceId, traceId))
      assert.include(String(server.seen[1]?.headers["traceparent"]), spanTraceId)
    })
  )

  it.live("carries the caller's trace id where no spans are kept, too; without one the service gives it an id", () =>
    Effect.gen(function* () {
      const server = yield* serverOf(json(200, sessionJson))
      const api = yield* apiAt(server.url)
      const traceId = "d10c00001111111122222222aaaaaaaa"
      yield* Effect.provideService(api.heartbeat(sessionId, ownerId), TraceId, traceId)
      yield* api.heartbeat(sessionId, ownerId)
      const [first, second] = server.seen.map(({ headers }) => String(headers["traceparent"]))
      assert.strictEqual(first, `00-${traceId}-${traceId.slice(16)}-01`)
      assert.strictEqual(second, "undefined")
      // As a process without an endpoint has it (`platform/Telemetry.ts`).
    }).pipe(
      Effect.provideService(References.TracerEnabled, false),
      Effect.provideService(HttpClient.TracerDisabledWhen, () => true)
    )
  )

  it.live("answers each declared failure as its class", () =>
    Effect.gen(function* () {
      const details = { key, outcome: "HELD_BY_OTHER", holderOwnerId: "w2", holderExpiresAt: 5 }
      const contended = yield* serverOf(envelope(409, "LOCK_CONTENDED", details, 250))
      const acquire = { key, ownerId, sessionId }
      const api = yield* apiAt(contended.url)
      const failure = yield* Effect.flip(api.acquire(acquire))
      assert.strictEqual(failure._tag === "LockContended" ? failure.retryAfterMillis : 0, 250)
      for (const [status, code, body, tag] of [
        [409, "LOCK_LOST", { key, token: String(token), reason: "expired" }, "LockLost"],
        [410, "SESSION_EXPIRED", { sessionId }, "SessionExpired"],
        [404, "SESSION_UNKNOWN", { sessionId }, "SessionUnknown"]
      ] as const) {
        const server = yield* serverOf(envelope(status, code, body))
        const other = yield* apiAt(server.url)
        assert.strictEqual((yield* Effect.flip(other.acquire(acquire)))._tag, tag)
      }
      const notLeader = yield* serverOf(envelope(503, "NOT_LEADER", { operation: "acquire" }, 250))
      assert.strictEqual((yield* Effect.flip((yield* apiAt(notLeader.url)).acquire(acquire)))._tag, "NotLeader")
    })
  )

  it.live("takes everything that is no answer of the service for an unknown fate", () =>
    Effect.gen(function* () {
      const noAnswers: Record<string, Answer> = {
        "an HTML page": (r) => void r.writeHead(503, { "content-type": "text/html" }).end("<h1>503</h1>"),
        "an HTML page that says 200": (r) => void r.writeHead(200, { "content-type": "text/html" }).end("<h1>hi</h1>"),
        nothing: (r) => void r.writeHead(200).end(),
        "JSON of another shape": json(200, { ok: true }),
        "a grant with a token in a JSON number": json(200, { ...grantJson, fencingToken: 7, waitedMillis: 0 }),
        "a grant with a token of 0": json(200, { ...grantJson, fencingToken: "0", waitedMillis: 0 }),
        "half a JSON": (r) => void r.writeHead(200, { "content-type": "application/json" }).end('{"key":'),
        "a defect of the service": envelope(500, "INTERNAL", {}),
        "another service": envelope(404, "ROUTE_NOT_FOUND", { path: "/x" }),
        "an undeclared status": (r) => void r.writeHead(418).end("{}"),
        "a redirect": (r) => void r.writeHead(302, { location: "/elsewhere" }).end(),
        "a reset connection": (_, request) => void request.socket.destroy(),
        "a connection cut in the middle of the body": (r, request) => {
          r.writeHead(200, { "content-type": "application/json", "content-length": "500" })
          r.write('{"key"')
          request.socket.destroySoon()
        },
        "the other's refusal to act": envelope(503, "BACKEND_UNAVAILABLE", { operation: "a", cause: "b" }, 250)
      }
      for (const [name, answer] of Object.entries(noAnswers)) {
        const server = yield* serverOf(answer)
        const api = yield* apiAt(server.url)
        const failure = yield* Effect.flip(api.acquire({ key, ownerId, sessionId }))
        assert.strictEqual(failure._tag, "BackendUnavailable", name)
        assert.strictEqual(server.seen.length, 1, `${name}: asked once`)
      }
      const server = yield* serverOf(json(200, {}))
      server.close()
      const api = yield* apiAt(server.url)
      assert.strictEqual((yield* Effect.flip(api.release({ key, ownerId, token })))._tag, "BackendUnavailable")
    })
  )

  it.live("takes an answer that our request was wrong for a bug of ours", () =>
    Effect.gen(function* () {
      for (const answer of [
        envelope(400, "VALIDATION_FAILED", { fields: [{ path: "payload.ttlMillis", reason: ".." }] }),
        envelope(400, "INVALID_TOKEN", { reason: ".." }),
        envelope(413, "PAYLOAD_TOO_LARGE", { limitBytes: 1 }),
        envelope(415, "UNSUPPORTED_MEDIA_TYPE", { expected: "application/json" })
      ]) {
        const server = yield* serverOf(answer)
        const api = yield* apiAt(server.url)
        assert.isTrue(Exit.hasDies(yield* Effect.exit(api.acquire({ key, ownerId, sessionId }))))
      }
      const server = yield* serverOf(json(200, {}))
      const api = yield* apiAt(server.url)
      assert.isTrue(Exit.hasDies(yield* Effect.exit(api.acquire({ key, ownerId, sessionId, ttlMillis: -1 }))))
      assert.strictEqual(server.seen.length, 0, "what does not encode is not sent")
    })
  )

  it.live("ends within its bound when the service does not, an acquire later by its wait", () =>
    Effect.gen(function* () {
      const silent: Answer = () => {}
      const stalled: Answer = (r) => {
        r.writeHead(200, { "content-type": "application/json", "content-length": "500" })
        r.write('{"key"')
      }
      for (const answer of [silent, stalled]) {
        const server = yield* serverOf(answer)
        const callTimeoutMillis = 300
        const api = yield* apiAt(server.url, callTimeoutMillis)
        const took = <A, E extends { readonly _tag: string }>(call: Effect.Effect<A, E>) =>
          Effect.gen(function* () {
            const start = yield* Clock.monotonicTimeNanos
            assert.strictEqual((yield* Effect.flip(call))._tag, "BackendUnavailable")
            return Number(((yield* Clock.monotonicTimeNanos) - start) / 1_000_000n)
          })
        const renew = yield* took(api.renew({ key, ownerId, token }))
        assert.isAtLeast(renew, callTimeoutMillis - 2)
        assert.isBelow(renew, callTimeoutMillis + 5_000)
        const acquire = yield* took(api.acquire({ key, ownerId, sessionId, waitMillis: 300 }))
        assert.isAtLeast(acquire, callTimeoutMillis + 298)
        assert.isBelow(acquire, callTimeoutMillis + 5_000)
      }
    })
  )

  it.live("uses a connection again for calls in a row and closes it with its scope", () =>
    Effect.gen(function* () {
      const server = yield* serverOf(json(200, sessionJson))
      const scope = yield* Scope.make()
      const api = yield* Scope.provide(apiAt(server.url), scope)
      for (let i = 0; i < 20; i++) yield* api.heartbeat(sessionId, ownerId)
      // The next request may leave before the last answer's connection is free again.
      assert.isAtMost(server.connections(), 2)
      yield* Scope.close(scope, Exit.void)
      yield* waitUntil(
        "the connection is closed",
        Effect.sync(() => server.sockets.size === 0)
      )
    })
  )

  it.live("breaks the connection off when its caller goes away, so that the service can stop waiting", () =>
    Effect.gen(function* () {
      const server = yield* serverOf(() => {})
      const api = yield* apiAt(server.url)
      const fiber = yield* Effect.forkChild(api.acquire({ key, ownerId, sessionId, waitMillis: 20_000 }))
      yield* waitUntil(
        "the request has arrived",
        Effect.sync(() => server.seen.length === 1)
      )
      yield* Fiber.interrupt(fiber)
      yield* waitUntil(
        "the connection is gone",
        Effect.sync(() => server.sockets.size === 0)
      )
    })
  )
})
