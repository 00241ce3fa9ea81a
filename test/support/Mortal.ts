/**
 * Process death and stops within one process. Everything that a process does to the world goes through its ports. One that
 * was killed neither asks nor hears any more, and no finalizer of its fibers reaches anything: what is left is what it had
 * done. One that is stopped asks and hears later.
 */
import { Deferred, Effect, Latch } from "effect"

export type Fate = "live" | "stop" | "die"

export class Mortal {
  private dead = false
  private stopped = false
  private readonly end = Deferred.makeUnsafe<void>()
  private readonly running = Latch.makeUnsafe(true)
  /** How often each fault point was reached. */
  readonly visits = new Map<string, number>()
  private readonly fate: (point: string, visit: number) => Fate

  /** @param fate is asked at every fault point, with how often it was reached, from 1 */
  constructor(fate: (point: string, visit: number) => Fate = () => "live") {
    this.fate = fate
  }

  get isDead(): boolean {
    return this.dead
  }

  kill(): void {
    this.dead = true
    Deferred.doneUnsafe(this.end, Effect.void)
  }

  /** SIGSTOP */
  stop(): void {
    this.stopped = true
    this.running.closeUnsafe()
  }

  /** SIGCONT */
  resume(): void {
    this.stopped = false
    this.running.openUnsafe()
  }

  get isStopped(): boolean {
    return this.stopped
  }

  /** Ends when the process does. */
  get died(): Effect.Effect<void> {
    return Deferred.await(this.end)
  }

  /** To be provided as `FaultPoint`. */
  readonly faultPoint = (point: string): Effect.Effect<void> =>
    Effect.suspend(() => {
      if (this.dead) return Effect.never
      const visit = (this.visits.get(point) ?? 0) + 1
      this.visits.set(point, visit)
      const decision = this.fate(point, visit)
      if (decision === "die") this.kill()
      if (decision === "stop") this.stop()
      return this.alive
    })

  /** Goes on while the process runs; never when it is dead. */
  private get alive(): Effect.Effect<void> {
    return Effect.suspend(() =>
      this.dead
        ? Effect.never
        : Effect.andThen(
            this.running.await,
            Effect.suspend(() => (this.dead ? Effect.never : Effect.void))
          )
    )
  }

  /** A call that leaves the process. The callee goes on when the caller dies; the caller never hears of it. */
  readonly call = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.andThen(
      this.alive,
      Effect.flatMap(Effect.exit(effect), (exit) => Effect.andThen(this.alive, exit))
    )

  /** The port, as this process sees it. */
  readonly port = <S extends object>(service: S): S =>
    new Proxy(service, {
      get: (target, name): unknown => {
        const member: unknown = Reflect.get(target, name)
        if (Effect.isEffect(member)) return this.call(member)
        if (typeof member !== "function") return member
        return (...args: ReadonlyArray<unknown>): unknown => {
          const answer: unknown = Reflect.apply(member, target, args)
          return Effect.isEffect(answer) ? this.call(answer) : answer
        }
      }
    })
}
