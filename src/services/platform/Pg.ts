// @effect-diagnostics nodeBuiltinImport:off
/**
 * PostgreSQL clients: pools whose statements are never cancelled, and the meaning of failures. (`core/Bound.ts` bounds a
 * caller's wait.)
 *
 * **No statement is cancelled in flight.** `@effect/sql-pg` answers the interruption of a running statement (and so
 * `Effect.timeout` around it) with a CancelRequest, 10 ms later. For a write that is not safe:
 *
 *     primary    the COMMIT is in the local log and waits for the synchronous standby
 *     client     deadline: CancelRequest
 *     primary    "canceling wait for synchronous replication": the commit becomes visible, on this node only
 *     others     read it, answer it, act on it
 *     failover   the standby never had it
 *
 * `pg_terminate_backend` does the same. A client that merely goes away does not, so that is what ours do: they own
 * their sockets (`Wire`) and never send a CancelRequest, whoever asks for it.
 *
 * - An interrupted statement is left to finish (for 5 s at most), and its connection is then replaced. The statement
 *   after it in the same transaction does not start, and the transaction rolls back.
 * - A connection that owes an answer for longer than `answerTimeout` is dropped, whatever it runs (a COMMIT cannot be
 *   interrupted). Its statement fails with a connection error and its outcome is unknown.
 * - `statement_timeout` is a cancellation too. The server disarms it before it commits, but a timer that fires between
 *   the last check for interrupts and the commit still ends the wait for the standby. Pools that write leave it off.
 */
import { PgClient } from "@effect/sql-pg"
import { Duration, Effect, type Layer, Redacted, Schedule, type Scope, Stream } from "effect"
import { Reactivity } from "effect/reactivity"
import type { SqlClient, SqlError } from "effect/sql"
import * as net from "node:net"
import { Duplex } from "node:stream"
import * as tls from "node:tls"

export interface PgOptions {
  /** `postgres://user:password@host:port/database?sslmode=require`; without `sslmode` the connection is not encrypted. */
  readonly url: Redacted.Redacted
  /** Shown in `pg_stat_activity`. */
  readonly applicationName: string
  /** Default: 10. Connections are opened when needed and closed after a minute without use. */
  readonly maxConnections?: number
  /** Upper bound for opening one connection. Default: 2 seconds. */
  readonly connectTimeout?: Duration.Input
  /**
   * A connection on which nothing moved for so long while it owes an answer is dropped. Set it to the deadline of the
   * callers: a later answer helps nobody. Default: 5 seconds. `"Infinity"` for maintenance statements.
   */
  readonly answerTimeout?: Duration.Input
  /** Session defaults, added to `idle_in_transaction_session_timeout = 5000` (ms): a paused client keeps no row lock. */
  readonly parameters?: Readonly<Record<string, string>>
  /** Certificates and the like, when `sslmode` asks for TLS. The server's certificate is always verified. */
  readonly tls?: tls.ConnectionOptions
}

/**
 * A pool of its own; make several where one kind of work must not wait behind another. It opens no connection by
 * itself, so it can be made while the server is down, and it reconnects by itself.
 */
export const make = (options: PgOptions): Effect.Effect<PgClient.PgClient, SqlError.SqlError, Scope.Scope> =>
  Effect.suspend(() => {
    const endpoint = parseEndpoint(options)
    return PgClient.make({
      url: options.url,
      applicationName: options.applicationName,
      maxConnections: options.maxConnections ?? 10,
      connectTimeout: options.connectTimeout ?? "2 seconds",
      startupParameters: { idle_in_transaction_session_timeout: "5000", ...options.parameters },
      stream: () => new Wire(endpoint),
      // The wire does TLS itself: below the driver's TLS it could not tell a CancelRequest from a statement.
      ssl: false
    })
  }).pipe(Effect.provideServiceEffect(Reactivity.Reactivity, Reactivity.make))

/** Who the URL says to connect as; empty when it does not say. */
export const userOf = (url: Redacted.Redacted): string =>
  decodeURIComponent(URL.parse(Redacted.value(url))?.username ?? "")

/** `make` as a layer, under both service names. */
export const layer = (options: PgOptions): Layer.Layer<PgClient.PgClient | SqlClient.SqlClient, SqlError.SqlError> =>
  PgClient.layerFrom(make(options))

/**
 * The payloads notified on a channel, over one dedicated connection that is opened again whenever it is lost. A hint
 * only: what was notified meanwhile is missed. An empty string says that listening has (re)started: look now.
 */
export const listen = (options: PgOptions, channel: string): Stream.Stream<string> =>
  Stream.unwrap(
    Effect.gen(function* () {
      const client = yield* make({ ...options, maxConnections: 1 })
      const queue = yield* client.listen(channel)
      return Stream.concat(
        Stream.succeed(""),
        Stream.map(Stream.fromQueue(queue), (notification) => notification.payload)
      )
    })
  ).pipe(Stream.retry(Schedule.spaced("500 millis")), Stream.orDie)

// -----------------------------------------------------------------------------
// failures
// -----------------------------------------------------------------------------

/** What a failed statement means to a store. */
export type PgFailure =
  | {
      /** The database cannot do it now; the same statement may work later. */
      readonly _tag: "Outage"
      readonly code: string | undefined
      /** `none`: certainly not applied (also a deadlock or serialization failure). `unknown`: it may be committed. */
      readonly effect: "none" | "unknown"
      readonly message: string
    }
  | {
      /** The database said no: a constraint, or an error raised by our own functions (`P0001`, `DL001`..). */
      readonly _tag: "Sqlstate"
      readonly code: string
      readonly constraint: string | undefined
      readonly message: string
    }
  | {
      /** The statement itself is wrong: a defect. */
      readonly _tag: "Bug"
      readonly code: string | undefined
      readonly message: string
    }

export const classify = (error: SqlError.SqlError): PgFailure => {
  const { code, constraint, message } = serverFields(error)
  if (error.reason.operation === "connect") return { _tag: "Outage", code, effect: "none", message }
  // 57P01..57P05 end the backend, which may have been waiting for its commit to reach the standby.
  if (error.reason._tag === "ConnectionError" || code?.startsWith("57P") === true) {
    return { _tag: "Outage", code, effect: "unknown", message }
  }
  if (code === undefined) return { _tag: "Bug", code, message }
  if (transient.test(code)) return { _tag: "Outage", code, effect: "none", message }
  if (refusal.test(code)) return { _tag: "Sqlstate", code, constraint, message }
  return { _tag: "Bug", code, message }
}

/**
 * 40001 serialization failure, 40P01 deadlock, 55P03 lock timeout, 57014 cancelled, 25006 read-only (a demoted primary),
 * 25P03 idle in transaction, 53 out of resources (53300 too many connections), 58 I/O.
 */
const transient = /^(40001|40P01|55P03|57014|25006|25P03|53|58)/

/** 23 constraints, P0 raised by functions, and classes of two letters that PostgreSQL does not use itself. */
const refusal = /^(23|P0|(?!HV|XX)[A-Z]{2})/

/** The fields of PostgreSQL's ErrorResponse, which the driver keeps on the cause of the reason. */
const serverFields = (error: SqlError.SqlError) => {
  const cause = error.reason.cause
  const field = (name: string) => {
    const value: unknown = typeof cause === "object" && cause !== null ? Reflect.get(cause, name) : undefined
    return typeof value === "string" ? value : undefined
  }
  // Node's own errors have a `code` as well (EPIPE), but no severity.
  return {
    code: field("severity") === undefined ? undefined : field("code"),
    constraint: field("constraint"),
    message: field("message") ?? error.message
  }
}

// -----------------------------------------------------------------------------
// the wire
// -----------------------------------------------------------------------------

interface Endpoint {
  readonly address: net.NetConnectOpts
  readonly encryption: "none" | "preferred" | "required"
  readonly tls: tls.ConnectionOptions
  /** 0: no limit. */
  readonly answerTimeoutMillis: number
}

const parseEndpoint = (options: PgOptions): Endpoint => {
  const url = URL.parse(Redacted.value(options.url))
  const host = url?.searchParams.get("host") ?? (decodeURIComponent(url?.hostname ?? "") || "localhost")
  const port = Number(url?.searchParams.get("port") ?? (url?.port || "5432"))
  const mode = url?.searchParams.get("sslmode") ?? "disable"
  const name = host.replace(/^\[|\]$/g, "")
  const timeout = Duration.toMillis(options.answerTimeout ?? "5 seconds")
  return {
    address: host.startsWith("/") ? { path: `${host}/.s.PGSQL.${port}` } : { host: name, port, noDelay: true },
    encryption: mode === "disable" ? "none" : mode === "prefer" || mode === "allow" ? "preferred" : "required",
    tls: { host: name, ...(net.isIP(name) === 0 ? { servername: name } : {}), ...options.tls },
    answerTimeoutMillis: Number.isFinite(timeout) ? timeout : 0
  }
}

/**
 * The byte stream between the driver and the server. It connects when the first message is written, refuses to carry a
 * CancelRequest, and destroys itself when an answer does not come.
 */
class Wire extends Duplex {
  readonly #endpoint: Endpoint
  #socket: net.Socket | undefined
  #owesAnswer = false
  #tail = Buffer.alloc(0)

  constructor(endpoint: Endpoint) {
    super()
    this.#endpoint = endpoint
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, done: (error?: Error | null) => void) {
    this.#owesAnswer = true
    if (this.#socket !== undefined) {
      this.#socket.write(chunk, done)
    } else if (isCancelRequest(chunk)) {
      this.destroy()
    } else {
      this.#connect((socket) => socket.write(chunk, done))
    }
  }

  override _read() {
    this.#socket?.resume()
  }

  override _final(done: (error?: Error | null) => void) {
    this.#owesAnswer = false
    const socket = this.#socket
    if (socket === undefined) return done()
    // Not waiting for the server's own end: a frozen one would keep this process alive.
    socket.end(() => {
      socket.destroy()
      done()
    })
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void) {
    this.#socket?.destroy()
    done(error)
  }

  #connect(ready: (socket: net.Socket) => void) {
    const { address, encryption } = this.#endpoint
    const raw = this.#use(net.connect(address))
    raw.setKeepAlive(true, 10_000)
    if (encryption === "none") return this.#receive(raw, ready)
    raw.write(sslRequest)
    raw.once("data", (answer) => {
      // More than the one byte would be something that the server, or somebody in between, sent unencrypted.
      if (answer.length === 1 && answer[0] === 0x53) {
        // From here on only the socket above sees that something moves.
        raw.setTimeout(0)
        return this.#receive(this.#use(tls.connect({ ...this.#endpoint.tls, socket: raw })), ready)
      }
      if (answer.length === 1 && answer[0] === 0x4e && encryption === "preferred") return this.#receive(raw, ready)
      this.destroy(new Error("the server does not offer TLS: check sslmode"))
    })
  }

  /** Takes the socket over; what happens to it happens to the wire. */
  #use<S extends net.Socket>(socket: S): S {
    this.#socket = socket
    socket.on("error", (cause) => this.destroy(cause))
    socket.on("close", () => this.destroy())
    // Counts from the last byte in either direction.
    socket.setTimeout(this.#endpoint.answerTimeoutMillis, () => {
      if (this.#owesAnswer) this.destroy(new Error("no answer in time: the connection is dropped, the outcome unknown"))
    })
    return socket
  }

  #receive(socket: net.Socket, ready: (socket: net.Socket) => void) {
    socket.on("data", (chunk: Buffer) => {
      this.#tail = Buffer.concat([this.#tail, chunk.subarray(-6)]).subarray(-6)
      if (isReadyForQuery(this.#tail)) this.#owesAnswer = false
      if (!this.push(chunk)) socket.pause()
    })
    ready(socket)
  }
}

const sslRequest = Buffer.from([0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f])
const cancelRequest = Buffer.from([0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e])

const isCancelRequest = (chunk: Buffer) => chunk.subarray(0, 8).equals(cancelRequest)

/** `Z`, the length 5, and the state of the transaction: the server has finished and waits for the next statement. */
const isReadyForQuery = (tail: Buffer) =>
  tail.length === 6 &&
  tail[0] === 0x5a &&
  tail.readUInt32BE(1) === 5 &&
  "ITE".includes(String.fromCharCode(tail[5] ?? 0))
