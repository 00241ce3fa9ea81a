/**
 * A lock held by a live SDK while the backend loses its leader, again and again: what was acknowledged stays, tokens go up,
 * and how long nobody was served is measured.
 */
import { assert } from "@effect/vitest"
import { Config, Context, Deferred, Effect, Exit, Fiber, Layer, Schedule } from "effect"
import { AcquireId, type FencingToken, LockKey, OwnerId } from "../../src/core/lock/Lock.ts"
import { LockApi } from "../../src/core/lock/LockApi.ts"
import { LockStore } from "../../src/core/lock/LockStore.ts"
import { defaults } from "../../src/core/Settings.ts"
import * as LockClient from "../../src/services/lock-client/LockClient.ts"
import * as LockService from "../../src/services/lock-server/LockService.ts"
import { waitUntil } from "./waitUntil.ts"

/** `DLOCK_FAILOVER_ROUNDS`; the figures in the documentation are of 10. */
export const rounds = Effect.orDie(Config.withDefault(Config.Int("DLOCK_FAILOVER_ROUNDS"), 1))

export interface Round {
  readonly name: string
  /** Takes the leader away. */
  readonly fault: Effect.Effect<unknown, unknown>
  /** Brings it back as a follower, as far as there is such a thing. */
  readonly heal: Effect.Effect<unknown, unknown>
}

const LONG = 300_000
/** Answers the outages in ms, one a round; each must be shorter than `limitMillis`. */
export const survive = Effect.fnUntraced(function* (
  store: LockStore["Service"],
  all: ReadonlyArray<Round>,
  limitMillis: number
) {
  const api = Context.get(
    yield* Layer.build(Layer.provide(LockService.layer(defaults.lock), Layer.succeed(LockStore, store))),
    LockApi
  )
  const client = yield* LockClient.make({ ownerId: OwnerId.make("holder") }).pipe(Effect.provideService(LockApi, api))

  const heldKey = LockKey.make("failover:held")
  const started = yield* Deferred.make<FencingToken>()
  const stop = yield* Deferred.make<void>()
  const holder = yield* client
    .withLock(heldKey)((lock) =>
      Effect.gen(function* () {
        yield* Deferred.succeed(started, lock.token)
        while (!Deferred.isDoneUnsafe(stop)) {
          yield* lock.checkStillHeld
          yield* Effect.sleep("20 millis")
        }
        return lock.token
      })
    )
    .pipe(Effect.forkChild)
  const heldToken = yield* Deferred.await(started)

  const session = (owner: string) =>
    store.openSession({ ownerId: OwnerId.make(owner), ttlMillis: LONG, openId: AcquireId.make(owner) })
  const contender = yield* session("contender")
  const writer = yield* session("writer")
  let calls = 0
  /** Under one id until there is a definite answer. */
  const acquire = (of: typeof writer, key: LockKey) =>
    Effect.suspend(() =>
      Effect.retry(
        api.acquire({ ...of, key, ttlMillis: LONG, acquireId: AcquireId.make(`${of.ownerId}-${++calls}`) }),
        {
          while: (failure) => failure._tag === "BackendUnavailable" || failure._tag === "NotLeader",
          schedule: Schedule.spaced("10 millis")
        }
      )
    )

  // Somebody wants the lock all the time and never gets it.
  const stolen: Array<FencingToken> = []
  const contending = yield* acquire(contender, heldKey).pipe(
    Effect.tap(({ token }) => Effect.sync(() => stolen.push(token))),
    Effect.ignore,
    Effect.andThen(Effect.sleep("100 millis")),
    Effect.forever,
    Effect.forkScoped
  )

  // Somebody else works on another lock all the time; the longest pause between two grants of his is the outage.
  const key = LockKey.make("failover:busy")
  const tokens: Array<FencingToken> = []
  let servedAt = performance.now()
  let outage = 0
  yield* acquire(writer, key).pipe(
    Effect.tap(({ token }) =>
      Effect.sync(() => {
        tokens.push(token)
        outage = Math.max(outage, performance.now() - servedAt)
        servedAt = performance.now()
      })
    ),
    Effect.flatMap(({ token }) =>
      // Until it is known to be gone: the next try must not be contended by this one.
      Effect.retry(
        Effect.catchTag(api.release({ key, ownerId: writer.ownerId, token }), "LockLost", () => Effect.void),
        { times: 200 }
      )
    ),
    // Nobody else wants this lock, so whatever goes wrong is wrong: the rounds then find that no grants are made.
    Effect.tapError((failure) => Effect.logError("the writer was refused", failure)),
    Effect.forever,
    Effect.forkScoped
  )
  const served = (more: number) =>
    Effect.suspend(() => {
      const before = tokens.length
      return waitUntil(
        "grants are made",
        Effect.sync(() => tokens.length >= before + more)
      )
    })

  const outages: Array<number> = []
  for (const [i, { fault, heal, name }] of all.entries()) {
    yield* served(3)
    const kept = yield* acquire(writer, LockKey.make(`failover:kept-${i}`))
    outage = 0
    yield* fault
    yield* served(3)
    outages.push(outage)
    yield* Effect.logInfo(`${name}: nobody was served for ${Math.round(outage)} ms`)
    assert.isAtMost(outage, limitMillis, name)
    const record = yield* Effect.retry(store.record(kept.key), { times: 20 })
    assert.isTrue(record.held, "an acknowledged grant was forgotten")
    assert.strictEqual(record.token, kept.token)
    yield* heal
  }
  yield* served(3)
  yield* Fiber.interrupt(contending)
  yield* Deferred.succeed(stop, undefined)
  const end = yield* Fiber.await(holder)
  assert.isTrue(Exit.isSuccess(end), `the SDK lost the lock: ${String(end)}`)
  assert.isEmpty(stolen)
  assert.isTrue(
    tokens.every((token, i) => i === 0 || token > (tokens[i - 1] ?? 0n)),
    "a token went back"
  )
  const next = yield* acquire(contender, heldKey)
  assert.isTrue(next.token > heldToken)
  return outages
})

export const median = (values: ReadonlyArray<number>): number =>
  [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0
