/** The rail over real sockets: what each misbehaviour looks like to a caller, and to its book. */
import { NodeHttpClient } from "@effect/platform-node"
import { assert, describe, it, layer } from "@effect/vitest"
import { Clock, Context, Effect, Fiber, Layer } from "effect"
import { HttpApiClient } from "effect/http-api"
import * as http from "node:http"
import { type Control, RailStubHttpApi } from "../../../src/services/api/RailStubHttpApi.ts"
import * as RailStubServer from "../../../src/services/rail-stub/RailStubServer.ts"
import { waitUntil } from "../../support/waitUntil.ts"
import { serving, type Serving } from "./serving.ts"

class Stub extends Context.Service<Stub, Serving>()("test/Stub") {
  static readonly layer = Layer.effect(Stub, serving("rail-stub", RailStubServer.layer))
}

/** What a caller sees, as a socket shows it. */
type Seen =
  | { readonly status: number; readonly contentType: string; readonly body: string }
  | { readonly broke: string }

const request = (method: string, url: string, body?: unknown, headers: Record<string, string> = {}) =>
  Effect.callback<Seen>((resume) => {
    const text = body === undefined ? undefined : JSON.stringify(body)
    const call = http.request(
      url,
      {
        method,
        agent: false,
        headers: { ...(text === undefined ? {} : { "content-type": "application/json" }), ...headers }
      },
      (response) => {
        let seen = ""
        response.setEncoding("utf8").on("data", (chunk: string) => (seen += chunk))
        response.on("end", () =>
          resume(
            Effect.succeed({
              status: response.statusCode ?? 0,
              contentType: response.headers["content-type"] ?? "",
              body: seen
            })
          )
        )
      }
    )
    call.on("error", (cause: NodeJS.ErrnoException) => resume(Effect.succeed({ broke: cause.code ?? cause.message })))
    call.end(text)
    return Effect.sync(() => call.destroy())
  })

const order = (clientReference: string) => ({
  clientReference,
  amountMinor: "2500",
  currency: "EUR",
  beneficiary: "DE02120300000000202051"
})

const client = Effect.flatMap(Stub, ({ url }) => HttpApiClient.make(RailStubHttpApi, { baseUrl: url }))

const behave = Effect.fnUntraced(function* (control: Partial<typeof Control.Encoded>) {
  const { url } = yield* Stub
  const answer = yield* request("PUT", `${url}/control`, control)
  assert.deepStrictEqual("status" in answer ? answer.status : answer, 200)
})

const submit = (clientReference: string) =>
  Effect.flatMap(Stub, ({ url }) => request("POST", `${url}/submit`, order(clientReference)))

const paidFor = Effect.fnUntraced(function* (clientReference: string) {
  const book = yield* (yield* client).rail.payments()
  return book.payments.filter((payment) => payment.clientReference === clientReference).length
})

layer(Layer.merge(Stub.layer, NodeHttpClient.layerUndici), { excludeTestServices: true })(
  "rail-stub over HTTP",
  (it) => {
    it.effect("pays twice for the same client reference, without a token or a key", () =>
      Effect.gen(function* () {
        yield* behave({})
        const rail = (yield* client).rail
        const payload = { ...order("twice"), amountMinor: 2_500n }
        const [first, second] = [yield* rail.submit({ payload }), yield* rail.submit({ payload })]
        assert.deepStrictEqual([first.status, second.status], ["ACSC", "ACSC"])
        assert.notStrictEqual(first.railReference, second.railReference)
        const found = yield* rail.lookup({ query: { clientReference: "twice" } })
        assert.deepStrictEqual(found, {
          clientReference: "twice",
          status: "ACSC",
          executedCount: 2,
          railReferences: [first.railReference ?? "", second.railReference ?? ""]
        })
      })
    )

    const seen: ReadonlyArray<readonly [string, Record<string, unknown>, number, (seen: Seen) => void]> = [
      [
        "a timeout that paid is a connection that breaks without an answer",
        { kind: "timeoutPaid" },
        1,
        (answer) => assert.deepStrictEqual(answer, { broke: "ECONNRESET" })
      ],
      [
        "a timeout that did not pay looks the same",
        { kind: "timeoutUnpaid" },
        0,
        (answer) => assert.deepStrictEqual(answer, { broke: "ECONNRESET" })
      ],
      [
        "a reset is a reset, paid",
        { kind: "reset" },
        1,
        (answer) => assert.deepStrictEqual(answer, { broke: "ECONNRESET" })
      ],
      [
        "a reset is a reset, not paid",
        { kind: "reset", paid: false },
        0,
        (answer) => assert.deepStrictEqual(answer, { broke: "ECONNRESET" })
      ],
      [
        "a 5xx has no envelope, and paid",
        { kind: "http5xx" },
        1,
        (answer) => assert.deepInclude(answer, { status: 503, contentType: "text/plain" })
      ],
      [
        "a page for humans comes with 200, and paid",
        { kind: "htmlBody" },
        1,
        (answer) => assert.deepInclude(answer, { status: 200, contentType: "text/html" })
      ],
      [
        "an unknown status is well-formed JSON",
        { kind: "unknownStatus", paid: false },
        0,
        (answer) => assert.strictEqual("body" in answer ? JSON.parse(answer.body).status : answer, "XXXX")
      ],
      [
        "a decline names its reason",
        { kind: "decline", code: "AM04" },
        0,
        (answer) =>
          assert.deepInclude("body" in answer ? JSON.parse(answer.body) : answer, { status: "RJCT", code: "AM04" })
      ]
    ]
    for (const [i, [behaviour, fault, paid, check]] of seen.entries()) {
      it.effect(behaviour, () =>
        Effect.gen(function* () {
          yield* behave({ holdMillis: 50, faults: [fault as never] })
          check(yield* submit(`fault-${i}`))
          assert.strictEqual(yield* paidFor(`fault-${i}`), paid)
          // One shot: the next one is served well.
          assert.deepInclude(yield* submit(`after-${i}`), { status: 200 })
        })
      )
    }

    it.effect("holds a connection open for as long as it was told", () =>
      Effect.gen(function* () {
        yield* behave({ holdMillis: 300, faults: [{ kind: "timeoutUnpaid" }] })
        const before = yield* Clock.monotonicTimeNanos
        assert.deepStrictEqual(yield* submit("held"), { broke: "ECONNRESET" })
        assert.isAtLeast(Number((yield* Clock.monotonicTimeNanos) - before) / 1e6, 290)
      })
    )

    it.effect("has paid although its caller hung up while it was slow", () =>
      Effect.gen(function* () {
        yield* behave({ latency: { fixedMillis: 60_000 } })
        const caller = yield* Effect.forkChild(submit("hung-up"))
        yield* waitUntil(
          "the payment is booked",
          Effect.map(paidFor("hung-up"), (n) => n === 1)
        )
        yield* Fiber.interrupt(caller)
        yield* behave({})
        assert.strictEqual(yield* paidFor("hung-up"), 1)
      })
    )

    it.effect("tells what is still to come of its faults, and forgets all with an empty control", () =>
      Effect.gen(function* () {
        const { control } = yield* client
        yield* behave({ seed: 42, faults: [{ kind: "decline", times: 3 }], lookup: { faults: [{ kind: "pending" }] } })
        yield* submit("count-1")
        const left = yield* control.read()
        assert.deepStrictEqual(
          [left.seed, left.faults, left.lookup.faults],
          [42, [{ kind: "decline", times: 2 }], [{ kind: "pending", times: 1 }]]
        )
        yield* behave({})
        assert.deepStrictEqual((yield* control.read()).faults, [])
      })
    )

    it.effect("has a lookup that can be out of order", () =>
      Effect.gen(function* () {
        const { url } = yield* Stub
        yield* behave({ lookup: { faults: [{ kind: "unavailable" }] } })
        assert.deepInclude(yield* request("GET", `${url}/lookup?clientReference=x`), { status: 503 })
        assert.deepInclude(yield* request("GET", `${url}/lookup?clientReference=x`), { status: 200 })
      })
    )

    const malformed: ReadonlyArray<readonly [string, string, unknown, number, string]> = [
      ["POST", "/submit", { ...order("a b"), clientReference: "a b" }, 400, "VALIDATION_FAILED"],
      ["POST", "/submit", { ...order("x"), amountMinor: 2500 }, 400, "VALIDATION_FAILED"],
      ["POST", "/submit", { ...order("x"), amountMinor: "-1" }, 400, "VALIDATION_FAILED"],
      ["POST", "/submit", { ...order("x"), token: "7" }, 400, "VALIDATION_FAILED"],
      ["PUT", "/control", { rates: { decline: 2 } }, 400, "VALIDATION_FAILED"],
      ["PUT", "/control", { rates: { decline: 0.6, reset: 0.6 } }, 400, "VALIDATION_FAILED"],
      ["PUT", "/control", { fault: [] }, 400, "VALIDATION_FAILED"],
      ["GET", "/lookup", undefined, 400, "VALIDATION_FAILED"],
      ["GET", "/nowhere", undefined, 404, "ROUTE_NOT_FOUND"],
      ["DELETE", "/payments", undefined, 405, "METHOD_NOT_ALLOWED"]
    ]
    for (const [method, path, body, status, code] of malformed) {
      it.effect(`answers ${method} ${path} ${JSON.stringify(body) ?? ""} with ${code} and changes nothing`, () =>
        Effect.gen(function* () {
          const { url } = yield* Stub
          yield* behave({})
          const before = yield* (yield* client).rail.payments()
          const answer = yield* request(method, `${url}${path}`, body)
          assert.strictEqual("status" in answer ? answer.status : answer, status)
          const envelope = "body" in answer ? JSON.parse(answer.body) : {}
          assert.deepStrictEqual(Object.keys(envelope), [
            "code",
            "message",
            "retrySafe",
            "retryAfterMillis",
            "details",
            "traceId"
          ])
          assert.strictEqual(envelope.code, code)
          assert.deepStrictEqual(yield* (yield* client).rail.payments(), before)
        })
      )
    }
  }
)

describe("rail-stub stopping", () => {
  it.live("keeps no caller waiting", () =>
    Effect.gen(function* () {
      const stub = yield* serving("rail-stub", RailStubServer.layer)
      yield* request("PUT", `${stub.url}/control`, { faults: [{ kind: "timeoutPaid" }] })
      const caller = yield* Effect.forkChild(request("POST", `${stub.url}/submit`, order("last")))
      yield* waitUntil(
        "the payment is booked",
        Effect.map(request("GET", `${stub.url}/payments`), (answer) => "body" in answer && answer.body.includes("last"))
      )
      const before = yield* Clock.monotonicTimeNanos
      yield* stub.stop
      assert.isBelow(Number((yield* Clock.monotonicTimeNanos) - before) / 1e6, 2_000)
      assert.deepStrictEqual(yield* Fiber.join(caller), { broke: "ECONNRESET" })
    }).pipe(Effect.scoped)
  )
})
