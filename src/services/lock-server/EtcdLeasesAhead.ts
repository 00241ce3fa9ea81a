/**
 * Leases for the grants that come next, so that who acquires does not wait for one: granted ahead, or back from a grant
 * that has ended. Each LeaseRevoke makes etcd commit its database, so a lease for every grant would cost more than the
 * rest of the grant.
 *
 * - A lease serves one grant at a time, and **whoever ends a grant owns its lease**: one transaction removes the key of a
 *   grant, and only the instance whose transaction that was, with an answer that says so, may revoke the lease or use it
 *   again. So no LeaseRevoke can be on its way for a lease that serves another grant by then:
 *
 *       t0  A grants k1 under L; its session ends        t0  A grants k1 under L
 *       t1  B removes k1: L is B's                       t1  A removes k1: L is A's
 *       t2  A's release finds k1 gone: L is not A's      t2  B, which saw k1 before, finds it gone: L is not B's
 *       t3  B revokes L                                  t3  A grants k2 under L
 *
 *   Where the answer is lost and cannot be found, nobody owns it, and it runs out by itself.
 * - What a late keep-alive of a grant before does is to lengthen the lease: the key of a holder that died is free later by
 *   that, once. Nobody is promised what it adds.
 * - No lease is kept alive for being used again; that is for holders only. It runs from when it was asked for. What is
 *   promised to a holder is what then remains of it, and one of which too little remains is not taken: no holder keeps a key
 *   longer for it, and none is promised less than 95 % of what he asked.
 * - They are granted ahead only where the last one was taken within a second, as many as will be used soon. Who acquires
 *   once a minute costs no lease that nobody uses, and when the crowd has gone the rest is revoked within a second.
 */
import { Clock, Effect, type Scope } from "effect"
import type { Budget, EtcdOutage } from "./EtcdClient.ts"
import type { Leases } from "./EtcdLeases.ts"

/** A lease for one grant at a time. */
export interface GrantLease {
  readonly id: string
  /** Its ttl. */
  readonly seconds: number
  /** Monotonic nanoseconds: etcd keeps it at least until then. */
  readonly until: bigint
}

export interface LeasesAhead {
  /** One that keeps about `ttlMillis`: granted ahead, or now. To be called where nobody can interrupt. */
  readonly take: (ttlMillis: number, budget: Budget) => Effect.Effect<GrantLease, EtcdOutage>
  /**
   * Only what no transaction that may have been applied has named, or what served a grant that a transaction of this
   * instance has certainly ended.
   */
  readonly giveBack: (lease: GrantLease) => Effect.Effect<void>
  /** How much of a lease remains, in whole milliseconds. */
  readonly remainingMillis: (lease: GrantLease) => number
  /** They may be gone (etcd was restored, somebody revoked them): all are revoked, and new ones are taken. */
  readonly forget: Effect.Effect<void>
}

/** Of one ttl. */
interface Shelf {
  readonly seconds: number
  /** Oldest first. */
  readonly leases: Array<GrantLease>
  /** Asked for. */
  coming: number
  takenAt: bigint
  /** How many more were taken than came back in this window, and in the one before. */
  window: { readonly since: bigint; taken: number; readonly before: number }
}

/** Leases that wait, of all ttls. */
const MOST = 256
const NANOS_PER_MILLI = 1_000_000n
/** Nobody has used it for so long. */
const STALE_NANOS = 1_000n * NANOS_PER_MILLI
/** What is taken in a quarter of this is kept ahead, and granted together: one at a time each would cost an fsync. */
const WINDOW_NANOS = 250n * NANOS_PER_MILLI
const TOGETHER = 16
const LOOK_MILLIS = 250
/** What may be missing to the ttl that is asked for. */
const leastMillis = (ttlMillis: number) => ttlMillis - Math.min(1_000, ttlMillis / 20)

export const make = Effect.fnUntraced(function* (leases: Leases): Effect.fn.Return<LeasesAhead, never, Scope.Scope> {
  const clock = yield* Clock.Clock
  const shelves = new Map<number, Shelf>()
  let waiting = 0
  let watched = false
  let closed = false

  const now = () => clock.monotonicTimeNanosUnsafe()
  const remainingMillis = ({ until }: GrantLease) => Math.max(0, Number((until - now()) / NANOS_PER_MILLI))
  const shelfOf = (ttlMillis: number) => {
    const seconds = Math.ceil(ttlMillis / 1_000)
    const known = shelves.get(seconds)
    if (known !== undefined) return known
    const takenAt = now() - 2n * STALE_NANOS
    const shelf: Shelf = { seconds, leases: [], coming: 0, takenAt, window: { since: takenAt, taken: 0, before: 0 } }
    shelves.set(seconds, shelf)
    return shelf
  }

  const grant = (ttlMillis: number, budget: Budget) =>
    Effect.suspend(() => {
      const askedAt = now()
      return Effect.map(leases.grant(ttlMillis, budget), (lease): GrantLease => ({
        id: lease.id,
        seconds: lease.ttlMillis / 1_000,
        until: askedAt + BigInt(lease.ttlMillis) * NANOS_PER_MILLI
      }))
    })

  /** Takes those off their shelf, to be revoked. */
  const clear = (isOver: (lease: GrantLease) => boolean) =>
    Effect.suspend(() => {
      const over: Array<string> = []
      for (const shelf of shelves.values()) {
        const kept = shelf.leases.filter((lease) => !isOver(lease))
        for (const lease of shelf.leases) if (!kept.includes(lease)) over.push(lease.id)
        shelf.leases.splice(0, shelf.leases.length, ...kept)
      }
      waiting -= over.length
      return Effect.forEach(over, leases.finish, { discard: true })
    })

  /** While something is on a shelf. */
  const watch = Effect.suspend(() => {
    if (watched) return Effect.void
    watched = true
    const look = Effect.andThen(
      Effect.sleep(LOOK_MILLIS),
      clear(({ seconds, until }) => now() - (until - BigInt(seconds) * 1_000n * NANOS_PER_MILLI) >= STALE_NANOS)
    )
    const goesOn = () => {
      // In one step with the look: what is placed after it is watched by the next.
      watched = waiting > 0 && !closed
      return watched
    }
    return leases.inBackground(() => Effect.whileLoop({ while: goesOn, body: () => look, step: () => {} }))
  })

  const place = (shelf: Shelf, lease: GrantLease) =>
    Effect.suspend(() => {
      if (closed || waiting >= MOST) return leases.finish(lease.id)
      waiting++
      shelf.leases.push(lease)
      return watch
    })

  const another = (shelf: Shelf) => {
    shelf.coming++
    return leases.inBackground((budget) =>
      Effect.uninterruptibleMask((restore) =>
        Effect.flatMap(
          Effect.ensuring(
            restore(grant(shelf.seconds * 1_000, budget)),
            Effect.sync(() => shelf.coming--)
          ),
          (lease) => place(shelf, lease)
        )
      )
    )
  }

  /** How many to ask for now that one more is taken. */
  const missing = (shelf: Shelf) => {
    const at = now()
    const isCrowd = at - shelf.takenAt < STALE_NANOS
    const age = at - shelf.window.since
    if (age >= WINDOW_NANOS) {
      shelf.window = { since: at, taken: 0, before: age < 2n * WINDOW_NANOS ? shelf.window.taken : 0 }
    }
    shelf.takenAt = at
    shelf.window.taken++
    if (closed || !isCrowd) return 0
    const target = Math.max(1, Math.min(TOGETHER, Math.floor(Math.max(shelf.window.before, shelf.window.taken) / 4)))
    const there = shelf.leases.length + shelf.coming
    return there > target / 2 ? 0 : Math.max(0, Math.min(target - there, MOST - waiting - shelf.coming))
  }

  yield* Effect.addFinalizer(() =>
    Effect.suspend(() => {
      closed = true
      return clear(() => true)
    })
  )

  return {
    take: (ttlMillis, budget) =>
      Effect.suspend(() => {
        const shelf = shelfOf(ttlMillis)
        const least = leastMillis(ttlMillis)
        const old: Array<string> = []
        let found: GrantLease | undefined
        for (let lease = shelf.leases.shift(); lease !== undefined; lease = shelf.leases.shift()) {
          waiting--
          if (remainingMillis(lease) < least) {
            old.push(lease.id)
            continue
          }
          found = lease
          break
        }
        const more = Array.from({ length: missing(shelf) })
        return Effect.forEach(old, leases.finish, { discard: true }).pipe(
          Effect.andThen(Effect.forEach(more, () => another(shelf), { discard: true })),
          // Nobody can give up between its being taken from here and the caller's having it, but while it is granted.
          Effect.andThen(found === undefined ? Effect.interruptible(grant(ttlMillis, budget)) : Effect.succeed(found))
        )
      }),
    giveBack: (lease) =>
      Effect.suspend(() => {
        const shelf = shelfOf(lease.seconds * 1_000)
        shelf.window.taken--
        return remainingMillis(lease) < leastMillis(lease.seconds * 1_000)
          ? leases.finish(lease.id)
          : place(shelf, lease)
      }),
    remainingMillis,
    forget: Effect.suspend(() => clear(() => true))
  }
})
