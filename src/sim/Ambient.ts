/**
 * What a program finds around itself in a simulated process: everything that Effect otherwise takes from the machine.
 *
 * Each value has its own keyed stream, so that drawing one more uuid does not change a backoff.
 */
import { Clock, Context, Effect, Metric, Random, References, Scheduler, Tracer } from "effect"
import { SecureRandom } from "effect/crypto"
import { FaultPoint } from "../core/FaultPoint.ts"
import { mix, Purpose, Rng } from "./Draw.ts"
import type { Process } from "./Node.ts"
import { NodeClock } from "./NodeClock.ts"
import { What } from "./Trace.ts"

/** The process a fiber runs in: lets a client that is built once for many worlds find out whose it is at each call. */
export class CurrentProcess extends Context.Service<CurrentProcess, Process>()("dlock/sim/Ambient/CurrentProcess") {}

/** The services that a program finds without providing them. (Clock, Random and the like are references, always there.) */
export type Ambient = CurrentProcess | SecureRandom.SecureRandom

/** Logging and tracing cost nothing unless asked for. Built once: the same for every process of every world. */
const quiet = Context.make(References.MinimumLogLevel, "None").pipe(
  Context.add(References.TracerEnabled, false),
  Context.add(References.TracerTimingEnabled, false)
)

/**
 * Where the metrics of all processes of all runs go that nobody will read: apart from those of the program around the
 * simulation, and with their counters made once. A registry per process costs a tenth of a run.
 */
const uncounted: Context.Service.Shape<typeof Metric.MetricRegistry> = new Map()

/** A stream that is set up when it is first drawn from: most processes never ask for a uuid. */
const lazily = (process: Process, purpose: number): (() => Rng) => {
  let rng: Rng | undefined
  return () => (rng ??= new Rng(mix(process.world.seed, purpose, process.node.key, process.boot)))
}

/** `Random` asks for integers and doubles; both come from the stream of this process. */
const seededRandom = (rng: () => Rng): Random.Random => ({
  nextIntUnsafe: () => rng().integer(),
  nextDoubleUnsafe: () => rng().unit()
})

/** Span ids from the seed: Effect's own spans draw them from `Math.random` when they are first read. */
const seededTracer = (rng: () => Rng): Tracer.Tracer =>
  Tracer.make({
    span: (options) => {
      const span = new Tracer.NativeSpan(options)
      span._spanId = rng().hex(16)
      span._traceId = options.parent._tag === "Some" ? options.parent.value.traceId : rng().hex(32)
      return span
    }
  })

/**
 * A planted fault may pause or kill the process at the point, and must do so *at* the point. Hence `suspend`: what it returns
 * is the next operation, before which the scheduler is asked; after a `sync` the generator would run on to its next `yield*`.
 */
const reachedIn =
  (process: Process) =>
  (name: string): Effect.Effect<void> =>
    Effect.suspend(() => {
      const { node, world } = process
      const point = node.point(name)
      world.record(node, What.point, point, point.visits + 1)
      node.reach(point)
      if (process.alive) node.see(point)
      return Effect.void
    })

export const processContext = (process: Process): Context.Context<Ambient> => {
  const secure = lazily(process, Purpose.secureRandom)
  const context = quiet.pipe(
    Context.add(Scheduler.Scheduler, process),
    Context.add(Clock.Clock, new NodeClock(process)),
    Context.add(Random.Random, seededRandom(lazily(process, Purpose.random))),
    Context.add(
      SecureRandom.SecureRandom,
      SecureRandom.make((size) => secure().bytes(size))
    ),
    Context.add(Metric.MetricRegistry, process.world.keepMetrics ? new Map() : uncounted),
    Context.add(FaultPoint, reachedIn(process)),
    Context.add(CurrentProcess, process)
  )
  if (!process.world.tracing) return context
  return context.pipe(
    Context.add(References.TracerEnabled, true),
    Context.add(Tracer.Tracer, seededTracer(lazily(process, Purpose.span)))
  )
}
