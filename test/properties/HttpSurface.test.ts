/** The property that every surface is held to, on a small one; and that it finds what it is for. */
import { assert, describe, it } from "@effect/vitest"
import { Cause, Deferred, Effect, Exit } from "effect"
import { HttpApi } from "effect/http-api"
import { start, TestApi } from "../support/TestSurface.ts"
import * as HttpSurface from "./HttpSurface.ts"

describe("a surface under arbitrary requests", () => {
  it.live("gives a documented answer to each", () =>
    Effect.gen(function* () {
      const { slow, url } = yield* start()
      yield* Deferred.succeed(slow.release, undefined)
      const statuses = yield* HttpSurface.check({
        api: TestApi,
        baseUrl: url,
        vocabulary: ["lost", "k"],
        except: ["/v1/boom"],
        runs: 500,
        seed: 1
      })
      // The requests got behind the decoding as well as into each of its refusals.
      for (const status of [200, 204, 400, 404, 405, 409, 415]) {
        assert.isAbove(statuses.get(status) ?? 0, 0, `no ${status} among ${JSON.stringify([...statuses])}`)
      }
    }).pipe(Effect.scoped)
  )

  it.live("is found out when one endpoint breaks", () =>
    Effect.gen(function* () {
      const { slow, url } = yield* start()
      yield* Deferred.succeed(slow.release, undefined)
      const exit = yield* Effect.exit(HttpSurface.check({ api: TestApi, baseUrl: url, runs: 500 }))
      assert.isTrue(Exit.isFailure(exit) && Cause.pretty(exit.cause).includes("an internal error"))
    }).pipe(Effect.scoped)
  )

  it.live("is found out when a refusal leaves a trace", () =>
    Effect.gen(function* () {
      const { slow, url } = yield* start()
      yield* Deferred.succeed(slow.release, undefined)
      let asked = 0
      const exit = yield* Effect.exit(
        HttpSurface.check({
          api: TestApi,
          baseUrl: url,
          except: ["/v1/boom"],
          state: Effect.sync(() => String(asked++))
        })
      )
      assert.isTrue(Exit.isFailure(exit) && /a 4\d\d that changed something/.test(Cause.pretty(exit.cause)))
    }).pipe(Effect.scoped)
  )

  it("is asked by the names of its fields", () => {
    const names: Array<string> = []
    HttpApi.reflect(TestApi, {
      onGroup() {},
      onEndpoint({ endpoint }) {
        const payloads = [...endpoint.payload.values()].flatMap(({ schemas }) => schemas)
        names.push(...[endpoint.query, ...payloads].flatMap(HttpSurface.fieldsOf))
      }
    })
    assert.sameMembers(names, ["limit", "ttlMillis"])
  })
})

describe("an answer", () => {
  const envelope = {
    code: "ROUTE_NOT_FOUND",
    message: "no such route",
    retrySafe: false,
    retryAfterMillis: null,
    details: { path: "/x" },
    traceId: "0af7651916cd43dd8448eb211c80319c"
  }
  const problemOf = (status: number, body: unknown, contentType = "application/json; charset=utf-8", method = "GET") =>
    HttpSurface.problemOf(
      { method, endpoint: undefined },
      { status, contentType, body: typeof body === "string" ? body : JSON.stringify(body) }
    )

  it("is accepted as documented", () => {
    assert.isUndefined(problemOf(404, envelope))
    assert.isUndefined(problemOf(204, ""))
    assert.isUndefined(problemOf(404, "", undefined, "HEAD"))
  })

  const { traceId: _, ...fiveFields } = envelope
  const planted: ReadonlyArray<readonly [problem: string, found: string | undefined]> = [
    ["an internal error", problemOf(500, { ...envelope, code: "INTERNAL" })],
    ["an empty 503", problemOf(503, "")],
    ["content type text/html", problemOf(503, "<h1>503</h1>", "text/html")],
    ["content type application/json", problemOf(404, envelope, "application/json")],
    ["a body that is no JSON", problemOf(404, "{")],
    ["an undocumented 200", problemOf(200, { anything: true })],
    ["an envelope of other fields", problemOf(404, fiveFields)],
    ["an envelope of other fields", problemOf(404, { ...envelope, stack: "at x" })],
    ["an envelope of other fields", problemOf(404, Object.fromEntries(Object.entries(envelope).reverse()))],
    ["does not document", problemOf(404, { ...envelope, code: "LOCK_LOST" })],
    ["does not document", problemOf(404, { ...envelope, retrySafe: true })],
    ["a body in answer to HEAD", problemOf(404, envelope, undefined, "HEAD")]
  ]
  for (const [index, [problem, found]] of planted.entries()) {
    it(`is refused for ${problem} (${index + 1})`, () => assert.include(found, problem))
  }
})
