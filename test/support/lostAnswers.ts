/**
 * What a store makes of answers that do not come: each write with each answer of its backend lost in turn, in silence, by
 * a reset, until after the caller's deadline, or with everything after it. The request was carried out, or not, and only the backend knows.
 */
import { assert } from "@effect/vitest"
import { Effect, Exit, Fiber, Random } from "effect"
import type { LostAnswer, TcpFaults } from "../../src/harness/TcpFaults.ts"
import { AcquireId, LockKey, OwnerId } from "../../src/core/lock/Lock.ts"
import { LockContended } from "../../src/core/lock/LockErrors.ts"
import type { LockStore } from "../../src/core/lock/LockStore.ts"
import { waitUntil } from "./waitUntil.ts"

type Store = LockStore["Service"]

export interface LossyWorld {
  /** Its answers are lost. */
  readonly lossy: Store
  /** On the same backend, by another way. */
  readonly sound: Store
  readonly faults: TcpFaults
  /** Longer than any operation of `lossy` waits. */
  readonly lateMillis: number
}

const LONG = 60_000

interface Setting extends LossyWorld {
  readonly key: LockKey
  readonly ownerId: OwnerId
  readonly id: AcquireId
}

interface Write {
  /** Something to do with the lossy store, and what must be so when it has been repeated on the sound one. */
  readonly prepare: (
    setting: Setting
  ) => Effect.Effect<
    { readonly write: (store: Store) => Effect.Effect<unknown, { readonly _tag: string }>; readonly check: Check },
    unknown
  >
}

type Check = (first: Exit.Exit<unknown, unknown>, repeat: Exit.Exit<unknown, unknown>) => Effect.Effect<void, unknown>

const open = ({ ownerId, sound }: Setting, id: string) =>
  sound.openSession({ ownerId, ttlMillis: LONG, openId: AcquireId.make(id) })

const grant = (setting: Setting) =>
  Effect.gen(function* () {
    const { id, key, ownerId, sound } = setting
    const { sessionId } = yield* open(setting, `${id}-open`)
    const { token } = yield* sound.tryAcquire({ key, ownerId, sessionId, ttlMillis: LONG, acquireId: id })
    return { sessionId, token }
  })

/** Somebody else gets the key, at once, and gives it back. */
const isFree = (setting: Setting) =>
  Effect.gen(function* () {
    const { id, key, sound } = setting
    const ownerId = OwnerId.make("other")
    const { sessionId } = yield* open({ ...setting, ownerId }, `${id}-other`)
    const { token } = yield* sound.tryAcquire({ key, ownerId, sessionId, ttlMillis: LONG, acquireId: id })
    yield* sound.release(key, ownerId, token)
    yield* sound.closeSession(sessionId, ownerId)
  })

const succeeds = (exit: Exit.Exit<unknown, unknown>): Record<string, unknown> => {
  if (Exit.isSuccess(exit)) return exit.value as Record<string, unknown>
  return assert.fail(`the repeat failed: ${String(exit.cause)}`)
}

/** When the first answer came, the repeat says the same. */
const agree = (first: Exit.Exit<unknown, unknown>, repeat: Record<string, unknown>, fields: ReadonlyArray<string>) => {
  if (Exit.isFailure(first)) return
  for (const field of fields) {
    assert.strictEqual((first.value as Record<string, unknown>)[field], repeat[field], field)
  }
}

/** It is done, and if this was not told the first time the repeat says so. */
const doneOr = (repeat: Exit.Exit<unknown, unknown>, tag: string, reason?: string) => {
  if (Exit.isSuccess(repeat)) return
  const failure = Exit.findErrorOption(repeat)
  assert.isTrue(failure._tag === "Some", String(repeat.cause))
  const value = (failure._tag === "Some" ? failure.value : {}) as { readonly _tag?: string; readonly reason?: string }
  assert.strictEqual(value._tag, tag)
  if (reason !== undefined) assert.strictEqual(value.reason, reason)
}

export const writes: Readonly<Record<string, Write>> = {
  acquire: {
    prepare: (setting) =>
      Effect.map(open(setting, `${setting.id}-open`), ({ sessionId }) => {
        const { id, key, ownerId, sound } = setting
        return {
          write: (store) => store.tryAcquire({ key, ownerId, sessionId, ttlMillis: LONG, acquireId: id }),
          check: (first, repeat) =>
            Effect.gen(function* () {
              const granted = succeeds(repeat)
              agree(first, granted, ["token", "sessionId"])
              const { token } = yield* sound.record(key)
              assert.strictEqual(granted["token"], token)
              yield* sound.release(key, ownerId, token)
              yield* isFree(setting)
              yield* sound.closeSession(sessionId, ownerId)
            })
        }
      })
  },
  renew: {
    prepare: (setting) =>
      Effect.map(grant(setting), ({ sessionId, token }) => {
        const { key, ownerId, sound } = setting
        return {
          write: (store) => store.renew(key, ownerId, token, LONG),
          check: (_, repeat) => {
            assert.strictEqual(succeeds(repeat)["token"], token)
            return sound.closeSession(sessionId, ownerId)
          }
        }
      })
  },
  release: {
    prepare: (setting) =>
      Effect.map(grant(setting), ({ sessionId, token }) => {
        const { key, ownerId, sound } = setting
        return {
          write: (store) => store.release(key, ownerId, token),
          check: (_, repeat) => {
            doneOr(repeat, "LockLost", "released")
            return Effect.andThen(isFree(setting), sound.closeSession(sessionId, ownerId))
          }
        }
      })
  },
  revoke: {
    prepare: (setting) =>
      Effect.map(grant(setting), ({ sessionId, token }) => {
        const { id, key, ownerId, sound } = setting
        const request = { key, operator: "ops", reason: "stuck for an hour", expectedToken: token, revocationId: id }
        return {
          write: (store) => store.revoke(request),
          check: (first, repeat) =>
            Effect.gen(function* () {
              const revoked = succeeds(repeat)
              assert.strictEqual(revoked["revokedToken"], token)
              agree(first, revoked, ["revokedToken", "newTokenFloor"])
              yield* isFree(setting)
              yield* sound.closeSession(sessionId, ownerId)
            })
        }
      })
  },
  open: {
    prepare: (setting) =>
      Effect.succeed({
        write: (store: Store) =>
          store.openSession({
            ownerId: setting.ownerId,
            ttlMillis: LONG,
            openId: AcquireId.make(`${setting.id}-open`)
          }),
        check: (first, repeat) => {
          const session = succeeds(repeat)
          agree(first, session, ["sessionId"])
          return Effect.flatMap(setting.sound.sessions({ prefix: "", after: "", limit: 500 }), (all) => {
            const mine = all.filter(({ ownerId }) => ownerId === setting.ownerId)
            assert.deepStrictEqual(
              mine.map(({ sessionId }) => sessionId as string),
              [session["sessionId"]]
            )
            const [only] = mine
            return only === undefined ? Effect.void : setting.sound.closeSession(only.sessionId, setting.ownerId)
          })
        }
      })
  },
  heartbeat: {
    prepare: (setting) =>
      Effect.map(open(setting, `${setting.id}-open`), ({ sessionId }) => ({
        write: (store) => store.heartbeat(sessionId, setting.ownerId),
        check: (_, repeat) => {
          assert.strictEqual(succeeds(repeat)["sessionId"], sessionId)
          return setting.sound.closeSession(sessionId, setting.ownerId)
        }
      }))
  },
  close: {
    prepare: (setting) =>
      Effect.map(grant(setting), ({ sessionId }) => ({
        write: (store) => store.closeSession(sessionId, setting.ownerId),
        check: (_, repeat) => {
          doneOr(repeat, "SessionUnknown")
          return isFree(setting)
        }
      }))
  }
}

/** `none`: all answers came. */
const attempt = Effect.fnUntraced(function* (world: LossyWorld, write: Write, lost: LostAnswer) {
  const name = (yield* Random.nextIntBetween(0, Number.MAX_SAFE_INTEGER)).toString(36)
  const setting: Setting = {
    ...world,
    key: LockKey.make(`lossy:${name}`),
    ownerId: OwnerId.make(`w-${name}`),
    id: AcquireId.make(name)
  }
  const prepared = yield* write.prepare(setting)
  const before = yield* world.faults.counts
  yield* world.faults.loseAnswer(lost)
  const first = yield* Effect.exit(prepared.write(world.lossy))
  yield* world.faults.heal
  // What has lost bytes in the middle can only be dropped.
  yield* world.faults.reset
  const after = yield* world.faults.counts
  const isLost = after.answersLost > before.answersLost
  if (Exit.isFailure(first)) {
    const failure = Exit.findErrorOption(first)
    const tag = failure._tag === "Some" ? (failure.value as { readonly _tag: string })._tag : String(first.cause)
    assert.include(["BackendUnavailable", "NotLeader"], tag)
  }
  yield* prepared.check(first, yield* Effect.exit(prepared.write(world.sound)))
  return { isLost, known: Exit.isSuccess(first) }
})

/** Loses the first answer, then the second, until a write needs no more of them. Answers how many were lost. */
export const loseEach = Effect.fnUntraced(function* (world: LossyWorld, name: string, write: Write) {
  const hows = [
    { how: "silence" },
    { how: "reset" },
    { how: { lateMillis: world.lateMillis } },
    // The store's own second try learns nothing either.
    { how: "silence", forGood: true }
  ] as const
  let lost = 0
  let unknown = 0
  for (const loss of hows) {
    for (let nth = 1, tries = 0; ;) {
      assert.isAtMost(nth, 30, `${name} needs no more answers than this`)
      const { isLost, known } = yield* attempt(world, write, { nth, ...loss })
      // On a busy machine it may run out of time before that answer.
      if (!isLost && !known && ++tries < 5) continue
      if (!isLost) break
      lost++
      nth++
      if (!known) unknown++
    }
  }
  assert.isAtLeast(lost, hows.length, `${name}: no answer was lost, so nothing was shown`)
  // As the service does every second: what a closed session has left is ended here.
  yield* world.sound.sweep
  return { lost, unknown }
})

/** The caller never comes back for what he may have been granted. */
export const orphanEnds = Effect.fnUntraced(function* (world: LossyWorld, ttlMillis: number, slackMillis: number) {
  const key = LockKey.make("lossy:orphan")
  const w1 = OwnerId.make("w1")
  const w2 = OwnerId.make("w2")
  const one = yield* world.sound.openSession({ ownerId: w1, ttlMillis: LONG, openId: AcquireId.make("orphan-1") })
  const two = yield* world.sound.openSession({ ownerId: w2, ttlMillis: LONG, openId: AcquireId.make("orphan-2") })
  const acquireId = AcquireId.make("orphan")
  // Its connection is open, and slow enough that the grant is seen before its answer has arrived.
  yield* world.lossy.openSession({ ownerId: w1, ttlMillis: LONG, openId: AcquireId.make("orphan-1") })
  yield* world.faults.set({ down: { delayMillis: 300 } })
  const asking = yield* Effect.forkChild(
    Effect.exit(world.lossy.tryAcquire({ key, ownerId: w1, sessionId: one.sessionId, ttlMillis, acquireId }))
  )
  yield* waitUntil(
    "it is granted",
    Effect.orElseSucceed(
      Effect.map(world.sound.inspect(key), ({ held }) => held),
      () => false
    )
  )
  yield* world.faults.set({ down: { flow: "drop" } })
  const startedAt = performance.now()
  const contend = world.sound.tryAcquire({ key, ownerId: w2, sessionId: two.sessionId, ttlMillis: LONG, acquireId })
  yield* waitUntil(
    "somebody else gets the key",
    contend.pipe(
      Effect.as(true),
      Effect.catchIf(
        (failure) => failure instanceof LockContended,
        () => Effect.succeed(false)
      )
    )
  )
  assert.isAtMost(performance.now() - startedAt, ttlMillis + slackMillis)
  assert.isTrue(Exit.isFailure(yield* Fiber.join(asking)))
  yield* world.faults.heal
  yield* world.sound.closeSession(one.sessionId, w1)
  yield* world.sound.closeSession(two.sessionId, w2)
})
