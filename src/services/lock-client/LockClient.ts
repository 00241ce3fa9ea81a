/**
 * Locks for a program: acquire with bounded patience, keep, say at once when lost, release whatever happens.
 *
 * What it promises is liveness and an early, typed end. It can not promise that nobody else acts: a process that is stopped
 * between `checkStillHeld` and its write wakes up in the middle of somebody else's grant. The token is what makes that
 * harmless: send `lock.token` with every request that the lock protects, and let the resource compare.
 *
 * - No grant, no side effect: without a definite grant `use` does not start. There is no switch for it.
 * - `withLock` fails with `LockLost` when the lock was lost before `use` came to its end, even if `use` then succeeded
 *   (it ran past its deadline, or could not be interrupted). A failure of `use` itself is passed on, lost or not:
 *   `FencedOut` and `RailAmbiguous` are not hidden behind `LockLost`.
 * - A loss after the end of `use` does not take its success away.
 * - The release starts strictly after `use` has ended, finalizers and uninterruptible regions included.
 * - Not re-entrant: asking for a key that this client holds is contention like any other.
 */
import { Cause, Context, Effect, Exit, Fiber, FiberSet, Layer, Random, type Scope } from "effect"
import { AcquireId, type LockKey, type OwnerId } from "../../core/lock/Lock.ts"
import { LockApi } from "../../core/lock/LockApi.ts"
import type { ContentionExceeded, LockLost, LockUnavailable } from "../../core/lock/LockErrors.ts"
import { type ClientSettings, defaults } from "../../core/Settings.ts"
import { type AcquireEnv, acquireHolding, type AcquireOptions } from "./Acquire.ts"
import { makeSessionKeeper } from "./ClientSession.ts"
import type { HeldLock, Holding } from "./HeldLock.ts"

export type { AcquireOptions } from "./Acquire.ts"
export type { HeldLock } from "./HeldLock.ts"

export interface LockClientOptions {
  readonly ownerId: OwnerId
  /** Default: those of `core/Settings.ts`. */
  readonly settings?: ClientSettings | undefined
  /** Default: 15 s. */
  readonly sessionTtlMillis?: number | undefined
  /** The lease of locks that name none. Default: 15 s. */
  readonly lockTtlMillis?: number | undefined
}

export class LockClient extends Context.Service<
  LockClient,
  {
    /** Runs `use` while the lock is held and interrupts it when the lock is lost. */
    readonly withLock: (
      key: LockKey,
      options?: AcquireOptions
    ) => <A, E, R>(
      use: (lock: HeldLock) => Effect.Effect<A, E, R>
    ) => Effect.Effect<A, E | LockLost | ContentionExceeded | LockUnavailable, R>
    /** Holds the lock until the scope closes. A loss interrupts nobody: check before each side effect, or race `lost`. */
    readonly acquire: (
      key: LockKey,
      options?: AcquireOptions
    ) => Effect.Effect<HeldLock, ContentionExceeded | LockUnavailable, Scope.Scope>
  }
>()("dlock/services/lock-client/LockClient") {}

/** 96 random bits. */
const newId: Effect.Effect<AcquireId> = Effect.map(Random.Random, (random) => {
  const bits48 = () => Math.floor(random.nextDoubleUnsafe() * 2 ** 48)
  return AcquireId.make(`${bits48().toString(16).padStart(12, "0")}${bits48().toString(16).padStart(12, "0")}`)
})

/** The body, in a fiber of its own so that a loss can interrupt it without interrupting its caller. */
const runBody = Effect.fnUntraced(function* <A, E, R>(
  holding: Holding,
  use: (lock: HeldLock) => Effect.Effect<A, E, R>,
  restore: <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
): Effect.fn.Return<A, E | LockLost, R> {
  let lossAtEnd: LockLost | undefined
  const body = yield* Effect.withFiber<A, E | LockLost, R>((fiber) => {
    holding.body = fiber
    return holding.loss === undefined ? use(holding) : Effect.fail(holding.loss)
  }).pipe(
    Effect.onExit(() => {
      holding.body = undefined
      // An event loop that was blocked past the deadline has not run the watch yet.
      return Effect.andThen(
        Effect.ignore(holding.checkStillHeld),
        Effect.sync(() => {
          lossAtEnd = holding.loss
        })
      )
    }),
    Effect.forkChild({ startImmediately: true })
  )
  const exit = yield* Effect.onInterrupt(restore(Fiber.await(body)), () => Fiber.interrupt(body))
  if (lossAtEnd !== undefined && (Exit.isSuccess(exit) || Cause.hasInterruptsOnly(exit.cause))) {
    return yield* lossAtEnd as LockLost
  }
  return yield* exit
})

/** One client: one owner, one session. Closed with its scope. */
export const make = Effect.fnUntraced(function* (options: LockClientOptions) {
  const api = yield* LockApi
  const { ownerId } = options
  const settings = options.settings ?? defaults.client
  const sessionTtlMillis = options.sessionTtlMillis ?? defaults.lock.sessionTtlMillis
  if (sessionTtlMillis <= settings.safetyMarginMillis) {
    return yield* Effect.die(
      new RangeError(
        `a session of ${sessionTtlMillis} ms has nothing left after a margin of ${settings.safetyMarginMillis} ms`
      )
    )
  }
  const fibers = yield* FiberSet.make<unknown, unknown>()
  const sessions = yield* makeSessionKeeper(api, { ownerId, settings, sessionTtlMillis, newId })
  const env: AcquireEnv = {
    api,
    ownerId,
    settings,
    sessions,
    newId,
    defaultTtlMillis: options.lockTtlMillis ?? defaults.lock.defaultTtlMillis,
    background: (effect) => FiberSet.run(fibers, effect)
  }

  return LockClient.of({
    withLock:
      (key, options = {}) =>
      (use) =>
        Effect.uninterruptibleMask((restore) =>
          Effect.flatMap(acquireHolding(env, key, options, restore), (holding) =>
            holding
              .attend(options.renew ?? true)
              .pipe(Effect.andThen(runBody(holding, use, restore)), Effect.ensuring(holding.end))
          )
        ),
    acquire: (key, options = {}) =>
      Effect.uninterruptibleMask((restore) =>
        Effect.tap(acquireHolding(env, key, options, restore), (holding) =>
          Effect.andThen(
            Effect.addFinalizer(() => holding.end),
            holding.attend(options.renew ?? false)
          )
        )
      )
  })
})

export const layer = (options: LockClientOptions): Layer.Layer<LockClient, never, LockApi> =>
  Layer.effect(LockClient, make(options))
