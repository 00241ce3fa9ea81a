// @effect-diagnostics nodeBuiltinImport:off
/**
 * An HTTP proxy between two participants that knows what is said: it names every call as the simulation does
 * (`lock.acquire`, `pay.claim`, `rail.submit`), notes when it was passed on and when it was answered, and can lose, delay
 * or double one call that is picked by its name and number.
 *
 * All taps of a run are in one process and so on one clock. A call is noted before it is passed on and an answer after it
 * has arrived, so what happened at the server lies between the two.
 *
 * It repairs nothing: when the server breaks off, so does the tap; when the caller goes away, it lets go of the server.
 */
import { Effect, FiberSet, type Scope } from "effect"
import * as http from "node:http"
import type * as net from "node:net"
import { HarnessError } from "./Processes.ts"

/** Milliseconds since 1970 that never go back, with fractions. */
export const tapTime = (): number => performance.timeOrigin + performance.now()

export interface Call {
  readonly from: string
  readonly to: string
  readonly label: string
  readonly called: number
  /** Infinity: no answer came. */
  returned: number
  /** Null: no answer came. */
  status: number | null
  /** The error's code, as in the envelope. */
  code: string | null
  readonly owner: string | null
  readonly key: string | null
  sessionId: string | null
  readonly token: bigint | null
  readonly requestId: string | null
  readonly payoutId: string | null
  /** What the rail knows the payout by. */
  readonly reference: string | null
  readonly waitMillis: number
  /** From the answer. */
  granted: bigint | null
  ttlMillis: number
  expiresAt: number | null
  /** Only the caller has this: the second copy that a fault sent. */
  readonly copy: boolean
}

/** What befalls one call. `late`: the request or its answer is passed on after so many ms. */
export interface CallFault {
  readonly label: string
  readonly nth: number
  readonly leg: "request" | "answer"
  readonly how: "drop" | "delay" | "duplicate"
  readonly millis: number
}

export interface HttpTap {
  readonly port: number
  /** Where calls go to from now on: a service that was restarted has another port. */
  readonly retarget: (port: number, host?: string) => void
  readonly plant: (fault: CallFault) => { readonly hits: () => number }
}

const labels: ReadonlyArray<readonly [method: string, path: RegExp, label: string]> = [
  ["POST", /\/v1\/sessions$/, "lock.openSession"],
  ["POST", /\/heartbeat$/, "lock.heartbeat"],
  ["DELETE", /\/v1\/sessions\/[^/]+$/, "lock.closeSession"],
  ["POST", /\/acquire$/, "lock.acquire"],
  ["POST", /\/renew$/, "lock.renew"],
  ["POST", /\/revoke$/, "lock.revoke"],
  ["DELETE", /\/v1\/locks\/[^/]+$/, "lock.release"],
  ["GET", /\/v1\/locks\/[^/]+$/, "lock.inspect"],
  ["POST", /\/v1\/rail\/submissions$/, "rail.submit"],
  ["POST", /\/submissions\/[^/]+\/lookup$/, "rail.lookup"],
  ["POST", /\/submissions\/[^/]+\/void$/, "rail.seal"],
  ["POST", /\/submissions\/[^/]+\/evidence$/, "rail.evidence"],
  ["GET", /\/submissions\/[^/]+$/, "rail.readSubmission"],
  ["POST", /^\/submit$/, "rail.pay"],
  ["GET", /^\/lookup$/, "rail.ask"],
  ["POST", /\/claim$/, "pay.claim"],
  ["POST", /\/post$/, "pay.post"],
  ["POST", /\/fail$/, "pay.fail"],
  ["POST", /\/ambiguous$/, "pay.ambiguous"],
  ["POST", /\/resolve$/, "pay.resolve"],
  ["GET", /\/v1\/payouts$/, "pay.listPayouts"],
  ["POST", /\/v1\/payouts$/, "pay.createPayout"],
  ["GET", /\/v1\/payouts\/[^/]+$/, "pay.readPayout"]
]

export const labelOf = (method: string, url: string): string => {
  const path = url.split("?")[0] ?? url
  return labels.find(([verb, pattern]) => verb === method && pattern.test(path))?.[2] ?? `${method} ${path}`
}

const json = (text: string): Readonly<Record<string, unknown>> => {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {}
  } catch {
    return {}
  }
}
const text = (value: unknown): string | null => (typeof value === "string" ? value : null)
const number = (value: unknown): number => (typeof value === "number" ? value : 0)
const token = (value: unknown): bigint | null =>
  typeof value === "string" && /^\d+$/.test(value) ? BigInt(value) : null

/** Tells of each call when it is passed on; the rest of it is filled in when it is answered. */
export const start = Effect.fnUntraced(function* (
  from: string,
  to: string,
  tell: (call: Call) => void
): Effect.fn.Return<HttpTap, HarnessError, Scope.Scope> {
  const run = yield* FiberSet.makeRuntime<never, void>()
  const visits = new Map<string, number>()
  const planted: Array<CallFault & { hits: number }> = []
  const sockets = new Set<net.Socket>()
  let targetPort = 0
  let targetHost = "127.0.0.1"

  const pass = (
    request: http.IncomingMessage,
    body: Buffer,
    answer: http.ServerResponse,
    label: string,
    visit: number,
    copy: boolean
  ): void => {
    const url = request.url ?? "/"
    const path = decodeURIComponent(url.split("?")[0] ?? url)
    const asked = json(body.toString())
    const header = (name: string) => text(request.headers[name])
    const call: Call = {
      from,
      to,
      label,
      called: tapTime(),
      returned: Infinity,
      status: null,
      code: null,
      owner: header("x-owner-id") ?? text(asked["ownerId"]),
      key: /\/v1\/locks\/(.+?)(\/(acquire|renew|revoke))?$/.exec(path)?.[1] ?? null,
      sessionId: /\/v1\/sessions\/([^/]+)/.exec(path)?.[1] ?? text(asked["sessionId"]),
      token: token(header("x-fencing-token") ?? asked["expectedToken"]),
      requestId: header("x-idempotency-key"),
      payoutId: /\/(?:payouts|submissions)\/([^/]+)/.exec(path)?.[1] ?? text(asked["payoutId"]),
      reference: text(asked["clientReference"]) ?? /[?&]clientReference=([^&]*)/.exec(url)?.[1] ?? null,
      waitMillis: number(asked["waitMillis"]),
      granted: null,
      ttlMillis: 0,
      expiresAt: null,
      copy
    }
    tell(call)
    const upstream = http.request(
      {
        host: targetHost,
        port: targetPort,
        method: request.method,
        path: url,
        headers: request.headers,
        agent: false
      },
      (response) => {
        const parts: Array<Buffer> = []
        response.on("data", (part: Buffer) => parts.push(part))
        response.on("end", () => {
          const content = Buffer.concat(parts)
          const said = json(content.toString())
          call.returned = tapTime()
          call.status = response.statusCode ?? 0
          call.code = text(said["code"])
          call.granted = token(said["fencingToken"] ?? said["revokedToken"])
          call.sessionId ??= text(said["sessionId"])
          call.ttlMillis = number(said["ttlMillis"])
          const until = text(said["expiresAt"])
          call.expiresAt = until === null ? null : Date.parse(until)
          if (copy) return
          const give = () => {
            if (answer.destroyed) return
            answer.writeHead(response.statusCode ?? 502, response.headers)
            answer.end(content)
          }
          const fault = due(label, visit, "answer")
          if (fault === undefined) return give()
          if (fault.how === "delay") run(Effect.delay(Effect.sync(give), fault.millis))
        })
        response.on("error", () => answer.destroy())
      }
    )
    upstream.on("error", () => {
      if (!copy) answer.destroy()
    })
    if (!copy) {
      answer.on("close", () => {
        if (!answer.writableFinished) upstream.destroy()
      })
    }
    upstream.end(body)
  }

  const due = (label: string, visit: number, leg: CallFault["leg"]) => {
    const fault = planted.find((one) => one.label === label && one.leg === leg && one.nth === visit)
    if (fault !== undefined) fault.hits++
    return fault
  }

  const server = http.createServer((request, answer) => {
    const label = labelOf(request.method ?? "", request.url ?? "/")
    const parts: Array<Buffer> = []
    request.on("data", (part: Buffer) => parts.push(part))
    request.on("error", () => answer.destroy())
    request.on("end", () => {
      const body = Buffer.concat(parts)
      const visit = (visits.get(label) ?? 0) + 1
      visits.set(label, visit)
      const fault = due(label, visit, "request")
      switch (fault?.how) {
        case "drop":
          return
        case "delay":
          // Passed on even if its caller has given up by then: it was on its way.
          run(
            Effect.delay(
              Effect.sync(() => pass(request, body, answer, label, visit, answer.destroyed)),
              fault.millis
            )
          )
          return
        case "duplicate":
          run(
            Effect.delay(
              Effect.sync(() => pass(request, body, answer, label, visit, true)),
              fault.millis
            )
          )
      }
      pass(request, body, answer, label, visit, false)
    })
  })
  server.keepAliveTimeout = 60_000
  server.on("connection", (socket) => {
    sockets.add(socket)
    socket.on("close", () => sockets.delete(socket))
  })
  yield* Effect.acquireRelease(
    Effect.callback<void, HarnessError>((resume) => {
      server.once("error", (cause) =>
        resume(Effect.fail(new HarnessError({ step: `tap ${from} to ${to}`, message: cause.message })))
      )
      server.listen(0, "127.0.0.1", () => resume(Effect.void))
    }),
    () =>
      Effect.callback<void>((resume) => {
        for (const socket of sockets) socket.destroy()
        server.close(() => resume(Effect.void))
      })
  )
  const address = server.address()
  return {
    port: typeof address === "object" && address !== null ? address.port : 0,
    retarget: (port, host = "127.0.0.1") => {
      targetPort = port
      targetHost = host
    },
    plant: (fault) => {
      // Counted from now on.
      const own = { ...fault, nth: (visits.get(fault.label) ?? 0) + fault.nth, hits: 0 }
      planted.push(own)
      return { hits: () => own.hits }
    }
  }
})
