/**
 * What operators see on the management port: every lock with its token, every session, who waits. Read-only, and never
 * on the service port: a stale holder that could read its successor's token would un-fence itself.
 */
import { DateTime, Effect, Schema } from "effect"
import { HttpRouter, HttpServerResponse } from "effect/http"
import { LockKey, type Session } from "../../core/lock/Lock.ts"
import type { BackendError, LockNotFound } from "../../core/lock/LockErrors.ts"
import { type LockRecord, LockStore } from "../../core/lock/LockStore.ts"
import { invalidField, type ValidationFailed } from "../../core/RequestFailures.ts"
import { limits } from "../../core/Settings.ts"
import type { WireError } from "../api/ApiError.ts"
import { respond, type RoutePattern } from "../api/Envelope.ts"
import { limitFromString } from "../api/Wire.ts"
import { LockWaiters } from "./LockService.ts"

const DEFAULT_LIMIT = 100

export const routes: ReadonlyArray<RoutePattern> = [
  ["GET", "/admin/locks"],
  ["GET", "/admin/locks/:key"],
  ["GET", "/admin/sessions"]
]

export const layer = HttpRouter.use(
  Effect.fnUntraced(function* (router) {
    const store = yield* LockStore
    const waiters = yield* LockWaiters

    yield* router.add(
      "GET",
      "/admin/locks",
      answered(
        Effect.gen(function* () {
          const page = yield* readPage
          const items = yield* store.records(page)
          return { items: items.map(recordJson), next: nextOf(items, page.limit, (item) => item.key) }
        })
      )
    )
    yield* router.add(
      "GET",
      "/admin/locks/:key",
      answered(
        Effect.gen(function* () {
          const { key } = yield* HttpRouter.schemaPathParams(Schema.Struct({ key: LockKey })).pipe(
            Effect.mapError((error) => invalidField("params.key", error.message))
          )
          const record = yield* store.record(key)
          return { ...recordJson(record), waiters: yield* waiters.count(key) }
        })
      )
    )
    yield* router.add(
      "GET",
      "/admin/sessions",
      answered(
        Effect.gen(function* () {
          const page = yield* readPage
          const items = yield* store.sessions(page)
          return { items: items.map(sessionJson), next: nextOf(items, page.limit, (item) => item.sessionId) }
        })
      )
    )
  })
)

const PageQuery = Schema.Struct({
  prefix: Schema.optionalKey(Schema.String.check(Schema.isMaxLength(200))),
  after: Schema.optionalKey(Schema.String.check(Schema.isMaxLength(200))),
  limit: Schema.optionalKey(limitFromString(limits.pageLimit))
})

const readPage = HttpRouter.schemaParams(PageQuery).pipe(
  Effect.map(({ after = "", limit = DEFAULT_LIMIT, prefix = "" }) => ({ after, limit, prefix })),
  Effect.mapError((error) => invalidField("query", error.message))
)

/** Where the next page starts; null at the end. */
const nextOf = <A>(items: ReadonlyArray<A>, limit: number, name: (item: A) => string): string | null => {
  const last = items.at(-1)
  return last === undefined || items.length < limit ? null : name(last)
}

const answered = <R>(body: Effect.Effect<object, ValidationFailed | LockNotFound | BackendError, R>) =>
  Effect.matchEffect(body, {
    onSuccess: (value) =>
      Effect.succeed(HttpServerResponse.jsonUnsafe(value, { headers: { "cache-control": "no-store" } })),
    onFailure: (failure: WireError) => respond(failure)
  })

const time = (millis: number): string => DateTime.formatIso(DateTime.makeUnsafe(millis))

const recordJson = ({ lastRevocation, token, ...record }: LockRecord) => ({
  ...record,
  fencingToken: String(token),
  grantedAt: time(record.grantedAt),
  expiresAt: time(record.expiresAt),
  lastRevocation: lastRevocation === null ? null : { ...lastRevocation, at: time(lastRevocation.at) }
})

const sessionJson = (session: Session) => ({ ...session, expiresAt: time(session.expiresAt) })
