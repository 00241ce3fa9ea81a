import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { afterEach, beforeEach } from "vitest"
import { LockKey, OwnerId } from "../../../src/core/lock/Lock.ts"
import {
  type Client,
  connect,
  ContentionExceededError,
  DlockError,
  LockLostError,
  LockUnavailableError
} from "../../../src/services/lock-client/PromiseClient.ts"
import { type Running, start } from "./lockHttpServer.ts"

const key = "payout:acct-1"
const rejection = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => assert.fail("did not reject"),
    (error: unknown) => error
  )

let server: Running
let client: Client

beforeEach(async () => {
  server = await start()
  client = connect({
    url: server.url,
    ownerId: "billing-7",
    sessionTtlMillis: 2_000,
    lockTtlMillis: 1_500,
    safetyMarginMillis: 500,
    callTimeoutMillis: 400
  })
})
afterEach(async () => {
  await client.close()
  await server.stop()
})

const heldByOther = () =>
  Effect.runPromise(
    Effect.gen(function* () {
      const ownerId = OwnerId.make("other")
      const session = yield* server.direct.openSession({ ownerId, ttlMillis: 60_000 })
      return yield* server.direct.acquire({ key: LockKey.make(key), ownerId, sessionId: session.sessionId })
    })
  )
const isHeld = async () => {
  const info = await Effect.runPromise(server.direct.inspect(LockKey.make(key)))
  return info.held
}

describe("the promise client", () => {
  it("runs the body under the lock and gives it back", async () => {
    const seen = await client.withLock(key, async (lock, signal) => {
      lock.checkStillHeld()
      assert.isFalse(signal.aborted)
      assert.isTrue(await isHeld())
      assert.isAbove(lock.remainingMillis(), 0)
      await lock.renew()
      return { key: lock.key, token: lock.token }
    })
    assert.strictEqual(seen.key, key)
    assert.match(seen.token, /^[1-9][0-9]*$/u)
    assert.isFalse(await isHeld())
  })

  it("holds on far beyond the lease, by renewing", async () => {
    const done = await client.withLock(key, async (lock) => {
      await new Promise((resolve) => setTimeout(resolve, 2_500))
      lock.checkStillHeld()
      return "done"
    })
    assert.strictEqual(done, "done")
  })

  it("aborts the signal at a loss, waits for the body and rejects with LockLostError", async () => {
    let bodyEnded = false
    const error = await rejection(
      client.withLock(key, async (lock, signal) => {
        server.fallSilent()
        await new Promise((resolve) => signal.addEventListener("abort", resolve))
        assert.instanceOf(signal.reason, LockLostError)
        assert.throws(() => lock.checkStillHeld(), LockLostError)
        assert.strictEqual(lock.remainingMillis(), 0)
        await new Promise((resolve) => setTimeout(resolve, 50))
        bodyEnded = true
      })
    )
    assert.isTrue(bodyEnded)
    assert.instanceOf(error, LockLostError)
    assert.isTrue(error instanceof DlockError)
    assert.strictEqual(error.code, "LOCK_LOST")
    assert.isFalse(error.retrySafe)
    assert.strictEqual(error.reason, "deadline")
    assert.match(error.token, /^[1-9][0-9]*$/u)
  })

  it("knows a lost lock without a turn of the event loop (T05)", async () => {
    const error = await rejection(
      client.withLock(key, (lock) => {
        const until = performance.now() + 1_500
        while (performance.now() < until);
        lock.checkStillHeld()
      })
    )
    assert.instanceOf(error, LockLostError)
  })

  it("passes on what the body throws, as it is, and gives the lock back", async () => {
    const own = new TypeError("mine")
    assert.strictEqual(
      await rejection(
        client.withLock(key, () => {
          throw own
        })
      ),
      own
    )
    assert.strictEqual(await rejection(client.withLock(key, () => Promise.reject(own))), own)
    assert.isFalse(await isHeld())
  })

  it("rejects with ContentionExceededError when others hold it", async () => {
    await heldByOther()
    const error = await rejection(client.withLock(key, { waitMillis: 200 }, () => assert.fail("no grant, no body")))
    assert.instanceOf(error, ContentionExceededError)
    assert.strictEqual(error.code, "CONTENTION_EXCEEDED")
    assert.isTrue(error.retrySafe)
    assert.isAbove(error.retryAfterMillis, 0)
  })

  it("rejects with LockUnavailableError when nobody answers", async () => {
    server.fallSilent()
    const error = await rejection(client.withLock(key, () => assert.fail("no grant, no body")))
    assert.instanceOf(error, LockUnavailableError)
    assert.isTrue(error.retrySafe)
  })

  it("stops waiting when the caller's signal is aborted, and leaves no grant behind", async () => {
    const other = await heldByOther()
    const controller = new AbortController()
    const waiting = rejection(
      client.withLock(key, { waitMillis: 20_000, signal: controller.signal }, () => assert.fail("not any more"))
    )
    setTimeout(() => controller.abort(new Error("enough")), 300)
    assert.strictEqual(String(await waiting), "Error: enough")
    await Effect.runPromise(
      server.direct.release({ key: LockKey.make(key), ownerId: OwnerId.make("other"), token: other.token })
    )
    await new Promise((resolve) => setTimeout(resolve, 300))
    assert.isFalse(await isHeld())
  })

  it("aborts the body's signal when the caller's is, and gives the lock back after the body", async () => {
    const controller = new AbortController()
    const error = await rejection(
      client.withLock(key, { signal: controller.signal }, async (lock, signal) => {
        setTimeout(() => controller.abort(new Error("enough")), 50)
        await new Promise((resolve) => signal.addEventListener("abort", resolve))
        lock.checkStillHeld()
        assert.isTrue(await isHeld())
        signal.throwIfAborted()
      })
    )
    assert.strictEqual(String(error), "Error: enough")
    assert.isFalse(await isHeld())
  })

  it("closes by aborting what still runs and freeing everything", async () => {
    const error = rejection(
      client.withLock(
        key,
        (_, signal) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)))
      )
    )
    await new Promise((resolve) => setTimeout(resolve, 300))
    await client.close()
    assert.instanceOf(await error, LockLostError)
    assert.isFalse(await isHeld())
    assert.isTrue(server.requests.some((line) => line.startsWith("DELETE /v1/sessions/")))
    assert.instanceOf(await rejection(client.withLock(key, () => "no")), LockUnavailableError)
  })

  it("closes in bounded time over a body that does not heed its signal, whose lock then lapses", async () => {
    let finish = () => {}
    let running: Promise<unknown> | undefined
    await new Promise<void>((started) => {
      running = rejection(
        client.withLock(key, () => {
          started()
          return new Promise<void>((resolve) => (finish = resolve))
        })
      )
    })
    const start = performance.now()
    await client.close()
    assert.isBelow(performance.now() - start, 1_500)
    assert.isFalse(server.requests.some((line) => line.startsWith("DELETE")))
    finish()
    assert.instanceOf(await running, LockLostError)
  })

  it("tells a wrong use at once", async () => {
    assert.throws(() => connect({ url: "nowhere", ownerId: "a" }), TypeError)
    assert.throws(() => connect({ url: server.url, ownerId: "two words" }), TypeError)
    assert.throws(() => void client.withLock("no spaces", () => 1), TypeError)
    assert.throws(() => void client.withLock(key, {}, undefined as never), TypeError)
    assert.instanceOf(await rejection(client.withLock(key, { ttlMillis: 5 }, () => 1)), RangeError)
    assert.strictEqual(server.requests.length, 0)
  })
})
