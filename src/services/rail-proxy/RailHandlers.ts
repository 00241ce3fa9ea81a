/** R1 to R5 over the service: decode, call, encode. */
import { Effect } from "effect"
import { HttpApiBuilder } from "effect/http-api"
import { RailProxy } from "../../core/rail/RailProxy.ts"
import { RailHttpApi } from "../api/RailHttpApi.ts"

export const layer = HttpApiBuilder.group(
  RailHttpApi,
  "submissions",
  Effect.fnUntraced(function* (handlers) {
    const rail = yield* RailProxy
    return handlers.handleAll({
      submit: ({ headers, payload }) =>
        rail.submit({
          ...payload,
          token: headers["x-fencing-token"],
          actor: headers["x-owner-id"],
          idempotencyKey: headers["x-idempotency-key"]
        }),
      read: ({ params }) => rail.readSubmission(params.payoutId),
      lookup: ({ headers, params }) => rail.lookup({ payoutId: params.payoutId, actor: headers["x-owner-id"] }),
      seal: ({ headers, params, payload }) =>
        rail.seal({
          payoutId: params.payoutId,
          token: headers["x-fencing-token"],
          actor: headers["x-owner-id"],
          reason: payload.reason
        }),
      evidence: ({ headers, params, payload }) =>
        rail.evidence({
          payoutId: params.payoutId,
          token: headers["x-fencing-token"],
          actor: headers["x-owner-id"],
          ...payload
        })
    })
  })
)
