/** Fields that every surface shares: how times, money, tokens and headers look on the wire. */
import { DateTime, Schema, SchemaTransformation } from "effect"
import { AcquireId, FencingTokenFromString, Instant, OwnerId } from "../../core/lock/Lock.ts"

/** RFC 3339 UTC with milliseconds on the wire, milliseconds since the epoch inside. */
export const InstantFromString = Schema.String.check(
  Schema.isPattern(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/u, { expected: "RFC 3339 UTC with milliseconds" })
).pipe(
  Schema.decodeTo(
    Instant,
    SchemaTransformation.transform({
      decode: (text) => Date.parse(text),
      encode: (millis) => DateTime.formatIso(DateTime.makeUnsafe(millis))
    })
  )
)

/** Signed minor units as decimal digits: balances may be negative for accounts that are not a customer's. */
export const MinorFromString = Schema.String.check(
  Schema.isPattern(/^(0|-?[1-9][0-9]{0,18})$/u, { expected: "decimal digits" })
).pipe(Schema.decodeTo(Schema.BigInt, SchemaTransformation.bigintFromString))

/** A decimal number in a query string. */
export const limitFromString = (maximum: number) =>
  Schema.String.check(Schema.isPattern(/^[1-9][0-9]{0,8}$/u, { expected: `1..${maximum}` })).pipe(
    Schema.decodeTo(
      Schema.Int.check(Schema.isBetween({ minimum: 1, maximum })),
      SchemaTransformation.transform({ decode: (text) => Number(text), encode: (n) => String(n) })
    )
  )

/** Required on every write: who acts. */
export const ownerHeader = { "x-owner-id": OwnerId }
/** Required on every protected write: never coerced, never defaulted, never read from the body. */
export const tokenHeader = { ...ownerHeader, "x-fencing-token": FencingTokenFromString }
export const idempotencyHeader = { "x-idempotency-key": Schema.optionalKey(AcquireId) }
export const idempotencyRequired = { "x-idempotency-key": AcquireId }
