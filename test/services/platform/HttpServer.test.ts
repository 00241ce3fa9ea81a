/** The port of a process: whatever a client does to it is answered, in one envelope, and nothing hangs. */
import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Exit, Fiber, Scope } from "effect"
import * as Http from "node:http"
import * as Net from "node:net"
import { secret, start } from "../../support/TestSurface.ts"

interface Answer {
  readonly status: number
  readonly headers: Http.IncomingHttpHeaders
  readonly body: string
}

type HeaderMap = Readonly<Record<string, string | ReadonlyArray<string>>>

const send = (url: string, method: string, path: string, headers: HeaderMap = {}, body?: string | Buffer) =>
  Effect.callback<Answer, Error>((resume) => {
    const request = Http.request(
      `${url}${path}`,
      { method, headers: headers as Http.OutgoingHttpHeaders, agent: false, timeout: 8_000 },
      (response) => {
        let text = ""
        response.setEncoding("utf8").on("data", (part: string) => (text += part))
        response.on("end", () =>
          resume(Effect.succeed({ status: response.statusCode ?? 0, headers: response.headers, body: text }))
        )
      }
    )
    request.on("timeout", () => request.destroy(new Error("no answer in time")))
    request.on("error", (error) => resume(Effect.fail(error)))
    request.end(body)
    return Effect.sync(() => request.destroy())
  })

/** Raw bytes out; every byte in, until the server closes. */
const raw = (port: number, bytes: string, keepOpen = false) =>
  Effect.callback<string, Error>((resume) => {
    const socket = Net.connect(port, "127.0.0.1")
    let text = ""
    socket.setEncoding("utf8").on("data", (part: string) => (text += part))
    socket.setTimeout(15_000, () => socket.destroy(new Error("the server keeps the connection")))
    socket.on("error", (error) => resume(Effect.fail(error)))
    socket.on("close", () => resume(Effect.succeed(text)))
    socket.write(bytes)
    if (!keepOpen) socket.on("end", () => socket.end())
    return Effect.sync(() => socket.destroy())
  })

const fields = ["code", "message", "retrySafe", "retryAfterMillis", "details", "traceId"]

/** The code in the envelope, after everything about it was checked. */
const codeOf = ({ body, headers }: Answer): string => {
  assert.strictEqual(headers["content-type"], "application/json; charset=utf-8")
  const envelope = JSON.parse(body) as { code: string; traceId: string }
  assert.deepStrictEqual(Object.keys(envelope), fields)
  assert.match(envelope.traceId, /^[0-9a-f]{32}$/)
  return envelope.code
}

const statusAndCode = (answer: Answer) => [answer.status, codeOf(answer)]

const rawAnswer = (text: string): Answer => {
  const [head = "", ...body] = text.split("\r\n\r\n")
  const [line = "", ...lines] = head.split("\r\n")
  const headers = Object.fromEntries(
    lines.map((one) => [one.slice(0, one.indexOf(":")).toLowerCase(), one.slice(one.indexOf(":") + 1).trim()])
  )
  return { status: Number(line.split(" ")[1]), headers, body: body.join("\r\n\r\n") }
}

const renew = "/v1/things/k/renew"
const write = { "x-owner-id": "w1", "x-fencing-token": "5" }
const json = { "content-type": "application/json" }

describe("a surface", () => {
  it.live("answers a write with or without a body", () =>
    Effect.gen(function* () {
      const { url } = yield* start()
      const none = yield* send(url, "POST", renew, write)
      assert.strictEqual(none.headers["content-type"], "application/json; charset=utf-8")
      assert.deepStrictEqual([none.status, none.body], [200, '{"token":"5","ttlMillis":null}'])
      const empty = yield* send(url, "POST", renew, { ...write, ...json }, "{}")
      assert.deepStrictEqual([empty.status, empty.body], [200, '{"token":"5","ttlMillis":null}'])
      const nothing = yield* send(url, "POST", renew, { ...write, ...json }, "null")
      assert.deepStrictEqual([nothing.status, nothing.body], [200, none.body])
      const full = yield* send(url, "POST", renew, { ...write, ...json }, '{"ttlMillis":1500}')
      assert.deepStrictEqual([full.status, full.body], [200, '{"token":"5","ttlMillis":1500}'])
    }).pipe(Effect.scoped)
  )

  it.live("takes a fencing token only in its one canonical form", () =>
    Effect.gen(function* () {
      const { url } = yield* start()
      const bad: ReadonlyArray<string | ReadonlyArray<string> | undefined> = [
        undefined,
        "",
        "0",
        "-1",
        "+5",
        "007",
        "1e3",
        "0x10",
        "5.0",
        "five",
        "5,6",
        ["5", "5"],
        ["5", "6"],
        "٥",
        "9223372036854775808",
        "99999999999999999999"
      ]
      for (const token of bad) {
        const { "x-fencing-token": _, ...rest } = write
        const raw = typeof token === "string" ? Buffer.from(token, "utf8").toString("latin1") : token
        const answer = yield* send(url, "POST", renew, raw === undefined ? rest : { ...rest, "x-fencing-token": raw })
        assert.deepStrictEqual(statusAndCode(answer), [400, "INVALID_TOKEN"], String(token))
      }
      for (const token of ["1", "9007199254740993", "9223372036854775807"]) {
        const answer = yield* send(url, "POST", renew, { ...write, "x-fencing-token": token })
        assert.deepStrictEqual([answer.status, JSON.parse(answer.body)], [200, { token, ttlMillis: null }])
      }
      // never from the body
      const inBody = yield* send(url, "POST", renew, { "x-owner-id": "w1", ...json }, '{"fencingToken":"5"}')
      assert.strictEqual(codeOf(inBody), "INVALID_TOKEN")
    }).pipe(Effect.scoped)
  )

  it.live("names every field that is out of bounds, and no unknown field becomes a default", () =>
    Effect.gen(function* () {
      const { url } = yield* start()
      const both = yield* send(url, "POST", renew, { ...write, ...json }, '{"ttlMillis":5,"ttlMilis":1500}')
      assert.deepStrictEqual(statusAndCode(both), [400, "VALIDATION_FAILED"])
      const paths = (JSON.parse(both.body) as { details: { fields: ReadonlyArray<{ path: string }> } }).details.fields
      assert.sameMembers(
        paths.map(({ path }) => path),
        ["payload.ttlMillis", "payload.ttlMilis"]
      )
      const header = yield* send(url, "POST", renew, { "x-owner-id": "w 1", "x-fencing-token": "05" })
      assert.strictEqual(codeOf(header), "VALIDATION_FAILED")
      assert.strictEqual(codeOf(yield* send(url, "GET", "/v1/things?limit=0")), "VALIDATION_FAILED")
      assert.strictEqual(codeOf(yield* send(url, "GET", "/v1/things?limit=501")), "VALIDATION_FAILED")
      assert.strictEqual((yield* send(url, "GET", "/v1/things?limit=500")).status, 200)
      const long = yield* send(url, "POST", `/v1/things/${"k".repeat(201)}/renew`, write)
      assert.strictEqual(codeOf(long), "VALIDATION_FAILED")
    }).pipe(Effect.scoped)
  )

  it.live("answers 404, 405, 413, 415 and bodies that are no JSON in the envelope", () =>
    Effect.gen(function* () {
      const { managementUrl, url } = yield* start()
      assert.deepStrictEqual(statusAndCode(yield* send(url, "GET", "/nope")), [404, "ROUTE_NOT_FOUND"])
      assert.deepStrictEqual(statusAndCode(yield* send(url, "GET", "/v1/%ZZ")), [404, "ROUTE_NOT_FOUND"])
      assert.deepStrictEqual(statusAndCode(yield* send(url, "GET", "/")), [404, "ROUTE_NOT_FOUND"])
      assert.deepStrictEqual(statusAndCode(yield* send(url, "GET", "/v1/things/")), [404, "ROUTE_NOT_FOUND"])
      assert.deepStrictEqual(statusAndCode(yield* send(url, "GET", "//v1/things")), [404, "ROUTE_NOT_FOUND"])
      assert.deepStrictEqual(statusAndCode(yield* send(managementUrl, "GET", renew)), [404, "ROUTE_NOT_FOUND"])
      for (const method of ["GET", "PUT", "PATCH", "DELETE", "OPTIONS"]) {
        const answer = yield* send(url, method, renew, write)
        assert.deepStrictEqual([...statusAndCode(answer), answer.headers.allow], [405, "METHOD_NOT_ALLOWED", "POST"])
      }
      const large = "x".repeat(64 * 1024 + 1)
      const body = JSON.stringify({ ttlMillis: 1_500, large })
      assert.deepStrictEqual(statusAndCode(yield* send(url, "POST", renew, { ...write, ...json }, body)), [
        413,
        "PAYLOAD_TOO_LARGE"
      ])
      const chunked = yield* send(url, "POST", renew, { ...write, ...json, "transfer-encoding": "chunked" }, body)
      assert.deepStrictEqual(statusAndCode(chunked), [413, "PAYLOAD_TOO_LARGE"])
      for (const type of [{}, { "content-type": "text/plain" }, { "content-type": "application/jsonx" }]) {
        const answer = yield* send(url, "POST", renew, { ...write, ...type }, "{}")
        assert.deepStrictEqual(statusAndCode(answer), [415, "UNSUPPORTED_MEDIA_TYPE"], JSON.stringify(type))
      }
      for (const broken of ["{", "[]", '"x"', "\u0000", '{"ttlMillis":1e999}', "{}{}"]) {
        const answer = yield* send(url, "POST", renew, { ...write, ...json }, broken)
        assert.deepStrictEqual(statusAndCode(answer), [400, "VALIDATION_FAILED"], broken)
      }
    }).pipe(Effect.scoped)
  )

  it.live("tells nothing of a defect, and logs it with the trace id of the answer", () =>
    Effect.gen(function* () {
      const { log, url } = yield* start()
      const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
      const answer = yield* send(url, "GET", "/v1/boom", { traceparent })
      assert.deepStrictEqual(statusAndCode(answer), [500, "INTERNAL"])
      assert.notInclude(answer.body, secret)
      assert.include(answer.body, "0af7651916cd43dd8448eb211c80319c")
      assert.isTrue(
        log.some(({ cause, level }) => level === "Error" && JSON.stringify(cause)?.includes("Die") === true)
      )
      const head = yield* send(url, "HEAD", "/v1/boom")
      assert.deepStrictEqual([head.status, head.body], [500, ""])
    }).pipe(Effect.scoped)
  )

  it.live("logs a typed failure under the trace id of the answer", () =>
    Effect.gen(function* () {
      const { log, url } = yield* start()
      const answer = yield* send(url, "POST", "/v1/things/lost/renew", write)
      assert.deepStrictEqual(statusAndCode(answer), [409, "LOCK_LOST"])
      const { traceId } = JSON.parse(answer.body) as { traceId: string }
      assert.isTrue(log.some((line) => line["code"] === "LOCK_LOST" && line["traceId"] === traceId))
    }).pipe(Effect.scoped)
  )

  it.live("answers what is no HTTP, too large or of an unknown kind before any route", () =>
    Effect.gen(function* () {
      const { port, url } = yield* start()
      const cases: ReadonlyArray<readonly [bytes: string, status: number, code: string]> = [
        ["GARBAGE\r\n\r\n", 400, "MALFORMED_REQUEST"],
        ["GET / HTTP/9.9\r\n\r\n", 400, "MALFORMED_REQUEST"],
        [
          "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
          400,
          "MALFORMED_REQUEST"
        ],
        ["POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400, "MALFORMED_REQUEST"],
        [`GET / HTTP/1.1\r\nHost: a\r\nX: ${"a".repeat(9_000)}\r\n\r\n`, 431, "HEADERS_TOO_LARGE"],
        ["CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405, "METHOD_NOT_ALLOWED"],
        ["OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 404, "ROUTE_NOT_FOUND"],
        ["GET http://a/nope HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 404, "ROUTE_NOT_FOUND"],
        ["GET /nope HTTP/1.0\r\n\r\n", 404, "ROUTE_NOT_FOUND"],
        ["GET /nope HTTP/1.1\r\nConnection: close\r\n\r\n", 404, "ROUTE_NOT_FOUND"],
        ["GET /nope HTTP/1.1\r\nHost: a\r\nExpect: magic\r\n\r\n", 400, "MALFORMED_REQUEST"]
      ]
      for (const [bytes, status, code] of cases) {
        const answer = rawAnswer(yield* raw(port, bytes))
        assert.deepStrictEqual(statusAndCode(answer), [status, code], bytes.slice(0, 60))
      }
      // After an answer that closes the connection nothing more is said on it.
      const twice = yield* raw(port, "GET /nope HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n{}GARBAGE\r\n\r\n")
      assert.deepStrictEqual(statusAndCode(rawAnswer(twice)), [404, "ROUTE_NOT_FOUND"])
      const upgrade = { connection: "Upgrade", upgrade: "websocket" }
      assert.deepStrictEqual(statusAndCode(yield* send(url, "GET", "/nope", upgrade)), [404, "ROUTE_NOT_FOUND"])
      assert.strictEqual((yield* send(url, "GET", "/v1/things")).status, 200)
    }).pipe(Effect.scoped)
  )

  it.live("gives up on a request that does not arrive", () =>
    Effect.gen(function* () {
      const { port } = yield* start()
      const body = "Content-Length: 9\r\n\r\n{"
      const answers = yield* Effect.all(
        [
          raw(port, "POST /v1/things HTTP/1.1\r\nHost: a\r\n", true),
          raw(
            port,
            `POST ${renew} HTTP/1.1\r\nHost: a\r\nX-Owner-Id: w1\r\nX-Fencing-Token: 5\r\nContent-Type: application/json\r\n${body}`,
            true
          ),
          // Refused before its body came: one answer, and not a second one for the body.
          raw(port, `POST ${renew} HTTP/1.1\r\nHost: a\r\n${body}`, true)
        ],
        { concurrency: "unbounded" }
      )
      assert.deepStrictEqual(
        answers.map((text) => statusAndCode(rawAnswer(text))),
        [
          [408, "REQUEST_TIMEOUT"],
          [408, "REQUEST_TIMEOUT"],
          [415, "UNSUPPORTED_MEDIA_TYPE"]
        ]
      )
    }).pipe(Effect.scoped)
  )
})

describe("stopping", () => {
  it.live("finishes what is under way, refuses what is new, and closes idle connections", () =>
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      const { log, port, slow, url } = yield* start().pipe(Scope.provide(scope))
      const idle = yield* Effect.forkChild(raw(port, "GET /v1/things HTTP/1.1\r\nHost: a\r\n\r\n"), {
        startImmediately: true
      })
      const under = yield* Effect.forkChild(send(url, "POST", "/v1/slow"), { startImmediately: true })
      yield* Deferred.await(slow.arrived)
      const closing = yield* Effect.forkChild(Scope.close(scope, Exit.void), { startImmediately: true })
      yield* Effect.sleep(10).pipe(Effect.repeat({ until: () => log.some(({ event }) => event === "draining") }))
      assert.include(yield* Fiber.join(idle), "200 OK")
      const refused = yield* Effect.exit(send(url, "GET", "/v1/things"))
      assert.isTrue(Exit.isFailure(refused))
      yield* Deferred.succeed(slow.release, undefined)
      const answer = yield* Fiber.join(under)
      assert.deepStrictEqual([answer.status, answer.headers.connection], [204, "close"])
      yield* Fiber.join(closing)
    })
  )

  it.live(
    "answers a request that outlasts the drain with a retry-safe 503",
    () =>
      Effect.gen(function* () {
        const scope = yield* Scope.make()
        const { slow, url } = yield* start({ drainMillis: 300 }).pipe(Scope.provide(scope))
        const under = yield* Effect.forkChild(send(url, "POST", "/v1/slow", {}), { startImmediately: true })
        yield* Deferred.await(slow.arrived)
        yield* Scope.close(scope, Exit.void).pipe(Effect.timeout("15 seconds"))
        const answer = yield* Fiber.join(under)
        assert.deepStrictEqual(statusAndCode(answer), [503, "BACKEND_UNAVAILABLE"])
      }),
    20_000
  )

  it.live("says which port is taken", () =>
    Effect.gen(function* () {
      const { port } = yield* start()
      const problem = yield* Effect.flip(start({ environment: { HTTP_PORT: String(port) } }))
      assert.deepStrictEqual(
        problem.problems.map(({ setting, value }) => [setting, value]),
        [["http.port", String(port)]]
      )
    }).pipe(Effect.scoped)
  )
})
