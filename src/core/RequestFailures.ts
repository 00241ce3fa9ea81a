/** What is wrong with a request itself, found before (or, for an idempotency key, instead of) any change. */
import { Schema } from "effect"

/** An error that occurs when a field of the request is out of its bounds. `fields` names each bad one. */
export class ValidationFailed extends Schema.TaggedError<ValidationFailed>()("ValidationFailed", {
  fields: Schema.Array(Schema.Struct({ path: Schema.String, reason: Schema.String }))
}) {}

export const invalidField = (path: string, reason: string): ValidationFailed =>
  new ValidationFailed({ fields: [{ path, reason }] })

/** An error that occurs when `X-Fencing-Token` is absent or no canonical decimal int64 of at least 1. */
export class InvalidToken extends Schema.TaggedError<InvalidToken>()("InvalidToken", { reason: Schema.String }) {}
