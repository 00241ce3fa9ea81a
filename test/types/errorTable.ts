/**
 * What forgetting something of the error table looks like to the compiler: every `@ts-expect-error` here is needed, and
 * `tsc` complains about one that is not.
 */
import { Effect, Schema } from "effect"
import { HttpApiBuilder } from "effect/http-api"
import { LockLost } from "../../src/core/lock/LockErrors.ts"
import { errors, errorTable, type WireErrorOf, type WireRow, type WireTag } from "../../src/services/api/ApiError.ts"
import { LockHttpApi } from "../../src/services/api/LockHttpApi.ts"

type Table = { readonly [K in WireTag]: WireRow<WireErrorOf<K>> }

const { FencedOut: _, ...withoutFencedOut } = errorTable
// @ts-expect-error a failure that has no row
export const incomplete: Table = withoutFencedOut

// @ts-expect-error a row for a failure that does not exist
export const surplus = { ...errorTable, Invented: errorTable.LockLost } satisfies Table

// @ts-expect-error an endpoint that names a failure without a row
errors("Invented")

class Surprise extends Schema.TaggedError<Surprise>()("Surprise", {}) {}

const forever = () => Effect.never
export const handlers = HttpApiBuilder.group(LockHttpApi, "sessions", (group) =>
  group
    .handle("open", forever)
    // @ts-expect-error a handler that fails with what is in no table
    .handle("heartbeat", () => Effect.fail(new Surprise()))
    // @ts-expect-error a handler that fails with what its endpoint does not declare
    .handle("close", () => Effect.fail(new LockLost({ key: "k" as never, token: null, reason: "expired" })))
)
