/**
 * payment-resource over HTTP, for executor, reconciler and operator.
 *
 * A call that gets no answer of the service's own (refused, cut off, too late, an HTML page of something in between) is
 * `BackendUnavailable`: what a write changed is unknown, and repeating it under the same token or key is safe. Nothing is
 * repeated here: who repeats must know what he repeats.
 */
import { Effect, Layer, type Schema } from "effect"
import type { HttpClient, HttpClientError } from "effect/http"
import { HttpApiClient } from "effect/http-api"
import { boundedBy } from "../../core/Bound.ts"
import { type BackendUnavailable, backendUnavailable } from "../../core/lock/LockErrors.ts"
import { PaymentResource, type ProtectedWrite } from "../../core/payment/PaymentResource.ts"
import type { WireError } from "./ApiError.ts"
import { PaymentHttpApi } from "./PaymentHttpApi.ts"
import { noAnswer } from "./RequestErrors.ts"
import { traced } from "./TracedClient.ts"

export interface HttpPaymentResourceOptions {
  readonly url: string
  /** Every call ends within this, one way or the other. */
  readonly callTimeoutMillis: number
}

export const make = Effect.fnUntraced(function* ({ callTimeoutMillis, url }: HttpPaymentResourceOptions) {
  const { accounts, payouts } = yield* HttpApiClient.make(PaymentHttpApi, { baseUrl: url, transformClient: traced })

  const within = (operation: string) =>
    boundedBy(callTimeoutMillis, () =>
      backendUnavailable(operation, `no answer of payment-resource within ${callTimeoutMillis} ms`)
    )

  const protectedRequest = ({ actor, payoutId, token }: ProtectedWrite) => ({
    params: { payoutId },
    headers: { "x-owner-id": actor, "x-fencing-token": token }
  })

  return PaymentResource.of({
    listPayouts: ({ accountId, after, limit, state }) =>
      payouts
        .list({
          query: {
            limit,
            ...(state === undefined ? {} : { state }),
            ...(accountId === undefined ? {} : { accountId }),
            ...(after === undefined ? {} : { after })
          }
        })
        .pipe(Effect.catchTag(refusedOrNoAnswer, unavailable("listPayouts")), within("listPayouts")),
    readPayout: (payoutId) =>
      payouts
        .read({ params: { payoutId } })
        .pipe(Effect.catchTag(refusedOrNoAnswer, unavailable("readPayout")), within("readPayout")),
    createPayout: ({ accountId, actor, amountMinor, beneficiary, currency, idempotencyKey, payoutId }) =>
      payouts
        .create({
          headers: { "x-owner-id": actor, "x-idempotency-key": idempotencyKey },
          payload: { accountId, amountMinor, currency, beneficiary, ...(payoutId === undefined ? {} : { payoutId }) }
        })
        .pipe(Effect.catchTag(noAnswer, unavailable("createPayout")), within("createPayout")),
    claim: (write) =>
      payouts
        .claim(protectedRequest(write))
        .pipe(Effect.catchTag(refusedOrNoAnswer, unavailable("claim")), within("claim")),
    post: (write) =>
      payouts
        .post(protectedRequest(write))
        .pipe(Effect.catchTag(refusedOrNoAnswer, unavailable("post")), within("post")),
    fail: (write) =>
      payouts
        .fail({ ...protectedRequest(write), payload: { reason: write.reason } })
        .pipe(Effect.catchTag(refusedOrNoAnswer, unavailable("fail")), within("fail")),
    ambiguous: (write) =>
      payouts
        .ambiguous(protectedRequest(write))
        .pipe(Effect.catchTag(refusedOrNoAnswer, unavailable("ambiguous")), within("ambiguous")),
    resolve: (write) =>
      payouts
        .resolve(protectedRequest(write))
        .pipe(Effect.catchTag(refusedOrNoAnswer, unavailable("resolve")), within("resolve")),
    readAccount: (accountId) =>
      accounts
        .read({ params: { accountId } })
        .pipe(Effect.catchTag(refusedOrNoAnswer, unavailable("readAccount")), within("readAccount")),
    readLedger: ({ accountId, after, limit }) =>
      accounts
        .ledger({ params: { accountId }, query: { limit, ...(after === undefined ? {} : { after }) } })
        .pipe(Effect.catchTag(refusedOrNoAnswer, unavailable("readLedger")), within("readLedger")),
    createAccount: ({ accountId, actor, currency, openingBalanceMinor }) =>
      accounts.open({ headers: { "x-owner-id": actor }, payload: { accountId, currency, openingBalanceMinor } }).pipe(
        Effect.catchTag(noAnswer, unavailable("createAccount")),
        within("createAccount"),
        Effect.map(({ created, ...account }) => ({ account, created }))
      ),
    readHistory: (payoutId) =>
      payouts.history({ params: { payoutId } }).pipe(
        Effect.catchTag(refusedOrNoAnswer, unavailable("readHistory")),
        within("readHistory"),
        Effect.map(({ items }) => items)
      )
  })
})

export const layer = (
  options: HttpPaymentResourceOptions
): Layer.Layer<PaymentResource, never, HttpClient.HttpClient> => Layer.effect(PaymentResource, make(options))

/** The same where the operation itself has no invalid request: its branded parameters can not be out of bounds. */
const refusedOrNoAnswer = [...noAnswer, "ValidationFailed"] as const

const unavailable =
  (operation: string) =>
  (
    failure: WireError | HttpClientError.HttpClientError | Schema.SchemaError
  ): Effect.Effect<never, BackendUnavailable> =>
    Effect.fail(backendUnavailable(operation, `${failure._tag}: ${failure.message}`.slice(0, 300)))
