/**
 * Which codes each route can answer, read from the value that serves it, against the contract written out by hand. A
 * code that a route gains or loses fails here, so the two can not drift apart.
 */
import { assert, describe, it } from "@effect/vitest"
import { HttpApi, type HttpApiGroup } from "effect/http-api"
import { type Schema, SchemaAST } from "effect"
import { errorTable, type WireTag } from "../../../src/services/api/ApiError.ts"
import { LockHttpApi } from "../../../src/services/api/LockHttpApi.ts"
import { PaymentHttpApi } from "../../../src/services/api/PaymentHttpApi.ts"
import { RailHttpApi } from "../../../src/services/api/RailHttpApi.ts"
import { RailStubHttpApi } from "../../../src/services/api/RailStubHttpApi.ts"

type Codes = Readonly<Record<string, ReadonlyArray<string>>>

/** What any route can answer: the row "all" of the contract, and every surface checks its input. */
const everywhere = [
  "VALIDATION_FAILED",
  "ROUTE_NOT_FOUND",
  "METHOD_NOT_ALLOWED",
  "PAYLOAD_TOO_LARGE",
  "UNSUPPORTED_MEDIA_TYPE",
  "MALFORMED_REQUEST",
  "REQUEST_TIMEOUT",
  "HEADERS_TOO_LARGE",
  "INTERNAL"
]
const token = ["INVALID_TOKEN"]
const backend = ["NOT_LEADER", "BACKEND_UNAVAILABLE"]
const session = ["SESSION_UNKNOWN", "SESSION_EXPIRED"]

const lock: Codes = {
  "POST /v1/sessions": backend,
  "POST /v1/sessions/:sessionId/heartbeat": [...session, ...backend],
  "DELETE /v1/sessions/:sessionId": [...session, ...backend],
  "POST /v1/locks/:key/acquire": ["LOCK_CONTENDED", "CONTENTION_EXCEEDED", "LOCK_LOST", ...session, ...backend],
  "POST /v1/locks/:key/renew": [...token, "LOCK_LOST", ...backend],
  "DELETE /v1/locks/:key": [...token, "LOCK_LOST", ...backend],
  "GET /v1/locks/:key": ["LOCK_NOT_FOUND", ...backend],
  "POST /v1/locks/:key/revoke": ["FENCED_OUT", "LOCK_NOT_FOUND", ...backend]
}

const moved = [
  ...token,
  "FENCED_OUT",
  "PAYOUT_NOT_FOUND",
  "ILLEGAL_TRANSITION",
  "EVIDENCE_MISSING",
  "BACKEND_UNAVAILABLE"
]

const payment: Codes = {
  "GET /v1/payouts": ["BACKEND_UNAVAILABLE"],
  "GET /v1/payouts/:payoutId": ["PAYOUT_NOT_FOUND", "BACKEND_UNAVAILABLE"],
  "POST /v1/payouts": ["ACCOUNT_NOT_FOUND", "BACKEND_UNAVAILABLE"],
  "POST /v1/payouts/:payoutId/claim": [...moved, "TOKEN_ALREADY_USED", "ACCOUNT_BUSY", "INSUFFICIENT_FUNDS"],
  "POST /v1/payouts/:payoutId/post": moved,
  "POST /v1/payouts/:payoutId/fail": moved,
  "POST /v1/payouts/:payoutId/ambiguous": moved,
  "POST /v1/payouts/:payoutId/resolve": moved,
  "GET /v1/accounts/:accountId": ["ACCOUNT_NOT_FOUND", "BACKEND_UNAVAILABLE"],
  "GET /v1/accounts/:accountId/ledger": ["ACCOUNT_NOT_FOUND", "BACKEND_UNAVAILABLE"],
  "POST /v1/accounts": ["BACKEND_UNAVAILABLE"],
  "GET /v1/payouts/:payoutId/history": ["PAYOUT_NOT_FOUND", "BACKEND_UNAVAILABLE"]
}

const fenced = [...token, "FENCED_OUT", "TOKEN_ALREADY_USED", "PAYOUT_NOT_FOUND", "BACKEND_UNAVAILABLE"]

const rail: Codes = {
  "POST /v1/rail/submissions": [...fenced, "DUPLICATE_SUBMISSION", "RAIL_AMBIGUOUS", "RAIL_DECLINED"],
  "GET /v1/rail/submissions/:payoutId": ["PAYOUT_NOT_FOUND", "BACKEND_UNAVAILABLE"],
  "POST /v1/rail/submissions/:payoutId/lookup": ["PAYOUT_NOT_FOUND", "BACKEND_UNAVAILABLE"],
  // A void takes the same slot as a submission, under a token of the same account: it meets the same two refusals.
  "POST /v1/rail/submissions/:payoutId/void": [...fenced, "DUPLICATE_SUBMISSION"],
  "POST /v1/rail/submissions/:payoutId/evidence": fenced
}

const stub: Codes = {
  "POST /submit": [],
  "GET /lookup": [],
  "GET /payments": [],
  "GET /control": [],
  "PUT /control": []
}

/** The codes of every route. A token is refused only where one is asked for, whatever the shared middleware declares. */
const codesOf = <Id extends string, Groups extends HttpApiGroup.Constraint>(
  api: HttpApi.HttpApi<Id, Groups>
): Codes => {
  const routes: Record<string, ReadonlyArray<string>> = {}
  HttpApi.reflect(api, {
    onGroup() {},
    onEndpoint({ endpoint, errors }) {
      const codes = [...errors.values()].flat().map(codeOf)
      const headers = endpoint.headers?.ast
      const asksForToken =
        headers !== undefined &&
        SchemaAST.isObjects(headers) &&
        headers.propertySignatures.some(({ name }) => name === "x-fencing-token")
      routes[`${endpoint.method} ${endpoint.path}`] = asksForToken
        ? codes
        : codes.filter((code) => code !== "INVALID_TOKEN")
    }
  })
  return routes
}

/** The schema of a failure is named after it. */
const codeOf = (schema: Schema.Top): string => {
  const name = String(schema.ast.annotations?.["identifier"])
  return Object.hasOwn(errorTable, name) ? errorTable[name as WireTag].code : `${name}, which is no failure`
}

/** What differs from the contract, route by route and in both directions. */
const differences = (served: Codes, contract: Codes): ReadonlyArray<string> =>
  [...new Set([...Object.keys(served), ...Object.keys(contract)])].flatMap((route) => {
    const has = served[route]
    const wants = contract[route]
    if (has === undefined) return [`${route} is not served`]
    if (wants === undefined) return [`${route} is in no contract`]
    const all = [...wants, ...everywhere]
    return [
      ...has.filter((code) => !all.includes(code)).map((code) => `${route} can answer ${code}`),
      ...all.filter((code) => !has.includes(code)).map((code) => `${route} can not answer ${code}`)
    ]
  })

describe("the codes of a surface", () => {
  const surfaces: ReadonlyArray<readonly [name: string, served: Codes, contract: Codes]> = [
    ["lock-server", codesOf(LockHttpApi), lock],
    ["payment-resource", codesOf(PaymentHttpApi), payment],
    ["rail-proxy", codesOf(RailHttpApi), rail],
    ["rail-stub", codesOf(RailStubHttpApi), stub]
  ]
  for (const [name, served, contract] of surfaces) {
    it(`are those of the contract, route by route: ${name}`, () => {
      assert.deepStrictEqual(differences(served, contract), [])
    })
  }

  it("cover every code that there is", () => {
    const answered = new Set(surfaces.flatMap(([, served]) => Object.values(served).flat()))
    const unused = Object.values(errorTable).filter(({ code }) => !answered.has(code))
    assert.deepStrictEqual(unused, [])
  })

  const served = codesOf(LockHttpApi)
  const inspect = "GET /v1/locks/:key"
  const planted: ReadonlyArray<readonly [served: Codes, difference: string]> = [
    [{ ...served, [inspect]: [...(served[inspect] ?? []), "LOCK_LOST"] }, `${inspect} can answer LOCK_LOST`],
    [
      { ...served, [inspect]: (served[inspect] ?? []).filter((code) => code !== "INTERNAL") },
      `${inspect} can not answer INTERNAL`
    ],
    [{ ...served, "GET /v1/locks": served[inspect] ?? [] }, "GET /v1/locks is in no contract"],
    [Object.fromEntries(Object.entries(served).filter(([route]) => route !== inspect)), `${inspect} is not served`]
  ]
  for (const [other, difference] of planted) {
    it(`differ when ${difference}`, () => assert.deepStrictEqual(differences(other, lock), [difference]))
  }
})

describe("the lock surface", () => {
  it("has exactly eight routes", () => assert.strictEqual(Object.keys(codesOf(LockHttpApi)).length, 8))

  it("asks for a token where a lock is kept or given up, and nowhere else", () => {
    const asking = Object.entries(codesOf(LockHttpApi)).filter(([, codes]) => codes.includes("INVALID_TOKEN"))
    assert.deepStrictEqual(
      asking.map(([route]) => route),
      ["POST /v1/locks/:key/renew", "DELETE /v1/locks/:key"]
    )
  })
})
