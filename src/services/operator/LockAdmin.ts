/**
 * The operator's view of the locks, tokens included, from lock-server's management port. Read-only: what changes a lock
 * goes through `LockApi` like everybody else's request.
 */
import { Context, Effect, Layer, Schema } from "effect"
import { HttpClient, HttpClientRequest } from "effect/http"
import { boundedBy } from "../../core/Bound.ts"
import { FencingTokenFromString, LockKey, OwnerId, SessionId } from "../../core/lock/Lock.ts"
import { type BackendUnavailable, backendUnavailable, LockNotFound } from "../../core/lock/LockErrors.ts"
import { traced } from "../api/TracedClient.ts"
import { InstantFromString } from "../api/Wire.ts"

const recordFields = {
  key: LockKey,
  held: Schema.Boolean,
  /** Of the live grant, or of the last one. */
  fencingToken: FencingTokenFromString,
  ownerId: OwnerId,
  sessionId: SessionId,
  grantedAt: InstantFromString,
  expiresAt: InstantFromString,
  lastRevocation: Schema.NullOr(
    Schema.Struct({ operator: Schema.String, reason: Schema.String, at: InstantFromString })
  )
}
const LockViewJson = Schema.Struct(recordFields)
export type LockView = typeof LockViewJson.Type
const WatchedLockJson = Schema.Struct({ ...recordFields, waiters: Schema.Int })
export type WatchedLock = typeof WatchedLockJson.Type
const SessionViewJson = Schema.Struct({
  sessionId: SessionId,
  ownerId: OwnerId,
  ttlMillis: Schema.Int,
  expiresAt: InstantFromString
})
export type SessionView = typeof SessionViewJson.Type

export interface PageQuery {
  readonly prefix: string
  readonly after: string
  readonly limit: number
}
export interface Page<A> {
  readonly items: ReadonlyArray<A>
  /** What to pass as `after` for the next page; null at the end. */
  readonly next: string | null
}

export class LockAdmin extends Context.Service<
  LockAdmin,
  {
    readonly locks: (query: PageQuery) => Effect.Effect<Page<LockView>, BackendUnavailable>
    readonly lock: (key: LockKey) => Effect.Effect<WatchedLock, LockNotFound | BackendUnavailable>
    readonly sessions: (query: PageQuery) => Effect.Effect<Page<SessionView>, BackendUnavailable>
  }
>()("dlock/services/operator/LockAdmin") {}

const pageOf = <S extends Schema.Top>(item: S) =>
  Schema.Struct({ items: Schema.Array(item), next: Schema.NullOr(Schema.String) })
const EnvelopeCode = Schema.Struct({ code: Schema.String, message: Schema.String })

export interface HttpLockAdminOptions {
  /** Of the management port: `http://host:port`. */
  readonly url: string
  readonly callTimeoutMillis: number
}

export const make = Effect.fnUntraced(function* ({ callTimeoutMillis, url }: HttpLockAdminOptions) {
  const client = traced(yield* HttpClient.HttpClient)

  /** Answers the decoded body, or the code of the envelope. */
  type Answer<A> =
    | { readonly _tag: "Value"; readonly value: A }
    | { readonly _tag: "Refused"; readonly code: string; readonly message: string }
  const get = <A>(path: string, schema: Schema.Codec<A, unknown>): Effect.Effect<Answer<A>, BackendUnavailable> =>
    client.execute(HttpClientRequest.get(`${url}${path}`)).pipe(
      Effect.flatMap((response) => Effect.map(response.json, (body) => ({ status: response.status, body }))),
      Effect.flatMap(({ body, status }) =>
        status === 200
          ? Effect.map(Schema.decodeEffect(schema)(body), (value): Answer<A> => ({ _tag: "Value", value }))
          : Effect.map(Schema.decodeUnknownEffect(EnvelopeCode)(body), (refusal): Answer<A> => ({
              _tag: "Refused",
              ...refusal
            }))
      ),
      Effect.mapError((error) => backendUnavailable("lock-server's management port", error.message.slice(0, 300))),
      boundedBy(callTimeoutMillis, () =>
        backendUnavailable("lock-server's management port", `no answer of ${url} in ${callTimeoutMillis} ms`)
      )
    )

  const refused = (path: string, code: string, message: string) =>
    Effect.fail(
      backendUnavailable(
        `GET ${path}`,
        code === "ROUTE_NOT_FOUND"
          ? `${url} has no ${path}: is lock.management.url the management port of lock-server?`
          : `${url} answered ${code}: ${message}`
      )
    )

  const page = <A>(path: string, schema: Schema.Codec<Page<A>, unknown>, query: PageQuery) => {
    const search = new URLSearchParams({ prefix: query.prefix, after: query.after, limit: String(query.limit) })
    return Effect.flatMap(get(`${path}?${search}`, schema), (answer) =>
      answer._tag === "Value" ? Effect.succeed(answer.value) : refused(path, answer.code, answer.message)
    )
  }

  return LockAdmin.of({
    locks: (query) => page("/admin/locks", pageOf(LockViewJson), query),
    sessions: (query) => page("/admin/sessions", pageOf(SessionViewJson), query),
    lock: (key) =>
      Effect.flatMap(
        get(`/admin/locks/${encodeURIComponent(key)}`, WatchedLockJson),
        (answer): Effect.Effect<WatchedLock, LockNotFound | BackendUnavailable> =>
          answer._tag === "Value"
            ? Effect.succeed(answer.value)
            : answer.code === "LOCK_NOT_FOUND"
              ? Effect.fail(new LockNotFound({ key }))
              : refused("/admin/locks", answer.code, answer.message)
      )
  })
})

export const layer = (options: HttpLockAdminOptions): Layer.Layer<LockAdmin, never, HttpClient.HttpClient> =>
  Layer.effect(LockAdmin, make(options))
