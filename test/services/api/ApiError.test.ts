/** The table of error codes, against the normative one written out by hand, and every failure over the wire and back. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Schema } from "effect"
import {
  errorTable,
  type Envelope,
  wire,
  wireErrors,
  type WireError,
  type WireTag
} from "../../../src/services/api/ApiError.ts"
import { TraceId } from "../../../src/core/TraceId.ts"

/** C3 3.3: code to status, retry verdict, and whether `retryAfterMillis` is given. */
const normative: Readonly<Record<string, readonly [status: number, retry: "yes" | "no" | "never", after: boolean]>> = {
  VALIDATION_FAILED: [400, "no", false],
  INVALID_TOKEN: [400, "no", false],
  LOCK_CONTENDED: [409, "yes", true],
  CONTENTION_EXCEEDED: [409, "yes", true],
  LOCK_LOST: [409, "no", false],
  FENCED_OUT: [409, "never", false],
  SESSION_UNKNOWN: [404, "no", false],
  SESSION_EXPIRED: [410, "no", false],
  LOCK_NOT_FOUND: [404, "no", false],
  NOT_LEADER: [503, "yes", true],
  BACKEND_UNAVAILABLE: [503, "yes", true],
  PAYOUT_NOT_FOUND: [404, "no", false],
  ACCOUNT_NOT_FOUND: [404, "no", false],
  ILLEGAL_TRANSITION: [409, "no", false],
  TOKEN_ALREADY_USED: [409, "no", false],
  ACCOUNT_BUSY: [409, "no", false],
  EVIDENCE_MISSING: [409, "no", false],
  INSUFFICIENT_FUNDS: [409, "no", false],
  DUPLICATE_SUBMISSION: [409, "no", false],
  RAIL_AMBIGUOUS: [504, "never", false],
  RAIL_DECLINED: [422, "no", false],
  ROUTE_NOT_FOUND: [404, "no", false],
  METHOD_NOT_ALLOWED: [405, "no", false],
  PAYLOAD_TOO_LARGE: [413, "no", false],
  UNSUPPORTED_MEDIA_TYPE: [415, "no", false],
  MALFORMED_REQUEST: [400, "no", false],
  REQUEST_TIMEOUT: [408, "no", false],
  HEADERS_TOO_LARGE: [431, "no", false],
  INTERNAL: [500, "no", false]
}

const tags = Object.keys(wireErrors) as ReadonlyArray<WireTag>

const retryAfterIn = (fields: object) => Object.hasOwn(fields, "retryAfterMillis")

interface Row {
  readonly code: string
  readonly status: number
  readonly retrySafe: string
}

/** The codes that are not as they should be: changed, missing or surplus. */
const differences = (rows: ReadonlyArray<Row & { readonly after: boolean }>): ReadonlyArray<string> => {
  const ours = new Map(rows.map((row) => [row.code, `${row.status} ${row.retrySafe} ${row.after}`]))
  return [...new Set([...ours.keys(), ...Object.keys(normative)])].filter(
    (code) => ours.get(code) !== normative[code]?.join(" ")
  )
}

describe("the error table", () => {
  const rows = tags.map((tag) => ({ ...errorTable[tag], after: retryAfterIn(wireErrors[tag].fields) }))

  it("has exactly the normative codes, statuses and verdicts", () => assert.deepStrictEqual(differences(rows), []))

  it("is found out when a row changes, is missing or is too many", () => {
    const plant = (code: string, change: Partial<(typeof rows)[number]>) =>
      differences(rows.map((row) => (row.code === code ? ({ ...row, ...change } as typeof row) : row)))
    assert.deepStrictEqual(plant("LOCK_LOST", { status: 500 }), ["LOCK_LOST"])
    assert.deepStrictEqual(plant("FENCED_OUT", { retrySafe: "yes" }), ["FENCED_OUT"])
    assert.deepStrictEqual(plant("RAIL_AMBIGUOUS", { after: true }), ["RAIL_AMBIGUOUS"])
    assert.deepStrictEqual(plant("INTERNAL", { code: "OOPS" as "INTERNAL" }), ["OOPS", "INTERNAL"])
  })

  it("never makes a terminal lock failure a 5xx, which clients retry", () => {
    for (const tag of ["LockLost", "FencedOut"] as const) assert.isBelow(errorTable[tag].status, 500)
  })
})

/** One value of each failure, from its own schema. */
const sample = (tag: WireTag): WireError => {
  const values: Record<string, unknown> = {
    key: "payout:acct-1",
    outcome: tag === "LockContended" ? "HELD_BY_OTHER" : "TIMEOUT",
    holderOwnerId: "w1",
    holderExpiresAt: 1_700_000_000_000,
    retryAfterMillis: 250,
    attempts: 5,
    waitedMillis: 900,
    token: 9_007_199_254_740_993n,
    reason: tag === "LockLost" ? "expired" : "not decimal",
    point: "resource",
    op: "claim",
    resource: "acct-1",
    presented: 9_223_372_036_854_775_806n,
    highest: 9_223_372_036_854_775_807n,
    sessionId: "s-1",
    operation: "tryAcquire",
    cause: "ECONNREFUSED",
    payoutId: "00000000-0000-4000-8000-000000000001",
    unfinishedPayoutId: "00000000-0000-4000-8000-000000000002",
    accountId: "acct-1",
    state: "CLAIMED",
    attempted: "POSTED",
    verdict: "UNKNOWN",
    nextStep: "AMBIGUOUS",
    railCode: null,
    fields: [{ path: "payload.ttlMillis", reason: "too small" }],
    path: "/nope",
    allow: ["GET"],
    limitBytes: 65_536,
    expected: "application/json"
  }
  const { fields } = wireErrors[tag]
  const own = Object.fromEntries(
    Object.keys(fields)
      .filter((name) => name !== "_tag")
      .map((name) => [name, values[name]])
  )
  // The class of a tag taken from a variable is a union of classes, which can not be called with one argument type.
  return new (wireErrors[tag] as unknown as new (fields: object) => WireError)(own)
}

describe("a failure on the wire", () => {
  for (const tag of tags) {
    it.effect(`${errorTable[tag].code} has six fields in order, and comes back as the failure it was`, () =>
      Effect.gen(function* () {
        const failure = sample(tag)
        const codec = Schema.toCodecJson(wire(tag))
        const text = JSON.stringify(
          yield* Schema.encodeEffect(codec)(failure as never).pipe(
            Effect.provideService(TraceId, "0af7651916cd43dd8448eb211c80319c")
          )
        )
        const body = JSON.parse(text) as Envelope
        assert.deepStrictEqual(Object.keys(body), [
          "code",
          "message",
          "retrySafe",
          "retryAfterMillis",
          "details",
          "traceId"
        ])
        assert.strictEqual(body.code, errorTable[tag].code)
        assert.strictEqual(body.retrySafe, errorTable[tag].retrySafe === "yes")
        assert.strictEqual(body.retryAfterMillis, normative[body.code]?.[2] === true ? 250 : null)
        assert.strictEqual(body.traceId, "0af7651916cd43dd8448eb211c80319c")
        assert.isFalse(retryAfterIn(body.details as object))
        assert.deepStrictEqual(yield* Schema.decodeUnknownEffect(codec)(body), failure)
      })
    )
  }

  it.effect("keeps a token beyond 2^53 to the last digit", () =>
    Effect.gen(function* () {
      const codec = Schema.toCodecJson(wire("FencedOut"))
      const body = yield* Schema.encodeEffect(codec)(sample("FencedOut") as never)
      assert.include(JSON.stringify(body), '"highest":"9223372036854775807"')
    })
  )
})
