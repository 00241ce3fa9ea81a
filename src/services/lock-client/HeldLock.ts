/**
 * One grant in the hands of its holder, from the answer that brought it to the end of its release.
 *
 * A lock is lost once and for ever: by its own deadline (no server was asked), by the answer to a renew or release, or
 * with its session. Whoever notices first says so; from then on nothing revives it, not even a late good answer.
 */
import { Clock, type Context, Deferred, Duration, Effect, Fiber, Result } from "effect"
import { boundedBy } from "../../core/Bound.ts"
import type { FencingToken, LockGrant, LockKey, OwnerId } from "../../core/lock/Lock.ts"
import type { LockApi } from "../../core/lock/LockApi.ts"
import {
  type BackendError,
  backendUnavailable,
  LockLost,
  type LockLostReason,
  LockUnavailable
} from "../../core/lock/LockErrors.ts"
import * as Metrics from "../../core/Metrics.ts"
import { pauseAfter } from "../../core/Retry.ts"
import type { ClientSettings } from "../../core/Settings.ts"
import type { ClientSession, Dependent, SessionKeeper } from "./ClientSession.ts"
import { deadlineOf, extensionMillis, millisToNanos } from "./LocalDeadline.ts"

export interface HeldLock {
  readonly key: LockKey
  /** To be sent with every request that the lock protects. */
  readonly token: FencingToken
  /** The client's own end, monotonic nanoseconds, as of now: renewals and heartbeats move it on, nothing moves it back. */
  readonly deadline: bigint
  /**
   * To be run before every side effect. Fails from the moment the lock is lost, for ever. It narrows the window between
   * "I hold it" and the side effect and can not close it; the token closes it.
   */
  readonly checkStillHeld: Effect.Effect<void, LockLost>
  /** Waits for the loss of the lock. After a proper end of its scope it answers with the reason `released`. */
  readonly lost: Effect.Effect<LockLost>
  /** Asks for another full lease now. After `LockUnavailable` the deadline is what it was. */
  readonly renew: Effect.Effect<void, LockLost | LockUnavailable>
}

/** What the client's parts share. */
export interface ClientEnv {
  readonly api: Context.Service.Shape<typeof LockApi>
  readonly ownerId: OwnerId
  readonly settings: ClientSettings
  readonly sessions: SessionKeeper
  /** Runs something that outlives its caller, in the caller's context; it ends with the client. */
  readonly background: <A, E>(effect: Effect.Effect<A, E>) => Effect.Effect<Fiber.Fiber<A, E>>
}

export interface Grant {
  readonly answer: LockGrant
  readonly session: ClientSession
  /** The send of the request whose answer this is, plus what the server says it waited; monotonic nanoseconds. */
  readonly countedFrom: bigint
  /** When the holder must be done, whatever is renewed; monotonic nanoseconds. */
  readonly holdDeadline: bigint | undefined
  /** As asked for at acquire: renewals ask for the same. */
  readonly ttlMillis: number
  readonly onLockLost: ((lost: LockLost) => Effect.Effect<void>) | undefined
}

/** The closed set of the metric's tag. */
const lostMetric = (reason: LockLostReason) =>
  reason === "expired"
    ? Metrics.lockClient.lost.deadline
    : reason === "released"
      ? Metrics.lockClient.lost.superseded
      : Metrics.lockClient.lost[reason]

export class Holding implements HeldLock, Dependent {
  readonly key: LockKey
  readonly token: FencingToken
  readonly lost: Effect.Effect<LockLost>
  readonly checkStillHeld: Effect.Effect<void, LockLost>
  readonly renew: Effect.Effect<void, LockLost | LockUnavailable>
  /** Set once, by the first who notices. */
  loss: LockLost | undefined
  /** Interrupted at the loss. */
  body: Fiber.Fiber<unknown, unknown> | undefined
  private readonly env: ClientEnv
  private readonly grant: Grant
  private readonly signal = Deferred.makeUnsafe<LockLost>()
  private leaseDeadline: bigint
  private lastSentAt: bigint
  /** What that was granted; for a replayed grant what remained of it. */
  private leaseMillis: number
  /** `over`: released, or given up; nothing is told of it any more. */
  private phase: "held" | "releasing" | "over" = "held"
  private attendants: Array<Fiber.Fiber<unknown, unknown>> = []

  constructor(env: ClientEnv, grant: Grant) {
    this.env = env
    this.grant = grant
    this.key = grant.answer.key
    this.token = grant.answer.token
    this.leaseDeadline = deadlineOf(grant.countedFrom, grant.answer.ttlMillis - env.settings.safetyMarginMillis)
    this.lastSentAt = grant.countedFrom
    this.leaseMillis = grant.answer.ttlMillis
    this.lost = Deferred.await(this.signal)
    this.checkStillHeld = Effect.flatMap(Clock.monotonicTimeNanos, (now) => {
      if (this.loss !== undefined) return Effect.fail(this.loss)
      if (this.phase !== "held") return Effect.fail(this.lossFor("released"))
      if (now < this.deadline) return Effect.void
      return Effect.andThen(this.lose("deadline"), Effect.fail(this.lossFor("deadline")))
    })
    this.renew = Effect.catchTags(this.renewOnce(), {
      NotLeader: () => Effect.fail(new LockUnavailable({ key: this.key, cause: "renew: the backend has no leader" })),
      BackendUnavailable: (error) => Effect.fail(new LockUnavailable({ key: this.key, cause: `renew: ${error.cause}` }))
    })
  }

  get deadline(): bigint {
    const { holdDeadline, session } = this.grant
    const end = this.leaseDeadline < session.deadline ? this.leaseDeadline : session.deadline
    return holdDeadline !== undefined && holdDeadline < end ? holdDeadline : end
  }

  private lossFor(reason: LockLostReason): LockLost {
    return new LockLost({ key: this.key, token: this.token, reason })
  }

  private get annotations() {
    return {
      lockKey: this.key,
      fencingToken: String(this.token),
      sessionId: this.grant.session.sessionId,
      ownerId: this.env.ownerId
    }
  }

  /** Uninterruptible because the one who notices may be the body itself, which this very call interrupts. */
  lose(reason: LockLostReason): Effect.Effect<void> {
    return Effect.uninterruptible(
      Effect.suspend(() => {
        if (this.loss !== undefined || this.phase === "over") return Effect.void
        const loss = this.lossFor(reason)
        this.loss = loss
        Deferred.doneUnsafe(this.signal, Effect.succeed(loss))
        this.body?.interruptUnsafe()
        const told = Metrics.increment(lostMetric(reason)).pipe(
          Effect.andThen(Effect.annotateLogs(Effect.logWarning("the lock is lost"), { event: "lock_lost" })),
          Effect.andThen(this.grant.onLockLost?.(loss) ?? Effect.void),
          Effect.catchCause((cause) => Effect.logError("onLockLost failed", cause)),
          Effect.annotateLogs({ ...this.annotations, reason })
        )
        return Effect.asVoid(this.env.background(told))
      })
    )
  }

  /** Whoever holds the lock is attended by a watch and, if asked for, by renewals. */
  attend(renew: boolean): Effect.Effect<void> {
    return Effect.gen(() => this.attending(renew))
  }

  private *attending(renew: boolean) {
    this.attendants.push(yield* this.env.background(this.watch()))
    if (renew) this.attendants.push(yield* this.env.background(this.keepRenewed()))
  }

  private watch(): Effect.Effect<void> {
    return Effect.gen(() => this.watching())
  }

  private *watching() {
    while (this.loss === undefined && this.phase !== "over") {
      const left = this.deadline - (yield* Clock.monotonicTimeNanos)
      if (left <= 0n) return yield* this.lose("deadline")
      yield* Effect.sleep(Duration.nanos(left))
    }
  }

  /** A renewal every third of the lease while it makes a difference. */
  private keepRenewed(): Effect.Effect<void> {
    return Effect.gen(() => this.renewing())
  }

  private *renewing() {
    const { holdDeadline } = this.grant
    const margin = this.env.settings.safetyMarginMillis
    let failures = 0
    for (;;) {
      if (holdDeadline !== undefined && this.leaseDeadline >= holdDeadline) return
      const interval = millisToNanos(extensionMillis(this.leaseMillis, margin))
      const asleep = this.lastSentAt + interval - (yield* Clock.monotonicTimeNanos)
      if (asleep > 0n && failures === 0) yield* Effect.sleep(Duration.nanos(asleep))
      const answer = yield* Effect.result(this.renewOnce())
      if (Result.isSuccess(answer)) failures = 0
      else if (answer.failure._tag === "LockLost") return
      else {
        failures++
        yield* Effect.sleep(yield* pauseAfter(answer.failure, this.env.settings.retry, failures))
      }
    }
  }

  private renewOnce(): Effect.Effect<void, LockLost | BackendError> {
    return Effect.gen(() => this.renewingOnce())
  }

  private *renewingOnce() {
    yield* this.checkStillHeld
    const { api, ownerId, settings } = this.env
    const { key, token } = this
    const sentAt = yield* Clock.monotonicTimeNanos
    const answer = yield* api.renew({ key, ownerId, token, ttlMillis: this.grant.ttlMillis }).pipe(
      this.bounded("renew"),
      Effect.catchTag("LockLost", (lost) =>
        // Overtaken by the release it was sent before: that is no loss.
        Effect.andThen(
          this.phase === "held" ? this.lose(lost.reason) : Effect.void,
          Effect.suspend(() => Effect.fail(this.loss ?? lost))
        )
      )
    )
    // Lost while it was asked: a good answer does not bring it back, since the body has been told.
    if (this.loss !== undefined) return yield* this.loss
    if (sentAt > this.lastSentAt) {
      this.lastSentAt = sentAt
      this.leaseMillis = answer.ttlMillis
    }
    const deadline = deadlineOf(sentAt, answer.ttlMillis - settings.safetyMarginMillis)
    if (deadline > this.leaseDeadline) this.leaseDeadline = deadline
  }

  private bounded(operation: string) {
    const millis = this.env.settings.callTimeoutMillis
    return boundedBy(millis, () => backendUnavailable(operation, `no answer in ${millis} ms`))
  }

  /**
   * Ends it: no renewal from here on, then the release, for which the caller waits a bounded time. To be run
   * after the body has ended, whatever became of it.
   */
  readonly end: Effect.Effect<void> = Effect.uninterruptible(Effect.gen(() => this.ending()));

  private *ending() {
    if (this.phase !== "held") return
    this.phase = "releasing"
    const [watch, renewals] = this.attendants
    renewals?.interruptUnsafe()
    if (this.loss === undefined) {
      const release = yield* this.env.background(this.release)
      yield* Effect.exit(this.bounded("release")(Fiber.await(release)))
    } else if (this.loss.reason === "deadline") {
      // The server may keep it for another margin. One attempt that nobody waits for gives it to the next one sooner.
      yield* this.env.background(Effect.ignore(this.releaseOnce))
    }
    this.phase = "over"
    watch?.interruptUnsafe()
    Deferred.doneUnsafe(this.signal, Effect.succeed(this.lossFor("released")))
    this.env.sessions.leave(this.grant.session, this)
  }

  private readonly releaseOnce = Effect.suspend(() => releaseCall(this.env, this.key, this.token))

  /** Goes on after its caller stopped waiting. */
  private readonly release: Effect.Effect<void> = Effect.gen(() => this.releasing());

  private *releasing() {
    const margin = millisToNanos(this.env.settings.safetyMarginMillis)
    const ended = yield* releaseUntil(this.env, this.key, this.token, () => this.leaseDeadline + margin)
    if (ended === undefined) return
    yield* Effect.annotateLogs(Effect.logInfo("the lock was lost before its release"), {
      event: "lock_lost",
      ...this.annotations,
      reason: ended
    })
    yield* this.lose(ended)
  }
}

const releaseCall = (
  env: ClientEnv,
  key: LockKey,
  token: FencingToken
): Effect.Effect<void, LockLost | BackendError> => {
  const millis = env.settings.callTimeoutMillis
  return env.api
    .release({ key, ownerId: env.ownerId, token })
    .pipe(boundedBy(millis, () => backendUnavailable("release", `no answer in ${millis} ms`)))
}

/**
 * Releases until there is a definite answer, or until the lease has run out by itself. `LockLost` is benign: the grant is
 * gone, which is what was wanted. Answers how it ended if something else than this release ended it.
 */
export const releaseUntil = Effect.fnUntraced(function* (
  env: ClientEnv,
  key: LockKey,
  token: FencingToken,
  lapsedAt: () => bigint
): Effect.fn.Return<LockLostReason | undefined> {
  for (let attempt = 1; ; attempt++) {
    const answer = yield* Effect.result(releaseCall(env, key, token))
    if (Result.isSuccess(answer)) return undefined
    const failure = answer.failure
    if (failure._tag === "LockLost") {
      // After a lost answer it was our own release that ended it.
      const own = failure.reason === "released" || (attempt > 1 && failure.reason === "superseded")
      return own ? undefined : failure.reason
    }
    if ((yield* Clock.monotonicTimeNanos) >= lapsedAt()) return undefined
    yield* Effect.sleep(yield* pauseAfter(failure, env.settings.retry, attempt))
  }
})
