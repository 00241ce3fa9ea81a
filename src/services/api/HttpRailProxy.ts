/**
 * rail-proxy over HTTP, for executor, reconciler and operator.
 *
 * A call that gets no answer of the proxy's own (refused, cut off, too late, an HTML page of something in between) is
 * `BackendUnavailable`: what a write changed is unknown, and repeating it under the same token is safe, because the
 * proxy answers its record and never sends again. It is not `RailAmbiguous`: that is the proxy's word about its record,
 * and a proxy that was never reached has none. Nothing is repeated here.
 */
import { Effect, Layer } from "effect"
import type { HttpClient, HttpClientError } from "effect/http"
import { HttpApiClient } from "effect/http-api"
import type { Schema } from "effect"
import { boundedBy } from "../../core/Bound.ts"
import { type BackendUnavailable, backendUnavailable } from "../../core/lock/LockErrors.ts"
import { RailProxy } from "../../core/rail/RailProxy.ts"
import type { WireError } from "./ApiError.ts"
import { RailHttpApi } from "./RailHttpApi.ts"
import { noAnswer } from "./RequestErrors.ts"
import { traced } from "./TracedClient.ts"

export interface HttpRailProxyOptions {
  readonly url: string
  /** Of R1 and R3, which wait for the rail: longer than the proxy's own budget, so that the proxy tells first. */
  readonly railTimeoutMillis: number
  /** Of the others. */
  readonly callTimeoutMillis: number
}

export const make = Effect.fnUntraced(function* (options: HttpRailProxyOptions) {
  const { submissions } = yield* HttpApiClient.make(RailHttpApi, { baseUrl: options.url, transformClient: traced })

  const call = (operation: string, timeoutMillis: number) =>
    boundedBy(timeoutMillis, () => backendUnavailable(operation, `no answer of rail-proxy within ${timeoutMillis} ms`))

  return RailProxy.of({
    submit: ({ actor, idempotencyKey, token, ...payload }) =>
      submissions
        .submit({
          headers: { "x-owner-id": actor, "x-fencing-token": token, "x-idempotency-key": idempotencyKey },
          payload
        })
        .pipe(Effect.catchTag(noAnswer, unavailable("submit")), call("submit", options.railTimeoutMillis)),
    readSubmission: (payoutId) =>
      submissions
        .read({ params: { payoutId } })
        .pipe(
          Effect.catchTag([...noAnswer, "ValidationFailed"], unavailable("read")),
          call("read", options.callTimeoutMillis)
        ),
    lookup: ({ actor, payoutId }) =>
      submissions
        .lookup({ params: { payoutId }, headers: { "x-owner-id": actor } })
        .pipe(
          Effect.catchTag([...noAnswer, "ValidationFailed"], unavailable("lookup")),
          call("lookup", options.railTimeoutMillis)
        ),
    seal: ({ actor, payoutId, reason, token }) =>
      submissions
        .seal({
          params: { payoutId },
          headers: { "x-owner-id": actor, "x-fencing-token": token },
          payload: { reason }
        })
        .pipe(
          Effect.catchTag([...noAnswer, "ValidationFailed"], unavailable("void")),
          call("void", options.callTimeoutMillis)
        ),
    evidence: ({ actor, finding, payoutId, railReference, reason, token }) =>
      submissions
        .evidence({
          params: { payoutId },
          headers: { "x-owner-id": actor, "x-fencing-token": token },
          payload: { finding, reason, ...(railReference === undefined ? {} : { railReference }) }
        })
        .pipe(
          Effect.catchTag([...noAnswer, "ValidationFailed"], unavailable("evidence")),
          call("evidence", options.callTimeoutMillis)
        )
  })
})

export const layer = (options: HttpRailProxyOptions): Layer.Layer<RailProxy, never, HttpClient.HttpClient> =>
  Layer.effect(RailProxy, make(options))

const unavailable =
  (operation: string) =>
  (
    failure: WireError | HttpClientError.HttpClientError | Schema.SchemaError
  ): Effect.Effect<never, BackendUnavailable> =>
    Effect.fail(backendUnavailable(operation, `${failure._tag}: ${failure.message}`.slice(0, 300)))
