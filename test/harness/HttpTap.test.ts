// @effect-diagnostics nodeBuiltinImport:off
/** The tap between two participants: what it notes, what it does to one call, and that it repairs nothing. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, type Scope } from "effect"
import * as http from "node:http"
import { type Call, labelOf, start } from "../../src/harness/HttpTap.ts"
import { waitUntil } from "../support/waitUntil.ts"

interface Server {
  readonly port: number
  readonly seen: ReadonlyArray<string>
}

/** Answers a grant to whoever asks, or breaks off. */
const server = (breaksOff = false): Effect.Effect<Server, never, Scope.Scope> => {
  const seen: Array<string> = []
  return Effect.acquireRelease(
    Effect.callback<http.Server>((resume) => {
      const made = http.createServer((request, answer) => {
        seen.push(request.url ?? "")
        if (breaksOff) return void request.socket.destroy()
        answer.setHeader("content-type", "application/json")
        answer.end(
          JSON.stringify({
            fencingToken: "7",
            sessionId: "s1",
            ttlMillis: 3_000,
            expiresAt: "2026-01-01T00:00:03.000Z"
          })
        )
      })
      made.listen(0, "127.0.0.1", () => resume(Effect.succeed(made)))
    }),
    (made) =>
      Effect.sync(() => {
        made.closeAllConnections()
        made.close()
      })
  ).pipe(
    Effect.map((made) => {
      const address = made.address()
      return { port: typeof address === "object" && address !== null ? address.port : 0, seen }
    })
  )
}

const post = (port: number, path: string, headers: Readonly<Record<string, string>> = {}) =>
  Effect.tryPromise(() =>
    fetch(`http://127.0.0.1:${port}${path}`, {
      method: "POST",
      headers,
      body: "{}",
      signal: AbortSignal.timeout(1_000)
    })
  ).pipe(Effect.flatMap((answer) => Effect.tryPromise(() => answer.text())))

const tapped = Effect.fnUntraced(function* (breaksOff = false) {
  const behind = yield* server(breaksOff)
  const calls: Array<Call> = []
  const tap = yield* start("w1", "lock-server", (call) => calls.push(call))
  tap.retarget(behind.port)
  return { behind, calls, tap }
})

describe("a tap", () => {
  it("names calls as the simulation does", () => {
    assert.strictEqual(labelOf("POST", "/v1/locks/payout%3Aa/acquire"), "lock.acquire")
    assert.strictEqual(labelOf("DELETE", "/v1/locks/payout%3Aa"), "lock.release")
    assert.strictEqual(labelOf("POST", "/v1/payouts/x/claim"), "pay.claim")
    assert.strictEqual(labelOf("GET", "/v1/payouts?state=PENDING"), "pay.listPayouts")
    assert.strictEqual(labelOf("POST", "/v1/rail/submissions"), "rail.submit")
    assert.strictEqual(labelOf("POST", "/submit"), "rail.pay")
  })

  it.live("notes who asked for what and what was answered, each at its time", () =>
    Effect.gen(function* () {
      const { calls, tap } = yield* tapped()
      yield* post(tap.port, "/v1/locks/payout%3Aacct-1/acquire", { "x-owner-id": "w1", "x-idempotency-key": "a1" })
      assert.lengthOf(calls, 1)
      const [call] = calls
      assert.deepInclude(call, {
        label: "lock.acquire",
        key: "payout:acct-1",
        owner: "w1",
        requestId: "a1",
        granted: 7n,
        status: 200,
        ttlMillis: 3_000,
        expiresAt: Date.parse("2026-01-01T00:00:03.000Z")
      })
      assert.isTrue(call !== undefined && call.returned >= call.called && call.returned < Infinity)
    }).pipe(Effect.scoped)
  )

  it.live("loses one request, which then never arrives, or one answer, and the call is done", () =>
    Effect.gen(function* () {
      const { behind, calls, tap } = yield* tapped()
      const request = tap.plant({ label: "pay.claim", nth: 1, leg: "request", how: "drop", millis: 0 })
      const answer = tap.plant({ label: "pay.claim", nth: 2, leg: "answer", how: "drop", millis: 0 })
      assert.strictEqual((yield* Effect.exit(post(tap.port, "/v1/payouts/x/claim")))._tag, "Failure")
      assert.lengthOf(behind.seen, 0)
      assert.strictEqual(request.hits(), 1)
      assert.strictEqual((yield* Effect.exit(post(tap.port, "/v1/payouts/x/claim")))._tag, "Failure")
      assert.lengthOf(behind.seen, 1)
      assert.strictEqual(answer.hits(), 1)
      assert.strictEqual(calls.at(-1)?.status, 200, "the server has answered, whoever did not hear it")
      yield* post(tap.port, "/v1/payouts/x/claim")
      assert.lengthOf(behind.seen, 2)
    }).pipe(Effect.scoped)
  )

  it.live("passes a request on late, and twice", () =>
    Effect.gen(function* () {
      const { behind, calls, tap } = yield* tapped()
      tap.plant({ label: "pay.post", nth: 1, leg: "request", how: "delay", millis: 150 })
      const before = performance.now()
      yield* post(tap.port, "/v1/payouts/x/post")
      assert.isAtLeast(performance.now() - before, 140)
      tap.plant({ label: "pay.post", nth: 1, leg: "request", how: "duplicate", millis: 20 })
      yield* post(tap.port, "/v1/payouts/x/post")
      yield* waitUntil(
        "the second copy has arrived",
        Effect.sync(() => behind.seen.length === 3)
      )
      assert.deepStrictEqual(
        calls.map(({ copy }) => copy),
        [false, false, true]
      )
    }).pipe(Effect.scoped)
  )

  it.live("breaks off where the server breaks off, and follows it to another port", () =>
    Effect.gen(function* () {
      const { calls, tap } = yield* tapped(true)
      assert.strictEqual((yield* Effect.exit(post(tap.port, "/v1/payouts/x/claim")))._tag, "Failure")
      assert.deepInclude(calls[0], { status: null, returned: Infinity })
      const other = yield* server()
      tap.retarget(other.port)
      yield* post(tap.port, "/v1/payouts/x/claim")
      assert.lengthOf(other.seen, 1)
    }).pipe(Effect.scoped)
  )
})
