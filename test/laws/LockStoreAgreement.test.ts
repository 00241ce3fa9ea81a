/**
 * The lock store in memory answers as the real ones do: the same random calls, step by step, to both. Several histories
 * go on at once on keys of their own, so that a real store also batches what is asked.
 *
 * Leases either last longer than the test or are waited for: between two steps nothing is within two seconds of its end.
 *
 * The long run, about two minutes a store: DLOCK_STEPS=10000 npx vitest run test/laws/LockStoreAgreement.test.ts
 */
import { assert, describe, it } from "@effect/vitest"
import { Cause, Config, Context, Effect, Exit, Layer, Random, type Scope } from "effect"
import { AcquireId, FencingToken, LockKey, OwnerId, SessionId } from "../../src/core/lock/Lock.ts"
import { LockStore } from "../../src/core/lock/LockStore.ts"
import * as PgLockStore from "../../src/services/lock-server/PgLockStore.ts"
import * as EmbeddedEtcd from "../../src/services/platform/EmbeddedEtcd.ts"
import * as Migrations from "../../src/services/platform/Migrations.ts"
import * as SimLockStore from "../../src/sim/SimLockStore.ts"
import { freshStore } from "../support/etcd.ts"
import { TestDatabase } from "../support/pg.ts"

const STEPS = Effect.orDie(Config.withDefault(Config.Int("DLOCK_STEPS"), 360))
const HISTORIES = 12
const KEYS = 2
const SESSIONS = 3

const LONG = 3_600_000
const SHORT = 3_000
/** etcd keeps whole seconds and looks for what ran out twice a second. */
const AFTER_SHORT = 6_500

/** Small ones are granted by the store in memory. */
const NEVER_GRANTED = 9_000_000_000_000_000n

type Store = LockStore["Service"]

interface Step {
  readonly op: Op
  readonly key: number
  readonly session: number
  /** Whose name is given: mostly the session's or grant's own. */
  readonly stranger: boolean
  /** The same id as the last time, as after a lost answer. */
  readonly repeat: boolean
  /** Of the grants of this key so far, counted from the newest. */
  readonly back: number
  readonly id: string
}

type Op =
  | ("acquire" | "renew" | "release" | "revoke" | "revokeExpecting" | "inspect" | "record")
  | ("heartbeat" | "open" | "close" | "expireGrant" | "expireSession")

/** One of these is drawn for each step. */
const ops: ReadonlyArray<Op> = (
  "acquire acquire acquire acquire acquire renew renew release release revoke revoke revokeExpecting " +
  "inspect record heartbeat open close"
).split(" ") as ReadonlyArray<Op>

const draw = (id: string): Effect.Effect<Step> =>
  Effect.gen(function* () {
    const chance = (percent: number) =>
      Effect.map(Random.nextIntBetween(0, 100, { halfOpen: true }), (n) => n < percent)
    return {
      op: ops[yield* Random.nextIntBetween(0, ops.length, { halfOpen: true })] ?? "acquire",
      key: yield* Random.nextIntBetween(0, KEYS, { halfOpen: true }),
      session: yield* Random.nextIntBetween(0, SESSIONS, { halfOpen: true }),
      stranger: yield* chance(8),
      repeat: yield* chance(15),
      back: (yield* chance(75)) ? 0 : yield* Random.nextIntBetween(1, 4),
      id
    }
  })

/** A history at one store: what its names stand for there. */
const player = (store: Store, name: string) => {
  const sessions: Array<SessionId> = []
  const openIds: Array<AcquireId> = []
  const acquireIds = new Map<string, AcquireId>()
  const revocationIds = new Map<number, AcquireId>()
  const tokens = Array.from({ length: KEYS }, (): Array<bigint> => [])
  const keyOf = (key: number) => LockKey.make(`${name}:${key}`)
  const ownerOf = (session: number) => OwnerId.make(`${name}-w${session}`)
  const stranger = OwnerId.make("stranger")
  const sessionOf = (session: number) => sessions[session] ?? SessionId.make("none")

  const idOf = <K>(ids: Map<K, AcquireId>, key: K, step: Step) => {
    const id = (step.repeat ? ids.get(key) : undefined) ?? AcquireId.make(`${name}-${step.id}`)
    ids.set(key, id)
    return id
  }
  /** Tokens differ between stores; which grant of the key it is, and whether it is greater than all before, does not. */
  const ordinal = (key: number, token: bigint) => {
    const known = tokens[key] ?? []
    const at = known.indexOf(token)
    if (at !== -1) return `grant ${at}`
    const greater = known.every((before) => before < token)
    known.push(token)
    return greater ? `grant ${known.length - 1}` : `token ${token} after ${known.join()}`
  }
  const tokenAt = ({ back, key }: Step) => FencingToken.make(tokens[key]?.at(-1 - back) ?? NEVER_GRANTED)
  const holders = Array.from({ length: KEYS }, (): Array<number> => [])
  const holderOf = ({ back, key }: Step) => ownerOf(holders[key]?.at(-1 - back) ?? 0)

  const open = (session: number, step: Step, ttlMillis: number) => {
    const openId = (step.repeat ? openIds[session] : undefined) ?? AcquireId.make(`${name}-${step.id}`)
    openIds[session] = openId
    return Effect.map(store.openSession({ ownerId: ownerOf(session), ttlMillis, openId }), (opened) => {
      const same = sessions[session] === opened.sessionId
      sessions[session] = opened.sessionId
      return `${same ? "the same" : "another"} session of ${opened.ownerId}`
    })
  }
  const acquire = (step: Step, ttlMillis: number) => {
    const { key, session } = step
    return Effect.map(
      store.tryAcquire({
        key: keyOf(key),
        ownerId: step.stranger ? stranger : ownerOf(session),
        sessionId: sessionOf(session),
        ttlMillis,
        acquireId: idOf(acquireIds, `${key} ${sessionOf(session)}`, step)
      }),
      (grant) => {
        const before = tokens[key]?.length
        const which = ordinal(key, grant.token)
        if (tokens[key]?.length !== before) holders[key]?.push(session)
        return `${which} of ${grant.ownerId}`
      }
    )
  }
  const revoke = (step: Step, expectedToken: FencingToken | undefined) =>
    Effect.map(
      store.revoke({
        key: keyOf(step.key),
        operator: "ops",
        reason: "stuck for an hour",
        expectedToken,
        revocationId: idOf(revocationIds, step.key, step)
      }),
      ({ newTokenFloor, revokedToken }) =>
        `${ordinal(step.key, revokedToken)} revoked, floor ${newTokenFloor >= revokedToken ? "above" : "BELOW"}`
    )

  const play = (step: Step): Effect.Effect<unknown, { readonly _tag: string }> => {
    const { key, op, session } = step
    const owner = step.stranger ? stranger : holderOf(step)
    switch (op) {
      case "open":
        return open(session, step, LONG)
      case "heartbeat":
        return Effect.map(
          store.heartbeat(sessionOf(session), step.stranger ? stranger : ownerOf(session)),
          ({ ownerId }) => `kept for ${ownerId}`
        )
      case "close":
        return Effect.as(store.closeSession(sessionOf(session), step.stranger ? stranger : ownerOf(session)), "closed")
      case "acquire":
        return acquire(step, LONG)
      case "renew":
        return Effect.map(store.renew(keyOf(key), owner, tokenAt(step), LONG), ({ token }) => ordinal(key, token))
      case "release":
        return Effect.as(store.release(keyOf(key), owner, tokenAt(step)), "released")
      case "revoke":
        return revoke(step, undefined)
      case "revokeExpecting":
        return revoke(step, tokenAt(step))
      case "inspect":
        return Effect.map(store.inspect(keyOf(key)), ({ held, holderOwnerId }) => `held ${held} by ${holderOwnerId}`)
      case "record":
        return Effect.map(
          store.record(keyOf(key)),
          ({ held, ownerId, token }) => `held ${held}, last by ${ownerId}, ${ordinal(key, token)}`
        )
      case "expireGrant":
        return Effect.tap(acquire(step, SHORT), () => Effect.sleep(AFTER_SHORT))
      case "expireSession":
        return Effect.tap(open(session, { ...step, repeat: false }, SHORT), () =>
          Effect.andThen(Effect.exit(acquire(step, LONG)), Effect.sleep(AFTER_SHORT))
        )
    }
  }
  return (step: Step) =>
    Effect.map(Effect.exit(play(step)), (exit) => {
      if (Exit.isSuccess(exit)) return String(exit.value)
      const failure = Exit.findErrorOption(exit)
      if (failure._tag === "None") return String(exit.cause)
      const { _tag, holderOwnerId, reason } = failure.value as {
        readonly _tag: string
        readonly reason?: string
        readonly holderOwnerId?: string
      }
      return [_tag, reason, holderOwnerId].filter((part) => part !== undefined).join(" ")
    })
}

const agree = (real: Store) =>
  Effect.gen(function* () {
    const inMemory = yield* LockStore
    const steps = yield* STEPS
    const seed = yield* Random.nextIntBetween(0, 1_000_000)
    const seen = new Map<string, number>()
    const history = (index: number) =>
      Effect.gen(function* () {
        const name = `h${seed}-${index}`
        const players = [player(inMemory, name), player(real, name)] as const
        const told: Array<string> = []
        const take = Effect.fnUntraced(function* (step: Step) {
          const [expected, answer] = yield* Effect.all([players[0](step), players[1](step)], { concurrency: 2 })
          told.push(`${JSON.stringify(step)}\n  in memory: ${expected}\n  real: ${answer}`)
          seen.set(expected.split(" ")[0] ?? "", (seen.get(expected.split(" ")[0] ?? "") ?? 0) + 1)
          assert.strictEqual(answer, expected, `seed ${seed}\n${told.slice(-12).join("\n")}`)
        })
        const plain = { key: 0, stranger: false, repeat: false, back: 0 }
        for (let session = 0; session < SESSIONS; session++) {
          yield* take({ ...plain, op: "open", session, id: `first-${session}` })
        }
        const own = Math.ceil(steps / HISTORIES)
        for (let n = 0; n < own; n++) {
          // Now and then a lease runs out by itself, of a grant or of a session.
          if (n % 400 === 25 + index) {
            yield* take({
              ...plain,
              op: index % 2 === 0 ? "expireGrant" : "expireSession",
              session: 0,
              id: `short-${n}`
            })
          }
          yield* take(yield* draw(String(n)))
        }
      })
    yield* Effect.forEach(
      Array.from({ length: HISTORIES }, (_, i) => i),
      history,
      { concurrency: "unbounded" }
    )
    // Random calls that never get anywhere agree about nothing. Some answers are rare.
    const rare = steps < 2_000 ? [] : ["FencedOut", "LockNotFound", "SessionUnknown", "SessionExpired"]
    for (const kind of ["grant", "LockContended", "LockLost", "released", ...rare]) {
      assert.isAbove(seen.get(kind) ?? 0, 0, `${kind} came up: ${JSON.stringify([...seen])}`)
    }
  }).pipe(Effect.provide(SimLockStore.layer))

const stores: Readonly<Record<string, Effect.Effect<Store, unknown, Scope.Scope>>> = {
  PgLockStore: Effect.gen(function* () {
    const database = TestDatabase.layer("lockdb", (url) =>
      Migrations.migrate({ url, directory: PgLockStore.MIGRATIONS })
    )
    const { url } = yield* Effect.provideContext(TestDatabase, yield* Layer.build(database))
    return yield* Effect.provideContext(
      LockStore,
      yield* Layer.build(PgLockStore.layer({ url, timeoutMillis: 20_000 }))
    )
  }),
  EtcdLockStore: Effect.gen(function* () {
    const { endpoint } = yield* EmbeddedEtcd.start({ storage: { kind: "temporary" }, fast: true })
    const built = yield* Layer.build(freshStore({ endpoints: [endpoint], timeoutMillis: 20_000 }))
    return yield* Effect.provideContext(LockStore, built)
  })
}

describe.concurrent("the lock store in memory answers as", () => {
  for (const [name, start] of Object.entries(stores)) {
    it.live(`${name} does`, () => Effect.scoped(Effect.flatMap(start, agree)), 600_000)
  }

  it.live("one that calls every lock held does not", () =>
    Effect.gen(function* () {
      const other = Context.get(yield* Layer.build(SimLockStore.layer), LockStore)
      const inspect: Store["inspect"] = (key) => Effect.map(other.inspect(key), (info) => ({ ...info, held: true }))
      const cause = yield* Effect.flip(Effect.sandbox(agree({ ...other, inspect })))
      assert.include(Cause.pretty(cause), "real: held true")
    }).pipe(Effect.scoped)
  )
})
