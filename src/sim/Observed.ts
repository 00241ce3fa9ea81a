/**
 * The ports of one process with somebody watching: what it asked, what it was told, and what it believed. Nothing is
 * changed on the way.
 */
import { Effect, Exit } from "effect"
import type { LockCall, LockOp } from "../core/LockHistory.ts"
import type { LockApi } from "../core/lock/LockApi.ts"
import type { PaymentResource, ProtectedWrite } from "../core/payment/PaymentResource.ts"
import type { RailProxy } from "../core/rail/RailProxy.ts"
import type { HeldLock, LockClient } from "../services/lock-client/LockClient.ts"
import type { Process } from "./Node.ts"
import { failureTag, type Recorder } from "./Recorder.ts"

// -----------------------------------------------------------------------------
// lock
// -----------------------------------------------------------------------------

type Asked = Pick<LockOp, "key" | "sessionId" | "token" | "requestId">

const answerOf = (tag: string | undefined): LockOp["answer"] => {
  switch (tag) {
    case undefined:
      return "ok"
    case "LockContended":
    case "ContentionExceeded":
      return "held"
    case "LockLost":
    case "SessionUnknown":
    case "SessionExpired":
    case "LockNotFound":
    case "FencedOut":
      return "lost"
    default:
      return "unknown"
  }
}

export const lockApi = (api: LockApi["Service"], process: Process, recorder: Recorder): LockApi["Service"] => {
  const { world } = process
  const watch = <A, E>(
    call: LockCall,
    asked: Asked,
    effect: Effect.Effect<A, E>,
    told: (answer: A) => { readonly granted?: bigint; readonly ttlMillis?: number; readonly sessionId?: string }
  ): Effect.Effect<A, E> =>
    Effect.suspend(() => {
      const called = world.now / 1000
      // Recorded when it is called, so that one which is never answered is there too.
      const at = recorder.lockOps.length
      const op: LockOp = {
        ...asked,
        call,
        client: process.node.name,
        called,
        returned: Infinity,
        answer: "unknown",
        granted: null,
        ttlMillis: 0
      }
      recorder.lockOps.push(op)
      return Effect.onExit(effect, (exit) => {
        const tag = Exit.isSuccess(exit) ? undefined : (failureTag(exit) ?? "interrupted")
        const answer = answerOf(tag)
        if (Exit.isFailure(exit) && answer === "unknown") return Effect.void
        const {
          granted = null,
          sessionId = asked.sessionId,
          ttlMillis = 0
        } = Exit.isSuccess(exit) ? told(exit.value) : {}
        recorder.lockOps[at] = { ...op, returned: world.now / 1000, answer, granted, sessionId, ttlMillis }
        return Effect.void
      })
    })
  const nothing = () => ({})
  return {
    openSession: (request) =>
      watch(
        "open",
        { key: null, sessionId: null, token: null, requestId: request.openId ?? null },
        api.openSession(request),
        ({ sessionId, ttlMillis }) => ({ sessionId, ttlMillis })
      ),
    heartbeat: (sessionId, ownerId) =>
      watch(
        "heartbeat",
        { key: null, sessionId, token: null, requestId: null },
        api.heartbeat(sessionId, ownerId),
        ({ ttlMillis }) => ({ ttlMillis })
      ),
    closeSession: (sessionId, ownerId) =>
      watch(
        "close",
        { key: null, sessionId, token: null, requestId: null },
        api.closeSession(sessionId, ownerId),
        nothing
      ),
    acquire: (request) => {
      if ((request.waitMillis ?? 0) > 0) recorder.waitedFor.add(request.key)
      return watch(
        "acquire",
        { key: request.key, sessionId: request.sessionId, token: null, requestId: request.acquireId ?? null },
        api.acquire(request),
        (grant) => {
          recorder.granted(process, grant.token)
          return { granted: grant.token, ttlMillis: grant.ttlMillis }
        }
      )
    },
    renew: (request) =>
      watch(
        "renew",
        { key: request.key, sessionId: null, token: request.token, requestId: null },
        api.renew(request),
        ({ token }) => ({ granted: token, ttlMillis: request.ttlMillis ?? 0 })
      ),
    release: (request) =>
      watch(
        "release",
        { key: request.key, sessionId: null, token: request.token, requestId: null },
        api.release(request),
        nothing
      ),
    inspect: api.inspect,
    revoke: (request) =>
      watch(
        "revoke",
        {
          key: request.key,
          sessionId: null,
          token: request.expectedToken ?? null,
          requestId: request.revocationId ?? null
        },
        api.revoke(request),
        ({ revokedToken }) => ({ granted: revokedToken })
      )
  }
}

export const lockClient = (
  client: LockClient["Service"],
  process: Process,
  recorder: Recorder
): LockClient["Service"] => ({
  withLock: (key, options) => (use) =>
    Effect.onExit(
      client.withLock(
        key,
        options
      )((lock) =>
        Effect.uninterruptibleMask((restore) => {
          const section = recorder.enter(process, lock.key, lock.token)
          return Effect.onExit(restore(use(new ObservedLock(lock, process, recorder))), () =>
            Effect.sync(() => recorder.leave(section))
          )
        })
      ),
      (exit) => {
        const tag = failureTag(exit)
        if (tag === "LockUnavailable") recorder.marks.hit("no grant while the service was away")
        if (tag === "LockLost") recorder.marks.hit("told LOCK_LOST")
        return Effect.void
      }
    ),
  acquire: client.acquire
})

/** A class for the sake of the getter: one in an object literal would keep the world of its run (see Speed in the docs). */
class ObservedLock implements HeldLock {
  readonly key: HeldLock["key"]
  readonly token: HeldLock["token"]
  readonly checkStillHeld: HeldLock["checkStillHeld"]
  readonly lost: HeldLock["lost"]
  readonly renew: HeldLock["renew"]
  private readonly lock: HeldLock

  constructor(lock: HeldLock, process: Process, recorder: Recorder) {
    this.lock = lock
    this.key = lock.key
    this.token = lock.token
    this.lost = lock.lost
    this.renew = lock.renew
    this.checkStillHeld = Effect.suspend(() => {
      const { deadline } = lock
      const left = recorder.believes(process, lock.key, lock.token, deadline)
      return Effect.onExit(lock.checkStillHeld, (exit) =>
        Effect.sync(() => {
          // The answer to a renewal may have come in between, and been heard before the watch: the lock was not yet lost.
          const same = lock.deadline === deadline
          if (Exit.isSuccess(exit) && left <= 0 && same) recorder.tooLate(process, lock.key, lock.token)
          else if (failureTag(exit) === "LockLost") recorder.tell(process, lock.token, "LOCK_LOST")
        })
      )
    })
  }

  get deadline(): bigint {
    return this.lock.deadline
  }
}

// -----------------------------------------------------------------------------
// fences
// -----------------------------------------------------------------------------

/** A request under a token, and whether a fence refused it. */
const underToken =
  (process: Process, recorder: Recorder) =>
  <Request extends Pick<ProtectedWrite, "token">, A, E>(op: string, call: (request: Request) => Effect.Effect<A, E>) =>
  (request: Request): Effect.Effect<A, E> =>
    Effect.suspend(() => {
      recorder.presented(process, op, request.token)
      return Effect.onExit(call(request), (exit) => {
        if (Exit.isFailure(exit) && failureTag(exit) === "FencedOut") {
          recorder.tell(process, request.token, "FENCED_OUT")
        }
        return Effect.void
      })
    })

export const payments = (
  service: PaymentResource["Service"],
  process: Process,
  recorder: Recorder
): PaymentResource["Service"] => {
  const watch = underToken(process, recorder)
  return {
    ...service,
    claim: watch("claim", service.claim),
    post: watch("post", service.post),
    fail: watch("fail", service.fail),
    ambiguous: watch("ambiguous", service.ambiguous),
    resolve: watch("resolve", service.resolve)
  }
}

export const rail = (service: RailProxy["Service"], process: Process, recorder: Recorder): RailProxy["Service"] => {
  const watch = underToken(process, recorder)
  return {
    ...service,
    submit: watch("submit", service.submit),
    seal: watch("void", service.seal),
    evidence: watch("evidence", service.evidence)
  }
}
