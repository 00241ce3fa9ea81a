/**
 * The vocabulary of the lock.
 *
 * Terminology
 * - **lock key**: the name of what is protected, `payout:{accountId}`.
 * - **owner**: the identity of a client process. **contender**: an owner asking for a held key. **holder**: the owner
 *   whose grant is live by the store's clock.
 * - **session**: the liveness contract of an owner, kept by heartbeats; its end frees its grants.
 * - **grant**: one award of a key to an owner: a lease (it expires on the store's clock) plus a fencing token.
 * - **fencing token**: strictly increasing per key over its whole life; minted at grant, never at renewal.
 * - **expiresAt** is the store's clock, **deadline** the client's own; the two are never compared.
 *
 * All times are milliseconds since the epoch by the store's clock; all durations are integer milliseconds.
 */
import { Schema, SchemaTransformation } from "effect"

export const INT64_MAX = 9_223_372_036_854_775_807n

/** 1..200 characters, starting with a letter or digit (`.` and `..` would be normalised away by URL parsers). */
export const LockKey = Schema.String.check(
  Schema.isPattern(/^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,199}$/u, {
    expected: "1..200 characters of A-Z a-z 0-9 . _ : / @ -, starting with a letter or digit"
  })
).pipe(Schema.brand("LockKey"))
export type LockKey = typeof LockKey.Type

export const OwnerId = Schema.String.check(
  Schema.isPattern(/^[A-Za-z0-9._:@-]{1,64}$/u, { expected: "1..64 characters of A-Z a-z 0-9 . _ : @ -" })
).pipe(Schema.brand("OwnerId"))
export type OwnerId = typeof OwnerId.Type

export const SessionId = Schema.String.check(
  Schema.isPattern(/^[A-Za-z0-9-]{1,64}$/u, { expected: "1..64 characters of A-Z a-z 0-9 -" })
).pipe(Schema.brand("SessionId"))
export type SessionId = typeof SessionId.Type

/** Names one attempt to write, so that a repeat of it after a lost answer is answered and not done again. */
export const AcquireId = Schema.String.check(
  Schema.isPattern(/^[\x21-\x7e]{1,128}$/u, { expected: "1..128 printable ASCII characters" })
).pipe(Schema.brand("AcquireId"))
export type AcquireId = typeof AcquireId.Type

/** An int64 of at least 1. Compared only with tokens of the same key (or, at a fence, of the same resource). */
export const FencingToken = Schema.BigInt.check(
  Schema.isBetweenBigInt({ minimum: 1n, maximum: INT64_MAX }, { expected: "an int64 of at least 1" })
).pipe(Schema.brand("FencingToken"))
export type FencingToken = typeof FencingToken.Type

/**
 * Decimal digits on every wire: no sign, no leading zero, no blank, no exponent. An int64 does not survive a JSON
 * number, and a malformed token coerced to 0 would compare below every fence and look like a benign no-op.
 */
export const FencingTokenFromString = Schema.String.check(
  Schema.isPattern(/^[1-9][0-9]{0,18}$/u, { expected: "one decimal int64 of at least 1" })
).pipe(Schema.decodeTo(FencingToken, SchemaTransformation.bigintFromString))

/** The greatest token a fence has accepted; 0 when it has accepted none. */
export const Fence = Schema.BigInt.check(
  Schema.isBetweenBigInt({ minimum: 0n, maximum: INT64_MAX }, { expected: "an int64 of at least 0" })
)
export const FenceFromString = Schema.String.check(
  Schema.isPattern(/^(0|[1-9][0-9]{0,18})$/u, { expected: "one decimal int64" })
).pipe(Schema.decodeTo(Fence, SchemaTransformation.bigintFromString))

/** Milliseconds since the epoch, by the clock of the store that answered. */
export const Instant = Schema.Int
export type Instant = typeof Instant.Type

export interface Session {
  readonly sessionId: SessionId
  readonly ownerId: OwnerId
  readonly ttlMillis: number
  readonly expiresAt: Instant
}

export interface LockGrant {
  readonly key: LockKey
  readonly token: FencingToken
  readonly ownerId: OwnerId
  readonly sessionId: SessionId
  readonly grantedAt: Instant
  readonly expiresAt: Instant
  /** What the holder may count on from the moment the request was received; for a replayed grant, what remains. */
  readonly ttlMillis: number
}

/** A grant as the lock service answers it: how long the request waited (monotonic) before the winning call began. */
export interface AcquiredGrant extends LockGrant {
  readonly waitedMillis: number
}

/**
 * What anyone may see of a lock. Advisory: it is old when it arrives and must never gate a decision to act. It carries
 * no token: a stale holder that could read its successor's token would un-fence itself.
 */
export interface LockInfo {
  readonly key: LockKey
  readonly held: boolean
  readonly holderOwnerId: OwnerId | null
  readonly expiresAt: Instant | null
}

/** Every later grant of the key gets a token greater than `newTokenFloor`, which is at least `revokedToken`. */
export interface Revocation {
  readonly key: LockKey
  readonly revokedToken: FencingToken
  readonly newTokenFloor: FencingToken
  readonly revocationId: AcquireId
}
