import { assert, describe, it } from "@effect/vitest"
import { Effect, Fiber, Layer, Result, Schema } from "effect"
import { LockStore } from "../../../src/core/lock/LockStore.ts"
import { routesOf } from "../../../src/services/api/Envelope.ts"
import { AcquiredGrantJson, LockHttpApi, LockInfoJson, SessionJson } from "../../../src/services/api/LockHttpApi.ts"
import * as SimLockStore from "../../../src/sim/SimLockStore.ts"
import { waitUntil } from "../../support/waitUntil.ts"
import { acquire, codeOf, open, send, startOver } from "./serving.ts"

/** A store in memory that counts what reaches it, and may be told to be slow or down. */
const counted = () => {
  const state = { calls: 0 }
  const layer = Layer.effect(
    LockStore,
    Effect.map(LockStore, (store) =>
      LockStore.of(
        new Proxy(store, {
          get: (target, name: keyof typeof store) => {
            const member = target[name]
            if (name === "sweep" || name === "changes" || typeof member !== "function") return member
            return (...args: ReadonlyArray<unknown>) => {
              state.calls++
              return (member as (...args: ReadonlyArray<unknown>) => unknown)(...args)
            }
          }
        })
      )
    )
  ).pipe(Layer.provide(SimLockStore.layer))
  return { state, layer }
}

const key = "payout:acct-1"
const path = `/v1/locks/${key}`

const decodes = (schema: Schema.Top, value: unknown) =>
  Effect.map(
    Effect.result(Schema.decodeUnknownEffect(Schema.toCodecJson(schema as Schema.Codec<unknown>))(value)),
    Result.isSuccess
  )

describe("the lock surface", () => {
  it("has exactly eight routes", () =>
    assert.deepStrictEqual(
      routesOf(LockHttpApi).map(([method, route]) => `${method} ${route}`),
      [
        "POST /v1/sessions",
        "POST /v1/sessions/:sessionId/heartbeat",
        "DELETE /v1/sessions/:sessionId",
        "POST /v1/locks/:key/acquire",
        "POST /v1/locks/:key/renew",
        "DELETE /v1/locks/:key",
        "GET /v1/locks/:key",
        "POST /v1/locks/:key/revoke"
      ]
    ))

  it.live("walks a lock through its life, token and all", () =>
    Effect.gen(function* () {
      const { url } = yield* startOver(SimLockStore.layer)
      const opened = yield* send(url, "/v1/sessions", { method: "POST", owner: "w1", body: { ttlMillis: 15_000 } })
      assert.strictEqual(opened.status, 201)
      assert.isTrue(yield* decodes(SessionJson, opened.json))
      assert.strictEqual(opened.json["ttlMillis"], 15_000)
      const sessionId = String(opened.json["sessionId"])

      const beat = yield* send(url, `/v1/sessions/${sessionId}/heartbeat`, { method: "POST", owner: "w1" })
      assert.strictEqual(beat.status, 200)
      assert.deepStrictEqual(Object.keys(beat.json), Object.keys(opened.json))

      const unseen = yield* send(url, path)
      assert.deepStrictEqual([unseen.status, codeOf(unseen)], [404, "LOCK_NOT_FOUND"])

      const granted = yield* acquire(url, key, "w1", sessionId)
      assert.strictEqual(granted.status, 200)
      assert.isTrue(yield* decodes(AcquiredGrantJson, granted.json))
      assert.deepStrictEqual(Object.keys(granted.json), [
        "key",
        "fencingToken",
        "ownerId",
        "sessionId",
        "grantedAt",
        "expiresAt",
        "ttlMillis",
        "waitedMillis"
      ])
      const token = String(granted.json["fencingToken"])
      assert.match(token, /^[1-9][0-9]*$/)

      const seen = yield* send(url, path)
      assert.strictEqual(seen.status, 200)
      assert.isTrue(yield* decodes(LockInfoJson, seen.json))
      assert.deepStrictEqual(seen.json, {
        key,
        held: true,
        holderOwnerId: "w1",
        expiresAt: granted.json["expiresAt"],
        advisory: true
      })
      assert.notInclude(seen.text, `"${token}"`)

      const other = yield* open(url, "w2")
      const refused = yield* acquire(url, key, "w2", other)
      assert.deepStrictEqual([refused.status, codeOf(refused)], [409, "LOCK_CONTENDED"])
      assert.strictEqual(refused.json["retrySafe"], true)
      assert.isNumber(refused.json["retryAfterMillis"])
      assert.deepInclude(refused.json["details"], { outcome: "HELD_BY_OTHER", holderOwnerId: "w1" })

      const renewed = yield* send(url, `${path}/renew`, { method: "POST", owner: "w1", token })
      assert.strictEqual(renewed.status, 200)
      assert.strictEqual(renewed.json["fencingToken"], token)
      const longer = yield* send(url, `${path}/renew`, {
        method: "POST",
        owner: "w1",
        token,
        body: { ttlMillis: 30_000 }
      })
      assert.strictEqual(longer.json["ttlMillis"], 30_000)

      const released = yield* send(url, path, { method: "DELETE", owner: "w1", token })
      assert.deepStrictEqual([released.status, released.text], [204, ""])
      const free = yield* send(url, path)
      assert.deepStrictEqual(free.json, { key, held: false, holderOwnerId: null, expiresAt: null, advisory: true })

      const closed = yield* send(url, `/v1/sessions/${sessionId}`, { method: "DELETE", owner: "w1" })
      assert.strictEqual(closed.status, 204)
      const again = yield* send(url, `/v1/sessions/${sessionId}`, { method: "DELETE", owner: "w1" })
      assert.deepStrictEqual([again.status, codeOf(again)], [404, "SESSION_UNKNOWN"])
    }).pipe(Effect.scoped)
  )

  it.live("takes the owner of a session from header or body, and refuses two that differ", () =>
    Effect.gen(function* () {
      const { url } = yield* startOver(SimLockStore.layer)
      const post = (request: { readonly owner?: string; readonly body?: unknown; readonly id?: string }) =>
        send(url, "/v1/sessions", { method: "POST", ...request })
      assert.strictEqual((yield* post({ owner: "w1" })).json["ownerId"], "w1")
      assert.strictEqual((yield* post({ body: { ownerId: "w1" } })).json["ownerId"], "w1")
      assert.strictEqual((yield* post({ owner: "w1", body: { ownerId: "w1" } })).status, 201)
      for (const request of [{}, { body: {} }, { owner: "w1", body: { ownerId: "w2" } }, { owner: "" }]) {
        const answer = yield* post(request)
        assert.deepStrictEqual([answer.status, codeOf(answer)], [400, "VALIDATION_FAILED"])
        assert.isNotEmpty((answer.json["details"] as { fields: ReadonlyArray<unknown> }).fields)
      }
      const first = yield* post({ owner: "w1", id: "open-1" })
      const repeated = yield* post({ owner: "w1", id: "open-1" })
      assert.strictEqual(repeated.json["sessionId"], first.json["sessionId"])
    }).pipe(Effect.scoped)
  )

  it.live("clamps a long session down, and rejects what is out of bounds before the service sees it", () =>
    Effect.gen(function* () {
      const { layer, state } = counted()
      const { url } = yield* startOver(layer)
      const long = yield* send(url, "/v1/sessions", { method: "POST", owner: "w1", body: { ttlMillis: 999_999_999 } })
      assert.strictEqual(long.json["ttlMillis"], 300_000)
      const sessionId = String(long.json["sessionId"])
      const before = state.calls
      const session = (body: unknown) => send(url, "/v1/sessions", { method: "POST", owner: "w1", body })
      const bodies = [{ ttlMillis: 1_999 }, { ttlMillis: 0 }, { ttlMillis: -1 }, { ttlMillis: 2_500.5 }]
      for (const body of [...bodies, { ttlMillis: "15000" }, { ttlMillis: null }, { ttlMilis: 15_000 }, [], "{"]) {
        const answer = yield* session(body)
        assert.deepStrictEqual([answer.status, codeOf(answer)], [400, "VALIDATION_FAILED"], JSON.stringify(body))
      }
      const wrong: ReadonlyArray<readonly [path: string, request: object]> = [
        [`${path}/acquire`, { body: { sessionId, ttlMillis: 999 } }],
        [`${path}/acquire`, { body: { sessionId, ttlMillis: 300_001 } }],
        [`${path}/acquire`, { body: { sessionId, waitMillis: -1 } }],
        [`${path}/acquire`, { body: { sessionId, waitMillis: 30_001 } }],
        [`${path}/acquire`, { body: {} }],
        [`${path}/acquire`, { body: { sessionId: "no blanks" } }],
        [`${path}/acquire`, { body: { sessionId }, owner: "x".repeat(65) }],
        [`${path}/acquire`, { body: { sessionId }, owner: "a b" }],
        [`${path}/acquire`, { body: { sessionId }, id: "with blank" }],
        [`/v1/locks/${"k".repeat(201)}/acquire`, { body: { sessionId } }],
        ["/v1/locks/.hidden/acquire", { body: { sessionId } }],
        ["/v1/locks/a%00b/acquire", { body: { sessionId } }],
        ["/v1/locks/a%20b/acquire", { body: { sessionId } }],
        ["/v1/locks/caf%C3%A9/acquire", { body: { sessionId } }],
        [`${path}/renew`, { token: "1", body: { ttlMillis: 1 } }],
        [`${path}/revoke`, { body: { operator: "ops", reason: "   short   " } }],
        [`${path}/revoke`, { body: { operator: "   ", reason: "long enough a reason" } }],
        [`${path}/revoke`, { body: { operator: "o".repeat(65), reason: "long enough a reason" } }],
        [`${path}/revoke`, { body: { operator: "ops", reason: "long enough a reason", expectedToken: "0" } }],
        [`${path}/revoke`, { body: { operator: "ops", reason: "long enough a reason", expectedToken: 5 } }]
      ]
      for (const [where, request] of wrong) {
        const answer = yield* send(url, where, { method: "POST", owner: "w1", ...request })
        assert.deepStrictEqual(
          [answer.status, codeOf(answer)],
          [400, "VALIDATION_FAILED"],
          JSON.stringify([where, request])
        )
      }
      assert.strictEqual(state.calls, before)
    }).pipe(Effect.scoped)
  )

  it.live("takes a token in its one form only, and never from anywhere else", () =>
    Effect.gen(function* () {
      const { layer, state } = counted()
      const { url } = yield* startOver(layer)
      const tokens = [
        undefined,
        "",
        "abc",
        "0",
        "-1",
        "+5",
        "05",
        "5.0",
        "1e3",
        "0x10",
        "5n",
        "1_000",
        "9223372036854775808"
      ]
      for (const token of [...tokens, "5, 6", "9".repeat(10_0)]) {
        for (const [method, where] of [
          ["POST", `${path}/renew`],
          ["DELETE", path]
        ] as const) {
          const answer = yield* send(url, where, { method, owner: "w1", ...(token === undefined ? {} : { token }) })
          assert.deepStrictEqual([answer.status, codeOf(answer)], [400, "INVALID_TOKEN"], `${method} ${token}`)
          assert.strictEqual(answer.json["retrySafe"], false)
        }
      }
      const inBody = yield* send(url, `${path}/renew`, { method: "POST", owner: "w1", body: { fencingToken: "5" } })
      assert.strictEqual(inBody.status, 400)
      assert.strictEqual(state.calls, 0)
    }).pipe(Effect.scoped)
  )

  it.live("tells a lost lock as 409, at INFO, and a stale revoke as fenced out, at WARN", () =>
    Effect.gen(function* () {
      const { log, url } = yield* startOver(SimLockStore.layer)
      const sessionId = yield* open(url, "w1")
      const first = String((yield* acquire(url, key, "w1", sessionId)).json["fencingToken"])
      yield* send(url, path, { method: "DELETE", owner: "w1", token: first })
      const lost = yield* send(url, path, { method: "DELETE", owner: "w1", token: first })
      assert.deepStrictEqual([lost.status, codeOf(lost)], [409, "LOCK_LOST"])
      assert.deepStrictEqual(
        [lost.json["retrySafe"], lost.json["retryAfterMillis"], lost.json["details"]],
        [false, null, { key, token: first, reason: "released" }]
      )
      const renewal = yield* send(url, `${path}/renew`, { method: "POST", owner: "w1", token: first })
      assert.deepStrictEqual([renewal.status, codeOf(renewal)], [409, "LOCK_LOST"])
      assert.isTrue(log.some(({ event, lockKey }) => event === "lock_lost" && lockKey === key))
      assert.isEmpty(log.filter(({ level }) => level === "Warn" || level === "Error"))

      const revoke = (body: object, id?: string) =>
        send(url, `${path}/revoke`, { method: "POST", owner: "cli", body, ...(id === undefined ? {} : { id }) })
      const why = { operator: "ops", reason: "stuck for an hour" }
      const none = yield* revoke(why)
      assert.deepStrictEqual([none.status, codeOf(none)], [404, "LOCK_NOT_FOUND"])
      const second = String((yield* acquire(url, key, "w1", sessionId)).json["fencingToken"])
      const stale = yield* revoke({ ...why, expectedToken: first })
      assert.deepStrictEqual([stale.status, codeOf(stale)], [409, "FENCED_OUT"])
      assert.deepStrictEqual([stale.json["retrySafe"], stale.json["retryAfterMillis"]], [false, null])
      assert.isEmpty(log.filter(({ level }) => level === "Error"))
      const done = yield* revoke({ ...why, expectedToken: second }, "revoke-1")
      assert.strictEqual(done.status, 200)
      assert.deepStrictEqual(Object.keys(done.json), ["key", "revokedToken", "newTokenFloor", "revocationId"])
      assert.deepInclude(done.json, { key, revokedToken: second, revocationId: "revoke-1" })
      const third = yield* acquire(url, key, "w1", sessionId)
      assert.isTrue(BigInt(String(third.json["fencingToken"])) > BigInt(String(done.json["newTokenFloor"])))
      const repeated = yield* revoke(why, "revoke-1")
      assert.deepStrictEqual(repeated.json, done.json)
      assert.isTrue(((yield* send(url, path)).json as { held: boolean }).held)
    }).pipe(Effect.scoped)
  )

  it.live("decodes keys once: `a%2Fb` is one key, `:` and `@` may stand as they are", () =>
    Effect.gen(function* () {
      const { managementUrl, url } = yield* startOver(SimLockStore.layer)
      const sessionId = yield* open(url, "w1")
      for (const odd of ["a/b", "a:b@c", "x%2Fy".replace("%", "-"), "Payout:A", "payout:a", "k".repeat(200)]) {
        const answer = yield* acquire(url, odd, "w1", sessionId)
        assert.deepStrictEqual([answer.status, answer.json["key"]], [200, odd])
        const record = yield* send(managementUrl, `/admin/locks/${encodeURIComponent(odd)}`)
        assert.strictEqual(record.json["key"], odd)
      }
    }).pipe(Effect.scoped)
  )

  it.live("answers a repeated acquire with its grant, and one whose grant ended with the loss", () =>
    Effect.gen(function* () {
      const { url } = yield* startOver(SimLockStore.layer)
      const sessionId = yield* open(url, "w1")
      const first = yield* acquire(url, key, "w1", sessionId, { id: "acq-1" })
      const again = yield* acquire(url, key, "w1", sessionId, { id: "acq-1" })
      assert.strictEqual(again.status, 200)
      assert.strictEqual(again.json["fencingToken"], first.json["fencingToken"])
      const token = String(first.json["fencingToken"])
      yield* send(url, path, { method: "DELETE", owner: "w1", token })
      const late = yield* acquire(url, key, "w1", sessionId, { id: "acq-1" })
      assert.deepStrictEqual([late.status, codeOf(late)], [409, "LOCK_LOST"])
      for (const [owner, session] of [
        ["w2", sessionId],
        ["w1", "never-seen"]
      ] as const) {
        const unknown = yield* acquire(url, key, owner, session)
        assert.deepStrictEqual([unknown.status, codeOf(unknown)], [404, "SESSION_UNKNOWN"])
      }
    }).pipe(Effect.scoped)
  )

  it.live("grants to a waiter when the holder releases, and forgets one whose client has gone", () =>
    Effect.gen(function* () {
      const { managementUrl, url } = yield* startOver(SimLockStore.layer)
      const sessionId = yield* open(url, "w1")
      const token = String((yield* acquire(url, key, "w1", sessionId)).json["fencingToken"])
      const waiters = Effect.map(send(managementUrl, `/admin/locks/${key}`), ({ json }) => Number(json["waiters"]))
      const wait = (owner: string) =>
        Effect.flatMap(open(url, owner), (session) =>
          Effect.forkChild(acquire(url, key, owner, session, { waitMillis: 20_000 }))
        )
      const gone = yield* wait("gone")
      yield* waitUntil(
        "the first waits",
        Effect.map(waiters, (n) => n === 1)
      )
      const next = yield* wait("next")
      yield* waitUntil(
        "both wait",
        Effect.map(waiters, (n) => n === 2)
      )
      yield* Fiber.interrupt(gone)
      yield* waitUntil(
        "only the second waits",
        Effect.map(waiters, (n) => n === 1)
      )
      yield* send(url, path, { method: "DELETE", owner: "w1", token })
      const granted = yield* Fiber.join(next)
      assert.strictEqual(granted.status, 200)
      assert.strictEqual(granted.json["ownerId"], "next")
      assert.isTrue(Number(granted.json["waitedMillis"]) > 0)
      const late = yield* acquire(url, key, "w1", sessionId, { waitMillis: 100 })
      assert.deepStrictEqual([late.status, codeOf(late)], [409, "CONTENTION_EXCEEDED"])
      assert.isNumber(late.json["retryAfterMillis"])
    }).pipe(Effect.scoped)
  )

  it.live("shows operators tokens, waiters and sessions on the management port, and only there", () =>
    Effect.gen(function* () {
      const { managementUrl, url } = yield* startOver(SimLockStore.layer)
      const sessionId = yield* open(url, "w1")
      for (const name of ["a", "b", "c"]) yield* acquire(url, `list:${name}`, "w1", sessionId)
      yield* send(url, "/v1/locks/list:b/revoke", {
        method: "POST",
        owner: "cli",
        body: { operator: "ops", reason: "stuck for an hour" }
      })
      const page = yield* send(managementUrl, "/admin/locks?prefix=list:&limit=2")
      const items = page.json["items"] as ReadonlyArray<Readonly<Record<string, unknown>>>
      assert.deepStrictEqual(
        items.map((item) => [item["key"], item["held"]]),
        [
          ["list:a", true],
          ["list:b", false]
        ]
      )
      assert.match(String(items[0]?.["fencingToken"]), /^[1-9][0-9]*$/)
      assert.strictEqual(page.json["next"], "list:b")
      const rest = yield* send(managementUrl, "/admin/locks?prefix=list:&limit=2&after=list:b")
      assert.strictEqual((rest.json["items"] as ReadonlyArray<unknown>).length, 1)
      assert.isNull(rest.json["next"])
      const one = yield* send(managementUrl, "/admin/locks/list:b")
      assert.deepInclude(one.json["lastRevocation"], { operator: "ops", reason: "stuck for an hour" })
      const sessions = yield* send(managementUrl, "/admin/sessions")
      assert.strictEqual((sessions.json["items"] as ReadonlyArray<unknown>).length, 1)
      for (const bad of ["/admin/locks?limit=0", "/admin/locks?limit=501", "/admin/locks?limit=x", "/admin/locks/.x"]) {
        const answer = yield* send(managementUrl, bad)
        assert.deepStrictEqual([answer.status, codeOf(answer)], [400, "VALIDATION_FAILED"], bad)
      }
      const unseen = yield* send(managementUrl, "/admin/locks/never")
      assert.deepStrictEqual([unseen.status, codeOf(unseen)], [404, "LOCK_NOT_FOUND"])
      const write = yield* send(managementUrl, "/admin/locks", { method: "POST" })
      assert.deepStrictEqual([write.status, codeOf(write)], [405, "METHOD_NOT_ALLOWED"])
      for (const hidden of ["/admin/locks", "/admin/locks/list:a", "/admin/sessions"]) {
        const answer = yield* send(url, hidden)
        assert.deepStrictEqual([answer.status, codeOf(answer)], [404, "ROUTE_NOT_FOUND"])
      }
    }).pipe(Effect.scoped)
  )
})
