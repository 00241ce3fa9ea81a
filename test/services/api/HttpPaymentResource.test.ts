/** What the client of payment-resource makes of answers that are none. What is an answer: `PaymentServer.test.ts`. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Layer } from "effect"
import { HttpClient, HttpClientError, HttpClientResponse } from "effect/http"
import { AcquireId, FencingToken, OwnerId } from "../../../src/core/lock/Lock.ts"
import { PaymentResource } from "../../../src/core/payment/PaymentResource.ts"
import { AccountId, PayoutId } from "../../../src/core/payment/Payout.ts"
import * as HttpPaymentResource from "../../../src/services/api/HttpPaymentResource.ts"

const payoutId = PayoutId.make("00000000-0000-4000-8000-000000000001")
const accountId = AccountId.make("acct-1")
const actor = OwnerId.make("w1")
const write = { payoutId, token: FencingToken.make(7n), actor }

const operations = (
  payments: PaymentResource["Service"]
): Readonly<Record<string, Effect.Effect<unknown, { readonly _tag: string }>>> => ({
  listPayouts: payments.listPayouts({ limit: 1 }),
  readPayout: payments.readPayout(payoutId),
  createPayout: payments.createPayout({
    idempotencyKey: AcquireId.make("k"),
    actor,
    accountId,
    amountMinor: 1n,
    currency: "EUR",
    beneficiary: "Ada"
  }),
  claim: payments.claim(write),
  post: payments.post(write),
  fail: payments.fail({ ...write, reason: "CANCELLED" }),
  ambiguous: payments.ambiguous(write),
  resolve: payments.resolve(write),
  readAccount: payments.readAccount(accountId),
  readLedger: payments.readLedger({ accountId, limit: 1 }),
  createAccount: payments.createAccount({ accountId, currency: "EUR", openingBalanceMinor: 1n, actor }),
  readHistory: payments.readHistory(payoutId)
})

type Answer = (
  request: Parameters<Parameters<typeof HttpClient.make>[0]>[0]
) => Effect.Effect<Response, HttpClientError.HttpClientError>

const answers: Readonly<Record<string, Answer>> = {
  "a refused connection": (request) =>
    Effect.fail(
      new HttpClientError.HttpClientError({
        reason: new HttpClientError.TransportError({ request, description: "ECONNREFUSED" })
      })
    ),
  "an HTML page": () =>
    Effect.succeed(new Response("<h1>502</h1>", { status: 502, headers: { "content-type": "text/html" } })),
  "a success that is none": () => Effect.succeed(Response.json({ hello: "world" })),
  "a success of HTML": () =>
    Effect.succeed(new Response("<h1>Welcome</h1>", { headers: { "content-type": "text/html" } })),
  "a status nobody declared": () => Effect.succeed(Response.json({}, { status: 418 })),
  "an envelope with an unknown code": () =>
    Effect.succeed(
      Response.json(
        { code: "NEW", message: "", retrySafe: false, retryAfterMillis: null, details: {}, traceId: "0" },
        { status: 409 }
      )
    ),
  "a defect at the other end": () =>
    Effect.succeed(
      Response.json(
        { code: "INTERNAL", message: "", retrySafe: false, retryAfterMillis: null, details: {}, traceId: "0" },
        { status: 500 }
      )
    ),
  silence: () => Effect.never
}

describe("HttpPaymentResource", () => {
  for (const [what, answer] of Object.entries(answers)) {
    it.live(`calls ${what} BackendUnavailable, and asks once`, () =>
      Effect.gen(function* () {
        let asked = 0
        const client = HttpClient.make((request) => {
          asked++
          return Effect.map(answer(request), (response) => HttpClientResponse.fromWeb(request, response))
        })
        const payments = yield* Effect.provide(
          PaymentResource,
          HttpPaymentResource.layer({ url: "http://payments", callTimeoutMillis: 200 }).pipe(
            Layer.provide(Layer.succeed(HttpClient.HttpClient, client))
          )
        )
        for (const [operation, effect] of Object.entries(operations(payments))) {
          asked = 0
          const failure: object = { ...(yield* Effect.flip(effect)) }
          assert.deepInclude(failure, { _tag: "BackendUnavailable", operation })
          assert.strictEqual(asked, 1, operation)
        }
      })
    )
  }
})
