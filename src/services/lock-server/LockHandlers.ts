/** L1 to L8: from the wire to `LockApi` and back. Failures pass through; what they look like is the error table's. */
import { Effect, Layer } from "effect"
import { HttpApiBuilder } from "effect/http-api"
import type { AcquiredGrant, LockGrant, OwnerId } from "../../core/lock/Lock.ts"
import { LockApi } from "../../core/lock/LockApi.ts"
import { invalidField, type ValidationFailed } from "../../core/RequestFailures.ts"
import { LockHttpApi } from "../api/LockHttpApi.ts"

const sessions = HttpApiBuilder.group(
  LockHttpApi,
  "sessions",
  Effect.fnUntraced(function* (handlers) {
    const api = yield* LockApi
    return handlers.handleAll({
      open: ({ headers, payload }) =>
        Effect.flatMap(ownerOf(headers["x-owner-id"], payload?.ownerId), (ownerId) =>
          api.openSession({ ownerId, ttlMillis: payload?.ttlMillis, openId: headers["x-idempotency-key"] })
        ),
      heartbeat: ({ headers, params }) => api.heartbeat(params.sessionId, headers["x-owner-id"]),
      close: ({ headers, params }) => api.closeSession(params.sessionId, headers["x-owner-id"])
    })
  })
)

const locks = HttpApiBuilder.group(
  LockHttpApi,
  "locks",
  Effect.fnUntraced(function* (handlers) {
    const api = yield* LockApi
    return handlers.handleAll({
      // A client that goes away interrupts this, and so leaves the line; what it has won by then the service settles.
      acquire: ({ headers, params, payload }) =>
        Effect.map(
          api.acquire({
            ...payload,
            key: params.key,
            ownerId: headers["x-owner-id"],
            acquireId: headers["x-idempotency-key"]
          }),
          acquiredJson
        ),
      renew: ({ headers, params, payload }) =>
        Effect.map(
          api.renew({
            key: params.key,
            ownerId: headers["x-owner-id"],
            token: headers["x-fencing-token"],
            ttlMillis: payload?.ttlMillis
          }),
          grantJson
        ),
      release: ({ headers, params }) =>
        api.release({ key: params.key, ownerId: headers["x-owner-id"], token: headers["x-fencing-token"] }),
      inspect: ({ params }) => Effect.map(api.inspect(params.key), (info) => ({ ...info, advisory: true as const })),
      revoke: ({ headers, params, payload }) =>
        api.revoke({ ...payload, key: params.key, revocationId: headers["x-idempotency-key"] })
    })
  })
)

export const layer = Layer.merge(sessions, locks)

/** The header or the body may say it; never the last one that did. */
const ownerOf = (header: OwnerId | undefined, body: OwnerId | undefined): Effect.Effect<OwnerId, ValidationFailed> => {
  const ownerId = header ?? body
  if (ownerId === undefined) {
    return Effect.fail(invalidField("headers.x-owner-id", "required here, or as ownerId in the body"))
  }
  return body === undefined || body === ownerId
    ? Effect.succeed(ownerId)
    : Effect.fail(invalidField("payload.ownerId", "differs from X-Owner-Id"))
}

const grantJson = ({ token, ...grant }: LockGrant) => ({ ...grant, fencingToken: token })

const acquiredJson = ({ waitedMillis, ...grant }: AcquiredGrant) => ({ ...grantJson(grant), waitedMillis })
