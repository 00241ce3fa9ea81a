/**
 * From "I want the lock" to a grant in hand or a definite no, within a bound, leaving no grant behind that nobody knows of.
 *
 * - Held by another: pauses with full jitter, a few tries, then `ContentionExceeded`.
 * - No answer, or one that says that the fate is unknown: the same request again under the same id, which answers the grant
 *   that the first one may have got. Never a new id, which would find the key held by ourselves.
 * - Given up or interrupted while a fate is unknown: `settle` goes on in the background and gives back what comes.
 */
import { Clock, Effect, Exit, Result } from "effect"
import { boundedBy } from "../../core/Bound.ts"
import type { AcquireId, LockKey } from "../../core/lock/Lock.ts"
import {
  type BackendError,
  backendUnavailable,
  ContentionExceeded,
  type LockLost,
  LockUnavailable
} from "../../core/lock/LockErrors.ts"
import { pauseAfter, type RetrySafe } from "../../core/Retry.ts"
import { limits } from "../../core/Settings.ts"
import type { ClientSession } from "./ClientSession.ts"
import { type ClientEnv, Holding, releaseUntil } from "./HeldLock.ts"
import { millisToNanos } from "./LocalDeadline.ts"

export interface AcquireOptions {
  /** The lease: how long the server keeps the lock for a client that says nothing more. Default: the client's. */
  readonly ttlMillis?: number | undefined
  /** How long to wait in the server's queue while the key is held. Default: 0, which means pauses and further tries. */
  readonly waitMillis?: number | undefined
  /** Bound of the whole acquire, outages included. Default: `waitMillis` and the time of three calls. */
  readonly timeoutMillis?: number | undefined
  /** Renew at a third of the lease. Default: true in `withLock`, false in `acquire`. */
  readonly renew?: boolean | undefined
  /** The lock is given up (`LockLost`, `deadline`) so long after it was granted, however well it renews. */
  readonly maxHoldMillis?: number | undefined
  /**
   * Run once, in a fiber of its own, when the lock is lost before its release is confirmed: for work that can not be
   * interrupted. Nobody waits for it.
   */
  readonly onLockLost?: ((lost: LockLost) => Effect.Effect<void>) | undefined
}

type Restore = <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>

interface AcquireCall {
  readonly key: LockKey
  readonly session: ClientSession
  readonly acquireId: AcquireId
  readonly ttlMillis: number
}

export interface AcquireEnv extends ClientEnv {
  readonly newId: Effect.Effect<AcquireId>
  readonly defaultTtlMillis: number
}

/** What is wrong with the caller's numbers: a bug of the program, found before anything is sent. */
const misuse = (options: AcquireOptions, ttlMillis: number, marginMillis: number): string | undefined => {
  const { max, min } = limits.lockTtlMillis
  const positive = (name: string, value: number | undefined) =>
    value === undefined || value > 0 ? undefined : `${name} must be above 0, not ${value}`
  if (!Number.isInteger(ttlMillis) || ttlMillis < min || ttlMillis > max) {
    return `ttlMillis must be an integer of ${min}..${max}, not ${ttlMillis}`
  }
  if (ttlMillis <= marginMillis) {
    return `a lease of ${ttlMillis} ms leaves nothing to work in after the safety margin of ${marginMillis} ms`
  }
  const wait = options.waitMillis ?? 0
  if (!Number.isInteger(wait) || wait < 0) return `waitMillis must be an integer of at least 0, not ${wait}`
  return positive("timeoutMillis", options.timeoutMillis) ?? positive("maxHoldMillis", options.maxHoldMillis)
}

const causeOf = (failure: BackendError): string =>
  failure._tag === "NotLeader" ? "the backend has no leader" : failure.cause

const send = (env: ClientEnv, call: AcquireCall, waitMillis: number, boundMillis: number) =>
  env.api
    .acquire({
      key: call.key,
      ownerId: env.ownerId,
      sessionId: call.session.sessionId,
      acquireId: call.acquireId,
      ttlMillis: call.ttlMillis,
      waitMillis
    })
    .pipe(boundedBy(boundMillis, () => backendUnavailable("acquire", `no answer in ${Math.round(boundMillis)} ms`)))

/**
 * Repeats an acquire of unknown fate under its id and gives back what comes. If the server can not be asked for as long as
 * the lease, the lease has ended it: heartbeats keep the session, not its grants.
 */
const settle = Effect.fnUntraced(function* (env: ClientEnv, call: AcquireCall): Effect.fn.Return<void> {
  const until = (yield* Clock.monotonicTimeNanos) + millisToNanos(call.ttlMillis)
  for (let attempt = 1; !call.session.dead; attempt++) {
    const answer = yield* Effect.result(send(env, call, 0, env.settings.callTimeoutMillis))
    if (Result.isSuccess(answer)) {
      yield* releaseUntil(env, call.key, answer.success.token, () => until)
      return
    }
    const failure = answer.failure
    if (failure._tag !== "BackendUnavailable" && failure._tag !== "NotLeader") return
    if ((yield* Clock.monotonicTimeNanos) >= until) return
    yield* Effect.sleep(yield* pauseAfter(failure, env.settings.retry, attempt))
  }
})

/**
 * To be run uninterruptibly, so that no grant gets lost between its answer and its holder; `restore` is for the waits.
 */
export const acquireHolding = (
  env: AcquireEnv,
  key: LockKey,
  options: AcquireOptions,
  restore: Restore
): Effect.Effect<Holding, ContentionExceeded | LockUnavailable> =>
  Effect.suspend(() => {
    const attempt: Attempt = {
      env,
      key,
      options,
      restore,
      unsettled: undefined,
      startedAt: 0n,
      timeoutMillis: 0,
      outages: 0
    }
    return Effect.onExit(untilHeld(attempt), (exit) => {
      const { unsettled } = attempt
      return Exit.isFailure(exit) && unsettled !== undefined
        ? Effect.asVoid(env.background(settle(env, unsettled)))
        : Effect.void
    })
  })

interface Attempt {
  readonly env: AcquireEnv
  readonly key: LockKey
  readonly options: AcquireOptions
  readonly restore: Restore
  /** Sent, and not definitely answered. */
  unsettled: AcquireCall | undefined
  startedAt: bigint
  timeoutMillis: number
  outages: number
}

const elapsedOf = ({ startedAt }: Attempt): Effect.Effect<number> =>
  Effect.map(Clock.monotonicTimeNanos, (now) => Number(now - startedAt) / 1e6)

/** Whether there is time for another try. */
const pause = Effect.fnUntraced(function* (attempt: Attempt, failure: RetrySafe, nth: number) {
  const millis = yield* pauseAfter(failure, attempt.env.settings.retry, nth)
  if ((yield* elapsedOf(attempt)) + millis >= attempt.timeoutMillis) return false
  yield* attempt.restore(Effect.sleep(millis))
  return true
})

const again = Effect.fnUntraced(function* (attempt: Attempt, failure: BackendError, while_: string) {
  if (yield* pause(attempt, failure, ++attempt.outages)) return
  return yield* new LockUnavailable({ key: attempt.key, cause: `${while_}: ${causeOf(failure)}` })
})

const untilHeld = Effect.fnUntraced(function* (
  attempt: Attempt
): Effect.fn.Return<Holding, ContentionExceeded | LockUnavailable> {
  const { env, key, options, restore } = attempt
  const { sessions, settings } = env
  const ttlMillis = options.ttlMillis ?? env.defaultTtlMillis
  const problem = misuse(options, ttlMillis, settings.safetyMarginMillis)
  if (problem !== undefined) return yield* Effect.die(new RangeError(`lock ${key}: ${problem}`))
  const waitMillis = options.waitMillis ?? 0
  const timeoutMillis = options.timeoutMillis ?? waitMillis + 3 * settings.callTimeoutMillis
  attempt.timeoutMillis = timeoutMillis
  attempt.startedAt = yield* Clock.monotonicTimeNanos
  const elapsed = elapsedOf(attempt)
  let call: AcquireCall | undefined
  let contended = 0

  for (;;) {
    if (sessions.isClosed()) return yield* new LockUnavailable({ key, cause: "the lock client is closed" })
    const opened = yield* restore(
      Effect.result(
        boundedBy(Math.max(0, timeoutMillis - (yield* elapsed)), () =>
          backendUnavailable("openSession", "no session in time")
        )(sessions.obtain)
      )
    )
    if (Result.isFailure(opened)) {
      yield* again(attempt, opened.failure, "openSession")
      continue
    }
    const session = opened.success
    // An id means something only under its session.
    if (call?.session !== session) call = { key, session, ttlMillis, acquireId: yield* env.newId }

    attempt.unsettled = call
    const sentAt = yield* Clock.monotonicTimeNanos
    const used = yield* elapsed
    const wait = Math.floor(Math.max(0, Math.min(waitMillis - used, limits.waitMillis.max)))
    const bound = Math.max(1, Math.min(wait + settings.callTimeoutMillis, timeoutMillis - used))
    const answer = yield* restore(Effect.result(send(env, call, wait, bound)))
    if (Result.isSuccess(answer)) {
      const grant = answer.success
      attempt.unsettled = undefined
      const now = yield* Clock.monotonicTimeNanos
      // The wait was between send and answer, whatever the server says.
      const waitedMillis = Math.min(grant.waitedMillis, Number(now - sentAt) / 1e6)
      const countedFrom = sentAt + millisToNanos(waitedMillis)
      const { maxHoldMillis, onLockLost } = options
      const holding = new Holding(env, {
        answer: grant,
        session,
        countedFrom,
        holdDeadline: maxHoldMillis === undefined ? undefined : countedFrom + millisToNanos(maxHoldMillis),
        ttlMillis,
        onLockLost
      })
      if (now < holding.deadline && sessions.join(session, holding)) return holding
      const until = now + millisToNanos(grant.ttlMillis)
      yield* env.background(releaseUntil(env, key, grant.token, () => until))
      call = undefined
      yield* again(attempt, backendUnavailable("acquire", "the grant arrived too late to be used"), "acquire")
      continue
    }

    const failure = answer.failure
    switch (failure._tag) {
      case "LockContended":
      case "ContentionExceeded": {
        attempt.unsettled = undefined
        contended++
        // A server waits at most so long in one request; the caller may have asked for more.
        const more =
          failure._tag === "LockContended"
            ? contended < settings.retry.attempts
            : (yield* elapsed) < Math.min(waitMillis, timeoutMillis)
        if (more && (yield* pause(attempt, failure, contended))) break
        const { retryAfterMillis } = failure
        const waitedMillis = Math.round(yield* elapsed)
        return yield* new ContentionExceeded({ key, attempts: contended, waitedMillis, retryAfterMillis })
      }
      case "SessionUnknown":
      case "SessionExpired": {
        attempt.unsettled = undefined
        call = undefined
        yield* sessions.died(session)
        yield* again(attempt, backendUnavailable("acquire", "the session is dead"), "acquire")
        break
      }
      case "LockLost": {
        // An earlier try got the lock, and it ended before anybody heard of it.
        attempt.unsettled = undefined
        call = undefined
        yield* again(attempt, backendUnavailable("acquire", "the grant ended before it was answered"), "acquire")
        break
      }
      default:
        yield* again(attempt, failure, "acquire")
    }
  }
})
