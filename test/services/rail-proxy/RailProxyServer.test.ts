/** R1 to R5 over HTTP: rail-proxy and rail-stub as they run, on paydb in PostgreSQL. */
import { NodeHttpClient } from "@effect/platform-node"
import { assert, describe, layer } from "@effect/vitest"
import { Context, Deferred, Effect, Fiber, Layer, Redacted } from "effect"
import * as http from "node:http"
import { FaultPoint } from "../../../src/core/FaultPoint.ts"
import { AcquireId, FencingToken, OwnerId } from "../../../src/core/lock/Lock.ts"
import { type Payout, AccountId, PayoutId } from "../../../src/core/payment/Payout.ts"
import { PaymentStore } from "../../../src/core/payment/PaymentStore.ts"
import { RailProxy } from "../../../src/core/rail/RailProxy.ts"
import * as HttpRailProxy from "../../../src/services/api/HttpRailProxy.ts"
import type { Control } from "../../../src/services/api/RailStubHttpApi.ts"
import * as PgPaymentStore from "../../../src/services/payment-resource/PgPaymentStore.ts"
import * as PgPaydb from "../../../src/services/payment-resource/PgPaydb.ts"
import * as Pg from "../../../src/services/platform/Pg.ts"
import * as RailProxyServer from "../../../src/services/rail-proxy/RailProxyServer.ts"
import * as RailStubServer from "../../../src/services/rail-stub/RailStubServer.ts"
import { TestDatabase } from "../../support/pg.ts"
import { waitUntil } from "../../support/waitUntil.ts"
import { serving, type Serving } from "../rail-stub/serving.ts"

class Stub extends Context.Service<Stub, Serving>()("test/Stub") {
  static readonly layer = Layer.effect(Stub, serving("rail-stub", RailStubServer.layer))
}

const paydb = TestDatabase.layer("paydb", PgPaydb.migrate)

const payments = Layer.unwrap(
  Effect.map(TestDatabase, ({ url }) =>
    PgPaymentStore.layer({ fencingEnabled: true, callTimeoutMillis: 5_000 }).pipe(
      Layer.provide(Pg.layer({ url, applicationName: "payments", parameters: { role: "dlock_payment" } }))
    )
  )
)

const environment = Effect.gen(function* () {
  const { url } = yield* TestDatabase
  const stub = yield* Stub
  return { RAIL_PG_URL: Redacted.value(url), RAIL_URL: stub.url, RAIL_READ_TIMEOUT: "3 s", RAIL_SEND_WINDOW: "1500 ms" }
})

/** The service as a process would run it; `faultPoint` as `dlock.fault-point` would. */
const startProxy = Effect.fnUntraced(function* (
  overrides: Readonly<Record<string, string>> = {},
  faultPoint: (name: string) => Effect.Effect<void> = () => Effect.void
) {
  const proxy = yield* serving(
    "rail-proxy",
    RailProxyServer.layer.pipe(Layer.provide(Layer.succeed(FaultPoint, faultPoint))),
    { ...(yield* environment), ...overrides }
  )
  const client = Context.get(
    yield* Layer.build(
      HttpRailProxy.layer({ url: proxy.url, railTimeoutMillis: 8_000, callTimeoutMillis: 6_000 }).pipe(
        Layer.provide(NodeHttpClient.layerUndici)
      )
    ),
    RailProxy
  )
  return { ...proxy, client }
})

class Proxy extends Context.Service<Proxy, Effect.Success<ReturnType<typeof startProxy>>>()("test/Proxy") {
  static readonly layer = Layer.effect(Proxy, startProxy())
}

const w1 = OwnerId.make("w1")
const T = (n: number) => FencingToken.make(BigInt(n))
let names = 0

/** An account of its own with one payout, claimed under the token. */
const claimed = Effect.fnUntraced(function* (token: number) {
  const store = yield* PaymentStore
  const n = String(++names)
  const accountId = AccountId.make(`acct-${n}`)
  yield* store.createAccount({ accountId, currency: "EUR", openingBalanceMinor: 10_000n, actor: w1 })
  const { payout } = yield* store.createPayout({
    idempotencyKey: AcquireId.make(`order-${n}`),
    actor: w1,
    payoutId: PayoutId.make(`00000000-0000-4000-8000-${n.padStart(12, "0")}`),
    accountId,
    amountMinor: 2_500n,
    currency: "EUR",
    beneficiary: "DE02120300000000202051"
  })
  yield* store.claim({ payoutId: payout.payoutId, token: T(token), actor: w1 })
  return payout
})

const requestOf = (payout: Payout, token: number) => ({
  token: T(token),
  actor: w1,
  idempotencyKey: AcquireId.make(`submit-${payout.payoutId}`),
  payoutId: payout.payoutId,
  accountId: payout.accountId,
  amountMinor: payout.amountMinor,
  currency: payout.currency,
  beneficiary: payout.beneficiary
})

const behave = Effect.fnUntraced(function* (control: Partial<typeof Control.Encoded>) {
  const { url } = yield* Stub
  const answer = yield* call("PUT", `${url}/control`, { "content-type": "application/json" }, JSON.stringify(control))
  assert.strictEqual(answer.status, 200)
})

/** The rail's own book: what arrived, and what was paid. */
const bookOf = Effect.fnUntraced(function* ({ clientReference }: Payout) {
  const { url } = yield* Stub
  const { body } = yield* call("GET", `${url}/payments`)
  const own = (rows: ReadonlyArray<{ readonly clientReference: string }>) =>
    rows.filter((row) => row.clientReference === clientReference).length
  return { submits: own(body.submits), payments: own(body.payments) }
})

/** What is read of an answer: an envelope, the rail's book, or a health answer. */
interface Body {
  readonly code: string
  readonly retrySafe: boolean
  readonly retryAfterMillis: number | null
  readonly details: Record<string, unknown> & { readonly fields: ReadonlyArray<{ readonly path: string }> }
  readonly submits: ReadonlyArray<{ readonly clientReference: string }>
  readonly payments: ReadonlyArray<{ readonly clientReference: string }>
  readonly components: Readonly<Record<string, { readonly status: string; readonly details: unknown }>>
}

/** A request as written, headers included. */
const call = (
  method: string,
  url: string,
  headers: Readonly<Record<string, string | Array<string>>> = {},
  body?: string
) =>
  Effect.callback<{ readonly status: number; readonly headers: http.IncomingHttpHeaders; readonly body: Body }>(
    (resume) => {
      const request = http.request(url, { method, agent: false, headers }, (response) => {
        let text = ""
        response.setEncoding("utf8").on("data", (chunk: string) => (text += chunk))
        response.on("end", () =>
          resume(
            Effect.succeed({
              status: response.statusCode ?? 0,
              headers: response.headers,
              body: text === "" ? undefined : JSON.parse(text)
            })
          )
        )
      })
      request.on("error", (cause) => resume(Effect.die(cause)))
      request.end(body)
      return Effect.sync(() => request.destroy())
    }
  )

const bodyOf = (payout: Payout) => ({
  payoutId: payout.payoutId,
  accountId: payout.accountId,
  amountMinor: payout.amountMinor.toString(),
  currency: payout.currency,
  beneficiary: payout.beneficiary
})

const goodHeaders = {
  "content-type": "application/json",
  "x-owner-id": "w1",
  "x-fencing-token": "7",
  "x-idempotency-key": "submit-1"
}

const submitRaw = Effect.fnUntraced(function* (
  body: unknown,
  headers: Readonly<Record<string, string | Array<string>>> = goodHeaders
) {
  const { url } = yield* Proxy
  return yield* call("POST", `${url}/v1/rail/submissions`, headers, JSON.stringify(body))
})

const failure = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.flip(effect), (found) => ({ ...found }) as Record<string, unknown>)

const World = Proxy.layer.pipe(Layer.provideMerge(Stub.layer), Layer.provideMerge(payments), Layer.provideMerge(paydb))

layer(World, { excludeTestServices: true, timeout: "60 seconds" })("rail-proxy over HTTP", (it) => {
  describe("R1", () => {
    it.effect("pays once, and answers the same token from the record", () =>
      Effect.gen(function* () {
        yield* behave({})
        const { client } = yield* Proxy
        const payout = yield* claimed(7)
        const acked = yield* client.submit(requestOf(payout, 7))
        assert.match(acked.railReference, /^RAIL-/)
        assert.deepStrictEqual(yield* client.submit(requestOf(payout, 7)), acked)
        assert.deepStrictEqual(yield* bookOf(payout), { submits: 1, payments: 1 })
        const record = yield* client.readSubmission(payout.payoutId)
        assert.deepInclude(record, { token: T(7), outcome: "ACKED", railReference: acked.railReference })
      })
    )

    it.effect("answers a decline with 422 and its code, again and again", () =>
      Effect.gen(function* () {
        yield* behave({ faults: [{ kind: "decline", code: "AM04" }] })
        const payout = yield* claimed(7)
        for (const _ of [1, 2]) {
          const answer = yield* submitRaw(bodyOf(payout))
          assert.strictEqual(answer.status, 422)
          assert.deepInclude(answer.body, { code: "RAIL_DECLINED", retrySafe: false, retryAfterMillis: null })
          assert.deepStrictEqual<unknown>(answer.body.details, { payoutId: payout.payoutId, railCode: "AM04" })
        }
        assert.deepStrictEqual(yield* bookOf(payout), { submits: 1, payments: 0 })
      })
    )

    const lost: ReadonlyArray<readonly [string, Record<string, unknown>, number]> = [
      ["a timeout that paid", { kind: "timeoutPaid" }, 1],
      ["a timeout that did not pay", { kind: "timeoutUnpaid" }, 0],
      ["a 5xx that paid", { kind: "http5xx" }, 1],
      ["a page for humans", { kind: "htmlBody" }, 1],
      ["a reset connection", { kind: "reset" }, 1],
      ["a status that nobody knows", { kind: "unknownStatus" }, 1],
      ["a refusal as a duplication", { kind: "decline", code: "AM05", paid: true }, 1]
    ]
    for (const [name, fault, paid] of lost) {
      it.effect(`records TIMEOUT and answers 504 for ${name}, and never asks again`, () =>
        Effect.gen(function* () {
          yield* behave({ holdMillis: 100, faults: [fault as never] })
          const payout = yield* claimed(7)
          for (const _ of [1, 2]) {
            const answer = yield* submitRaw(bodyOf(payout))
            assert.strictEqual(answer.status, 504)
            assert.deepInclude(answer.body, { code: "RAIL_AMBIGUOUS", retrySafe: false, retryAfterMillis: null })
            assert.deepStrictEqual<unknown>(answer.body.details, { payoutId: payout.payoutId, outcome: "TIMEOUT" })
          }
          assert.deepStrictEqual(yield* bookOf(payout), { submits: 1, payments: paid })
        })
      )
    }

    it.effect("ends within its budget when the rail holds the connection open", () =>
      Effect.gen(function* () {
        yield* behave({ holdMillis: 60_000, faults: [{ kind: "timeoutPaid" }] })
        const payout = yield* claimed(7)
        assert.strictEqual((yield* submitRaw(bodyOf(payout))).body.code, "RAIL_AMBIGUOUS")
      }).pipe(Effect.timeout("8 seconds"))
    )

    it.effect("records the second acknowledgement of one payment as DUPLICATE_ACK, ambiguous", () =>
      Effect.gen(function* () {
        yield* behave({})
        const { client } = yield* Proxy
        const [first, second] = [yield* claimed(7), yield* claimed(7)]
        yield* client.submit(requestOf(first, 7))
        yield* behave({ faults: [{ kind: "duplicateAck" }] })
        const answer = yield* submitRaw(bodyOf(second))
        assert.deepStrictEqual([answer.status, answer.body.details["outcome"]], [504, "DUPLICATE_ACK"])
        assert.deepStrictEqual(yield* bookOf(second), { submits: 1, payments: 0 })
      })
    )

    it.effect("tells a later token of the record with 409 DUPLICATE_SUBMISSION, and fences out the earlier one", () =>
      Effect.gen(function* () {
        yield* behave({ holdMillis: 50, faults: [{ kind: "timeoutPaid" }] })
        const store = yield* PaymentStore
        const payout = yield* claimed(7)
        yield* submitRaw(bodyOf(payout))
        yield* store.claim({ payoutId: payout.payoutId, token: T(8), actor: w1 })
        const later = yield* submitRaw(bodyOf(payout), { ...goodHeaders, "x-fencing-token": "8" })
        assert.deepStrictEqual(
          [later.status, later.body.code, later.body.details],
          [409, "DUPLICATE_SUBMISSION", { payoutId: payout.payoutId, outcome: "TIMEOUT", token: "7" }]
        )
        const stale = yield* submitRaw(bodyOf(payout))
        assert.deepStrictEqual(
          [stale.status, stale.body.code, stale.body.retryAfterMillis, stale.body.details],
          [
            409,
            "FENCED_OUT",
            null,
            { point: "rail", op: "submit", resource: payout.accountId, presented: "7", highest: "8" }
          ]
        )
        assert.deepStrictEqual(yield* bookOf(payout), { submits: 1, payments: 1 })
      })
    )

    const badTokens: ReadonlyArray<readonly [string, string | Array<string> | undefined]> = [
      ["absent", undefined],
      ["empty", ""],
      ["zero", "0"],
      ["signed", "+7"],
      ["negative", "-7"],
      ["padded", "007"],
      ["an exponent", "7e0"],
      ["hexadecimal", "0x7"],
      ["overflowing", "9223372036854775808"],
      ["repeated", ["7", "7"]]
    ]
    for (const [name, token] of badTokens) {
      it.effect(`answers INVALID_TOKEN for a token that is ${name}, and nothing changes`, () =>
        Effect.gen(function* () {
          const payout = yield* claimed(7)
          const { "x-fencing-token": _, ...others } = goodHeaders
          // Not read from the body either.
          const answer = yield* submitRaw(
            bodyOf(payout),
            token === undefined ? others : { ...others, "x-fencing-token": token }
          )
          assert.deepStrictEqual([answer.status, answer.body.code], [400, "INVALID_TOKEN"])
          const { client } = yield* Proxy
          assert.deepInclude(yield* failure(client.readSubmission(payout.payoutId)), { _tag: "PayoutNotFound" })
        })
      )
    }

    const badRequests: ReadonlyArray<
      readonly [string, (body: ReturnType<typeof bodyOf>) => unknown, Record<string, string>, string]
    > = [
      ["without an owner", (body) => body, { "x-owner-id": "" }, "headers.x-owner-id"],
      ["without an idempotency key", (body) => body, { "x-idempotency-key": "" }, "headers.x-idempotency-key"],
      ["with an amount as a number", (body) => ({ ...body, amountMinor: 2500 }), {}, "payload.amountMinor"],
      ["with an amount of nothing", (body) => ({ ...body, amountMinor: "0" }), {}, "payload.amountMinor"],
      ["with a token in its body", (body) => ({ ...body, token: "7" }), {}, "payload.token"],
      ["with a payout id that is none", (body) => ({ ...body, payoutId: "42" }), {}, "payload.payoutId"],
      ["with another amount than was ordered", (body) => ({ ...body, amountMinor: "2501" }), {}, "payload.amountMinor"],
      ["for another beneficiary", (body) => ({ ...body, beneficiary: "mallory" }), {}, "payload.beneficiary"]
    ]
    for (const [name, change, headers, field] of badRequests) {
      it.effect(`answers VALIDATION_FAILED to a request ${name}, and sends nothing`, () =>
        Effect.gen(function* () {
          const payout = yield* claimed(7)
          const answer = yield* submitRaw(change(bodyOf(payout)), { ...goodHeaders, ...headers })
          assert.deepStrictEqual([answer.status, answer.body.code], [400, "VALIDATION_FAILED"])
          assert.deepStrictEqual(
            answer.body.details.fields.map(({ path }) => path),
            [field]
          )
          assert.deepStrictEqual(yield* bookOf(payout), { submits: 0, payments: 0 })
        })
      )
    }
  })

  it.effect("records the outcome although the client hung up", () =>
    Effect.gen(function* () {
      yield* behave({ latency: { fixedMillis: 400 } })
      const { client } = yield* Proxy
      const payout = yield* claimed(7)
      const caller = yield* Effect.forkChild(submitRaw(bodyOf(payout)))
      yield* waitUntil(
        "the rail has the payment",
        Effect.map(bookOf(payout), ({ payments }) => payments === 1)
      )
      yield* Fiber.interrupt(caller)
      assert.strictEqual((yield* client.readSubmission(payout.payoutId)).outcome, "INTENT")
      yield* waitUntil(
        "the outcome is recorded",
        Effect.map(client.readSubmission(payout.payoutId), ({ outcome }) => outcome === "ACKED")
      )
    })
  )

  it.effect("R3 finds what became of a lost answer; R5 is evidence; both are recorded", () =>
    Effect.gen(function* () {
      yield* behave({
        holdMillis: 50,
        faults: [{ kind: "timeoutPaid" }],
        lookup: { faults: [{ kind: "unavailable" }] }
      })
      const { client } = yield* Proxy
      const store = yield* PaymentStore
      const payout = yield* claimed(7)
      const { payoutId } = payout
      yield* Effect.exit(client.submit(requestOf(payout, 7)))
      const none = { payoutId, executedCount: 0, railReference: null }
      assert.deepStrictEqual(yield* client.lookup({ payoutId, actor: w1 }), { ...none, finding: "UNAVAILABLE" })
      const found = yield* client.lookup({ payoutId, actor: w1 })
      assert.deepInclude(found, { finding: "EXECUTED", executedCount: 1 })
      assert.strictEqual((yield* store.readPayout(payoutId)).nextStep, "POST")
      const said = { payoutId, token: T(7), actor: w1, finding: "REJECTED", reason: "phone call" } as const
      assert.deepStrictEqual(yield* client.evidence(said), { ...none, finding: "REJECTED" })
      assert.strictEqual((yield* store.readPayout(payoutId)).nextStep, "FAIL")
    })
  )

  it.effect("R4 seals what was not sent and loses to what was", () =>
    Effect.gen(function* () {
      yield* behave({})
      const { client } = yield* Proxy
      const [unsent, sent] = [yield* claimed(7), yield* claimed(7)]
      const reason = "customer cancelled"
      const sealed = yield* client.seal({ payoutId: unsent.payoutId, token: T(7), actor: w1, reason })
      assert.deepInclude(sealed, { outcome: "VOIDED", token: T(7) })
      yield* client.submit(requestOf(sent, 7))
      assert.deepInclude(yield* failure(client.seal({ payoutId: sent.payoutId, token: T(7), actor: w1, reason })), {
        _tag: "DuplicateSubmission",
        outcome: "ACKED"
      })
      assert.deepStrictEqual(yield* bookOf(unsent), { submits: 0, payments: 0 })
    })
  )

  it.effect("knows no payout that does not exist, on every route", () =>
    Effect.gen(function* () {
      const { client } = yield* Proxy
      const payoutId = PayoutId.make("ffffffff-ffff-4fff-8fff-ffffffffffff")
      const payout = yield* claimed(7)
      const of = { payoutId, token: T(7), actor: w1, reason: "no reason" }
      const answers = yield* Effect.all([
        failure(client.submit({ ...requestOf(payout, 7), payoutId })),
        failure(client.readSubmission(payoutId)),
        failure(client.lookup({ payoutId, actor: w1 })),
        failure(client.seal(of)),
        failure(client.evidence({ ...of, finding: "EXECUTED" }))
      ])
      for (const answer of answers) assert.deepStrictEqual(answer, { _tag: "PayoutNotFound", payoutId })
    })
  )

  it.effect(
    "is ready with the rail down, not ready when the switch of the database disagrees, and has its metrics at 0",
    () =>
      Effect.gen(function* () {
        const { managementUrl } = yield* Proxy
        const lonely = yield* startProxy({ RAIL_URL: "http://127.0.0.1:1" })
        const readiness = (url: string) => call("GET", `${url}/actuator/health/readiness`)
        const down = yield* readiness(lonely.managementUrl)
        assert.deepStrictEqual(
          [down.status, down.body.components["payDb"]?.status, down.body.components["rail"]?.status],
          [200, "UP", "DOWN"]
        )
        const off = yield* startProxy({ RAIL_FENCING_ENABLED: "false" })
        const disagreeing = yield* readiness(off.managementUrl)
        assert.deepStrictEqual(
          [disagreeing.status, disagreeing.body.components["payDb"]],
          [503, { status: "DOWN", details: { error: "FencingDisagrees" } }]
        )
        assert.isTrue(off.log.some(({ event, level }) => event === "fencing_disabled" && level === "Error"))
        const { url } = yield* TestDatabase
        yield* PgPaydb.setSwitches(url, { resource: true, rail: false })
        assert.strictEqual((yield* readiness(managementUrl)).status, 503)
        assert.strictEqual((yield* readiness(off.managementUrl)).status, 200)
        yield* PgPaydb.setSwitches(url, { resource: true, rail: true })
        assert.strictEqual((yield* readiness(managementUrl)).status, 200)
        const metrics = yield* scrape(lonely.managementUrl)
        for (const line of [
          "rail_duplicate_attempted_total 0",
          "rail_duplicate_detected_total 0",
          "rail_late_execution_total 0",
          `lock_fenced_out_total{point="rail",op="submit"} 0`,
          `fencing_enabled{point="rail"} 1`,
          `rail_submit_seconds_count{outcome="timeout"} 0`
        ]) {
          assert.include(metrics, line)
        }
      }).pipe(Effect.scoped)
  )

  it.effect("finishes what is under way when it is told to stop, and leaves no intent open", () =>
    Effect.gen(function* () {
      yield* behave({ latency: { fixedMillis: 600 } })
      const proxy = yield* startProxy()
      const { client } = yield* Proxy
      const payout = yield* claimed(7)
      const abandoned = yield* claimed(7)
      const caller = yield* Effect.forkChild(proxy.client.submit(requestOf(payout, 7)))
      const leaver = yield* Effect.forkChild(proxy.client.submit(requestOf(abandoned, 7)))
      yield* waitUntil(
        "the rail has both",
        Effect.map(Effect.all([bookOf(payout), bookOf(abandoned)]), (books) =>
          books.every(({ payments }) => payments === 1)
        )
      )
      yield* Fiber.interrupt(leaver)
      yield* proxy.stop
      assert.deepInclude(yield* Fiber.join(caller), { outcome: "ACKED" })
      assert.strictEqual((yield* client.readSubmission(abandoned.payoutId)).outcome, "ACKED")
    }).pipe(Effect.scoped)
  )

  describe("UC-03b, a proxy that is stopped between intent and send", () => {
    /** Starts a proxy that stops at the point, submits to it, and hands over the moment of its waking. */
    const stoppedAt = Effect.fnUntraced(function* (point: string) {
      const arrived = yield* Deferred.make<void>()
      const wake = yield* Deferred.make<void>()
      const proxy = yield* startProxy({}, (name) =>
        name === point ? Effect.andThen(Deferred.succeed(arrived, undefined), Deferred.await(wake)) : Effect.void
      )
      const payout = yield* claimed(7)
      const caller = yield* Effect.forkChild(failure(proxy.client.submit(requestOf(payout, 7))))
      yield* Deferred.await(arrived)
      return { payout, caller, wake: Deferred.succeed(wake, undefined) }
    })

    it.effect("for longer than its window: nothing is sent, TIMEOUT is recorded", () =>
      Effect.gen(function* () {
        yield* behave({})
        const { caller, payout, wake } = yield* stoppedAt("rail.intent.after")
        yield* Effect.sleep("1700 millis")
        yield* wake
        assert.deepInclude(yield* Fiber.join(caller), { _tag: "RailAmbiguous", outcome: "TIMEOUT" })
        assert.deepStrictEqual(yield* bookOf(payout), { submits: 0, payments: 0 })
      }).pipe(Effect.scoped)
    )

    it.effect("between its check and the socket: pays late. The hole, found as a late execution", () =>
      Effect.gen(function* () {
        yield* behave({})
        const { client } = yield* Proxy
        const { caller, payout, wake } = yield* stoppedAt("rail.send.before")
        // The reconciler settles it as never executed meanwhile (here: by an operator's word).
        const store = yield* PaymentStore
        const { payoutId } = payout
        const of = { payoutId, token: T(7), actor: w1 }
        yield* client.evidence({ ...of, finding: "REJECTED", reason: "rail says no" })
        yield* store.fail({ ...of, reason: "RAIL_NOT_EXECUTED" })
        yield* wake
        yield* Fiber.join(caller).pipe(Effect.exit)
        yield* waitUntil(
          "the rail has paid",
          Effect.map(bookOf(payout), ({ payments }) => payments === 1)
        )
        assert.deepInclude(yield* client.lookup({ payoutId, actor: w1 }), { finding: "EXECUTED" })
        const { log, managementUrl } = yield* Proxy
        assert.isTrue(log.some((line) => line["event"] === "late_execution" && line["payoutId"] === payoutId))
        assert.include(yield* scrape(managementUrl), "rail_late_execution_total 1")
      }).pipe(Effect.scoped)
    )
  })
})

const scrape = (url: string) =>
  Effect.callback<string>((resume) => {
    http.get(`${url}/actuator/prometheus`, { agent: false }, (response) => {
      let text = ""
      response.setEncoding("utf8").on("data", (chunk: string) => (text += chunk))
      response.on("end", () => resume(Effect.succeed(text)))
    })
  })
