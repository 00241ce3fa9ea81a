/**
 * What every lock store has to do, whatever it is made of: the laws of `core/lock/LockStore.ts`, one test each.
 *
 * The laws of one suite share a store, so each uses keys of its own and assumes nothing of time but that it passes.
 */
import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Equal, Exit, Fiber, type Layer, Stream } from "effect"
import { AcquireId, FencingToken, LockKey, OwnerId, type Session, SessionId } from "../../src/core/lock/Lock.ts"
import { LockStore } from "../../src/core/lock/LockStore.ts"

export interface LawWorld {
  /** A lease that the store keeps to, as short as may be. */
  readonly leaseMillis: number
  /** Lets so much of the store's time pass, and a little more. */
  readonly elapse: (millis: number) => Effect.Effect<void>
}

export interface Law {
  readonly name: string
  readonly holds: (world: LawWorld, key: (suffix?: string) => LockKey) => Effect.Effect<void, unknown, LockStore>
}

/** Much longer than any law takes. */
const LONG = 60_000

const w1 = OwnerId.make("w1")
const w2 = OwnerId.make("w2")

let names = 0
const fresh = (prefix: string) => AcquireId.make(`${prefix}-${++names}`)

const open = (ownerId: OwnerId, ttlMillis = LONG, openId = fresh("open")) =>
  Effect.flatMap(LockStore, (store) => store.openSession({ ownerId, ttlMillis, openId }))

const acquire = (session: Session, key: LockKey, ttlMillis = LONG, acquireId = fresh("acquire")) =>
  Effect.flatMap(LockStore, (store) =>
    store.tryAcquire({ key, ownerId: session.ownerId, sessionId: session.sessionId, ttlMillis, acquireId })
  )

const revoke = (key: LockKey, expectedToken?: FencingToken, revocationId = fresh("revoke")) =>
  Effect.flatMap(LockStore, (store) =>
    store.revoke({ key, operator: "ops", reason: "stuck for an hour", expectedToken, revocationId })
  )

const failsWith = <A, E extends { readonly _tag: string }, R>(
  effect: Effect.Effect<A, E, R>,
  tag: E["_tag"],
  reason?: string
) =>
  Effect.map(Effect.exit(effect), (exit) => {
    const found = Exit.findErrorOption(exit)
    assert.strictEqual(
      found._tag === "Some" ? found.value._tag : Exit.isSuccess(exit) ? "success" : String(exit.cause),
      tag
    )
    if (reason !== undefined && found._tag === "Some") {
      assert.strictEqual((found.value as { readonly reason?: string }).reason, reason)
    }
  })

/** Nobody else can have it. */
const isHeld = (key: LockKey, by: OwnerId) =>
  Effect.gen(function* () {
    const store = yield* LockStore
    const other = yield* open(OwnerId.make("somebody-else"))
    const refusal = yield* Effect.flip(acquire(other, key))
    assert.strictEqual(refusal._tag, "LockContended")
    assert.strictEqual((yield* store.inspect(key)).holderOwnerId, by)
  })

const isFree = (key: LockKey) =>
  Effect.gen(function* () {
    const store = yield* LockStore
    const info = yield* store.inspect(key)
    assert.deepStrictEqual(info, { key, held: false, holderOwnerId: null, expiresAt: null })
  })

const shifted = (millis: number) =>
  Effect.updateService(Clock.Clock, (clock): Clock.Clock => ({
    currentTimeMillisUnsafe: () => clock.currentTimeMillisUnsafe() + millis,
    currentTimeMillis: Effect.map(clock.currentTimeMillis, (now) => now + millis),
    currentTimeNanosUnsafe: () => clock.currentTimeNanosUnsafe() + BigInt(millis) * 1_000_000n,
    currentTimeNanos: Effect.map(clock.currentTimeNanos, (now) => now + BigInt(millis) * 1_000_000n),
    monotonicTimeNanosUnsafe: () => clock.monotonicTimeNanosUnsafe(),
    monotonicTimeNanos: clock.monotonicTimeNanos,
    sleep: (duration) => clock.sleep(duration)
  }))

export const laws: ReadonlyArray<Law> = [
  // ---------------------------------------------------------------------------
  // tokens
  // ---------------------------------------------------------------------------
  {
    name: "each token of a key is greater than every earlier one, however the earlier grant ended",
    holds: ({ elapse, leaseMillis }, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const session = yield* open(w1)
        const first = yield* acquire(session, key())
        yield* store.release(key(), w1, first.token)
        const closing = yield* open(w2)
        const second = yield* acquire(closing, key())
        yield* store.closeSession(closing.sessionId, w2)
        const third = yield* acquire(session, key(), leaseMillis)
        yield* elapse(leaseMillis)
        const fourth = yield* acquire(session, key())
        const { newTokenFloor, revokedToken } = yield* revoke(key())
        const fifth = yield* acquire(session, key())
        assert.isTrue(first.token >= 1n)
        assert.isTrue(second.token > first.token)
        assert.isTrue(third.token > second.token)
        assert.isTrue(fourth.token > third.token)
        assert.strictEqual(revokedToken, fourth.token)
        assert.isTrue(newTokenFloor >= revokedToken)
        assert.isTrue(fifth.token > newTokenFloor)
      })
  },
  {
    name: "of many contenders at once exactly one is granted, again and again",
    holds: (_, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const sessions = yield* Effect.forEach(Array.from({ length: 8 }), (_, i) => open(OwnerId.make(`c${i}`)))
        let last = 0n
        for (let round = 0; round < 5; round++) {
          const exits = yield* Effect.forEach(sessions, (session) => Effect.exit(acquire(session, key())), {
            concurrency: "unbounded"
          })
          const granted = exits.filter(Exit.isSuccess).map((exit) => exit.value)
          assert.strictEqual(granted.length, 1)
          const [grant] = granted
          if (grant === undefined) return
          assert.isTrue(grant.token > last)
          last = grant.token
          for (const exit of exits.filter(Exit.isFailure)) yield* failsWith(exit, "LockContended")
          yield* store.release(key(), grant.ownerId, grant.token)
        }
      })
  },
  // ---------------------------------------------------------------------------
  // who holds
  // ---------------------------------------------------------------------------
  {
    name: "a grant says whose it is and for how long, by the store's clock",
    holds: (_, key) =>
      Effect.gen(function* () {
        const session = yield* open(w1)
        const grant = yield* acquire(session, key(), 5_000)
        assert.strictEqual(grant.key, key())
        assert.strictEqual(grant.ownerId, w1)
        assert.strictEqual(grant.sessionId, session.sessionId)
        assert.isTrue(grant.ttlMillis <= grant.expiresAt - grant.grantedAt)
        assert.isTrue(grant.ttlMillis > 4_000 && grant.ttlMillis <= 6_000)
      })
  },
  {
    name: "a held key is refused to everybody, its holder's own session included, and the refusal names the holder",
    holds: (_, key) =>
      Effect.gen(function* () {
        const session = yield* open(w1)
        const other = yield* open(w2)
        const grant = yield* acquire(session, key())
        for (const contender of [session, other, yield* open(w1)]) {
          const refusal = yield* Effect.flip(acquire(contender, key()))
          assert.strictEqual(refusal._tag, "LockContended")
          if (refusal._tag !== "LockContended") return
          assert.strictEqual(refusal.holderOwnerId, w1)
          assert.strictEqual(refusal.holderExpiresAt, grant.expiresAt)
          assert.isTrue(refusal.retryAfterMillis > 0)
        }
        yield* isHeld(key(), w1)
      })
  },
  {
    name: "keys are compared exactly: prefixes, case and signs make different locks",
    holds: (_, key) =>
      Effect.gen(function* () {
        const session = yield* open(w1)
        const suffixes = ["", "/", "/1", ":1", ":10", "A", "a", "@2F", "_", "-", ".", "..", "//"]
        const grants = yield* Effect.forEach(suffixes, (suffix) => acquire(session, key(suffix)))
        assert.strictEqual(new Set(grants.map((grant) => grant.token)).size, suffixes.length)
        const long = yield* acquire(session, LockKey.make("k".repeat(200)))
        assert.strictEqual(long.key.length, 200)
        yield* failsWith(acquire(session, LockKey.make("k".repeat(200))), "LockContended")
        yield* acquire(session, LockKey.make("k".repeat(199)))
      })
  },
  {
    name: "an unseen key is not found, a held one shows its holder and no token, a free one shows nobody",
    holds: (_, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        yield* failsWith(store.inspect(key()), "LockNotFound")
        yield* failsWith(store.record(key()), "LockNotFound")
        const session = yield* open(w1)
        const grant = yield* acquire(session, key())
        assert.deepStrictEqual(yield* store.inspect(key()), {
          key: key(),
          held: true,
          holderOwnerId: w1,
          expiresAt: grant.expiresAt
        })
        yield* store.release(key(), w1, grant.token)
        yield* isFree(key())
      })
  },
  // ---------------------------------------------------------------------------
  // leases
  // ---------------------------------------------------------------------------
  {
    name: "a grant ends with its lease, and its holder can then neither renew nor release",
    holds: ({ elapse, leaseMillis }, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const session = yield* open(w1)
        const grant = yield* acquire(session, key(), leaseMillis)
        yield* elapse(leaseMillis)
        yield* isFree(key())
        yield* failsWith(store.renew(key(), w1, grant.token, leaseMillis), "LockLost", "expired")
        const next = yield* acquire(yield* open(w2), key())
        yield* failsWith(store.renew(key(), w1, grant.token, leaseMillis), "LockLost", "expired")
        yield* failsWith(store.release(key(), w1, grant.token), "LockLost", "expired")
        yield* isHeld(key(), w2)
        yield* store.renew(key(), w2, next.token, LONG)
      })
  },
  {
    name: "a caller whose clock is a minute fast or slow changes nothing: the store judges by its own",
    holds: ({ elapse, leaseMillis }, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const other = yield* open(w2)
        for (const skew of [61_000, -61_000]) {
          const session = yield* open(w1).pipe(shifted(skew))
          const grant = yield* acquire(session, key(), leaseMillis).pipe(shifted(skew))
          yield* failsWith(acquire(other, key()).pipe(shifted(61_000)), "LockContended")
          yield* failsWith(acquire(other, key()).pipe(shifted(-61_000)), "LockContended")
          yield* store.renew(key(), w1, grant.token, leaseMillis).pipe(shifted(-skew))
          yield* store.heartbeat(session.sessionId, w1).pipe(shifted(-skew))
          yield* elapse(leaseMillis)
          yield* failsWith(store.renew(key(), w1, grant.token, leaseMillis).pipe(shifted(skew)), "LockLost")
          const next = yield* acquire(other, key()).pipe(shifted(-skew))
          yield* store.release(key(), w2, next.token)
        }
      })
  },
  {
    name: "a renewed grant keeps its token and lasts longer",
    holds: ({ elapse, leaseMillis }, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const session = yield* open(w1)
        const grant = yield* acquire(session, key(), leaseMillis)
        for (let i = 0; i < 3; i++) {
          yield* elapse(leaseMillis / 2)
          const renewed = yield* store.renew(key(), w1, grant.token, leaseMillis)
          assert.strictEqual(renewed.token, grant.token)
          assert.strictEqual(renewed.sessionId, session.sessionId)
          assert.strictEqual(renewed.grantedAt, grant.grantedAt)
          assert.isTrue(renewed.ttlMillis >= leaseMillis - 1)
          yield* isHeld(key(), w1)
        }
        assert.strictEqual((yield* store.record(key())).token, grant.token)
      })
  },
  {
    name: "a renew never shortens a lease, and says what the lease is",
    holds: ({ elapse, leaseMillis }, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const session = yield* open(w1)
        const grant = yield* acquire(session, key(), LONG)
        const renewed = yield* store.renew(key(), w1, grant.token, leaseMillis)
        assert.isTrue(renewed.expiresAt >= grant.expiresAt)
        assert.isTrue(renewed.ttlMillis > LONG - 10_000)
        yield* elapse(leaseMillis)
        yield* isHeld(key(), w1)
      })
  },
  {
    name: "renew and release compare token and owner exactly, and a refusal changes nothing",
    holds: (_, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const session = yield* open(w1)
        const old = yield* acquire(session, key())
        yield* store.release(key(), w1, old.token)
        const grant = yield* acquire(session, key())
        const wrongTokens = [old.token, grant.token + 1n, grant.token * 10n, 1n].map((n) => FencingToken.make(n))
        for (const token of wrongTokens) {
          yield* failsWith(store.renew(key(), w1, token, LONG), "LockLost")
          yield* failsWith(store.release(key(), w1, token), "LockLost")
        }
        for (const owner of ["w2", "w", "w10", "W1"].map((name) => OwnerId.make(name))) {
          yield* failsWith(store.renew(key(), owner, grant.token, LONG), "LockLost")
          yield* failsWith(store.release(key(), owner, grant.token), "LockLost")
        }
        yield* failsWith(store.renew(key("/other"), w1, grant.token, LONG), "LockLost", "superseded")
        yield* failsWith(store.release(key("/other"), w1, grant.token), "LockLost", "superseded")
        yield* failsWith(store.inspect(key("/other")), "LockNotFound")
        yield* isHeld(key(), w1)
        yield* store.release(key(), w1, grant.token)
      })
  },
  {
    name: "a released key is free at once, and a repeated release is a benign loss",
    holds: (_, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const session = yield* open(w1)
        const grant = yield* acquire(session, key())
        const { heldMillis } = yield* store.release(key(), w1, grant.token)
        assert.isTrue(heldMillis >= 0 && heldMillis < LONG)
        yield* failsWith(store.release(key(), w1, grant.token), "LockLost", "released")
        yield* failsWith(store.renew(key(), w1, grant.token, LONG), "LockLost", "released")
        yield* acquire(yield* open(w2), key())
        yield* failsWith(store.release(key(), w1, grant.token), "LockLost", "released")
        yield* isHeld(key(), w2)
      })
  },
  // ---------------------------------------------------------------------------
  // repeats
  // ---------------------------------------------------------------------------
  {
    name: "an acquire repeated under its id is answered with its grant and what remains of it",
    holds: ({ elapse, leaseMillis }, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const session = yield* open(w1)
        const id = fresh("id")
        const grant = yield* acquire(session, key(), leaseMillis * 4, id)
        yield* elapse(leaseMillis)
        const repeated = yield* acquire(session, key(), leaseMillis * 4, id)
        assert.strictEqual(repeated.token, grant.token)
        assert.strictEqual(repeated.grantedAt, grant.grantedAt)
        assert.strictEqual(repeated.expiresAt, grant.expiresAt)
        assert.isTrue(repeated.ttlMillis <= leaseMillis * 3)
        assert.isTrue(repeated.ttlMillis > 0)
        // It is no second grant: releasing the one frees the key.
        yield* store.release(key(), w1, repeated.token)
        yield* isFree(key())
      })
  },
  {
    name: "repeats at the same time end in one grant",
    holds: (_, key) =>
      Effect.gen(function* () {
        const session = yield* open(w1)
        const id = fresh("id")
        const grants = yield* Effect.forEach(Array.from({ length: 6 }), () => acquire(session, key(), LONG, id), {
          concurrency: "unbounded"
        })
        assert.strictEqual(new Set(grants.map((grant) => grant.token)).size, 1)
      })
  },
  {
    name: "an acquire id grants once: after its grant ended it is lost, and tells how",
    holds: ({ elapse, leaseMillis }, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const session = yield* open(w1)
        const released = fresh("id")
        const grant = yield* acquire(session, key("/a"), LONG, released)
        yield* store.release(key("/a"), w1, grant.token)
        yield* failsWith(acquire(session, key("/a"), LONG, released), "LockLost", "released")
        yield* isFree(key("/a"))

        const revoked = fresh("id")
        yield* acquire(session, key("/b"), LONG, revoked)
        yield* revoke(key("/b"))
        yield* failsWith(acquire(session, key("/b"), LONG, revoked), "LockLost", "revoked")

        const expired = fresh("id")
        yield* acquire(session, key("/c"), leaseMillis, expired)
        yield* elapse(leaseMillis)
        yield* failsWith(acquire(session, key("/c"), LONG, expired), "LockLost", "expired")
        yield* acquire(yield* open(w2), key("/c"))
        yield* failsWith(acquire(session, key("/c"), LONG, expired), "LockLost", "expired")
        yield* isHeld(key("/c"), w2)
      })
  },
  {
    name: "an acquire id means nothing for another key or session",
    holds: (_, key) =>
      Effect.gen(function* () {
        const id = fresh("id")
        const session = yield* open(w1)
        const one = yield* acquire(session, key("/a"), LONG, id)
        const two = yield* acquire(session, key("/b"), LONG, id)
        assert.notStrictEqual(one.token, two.token)
        yield* failsWith(acquire(yield* open(w1), key("/a"), LONG, id), "LockContended")
        yield* failsWith(acquire(yield* open(w2), key("/a"), LONG, id), "LockContended")
      })
  },
  {
    name: "an open repeated under its id is the same session while that lives, and only for its owner",
    holds: (_, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const id = fresh("open")
        const session = yield* open(w1, LONG, id)
        const repeats = yield* Effect.forEach(Array.from({ length: 4 }), () => open(w1, LONG, id), {
          concurrency: "unbounded"
        })
        for (const repeat of repeats) {
          assert.strictEqual(repeat.sessionId, session.sessionId)
          assert.isTrue(repeat.expiresAt >= session.expiresAt)
        }
        const foreign = yield* open(w2, LONG, id)
        assert.notStrictEqual(foreign.sessionId, session.sessionId)
        assert.strictEqual(foreign.ownerId, w2)
        const grant = yield* acquire(session, key())
        yield* store.closeSession(session.sessionId, w1)
        const reopened = yield* open(w1, LONG, id)
        assert.notStrictEqual(reopened.sessionId, session.sessionId)
        yield* failsWith(store.renew(key(), w1, grant.token, LONG), "LockLost", "session")
      })
  },
  {
    name: "opens at the same time under one id end in one session",
    holds: () =>
      Effect.gen(function* () {
        const id = fresh("open")
        const sessions = yield* Effect.forEach(Array.from({ length: 6 }), () => open(w1, LONG, id), {
          concurrency: "unbounded"
        })
        assert.strictEqual(new Set(sessions.map((session) => session.sessionId)).size, 1)
      })
  },
  // ---------------------------------------------------------------------------
  // sessions
  // ---------------------------------------------------------------------------
  {
    name: "a closed session frees its grants at once and is unknown ever after",
    holds: (_, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const session = yield* open(w1)
        const grants = yield* Effect.forEach(["/a", "/b", "/c"], (suffix) => acquire(session, key(suffix)))
        yield* store.closeSession(session.sessionId, w1)
        yield* isFree(key("/a"))
        yield* failsWith(store.closeSession(session.sessionId, w1), "SessionUnknown")
        yield* failsWith(store.heartbeat(session.sessionId, w1), "SessionUnknown")
        yield* failsWith(acquire(session, key("/d")), "SessionUnknown")
        yield* failsWith(store.inspect(key("/d")), "LockNotFound")
        const other = yield* open(w2)
        for (const grant of grants) {
          yield* failsWith(store.renew(grant.key, w1, grant.token, LONG), "LockLost", "session")
          const next = yield* acquire(other, grant.key)
          assert.isTrue(next.token > grant.token)
          yield* failsWith(store.release(grant.key, w1, grant.token), "LockLost", "session")
          yield* isHeld(grant.key, w2)
        }
      })
  },
  {
    name: "a session that is not kept ends by itself, takes its grants with it and does not come back",
    holds: ({ elapse, leaseMillis }, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const session = yield* open(w1, leaseMillis)
        const taken = yield* acquire(session, key("/a"), LONG)
        const left = yield* acquire(session, key("/b"), LONG)
        yield* elapse(leaseMillis)
        const next = yield* acquire(yield* open(w2), key("/a"))
        assert.isTrue(next.token > taken.token)
        yield* failsWith(store.heartbeat(session.sessionId, w1), "SessionExpired")
        yield* failsWith(acquire(session, key("/c")), "SessionExpired")
        yield* failsWith(store.closeSession(session.sessionId, w1), "SessionExpired")
        yield* failsWith(store.renew(key("/a"), w1, taken.token, LONG), "LockLost", "session")
        yield* failsWith(store.renew(key("/b"), w1, left.token, LONG), "LockLost", "session")
        yield* failsWith(store.release(key("/b"), w1, left.token), "LockLost", "session")
        yield* isFree(key("/b"))
        yield* failsWith(revoke(key("/b")), "LockNotFound")
        yield* failsWith(store.inspect(key("/c")), "LockNotFound")
      })
  },
  {
    name: "a heartbeat keeps the session but no grant of it",
    holds: ({ elapse, leaseMillis }, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const session = yield* open(w1, leaseMillis * 2)
        const short = yield* acquire(session, key("/a"), leaseMillis)
        yield* acquire(session, key("/b"), LONG)
        for (let i = 0; i < 4; i++) {
          yield* elapse(leaseMillis / 2)
          const kept = yield* store.heartbeat(session.sessionId, w1)
          assert.strictEqual(kept.sessionId, session.sessionId)
          assert.strictEqual(kept.ttlMillis, session.ttlMillis)
          assert.isTrue(kept.expiresAt > session.expiresAt)
        }
        yield* failsWith(store.renew(key("/a"), w1, short.token, leaseMillis), "LockLost", "expired")
        yield* isFree(key("/a"))
        yield* isHeld(key("/b"), w1)
      })
  },
  {
    name: "a session serves its owner alone",
    holds: (_, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const session = yield* open(w1)
        const stolen = { ...session, ownerId: w2 }
        yield* failsWith(store.heartbeat(session.sessionId, w2), "SessionUnknown")
        yield* failsWith(store.closeSession(session.sessionId, w2), "SessionUnknown")
        yield* failsWith(acquire(stolen, key()), "SessionUnknown")
        yield* failsWith(store.heartbeat(SessionId.make("never-seen"), w1), "SessionUnknown")
        yield* failsWith(store.inspect(key()), "LockNotFound")
        yield* store.heartbeat(session.sessionId, w1)
        const grant = yield* acquire(session, key())
        yield* failsWith(store.heartbeat(session.sessionId, OwnerId.make("w10")), "SessionUnknown")
        yield* store.release(key(), w1, grant.token)
      })
  },
  // ---------------------------------------------------------------------------
  // revocation
  // ---------------------------------------------------------------------------
  {
    name: "a revoked holder has lost the key, and every later token is above the floor",
    holds: (_, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const session = yield* open(w1)
        const grant = yield* acquire(session, key())
        const revoked = yield* revoke(key(), grant.token)
        assert.strictEqual(revoked.key, key())
        assert.strictEqual(revoked.revokedToken, grant.token)
        assert.isTrue(revoked.newTokenFloor >= grant.token)
        assert.isNotNull(revoked.heldMillis)
        yield* isFree(key())
        yield* failsWith(store.renew(key(), w1, grant.token, LONG), "LockLost", "revoked")
        yield* failsWith(store.release(key(), w1, grant.token), "LockLost", "revoked")
        const next = yield* acquire(session, key())
        assert.isTrue(next.token > revoked.newTokenFloor)
        const { lastRevocation } = yield* store.record(key())
        assert.strictEqual(lastRevocation?.operator, "ops")
        assert.strictEqual(lastRevocation?.reason, "stuck for an hour")
      })
  },
  {
    name: "a revoke that expects another token changes nothing, and there is nothing to revoke on a free key",
    holds: (_, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        yield* failsWith(revoke(key()), "LockNotFound")
        const session = yield* open(w1)
        const old = yield* acquire(session, key())
        yield* store.release(key(), w1, old.token)
        yield* failsWith(revoke(key()), "LockNotFound")
        yield* failsWith(revoke(key(), old.token), "LockNotFound")
        const grant = yield* acquire(session, key())
        const refused = yield* Effect.flip(revoke(key(), old.token))
        assert.strictEqual(refused._tag, "FencedOut")
        if (refused._tag !== "FencedOut") return
        assert.strictEqual(refused.point, "lock")
        assert.strictEqual(refused.op, "revoke")
        assert.strictEqual(refused.resource, key())
        assert.strictEqual(refused.presented, old.token)
        assert.strictEqual(refused.highest, grant.token)
        yield* isHeld(key(), w1)
        yield* store.renew(key(), w1, grant.token, LONG)
      })
  },
  {
    name: "a repeated revoke is answered again and never hits the next holder",
    holds: (_, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const id = fresh("revoke")
        const grant = yield* acquire(yield* open(w1), key())
        const first = yield* revoke(key(), grant.token, id)
        const again = yield* revoke(key(), grant.token, id)
        assert.deepStrictEqual(again, { ...first, heldMillis: null })
        const next = yield* acquire(yield* open(w2), key())
        assert.deepStrictEqual(yield* revoke(key(), undefined, id), { ...first, heldMillis: null })
        yield* isHeld(key(), w2)
        yield* store.renew(key(), w2, next.token, LONG)
        // The id is the key's own.
        yield* acquire(yield* open(w1), key("/other"))
        const other = yield* revoke(key("/other"), undefined, id)
        assert.notStrictEqual(other.revokedToken, first.revokedToken)
      })
  },
  {
    name: "revokes at the same time under one id end one grant once",
    holds: (_, key) =>
      Effect.gen(function* () {
        const id = fresh("revoke")
        yield* acquire(yield* open(w1), key())
        const revoked = yield* Effect.forEach(Array.from({ length: 5 }), () => revoke(key(), undefined, id), {
          concurrency: "unbounded"
        })
        assert.strictEqual(new Set(revoked.map((one) => one.newTokenFloor)).size, 1)
        assert.strictEqual(revoked.filter((one) => one.heldMillis !== null).length, 1)
      })
  },
  // ---------------------------------------------------------------------------
  // what is told
  // ---------------------------------------------------------------------------
  {
    name: "what ended by itself is told exactly once, also after its key was taken over",
    holds: ({ elapse, leaseMillis }, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        yield* store.sweep
        const session = yield* open(w1)
        const dying = yield* open(w1, leaseMillis)
        const expired = yield* acquire(session, key("/expired"), leaseMillis)
        const taken = yield* acquire(session, key("/taken"), leaseMillis)
        const dead = yield* acquire(dying, key("/dead"), LONG)
        const closing = yield* open(w1)
        const closed = yield* acquire(closing, key("/closed"), LONG)
        const released = yield* acquire(session, key("/released"), LONG)
        yield* store.release(released.key, w1, released.token)
        yield* store.closeSession(closing.sessionId, w1)
        yield* elapse(leaseMillis)
        yield* acquire(session, taken.key)
        const sweeps = yield* Effect.all([store.sweep, store.sweep, store.sweep], { concurrency: "unbounded" })
        const mine = sweeps
          .flatMap((found) => found.expiredGrants)
          .filter((ended) => ended.key.startsWith(key()))
          .sort((a, b) => (a.key < b.key ? -1 : 1))
        assert.deepStrictEqual(
          mine.map(({ end, key, ownerId, token }) => ({ key, token, ownerId, end })),
          [
            { key: closed.key, token: closed.token, ownerId: w1, end: "session" },
            { key: dead.key, token: dead.token, ownerId: w1, end: "session" },
            { key: expired.key, token: expired.token, ownerId: w1, end: "expired" },
            { key: taken.key, token: taken.token, ownerId: w1, end: "expired" }
          ]
        )
        // A lease that was granted ahead has at least 95 % of what was asked left.
        const least = leaseMillis * 0.95 - 50
        for (const { heldMillis, key } of mine.filter((ended) => ended.key !== closed.key)) {
          assert.isTrue(heldMillis >= least && heldMillis <= leaseMillis + 1_500, `${key}: ${heldMillis} ms`)
        }
        assert.isTrue(sweeps.reduce((sum, found) => sum + found.expiredSessions, 0) >= 1)
        const after = yield* store.sweep
        assert.isEmpty(after.expiredGrants.filter((ended) => ended.key.startsWith(key())))
      })
  },
  {
    name: "a sweep counts what is live",
    holds: (_, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const counted = Effect.gen(function* () {
          const before = yield* store.sweep
          const since = Effect.map(store.sweep, ({ liveGrants, liveSessions }) => [
            liveGrants - before.liveGrants,
            liveSessions - before.liveSessions
          ])
          const session = yield* open(w1)
          const grant = yield* acquire(session, key("/a"))
          yield* acquire(session, key("/b"))
          const acquired = yield* since
          yield* store.release(grant.key, w1, grant.token)
          const released = yield* since
          yield* store.closeSession(session.sessionId, w1)
          return [acquired, released, yield* since]
        })
        const expected = [
          [2, 1],
          [1, 1],
          [0, 0]
        ]
        // A lease that another law left can run out between two sweeps, hence more than once.
        let last = yield* counted
        for (let again = 0; again < 10 && !Equal.equals(last, expected); again++) last = yield* counted
        assert.deepStrictEqual(last, expected)
      })
  },
  {
    name: "release, revoke and close are announced to who follows the changes",
    holds: (_, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const expected = ["/released", "/revoked", "/closed"].map((suffix) => key(suffix))
        const seen = new Set<LockKey | null>()
        const follow = yield* store.changes.pipe(
          Stream.runForEachWhile((change) => {
            seen.add(change.key)
            return Effect.succeed(!expected.every((key) => seen.has(key)))
          }),
          Effect.forkChild
        )
        const session = yield* open(w1)
        // The first of them may come before the stream listens, hence again and again.
        const provoke = Effect.gen(function* () {
          const released = yield* acquire(session, key("/released"))
          yield* store.release(released.key, w1, released.token)
          yield* acquire(session, key("/revoked"))
          yield* revoke(key("/revoked"))
          const closing = yield* open(w2)
          yield* acquire(closing, key("/closed"))
          yield* store.closeSession(closing.sessionId, w2)
          for (let i = 0; i < 20; i++) yield* Effect.yieldNow
        })
        let rounds = 0
        while (!expected.every((key) => seen.has(key))) {
          if (++rounds > 500) assert.fail(`never announced: ${expected.filter((key) => !seen.has(key)).join(", ")}`)
          yield* provoke
        }
        yield* Fiber.interrupt(follow)
      })
  },
  {
    name: "operators page through every key and session, in order, and see the tokens",
    holds: (_, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const session = yield* open(w1)
        const grants = yield* Effect.forEach(
          Array.from({ length: 7 }, (_, i) => key(`/${i}`)),
          (key) => acquire(session, key)
        )
        const [released] = grants
        if (released !== undefined) yield* store.release(released.key, w1, released.token)
        const pages: Array<{ readonly key: LockKey; readonly token: bigint; readonly held: boolean }> = []
        for (let after = ""; ; after = pages.at(-1)?.key ?? "") {
          const page = yield* store.records({ prefix: key(), after, limit: 3 })
          pages.push(...page)
          if (page.length < 3) break
        }
        assert.deepStrictEqual(
          pages.map(({ held, key, token }) => ({ held, key, token })),
          grants.map(({ key, token }) => ({ held: key !== released?.key, key, token }))
        )
        const one = yield* store.record(key("/3"))
        assert.strictEqual(one.sessionId, session.sessionId)
        assert.isNull(one.lastRevocation)
        const sessions = yield* store.sessions({ prefix: session.sessionId, after: "", limit: 10 })
        assert.deepStrictEqual(
          sessions.map(({ ownerId, sessionId }) => ({ ownerId, sessionId })),
          [{ ownerId: w1, sessionId: session.sessionId }]
        )
        yield* store.closeSession(session.sessionId, w1)
        assert.isEmpty(yield* store.sessions({ prefix: session.sessionId, after: "", limit: 10 }))
      })
  },
  {
    name: "hundreds of sessions that die leave their keys free",
    holds: ({ elapse, leaseMillis }, key) =>
      Effect.gen(function* () {
        const store = yield* LockStore
        const count = 120
        const ttl = leaseMillis * 5
        const grants = yield* Effect.forEach(
          Array.from({ length: count }, (_, i) => i),
          (i) => Effect.flatMap(open(OwnerId.make(`m${i}`), ttl), (session) => acquire(session, key(`/${i}`), LONG)),
          { concurrency: 8 }
        )
        assert.strictEqual(new Set(grants.map((grant) => grant.key)).size, count)
        yield* elapse(ttl)
        const other = yield* open(w2)
        yield* Effect.forEach(grants.slice(0, 20), (grant) => acquire(other, grant.key), { concurrency: 8 })
        const told: Array<string> = []
        for (let i = 0; i < 50 && told.length < count; i++) {
          const { expiredGrants } = yield* store.sweep
          told.push(...expiredGrants.map((ended) => ended.key).filter((ended) => ended.startsWith(key())))
        }
        assert.strictEqual(told.length, count)
        assert.strictEqual(new Set(told).size, count)
      })
  }
]

/** A key prefix of its own for each run of each law. */
let runs = 0
export const runLaw = (law: Law, world: LawWorld): Effect.Effect<void, unknown, LockStore> =>
  Effect.suspend(() => {
    const run = ++runs
    return law.holds(world, (suffix = "") => LockKey.make(`law-${run}:${suffix}`))
  })

const TICK_MILLIS = 25
const STARVED_MILLIS = 250

/** The longest that a timer was late while the effect ran. */
const withLateness = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.scoped(
    Effect.gen(function* () {
      let late = 0
      const tick = Effect.gen(function* () {
        const before = yield* Clock.monotonicTimeNanos
        yield* Effect.sleep(TICK_MILLIS)
        late = Math.max(late, Number((yield* Clock.monotonicTimeNanos) - before) / 1e6 - TICK_MILLIS)
      })
      yield* Effect.forkScoped(Effect.forever(tick))
      const exit = yield* Effect.exit(effect)
      return { exit, late }
    })
  )

/**
 * On the real clock. Real leases run out while the machine looks elsewhere, and then a law fails that holds: one that
 * failed while timers were late is tried again, up to twice. On a machine that is not starved each is tried once.
 */
export const runLiveLaw = (law: Law, world: LawWorld) =>
  Effect.gen(function* () {
    for (let attempt = 1; ; attempt++) {
      const { exit, late } = yield* withLateness(runLaw(law, world))
      if (Exit.isSuccess(exit) || late < STARVED_MILLIS || attempt === 3) return yield* exit
      yield* Effect.logWarning(`"${law.name}" is tried again: a timer was ${Math.round(late)} ms late`)
    }
  })

/** `live`: on the real clock; else on the test clock. */
export const describeLockStore = <E>(
  name: string,
  layer: Layer.Layer<LockStore, E>,
  world: LawWorld & { readonly live: boolean; readonly timeoutMillis?: number }
) =>
  describe(name, () => {
    it.layer(layer, { excludeTestServices: world.live, timeout: "60 seconds" })((it) => {
      const run = world.live ? runLiveLaw : runLaw
      for (const law of laws) it.effect(law.name, () => run(law, world), world.timeoutMillis ?? 30_000)
    })
  })
