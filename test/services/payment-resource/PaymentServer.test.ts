/** P1 to P12 over HTTP: payment-resource as it runs, on paydb in PostgreSQL, through its client and by hand. */
import { NodeHttpClient } from "@effect/platform-node"
import { assert, describe, it } from "@effect/vitest"
import { Context, Effect, Layer, Redacted } from "effect"
import * as http from "node:http"
import { AcquireId } from "../../../src/core/lock/Lock.ts"
import { PaymentResource } from "../../../src/core/payment/PaymentResource.ts"
import { AccountId, type Payout } from "../../../src/core/payment/Payout.ts"
import * as HttpPaymentResource from "../../../src/services/api/HttpPaymentResource.ts"
import * as PaymentServer from "../../../src/services/payment-resource/PaymentServer.ts"
import * as PgPaydb from "../../../src/services/payment-resource/PgPaydb.ts"
import { TestDatabase } from "../../support/pg.ts"
import { waitUntil } from "../../support/waitUntil.ts"
import { serving } from "../rail-stub/serving.ts"
import * as Scene from "./paydbScene.ts"

const start = Effect.fnUntraced(function* (environment: Readonly<Record<string, string>> = {}) {
  const { url } = yield* TestDatabase
  const server = yield* serving("payment-resource", PaymentServer.layer, {
    PAYMENT_PG_URL: Redacted.value(url),
    ...environment
  })
  const client = Context.get(
    yield* Layer.build(
      HttpPaymentResource.layer({ url: server.url, callTimeoutMillis: 10_000 }).pipe(
        Layer.provide(NodeHttpClient.layerUndici)
      )
    ),
    PaymentResource
  )
  return { ...server, client }
})

class Server extends Context.Service<Server, Effect.Success<ReturnType<typeof start>>>()("test/PaymentServer") {
  static readonly layer = Layer.effect(Server, start())
}

/** What is read of an answer: an envelope, a payout, a page, or a health answer. */
interface Body {
  readonly [field: string]: unknown
  readonly code: string
  readonly details: Record<string, unknown> & { readonly fields: ReadonlyArray<{ readonly path: string }> }
  readonly components: Readonly<Record<string, { readonly status: string; readonly details: Record<string, unknown> }>>
}
type Headers = Readonly<Record<string, string | Array<string>>>

/** A request as written, headers included. */
const call = (method: string, url: string, headers: Headers = {}, body?: string) =>
  Effect.callback<{ readonly status: number; readonly body: Body }>((resume) => {
    const request = http.request(url, { method, agent: false, headers }, (response) => {
      let text = ""
      response.setEncoding("utf8").on("data", (chunk: string) => (text += chunk))
      response.on("end", () => resume(Effect.succeed({ status: response.statusCode ?? 0, body: JSON.parse(text) })))
    })
    request.on("error", (cause) => resume(Effect.die(cause)))
    request.end(body)
    return Effect.sync(() => request.destroy())
  })

const w1 = { "x-owner-id": "w1" }
const json = { ...w1, "content-type": "application/json" }
const get = (path: string) => Effect.flatMap(Server, ({ url }) => call("GET", url + path))
const send = (path: string, headers: Headers, body?: unknown) =>
  Effect.flatMap(Server, ({ url }) =>
    call("POST", url + path, headers, body === undefined ? undefined : JSON.stringify(body))
  )
const move = (payout: Payout, op: string, token: string, body?: unknown) =>
  send(`/v1/payouts/${payout.payoutId}/${op}`, { ...(body === undefined ? w1 : json), "x-fencing-token": token }, body)

const answered = (answer: { readonly status: number; readonly body: Body }, status: number, code?: string) => {
  assert.strictEqual(answer.status, status, JSON.stringify(answer.body))
  if (code === undefined) return
  assert.deepStrictEqual(Object.keys(answer.body), [
    "code",
    "message",
    "retrySafe",
    "retryAfterMillis",
    "details",
    "traceId"
  ])
  assert.strictEqual(answer.body.code, code)
}

const order = { amountMinor: "2500", currency: "EUR", beneficiary: "Ada Example" }
const keyed = () => ({ ...json, "x-idempotency-key": `k-${Scene.unique()}` })

const World = Server.layer.pipe(Layer.provideMerge(Scene.layer))

describe("payment-resource over HTTP", () => {
  it.layer(World, { excludeTestServices: true, timeout: "60 seconds" })((it) => {
    it.effect("P11, P9: opens an account with 201, answers the same again with 200", () =>
      Effect.gen(function* () {
        const accountId = `acct-${Scene.unique()}`
        const body = { accountId, currency: "EUR", openingBalanceMinor: "10000" }
        const first = yield* send("/v1/accounts", json, body)
        answered(first, 201)
        const account = { accountId, currency: "EUR", balanceMinor: "10000", reservedMinor: "0", fence: "0" }
        assert.deepStrictEqual(first.body as unknown, { ...account, created: true })
        const again = yield* send("/v1/accounts", json, body)
        answered(again, 200)
        assert.deepStrictEqual(again.body as unknown, { ...account, created: false })
        answered(yield* send("/v1/accounts", json, { ...body, currency: "USD" }), 400, "VALIDATION_FAILED")
        const read = yield* get(`/v1/accounts/${accountId}`)
        assert.deepStrictEqual(read.body as unknown, account)
        answered(yield* get("/v1/accounts/acct-nobody"), 404, "ACCOUNT_NOT_FOUND")
      })
    )

    it.effect("P3, P2: orders once under a key, whatever comes of it", () =>
      Effect.gen(function* () {
        const accountId = yield* Scene.openAccount()
        const headers = keyed()
        const first = yield* send("/v1/payouts", headers, { ...order, accountId })
        answered(first, 201)
        assert.deepInclude(first.body as object, {
          accountId,
          ...order,
          state: "PENDING",
          claimToken: null,
          railReference: null,
          failReason: null,
          nextStep: "CLAIM"
        })
        assert.match(String(first.body["createdAt"]), /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
        assert.deepStrictEqual((yield* send("/v1/payouts", headers, { ...order, accountId })).body, first.body)
        assert.deepStrictEqual((yield* get(`/v1/payouts/${first.body["payoutId"]}`)).body, first.body)
        const other = yield* send("/v1/payouts", headers, { ...order, accountId, amountMinor: "2501" })
        answered(other, 400, "VALIDATION_FAILED")
        assert.strictEqual(other.body.details.fields[0]?.path, "headers.x-idempotency-key")
        answered(yield* send("/v1/payouts", keyed(), { ...order, accountId: "acct-nobody" }), 404, "ACCOUNT_NOT_FOUND")
      })
    )

    it.effect("P4 to P8, P10, P12: a payout goes its way with its token, and every stale token gets FENCED_OUT", () =>
      Effect.gen(function* () {
        const payout = yield* Scene.pending
        const claimed = yield* move(payout, "claim", "7")
        answered(claimed, 200)
        assert.deepInclude(claimed.body as object, { state: "CLAIMED", claimToken: "7", nextStep: "SUBMIT" })
        const early = yield* move(payout, "post", "7")
        answered(early, 409, "EVIDENCE_MISSING")
        assert.deepInclude(early.body.details, { verdict: "NONE", nextStep: "SUBMIT" })
        yield* Scene.submit(payout, 7, "TIMEOUT")
        answered(yield* move(payout, "claim", "8"), 200)
        for (const op of ["claim", "post", "ambiguous", "resolve"]) {
          const stale = yield* move(payout, op, "7")
          answered(stale, 409, "FENCED_OUT")
          assert.deepStrictEqual(stale.body.details as unknown, {
            point: "resource",
            op,
            resource: payout.accountId,
            presented: "7",
            highest: "8"
          })
          assert.deepInclude(stale.body as object, { retrySafe: false, retryAfterMillis: null })
        }
        answered(yield* move(payout, "fail", "7", { reason: "RAIL_DECLINED" }), 409, "FENCED_OUT")
        assert.deepInclude((yield* move(payout, "ambiguous", "8")).body as object, { state: "RAIL_AMBIGUOUS" })
        answered(yield* move(payout, "claim", "9"), 409, "ILLEGAL_TRANSITION")
        answered(yield* move(payout, "resolve", "9"), 409, "EVIDENCE_MISSING")
        yield* Scene.railSays(payout, "EXECUTED")
        const resolved = yield* move(payout, "resolve", "9")
        assert.deepInclude(resolved.body as object, { state: "POSTED", claimToken: "9", nextStep: "NONE" })
        answered(yield* move(payout, "fail", "9", { reason: "CANCELLED" }), 409, "ILLEGAL_TRANSITION")

        const ledger = yield* get(`/v1/accounts/${payout.accountId}/ledger?limit=1`)
        assert.isString(ledger.body["next"])
        const rest = yield* get(`/v1/accounts/${payout.accountId}/ledger?after=${ledger.body["next"]}`)
        const [posting] = rest.body["items"] as ReadonlyArray<Record<string, unknown>>
        assert.deepInclude(posting, { kind: "PAYOUT", payoutId: payout.payoutId, token: "9", actor: "w1" })
        assert.deepStrictEqual(posting?.["entries"], [
          { accountId: payout.accountId, currency: "EUR", amountMinor: "-2500" },
          { accountId: "clearing-eur", currency: "EUR", amountMinor: "2500" }
        ])
        const history = yield* get(`/v1/payouts/${payout.payoutId}/history`)
        const moves = (history.body["items"] as ReadonlyArray<Record<string, unknown>>).map(
          ({ evidence, from, to, token }) => `${from} ${to} ${token} ${evidence}`
        )
        assert.deepStrictEqual(moves, [
          "null PENDING null NONE",
          "PENDING CLAIMED 7 NONE",
          "CLAIMED CLAIMED 8 UNKNOWN",
          "CLAIMED RAIL_AMBIGUOUS 8 UNKNOWN",
          "RAIL_AMBIGUOUS POSTED 9 EXECUTED"
        ])
      })
    )

    it.effect("P4, P6: says which payout is in the way, that a token is spent, that money is missing", () =>
      Effect.gen(function* () {
        const first = yield* Scene.claimed
        const second = yield* Scene.order(first.accountId)
        const busy = yield* move(second, "claim", "8")
        answered(busy, 409, "ACCOUNT_BUSY")
        assert.strictEqual(busy.body.details["unfinishedPayoutId"], first.payoutId)
        const done = yield* Scene.posted
        answered(yield* move(yield* Scene.order(done.accountId), "claim", "7"), 409, "TOKEN_ALREADY_USED")
        const poor = yield* Scene.order(yield* Scene.openAccount(0n))
        answered(yield* move(poor, "claim", "7"), 409, "INSUFFICIENT_FUNDS")
        answered(yield* move(poor, "fail", "7", { reason: "INSUFFICIENT_FUNDS" }), 409, "EVIDENCE_MISSING")
        yield* Scene.seal(poor, 7)
        const failed = yield* move(poor, "fail", "7", { reason: "INSUFFICIENT_FUNDS" })
        assert.deepInclude(failed.body as object, { state: "FAILED", failReason: "INSUFFICIENT_FUNDS" })
      })
    )

    it.effect("P1: lists by state and account, page by page", () =>
      Effect.gen(function* () {
        const accountId = yield* Scene.openAccount()
        for (let i = 0; i < 3; i++) yield* Scene.order(accountId)
        const page = yield* get(`/v1/payouts?state=PENDING&accountId=${accountId}&limit=2`)
        assert.lengthOf(page.body["items"] as ReadonlyArray<unknown>, 2)
        const rest = yield* get(`/v1/payouts?accountId=${accountId}&limit=2&after=${page.body["next"]}`)
        assert.lengthOf(rest.body["items"] as ReadonlyArray<unknown>, 1)
        assert.isNull(rest.body["next"])
        assert.lengthOf(
          (yield* get(`/v1/payouts?accountId=${accountId}&state=POSTED`)).body["items"] as ReadonlyArray<unknown>,
          0
        )
      })
    )

    it.effect("a token that is no canonical int64 is INVALID_TOKEN and reaches nothing", () =>
      Effect.gen(function* () {
        const payout = yield* Scene.pending
        const bad = ["", "0", "-1", "+7", "07", "7.0", "1e3", "0x7", "abc", "9223372036854775808", "7 7", "7,8"]
        for (const token of bad) answered(yield* move(payout, "claim", token), 400, "INVALID_TOKEN")
        const path = `/v1/payouts/${payout.payoutId}/claim`
        answered(yield* send(path, w1), 400, "INVALID_TOKEN")
        answered(yield* send(path, { ...w1, "x-fencing-token": ["7", "8"] }), 400, "INVALID_TOKEN")
        // A token in the body is not looked at, and a body is not expected at all.
        const inBody = yield* send(path, json, { token: "7" })
        assert.strictEqual(inBody.status, 400)
        assert.deepInclude((yield* get(`/v1/payouts/${payout.payoutId}`)).body as object, { state: "PENDING" })
        // The greatest there is.
        answered(yield* move(payout, "claim", "9223372036854775807"), 200)
      })
    )

    it.effect("bad input names its fields and changes nothing", () =>
      Effect.gen(function* () {
        const accountId = yield* Scene.openAccount()
        const good = { ...order, accountId }
        const bodies: ReadonlyArray<readonly [path: string, body: object]> = [
          ["payload.amountMinor", { ...good, amountMinor: 2_500 }],
          ["payload.amountMinor", { ...good, amountMinor: "0" }],
          ["payload.amountMinor", { ...good, amountMinor: "-5" }],
          ["payload.amountMinor", { ...good, amountMinor: "1.5" }],
          ["payload.amountMinor", { ...good, amountMinor: "100000000000001" }],
          ["payload.amountMinor", { ...good, amountMinor: "9".repeat(40) }],
          ["payload.currency", { ...good, currency: "eur" }],
          ["payload.currency", { ...good, currency: "USD" }],
          ["payload.beneficiary", { ...good, beneficiary: "" }],
          ["payload.beneficiary", { ...good, beneficiary: "a\u0000b" }],
          ["payload.beneficiary", { ...good, beneficiary: "x".repeat(141) }],
          ["payload.accountId", { ...good, accountId: "../etc" }],
          ["payload.accountId", { ...good, accountId: "clearing-eur" }],
          ["payload.payoutId", { ...good, payoutId: "1" }],
          ["payload.amount", { ...good, amount: "1" }]
        ]
        for (const [path, body] of bodies) {
          const answer = yield* send("/v1/payouts", keyed(), body)
          answered(answer, 400, "VALIDATION_FAILED")
          assert.include(
            answer.body.details.fields.map((field) => field.path),
            path,
            JSON.stringify(body)
          )
        }
        answered(yield* send("/v1/payouts", json, good), 400, "VALIDATION_FAILED")
        answered(
          yield* send("/v1/payouts", { ...keyed(), "x-idempotency-key": "k".repeat(129) }, good),
          400,
          "VALIDATION_FAILED"
        )
        const { "x-owner-id": _, ...noOwner } = keyed()
        answered(yield* send("/v1/payouts", noOwner, good), 400, "VALIDATION_FAILED")
        for (const balance of ["-1", "1000000000000001", "01", "", "1e3"]) {
          const body = { accountId: "acct-x", currency: "EUR", openingBalanceMinor: balance }
          answered(yield* send("/v1/accounts", json, body), 400, "VALIDATION_FAILED")
        }
        answered(
          yield* send("/v1/accounts", json, { accountId: "acct-x", currency: "CHF", openingBalanceMinor: "1" }),
          400,
          "VALIDATION_FAILED"
        )
        for (const query of ["limit=0", "limit=501", "limit=x", "state=DONE", "after=1", "accountId=%00", "offset=1"]) {
          answered(yield* get(`/v1/payouts?${query}`), 400, "VALIDATION_FAILED")
        }
        for (const query of ["after=-1", "after=x", "after=9223372036854775808", "limit=501"]) {
          answered(yield* get(`/v1/accounts/${accountId}/ledger?${query}`), 400, "VALIDATION_FAILED")
        }
        const unclaimed = yield* Scene.pending
        answered(yield* move(unclaimed, "fail", "7", { reason: "BECAUSE" }), 400, "VALIDATION_FAILED")
        answered(yield* move(unclaimed, "fail", "7", {}), 400, "VALIDATION_FAILED")
        answered(yield* get("/v1/payouts/not-a-uuid"), 400, "VALIDATION_FAILED")
        answered(yield* get("/v1/payouts/00000000-0000-4000-8000-ffffffffffff"), 404, "PAYOUT_NOT_FOUND")
        answered(yield* get("/v1/nothing"), 404, "ROUTE_NOT_FOUND")
        const { url } = yield* Server
        answered(yield* call("PUT", `${url}/v1/payouts`, json, "{}"), 405, "METHOD_NOT_ALLOWED")
        answered(
          yield* call("POST", `${url}/v1/payouts`, { ...keyed(), "content-type": "text/plain" }, "{}"),
          415,
          "UNSUPPORTED_MEDIA_TYPE"
        )
        answered(yield* call("POST", `${url}/v1/payouts`, keyed(), "{"), 400, "VALIDATION_FAILED")
        answered(
          yield* send("/v1/payouts", keyed(), { ...good, beneficiary: "x".repeat(70_000) }),
          413,
          "PAYLOAD_TOO_LARGE"
        )
        assert.lengthOf((yield* get(`/v1/payouts?accountId=${accountId}`)).body["items"] as ReadonlyArray<unknown>, 0)
        assert.strictEqual((yield* get("/v1/accounts/acct-x")).status, 404)
      })
    )

    it.effect("sums that the ledger can not hold are VALIDATION_FAILED", () =>
      Effect.gen(function* () {
        const { postgres } = yield* Scene.Hands
        const rich = yield* Scene.openAccount(0n)
        yield* postgres`WITH made AS (INSERT INTO pay.journal (kind, actor) VALUES ('FUNDING', 'test') RETURNING journal_id)
          INSERT INTO pay.ledger_entry (journal_id, account_id, currency, amount_minor)
          SELECT journal_id, e.account_id, 'EUR', e.amount FROM made,
                 (VALUES (${rich}, 9223372036854000000::int8), ('funding-eur', -9223372036854000000::int8)) e (account_id, amount)`
        const body = { accountId: `acct-${Scene.unique()}`, currency: "EUR", openingBalanceMinor: "1000000000000" }
        const answer = yield* send("/v1/accounts", json, body)
        answered(answer, 400, "VALIDATION_FAILED")
        assert.strictEqual(answer.body.details.fields[0]?.path, "payload.openingBalanceMinor")
        // Back to where it was: the other tests open accounts too.
        yield* postgres`WITH made AS (INSERT INTO pay.journal (kind, actor) VALUES ('FUNDING', 'test') RETURNING journal_id)
          INSERT INTO pay.ledger_entry (journal_id, account_id, currency, amount_minor)
          SELECT journal_id, e.account_id, 'EUR', e.amount FROM made,
                 (VALUES (${rich}, -9223372036854000000::int8), ('funding-eur', 9223372036854000000::int8)) e (account_id, amount)`
      })
    )

    it.effect("the typed client brings back payouts, pages, journals and the very failures", () =>
      Effect.gen(function* () {
        const { client } = yield* Server
        const accountId = AccountId.make(`acct-${Scene.unique()}`)
        const opened = yield* client.createAccount({
          accountId,
          currency: "EUR",
          openingBalanceMinor: 10_000n,
          actor: Scene.W1
        })
        assert.deepStrictEqual(opened, {
          account: { accountId, currency: "EUR", balanceMinor: 10_000n, reservedMinor: 0n, fence: 0n },
          created: true
        })
        const request = {
          idempotencyKey: AcquireId.make(`k-${Scene.unique()}`),
          actor: Scene.W1,
          accountId,
          amountMinor: 2_500n,
          currency: "EUR",
          beneficiary: "Ada Example"
        }
        const payout = yield* client.createPayout(request)
        assert.deepStrictEqual(yield* client.createPayout(request), payout)
        const write = { payoutId: payout.payoutId, token: Scene.T(8), actor: Scene.W1 }
        assert.deepInclude(yield* client.claim(write), { state: "CLAIMED", claimToken: Scene.T(8) })
        const stale = yield* Effect.flip(client.post({ ...write, token: Scene.T(7) }))
        assert.deepInclude({ ...stale }, { _tag: "FencedOut", presented: Scene.T(7), highest: 8n, op: "post" })
        assert.deepInclude(
          { ...(yield* Effect.flip(client.post(write))) },
          { _tag: "EvidenceMissing", nextStep: "SUBMIT" }
        )
        yield* Scene.submit(payout, 8, "ACKED")
        const done = yield* client.post(write)
        assert.strictEqual(done.state, "POSTED")
        assert.deepStrictEqual(yield* client.readPayout(payout.payoutId), done)
        assert.deepStrictEqual(yield* client.listPayouts({ accountId, limit: 5 }), { items: [done], next: null })
        const { items } = yield* client.readLedger({ accountId, limit: 5 })
        assert.deepStrictEqual(
          items.map(({ kind, token }) => [kind, token]),
          [
            ["FUNDING", null],
            ["PAYOUT", Scene.T(8)]
          ]
        )
        assert.lengthOf(yield* client.readHistory(payout.payoutId), 3)
        assert.deepInclude(yield* client.readAccount(accountId), { balanceMinor: 7_500n, fence: 8n })
      })
    )

    it.effect("the caller's trace is in the history, the envelope and the log", () =>
      Effect.gen(function* () {
        const { log, url } = yield* Server
        const payout = yield* Scene.pending
        const traceId = "4bf92f3577b34da6a3ce929d0e0e4736"
        const headers = { ...w1, "x-fencing-token": "8", traceparent: `00-${traceId}-00f067aa0ba902b7-01` }
        yield* call("POST", `${url}/v1/payouts/${payout.payoutId}/claim`, headers)
        const history = yield* get(`/v1/payouts/${payout.payoutId}/history`)
        assert.strictEqual((history.body["items"] as ReadonlyArray<Record<string, unknown>>)[1]?.["traceId"], traceId)
        const stale = { ...headers, "x-fencing-token": "7" }
        const refused = yield* call("POST", `${url}/v1/payouts/${payout.payoutId}/claim`, stale)
        assert.strictEqual(refused.body["traceId"], traceId)
        const told = log.find((line) => line["event"] === "fenced_out" && line["payoutId"] === payout.payoutId)
        assert.deepInclude(told ?? {}, {
          level: "Error",
          point: "resource",
          op: "claim",
          accountId: payout.accountId,
          fencingToken: "7",
          highest: "8",
          ownerId: "w1"
        })
      })
    )

    it.effect("runs as dlock_payment, whoever may migrate", () =>
      Effect.gen(function* () {
        const { postgres } = yield* Scene.Hands
        yield* move(yield* Scene.pending, "claim", "7")
        const roles = yield* postgres`SELECT DISTINCT db_role FROM pay.payout_transition`
        assert.deepStrictEqual(roles, [{ db_role: "dlock_payment" }])
      })
    )

    it.effect("is not ready while a guard is missing, and says which in its log alone", () =>
      Effect.gen(function* () {
        const { log, managementUrl } = yield* Server
        const { postgres } = yield* Scene.Hands
        const readiness = call("GET", `${managementUrl}/actuator/health/readiness`)
        assert.strictEqual((yield* readiness).status, 200)
        yield* postgres`ALTER TABLE pay.payout DISABLE TRIGGER aa_guard`
        const down = yield* readiness.pipe(
          Effect.ensuring(Effect.orDie(postgres`ALTER TABLE pay.payout ENABLE TRIGGER aa_guard`))
        )
        assert.strictEqual(down.status, 503)
        assert.strictEqual(down.body.components["payDb"]?.status, "DOWN")
        assert.isTrue(log.some((line) => line["component"] === "payDb"))
        assert.strictEqual((yield* readiness).status, 200)
      })
    )
  })

  it.layer(Scene.layer, { excludeTestServices: true, timeout: "60 seconds" })("with its switches turned", (it) => {
    it.effect("one key is not enough: not ready, and no write", () =>
      Effect.gen(function* () {
        const { client, managementUrl } = yield* start({ PAYMENT_FENCING_ENABLED: "false" })
        const readiness = yield* call("GET", `${managementUrl}/actuator/health/readiness`)
        assert.strictEqual(readiness.status, 503)
        assert.deepInclude(readiness.body.components["payDb"]?.details ?? {}, { error: "FencingDisagrees" })
        const { payoutId } = yield* Scene.pending
        const refused = yield* Effect.flip(client.claim({ payoutId, token: Scene.T(7), actor: Scene.W1 }))
        assert.strictEqual(refused._tag, "BackendUnavailable")
      }).pipe(Effect.scoped)
    )

    it.effect("both keys: the stale holder posts a second time, and what it wrote keeps production away for ever", () =>
      Effect.gen(function* () {
        const { url } = yield* TestDatabase
        const payout = yield* Scene.pending
        const write = (token: number) => ({ payoutId: payout.payoutId, token: Scene.T(token), actor: Scene.W1 })
        yield* PgPaydb.setSwitches(url, { resource: false, rail: true })
        yield* Effect.gen(function* () {
          const { client, log, managementUrl } = yield* start({ PAYMENT_FENCING_ENABLED: "false" })
          const health = yield* call("GET", `${managementUrl}/actuator/health`)
          assert.deepInclude(health.body as object, { status: "UP", fencing: "OFF" })
          assert.isTrue(log.some((line) => line["event"] === "fencing_disabled" && line["level"] === "Error"))
          yield* client.claim(write(7))
          yield* client.claim(write(8))
          yield* Scene.submit(payout, 8, "ACKED")
          yield* client.post(write(8))
          yield* client.post(write(7))
          assert.deepInclude(yield* client.readAccount(payout.accountId), { balanceMinor: 5_000n })
          const metrics = yield* Effect.promise(() =>
            fetch(`${managementUrl}/actuator/prometheus`).then((response) => response.text())
          )
          assert.include(metrics, `fencing_enabled{point="resource"} 0`)
        }).pipe(Effect.scoped)
        yield* PgPaydb.setSwitches(url, { resource: true, rail: true })
        const production = yield* start({ DLOCK_ENV: "production" })
        const readiness = call("GET", `${production.managementUrl}/actuator/health/readiness`)
        assert.deepInclude((yield* readiness).body.components["payDb"]?.details ?? {}, { error: "UnfencedRows" })
        const local = yield* start()
        assert.strictEqual((yield* call("GET", `${local.managementUrl}/actuator/health/readiness`)).status, 200)
        // ONE-POSTING of that payout, and a token that acted after a greater one.
        yield* waitUntil(
          "the violations are counted",
          Effect.map(
            Effect.promise(() =>
              fetch(`${local.managementUrl}/actuator/prometheus`).then((response) => response.text())
            ),
            (text) =>
              text.includes(`ledger_invariant_violations{invariant="ONE-POSTING"} 1`) &&
              text.includes(`ledger_invariant_violations{invariant="INV-05"} 1`)
          )
        )
        assert.isTrue(local.log.some((line) => line["event"] === "invariant_violation"))
      }).pipe(Effect.scoped)
    )

    it.effect("connects as dlock_payment and leaves the schema alone when its URL says so", () =>
      Effect.gen(function* () {
        const { url } = yield* TestDatabase
        const own = new URL(Redacted.value(url))
        own.username = "dlock_payment"
        const { log, managementUrl } = yield* start({ PAYMENT_PG_URL: own.href })
        assert.strictEqual((yield* call("GET", `${managementUrl}/actuator/health/readiness`)).status, 200)
        assert.isTrue(log.some((line) => String(line["message"]).includes("migrate paydb")))
      }).pipe(Effect.scoped)
    )
  })
})
