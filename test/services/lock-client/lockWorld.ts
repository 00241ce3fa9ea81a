/**
 * A lock service in memory, and a wire to it on which a test can delay, lose and count what passes. Everything runs under
 * the TestClock: the store, the service and the client read the same time.
 */
import { Clock, Context, Effect, type Exit, Fiber, Layer } from "effect"
import { TestClock } from "effect/testing"
import { LockKey, OwnerId } from "../../../src/core/lock/Lock.ts"
import { LockApi } from "../../../src/core/lock/LockApi.ts"
import type { BackendError } from "../../../src/core/lock/LockErrors.ts"
import { defaults } from "../../../src/core/Settings.ts"
import * as LockClient from "../../../src/services/lock-client/LockClient.ts"
import * as LockService from "../../../src/services/lock-server/LockService.ts"
import * as SimLockStore from "../../../src/sim/SimLockStore.ts"

export type Operation = "openSession" | "heartbeat" | "closeSession" | "acquire" | "renew" | "release"

export interface Passed {
  readonly op: Operation
  /** How many-eth call of this operation, from 1. */
  readonly nth: number
  readonly atMillis: number
  readonly key: string | undefined
  readonly id: string | undefined
}

export interface Fault {
  /** On the way to the server. */
  readonly requestMillis?: number
  /** On the way back. */
  readonly answerMillis?: number
  /** What never arrives. The caller is not told. */
  readonly lost?: "request" | "answer"
  /** What the server says instead of doing it. */
  readonly fail?: BackendError
}

export type Script = (call: Passed) => Fault | undefined

export class Wire extends Context.Service<
  Wire,
  {
    readonly passed: Array<Passed>
    /** May be replaced while a test runs. */
    script: Script
  }
>()("test/Wire") {}

type Api = LockApi["Service"]

/** As over a network: a request that has left reaches the server whether or not its sender still waits. */
const wired = (upstream: Api, wire: Wire["Service"]): Api => {
  const pass = <A, E>(
    op: Operation,
    key: string | undefined,
    id: string | undefined,
    call: Effect.Effect<A, E>,
    waits = false
  ): Effect.Effect<A, E> =>
    Effect.gen(function* () {
      const atMillis = yield* Clock.currentTimeMillis
      const nth = wire.passed.filter((earlier) => earlier.op === op).length + 1
      const passed: Passed = { op, nth, atMillis, key, id }
      wire.passed.push(passed)
      const fault = wire.script(passed) ?? {}
      if (fault.lost === "request") return yield* Effect.never
      if (fault.fail !== undefined) return yield* Effect.fail(fault.fail as E)
      const arrival = fault.requestMillis === undefined ? call : Effect.delay(call, fault.requestMillis)
      // A wait is broken off when its connection closes; anything else is not.
      const result = waits
        ? yield* Effect.exit(arrival)
        : yield* Effect.flatMap(Effect.forkDetach(arrival, { startImmediately: true }), Fiber.await)
      if (fault.lost === "answer") return yield* Effect.never
      if (fault.answerMillis !== undefined) yield* Effect.sleep(fault.answerMillis)
      return yield* result
    })
  return {
    ...upstream,
    openSession: (request) => pass("openSession", undefined, request.openId, upstream.openSession(request)),
    heartbeat: (sessionId, ownerId) => pass("heartbeat", undefined, sessionId, upstream.heartbeat(sessionId, ownerId)),
    closeSession: (sessionId, ownerId) =>
      pass("closeSession", undefined, sessionId, upstream.closeSession(sessionId, ownerId)),
    acquire: (request) =>
      pass("acquire", request.key, request.acquireId, upstream.acquire(request), (request.waitMillis ?? 0) > 0),
    renew: (request) => pass("renew", request.key, String(request.token), upstream.renew(request)),
    release: (request) => pass("release", request.key, String(request.token), upstream.release(request))
  }
}

export const server = LockService.layer(defaults.lock).pipe(Layer.provide(SimLockStore.layer))

export class Direct extends Context.Service<Direct, Api>()("test/Direct") {}

/** The service without faults as `Direct`, and behind the wire as `LockApi`. */
export const network = Layer.effectContext(
  Effect.gen(function* () {
    const upstream = yield* LockApi
    const wire: Wire["Service"] = { passed: [], script: () => undefined }
    return Context.make(Direct, upstream).pipe(
      Context.add(Wire, wire),
      Context.add(LockApi, LockApi.of(wired(upstream, wire)))
    )
  })
).pipe(Layer.provide(server))

export const key = LockKey.make("payout:acct-1")
export const w1 = OwnerId.make("w1")
export const w2 = OwnerId.make("w2")

export const settings = { ...defaults.client, safetyMarginMillis: 1_000, callTimeoutMillis: 1_000 }

export const options = { ownerId: w1, settings, sessionTtlMillis: 6_000, lockTtlMillis: 6_000 }

export const client = (overrides?: Partial<LockClient.LockClientOptions>) =>
  LockClient.make({ ...options, ...overrides })

/** Lets everything run that needs no time: a fiber just forked has then reached its first sleep. */
export const settled: Effect.Effect<void> = Effect.gen(function* () {
  for (let hop = 0; hop < 50; hop++) yield* Effect.yieldNow
})

export const advance = (millis: number): Effect.Effect<void> => Effect.andThen(settled, TestClock.adjust(millis))

/** Moves the clock in small steps until the fiber has ended; dies if it takes more than a minute of virtual time. */
export const ended = <A, E>(fiber: Fiber.Fiber<A, E>, stepMillis = 10): Effect.Effect<Exit.Exit<A, E>> =>
  Effect.gen(function* () {
    yield* settled
    for (let passed = 0; passed <= 60_000; passed += stepMillis) {
      const exit = fiber.pollUnsafe()
      if (exit !== undefined) return exit
      yield* TestClock.adjust(stepMillis)
    }
    return yield* Effect.die("the fiber did not end within a minute")
  })

export const count = (wire: Wire["Service"], op: Operation): number =>
  wire.passed.filter((call) => call.op === op).length

/** As another client would find out: can the key be had? Gives it back at once. */
export const isFree = Effect.gen(function* () {
  const direct = yield* Direct
  const session = yield* direct.openSession({ ownerId: w2, ttlMillis: 60_000 })
  const grant = yield* Effect.result(direct.acquire({ key, ownerId: w2, sessionId: session.sessionId }))
  if (grant._tag === "Failure") return false
  yield* direct.release({ key, ownerId: w2, token: grant.success.token })
  return true
})
