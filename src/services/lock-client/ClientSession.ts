/**
 * The client's one session: opened at the first acquire, kept by a heartbeat fiber, replaced for later acquires once it
 * died. Every lock under a dead session is lost with it.
 *
 * A heartbeat keeps the session and nothing else: grants live on their own leases, so one that nobody was told of ends by
 * itself while the session goes on.
 */
import { Clock, type Context, Duration, Effect, Fiber, FiberSet, Latch, Result, type Scope } from "effect"
import { boundedBy } from "../../core/Bound.ts"
import type { AcquireId, OwnerId, SessionId } from "../../core/lock/Lock.ts"
import type { LockApi } from "../../core/lock/LockApi.ts"
import { type BackendError, backendUnavailable, type LockLostReason } from "../../core/lock/LockErrors.ts"
import * as Metrics from "../../core/Metrics.ts"
import { pauseAfter } from "../../core/Retry.ts"
import { type ClientSettings, heartbeatIntervalOf } from "../../core/Settings.ts"
import { deadlineOf, extensionMillis, millisToNanos } from "./LocalDeadline.ts"

/** What ends with the session: a lock that is held under it. */
export interface Dependent {
  readonly lose: (reason: LockLostReason) => Effect.Effect<void>
}

export interface ClientSession {
  readonly sessionId: SessionId
  /** The client's own end of the session, monotonic nanoseconds. Never moves back. */
  deadline: bigint
  dead: boolean
  readonly dependents: Set<Dependent>
  /** Open while nothing depends on the session. */
  readonly idle: Latch.Latch
}

export interface SessionOptions {
  readonly ownerId: OwnerId
  readonly settings: ClientSettings
  readonly sessionTtlMillis: number
  readonly newId: Effect.Effect<AcquireId>
}

export interface SessionKeeper {
  /** The live session, opened if there is none. Concurrent callers open one and the same. */
  readonly obtain: Effect.Effect<ClientSession, BackendError>
  /** Once the store has said that the session is dead. */
  readonly died: (session: ClientSession) => Effect.Effect<void>
  /** False when the session ended meanwhile: then the lock is not held. */
  readonly join: (session: ClientSession, dependent: Dependent) => boolean
  readonly leave: (session: ClientSession, dependent: Dependent) => void
  readonly isClosed: () => boolean
}

type Run = <A>(effect: Effect.Effect<A, BackendError>) => Fiber.Fiber<A, BackendError>

/** Closed with its scope: what it keeps alive is lost first, then the session is closed, so that its keys are free. */
export const makeSessionKeeper = Effect.fnUntraced(function* (
  api: Context.Service.Shape<typeof LockApi>,
  options: SessionOptions
): Effect.fn.Return<SessionKeeper, never, Scope.Scope> {
  // Session and heartbeats outlive the acquire that needed them first, so they run in the client's context and not in
  // its caller's: their spans and log annotations would be those of a payout that is long done.
  const keeper = new Keeper(api, options, yield* FiberSet.makeRuntime<never, unknown, BackendError>())
  yield* Effect.addFinalizer(() => keeper.close)
  return keeper
})

class Keeper implements SessionKeeper {
  private readonly api: Context.Service.Shape<typeof LockApi>
  private readonly options: SessionOptions
  private readonly run: Run
  private closed = false
  private current: ClientSession | undefined
  private opening: Fiber.Fiber<ClientSession, BackendError> | undefined
  /** An open whose fate is unknown is repeated under its id, so that it does not leave a second session behind. */
  private pending: { readonly openId: AcquireId; readonly sentAt: bigint } | undefined

  constructor(api: Context.Service.Shape<typeof LockApi>, options: SessionOptions, run: Run) {
    this.api = api
    this.options = options
    this.run = run
  }

  private bounded(operation: string) {
    const millis = this.options.settings.callTimeoutMillis
    return boundedBy(millis, () => backendUnavailable(operation, `no answer in ${millis} ms`))
  }

  private end(session: ClientSession, reason: "deadline" | "session"): Effect.Effect<void> {
    return Effect.uninterruptible(
      Effect.suspend(() => {
        if (session.dead) return Effect.void
        session.dead = true
        if (this.current === session) this.current = undefined
        return Effect.forEach(Array.from(session.dependents), (lock) => lock.lose(reason), { discard: true })
      })
    )
  }

  private lost(session: ClientSession, reason: "deadline" | "session"): Effect.Effect<void> {
    return Effect.suspend(() =>
      session.dead
        ? Effect.void
        : Effect.andThen(
            this.end(session, reason),
            Effect.annotateLogs(Effect.logWarning("the session is lost, and all its locks with it"), {
              event: "session_lost",
              sessionId: session.sessionId,
              ownerId: this.options.ownerId,
              reason
            })
          )
    )
  }

  private beat(session: ClientSession) {
    return this.api.heartbeat(session.sessionId, this.options.ownerId).pipe(
      this.bounded("heartbeat"),
      Effect.result,
      Metrics.timed((exit) => {
        if (exit._tag === "Failure") return undefined
        const answer = exit.value
        if (Result.isSuccess(answer)) return Metrics.lockClient.heartbeat.ok
        const refused = answer.failure._tag === "SessionExpired" || answer.failure._tag === "SessionUnknown"
        return refused ? Metrics.lockClient.heartbeat.lost : Metrics.lockClient.heartbeat.error
      })
    )
  }

  private *keepAlive(session: ClientSession, openedAt: bigint, ttlMillis: number) {
    const { settings } = this.options
    const margin = settings.safetyMarginMillis
    let wakeAt = openedAt + millisToNanos(intervalOf(settings, ttlMillis))
    let failures = 0
    for (;;) {
      const asleep = wakeAt - (yield* Clock.monotonicTimeNanos)
      if (asleep > 0n) yield* Effect.sleep(Duration.nanos(asleep))
      const sentAt = yield* Clock.monotonicTimeNanos
      if (session.dead) return
      if (sentAt >= session.deadline) return yield* this.lost(session, "deadline")
      const answer = yield* this.beat(session)
      if (Result.isSuccess(answer)) {
        failures = 0
        const deadline = deadlineOf(sentAt, answer.success.ttlMillis - margin)
        // From the send of this very request; an answer never takes away what an earlier one gave.
        if (deadline > session.deadline) session.deadline = deadline
        wakeAt = sentAt + millisToNanos(intervalOf(settings, answer.success.ttlMillis))
      } else {
        const failure = answer.failure
        if (failure._tag === "SessionExpired" || failure._tag === "SessionUnknown") {
          return yield* this.lost(session, "session")
        }
        failures++
        const pause = yield* pauseAfter(failure, settings.retry, failures)
        wakeAt = (yield* Clock.monotonicTimeNanos) + millisToNanos(pause)
      }
    }
  }

  private *open() {
    const { newId, ownerId, sessionTtlMillis, settings } = this.options
    const now = yield* Clock.monotonicTimeNanos
    const repeatable = millisToNanos(intervalOf(settings, sessionTtlMillis))
    if (this.pending !== undefined && now - this.pending.sentAt > repeatable) this.pending = undefined
    this.pending ??= { openId: yield* newId, sentAt: now }
    const { openId, sentAt } = this.pending
    const answer = yield* this.bounded("openSession")(
      this.api.openSession({ ownerId, ttlMillis: sessionTtlMillis, openId })
    )
    this.pending = undefined
    const session: ClientSession = {
      sessionId: answer.sessionId,
      // The session may be as old as the first request under this id.
      deadline: deadlineOf(sentAt, answer.ttlMillis - settings.safetyMarginMillis),
      dead: false,
      dependents: new Set(),
      idle: Latch.makeUnsafe(true)
    }
    if ((yield* Clock.monotonicTimeNanos) >= session.deadline) {
      return yield* backendUnavailable("openSession", "the answer came too late to use the session")
    }
    this.current = session
    this.run(Effect.gen(() => this.keepAlive(session, sentAt, answer.ttlMillis)))
    yield* Effect.annotateLogs(Effect.logDebug("a session is open"), {
      event: "session_opened",
      sessionId: session.sessionId,
      ownerId
    })
    return session
  }

  readonly obtain: Effect.Effect<ClientSession, BackendError> = Effect.flatMap(
    Clock.monotonicTimeNanos,
    (now): Effect.Effect<ClientSession, BackendError> => {
      const { current, opening } = this
      if (current !== undefined) {
        if (now < current.deadline) return Effect.succeed(current)
        return Effect.andThen(
          this.lost(current, "deadline"),
          Effect.suspend(() => this.obtain)
        )
      }
      if (opening !== undefined && opening.pollUnsafe() === undefined) return Fiber.join(opening)
      this.opening = this.run(Effect.gen(() => this.open()))
      return Fiber.join(this.opening)
    }
  )

  readonly close: Effect.Effect<void> = Effect.suspend(() => {
    this.closed = true
    const session = this.current
    if (session === undefined) return Effect.void
    // The bodies under its locks end first: closing the session lets others in. A body that can not be interrupted
    // keeps it; it then lapses by itself.
    return Effect.andThen(
      this.end(session, "session"),
      session.idle.await.pipe(
        this.bounded("closeSession"),
        Effect.andThen(this.bounded("closeSession")(this.api.closeSession(session.sessionId, this.options.ownerId))),
        Effect.catchTags({
          SessionExpired: () => Effect.void,
          SessionUnknown: () => Effect.void,
          NotLeader: () => Effect.void,
          BackendUnavailable: (error) =>
            Effect.annotateLogs(Effect.logInfo("the session could not be closed and lapses by itself"), {
              event: "session_left_to_lapse",
              sessionId: session.sessionId,
              cause: error.cause
            })
        })
      )
    )
  })

  died(session: ClientSession): Effect.Effect<void> {
    return this.lost(session, "session")
  }

  join(session: ClientSession, dependent: Dependent): boolean {
    if (session.dead) return false
    session.dependents.add(dependent)
    session.idle.closeUnsafe()
    return true
  }

  leave(session: ClientSession, dependent: Dependent): void {
    session.dependents.delete(dependent)
    if (session.dependents.size === 0) session.idle.openUnsafe()
  }

  isClosed(): boolean {
    return this.closed
  }
}

/**
 * A configured interval does not survive a shorter ttl than was asked for; and where the margin takes most of the ttl, the
 * deadline would come before the first beat.
 */
const intervalOf = (settings: ClientSettings, ttlMillis: number): number =>
  Math.min(heartbeatIntervalOf(settings, ttlMillis), extensionMillis(ttlMillis, settings.safetyMarginMillis))
