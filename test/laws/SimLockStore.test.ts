import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Exit, Layer, Stream } from "effect"
import { TestClock } from "effect/testing"
import { AcquireId, FencingToken, LockKey, type LockGrant, type OwnerId } from "../../src/core/lock/Lock.ts"
import { LockContended } from "../../src/core/lock/LockErrors.ts"
import { type AcquireRequest, LockStore } from "../../src/core/lock/LockStore.ts"
import * as SimLockStore from "../../src/sim/SimLockStore.ts"
import { describeLockStore, laws, type LawWorld, runLaw } from "./LockStoreLaws.ts"

const world: LawWorld = { leaseMillis: 1_000, elapse: (millis) => TestClock.adjust(millis) }

describeLockStore("SimLockStore", SimLockStore.layer, { ...world, live: false })

type Store = LockStore["Service"]

/** Stores that break one promise each; the laws have to notice every one of them. */
const broken: Readonly<Record<string, (store: Store) => Partial<Store>>> = {
  "mints a new token at renewal": (store) => ({
    renew: (key, ownerId, token, ttlMillis) =>
      Effect.gen(function* () {
        const { grantedAt, sessionId } = yield* store.renew(key, ownerId, token, ttlMillis)
        yield* store.release(key, ownerId, token)
        const acquireId = AcquireId.make(`renewed-${token}`)
        const grant = yield* store.tryAcquire({ key, ownerId, sessionId, ttlMillis, acquireId }).pipe(Effect.orDie)
        return { ...grant, grantedAt }
      })
  }),
  "grants twice when the first answer was lost": (store) => {
    let n = 0
    return { tryAcquire: (request) => store.tryAcquire({ ...request, acquireId: AcquireId.make(`try-${++n}`) }) }
  },
  "grants again under an id whose grant ended": (store) => {
    let n = 0
    return {
      tryAcquire: (request) =>
        store
          .tryAcquire(request)
          .pipe(
            Effect.catchTag("LockLost", () =>
              store.tryAcquire({ ...request, acquireId: AcquireId.make(`again-${++n}`) })
            )
          )
    }
  },
  "takes an acquire id for the session's, whatever the key": (store) => {
    const grants = new Map<string, LockGrant>()
    return {
      tryAcquire: (request) => {
        const name = `${request.sessionId} ${request.acquireId}`
        const known = grants.get(name)
        return known !== undefined && known.key !== request.key
          ? Effect.succeed(known)
          : Effect.tap(store.tryAcquire(request), (grant) => Effect.sync(() => grants.set(name, grant)))
      }
    }
  },
  "promises more than it was asked for": (store) => ({
    tryAcquire: (request) =>
      Effect.map(store.tryAcquire(request), (grant) => ({ ...grant, ttlMillis: grant.ttlMillis + 2_000 }))
  }),
  "answers a repeat with the whole ttl": (store) => ({
    tryAcquire: (request) =>
      Effect.map(store.tryAcquire(request), (grant) => ({ ...grant, ttlMillis: request.ttlMillis }))
  }),
  "judges a lease by the caller's clock": (store) => ({
    tryAcquire: (request) =>
      store
        .tryAcquire(request)
        .pipe(
          Effect.catchTag("LockContended", (refusal) =>
            Effect.flatMap(Clock.currentTimeMillis, (now) =>
              refusal.holderExpiresAt !== null && refusal.holderExpiresAt <= now
                ? seize(store, request)
                : Effect.fail(refusal)
            )
          )
        )
  }),
  "grants what is held": (store) => ({
    tryAcquire: (request) =>
      store.tryAcquire(request).pipe(Effect.catchTag("LockContended", () => seize(store, request)))
  }),
  "is re-entrant": (store) => ({
    tryAcquire: (request) =>
      store.tryAcquire(request).pipe(
        Effect.catchTag("LockContended", (refusal) =>
          Effect.gen(function* () {
            const record = yield* store.record(request.key).pipe(Effect.orDie)
            if (record.sessionId !== request.sessionId) return yield* refusal
            return { ...record, ttlMillis: request.ttlMillis }
          })
        )
      )
  }),
  "releases without comparing the token": (store) => ({
    release: (key, ownerId, token) =>
      store.record(key).pipe(
        Effect.matchEffect({
          onFailure: () => store.release(key, ownerId, token),
          onSuccess: (record) => store.release(key, record.ownerId, record.token)
        })
      )
  }),
  "does not compare the owner of a grant": (store) => ({
    renew: (key, ownerId, token, ttlMillis) =>
      Effect.flatMap(ownerOf(store, key, ownerId), (owner) => store.renew(key, owner, token, ttlMillis))
  }),
  "does not compare the owner of a session": (store) => {
    const owners = new Map<string, OwnerId>()
    return {
      openSession: (request) =>
        Effect.tap(store.openSession(request), ({ ownerId, sessionId }) =>
          Effect.sync(() => owners.set(sessionId, ownerId))
        ),
      heartbeat: (sessionId, ownerId) => store.heartbeat(sessionId, owners.get(sessionId) ?? ownerId)
    }
  },
  "shortens a lease at renewal": (store) => ({
    renew: (key, ownerId, token, ttlMillis) =>
      Effect.flatMap(store.renew(key, ownerId, token, ttlMillis), (grant) =>
        Effect.map(Clock.currentTimeMillis, (now) => ({ ...grant, expiresAt: now + ttlMillis, ttlMillis }))
      )
  }),
  "renews the grants with the session": (store) => {
    const grants = new Map<string, Array<LockGrant>>()
    return {
      tryAcquire: (request) =>
        Effect.tap(store.tryAcquire(request), (grant) =>
          Effect.sync(() => grants.set(grant.sessionId, [...(grants.get(grant.sessionId) ?? []), grant]))
        ),
      heartbeat: (sessionId, ownerId) =>
        Effect.tap(store.heartbeat(sessionId, ownerId), () =>
          Effect.forEach(grants.get(sessionId) ?? [], ({ key, token, ttlMillis }) =>
            Effect.ignore(store.renew(key, ownerId, token, ttlMillis * 2))
          )
        )
    }
  },
  "keeps the grants of a closed session": () => ({ closeSession: () => Effect.void }),
  "keeps sessions that nobody keeps": (store) => ({
    openSession: (request) =>
      Effect.map(store.openSession({ ...request, ttlMillis: 10_000_000 }), (session) => ({
        ...session,
        ttlMillis: request.ttlMillis
      }))
  }),
  "opens a second session when the first answer was lost": (store) => {
    let n = 0
    return { openSession: (request) => store.openSession({ ...request, openId: AcquireId.make(`open-try-${++n}`) }) }
  },
  "answers an open id to any owner": (store) => {
    const owners = new Map<string, OwnerId>()
    return {
      openSession: (request) => {
        const ownerId = owners.get(request.openId) ?? request.ownerId
        owners.set(request.openId, ownerId)
        return store.openSession({ ...request, ownerId })
      }
    }
  },
  "goes back with its tokens": (store) => {
    const turn = (token: FencingToken) => FencingToken.make(1_000_000n - token)
    const turned = (grant: LockGrant): LockGrant => ({ ...grant, token: turn(grant.token) })
    return {
      tryAcquire: (request) => Effect.map(store.tryAcquire(request), turned),
      renew: (key, ownerId, token, ttlMillis) => Effect.map(store.renew(key, ownerId, turn(token), ttlMillis), turned),
      release: (key, ownerId, token) => store.release(key, ownerId, turn(token))
    }
  },
  "revokes without raising the floor": (store) => ({
    revoke: (request) =>
      Effect.map(store.revoke(request), (revoked) => ({
        ...revoked,
        newTokenFloor: FencingToken.make(revoked.newTokenFloor + 1n)
      }))
  }),
  "revokes whatever token is expected": (store) => ({
    revoke: (request) => store.revoke({ ...request, expectedToken: undefined })
  }),
  "revokes the next holder when the revoke is repeated": (store) => {
    let n = 0
    return { revoke: (request) => store.revoke({ ...request, revocationId: AcquireId.make(`revoke-try-${++n}`) }) }
  },
  "does not tell the holder that he was revoked": (store) => ({
    renew: (key, ownerId, token, ttlMillis) =>
      store.renew(key, ownerId, token, ttlMillis).pipe(
        Effect.catchTag("LockLost", (lost) =>
          lost.reason === "revoked"
            ? Effect.succeed({
                key,
                ownerId,
                token,
                ttlMillis,
                grantedAt: 0,
                expiresAt: ttlMillis,
                sessionId: "session-0" as LockGrant["sessionId"]
              })
            : Effect.fail(lost)
        )
      )
  }),
  "takes a key for everything below it": (store) => ({
    tryAcquire: (request) => store.tryAcquire({ ...request, key: LockKey.make(request.key.replace(/\/.*$/, "")) })
  }),
  "ignores case": (store) => ({
    tryAcquire: (request) => store.tryAcquire({ ...request, key: LockKey.make(request.key.toLowerCase()) })
  }),
  "cuts long keys": (store) => ({
    tryAcquire: (request) => store.tryAcquire({ ...request, key: LockKey.make(request.key.slice(0, 128)) })
  }),
  "shows the holder of a free key": (store) => ({
    inspect: (key) =>
      Effect.flatMap(store.inspect(key), (info) =>
        Effect.map(store.record(key), (record) => ({ ...info, holderOwnerId: record.ownerId }))
      )
  }),
  "finds keys that nobody ever asked for": (store) => ({
    inspect: (key) =>
      store
        .inspect(key)
        .pipe(
          Effect.catchTag("LockNotFound", () =>
            Effect.succeed({ key, held: false, holderOwnerId: null, expiresAt: null })
          )
        )
  }),
  "hides who holds the key": (store) => ({
    tryAcquire: (request) =>
      store
        .tryAcquire(request)
        .pipe(
          Effect.catchTag("LockContended", (refusal) =>
            Effect.fail(new LockContended({ ...refusal, holderOwnerId: null }))
          )
        )
  }),
  "tells an expiry twice": (store) => {
    let last: Effect.Success<Store["sweep"]>["expiredGrants"] = []
    return {
      sweep: Effect.map(store.sweep, (found) => {
        const expiredGrants = [...last, ...found.expiredGrants]
        last = found.expiredGrants
        return { ...found, expiredGrants }
      })
    }
  },
  "tells no expiry": (store) => ({ sweep: Effect.map(store.sweep, (found) => ({ ...found, expiredGrants: [] })) }),
  "announces nothing": () => ({ changes: Stream.never }),
  "loses the end of a page": (store) => ({
    records: (page) => Effect.map(store.records(page), (rows) => rows.slice(0, 2))
  })
}

const seize = (store: Store, request: AcquireRequest) =>
  Effect.gen(function* () {
    const record = yield* store.record(request.key)
    yield* store.release(record.key, record.ownerId, record.token)
    return yield* store.tryAcquire(request)
  }).pipe(Effect.orDie)

const ownerOf = (store: Store, key: LockKey, otherwise: OwnerId) =>
  store.record(key).pipe(
    Effect.map((record) => record.ownerId),
    Effect.catchTag("LockNotFound", () => Effect.succeed(otherwise))
  )

const violated = (layer: Layer.Layer<LockStore>) =>
  Effect.gen(function* () {
    const found: Array<string> = []
    for (const law of laws) {
      // A store that promises nothing may leave a law waiting for ever; the laws bound themselves by rounds.
      const exit = yield* Effect.exit(runLaw(law, world))
      if (Exit.isFailure(exit)) found.push(law.name)
    }
    return found
  }).pipe(Effect.provide(layer, { local: true }))

describe("the laws notice a store that", () => {
  const noticed = new Set<string>()
  for (const [what, breakIt] of Object.entries(broken)) {
    it.effect(what, () =>
      Effect.gen(function* () {
        const layer = Layer.effect(
          LockStore,
          Effect.map(LockStore, (store) => LockStore.of({ ...store, ...breakIt(store) }))
        ).pipe(Layer.provide(SimLockStore.layer))
        const found = yield* violated(layer)
        assert.isNotEmpty(found, "no law noticed")
        for (const name of found) noticed.add(name)
      })
    )
  }

  it("breaks any of them: no law is without a store that breaks it", () =>
    assert.isEmpty(laws.map((law) => law.name).filter((name) => !noticed.has(name))))
})
