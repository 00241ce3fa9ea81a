/** The rail's client on real sockets: what was sent how often, and which answers mean anything. */
import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Fiber, type Scope } from "effect"
import * as http from "node:http"
import * as net from "node:net"
import { FaultPoint } from "../../../src/core/FaultPoint.ts"
import type { Rail, RailNoAnswer } from "../../../src/core/rail/Rail.ts"
import * as HttpRail from "../../../src/services/rail-proxy/HttpRail.ts"
import { waitUntil } from "../../support/waitUntil.ts"

const payment = {
  clientReference: "P-1",
  amountMinor: 9_007_199_254_740_993n,
  currency: "EUR",
  beneficiary: "DE02120300000000202051"
}

const listening = <S extends net.Server>(server: S): Effect.Effect<string, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.callback<string>((resume) => {
      server.listen(0, "127.0.0.1", () =>
        resume(Effect.succeed(`http://127.0.0.1:${(server.address() as net.AddressInfo).port}`))
      )
    }),
    () => Effect.sync(() => server.close())
  )

/** Every request that arrived whole, and what to do with its connection. */
const rawRail = (onRequest: (socket: net.Socket) => void) =>
  Effect.gen(function* () {
    const requests: Array<string> = []
    let connections = 0
    const server = net.createServer((socket) => {
      connections++
      let seen = ""
      socket.on("error", () => {})
      socket.on("data", (chunk: Buffer) => {
        seen += chunk.toString("latin1")
        const [head = "", body = ""] = seen.split("\r\n\r\n")
        if (!seen.includes("\r\n\r\n") || body.length < Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0)) return
        requests.push(seen)
        seen = ""
        onRequest(socket)
      })
    })
    const url = yield* listening(server)
    return { rail: HttpRail.make(url), requests, connections: () => connections }
  })

/** A rail that gives the same answer to everything. */
const answering = (status: number, contentType: string, body: unknown) =>
  Effect.gen(function* () {
    const server = http.createServer((_request, response) => {
      response.writeHead(status, { "content-type": contentType })
      response.end(typeof body === "string" ? body : JSON.stringify(body))
    })
    return HttpRail.make(yield* listening(server))
  })

/** Within the send window. */
const submit = (rail: Rail["Service"], windowMillis = 2_000) =>
  Effect.flatMap(Clock.monotonicTimeNanos, (now) => rail.submit(payment, now + BigInt(windowMillis) * 1_000_000n))

/** The failure as plain fields; `cause` of an Error is none that can be enumerated. */
const failure = <A, R>(effect: Effect.Effect<A, RailNoAnswer, R>) =>
  Effect.map(Effect.flip(effect), (found) => ({ ...found, cause: found.cause }) as Record<string, unknown>)

const ok = (socket: net.Socket) => {
  const body = JSON.stringify({ clientReference: "P-1", status: "ACSC", railReference: "R-1", code: null })
  socket.write(
    `HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: keep-alive\r\ncontent-length: ${body.length}\r\n\r\n${body}`
  )
}

describe("HttpRail sends", () => {
  it.live("the payment and nothing else: no token, no key; int64 amounts as digits", () =>
    Effect.gen(function* () {
      const { rail, requests } = yield* rawRail(ok)
      assert.deepStrictEqual(yield* submit(rail), { _tag: "Acknowledged", railReference: "R-1" })
      const [head = "", body = ""] = (requests[0] ?? "").split("\r\n\r\n")
      assert.match(head, /^POST \/submit HTTP\/1\.1\r\n/)
      assert.notMatch(head, /fencing|idempotency|owner/i)
      assert.deepStrictEqual(JSON.parse(body), {
        clientReference: "P-1",
        amountMinor: "9007199254740993",
        currency: "EUR",
        beneficiary: "DE02120300000000202051"
      })
    })
  )

  it.live("once, also when the connection is killed after the request was written", () =>
    Effect.gen(function* () {
      const { connections, rail, requests } = yield* rawRail((socket) => socket.resetAndDestroy())
      assert.deepInclude(yield* failure(submit(rail)), { _tag: "RailNoAnswer", neverSent: false })
      assert.deepStrictEqual([requests.length, connections()], [1, 1])
    })
  )

  it.live("once, also when the rail killed the connection of the call before, which it had offered to keep", () =>
    Effect.gen(function* () {
      // Answers the first call and keeps the connection; kills whatever it has when the second arrives.
      const open: Array<net.Socket> = []
      const { connections, rail, requests } = yield* rawRail((socket) => {
        open.push(socket)
        if (open.length === 1) return ok(socket)
        for (const one of open) one.resetAndDestroy()
      })
      yield* submit(rail)
      assert.deepInclude(yield* failure(submit(rail)), { neverSent: false })
      assert.deepStrictEqual([requests.length, connections()], [2, 2])
    })
  )

  it.live("nothing to a rail that is down, and can tell", () =>
    Effect.gen(function* () {
      const url = yield* Effect.scoped(listening(net.createServer()))
      const down = HttpRail.make(url)
      assert.deepStrictEqual(yield* failure(submit(down)), {
        _tag: "RailNoAnswer",
        cause: "no connection: ECONNREFUSED",
        neverSent: true
      })
      assert.deepInclude(yield* failure(down.lookup("P-1")), { _tag: "RailNoAnswer", neverSent: true })
      assert.deepInclude(yield* failure(down.ping), { _tag: "RailNoAnswer" })
    })
  )

  it.live("nothing when the window has passed before the connection stands", () =>
    Effect.gen(function* () {
      const { connections, rail } = yield* rawRail(ok)
      assert.deepInclude(yield* failure(submit(rail, -1)), { neverSent: true, cause: "the send window has passed" })
      assert.strictEqual(connections(), 0)
    })
  )

  it.live("nothing when it was stopped while it connected: the clock is looked at once more", () =>
    Effect.gen(function* () {
      const { rail, requests } = yield* rawRail(ok)
      const clock = yield* Clock.Clock
      const now = clock.monotonicTimeNanosUnsafe()
      let looks = 0
      const stopped: Clock.Clock = {
        ...clock,
        currentTimeMillisUnsafe: () => clock.currentTimeMillisUnsafe(),
        currentTimeNanosUnsafe: () => clock.currentTimeNanosUnsafe(),
        monotonicTimeNanosUnsafe: () => (looks++ === 0 ? now : now + 3_000_000_000n),
        monotonicTimeNanos: Effect.sync(() => (looks++ === 0 ? now : now + 3_000_000_000n)),
        sleep: (duration) => clock.sleep(duration)
      }
      const sending = Effect.provideService(rail.submit(payment, now + 2_000_000_000n), Clock.Clock, stopped)
      assert.deepInclude(yield* failure(sending), { neverSent: true, cause: "the send window has passed" })
      assert.strictEqual(requests.length, 0)
    })
  )

  it.live("nothing when the connection does not stand within the window", () =>
    Effect.gen(function* () {
      // Accepts, and never says hello: the handshake stays open.
      const silent = yield* listening(net.createServer((socket) => socket.on("error", () => {})))
      const rail = HttpRail.make(silent.replace("http:", "https:"))
      assert.deepInclude(yield* failure(submit(rail, 200)), { neverSent: true, cause: "the send window has passed" })
    })
  )

  it.live("nothing more after an interruption, which ends at once", () =>
    Effect.gen(function* () {
      let closed = false
      const { rail, requests } = yield* rawRail((socket) => socket.once("close", () => (closed = true)))
      const caller = yield* Effect.forkChild(submit(rail))
      yield* waitUntil(
        "the request has arrived",
        Effect.sync(() => requests.length === 1)
      )
      yield* Fiber.interrupt(caller)
      yield* waitUntil(
        "the connection is closed",
        Effect.sync(() => closed)
      )
      assert.strictEqual(requests.length, 1)
    })
  )

  it.live("late when it is stopped between its check and the socket: the hole that no fence can close", () =>
    Effect.gen(function* () {
      const { rail, requests } = yield* rawRail(ok)
      const reached: Array<string> = []
      yield* submit(rail, 100).pipe(
        Effect.provideService(FaultPoint, (name) =>
          Effect.andThen(
            Effect.sync(() => reached.push(name)),
            // Longer than the window: nothing looks at the clock any more.
            Effect.sleep("300 millis")
          )
        )
      )
      assert.deepStrictEqual([reached, requests.length], [["rail.send.before"], 1])
    })
  )
})

describe("HttpRail takes for an answer", () => {
  const said = (fields: Record<string, unknown>) => ({
    clientReference: "P-1",
    status: "ACSC",
    railReference: "R-1",
    code: null,
    ...fields
  })
  const json = "application/json; charset=utf-8"

  const clear: ReadonlyArray<readonly [string, Record<string, unknown>, Record<string, unknown>]> = [
    ["ACSC as paid", said({}), { _tag: "Acknowledged", railReference: "R-1" }],
    ["ACCC as paid", said({ status: "ACCC" }), { _tag: "Acknowledged", railReference: "R-1" }],
    [
      "RJCT with a reason as declined",
      said({ status: "RJCT", railReference: null, code: "AM04" }),
      { _tag: "Declined", code: "AM04" }
    ]
  ]
  for (const [name, body, expected] of clear) {
    it.live(name, () =>
      Effect.gen(function* () {
        assert.deepStrictEqual<unknown>(yield* submit(yield* answering(200, json, body)), expected)
      })
    )
  }

  const unclear: ReadonlyArray<readonly [string, number, string, unknown]> = [
    [
      "a duplication (AM05): there is an original",
      200,
      json,
      said({ status: "RJCT", railReference: null, code: "AM05" })
    ],
    ["a duplication (DUPL)", 200, json, said({ status: "RJCT", railReference: null, code: "DUPL" })],
    ["a refusal without a reason", 200, json, said({ status: "RJCT", railReference: null })],
    ["a payment without a reference", 200, json, said({ railReference: null })],
    ["a status that is not final", 200, json, said({ status: "ACSP" })],
    ["a status nobody knows", 200, json, said({ status: "XXXX" })],
    ["an answer about another payment", 200, json, said({ clientReference: "P-2" })],
    ["a yes that is not OK", 202, json, said({})],
    ["a refusal with an error status", 400, json, said({ status: "RJCT", railReference: null, code: "AM04" })],
    ["an error with a yes in it", 500, json, said({})],
    ["a yes that calls itself HTML", 200, "text/html", said({})],
    ["a page", 200, "text/html", "<h1>Back soon</h1>"],
    ["half of a JSON", 200, json, `{"clientReference":"P-1","status":"ACSC"`],
    ["more than anybody would say", 200, json, said({ code: "x".repeat(70_000) })]
  ]
  for (const [name, status, contentType, body] of unclear) {
    it.live(`not: ${name}`, () =>
      Effect.gen(function* () {
        const rail = yield* answering(status, contentType, body)
        assert.deepInclude(yield* failure(submit(rail)), { _tag: "RailNoAnswer", neverSent: false })
      })
    )
  }

  it.live("not: an answer that breaks off", () =>
    Effect.gen(function* () {
      const { rail } = yield* rawRail((socket) => {
        socket.write(`HTTP/1.1 200 OK\r\ncontent-type: ${json}\r\ncontent-length: 500\r\n\r\n{"clientReference":"P-1",`)
        socket.end()
      })
      assert.deepInclude(yield* failure(submit(rail)), { _tag: "RailNoAnswer", neverSent: false })
    })
  )

  const findings: ReadonlyArray<readonly [Record<string, unknown>, Record<string, unknown>]> = [
    [
      { status: "ACSC", executedCount: 2, railReferences: ["R-1", "R-2"] },
      { _tag: "EXECUTED", count: 2, railReference: "R-1" }
    ],
    [{ status: "RJCT", executedCount: 0, railReferences: [] }, { _tag: "REJECTED" }],
    [{ status: "PDNG", executedCount: 0, railReferences: [] }, { _tag: "PENDING" }],
    [{ status: "ACSP", executedCount: 0, railReferences: [] }, { _tag: "PENDING" }],
    [{ status: "NOT_FOUND", executedCount: 0, railReferences: [] }, { _tag: "NOT_FOUND" }]
  ]
  for (const [answer, expected] of findings) {
    it.live(`${String(answer["status"])} of a lookup as ${String(expected["_tag"])}`, () =>
      Effect.gen(function* () {
        const rail = yield* answering(200, json, { clientReference: "P-1", ...answer })
        assert.deepStrictEqual<unknown>(yield* rail.lookup("P-1"), expected)
      })
    )
  }

  it.live("no finding of a lookup that is broken, or about another payment", () =>
    Effect.gen(function* () {
      const notFound = { status: "NOT_FOUND", executedCount: 0, railReferences: [] }
      for (const rail of [
        yield* answering(503, "text/plain", "out of order"),
        yield* answering(404, json, { clientReference: "P-1", ...notFound }),
        yield* answering(200, json, { clientReference: "P-2", ...notFound }),
        yield* answering(200, json, { clientReference: "P-1", ...notFound, status: "ACSC" })
      ]) {
        assert.deepInclude(yield* failure(rail.lookup("P-1")), { _tag: "RailNoAnswer", neverSent: false })
      }
    })
  )
})
