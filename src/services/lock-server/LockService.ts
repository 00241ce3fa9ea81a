/**
 * The lock service: `LockApi` over any `LockStore`. It adds what a store has not: defaults, waiting, wake-ups, metrics,
 * log events. It keeps no state that matters: several instances on one store behave as one, and any may die.
 *
 * Time. Waiting is measured on the monotonic clock, and nothing that the store says of its own time is compared with
 * ours: a service whose wall clock is a minute off grants and waits like any other.
 */
import { Clock, Context, Effect, Exit, identity, Layer, Metric, Option, Random, Schedule, Stream } from "effect"
import {
  AcquireId,
  type AcquiredGrant,
  type FencingToken,
  type LockGrant,
  type LockKey,
  type OwnerId,
  type SessionId
} from "../../core/lock/Lock.ts"
import { LockApi } from "../../core/lock/LockApi.ts"
import {
  type BackendError,
  BackendUnavailable,
  backendUnavailable,
  ContentionExceeded,
  LockContended,
  LockLost,
  NotLeader
} from "../../core/lock/LockErrors.ts"
import { type AcquireRequest, type ExpiredGrant, type LockRecord, LockStore } from "../../core/lock/LockStore.ts"
import { logInfo } from "../../core/Log.ts"
import * as Metrics from "../../core/Metrics.ts"
import { type LockSettings, limits } from "../../core/Settings.ts"
import { spanned } from "../../core/Span.ts"
import { type AcquireFailure, isUnder, millisBetween, WaitingLines } from "./WaitingLines.ts"

/** Who waits in this instance. */
export class LockWaiters extends Context.Service<
  LockWaiters,
  {
    readonly count: (key: LockKey) => Effect.Effect<number>
    /** Answers every waiter `LockContended` and lets nobody wait any more: this instance is about to stop. */
    readonly dismiss: Effect.Effect<void>
  }
>()("dlock/services/lock-server/LockService/LockWaiters") {}

const SWEEP_MILLIS = 1_000
/** Pause before listening to the store's changes again. */
const FOLLOW_MILLIS = 1_000
/** Keys whose last token this instance remembers, to notice a store that goes back. */
const REMEMBERED_KEYS = 10_000

interface Instance {
  readonly store: LockStore["Service"]
  readonly settings: LockSettings
  readonly lines: WaitingLines
  readonly lastTokens: Map<LockKey, FencingToken>
  /** Since when the backend has not answered, in monotonic nanoseconds. */
  downSince: bigint | null
}

export const make = Effect.fnUntraced(function* (settings: LockSettings) {
  const store = yield* LockStore
  const instance: Instance = {
    store,
    settings,
    lines: new WaitingLines((key) => recordOf(instance, key)),
    lastTokens: new Map(),
    downSince: null
  }
  yield* Metrics.register(Metrics.lock)
  yield* Effect.forkScoped(Effect.repeat(sweep(instance), Schedule.spaced(SWEEP_MILLIS)))
  yield* Effect.forkScoped(Effect.repeat(followChanges(instance), Schedule.spaced(FOLLOW_MILLIS)))

  const api = LockApi.of({
    openSession: (request) => openSession(instance, request),

    heartbeat: (sessionId, ownerId) =>
      write(instance, "heartbeat", store.heartbeat(sessionId, ownerId)).pipe(spanned("LockService.heartbeat")),

    closeSession: (sessionId, ownerId) => closeSession(instance, sessionId, ownerId),

    acquire: (request) => acquire(instance, request).pipe(spanned("LockService.acquire")),

    renew: ({ key, ownerId, token, ttlMillis }) =>
      write(
        instance,
        "renew",
        store.renew(key, ownerId, token, within(limits.lockTtlMillis, ttlMillis ?? settings.defaultTtlMillis))
      ).pipe(
        Effect.tapErrorTag("LockLost", (lost) => logLost(lost, ownerId)),
        Effect.onExit((exit) => Metrics.increment(Metrics.lock.renew[ownOutcome(exit) ?? "renewed"])),
        spanned("LockService.renew")
      ),

    release: ({ key, ownerId, token }) => release(instance, key, ownerId, token).pipe(spanned("LockService.release")),

    inspect: (key) => call(instance, "inspect", store.inspect(key)).pipe(spanned("LockService.inspect")),

    revoke: (request) => revoke(instance, request)
  })

  const waiters = LockWaiters.of({
    count: (key) => Effect.sync(() => instance.lines.count(key)),
    dismiss: Effect.sync(() => instance.lines.close())
  })

  return Context.make(LockApi, api).pipe(Context.add(LockWaiters, waiters))
})

export const layer = (settings: LockSettings): Layer.Layer<LockApi | LockWaiters, never, LockStore> =>
  Layer.effectContext(make(settings))

// -----------------------------------------------------------------------------
// sessions, revocation
// -----------------------------------------------------------------------------

const openSession = Effect.fnUntraced(function* (
  instance: Instance,
  { openId, ownerId, ttlMillis }: Parameters<LockApi["Service"]["openSession"]>[0]
) {
  const { settings, store } = instance
  const request = {
    ownerId,
    ttlMillis: within(limits.sessionTtlMillis, ttlMillis ?? settings.sessionTtlMillis),
    openId: openId ?? (yield* randomId("open"))
  }
  return yield* write(instance, "openSession", store.openSession(request))
}, spanned("LockService.openSession"))

const closeSession = Effect.fnUntraced(function* (instance: Instance, sessionId: SessionId, ownerId: OwnerId) {
  yield* write(instance, "closeSession", instance.store.closeSession(sessionId, ownerId))
  // Its grants are free now; of which keys only the store knows.
  instance.lines.wakeHeldBy(ownerId)
}, spanned("LockService.closeSession"))

const revoke = Effect.fnUntraced(function* (
  instance: Instance,
  { expectedToken, key, operator, reason, revocationId }: Parameters<LockApi["Service"]["revoke"]>[0]
) {
  const request = {
    key,
    operator,
    reason,
    expectedToken,
    revocationId: revocationId ?? (yield* randomId("revoke"))
  }
  const { heldMillis, ...revocation } = yield* write(instance, "revoke", instance.store.revoke(request))
  if (heldMillis !== null) {
    instance.lines.wake(key)
    yield* Metrics.increment(Metrics.lock.revoked)
    yield* Metric.update(Metrics.lock.hold.revoked, heldMillis / 1_000)
    yield* Effect.logWarning("an operator revoked the lock").pipe(
      Effect.annotateLogs({
        event: "lock_revoked",
        lockKey: key,
        fencingToken: String(revocation.revokedToken),
        newTokenFloor: String(revocation.newTokenFloor),
        revocationId: request.revocationId,
        operator,
        reason
      })
    )
  }
  return revocation
}, spanned("LockService.revoke"))

// -----------------------------------------------------------------------------
// acquire
// -----------------------------------------------------------------------------

type AcquireCall = Parameters<LockApi["Service"]["acquire"]>[0]

/** Tells of a grant as soon as the store has made it, whatever becomes of the caller. */
const grantOrRefuse = Effect.fnUntraced(function* (
  instance: Instance,
  request: AcquireCall,
  told: (grant: AcquiredGrant) => AcquiredGrant
): Effect.fn.Return<AcquiredGrant, AcquireFailure> {
  const { key, ownerId, sessionId } = request
  const mayRepeat = request.acquireId !== undefined
  const waitMillis = within(limits.waitMillis, request.waitMillis ?? 0)
  const receivedAt = yield* Clock.monotonicTimeNanos
  const forStore: AcquireRequest = {
    key,
    ownerId,
    sessionId,
    ttlMillis: within(limits.lockTtlMillis, request.ttlMillis ?? instance.settings.defaultTtlMillis),
    acquireId: request.acquireId ?? (yield* randomId("acquire"))
  }
  const look = Effect.flatMap(Clock.monotonicTimeNanos, (startedAt) =>
    // The caller may go away while the store decides; what it decided is then still known here.
    Effect.uninterruptible(
      Effect.map(tryAcquire(instance, forStore), (grant) =>
        told({ ...grant, waitedMillis: millisBetween(receivedAt, startedAt) })
      )
    )
  )
  if (waitMillis > 0) {
    return yield* instance.lines.join({ request: forStore, mayRepeat, look, receivedAt, waitMillis })
  }
  // A request that does not wait must not overtake those who do, but it is never told that it contends with itself.
  const refusal = instance.lines.refusal(key)
  if (refusal === undefined) return yield* look
  const record = mayRepeat ? yield* recordOf(instance, key) : null
  return yield* record !== null && isUnder(record, forStore) ? look : refusal
})

const acquire = (instance: Instance, request: AcquireCall): Effect.Effect<AcquiredGrant, AcquireFailure> => {
  const { key, ownerId, sessionId } = request
  const mayRepeat = request.acquireId !== undefined
  const waits = (request.waitMillis ?? 0) > 0
  return Effect.suspend(() => {
    let won: AcquiredGrant | undefined
    return grantOrRefuse(instance, request, (grant) => (won = grant)).pipe(
      Effect.tap((grant) =>
        logInfo("the lock is granted", {
          event: "lock_granted",
          ...labels(grant),
          sessionId,
          waitedMillis: grant.waitedMillis
        })
      ),
      // The caller is gone. Under an id of his own he can come back for the grant; without one nobody ever would.
      Effect.onInterrupt(() =>
        won === undefined || mayRepeat ? Effect.void : Effect.ignore(release(instance, key, ownerId, won.token))
      ),
      Metrics.timed((exit) => Metrics.lock.acquire[acquireOutcome(exit)]),
      waits ? Metrics.timed((exit) => Metrics.lock.wait[acquireOutcome(exit)]) : identity
    )
  })
}

const recordOf = (instance: Instance, key: LockKey): Effect.Effect<LockRecord | null, BackendError> =>
  call(instance, "record", instance.store.record(key)).pipe(Effect.catchTag("LockNotFound", () => Effect.succeed(null)))

const tryAcquire = (instance: Instance, request: AcquireRequest) =>
  Effect.suspend(() => {
    const { key } = request
    const { lastTokens } = instance
    // Only a token that was answered before this call began has to be smaller: two answers may pass each other.
    const before = lastTokens.get(key)
    return Effect.flatMap(
      write(instance, "tryAcquire", instance.store.tryAcquire(request)),
      (grant): Effect.Effect<LockGrant, BackendUnavailable> => {
        if (before !== undefined && grant.token < before) return regressed(instance, grant, before)
        const last = lastTokens.get(key)
        lastTokens.delete(key)
        lastTokens.set(key, last !== undefined && last > grant.token ? last : grant.token)
        const [oldest] = lastTokens.keys()
        if (lastTokens.size > REMEMBERED_KEYS && oldest !== undefined) lastTokens.delete(oldest)
        return Effect.succeed(grant)
      }
    )
  })

/** Fail closed: under such a token its holder would be fenced out, or pass where a newer one has not been seen yet. */
const regressed = (instance: Instance, grant: LockGrant, before: FencingToken) =>
  Metrics.increment(Metrics.lock.tokenRegression).pipe(
    Effect.andThen(
      Effect.logError("a token is smaller than one that was answered before: the store went back").pipe(
        Effect.annotateLogs({ ...labels(grant), lastToken: String(before) })
      )
    ),
    Effect.andThen(Effect.ignore(release(instance, grant.key, grant.ownerId, grant.token))),
    Effect.andThen(Effect.fail(backendUnavailable("tryAcquire", "token_regression")))
  )

// -----------------------------------------------------------------------------
// release, expiry, hints
// -----------------------------------------------------------------------------

const release = (instance: Instance, key: LockKey, ownerId: OwnerId, token: FencingToken) =>
  write(instance, "release", instance.store.release(key, ownerId, token)).pipe(
    Effect.tap(({ heldMillis }) => {
      instance.lines.wake(key)
      return Effect.andThen(
        Metric.update(Metrics.lock.hold.released, heldMillis / 1_000),
        Effect.logInfo("the lock is released").pipe(
          Effect.annotateLogs({ event: "lock_released", ...labels({ key, token, ownerId }), heldMillis })
        )
      )
    }),
    Effect.tapErrorTag("LockLost", (lost) => logLost(lost, ownerId)),
    Effect.onExit((exit) => Metrics.increment(Metrics.lock.release[ownOutcome(exit) ?? "released"])),
    Effect.asVoid,
    Effect.uninterruptible
  )

const tellExpired = Effect.fnUntraced(function* (
  instance: Instance,
  { end, heldMillis, key, ownerId, token }: ExpiredGrant
) {
  instance.lines.wake(key)
  yield* Metric.update(Metrics.lock.hold[end === "session" ? "session_closed" : "expired"], heldMillis / 1_000)
  yield* Effect.logInfo("the grant ended by itself").pipe(
    Effect.annotateLogs({ event: "lock_expired", ...labels({ key, token, ownerId }), heldMillis, end })
  )
})

/** Tells of what ended by itself and counts what lives. Nothing depends on it but those who watch. */
const sweep = (instance: Instance): Effect.Effect<void> =>
  call(instance, "sweep", instance.store.sweep).pipe(
    Effect.flatMap((found) =>
      Metrics.record((set) => {
        set(Metrics.lock.sessionsLive, found.liveSessions)
        set(Metrics.lock.grantsLive, found.liveGrants)
        set(Metrics.lock.sessionExpired, found.expiredSessions)
      }).pipe(
        Effect.andThen(
          Effect.forEach(found.expiredGrants, (expired) => tellExpired(instance, expired), { discard: true })
        )
      )
    ),
    // An outage is told of by `call`; the next sweep finds what this one would have found.
    Effect.catchTag(["NotLeader", "BackendUnavailable"], () => Effect.void),
    Effect.catchCause((cause) => Effect.logError("the sweep failed", cause))
  )

const followChanges = (instance: Instance): Effect.Effect<void> =>
  Stream.runForEach(instance.store.changes, ({ key }) =>
    Effect.sync(() => (key === null ? instance.lines.wakeHeldBy(null) : instance.lines.wake(key)))
  ).pipe(Effect.ignore)

// -----------------------------------------------------------------------------
// calls
// -----------------------------------------------------------------------------

type Operation = keyof typeof Metrics.lock.backendCall

const call = <A, E>(
  instance: Instance,
  operation: Operation,
  effect: Effect.Effect<A, E | BackendError>
): Effect.Effect<A, E | BackendError> =>
  effect.pipe(
    Effect.matchCauseEffect({
      onSuccess: (answer) => noteAvailability(instance, Exit.succeed(answer)),
      onFailure: (cause) => noteAvailability(instance, Exit.failCause(cause))
    }),
    Metrics.timed((exit) => Metrics.lock.backendCall[operation][callOutcome(exit)])
  )

/** A write is never abandoned half way, whoever loses interest: the store bounds it in time. */
const write = <A, E>(
  instance: Instance,
  operation: Operation,
  effect: Effect.Effect<A, E | BackendError>
): Effect.Effect<A, E | BackendError> => Effect.uninterruptible(call(instance, operation, effect))

/** Answers what was answered, after it has told of an outage that begins or ends with it. */
const noteAvailability = <A, E>(instance: Instance, exit: Exit.Exit<A, E>): Effect.Effect<A, E> => {
  const failed = isBackendFailure(failureOf(exit))
  const answered = callOutcome(exit) !== "unavailable"
  if (instance.downSince === null ? !failed : !answered) return exit
  return Effect.flatMap(Clock.monotonicTimeNanos, (now) => {
    const { downSince } = instance
    if (failed === (downSince !== null)) return exit
    instance.downSince = failed ? now : null
    if (downSince === null) return Effect.andThen(Effect.logWarning("the lock backend does not answer"), exit)
    const seconds = millisBetween(downSince, now) / 1_000
    return Metric.update(Metrics.lock.backendUnavailable, seconds).pipe(
      Effect.andThen(Effect.logInfo("the lock backend answers again").pipe(Effect.annotateLogs({ seconds }))),
      Effect.andThen(exit)
    )
  })
}

const isBackendFailure = (failure: unknown): failure is BackendError =>
  failure instanceof NotLeader || failure instanceof BackendUnavailable

const failureOf = (exit: Exit.Exit<unknown, unknown>): unknown => Option.getOrUndefined(Exit.findErrorOption(exit))

const callOutcome = (exit: Exit.Exit<unknown, unknown>) =>
  Exit.isSuccess(exit) ? "ok" : Exit.hasFails(exit) && !isBackendFailure(failureOf(exit)) ? "refused" : "unavailable"

const acquireOutcome = (exit: Exit.Exit<unknown, unknown>) => {
  if (Exit.isSuccess(exit)) return "granted"
  const failure = failureOf(exit)
  return failure instanceof LockContended || failure instanceof ContentionExceeded ? "contended" : "error"
}

/** Undefined: it went well. */
const ownOutcome = (exit: Exit.Exit<unknown, unknown>) =>
  Exit.isSuccess(exit) ? undefined : failureOf(exit) instanceof LockLost ? "lost" : "error"

const labels = (grant: { readonly key: LockKey; readonly token: FencingToken; readonly ownerId: OwnerId }) => ({
  lockKey: grant.key,
  fencingToken: String(grant.token),
  ownerId: grant.ownerId
})

const logLost = ({ key, reason, token }: LockLost, ownerId: OwnerId) =>
  Effect.logInfo("a renewal or release came too late").pipe(
    Effect.annotateLogs({ event: "lock_lost", lockKey: key, fencingToken: String(token), ownerId, reason })
  )

const randomId = (prefix: string): Effect.Effect<AcquireId> =>
  Effect.map(Effect.all([Random.nextIntBetween(0, 2 ** 48), Random.nextIntBetween(0, 2 ** 48)]), (parts) =>
    AcquireId.make(`${prefix}-${parts.map((n) => n.toString(16).padStart(12, "0")).join("")}`)
  )

const within = (range: { readonly min: number; readonly max: number }, value: number): number =>
  Math.min(range.max, Math.max(range.min, value))
