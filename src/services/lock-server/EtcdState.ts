/**
 * What an instance of the etcd store has in hand: its client, its leases, and what it knows that cannot change any more.
 * Nothing of it is needed for safety: every decision is taken by a transaction.
 */
import { Clock, Effect, Random, type Scope } from "effect"
import type { ITxnResponse } from "etcd3"
import { boundedBy } from "../../core/Bound.ts"
import type { FencingToken, LockKey, OwnerId, SessionId } from "../../core/lock/Lock.ts"
import {
  type BackendError,
  type BackendUnavailable,
  backendUnavailable,
  NotLeader
} from "../../core/lock/LockErrors.ts"
import type { ExpiredGrant } from "../../core/lock/LockStore.ts"
import { type Answer, type Budget, type EtcdClient, EtcdOutage, LeaseGone } from "./EtcdClient.ts"
import { found, type Layout, layout, put, range, readFloor, revisionIs, type Stored } from "./EtcdLayout.ts"
import { type Leases, makeLeases, makeMemory, type Memory } from "./EtcdLeases.ts"
import * as EtcdLeasesAhead from "./EtcdLeasesAhead.ts"

export interface StateOptions {
  /** Bound of each operation. */
  readonly timeoutMillis: number
  /** Everything lies below it. Default: `/dlock/`. */
  readonly prefix?: string | undefined
}

/** A grant of which this instance knows more than lies in etcd: how far its lease reaches. */
interface KnownGrant {
  readonly stored: Stored
  readonly expiresAt: number
  /** Its lease, if this instance has granted it. */
  readonly lease: EtcdLeasesAhead.GrantLease | undefined
}

interface KnownSession {
  /** Never changes. */
  readonly ownerId: OwnerId
  /** As far as this instance knows; undefined when another one has opened and kept it. */
  readonly expiresAt: number | undefined
}

export interface State {
  readonly client: EtcdClient
  readonly at: Layout
  readonly prefix: string
  readonly timeoutMillis: number
  /** By the clock of the instance; whoever calls may have another one. */
  readonly now: () => number
  readonly leases: Leases
  readonly ahead: EtcdLeasesAhead.LeasesAhead
  /** For acquire ids and what operators want to see: at least 10 minutes. */
  readonly memory: Memory
  /** For how a grant ended: at least 2 minutes; after that it is `superseded`. */
  readonly shortMemory: Memory
  readonly grants: Recent<LockKey, KnownGrant>
  readonly sessions: Recent<SessionId, KnownSession>
  /** Keys that somebody else held when this instance last asked for them. */
  readonly contended: Recent<LockKey, true>
  /** Grants whose end this instance has written and the next sweep has to tell. */
  readonly untold: Array<ExpiredGrant>
  /** A name for a call, unlike any other. */
  readonly callName: () => string
  floor: Floor | undefined
  /** The grants that the last sweep found, by key. */
  swept: ReadonlyMap<string, Stored>
}

export interface Floor {
  readonly revision: string
  /** Added to a revision it makes the token. */
  readonly offset: string
  /** This is not the cluster in which the tokens were minted: nothing is granted until an operator has looked. */
  readonly foreign: boolean
}

const REMEMBERED = 10_000

export const makeState = Effect.fnUntraced(function* (
  client: EtcdClient,
  { prefix = "/dlock/", timeoutMillis }: StateOptions
): Effect.fn.Return<State, never, Scope.Scope> {
  const clock = yield* Clock.Clock
  const instance = yield* Random.nextIntBetween(0, Number.MAX_SAFE_INTEGER)
  const leases = yield* makeLeases(client)
  let calls = 0
  return {
    client,
    at: layout(prefix),
    prefix,
    timeoutMillis,
    now: () => clock.currentTimeMillisUnsafe(),
    leases,
    ahead: yield* EtcdLeasesAhead.make(leases),
    memory: yield* makeMemory(leases, { keepMillis: 600_000, turnMillis: 120_000 }),
    shortMemory: yield* makeMemory(leases, { keepMillis: 120_000, turnMillis: 30_000 }),
    grants: new Recent(REMEMBERED),
    sessions: new Recent(REMEMBERED),
    contended: new Recent(REMEMBERED),
    untold: [],
    callName: () => `${instance.toString(36)}-${++calls}`,
    floor: undefined,
    swept: new Map()
  }
})

/** The entries that were set last. */
export class Recent<K, V> {
  readonly #entries = new Map<K, V>()
  readonly #size: number

  constructor(size: number) {
    this.#size = size
  }

  get(key: K): V | undefined {
    return this.#entries.get(key)
  }

  set(key: K, value: V): void {
    this.#entries.delete(key)
    this.#entries.set(key, value)
    if (this.#entries.size <= this.#size) return
    const [oldest] = this.#entries.keys()
    if (oldest !== undefined) this.#entries.delete(oldest)
  }

  delete(key: K): void {
    this.#entries.delete(key)
  }
}

// -----------------------------------------------------------------------------
// calls
// -----------------------------------------------------------------------------

/**
 * One operation of the store: ends within the timeout, whatever etcd does. It starts over once when a lease was gone that
 * it counted on: nothing was changed then, and the next one is new.
 */
export const operation = <A, E>(
  state: State,
  name: string,
  run: (budget: Budget) => Effect.Effect<A, E | EtcdOutage | LeaseGone>
): Effect.Effect<A, Exclude<E, EtcdOutage | LeaseGone> | BackendError> =>
  Effect.flatMap(state.client.budget(state.timeoutMillis), (budget) =>
    Effect.catchIf(
      run(budget),
      (failure): failure is E & LeaseGone => failure instanceof LeaseGone,
      () => {
        state.memory.forget()
        state.shortMemory.forget()
        return Effect.andThen(state.ahead.forget, run(budget))
      }
    )
  ).pipe(
    boundedBy(state.timeoutMillis + 100, () => backendUnavailable(name, "no answer in time")),
    Effect.mapError((failure) => backendFailure(name, failure))
  )

const backendFailure = <E>(
  name: string,
  failure: E | EtcdOutage | LeaseGone | BackendUnavailable
): Exclude<E, EtcdOutage | LeaseGone> | BackendError => {
  if (failure instanceof EtcdOutage) {
    return failure.noLeader
      ? new NotLeader({ operation: name, retryAfterMillis: 250 })
      : backendUnavailable(name, failure.message)
  }
  if (failure instanceof LeaseGone) return backendUnavailable(name, "a lease was gone in the middle of the call")
  // What is left after the two above, which the compiler does not follow through a type parameter.
  return failure as Exclude<E, EtcdOutage | LeaseGone> | BackendUnavailable
}

export type Doubt = EtcdOutage | LeaseGone

/** It may have been applied: what it names may be in use. */
export const isUnknown = (failure: Doubt) => failure._tag === "EtcdOutage" && failure.effect === "unknown"

/** How often a call starts over because somebody else was faster, before it says that it could not decide. */
export const ROUNDS = 8

export const undecided = (name: string) => backendUnavailable(name, "the lock changed faster than it could be read")

/** One consistent, linearizable look at the keys; writes nothing. */
export const look = (
  state: State,
  keys: ReadonlyArray<string>,
  budget: Budget
): Effect.Effect<Answer<ITxnResponse>, EtcdOutage | LeaseGone> => state.client.txn({ success: keys.map(range) }, budget)

/**
 * The floor, read once and then compared in every transaction that mints. It is made by whoever comes first.
 */
export const knowFloor = Effect.fnUntraced(function* (
  state: State,
  budget: Budget
): Effect.fn.Return<Floor, EtcdOutage | LeaseGone> {
  if (state.floor !== undefined && !state.floor.foreign) return state.floor
  for (;;) {
    const { value } = yield* look(state, [state.at.floor], budget)
    const floor = floorOf(value, 0)
    if (floor !== undefined) return (state.floor = floor)
    yield* state.client.txn(
      {
        compare: [revisionIs(state.at.floor, "0")],
        success: [put(state.at.floor, { clusterId: value.header.cluster_id, offset: "0" })]
      },
      budget
    )
  }
})

/** The floor that the `index`-th range of an answer found. */
export const floorOf = (answer: ITxnResponse, index: number): Floor | undefined => {
  const kv = found(answer)[index]
  const value = readFloor(kv)
  if (kv === undefined || value === undefined) return undefined
  return { revision: kv.mod_revision, offset: value.offset, foreign: value.clusterId !== answer.header.cluster_id }
}

// -----------------------------------------------------------------------------
// leases of grants
// -----------------------------------------------------------------------------

/** Until when the grant lives, as far as is known: a renewal by another instance leaves no trace but in the lease. */
export const knownExpiry = (state: State, key: LockKey, stored: Stored): number => {
  const known = state.grants.get(key)
  const atLeast = stored.grant.grantedAt + stored.grant.ttlMillis
  return known?.stored.token === stored.token ? Math.max(known.expiresAt, atLeast) : atLeast
}

/** A sweep comes every second, so what has just been found ended no longer ago than this. */
const FOUND_WITHIN_MILLIS = 5_000
/** etcd looks twice a second for what has run out, and its leader has to agree with the others about it. */
const DELETED_WITHIN_MILLIS = 1_000

/** How long a grant was held that is found to have ended by itself; to the second where the exact end is not known. */
export const heldMillis = (state: State, key: LockKey, stored: Stored, end: "expired" | "session"): number => {
  const now = state.now()
  const { grantedAt, sessionId } = stored.grant
  const session = state.sessions.get(sessionId)?.expiresAt
  const known =
    end === "expired" ? knownExpiry(state, key, stored) : session === undefined ? now : session + DELETED_WITHIN_MILLIS
  return Math.max(0, (known < now && known > now - FOUND_WITHIN_MILLIS ? known : now) - grantedAt)
}

export const remember = (
  state: State,
  key: LockKey,
  stored: Stored,
  expiresAt: number,
  granted?: EtcdLeasesAhead.GrantLease
): void => {
  const known = state.grants.get(key)
  const lease = granted ?? (known?.stored.token === stored.token ? known.lease : undefined)
  state.grants.set(key, { stored, expiresAt, lease })
}

/** A transaction of this call has ended the grant, so its lease is this instance's: to be used again, or revoked. */
export const endedHere = (state: State, key: LockKey, stored: Stored): Effect.Effect<void> =>
  Effect.suspend(() => {
    const known = state.grants.get(key)
    const lease = known?.stored.token === stored.token ? known.lease : undefined
    forget(state, key, stored.grant.ownerId, stored.token)
    return lease === undefined ? state.leases.finish(stored.lease) : state.ahead.giveBack(lease)
  })

/** For others to see. When it is known to be later than now, etcd is not asked. */
export const expiryToShow = (state: State, key: LockKey, stored: Stored, budget: Budget) =>
  Effect.suspend(() => {
    const known = knownExpiry(state, key, stored)
    const now = state.now()
    if (known > now) return Effect.succeed(known)
    return Effect.map(state.client.remaining(stored.lease, budget), (millis) => state.now() + (millis ?? 0))
  })

/** The grant is no more, whoever has ended it. Its lease may serve another one by now, so it is not kept alive again. */
export const forget = (state: State, key: LockKey, ownerId: OwnerId, token: FencingToken): void => {
  if (isGrant(state.grants.get(key)?.stored, ownerId, token)) state.grants.delete(key)
}

export const isGrant = (stored: Stored | undefined, ownerId: OwnerId, token: FencingToken): stored is Stored =>
  stored !== undefined && stored.token === token && stored.grant.ownerId === ownerId
