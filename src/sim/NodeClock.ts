/**
 * The clock of one process: computed from virtual time, so that a paused node finds it has jumped.
 *
 * The wall clock has an offset, a drift and steps; the monotonic clock has its own drift and an arbitrary origin that is
 * another one after every restart, as `hrtime` has. Timers follow the monotonic clock.
 */
import { Duration, Effect, Fiber, type Clock } from "effect"
import { mix, named, Purpose } from "./Draw.ts"
import { doesNothingElse } from "./Ending.ts"
import type { Process } from "./Node.ts"

const wallRead = named("read wall clock")
const monotonicRead = named("read monotonic clock")

export class NodeClock implements Clock.Clock {
  readonly currentTimeMillis: Effect.Effect<number> = Effect.sync(() => this.currentTimeMillisUnsafe())
  readonly currentTimeNanos: Effect.Effect<bigint> = Effect.sync(() => this.currentTimeNanosUnsafe())
  readonly monotonicTimeNanos: Effect.Effect<bigint> = Effect.sync(() => this.monotonicTimeNanosUnsafe())
  private readonly process: Process
  private readonly bootedAt: number
  private readonly originMicros: number

  constructor(process: Process) {
    this.process = process
    const { world, node } = process
    this.bootedAt = world.now
    this.originMicros = mix(world.seed, Purpose.clockOrigin, node.key, process.boot)
  }

  /** Looked at from outside, so it is no operation of the node. */
  get monotonicMicros(): number {
    const { node, world } = this.process
    return this.originMicros + Math.floor((world.now - this.bootedAt) * node.monotonicRate)
  }

  currentTimeMillisUnsafe(): number {
    const millis = Math.floor(this.process.node.wallMicros / 1000)
    this.process.node.see(wallRead)
    return millis
  }

  currentTimeNanosUnsafe(): bigint {
    const micros = this.process.node.wallMicros
    this.process.node.see(wallRead)
    return BigInt(micros) * 1000n
  }

  monotonicTimeNanosUnsafe(): bigint {
    const micros = this.monotonicMicros
    this.process.node.see(monotonicRead)
    return BigInt(micros) * 1000n
  }

  sleep(duration: Duration.Duration): Effect.Effect<void> {
    const millis = Duration.toMillis(duration)
    if (millis <= 0) return Effect.yieldNow
    if (!Number.isFinite(millis)) return Effect.never
    return Effect.callback<void>((resume) => {
      const process = this.process
      // The event belongs to the process: killed, it leaves no timer behind. Due while paused, it waits in the run queue.
      const event = process.world.after(
        this.timerMicros(millis),
        () => process.enqueue(() => resume(Effect.void)),
        process
      )
      // A fiber that does nothing but sleep ends when it is interrupted, and its event with it: no finalizer.
      const fiber = Fiber.getCurrent()
      if (fiber === undefined || !doesNothingElse(fiber)) return Effect.sync(() => event.cancel())
      event.sleeper = fiber
      return undefined
    })
  }

  /** How long in virtual time a timer of so many local milliseconds takes: never nothing, a little off if so configured. */
  private timerMicros(millis: number): number {
    const { node, world, boot } = this.process
    const nth = this.process.timers++
    let micros = Math.ceil((Math.max(1, millis) * 1000) / node.monotonicRate)
    const slack = world.timerEarlyMicrosMax + world.timerLateMicrosMax
    if (slack > 0) {
      micros += (mix(world.seed, Purpose.timer, node.key ^ boot, nth) % (slack + 1)) - world.timerEarlyMicrosMax
    }
    return micros < 1 ? 1 : micros
  }
}
