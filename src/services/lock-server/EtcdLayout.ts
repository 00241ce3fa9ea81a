/**
 * What lies in etcd, and how it is read and written.
 *
 *     lock/{key}                      the live grant, under a lease that serves no other; its mod revision is the token
 *     held/{key}                      the same value without a lease: stays until the end of the grant has been told
 *     seen/{key}                      the last grant of the key that ended, remembered for a while
 *     ended/{key}/{token}             how that grant ended, remembered for a short while
 *     acquire/{session}/{key}/{id}    this id was granted (at its create revision), remembered for a while
 *     revocation/{key}/{id}           who revoked and why; kept
 *     session/{id}                    a live session under its lease; the id is that of the lease, in hex
 *     open/{owner}/{id}               the session that this id opened, under the same lease
 *     opened/{id}                     the session again without a lease: stays until its end has been told
 *     expired/{id}                    a session that ended by itself, remembered for a while
 *     floor                           the identity of this history, and what is added to its revisions
 *
 * A grant and its `held`, a session and its `opened` are written in one transaction, so what is there without its
 * leased twin has ended by itself and was not told yet. Where something follows a key, its `/` are written `%2F`.
 */
import { Schema } from "effect"
import type { ICompare, IKeyValue, IRequestOp, ITxnResponse } from "etcd3"
import { AcquireId, type FencingToken, type LockKey, OwnerId, SessionId } from "../../core/lock/Lock.ts"

export const layout = (prefix: string) => {
  const within = (key: LockKey) => key.replaceAll("/", "%2F")
  return {
    lock: (key: string) => `${prefix}lock/${key}`,
    held: (key: string) => `${prefix}held/${key}`,
    seen: (key: string) => `${prefix}seen/${key}`,
    ended: (key: LockKey, token: bigint) => `${prefix}ended/${within(key)}/${token}`,
    acquire: (sessionId: SessionId, key: LockKey, id: AcquireId) =>
      `${prefix}acquire/${sessionId}/${within(key)}/${id}`,
    /** Without an id: all of the key. */
    revocation: (key: LockKey, id: AcquireId | "") => `${prefix}revocation/${within(key)}/${id}`,
    session: (id: string) => `${prefix}session/${id}`,
    open: (ownerId: OwnerId, id: AcquireId) => `${prefix}open/${ownerId}/${id}`,
    opened: (id: string) => `${prefix}opened/${id}`,
    expired: (id: string) => `${prefix}expired/${id}`,
    floor: `${prefix}floor`
  }
}
export type Layout = ReturnType<typeof layout>

/** Undefined: no lease has that name. */
export const leaseOf = (sessionId: SessionId): string | undefined =>
  /^([0-7]?[0-9a-f]{15}|[0-9a-f]{1,14})$/.test(sessionId) ? BigInt(`0x${sessionId}`).toString() : undefined

export const sessionOf = (lease: string): SessionId => SessionId.make(BigInt(lease).toString(16))

// -----------------------------------------------------------------------------
// values
// -----------------------------------------------------------------------------

const grantFields = {
  sessionId: SessionId,
  ownerId: OwnerId,
  acquireId: AcquireId,
  /** What its lease keeps, from `grantedAt` on. */
  ttlMillis: Schema.Int,
  /** By the clock of the instance that granted. */
  grantedAt: Schema.Int,
  /** What makes the token of the revision: `floor` as it was then. */
  offset: Schema.String
}
const GrantValue = Schema.Struct(grantFields)
export type GrantValue = typeof GrantValue.Type

export type GrantEnd = "expired" | "released" | "revoked" | "session"

const SeenValue = Schema.Struct({ ...grantFields, token: Schema.String })

const EndedValue = Schema.Struct({
  ownerId: OwnerId,
  end: Schema.Literals(["expired", "released", "revoked", "session"]),
  /** The call that ended it, so that its own repeat is told from somebody else's. */
  by: Schema.String
})
export type EndedValue = typeof EndedValue.Type

const SessionValue = Schema.Struct({ ownerId: OwnerId, openId: AcquireId, ttlMillis: Schema.Int })
export type SessionValue = typeof SessionValue.Type

const RevocationValue = Schema.Struct({
  operator: Schema.String,
  reason: Schema.String,
  at: Schema.Int,
  token: Schema.String,
  offset: Schema.String,
  grantedAt: Schema.Int,
  by: Schema.String
})
export type RevocationValue = typeof RevocationValue.Type

const OpenedValue = Schema.Struct({ sessionId: SessionId })

/** The floor as it was: the acquire record itself carries the revision. */
const AcquiredValue = Schema.Struct({ offset: Schema.String })

const FloorValue = Schema.Struct({ clusterId: Schema.String, offset: Schema.String })
export type FloorValue = typeof FloorValue.Type

/** Undefined: there is none, or somebody else wrote it. */
const reader = <S extends Schema.Codec<unknown, unknown>>(schema: S) => {
  const decode = Schema.decodeUnknownOption(Schema.fromJsonString(schema))
  return (kv: IKeyValue | undefined): S["Type"] | undefined => {
    const read = kv === undefined ? undefined : decode(kv.value.toString())
    return read?._tag === "Some" ? read.value : undefined
  }
}
export const readGrant = reader(GrantValue)
const readSeenValue = reader(SeenValue)
export const readSeen = (kv: IKeyValue | undefined) => {
  const seen = readSeenValue(kv)
  return seen === undefined ? undefined : { ...seen, token: BigInt(seen.token) as FencingToken }
}
export const readOpened = reader(OpenedValue)
export const readEnded = reader(EndedValue)
export const readSession = reader(SessionValue)
export const readRevocation = reader(RevocationValue)
export const readFloor = reader(FloorValue)
export const readAcquired = reader(AcquiredValue)

/** A grant as it lies under `lock` or `held`. */
export interface Stored {
  readonly grant: GrantValue
  readonly revision: string
  readonly token: FencingToken
  /** "0" under `held`. */
  readonly lease: string
}

export const readStored = (kv: IKeyValue | undefined): Stored | undefined => {
  const grant = readGrant(kv)
  if (kv === undefined || grant === undefined) return undefined
  return { grant, revision: kv.mod_revision, token: tokenOf(kv.mod_revision, grant.offset), lease: kv.lease }
}

/** Schema-checked on every other way in; here it comes from etcd, and revisions begin at 1. */
export const tokenOf = (revision: string, offset: string): FencingToken =>
  (BigInt(revision) + BigInt(offset)) as FencingToken

// -----------------------------------------------------------------------------
// transactions
// -----------------------------------------------------------------------------

const bytes = (key: string) => Buffer.from(key)

export const range = (key: string): IRequestOp => ({ request_range: { key: bytes(key) } })

export const put = (key: string, value: object | Buffer, lease?: string): IRequestOp => ({
  request_put: {
    key: bytes(key),
    value: Buffer.isBuffer(value) ? value : Buffer.from(JSON.stringify(value)),
    ...(lease === undefined ? {} : { lease })
  }
})

export const remove = (key: string): IRequestOp => ({ request_delete_range: { key: bytes(key) } })

/** "0": there is no such key. */
export const revisionIs = (key: string, revision: string): ICompare =>
  revision === "0"
    ? { key: bytes(key), target: "Create", result: "Equal", create_revision: "0" }
    : { key: bytes(key), target: "Mod", result: "Equal", mod_revision: revision }

export const exists = (key: string): ICompare => ({
  key: bytes(key),
  target: "Create",
  result: "Greater",
  create_revision: "0"
})

/** What the ranges of a transaction found, one each, in order. */
export const found = (answer: ITxnResponse): ReadonlyArray<IKeyValue | undefined> =>
  answer.responses.map((response) => response.response_range?.kvs[0])
