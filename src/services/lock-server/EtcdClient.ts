/**
 * Calls to an etcd cluster: which member is asked, how long, and what a failure means.
 *
 * The client library retries every call three times by itself, transactions and lease grants included, and stops asking
 * a member for 5 s after three failures. With the answer of a winning transaction dropped, its own retry loses the
 * comparison and reports a refusal to the owner of the key. So both are switched off, and what is here is used instead:
 *
 * - Each call has a budget. It goes to one member, and to the next when that one fails or is silent, until the budget is
 *   used up. Every write of this store can be repeated (compared and named), so a repeat after an unknown outcome is
 *   safe; `repeated` tells that an earlier try may have been applied.
 * - Reads are linearizable: a member that is cut off does not answer from its memory.
 * - A lease has an id chosen here, so a repeated grant is the same lease and none is lost.
 */
import { noop } from "cockatiel"
import { Clock, Effect, Random, Redacted, Schema, type Scope } from "effect"
import {
  Etcd3,
  EtcdLeaseInvalidError,
  GRPCInvalidArgumentError,
  type IResponseHeader,
  type ITxnRequest,
  type ITxnResponse
} from "etcd3"
import { boundedBy } from "../../core/Bound.ts"
import { spanned } from "../../core/Span.ts"
import * as EmbeddedEtcd from "../platform/EmbeddedEtcd.ts"

export interface EtcdOptions {
  /** `http://host:port`, or all of them `https://`. */
  readonly endpoints: ReadonlyArray<string>
  readonly username?: string | undefined
  readonly password?: Redacted.Redacted | undefined
  /** PEM. The certificate of the server is always verified. */
  readonly tls?: { readonly ca?: Uint8Array; readonly cert?: Uint8Array; readonly key?: Uint8Array } | undefined
  /** Use an etcd older than 3.5 all the same. Default: false. */
  readonly allowOld?: boolean | undefined
}

/** An error that occurs when no member gave a definite answer within the budget. */
export class EtcdOutage extends Schema.TaggedError<EtcdOutage>()("EtcdOutage", {
  /** `none`: certainly nothing was changed. */
  effect: Schema.Literals(["none", "unknown"]),
  /** A member said that it has no leader. */
  noLeader: Schema.Boolean,
  message: Schema.String
}) {}

/** An error that occurs when a lease that was named has expired or was revoked; nothing was changed. */
export class LeaseGone extends Schema.TaggedError<LeaseGone>()("LeaseGone", {}) {}

/** An error that occurs when a member is older than what the store can work with. */
export class EtcdTooOld extends Schema.TaggedError<EtcdTooOld>()("EtcdTooOld", {
  endpoint: Schema.String,
  version: Schema.String
}) {
  override get message(): string {
    return (
      `etcd at ${this.endpoint} is ${this.version}; 3.5 or newer is needed: an older one cannot be restored from a ` +
      "snapshot without handing out revisions, and so fencing tokens, a second time (--bump-revision). " +
      "Set lock.etcd.allow-old=true to use it all the same."
    )
  }
}

/** Until when a call may go on, in monotonic nanoseconds. */
export interface Budget {
  readonly endsAt: bigint
}

export interface Answer<A> {
  readonly value: A
  /** An earlier try of this call may have been applied, although its answer never came. */
  readonly repeated: boolean
}

export interface Lease {
  readonly id: string
  /** What etcd keeps: whole seconds, at least what was asked for. */
  readonly ttlMillis: number
}

export interface WatchHandlers {
  /** All watches are in place: from here on nothing is missed. */
  readonly started: () => void
  readonly deleted: (key: string) => void
  /** The stream has ended; not called after `stop`. */
  readonly ended: (reason: string) => void
}

/** `deadline` is a time of day, as gRPC wants it. */
type Call<A> = (etcd: Etcd3, deadline: number) => Effect.Effect<A, EtcdOutage | LeaseGone>

export interface EtcdClient {
  readonly txn: (request: ITxnRequest, budget: Budget) => Effect.Effect<Answer<ITxnResponse>, EtcdOutage | LeaseGone>
  /** `id` is a new one: see `randomLeaseId`. */
  readonly grantLease: (id: string, ttlMillis: number, budget: Budget) => Effect.Effect<Lease, EtcdOutage>
  /** Revoking a lease that is gone is a success. */
  readonly revokeLease: (id: string, budget: Budget) => Effect.Effect<void, EtcdOutage>
  /** The full ttl from now on and the term of the leader's reign in which that was so; null: the lease is gone. */
  readonly keepAlive: (
    id: string,
    budget: Budget
  ) => Effect.Effect<{ readonly ttlMillis: number; readonly term: string } | null, EtcdOutage>
  /** What remains, in whole seconds rounded down; null: the lease is gone, or about to be. */
  readonly remaining: (id: string, budget: Budget) => Effect.Effect<number | null, EtcdOutage>
  /** Deletions below the prefixes, from one member, until the scope closes. */
  readonly watchDeletes: (
    prefixes: ReadonlyArray<string>,
    handlers: WatchHandlers
  ) => Effect.Effect<void, EtcdOutage, Scope.Scope>
  /** Asks every member that answers; fails when one is too old. */
  readonly checkVersions: (budget: Budget) => Effect.Effect<void, EtcdTooOld | EtcdOutage>
  readonly budget: (millis: number) => Effect.Effect<Budget>
}

/** Pause before the members are asked again when none of them answered. */
const ROUND_MILLIS = 50
/** A member that is silent for so long is passed over for the next one; a slow disk is not a dead member. */
const TRY_MILLIS = { min: 300, share: 5 }
const NANOS_PER_MILLI = 1_000_000n

const SPAN = { kind: "client", attributes: { "db.system.name": "etcd" } } as const

/** It opens no connection by itself, so it can be made while the cluster is down. */
export const make = Effect.fnUntraced(function* (
  options: EtcdOptions
): Effect.fn.Return<EtcdClient, never, Scope.Scope> {
  const members = yield* Effect.forEach(options.endpoints, (endpoint) =>
    Effect.acquireRelease(
      Effect.sync(() => ({ endpoint, etcd: connect(endpoint, options) })),
      ({ etcd }) => Effect.sync(() => etcd.close())
    )
  )
  // The caller's clock may be anything (a test shifts it): deadlines are of this process.
  const clock = yield* Clock.Clock
  // Where the last answer came from. Any one to begin with, so that several instances do not all ask the same.
  let preferred = yield* Random.nextIntBetween(0, members.length - 1)

  const leftMillis = (budget: Budget) => Number((budget.endsAt - clock.monotonicTimeNanosUnsafe()) / NANOS_PER_MILLI)

  const call = <A>(name: string, run: Call<A>, budget: Budget): Effect.Effect<Answer<A>, EtcdOutage | LeaseGone> =>
    Effect.gen(function* () {
      const allMillis = leftMillis(budget)
      let repeated = false
      let noLeader = false
      let message = "no time was left for the call"
      for (let tries = 0; ; tries++) {
        const left = leftMillis(budget)
        if (left <= 0) return yield* new EtcdOutage({ effect: repeated ? "unknown" : "none", noLeader, message })
        const index = preferred
        const member = members[index]
        if (member === undefined) return yield* Effect.die(new RangeError("an etcd client without endpoints"))
        // Alone there is nobody to turn to, but a connection that hangs is replaced by the second try.
        const share = members.length === 1 ? 2 : TRY_MILLIS.share
        const tryMillis = Math.min(left, Math.max(TRY_MILLIS.min, Math.floor(allMillis / share)))
        const result = yield* run(member.etcd, clock.currentTimeMillisUnsafe() + tryMillis).pipe(
          boundedBy(tryMillis + 50, silent),
          Effect.result
        )
        if (result._tag === "Success") {
          preferred = index
          return { value: result.success, repeated }
        }
        const { failure } = result
        // Another member, or a second try, would say the same.
        if (failure._tag === "LeaseGone" || denied.test(failure.message)) return yield* failure
        preferred = (index + 1) % members.length
        repeated ||= failure.effect === "unknown"
        noLeader = failure.noLeader
        message = `${member.endpoint}: ${failure.message}`
        if ((tries + 1) % members.length === 0) yield* Effect.sleep(ROUND_MILLIS)
      }
    }).pipe(spanned(name, SPAN, { captureStackTrace: false }))

  /** For calls that name no lease, or for which its end is an answer. */
  const callAnyway = <A>(name: string, run: Call<A>, budget: Budget, gone: A): Effect.Effect<Answer<A>, EtcdOutage> =>
    Effect.catchTag(call(name, run, budget), "LeaseGone", () => Effect.succeed({ value: gone, repeated: false }))

  const remaining = (id: string, budget: Budget) =>
    callAnyway<Remaining | null>(
      "etcd.leaseTimeToLive",
      (etcd, deadline) =>
        attempt(() => etcd.leaseClient.leaseTimeToLive({ ID: id }, { deadline })).pipe(
          Effect.map(({ TTL, grantedTTL }) => ({
            millis: Number(TTL) * 1_000,
            grantedMillis: Number(grantedTTL) * 1_000
          }))
        ),
      budget,
      null
    ).pipe(Effect.map(({ value }) => (value === null || value.millis < 0 ? null : value)))

  return {
    budget: (millis) =>
      Effect.sync(() => ({ endsAt: clock.monotonicTimeNanosUnsafe() + BigInt(millis) * NANOS_PER_MILLI })),

    txn: (request, budget) =>
      call("etcd.txn", (etcd, deadline) => attempt(() => etcd.kv.txn(request, { deadline })), budget),

    grantLease: Effect.fnUntraced(function* (id, ttlMillis, budget) {
      const TTL = Math.ceil(ttlMillis / 1_000)
      const { value } = yield* callAnyway<string | null>(
        "etcd.leaseGrant",
        (etcd, deadline) =>
          attempt(() => etcd.leaseClient.leaseGrant({ ID: id, TTL }, { deadline })).pipe(
            Effect.map((granted): string | null => granted.TTL),
            // An earlier try was applied.
            Effect.catchIf(
              (failure) => failure._tag === "EtcdOutage" && failure.message.includes("lease already exists"),
              () => Effect.succeed(null)
            )
          ),
        budget,
        null
      )
      if (value !== null) return { id, ttlMillis: Number(value) * 1_000 }
      const known = yield* remaining(id, budget)
      if (known !== null) return { id, ttlMillis: known.grantedMillis }
      return yield* new EtcdOutage({ effect: "none", noLeader: false, message: "a new lease was gone at once" })
    }),

    revokeLease: (id, budget) =>
      callAnyway<unknown>(
        "etcd.leaseRevoke",
        (etcd, deadline) => attempt(() => etcd.leaseClient.leaseRevoke({ ID: id }, { deadline })),
        budget,
        null
      ).pipe(Effect.asVoid),

    keepAlive: (id, budget) =>
      callAnyway<{ readonly TTL: string; readonly header: IResponseHeader } | null>(
        "etcd.leaseKeepAlive",
        (etcd, deadline) => keepAliveOnce(etcd, id, deadline),
        budget,
        null
      ).pipe(
        Effect.map(({ value }) =>
          value === null || Number(value.TTL) <= 0
            ? null
            : { ttlMillis: Number(value.TTL) * 1_000, term: value.header.raft_term }
        )
      ),

    remaining: (id, budget) => Effect.map(remaining(id, budget), (found) => found?.millis ?? null),

    watchDeletes: (prefixes, handlers) =>
      Effect.suspend(() => {
        const member = members[preferred]
        return member === undefined ? Effect.void : watchDeletes(member.etcd, prefixes, handlers)
      }),

    checkVersions: Effect.fnUntraced(function* (budget) {
      const found = yield* Effect.forEach(
        members,
        ({ endpoint, etcd }) =>
          attempt(() =>
            etcd.maintenance.status({ deadline: clock.currentTimeMillisUnsafe() + leftMillis(budget) })
          ).pipe(
            Effect.map(({ version }) => ({ endpoint, version })),
            boundedBy(leftMillis(budget), silent),
            Effect.result
          ),
        { concurrency: "unbounded" }
      )
      for (const one of found) {
        if (one._tag === "Success" && options.allowOld !== true && isOld(one.success.version)) {
          return yield* new EtcdTooOld(one.success)
        }
      }
      const [failed] = found
      if (failed?._tag !== "Failure" || found.some((one) => one._tag === "Success")) return
      if (failed.failure._tag === "EtcdOutage") return yield* failed.failure
    })
  }
})

interface Remaining {
  readonly millis: number
  readonly grantedMillis: number
}

/** 62 random bits: nobody else has it, so a lease that is there already was granted by an earlier try. */
export const randomLeaseId = Effect.map(
  Effect.all([Random.nextIntBetween(1, 0x7fff_ffff), Random.nextIntBetween(0, 0x7fff_ffff)]),
  ([high, low]) => ((BigInt(high) << 31n) | BigInt(low)).toString()
)

export const isOld = (version: string) => !EmbeddedEtcd.isRecent(version)

// -----------------------------------------------------------------------------
// connections
// -----------------------------------------------------------------------------

const connect = (endpoint: string, options: EtcdOptions): Etcd3 =>
  new Etcd3({
    hosts: endpoint,
    faultHandling: { global: noop, host: () => noop },
    ...(options.username === undefined
      ? {}
      : {
          auth: {
            username: options.username,
            password: options.password === undefined ? "" : Redacted.value(options.password)
          }
        }),
    ...(options.tls?.ca === undefined
      ? {}
      : {
          credentials: {
            rootCertificate: Buffer.from(options.tls.ca),
            ...(options.tls.key === undefined ? {} : { privateKey: Buffer.from(options.tls.key) }),
            ...(options.tls.cert === undefined ? {} : { certChain: Buffer.from(options.tls.cert) })
          }
        }),
    grpcOptions: {
      "grpc.initial_reconnect_backoff_ms": 100,
      "grpc.max_reconnect_backoff_ms": 1_000,
      // Not more often than every 5 s, or etcd ends the connection.
      "grpc.keepalive_time_ms": 6_000,
      "grpc.keepalive_timeout_ms": 2_000,
      // The sweep reads what is live in one answer; the default is 4 MB.
      "grpc.max_receive_message_length": 64 * 1024 * 1024
    }
  })

const attempt = <A>(run: () => Promise<A>): Effect.Effect<A, EtcdOutage | LeaseGone> =>
  Effect.tryPromise({ try: run, catch: meaningOf })

/** A stream of its own for each, so that one that hangs is nobody else's. */
const keepAliveOnce = (
  etcd: Etcd3,
  id: string,
  deadline: number
): Effect.Effect<{ readonly TTL: string; readonly header: IResponseHeader }, EtcdOutage | LeaseGone> =>
  Effect.flatMap(
    attempt(() => etcd.leaseClient.leaseKeepAlive({ deadline })),
    (stream) =>
      Effect.callback((resume) => {
        stream.on("data", (answer) => {
          resume(Effect.succeed(answer))
          stream.end()
        })
        stream.on("error", (cause) => resume(Effect.fail(meaningOf(cause))))
        stream.on("end", () => resume(Effect.fail(silent())))
        stream.write({ ID: id })
        return Effect.sync(() => stream.cancel())
      })
  )

const watchDeletes = (
  etcd: Etcd3,
  prefixes: ReadonlyArray<string>,
  handlers: WatchHandlers
): Effect.Effect<void, EtcdOutage, Scope.Scope> =>
  Effect.flatMap(Effect.tryPromise({ try: () => etcd.watchClient.watch(), catch: outageOf }), (stream) =>
    Effect.acquireRelease(
      Effect.sync(() => {
        let created = 0
        let over = false
        const end = (reason: string) => {
          if (!over) handlers.ended(reason)
          over = true
        }
        stream.on("data", (answer) => {
          if (answer.canceled) return end(answer.cancel_reason || "the watch was cancelled")
          if (answer.created && ++created === prefixes.length) handlers.started()
          for (const { kv, type } of answer.events) if (type === "Delete") handlers.deleted(kv.key.toString())
        })
        stream.on("error", (cause) => end(cause.message))
        stream.on("end", () => end("the watch has ended"))
        for (const prefix of prefixes) {
          stream.write({
            create_request: { key: Buffer.from(prefix), range_end: rangeEnd(prefix), filters: ["Noput"] }
          })
        }
        return () => {
          over = true
          stream.cancel()
        }
      }),
      (stop) => Effect.sync(stop)
    ).pipe(Effect.asVoid)
  )

/** What follows everything that starts with `prefix`. */
export const rangeEnd = (prefix: string): Buffer => {
  const end = Buffer.from(prefix)
  // Our prefixes end in ASCII.
  end[end.length - 1] = (end[end.length - 1] ?? 0) + 1
  return end
}

// -----------------------------------------------------------------------------
// failures
// -----------------------------------------------------------------------------

const silent = () => new EtcdOutage({ effect: "unknown", noLeader: false, message: "no answer in time" })

const meaningOf = (cause: unknown): EtcdOutage | LeaseGone => {
  if (cause instanceof EtcdLeaseInvalidError) return new LeaseGone()
  // A request that etcd does not understand is ours to correct; but so it also refuses those who must log in.
  if (cause instanceof GRPCInvalidArgumentError && !denied.test(cause.message)) throw cause
  return outageOf(cause)
}

const outageOf = (cause: unknown): EtcdOutage => {
  const message = cause instanceof Error ? cause.message : String(cause)
  return new EtcdOutage({
    effect: untouched.test(message) ? "none" : "unknown",
    noLeader: leaderless.test(message),
    message
  })
}

/** The request was not sent, or it was refused before it was proposed. */
const untouched =
  /No connection established|ECONNREFUSED|Waiting for LB pick|Channel closed before|Name resolution|space exceeded|too many requests|user name is empty|authentication failed|permission denied/

const denied = /user name is empty|authentication failed|permission denied/

const leaderless = /no leader|not leader|leader changed|lost leader|previous leader failure/
