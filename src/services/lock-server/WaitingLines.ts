/**
 * The lines of an instance: who waits for which key, and who may ask the store when.
 *
 * New requests go to the end; only the first of a line looks, so 200 waiters cost as much as one. It looks again when it
 * is woken, when the holder's lease should have run out, and at least each second: a lost hint costs a second, and
 * nobody starves behind another instance.
 */
import { Clock, Duration, Effect, Latch, Semaphore } from "effect"
import type { AcquiredGrant, LockGrant, LockKey, OwnerId } from "../../core/lock/Lock.ts"
import type { LockApi } from "../../core/lock/LockApi.ts"
import {
  type BackendError,
  BackendUnavailable,
  ContentionExceeded,
  LockContended,
  NotLeader
} from "../../core/lock/LockErrors.ts"
import type { AcquireRequest, LockRecord } from "../../core/lock/LockStore.ts"

export type AcquireFailure = Effect.Error<ReturnType<LockApi["Service"]["acquire"]>>

export interface Waiting {
  readonly request: AcquireRequest
  /** The caller named the request, so it may repeat one whose answer was lost. */
  readonly mayRepeat: boolean
  /** One try at the store. */
  readonly look: Effect.Effect<AcquiredGrant, AcquireFailure>
  /** In monotonic nanoseconds. */
  readonly receivedAt: bigint
  readonly waitMillis: number
}

interface Line {
  readonly key: LockKey
  readonly waiters: Array<Waiter>
  /** One look at a time. */
  readonly turn: Semaphore.Semaphore
  /** When the first has to look (again), in monotonic nanoseconds; 0: at once. */
  lookAt: bigint
  /** Wake-ups so far: one that comes while a look is under way makes its answer old. */
  wakes: number
  /** What the last look came to; null before the first. */
  refusal: LockContended | null
  /** Nobody in this line will be answered any better; everyone leaves with it. */
  dissolvedBy: LockContended | BackendError | null
}

interface Waiter {
  readonly request: AcquireRequest
  readonly mayRepeat: boolean
  readonly poke: Latch.Latch
  /** To look although others are first: the key is held under this waiter's own earlier request. */
  isHolder: boolean
}

/** Whether the key is held under this very request: it repeats one whose answer was lost. */
export const isUnder = (record: LockRecord, request: AcquireRequest): boolean =>
  record.held && record.sessionId === request.sessionId && record.acquireId === request.acquireId

/** The first of a line looks at least so often, and no sooner than so after a look unless it is woken. */
const LOOK_MILLIS = { min: 5, max: 1_000 }
/** When to come back, where the store did not say. */
const RETRY_MILLIS = 250
const NANOS_PER_MILLI = 1_000_000n

export class WaitingLines {
  readonly #lines = new Map<LockKey, Line>()
  readonly #record: (key: LockKey) => Effect.Effect<LockRecord | null, BackendError>
  #closed = false

  /** @param record what the store knows of a key; null when that was never seen */
  constructor(record: (key: LockKey) => Effect.Effect<LockRecord | null, BackendError>) {
    this.#record = record
  }

  count(key: LockKey): number {
    return this.#lines.get(key)?.waiters.length ?? 0
  }

  /** What a request is told that does not wait for `key` while others do; undefined when nobody does. */
  refusal(key: LockKey): LockContended | undefined {
    const line = this.#lines.get(key)
    return line === undefined ? undefined : (line.refusal ?? refusalOf(key, null))
  }

  /** `key` may be free: its first waiter looks at once. */
  wake(key: LockKey): void {
    const line = this.#lines.get(key)
    if (line !== undefined) wake(line)
  }

  /** Anything that `ownerId` held may be free; everything may be when it is null. */
  wakeHeldBy(ownerId: OwnerId | null): void {
    for (const line of this.#lines.values()) {
      if (ownerId === null || line.refusal === null || line.refusal.holderOwnerId === ownerId) wake(line)
    }
  }

  /** Everyone is answered `LockContended`, and nobody waits any more. */
  close(): void {
    this.#closed = true
    for (const line of this.#lines.values()) this.#dissolve(line, refusalOf(line.key, null))
  }

  /** Waits at the end of the key's line, until the grant is won or the time is up. Leaves it when interrupted. */
  join(waiting: Waiting): Effect.Effect<AcquiredGrant, AcquireFailure> {
    // Uninterruptible from here to `ensuring`: a waiter that was interrupted in between would stand in line for ever, and
    // everybody who does not wait would be refused because of it.
    return Effect.uninterruptibleMask((restore) => {
      const { mayRepeat, request } = waiting
      if (this.#closed) return restore(waiting.look)
      const line = this.#lineOf(request.key)
      const waiter: Waiter = { request, mayRepeat, poke: Latch.makeUnsafe(), isHolder: false }
      line.waiters.push(waiter)
      // Let the first find out who holds the key now: it may be this very request.
      if (mayRepeat && line.waiters.length > 1) wake(line)
      return Effect.ensuring(
        restore(this.#wait(line, waiter, waiting)),
        Effect.sync(() => this.#leave(line, waiter))
      )
    })
  }

  readonly #wait = Effect.fnUntraced(
    { self: this },
    function* (
      this: WaitingLines,
      line: Line,
      waiter: Waiter,
      { look, receivedAt, waitMillis }: Waiting
    ): Effect.fn.Return<AcquiredGrant, AcquireFailure> {
      const deadline = receivedAt + BigInt(waitMillis) * NANOS_PER_MILLI
      let attempts = 0
      while (true) {
        waiter.poke.closeUnsafe()
        if (line.dissolvedBy !== null) return yield* line.dissolvedBy
        const now = yield* Clock.monotonicTimeNanos
        if (now >= deadline) {
          return yield* new ContentionExceeded({
            key: line.key,
            attempts,
            waitedMillis: millisBetween(receivedAt, now),
            retryAfterMillis: line.refusal?.retryAfterMillis ?? RETRY_MILLIS
          })
        }
        const isFirst = line.waiters[0] === waiter
        if (waiter.isHolder || (isFirst && now >= line.lookAt)) {
          waiter.isHolder = false
          attempts++
          const grant = yield* line.turn.withPermit(this.#look(line, look))
          if (grant !== undefined) return grant
        } else {
          const until = isFirst && line.lookAt < deadline ? line.lookAt : deadline
          // Rounded up: a timer that fires early would make this a busy loop.
          yield* Effect.timeoutOption(waiter.poke.await, Duration.millis(millisBetween(now, until) + 1))
        }
      }
    }
  )

  /** The grant, or undefined when the key is held; the line learns from either. */
  #look(
    line: Line,
    look: Effect.Effect<AcquiredGrant, AcquireFailure>
  ): Effect.Effect<AcquiredGrant | undefined, Exclude<AcquireFailure, LockContended>> {
    return Effect.suspend(() => {
      const { wakes } = line
      const learn = (refusal: LockContended) =>
        Effect.map(Clock.monotonicTimeNanos, (now) => {
          line.refusal = refusal
          const pause = Math.min(LOOK_MILLIS.max, Math.max(LOOK_MILLIS.min, refusal.retryAfterMillis))
          line.lookAt = line.wakes === wakes ? now + BigInt(pause) * NANOS_PER_MILLI : 0n
        })
      return look.pipe(
        Effect.tap((grant) => learn(refusalOf(line.key, grant))),
        Effect.catchTag("LockContended", (refusal) =>
          Effect.andThen(this.#callHolder(line, refusal), Effect.as(learn(refusal), undefined))
        ),
        Effect.tapError((failure) =>
          Effect.sync(() => {
            if (failure instanceof BackendUnavailable || failure instanceof NotLeader) this.#dissolve(line, failure)
            // Whatever keeps this one from the key does not concern the next.
            else line.lookAt = 0n
          })
        )
      )
    })
  }

  /** The holder may be in the line: a client whose answer was lost asks again, and must not wait for itself. */
  #callHolder(line: Line, refusal: LockContended): Effect.Effect<void, BackendError> {
    const mayBe = ({ mayRepeat, request }: Waiter) => mayRepeat && request.ownerId === refusal.holderOwnerId
    if (!line.waiters.some(mayBe)) return Effect.void
    return Effect.map(this.#record(line.key), (record) => {
      for (const waiter of line.waiters) {
        if (record === null || !mayBe(waiter) || !isUnder(record, waiter.request)) continue
        waiter.isHolder = true
        waiter.poke.openUnsafe()
      }
    })
  }

  #lineOf(key: LockKey): Line {
    const existing = this.#lines.get(key)
    if (existing !== undefined) return existing
    const turn = Semaphore.makeUnsafe(1)
    const line: Line = { key, waiters: [], turn, lookAt: 0n, wakes: 0, refusal: null, dissolvedBy: null }
    this.#lines.set(key, line)
    return line
  }

  #leave(line: Line, waiter: Waiter): void {
    line.waiters.splice(line.waiters.indexOf(waiter), 1)
    // Who is first now has to watch the time.
    line.waiters[0]?.poke.openUnsafe()
    if (line.waiters.length === 0 && this.#lines.get(line.key) === line) this.#lines.delete(line.key)
  }

  #dissolve(line: Line, reason: LockContended | BackendError): void {
    line.dissolvedBy = reason
    if (this.#lines.get(line.key) === line) this.#lines.delete(line.key)
    for (const waiter of line.waiters) waiter.poke.openUnsafe()
  }
}

const wake = (line: Line): void => {
  line.wakes++
  line.lookAt = 0n
  line.waiters[0]?.poke.openUnsafe()
}

const refusalOf = (key: LockKey, holder: LockGrant | null): LockContended =>
  new LockContended({
    key,
    outcome: "HELD_BY_OTHER",
    holderOwnerId: holder?.ownerId ?? null,
    holderExpiresAt: holder?.expiresAt ?? null,
    retryAfterMillis: Math.min(LOOK_MILLIS.max, holder?.ttlMillis ?? RETRY_MILLIS)
  })

/** Whole milliseconds, rounded down. */
export const millisBetween = (from: bigint, to: bigint): number => Number((to - from) / NANOS_PER_MILLI)
