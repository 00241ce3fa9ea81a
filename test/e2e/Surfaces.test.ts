// @effect-diagnostics nodeBuiltinImport:off
/**
 * The four surfaces as they run, under whatever is sent to them: only what is documented comes back, nothing hangs, and a
 * refusal changes nothing, in the databases or in the rail's book.
 *
 * The long run: DLOCK_RUNS=3000 npx vitest run test/e2e/Surfaces.test.ts
 */
import { assert, describe, it } from "@effect/vitest"
import { Config, Effect } from "effect"
import type { HttpApi, HttpApiGroup } from "effect/http-api"
import * as Net from "node:net"
import { LockHttpApi } from "../../src/services/api/LockHttpApi.ts"
import { PaymentHttpApi } from "../../src/services/api/PaymentHttpApi.ts"
import { RailHttpApi } from "../../src/services/api/RailHttpApi.ts"
import { RailStubHttpApi } from "../../src/services/api/RailStubHttpApi.ts"
import type { Example } from "../properties/HttpSurface.ts"
import * as HttpSurface from "../properties/HttpSurface.ts"
import { FourSurfaces, lockScene, payoutScene, stubExamples, type SurfaceName } from "../support/fourSurfaces.ts"

/** Requests to each surface, in batches: what one batch has closed, released or settled is there again in the next. */
const runs = Effect.orDie(Config.withDefault(Config.Int("DLOCK_RUNS"), 75))
const BATCH = 75

/** As long as a request may wait for a lock, and then some. */
const answerMillis = 40_000

const urlsOf = (surfaces: FourSurfaces["Service"]) => ({
  "lock-server": surfaces["lock-server"].url,
  "payment-resource": surfaces["payment-resource"].url,
  "rail-proxy": surfaces["rail-proxy"].url,
  "rail-stub": surfaces["rail-stub"].url
})

/** A status that must be reached is not left to the draw: the scenes hold one request for each, and these two are refused. */
const refused = (name: SurfaceName): ReadonlyArray<Example> => [
  { method: "GET", path: "/v1/nothing" },
  { method: "POST", path: routes[name].write, body: {} }
]

/** One surface under arbitrary requests; its answers must have got behind the decoding and into each refusal. */
const hold = <Id extends string, Groups extends HttpApiGroup.Constraint>(
  name: SurfaceName,
  api: HttpApi.HttpApi<Id, Groups>,
  scene: (round: number) => Effect.Effect<Pick<HttpSurface.SurfaceOptions<Id, Groups>, "examples" | "vocabulary">>,
  reached: ReadonlyArray<number>
) =>
  Effect.gen(function* () {
    const surface = (yield* FourSurfaces)[name]
    const total = new Map<number, number>()
    const wanted = yield* runs
    for (let round = 1; (round - 1) * BATCH < wanted; round++) {
      const { examples = [], vocabulary = [] } = yield* scene(round)
      const statuses = yield* HttpSurface.check({
        examples: [...refused(name), ...examples],
        vocabulary,
        examplesFirst: round === 1,
        api,
        baseUrl: surface.url,
        state: surface.state,
        runs: Math.min(BATCH, wanted - (round - 1) * BATCH),
        answerMillis
      })
      for (const [status, count] of statuses) total.set(status, (total.get(status) ?? 0) + count)
    }
    for (const status of reached) {
      assert.isAbove(total.get(status) ?? 0, 0, `no ${status} among ${JSON.stringify([...total])}`)
    }
  })

// -----------------------------------------------------------------------------
// raw bytes
// -----------------------------------------------------------------------------

/** Raw bytes out; every byte in, until the server closes. */
const raw = (url: string, bytes: string) =>
  Effect.callback<string>((resume) => {
    const socket = Net.connect(Number(new URL(url).port), "127.0.0.1")
    let text = ""
    socket.setEncoding("utf8").on("data", (part: string) => (text += part))
    socket.setTimeout(20_000, () => socket.destroy(new Error("the server keeps the connection")))
    socket.on("error", (error) => resume(Effect.die(error)))
    socket.on("close", () => resume(Effect.succeed(text)))
    socket.on("end", () => socket.end())
    socket.write(bytes)
    return Effect.sync(() => socket.destroy())
  })

const fields = ["code", "message", "retrySafe", "retryAfterMillis", "details", "traceId"]

/** Status and code, after everything about the envelope was checked. */
const answerOf = (text: string): readonly [status: number, code: string] => {
  const head = text.slice(0, text.indexOf("\r\n\r\n"))
  const body = text.slice(head.length + 4)
  assert.match(head, /^content-type: application\/json; charset=utf-8$/im)
  const envelope = JSON.parse(body) as Readonly<Record<string, unknown>>
  assert.deepStrictEqual(Object.keys(envelope), fields)
  assert.match(String(envelope["traceId"]), /^[0-9a-f]{32}$/)
  return [Number(head.split(" ")[1]), String(envelope["code"])]
}

const close = "Host: a\r\nConnection: close\r\n"
const json = "Content-Type: application/json\r\n"

/** A route that takes a body, with what it takes besides, and one that is read. */
const routes: Readonly<
  Record<SurfaceName, { readonly write: string; readonly headers: string; readonly read: string }>
> = {
  "lock-server": { write: "/v1/sessions", headers: "X-Owner-Id: w1\r\n", read: "/v1/locks/never-seen" },
  "payment-resource": { write: "/v1/accounts", headers: "X-Owner-Id: w1\r\n", read: "/v1/payouts" },
  "rail-proxy": {
    write: "/v1/rail/submissions",
    headers: "X-Owner-Id: w1\r\nX-Fencing-Token: 5\r\nX-Idempotency-Key: k\r\n",
    read: "/v1/rail/submissions/00000000-0000-4000-8000-00000000dead"
  },
  "rail-stub": { write: "/submit", headers: "", read: "/payments" }
}

const chunk = `1000\r\n${"x".repeat(0x1000)}\r\n`

const rawCases = ({
  headers,
  read,
  write
}: (typeof routes)[SurfaceName]): ReadonlyArray<readonly [bytes: string, status: number, code: string]> => [
  ["no HTTP at all\r\n\r\n", 400, "MALFORMED_REQUEST"],
  ["\u0016\u0003\u0001\u0002\u0000\u0001\u0000", 400, "MALFORMED_REQUEST"],
  [`GET ${read} HTTP/1.1\r\n${close}X: ${"x".repeat(9_000)}\r\n\r\n`, 431, "HEADERS_TOO_LARGE"],
  [
    `POST ${write} HTTP/1.1\r\n${close}${json}${headers}Transfer-Encoding: chunked\r\n\r\n${chunk.repeat(17)}0\r\n\r\n`,
    413,
    "PAYLOAD_TOO_LARGE"
  ],
  [`POST ${write} HTTP/1.1\r\n${close}${json}${headers}Content-Length: 1\r\n\r\n{`, 400, "VALIDATION_FAILED"],
  [`POST ${write} HTTP/1.1\r\n${close}${headers}Content-Length: 2\r\n\r\n{}`, 415, "UNSUPPORTED_MEDIA_TYPE"],
  [`PATCH ${read} HTTP/1.1\r\n${close}\r\n`, 405, "METHOD_NOT_ALLOWED"],
  [`GET /v1/nothing HTTP/1.1\r\n${close}\r\n`, 404, "ROUTE_NOT_FOUND"],
  [`OPTIONS * HTTP/1.1\r\n${close}\r\n`, 404, "ROUTE_NOT_FOUND"]
]

describe("the four surfaces", () => {
  it.layer(FourSurfaces.layer, { excludeTestServices: true, timeout: "120 seconds" })((it) => {
    it.effect(
      "answer arbitrary requests as documented, and a refusal changes nothing: lock-server",
      () =>
        Effect.gen(function* () {
          const { url } = (yield* FourSurfaces)["lock-server"]
          yield* hold("lock-server", LockHttpApi, (round) => lockScene(url, round), [200, 201, 400, 404, 409])
        }),
      600_000
    )

    it.effect(
      "answer arbitrary requests as documented, and a refusal changes nothing: payment-resource",
      () =>
        Effect.gen(function* () {
          const urls = urlsOf(yield* FourSurfaces)
          yield* hold(
            "payment-resource",
            PaymentHttpApi,
            (round) =>
              Effect.map(payoutScene(urls, `p${round}`), ({ paymentExamples, vocabulary }) => ({
                examples: paymentExamples,
                vocabulary
              })),
            [200, 201, 400, 404, 409]
          )
        }),
      600_000
    )

    it.effect(
      "answer arbitrary requests as documented, and a refusal changes nothing: rail-proxy",
      () =>
        Effect.gen(function* () {
          const urls = urlsOf(yield* FourSurfaces)
          yield* hold(
            "rail-proxy",
            RailHttpApi,
            (round) =>
              Effect.map(payoutScene(urls, `r${round}`), ({ railExamples, vocabulary }) => ({
                examples: railExamples,
                vocabulary
              })),
            [200, 400, 404, 409, 422, 504]
          )
        }),
      600_000
    )

    it.effect(
      "answer arbitrary requests as documented, and a refusal changes nothing: rail-stub",
      () =>
        hold(
          "rail-stub",
          RailStubHttpApi,
          () => Effect.succeed({ examples: stubExamples, vocabulary: ["ref-1", "EUR", "5"] }),
          [200, 400]
        ),
      600_000
    )

    for (const name of Object.keys(routes) as ReadonlyArray<SurfaceName>) {
      it.effect(`answer in the envelope what is no proper request, and change nothing: ${name}`, () =>
        Effect.gen(function* () {
          const { state, url } = (yield* FourSurfaces)[name]
          const before = yield* state
          for (const [bytes, status, code] of rawCases(routes[name])) {
            const answer = answerOf(yield* raw(url, bytes))
            assert.deepStrictEqual(answer, [status, code], bytes.slice(0, 60))
          }
          const head = yield* raw(url, `HEAD ${routes[name].read} HTTP/1.1\r\n${close}\r\n`)
          assert.match(head, /^HTTP\/1\.1 (?:200|404) /)
          assert.isTrue(head.endsWith("\r\n\r\n"), "a body in answer to HEAD")
          assert.strictEqual(yield* state, before)
        })
      )
    }

    it.effect("run on afterwards, and end with 0 when they are told to", () =>
      Effect.gen(function* () {
        const surfaces = Object.values(yield* FourSurfaces)
        const codes = yield* Effect.forEach(surfaces, ({ process }) => process.stop, { concurrency: "unbounded" })
        assert.deepStrictEqual(codes, [0, 0, 0, 0])
      })
    )
  })
})
