/** P1 to P12: from the wire to `PaymentResource` and back. */
import { Effect, Layer } from "effect"
import { HttpApiBuilder } from "effect/http-api"
import type { FencingToken, OwnerId } from "../../core/lock/Lock.ts"
import { PaymentResource, type ProtectedWrite } from "../../core/payment/PaymentResource.ts"
import type { PayoutId } from "../../core/payment/Payout.ts"
import { DEFAULT_LIMIT, PaymentHttpApi } from "../api/PaymentHttpApi.ts"

interface Protected {
  readonly params: { readonly payoutId: PayoutId }
  readonly headers: { readonly "x-owner-id": OwnerId; readonly "x-fencing-token": FencingToken }
}

const writeOf = ({ headers, params }: Protected): ProtectedWrite => ({
  payoutId: params.payoutId,
  token: headers["x-fencing-token"],
  actor: headers["x-owner-id"]
})

const payouts = HttpApiBuilder.group(
  PaymentHttpApi,
  "payouts",
  Effect.fnUntraced(function* (handlers) {
    const payments = yield* PaymentResource
    return handlers.handleAll({
      list: ({ query }) => payments.listPayouts({ ...query, limit: query.limit ?? DEFAULT_LIMIT }),
      read: ({ params }) => payments.readPayout(params.payoutId),
      create: ({ headers, payload }) =>
        payments.createPayout({
          ...payload,
          actor: headers["x-owner-id"],
          idempotencyKey: headers["x-idempotency-key"]
        }),
      claim: (request) => payments.claim(writeOf(request)),
      post: (request) => payments.post(writeOf(request)),
      fail: (request) => payments.fail({ ...writeOf(request), reason: request.payload.reason }),
      ambiguous: (request) => payments.ambiguous(writeOf(request)),
      resolve: (request) => payments.resolve(writeOf(request)),
      history: ({ params }) => Effect.map(payments.readHistory(params.payoutId), (items) => ({ items }))
    })
  })
)

const accounts = HttpApiBuilder.group(
  PaymentHttpApi,
  "accounts",
  Effect.fnUntraced(function* (handlers) {
    const payments = yield* PaymentResource
    return handlers.handleAll({
      read: ({ params }) => payments.readAccount(params.accountId),
      ledger: ({ params, query }) =>
        payments.readLedger({ ...query, accountId: params.accountId, limit: query.limit ?? DEFAULT_LIMIT }),
      open: ({ headers, payload }) =>
        Effect.map(payments.createAccount({ ...payload, actor: headers["x-owner-id"] }), ({ account, created }) =>
          created ? { ...account, created } : { ...account, created }
        )
    })
  })
)

export const layer = Layer.merge(payouts, accounts)
