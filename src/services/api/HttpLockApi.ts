/**
 * The lock service over HTTP: `LockApi` for the SDK and the operator's commands.
 *
 * - Nothing is repeated here: who repeats must know under which id or token.
 * - Every call ends within its bound, one way or the other; an acquire's bound is longer by what it is willing to wait.
 * - No answer of the service's own (refused, cut off, late, a page of something in between, a 500) is `BackendUnavailable`:
 *   what a write changed is unknown, and repeating it under its id or token is safe.
 * - An answer that says our request was wrong (`ValidationFailed`, `InvalidToken`, ..) is a defect: the parameters are
 *   branded, so the fault is in this program, and repeating it would only hide it.
 */
import { Effect, Layer, Schema } from "effect"
import type { HttpClient, HttpClientError } from "effect/http"
import { HttpApiClient } from "effect/http-api"
import { boundedBy } from "../../core/Bound.ts"
import { OwnerId } from "../../core/lock/Lock.ts"
import { LockApi } from "../../core/lock/LockApi.ts"
import { type BackendUnavailable, backendUnavailable } from "../../core/lock/LockErrors.ts"
import type { WireErrorOf } from "./ApiError.ts"
import { LockHttpApi } from "./LockHttpApi.ts"
import { traced } from "./TracedClient.ts"

export interface HttpLockApiOptions {
  /** `http://host:port` */
  readonly url: string
  /** Of every call; plus `waitMillis` for an acquire. */
  readonly callTimeoutMillis: number
}

/** What says nothing about the operation. */
const noAnswer = [
  "HttpClientError",
  "Internal",
  "RouteNotFound",
  "MethodNotAllowed",
  "MalformedRequest",
  "RequestTimeout"
] as const
/** What says that the request was wrong. `SchemaError`: it did not even encode. */
const ownFault = [
  "SchemaError",
  "ValidationFailed",
  "InvalidToken",
  "PayloadTooLarge",
  "UnsupportedMediaType",
  "HeadersTooLarge"
] as const
type OwnFault = Schema.SchemaError | WireErrorOf<Exclude<(typeof ownFault)[number], "SchemaError">>
type NoAnswer = HttpClientError.HttpClientError | WireErrorOf<Exclude<(typeof noAnswer)[number], "HttpClientError">>

export const make = Effect.fnUntraced(function* ({ callTimeoutMillis, url }: HttpLockApiOptions) {
  const { locks, sessions } = yield* HttpApiClient.make(LockHttpApi, {
    baseUrl: url,
    transformClient: traced,
    // Of a response, as opposed to our request: an answer in no known shape is none.
    transformResponse: Effect.mapError((error) =>
      Schema.isSchemaError(error) ? backendUnavailable("answer", `unreadable: ${error.message}`.slice(0, 300)) : error
    )
  })

  const call =
    (operation: string, timeoutMillis = callTimeoutMillis) =>
    <A, E extends { readonly _tag: string }>(request: Effect.Effect<A, E>) =>
      request.pipe(
        Effect.catchIf(
          (error): error is Extract<E, NoAnswer> => (noAnswer as ReadonlyArray<string>).includes(error._tag),
          (error) => Effect.fail(unanswered(operation, error as NoAnswer))
        ),
        Effect.catchIf(
          (error): error is Extract<typeof error, OwnFault> => (ownFault as ReadonlyArray<string>).includes(error._tag),
          (error) => Effect.die(error)
        ),
        boundedBy(timeoutMillis, () => backendUnavailable(operation, `no answer within ${timeoutMillis} ms`))
      )

  return LockApi.of({
    openSession: ({ openId, ownerId, ttlMillis }) =>
      sessions
        .open({
          headers: { "x-owner-id": ownerId, ...(openId === undefined ? {} : { "x-idempotency-key": openId }) },
          payload: ttlMillis === undefined ? {} : { ttlMillis }
        })
        .pipe(call("openSession")),
    heartbeat: (sessionId, ownerId) =>
      sessions.heartbeat({ params: { sessionId }, headers: { "x-owner-id": ownerId } }).pipe(call("heartbeat")),
    closeSession: (sessionId, ownerId) =>
      sessions.close({ params: { sessionId }, headers: { "x-owner-id": ownerId } }).pipe(call("closeSession")),
    acquire: ({ acquireId, key, ownerId, sessionId, ttlMillis, waitMillis }) =>
      locks
        .acquire({
          params: { key },
          headers: { "x-owner-id": ownerId, ...(acquireId === undefined ? {} : { "x-idempotency-key": acquireId }) },
          payload: {
            sessionId,
            ...(ttlMillis === undefined ? {} : { ttlMillis }),
            ...(waitMillis === undefined ? {} : { waitMillis })
          }
        })
        .pipe(
          Effect.map(({ fencingToken, ...grant }) => ({ ...grant, token: fencingToken })),
          call("acquire", callTimeoutMillis + (waitMillis ?? 0))
        ),
    renew: ({ key, ownerId, token, ttlMillis }) =>
      locks
        .renew({
          params: { key },
          headers: { "x-owner-id": ownerId, "x-fencing-token": token },
          payload: ttlMillis === undefined ? {} : { ttlMillis }
        })
        .pipe(
          Effect.map(({ fencingToken, ...grant }) => ({ ...grant, token: fencingToken })),
          call("renew")
        ),
    release: ({ key, ownerId, token }) =>
      locks
        .release({ params: { key }, headers: { "x-owner-id": ownerId, "x-fencing-token": token } })
        .pipe(call("release")),
    inspect: (key) =>
      locks.inspect({ params: { key } }).pipe(
        Effect.map(({ expiresAt, held, holderOwnerId }) => ({ key, held, holderOwnerId, expiresAt })),
        call("inspect")
      ),
    revoke: ({ expectedToken, key, operator, reason, revocationId }) =>
      locks
        .revoke({
          params: { key },
          headers: {
            "x-owner-id": actorOf(operator),
            ...(revocationId === undefined ? {} : { "x-idempotency-key": revocationId })
          },
          payload: { operator, reason, ...(expectedToken === undefined ? {} : { expectedToken }) }
        })
        .pipe(call("revoke"))
  })
})

/** Connections are kept open and used again; the scope of the `HttpClient` closes them. */
export const layer = (options: HttpLockApiOptions): Layer.Layer<LockApi, never, HttpClient.HttpClient> =>
  Layer.effect(LockApi, make(options))

/** The header has fewer characters than an operator's name, which the audit takes from the body. */
const actorOf = (operator: string): OwnerId =>
  OwnerId.make(operator.replaceAll(/[^A-Za-z0-9._:@-]/gu, "_").slice(0, 64) || "operator")

const unanswered = (operation: string, error: NoAnswer): BackendUnavailable =>
  backendUnavailable(operation, `${error._tag}: ${error.message}`.slice(0, 300))
