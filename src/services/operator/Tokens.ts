/**
 * Tokens must never go back. paydb knows the greatest token that any fence has accepted (the floor); the lock backend must
 * mint above it. After a restore or a change of the backend it does not, and then every claim is refused: nothing wrong is
 * written and nothing is paid. `--raise` takes the backend's tokens above the floor, and above what was granted and never
 * presented to a fence.
 *
 * This goes to the databases themselves, with the rights of whoever may migrate them: lock-server has no such operation,
 * and it is meant to be stopped meanwhile. Raising is harmless while it runs: tokens only become greater.
 */
import { Effect, Option, Redacted, Schema } from "effect"
import { SqlError } from "effect/sql"
import { Etcd3 } from "etcd3"
import { boundedBy } from "../../core/Bound.ts"
import { backendUnavailable, type BackendUnavailable } from "../../core/lock/LockErrors.ts"
import * as Database from "../platform/Database.ts"
import * as Pg from "../platform/Pg.ts"
import { type ConfigProblem, configProblem, ServiceConfig } from "../platform/ServiceConfig.ts"
import { readTls } from "../platform/TlsFiles.ts"

export interface TokenReport {
  readonly backend: "pg" | "etcd"
  /** The greatest token that a fence of paydb has accepted. */
  readonly floor: bigint
  /** The next token is above this. */
  readonly minted: bigint
  /** Another history than the one whose tokens were spent: etcd grants nothing until its floor is raised. */
  readonly foreign: boolean
  readonly raised: boolean
  readonly safe: boolean
}

/**
 * How far above the floor. Tokens that no fence has seen are unknown to paydb: a holder that was stopped before its claim,
 * or locks of something else than payouts. Were they granted a second time, two holders of one key would have one token, and
 * no fence could tell them apart. No backend grants as many without a single claim; tokens last for 9 * 10^9 such raises.
 */
const HEADROOM = 1_000_000_000n

const connect = (url: Redacted.Redacted) => Pg.make({ url, applicationName: "dlock-operator", maxConnections: 1 })

/** A database that is away, or that does not let us look, in one failure with the reason. */
const asked =
  (operation: string) =>
  <A, E, R>(self: Effect.Effect<A, E | SqlError.SqlError, R>) =>
    Effect.mapError(self, (error) =>
      SqlError.isSqlError(error)
        ? backendUnavailable(operation, Pg.classify(error).message)
        : // What is left when SqlError is out.
          (error as Exclude<E, SqlError.SqlError>)
    )

export const urlOf = Effect.fnUntraced(function* (
  name: "lockdb" | "paydb"
): Effect.fn.Return<Redacted.Redacted, ConfigProblem, ServiceConfig> {
  const { lock, payment } = yield* ServiceConfig
  const endpoint = name === "lockdb" ? lock.pg : payment.pg
  const url = yield* Database.existing(name, endpoint)
  return (
    url ??
    (yield* configProblem(
      endpoint.setting,
      "not set",
      "postgres://user:password@host:port/database, as who may migrate it"
    ))
  )
})

const paydbFloor = Effect.gen(function* () {
  const sql = yield* connect(yield* urlOf("paydb"))
  const [row] = yield* sql<{ floor: bigint | null }>`SELECT floor::int8 FROM pay.token_floor`
  return BigInt(row?.floor ?? 0n)
}).pipe(asked("paydb"), Effect.scoped)

const lockdb = (raiseTo: bigint | undefined) =>
  Effect.gen(function* () {
    const sql = yield* connect(yield* urlOf("lockdb"))
    if (raiseTo !== undefined) {
      yield* sql`SELECT setval('lock.lock_token_seq', greatest(last_value, ${raiseTo}::int8)) FROM lock.lock_token_seq`
    }
    const [row] = yield* sql<{ minted: bigint }>`
      SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END::int8 AS minted FROM lock.lock_token_seq`
    return { minted: BigInt(row?.minted ?? 0n), foreign: false }
  }).pipe(asked("lockdb"), Effect.scoped)

const FLOOR_KEY = "/dlock/floor"
const FloorValue = Schema.fromJsonString(Schema.Struct({ clusterId: Schema.String, offset: Schema.String }))
const readFloor = Schema.decodeUnknownOption(FloorValue)

/** Tokens of etcd are its revisions and, after a restore, an offset that is kept with the identity of the cluster. */
const etcd = (raiseTo: bigint | undefined, timeoutMillis: number) =>
  Effect.gen(function* () {
    const { lock } = yield* ServiceConfig
    const { endpoints, password, tls, username } = lock.etcd
    if (endpoints === undefined) {
      return yield* configProblem("lock.etcd.endpoints", "not set", "http:// or https:// URLs, separated by commas")
    }
    const pem = yield* readTls("lock.etcd.tls", tls)
    const client = yield* Effect.acquireRelease(
      Effect.sync(
        () =>
          new Etcd3({
            hosts: [...endpoints],
            ...(username === undefined || password === undefined
              ? {}
              : { auth: { username, password: String(Redacted.value(password)) } }),
            ...(pem.ca === undefined
              ? {}
              : {
                  credentials: {
                    rootCertificate: pem.ca,
                    ...(pem.key === undefined ? {} : { privateKey: pem.key }),
                    ...(pem.cert === undefined ? {} : { certChain: pem.cert })
                  }
                })
          })
      ),
      (open) => Effect.sync(() => open.close())
    )
    const ask = <A>(call: () => Promise<A>) =>
      Effect.tryPromise({ try: call, catch: (cause) => backendUnavailable("etcd", String(cause)) })
    const look = Effect.gen(function* () {
      const { header, kvs } = yield* ask(() => client.get(FLOOR_KEY).exec())
      const found = Option.getOrUndefined(readFloor(kvs[0]?.value.toString()))
      const foreign = found !== undefined && found.clusterId !== header.cluster_id
      const offset = BigInt(found?.offset ?? "0")
      return {
        clusterId: header.cluster_id,
        offset,
        foreign,
        minted: BigInt(header.revision) + (foreign ? 0n : offset)
      }
    })
    const before = yield* look
    if (raiseTo === undefined || (!before.foreign && before.minted > raiseTo)) return before
    const offset = raiseTo > before.offset ? raiseTo : before.offset
    yield* ask(() =>
      client
        .put(FLOOR_KEY)
        .value(JSON.stringify({ clusterId: before.clusterId, offset: String(offset) }))
        .exec()
    )
    return yield* look
  }).pipe(
    boundedBy(timeoutMillis, () => backendUnavailable("etcd", `no answer in ${timeoutMillis} ms`)),
    Effect.scoped
  )

export const floor = Effect.fnUntraced(function* (
  raise: boolean
): Effect.fn.Return<TokenReport, ConfigProblem | BackendUnavailable, ServiceConfig> {
  const { lock, settings } = yield* ServiceConfig
  const known = yield* paydbFloor
  const read = (raiseTo: bigint | undefined) =>
    lock.backend === "pg" ? lockdb(raiseTo) : etcd(raiseTo, settings.client.callTimeoutMillis)
  const before = yield* read(undefined)
  const safe = (at: { readonly minted: bigint; readonly foreign: boolean }) => !at.foreign && at.minted >= known
  const target = known + HEADROOM
  // Also when it looks safe: a copy that is young stands above the floor, and below what was granted since.
  const wanted = raise && (before.foreign || before.minted < target)
  const after = wanted ? yield* read(target) : before
  return {
    backend: lock.backend,
    floor: known,
    minted: after.minted,
    foreign: after.foreign,
    raised: wanted,
    safe: safe(after)
  }
})
