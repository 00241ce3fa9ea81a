/**
 * Lock service, ledger, payment proxy and rail as processes of their own on one PostgreSQL, with sessions, locks and
 * payouts in every state, so that a request can be about something that exists.
 */
import { assert } from "@effect/vitest"
import { Context, Effect, Layer, Redacted } from "effect"
import { anyPort } from "../../src/harness/PausedWorker.ts"
import { make as makeWorld, type ServiceProcess } from "../../src/harness/Processes.ts"
import * as PgLockStore from "../../src/services/lock-server/PgLockStore.ts"
import * as PgPaydb from "../../src/services/payment-resource/PgPaydb.ts"
import * as Migrations from "../../src/services/platform/Migrations.ts"
import type { Example } from "../properties/HttpSurface.ts"
import { TestDatabase } from "./pg.ts"

export interface Surface {
  readonly process: ServiceProcess
  readonly url: string
  /** What is kept, as text; equal texts mean that nothing changed. */
  readonly state: Effect.Effect<string>
}

export type SurfaceName = "lock-server" | "payment-resource" | "rail-proxy" | "rail-stub"

const lockdb = TestDatabase.layer("lockdb", (url) => Migrations.migrate({ url, directory: PgLockStore.MIGRATIONS }))
const paydb = TestDatabase.layer("paydb", PgPaydb.migrate)

/** That a lease runs out is no request's doing: what is left of a table when this is taken out of it. */
const besidesExpiry: Readonly<Record<string, string>> = {
  lock_session: `SELECT session_id, owner_id, ttl_ms, open_id, opened_at, expires_at, end_reason IS NOT DISTINCT FROM 'closed' FROM lock.lock_session`,
  lock_grant: `SELECT lock_key, fencing_token, token_floor, session_id, owner_id, acquire_id, ttl_ms, granted_at, expires_at,
                      CASE WHEN end_reason IN ('released', 'revoked') THEN ended_at END FROM lock.lock_grant`,
  lock_event: `SELECT * FROM lock.lock_event WHERE kind NOT IN ('expired', 'session', 'session_expired')`,
  lock_untold: `SELECT 'nothing but ends by themselves'`
}

/** Every row of every table of a schema, as one short text. */
const contents = Effect.fnUntraced(function* (database: TestDatabase["Service"], schema: "lock" | "pay") {
  const sql = yield* Effect.orDie(database.pool({ maxConnections: 1 }))
  const tables = yield* Effect.orDie(
    sql<{ name: string }>`SELECT tablename AS name FROM pg_tables WHERE schemaname = ${schema} ORDER BY 1`
  )
  assert.isAbove(tables.length, 4)
  const query = tables
    .map(({ name }) => {
      const rows = besidesExpiry[name] ?? `SELECT * FROM ${schema}.${name}`
      return `SELECT '${name}' AS name, count(*)::int4 AS rows, md5(coalesce(string_agg(t::text, '|' ORDER BY t::text), '')) AS hash FROM (${rows}) t`
    })
    .join(" UNION ALL ")
  return Effect.orDie(Effect.map(sql.unsafe<object>(query), (rows) => JSON.stringify(rows)))
})

// -----------------------------------------------------------------------------
// requests
// -----------------------------------------------------------------------------

const call = (url: string, { body, headers, method, path }: Example) =>
  Effect.promise((signal) =>
    // A scene leaves no header undefined.
    fetch(`${url}${path}`, {
      method,
      signal,
      headers: {
        ...(headers as Record<string, string>),
        ...(body === undefined ? {} : { "content-type": "application/json" })
      },
      body: body === undefined ? null : JSON.stringify(body)
    }).then((response) =>
      response.text().then((text) => ({
        status: response.status,
        // Every answer of these surfaces is an object, or nothing at all.
        json: (text === "" ? {} : JSON.parse(text)) as Readonly<Record<string, unknown>>
      }))
    )
  )

/** Sends what must be answered with this status. */
const must = (status: number, url: string, example: Example) =>
  Effect.map(call(url, example), (answer) => {
    assert.strictEqual(answer.status, status, `${example.method} ${example.path}: ${JSON.stringify(answer.json)}`)
    return answer.json
  })

const w1 = { "x-owner-id": "w1" }
const TOKEN = "5"
const tokened = { ...w1, "x-fencing-token": TOKEN }

/** Sessions and locks of two owners: the examples are right, and what they destroy nobody else needs. */
export const lockScene = Effect.fnUntraced(function* (url: string, round: number) {
  const open = (owner: string) =>
    Effect.map(
      must(201, url, {
        method: "POST",
        path: "/v1/sessions",
        headers: { "x-owner-id": owner },
        body: { ttlMillis: 300_000 }
      }),
      ({ sessionId }) => String(sessionId)
    )
  const acquire = (key: string, sessionId: string) =>
    Effect.map(
      must(200, url, {
        method: "POST",
        path: `/v1/locks/${key}/acquire`,
        headers: { ...w1, "x-idempotency-key": "first" },
        body: { sessionId, ttlMillis: 300_000 }
      }),
      ({ fencingToken }) => String(fencingToken)
    )
  const mine = yield* open("w1")
  const spare = yield* open("w1")
  const other = yield* open("w2")
  const held = `held-${round}`
  const dropped = `dropped-${round}`
  const revoked = `revoked-${round}`
  const token = yield* acquire(held, mine)
  const droppedToken = yield* acquire(dropped, mine)
  const revokedToken = yield* acquire(revoked, mine)
  const examples: ReadonlyArray<Example> = [
    { method: "POST", path: "/v1/sessions", headers: w1, body: { ttlMillis: 300_000 } },
    { method: "POST", path: `/v1/sessions/${mine}/heartbeat`, headers: w1 },
    { method: "DELETE", path: `/v1/sessions/${spare}`, headers: w1 },
    {
      method: "POST",
      path: `/v1/locks/${held}/acquire`,
      headers: { "x-owner-id": "w2" },
      body: { sessionId: other, ttlMillis: 300_000, waitMillis: 0 }
    },
    {
      method: "POST",
      path: `/v1/locks/${held}/acquire`,
      headers: { ...w1, "x-idempotency-key": "first" },
      body: { sessionId: mine }
    },
    {
      method: "POST",
      path: `/v1/locks/${held}/renew`,
      headers: { ...w1, "x-fencing-token": token },
      body: { ttlMillis: 300_000 }
    },
    { method: "DELETE", path: `/v1/locks/${dropped}`, headers: { ...w1, "x-fencing-token": droppedToken } },
    { method: "GET", path: `/v1/locks/${held}` },
    {
      method: "POST",
      path: `/v1/locks/${revoked}/revoke`,
      headers: w1,
      body: { operator: "op", reason: "because it is a test", expectedToken: revokedToken }
    }
  ]
  return { examples, vocabulary: [mine, spare, other, held, dropped, token, droppedToken, "w2", "first", 300_000] }
})

/** One account and payout in each state, all under one token. */
export const payoutScene = Effect.fnUntraced(function* (urls: Readonly<Record<SurfaceName, string>>, round: string) {
  const payments = urls["payment-resource"]
  const proxy = urls["rail-proxy"]
  const payout = Effect.fnUntraced(function* (state: string) {
    const accountId = `${state}-${round}`
    yield* must(201, payments, {
      method: "POST",
      path: "/v1/accounts",
      headers: w1,
      body: { accountId, currency: "EUR", openingBalanceMinor: "10000" }
    })
    const order = { accountId, amountMinor: "2500", currency: "EUR", beneficiary: "Ada Example" }
    const headers = { ...w1, "x-idempotency-key": `order-${accountId}` }
    const placed = { method: "POST", path: "/v1/payouts", headers, body: order }
    const { payoutId } = yield* must(201, payments, placed)
    const submit: Example = {
      method: "POST",
      path: "/v1/rail/submissions",
      headers: { ...tokened, "x-idempotency-key": `submit-${accountId}` },
      body: { payoutId, ...order }
    }
    const move = (op: string, body?: Example["body"]): Example => ({
      method: "POST",
      path: `/v1/payouts/${String(payoutId)}/${op}`,
      headers: tokened,
      ...(body === undefined ? {} : { body })
    })
    const record = (op: string, headers: Readonly<Record<string, string>>, body?: Example["body"]): Example => ({
      method: "POST",
      path: `/v1/rail/submissions/${String(payoutId)}/${op}`,
      headers,
      ...(body === undefined ? {} : { body })
    })
    return { payoutId: String(payoutId), accountId, placed, submit, move, record }
  })
  /** What the rail does with the next submit. */
  const next = (kind: string) =>
    must(200, urls["rail-stub"], { method: "PUT", path: "/control", body: { faults: [{ kind }] } })

  const pending = yield* payout("pending")
  const claimed = yield* payout("claimed")
  const acked = yield* payout("acked")
  const unknown = yield* payout("unknown")
  const declined = yield* payout("declined")
  const posted = yield* payout("posted")
  for (const one of [claimed, acked, unknown, declined, posted]) yield* must(200, payments, one.move("claim"))
  yield* must(200, proxy, acked.submit)
  yield* must(200, proxy, posted.submit)
  yield* must(200, payments, posted.move("post"))
  yield* next("http5xx")
  yield* must(504, proxy, unknown.submit)
  yield* must(200, payments, unknown.move("ambiguous"))
  yield* next("decline")
  yield* must(422, proxy, declined.submit)
  const all = [pending, claimed, acked, unknown, declined, posted]

  const paymentExamples: ReadonlyArray<Example> = [
    ...all.flatMap(({ accountId, move, payoutId, placed }): ReadonlyArray<Example> => [
      placed,
      move("claim"),
      move("post"),
      move("ambiguous"),
      move("resolve"),
      move("fail", { reason: "RAIL_DECLINED" }),
      { method: "GET", path: `/v1/payouts/${payoutId}/history` },
      { method: "GET", path: `/v1/accounts/${accountId}/ledger?limit=1` }
    ]),
    { method: "GET", path: "/v1/payouts?state=CLAIMED&limit=2" },
    {
      method: "POST",
      path: "/v1/accounts",
      headers: w1,
      body: { accountId: `new-${round}`, currency: "EUR", openingBalanceMinor: "1" }
    }
  ]
  const railExamples: ReadonlyArray<Example> = all.flatMap(({ payoutId, record, submit }): ReadonlyArray<Example> => [
    submit,
    { ...submit, headers: { ...submit.headers, "x-fencing-token": "6" } },
    { method: "GET", path: `/v1/rail/submissions/${payoutId}` },
    record("lookup", w1),
    record("void", tokened, { reason: "it is not wanted any more" }),
    record("evidence", tokened, { finding: "NOT_FOUND", reason: "the statement has no such payment" })
  ])
  return {
    paymentExamples,
    railExamples,
    vocabulary: [
      ...all.map(({ payoutId }) => payoutId),
      ...all.map(({ accountId }) => accountId),
      "4",
      "6",
      "PENDING",
      "CLAIMED",
      "CANCELLED",
      "NOT_FOUND",
      "EXECUTED",
      "2500"
    ]
  }
})

export const stubExamples: ReadonlyArray<Example> = [
  {
    method: "POST",
    path: "/submit",
    body: { clientReference: "ref-1", amountMinor: "5", currency: "EUR", beneficiary: "Ada" }
  },
  { method: "GET", path: "/lookup?clientReference=ref-1" },
  { method: "GET", path: "/payments" },
  { method: "GET", path: "/control" },
  // Well-behaved, whatever else is changed.
  { method: "PUT", path: "/control", body: { seed: 7, faults: [] } }
]

// -----------------------------------------------------------------------------
// processes
// -----------------------------------------------------------------------------

export class FourSurfaces extends Context.Service<FourSurfaces, Readonly<Record<SurfaceName, Surface>>>()(
  "dlock/test/support/FourSurfaces"
) {
  static readonly layer = Layer.effect(
    FourSurfaces,
    Effect.gen(function* () {
      const [lock, pay] = yield* Effect.all([Layer.build(lockdb), Layer.build(paydb)], { concurrency: 2 })
      const lockDatabase = Context.get(lock, TestDatabase)
      const payDatabase = Context.get(pay, TestDatabase)
      const world = yield* makeWorld
      const start = Effect.fnUntraced(function* (name: SurfaceName, environment: Readonly<Record<string, string>>) {
        const process = yield* world.start(name, [name], { ...anyPort, DLOCK_MIGRATE: "false", ...environment })
        return { process, url: (yield* process.listening).url }
      })
      const [lockServer, payments, { proxy, rail }] = yield* Effect.all(
        [
          start("lock-server", { LOCK_PG_URL: Redacted.value(lockDatabase.url) }),
          start("payment-resource", { PAYMENT_PG_URL: Redacted.value(payDatabase.url) }),
          Effect.gen(function* () {
            const rail = yield* start("rail-stub", {})
            const proxy = yield* start("rail-proxy", {
              RAIL_PG_URL: Redacted.value(payDatabase.url),
              RAIL_URL: rail.url
            })
            return { rail, proxy }
          })
        ],
        { concurrency: 3 }
      )
      const book = Effect.map(call(rail.url, { method: "GET", path: "/payments" }), ({ json }) => JSON.stringify(json))
      const control = Effect.map(call(rail.url, { method: "GET", path: "/control" }), ({ json }) =>
        JSON.stringify(json)
      )
      const ledger = yield* contents(payDatabase, "pay")
      const both = Effect.map(Effect.all([ledger, book]), (texts) => texts.join("\n"))
      return {
        "lock-server": { ...lockServer, state: yield* contents(lockDatabase, "lock") },
        "payment-resource": { ...payments, state: both },
        "rail-proxy": { ...proxy, state: both },
        "rail-stub": { ...rail, state: Effect.map(Effect.all([book, control]), (texts) => texts.join("\n")) }
      }
    })
  )
}
