/**
 * The lock client for programs that are not written in Effect: `import { connect } from "dlock/promise"`.
 *
 *     const client = connect({ url: "http://127.0.0.1:8080", ownerId: "billing-7" })
 *     await client.withLock("payout:acct-1", async (lock, signal) => {
 *       lock.checkStillHeld()
 *       await fetch(url, { method: "POST", headers: { "x-fencing-token": lock.token }, signal })
 *     })
 *     await client.close()
 *
 * The one place of the system that speaks in promises. A promise can not be interrupted: at a loss the signal is aborted,
 * and the lock is released when the promise has settled, not before.
 */
import * as NodeHttpClient from "@effect/platform-node/NodeHttpClient"
import { Cause, Clock, Context, Effect, Exit, Layer, ManagedRuntime, Option, References, Schema } from "effect"
import { LockKey, OwnerId } from "../../core/lock/Lock.ts"
import { type ContentionExceeded, LockLost, type LockLostReason, LockUnavailable } from "../../core/lock/LockErrors.ts"
import { type ClientSettings, defaults, type RetrySettings } from "../../core/Settings.ts"
import * as HttpLockApi from "../api/HttpLockApi.ts"
import { type HeldLock, layer as lockClientLayer, LockClient } from "./LockClient.ts"

export interface ConnectOptions {
  /** Of a lock-server, `http://host:port`. */
  readonly url: string
  /** Who holds, 1..64 characters of `A-Za-z0-9._:@-`. One per process: two processes with one name are two holders. */
  readonly ownerId: string
  /** Default: 15000. */
  readonly sessionTtlMillis?: number
  /** The lease of a lock when `withLock` names none. Default: 15000. */
  readonly lockTtlMillis?: number
  /** What is given up of every lease so that a loss is told before anybody else can be granted the lock. Default: 2000. */
  readonly safetyMarginMillis?: number
  /** Bound of one call. Default: 3000. */
  readonly callTimeoutMillis?: number
  /** Default: pauses of 0..50 ms doubling to at most 1 s, 5 tries. */
  readonly retry?: Partial<RetrySettings>
}

export interface LockOptions {
  readonly ttlMillis?: number
  /** How long to wait in the server's queue while the key is held. Default: 0, which means a few tries with pauses. */
  readonly waitMillis?: number
  /** Bound of the whole acquire. Default: `waitMillis` and the time of three calls. */
  readonly timeoutMillis?: number
  /** Renew while the body runs. Default: true. */
  readonly renew?: boolean
  /** The lock is given up so long after it was granted, however well it renews. */
  readonly maxHoldMillis?: number
  /** Gives up waiting; once the body runs it aborts the body's signal. */
  readonly signal?: AbortSignal
}

export interface Lock {
  readonly key: string
  /** Decimal digits, as every header and JSON body wants it: an int64 does not survive a JavaScript number. */
  readonly token: string
  /** To be called before every side effect. Throws `LockLostError` from the moment the lock is lost, for ever. */
  readonly checkStillHeld: () => void
  /** Of the client's own deadline. 0 once lost. */
  readonly remainingMillis: () => number
  /** Asks for another full lease now. */
  readonly renew: () => Promise<void>
}

export type Use<A> = (lock: Lock, signal: AbortSignal) => Promise<A> | A

export interface Client {
  readonly withLock: {
    <A>(key: string, use: Use<A>): Promise<A>
    <A>(key: string, options: LockOptions, use: Use<A>): Promise<A>
  }
  /**
   * Aborts what still runs under a lock (`LockLostError`, `session`), waits a bounded time for it to end and gives
   * everything back. Until then timers keep the process alive.
   */
  readonly close: () => Promise<void>
  readonly [Symbol.asyncDispose]: () => Promise<void>
}

/** What the client fails with by itself. Anything that the body throws is passed on as it is. */
export abstract class DlockError extends Error {
  /** As on the wire. */
  abstract readonly code: "LOCK_LOST" | "CONTENTION_EXCEEDED" | "LOCK_UNAVAILABLE"
  /** Whether the same call may be repeated: true only if the body has not run. */
  abstract readonly retrySafe: boolean
  readonly key: string
  constructor(key: string, message: string) {
    super(message)
    this.key = key
  }
}

/** The lock was lost while the body ran. Terminal: what it protects may be in other hands. */
export class LockLostError extends DlockError {
  override readonly name = "LockLostError"
  readonly code = "LOCK_LOST"
  readonly retrySafe = false
  readonly token: string
  readonly reason: LockLostReason
  constructor(lost: LockLost) {
    super(lost.key, `lock ${lost.key} was lost: ${lost.reason}`)
    this.token = String(lost.token)
    this.reason = lost.reason
  }
}

/** Others held the lock all the time. The body has not run. */
export class ContentionExceededError extends DlockError {
  override readonly name = "ContentionExceededError"
  readonly code = "CONTENTION_EXCEEDED"
  readonly retrySafe = true
  readonly attempts: number
  readonly waitedMillis: number
  readonly retryAfterMillis: number
  constructor(error: ContentionExceeded) {
    super(error.key, `lock ${error.key} stayed held by others for ${error.waitedMillis} ms`)
    this.attempts = error.attempts
    this.waitedMillis = error.waitedMillis
    this.retryAfterMillis = error.retryAfterMillis
  }
}

/** The lock service gave no definite answer in time. The body has not run. */
export class LockUnavailableError extends DlockError {
  override readonly name = "LockUnavailableError"
  readonly code = "LOCK_UNAVAILABLE"
  readonly retrySafe = true
  constructor(error: LockUnavailable) {
    super(error.key, `no grant of ${error.key}: ${error.cause}`)
  }
}

/** What the body threw, on its way through: it comes out as it went in. */
class Thrown {
  readonly _tag = "Thrown"
  readonly error: unknown
  constructor(error: unknown) {
    this.error = error
  }
}

type Failure = Thrown | LockLost | ContentionExceeded | LockUnavailable

const errorOf = (failure: Failure): unknown => {
  switch (failure._tag) {
    case "Thrown":
      return failure.error
    case "LockLost":
      return new LockLostError(failure)
    case "ContentionExceeded":
      return new ContentionExceededError(failure)
    case "LockUnavailable":
      return new LockUnavailableError(failure)
  }
}

/** `fetch` and its like reject with the signal's reason or, if they make their own error, with an `AbortError`. */
const isAbort = (error: unknown, signal: AbortSignal): boolean =>
  signal.aborted && (error === signal.reason || (error instanceof Error && error.name === "AbortError"))

const decode = <A>(schema: Schema.Codec<A, string>, name: string, value: string): A => {
  const exit = Schema.decodeUnknownExit(schema)(value)
  if (Exit.isSuccess(exit)) return exit.value
  throw new TypeError(
    `${name}: ${Cause.squash(exit.cause) instanceof Error ? String(Cause.squash(exit.cause)) : value}`
  )
}

const settled = <A>(key: string, running: Promise<Exit.Exit<A, Failure>>, signal?: AbortSignal): Promise<A> =>
  running.then((exit) => {
    if (Exit.isSuccess(exit)) return exit.value
    const failure = Cause.findErrorOption(exit.cause)
    if (Option.isSome(failure)) throw errorOf(failure.value)
    if (!Cause.hasInterruptsOnly(exit.cause)) throw Cause.squash(exit.cause)
    throw signal?.aborted === true ? signal.reason : closed(key)
  })

const closed = (key: string): LockUnavailableError =>
  new LockUnavailableError(new LockUnavailable({ key: LockKey.make(key), cause: "the client is closed" }))

const settingsOf = (options: ConnectOptions): ClientSettings => ({
  ...defaults.client,
  safetyMarginMillis: options.safetyMarginMillis ?? defaults.client.safetyMarginMillis,
  callTimeoutMillis: options.callTimeoutMillis ?? defaults.client.callTimeoutMillis,
  retry: { ...defaults.client.retry, ...options.retry }
})

/** Opens nothing yet: the session begins with the first lock. Throws when `url` or `ownerId` is none. */
export const connect = (options: ConnectOptions): Client => {
  const ownerId = decode(OwnerId, "ownerId", options.ownerId)
  if (!URL.canParse(options.url)) throw new TypeError(`url: ${options.url} is no URL`)
  const settings = settingsOf(options)
  const runtime = ManagedRuntime.make(
    lockClientLayer({
      ownerId,
      settings,
      sessionTtlMillis: options.sessionTtlMillis,
      lockTtlMillis: options.lockTtlMillis
    }).pipe(
      Layer.provide(HttpLockApi.layer({ url: options.url, callTimeoutMillis: settings.callTimeoutMillis })),
      Layer.provide(NodeHttpClient.layerUndici),
      // A library does not write to the console of its host; everything it has to say is in its errors.
      Layer.provideMerge(Layer.succeed(References.MinimumLogLevel, "None"))
    )
  )

  let isClosed = false

  // Not `runtime.runPromise`: its disposal would wait for these fibers first, which wait for bodies that only the end of
  // the client tells to stop.
  const run = <A, E>(program: Effect.Effect<A, E, LockClient>, signal?: AbortSignal): Promise<Exit.Exit<A, E>> =>
    runtime
      .context()
      .then((context) => Effect.runPromiseExitWith(context)(program, signal === undefined ? {} : { signal }))

  const held = (lock: HeldLock, context: Context.Context<never>, signal: AbortSignal, isOver: () => boolean): Lock => {
    const clock = Context.get(context, Clock.Clock)
    const isLost = () => signal.reason instanceof LockLostError
    const remainingNanos = () => (isLost() || isOver() ? 0n : lock.deadline - clock.monotonicTimeNanosUnsafe())
    return {
      key: lock.key,
      token: String(lock.token),
      remainingMillis: () => Math.max(0, Number(remainingNanos() / 1_000_000n)),
      checkStillHeld: () => {
        if (remainingNanos() > 0n) return
        if (signal.reason instanceof LockLostError) throw signal.reason
        // The event loop was blocked past the deadline: the client itself has to be told.
        Effect.runForkWith(context)(Effect.ignore(lock.checkStillHeld))
        const reason = isOver() ? "released" : "deadline"
        throw new LockLostError(new LockLost({ key: lock.key, token: lock.token, reason }))
      },
      renew: () => settled(lock.key, run(lock.renew))
    }
  }

  /** Uninterruptible, since a promise is: at a loss its signal is aborted, and its end is waited for. */
  const runBody = <A>(lock: HeldLock, controller: AbortController, outer: AbortSignal | undefined, use: Use<A>) =>
    Effect.flatMap(Effect.context(), (context) => {
      let over = false
      const abort = () => controller.abort(outer?.reason)
      if (outer?.aborted === true) abort()
      outer?.addEventListener("abort", abort, { once: true })
      return Effect.tryPromise({
        try: () =>
          Promise.resolve(
            use(
              held(lock, context, controller.signal, () => over),
              controller.signal
            )
          ),
        catch: (error) => new Thrown(isAbort(error, controller.signal) ? controller.signal.reason : error)
      }).pipe(
        Effect.ensuring(
          Effect.sync(() => {
            over = true
            outer?.removeEventListener("abort", abort)
          })
        ),
        Effect.uninterruptible
      )
    })

  const withLock = <A>(key: string, { signal, ...options }: LockOptions, use: Use<A>): Promise<A> => {
    const lockKey = decode(LockKey, "key", key)
    if (isClosed) return Promise.reject(closed(key))
    const controller = new AbortController()
    const onLockLost = (lost: LockLost) => Effect.sync(() => controller.abort(new LockLostError(lost)))
    const program = Effect.flatMap(LockClient, (locks) =>
      locks.withLock(lockKey, { ...options, onLockLost })((lock) => runBody(lock, controller, signal, use))
    )
    return settled(key, run(program, signal), signal)
  }

  const close = (): Promise<void> => {
    isClosed = true
    return runtime.dispose()
  }

  return {
    withLock: <A>(key: string, second: LockOptions | Use<A>, third?: Use<A>): Promise<A> => {
      if (typeof second === "function") return withLock(key, {}, second)
      if (third === undefined) throw new TypeError("withLock needs a function to run")
      return withLock(key, second, third)
    },
    close,
    [Symbol.asyncDispose]: close
  }
}
