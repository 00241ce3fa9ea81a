// @effect-diagnostics nodeBuiltinImport:off
/**
 * The rail over HTTP. Each call has a connection of its own, made for it and closed after it: there is no pool that
 * could hand out a connection the rail has just closed, and nothing that could send a request a second time. That costs
 * a round trip, and buys that a failure before the connection stands proves that nothing was sent.
 *
 * Only ACSC (ACCC) with a reference is a yes and only RJCT with a reason code is a no. Everything else leaves the
 * payment open: any other status, AM05 and DUPL ("duplication": it says that the original exists), a 4xx or 5xx, HTML,
 * a broken connection, an answer about another payment.
 */
import { Clock, Effect, Layer, Option, Schema, type Scope } from "effect"
import * as Http from "node:http"
import * as net from "node:net"
import * as tls from "node:tls"
import { reached } from "../../core/FaultPoint.ts"
import { Rail, type RailAnswer, type RailFinding, RailNoAnswer } from "../../core/rail/Rail.ts"
import { traceparent } from "../../core/Span.ts"

/** No answer of a rail is longer. */
const answerBytesMax = 64 * 1024

interface HttpAnswer {
  readonly status: number
  readonly contentType: string
  readonly body: string
}

export const make = (url: string): Rail["Service"] => {
  const base = new URL(url)
  const secure = base.protocol === "https:"
  const host = base.hostname.replace(/^\[|\]$/g, "")
  const port = Number(base.port || (secure ? 443 : 80))

  /** A refused, unreachable or unfinished connection has carried no request. */
  const connect: Effect.Effect<net.Socket, RailNoAnswer, Scope.Scope> = Effect.acquireRelease(
    Effect.sync(() => {
      const socket = secure
        ? tls.connect({ host, port, ...(net.isIP(host) === 0 ? { servername: host } : {}) })
        : net.connect({ host, port, noDelay: true })
      // Whatever it is, the call that uses the socket sees it too; an unheard error would end the process.
      return socket.on("error", () => {})
    }),
    (socket) => Effect.sync(() => socket.destroy())
  ).pipe(
    Effect.tap((socket) =>
      Effect.callback<void, RailNoAnswer>((resume) => {
        const failed = (cause: unknown) =>
          resume(Effect.fail(new RailNoAnswer({ cause: `no connection: ${reasonOf(cause)}`, neverSent: true })))
        socket.once(secure ? "secureConnect" : "connect", () => resume(Effect.void))
        socket.once("error", failed)
        socket.once("close", () => failed("closed"))
      })
    )
  )

  /** One request on a connection that stands. From its first byte on, nothing is known but what the answer says. */
  const exchange = (socket: net.Socket, method: "GET" | "POST", path: string, body: string | undefined) =>
    Effect.flatMap(traceparent, (traceContext) =>
      Effect.callback<HttpAnswer, RailNoAnswer>((resume) => {
        const unclear = (cause: string) => resume(Effect.fail(new RailNoAnswer({ cause, neverSent: false })))
        const request = Http.request({
          createConnection: () => socket,
          method,
          path: `${base.pathname.replace(/\/$/, "")}${path}`,
          headers: {
            traceparent: traceContext,
            host: base.host,
            accept: "application/json",
            connection: "close",
            ...(body === undefined
              ? {}
              : { "content-type": "application/json; charset=utf-8", "content-length": Buffer.byteLength(body) })
          }
        })
        request.on("error", (cause) => unclear(`the connection broke: ${reasonOf(cause)}`))
        request.on("response", (response) => {
          const chunks: Array<Buffer> = []
          let size = 0
          response.on("data", (chunk: Buffer) => {
            size += chunk.length
            if (size <= answerBytesMax) return void chunks.push(chunk)
            unclear(`an answer longer than ${answerBytesMax} bytes`)
            socket.destroy()
          })
          response.on("error", (cause) => unclear(`the answer broke off: ${reasonOf(cause)}`))
          response.on("end", () =>
            resume(
              Effect.succeed({
                status: response.statusCode ?? 0,
                contentType: response.headers["content-type"] ?? "",
                body: Buffer.concat(chunks).toString("utf8")
              })
            )
          )
        })
        request.end(body)
        return Effect.sync(() => request.destroy())
      })
    )

  const submit: Rail["Service"]["submit"] = ({ amountMinor, beneficiary, clientReference, currency }, sendNotAfter) =>
    Effect.gen(function* () {
      const tooLate = new RailNoAnswer({ cause: "the send window has passed", neverSent: true })
      const left = sendNotAfter - (yield* Clock.monotonicTimeNanos)
      if (left < 0n) return yield* tooLate
      const socket = yield* Effect.timeoutOrElse(connect, {
        duration: Math.ceil(Number(left) / 1e6),
        orElse: () => Effect.fail(tooLate)
      })
      if ((yield* Clock.monotonicTimeNanos) > sendNotAfter) return yield* tooLate
      // Stopped here and woken later, this process pays late: see RailService.
      yield* reached("rail.send.before")
      const body = JSON.stringify({ clientReference, amountMinor: amountMinor.toString(), currency, beneficiary })
      return yield* submitAnswerOf(clientReference, yield* exchange(socket, "POST", "/submit", body))
    }).pipe(Effect.scoped)

  const lookup: Rail["Service"]["lookup"] = (clientReference) =>
    Effect.gen(function* () {
      const path = `/lookup?clientReference=${encodeURIComponent(clientReference)}`
      return yield* findingOf(clientReference, yield* exchange(yield* connect, "GET", path, undefined))
    }).pipe(Effect.scoped)

  return Rail.of({
    submit,
    lookup,
    // Any answer of an HTTP server says that there is one.
    ping: Effect.gen(function* () {
      yield* exchange(yield* connect, "GET", "/actuator/health/liveness", undefined)
    }).pipe(Effect.scoped)
  })
}

export const layer = (url: string): Layer.Layer<Rail> => Layer.sync(Rail, () => make(url))

const reasonOf = (cause: unknown): string =>
  cause instanceof Error ? ("code" in cause ? String(cause.code) : cause.message) : String(cause)

// -----------------------------------------------------------------------------
// what the rail's words mean
// -----------------------------------------------------------------------------

const paid: ReadonlySet<string> = new Set(["ACSC", "ACCC"])
const undecided: ReadonlySet<string> = new Set(["RCVD", "ACTC", "ACCP", "ACSP", "ACWC", "PDNG", "PART"])
/** Refused as a duplication: then there is an original, and it is to be looked up. */
const duplication: ReadonlySet<string> = new Set(["AM05", "DUPL"])

const SubmitAnswer = Schema.Struct({
  clientReference: Schema.String,
  status: Schema.String,
  railReference: Schema.NullOr(Schema.String.check(Schema.isPattern(/^[\x21-\x7e]{1,64}$/u))),
  code: Schema.NullOr(Schema.String.check(Schema.isPattern(/^[\x21-\x7e]{1,35}$/u)))
})
const LookupAnswer = Schema.Struct({
  clientReference: Schema.String,
  status: Schema.String,
  executedCount: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 2_147_483_647 })),
  railReferences: Schema.Array(Schema.String)
})

const parsed = <A>(schema: Schema.Decoder<A>, { body, contentType, status }: HttpAnswer) =>
  status === 200 && /^application\/json\s*(;|$)/i.test(contentType)
    ? Schema.decodeOption(Schema.fromJsonString(schema))(body)
    : Option.none<A>()

const unclear = ({ body, contentType, status }: HttpAnswer): RailNoAnswer =>
  new RailNoAnswer({
    cause: `no clear answer: HTTP ${status}, ${contentType}, ${JSON.stringify(body.slice(0, 120))}`,
    neverSent: false
  })

const submitAnswerOf = (clientReference: string, answer: HttpAnswer): Effect.Effect<RailAnswer, RailNoAnswer> => {
  const said = Option.getOrUndefined(parsed(SubmitAnswer, answer))
  if (said?.clientReference !== clientReference) return Effect.fail(unclear(answer))
  if (paid.has(said.status) && said.railReference !== null) {
    return Effect.succeed({ _tag: "Acknowledged", railReference: said.railReference })
  }
  if (said.status === "RJCT" && said.code !== null && !duplication.has(said.code)) {
    return Effect.succeed({ _tag: "Declined", code: said.code })
  }
  return Effect.fail(unclear(answer))
}

const findingOf = (clientReference: string, answer: HttpAnswer): Effect.Effect<RailFinding, RailNoAnswer> => {
  const said = Option.getOrUndefined(parsed(LookupAnswer, answer))
  if (said?.clientReference !== clientReference) return Effect.fail(unclear(answer))
  const [railReference] = said.railReferences
  if (paid.has(said.status) && railReference !== undefined && said.executedCount > 0) {
    return Effect.succeed({ _tag: "EXECUTED", count: said.executedCount, railReference })
  }
  if (said.status === "RJCT") return Effect.succeed({ _tag: "REJECTED" })
  if (said.status === "NOT_FOUND") return Effect.succeed({ _tag: "NOT_FOUND" })
  return undecided.has(said.status) ? Effect.succeed({ _tag: "PENDING" }) : Effect.fail(unclear(answer))
}
