/**
 * The leases that are not a holder's: those under which ended things are remembered, and those that are finished.
 */
import { Clock, Deferred, Effect, FiberSet, type Scope, Semaphore } from "effect"
import {
  type Budget,
  type EtcdClient,
  type EtcdOutage,
  type Lease,
  type LeaseGone,
  randomLeaseId
} from "./EtcdClient.ts"

export interface MemoryOptions {
  /** What is written now is remembered at least for so long, */
  readonly keepMillis: number
  /** and at most for so much longer. */
  readonly turnMillis: number
}

/**
 * How many keys one lease may hold: they are all deleted in one step when it runs out, and nobody else is served during
 * that step (about 5 ms for a thousand).
 */
const KEYS_PER_LEASE = 2_000

export interface Memory {
  /** A lease for `keys` more keys to be remembered under. */
  readonly lease: (keys: number, budget: Budget) => Effect.Effect<string, EtcdOutage>
  /** The lease may be gone (etcd was restored, somebody revoked it): take another one the next time. */
  readonly forget: () => void
}

/** One lease at a time, replaced after `turnMillis` or when full; the old ones run out by themselves. */
export const makeMemory = Effect.fnUntraced(function* (
  leases: Leases,
  { keepMillis, turnMillis }: MemoryOptions
): Effect.fn.Return<Memory> {
  const clock = yield* Clock.Clock
  const turn = yield* Semaphore.make(1)
  let current: { readonly id: string; readonly until: bigint; keys: number } | undefined

  const take = (keys: number) => {
    if (current === undefined || current.keys + keys > KEYS_PER_LEASE) return undefined
    if (clock.monotonicTimeNanosUnsafe() >= current.until) return undefined
    current.keys += keys
    return current.id
  }

  return {
    lease: (keys, budget) =>
      Effect.suspend(() => {
        const id = take(keys)
        if (id !== undefined) return Effect.succeed(id)
        return turn.withPermit(
          Effect.gen(function* () {
            const meanwhile = take(keys)
            if (meanwhile !== undefined) return meanwhile
            const until = clock.monotonicTimeNanosUnsafe() + BigInt(turnMillis) * 1_000_000n
            const { id } = yield* leases.grant(keepMillis + turnMillis, budget)
            current = { id, until, keys }
            return id
          })
        )
      }),
    forget: () => {
      current = undefined
    }
  }
})

export interface Leases {
  /** A new lease; if it is not known whether it was granted, it is revoked in the background. */
  readonly grant: (ttlMillis: number, budget: Budget) => Effect.Effect<Lease, EtcdOutage>
  /**
   * Revokes the lease in the background. It serves no grant any more, or never did, and is not used again.
   *
   * etcd commits its database for every lease that it deletes, and carries out nothing else meanwhile (1 to 2 ms). So
   * they wait for each other, not for long, and most of those who acquire meet none of it.
   */
  readonly finish: (id: string) => Effect.Effect<void>
  /**
   * The same, if `wasEnded` says that the caller has ended what the lease kept: for a call of which that is not known. It
   * is asked again a little later when it does not say so at once.
   */
  readonly finishIf: (
    id: string,
    wasEnded: (budget: Budget) => Effect.Effect<boolean, EtcdOutage | LeaseGone>
  ) => Effect.Effect<void>
  /** Something to be done beside the calls, with a budget; waited for, within a second, when the scope closes. */
  readonly inBackground: <E>(run: (budget: Budget) => Effect.Effect<unknown, E>) => Effect.Effect<void>
}

const BACKGROUND_MILLIS = 10_000
/** A call that was given up may be carried out a little later. */
const STILL_UNDER_WAY_MILLIS = 3_000
/** So many finished leases wait for each other, and so long. */
const FINISH = { together: 16, withinMillis: 200, atOnce: 4 }

/** When the scope closes, what is under way is waited for, within a second. What fails runs out by itself. */
export const makeLeases = Effect.fnUntraced(function* (
  client: EtcdClient
): Effect.fn.Return<Leases, never, Scope.Scope> {
  const running = yield* FiberSet.make<void>()
  const closing = yield* Deferred.make<void>()
  let finished: Array<string> = []
  const inBackground = <E>(run: (budget: Budget) => Effect.Effect<unknown, E>) =>
    Effect.flatMap(client.budget(BACKGROUND_MILLIS), run).pipe(Effect.ignore, FiberSet.run(running), Effect.asVoid)

  const revokeFinished = Effect.suspend(() => {
    const all = finished
    finished = []
    return inBackground((budget) =>
      Effect.forEach(all, (id) => Effect.ignore(client.revokeLease(id, budget)), {
        concurrency: FINISH.atOnce,
        discard: true
      })
    )
  })
  const revokeLater = (these: ReadonlyArray<string>) =>
    Effect.timeoutOption(Deferred.await(closing), FINISH.withinMillis).pipe(
      Effect.andThen(Effect.suspend(() => (these === finished ? revokeFinished : Effect.void))),
      FiberSet.run(running),
      Effect.asVoid
    )
  yield* Effect.addFinalizer(() =>
    Effect.andThen(Deferred.succeed(closing, undefined), Effect.timeoutOption(FiberSet.awaitEmpty(running), "1 second"))
  )

  const finish = (id: string) =>
    Effect.suspend(() => {
      finished.push(id)
      if (finished.length >= FINISH.together) return revokeFinished
      return finished.length === 1 ? revokeLater(finished) : Effect.void
    })
  return {
    grant: (ttlMillis, budget) =>
      Effect.flatMap(randomLeaseId, (id) => Effect.onError(client.grantLease(id, ttlMillis, budget), () => finish(id))),
    finish,
    finishIf: (id, wasEnded) =>
      inBackground((budget) => {
        const ended = Effect.orElseSucceed(wasEnded(budget), () => false)
        const again = Effect.andThen(Effect.sleep(STILL_UNDER_WAY_MILLIS), ended)
        return Effect.flatMap(
          Effect.flatMap(ended, (yes) => (yes ? Effect.succeed(true) : again)),
          (yes) => (yes ? client.revokeLease(id, budget) : Effect.void)
        )
      }),
    inBackground
  }
})
