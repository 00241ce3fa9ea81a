// @effect-diagnostics nodeBuiltinImport:off
/**
 * `dlock.fault-point`: the process stops, kills or exits itself when it reaches a named point of its own program, which
 * hits the one instant that no signal from outside can be timed to.
 *
 * A stop is synchronous. On Linux the kernel gives a signal that a process sends to itself to the main thread, which
 * is the one that runs this code, and delivers it before `kill` returns to it: the statement after it runs when somebody
 * has sent SIGCONT. No timer fires in between, so the program goes on as blind to the time that passed as it can be.
 */
import { Clock, Effect, Layer } from "effect"
import { FaultPoint } from "../../core/FaultPoint.ts"
import { type FaultPointSpec, ServiceConfig } from "./ServiceConfig.ts"

export const layer: Layer.Layer<never, never, ServiceConfig> = Layer.unwrap(
  Effect.map(ServiceConfig, ({ faultPoints }) =>
    faultPoints.length === 0 ? Layer.empty : Layer.succeed(FaultPoint, faultPoint(faultPoints))
  )
)

const faultPoint = (specs: ReadonlyArray<FaultPointSpec>) => {
  const visits = new Map<string, number>()
  return (name: string): Effect.Effect<void> =>
    Effect.suspend(() => {
      const visit = (visits.get(name) ?? 0) + 1
      visits.set(name, visit)
      const noted = specs.some((one) => one.point === name && one.action === "note")
      const spec = specs.find((one) => one.point === name && one.visit === visit && one.action !== "note")
      return Effect.andThen(noted ? note(name, visit) : Effect.void, spec === undefined ? Effect.void : trip(spec))
    })
}

/** Nothing happens but a line in the log: at which instants a program that checks its lock went on. */
const note = (name: string, visit: number): Effect.Effect<void> =>
  Effect.annotateLogs(Effect.logInfo("a fault point was passed"), { event: "fault_point", name, action: "note", visit })

/** The log line is written first, and stdout of a process is written synchronously: it is out before the signal is. */
const trip = ({ action, point, visit }: FaultPointSpec): Effect.Effect<void> =>
  Effect.gen(function* () {
    yield* Effect.logWarning("a fault point was reached").pipe(
      Effect.annotateLogs({ event: "fault_point", name: point, action, visit })
    )
    switch (action) {
      case "note":
        return
      case "exit":
        return process.exit(1)
      case "kill":
        process.kill(process.pid, "SIGKILL")
        return yield* Effect.never
      case "stop": {
        const before = yield* Clock.monotonicTimeNanos
        process.kill(process.pid, "SIGSTOP")
        const after = yield* Clock.monotonicTimeNanos
        yield* Effect.logWarning("the process runs again").pipe(
          Effect.annotateLogs({
            event: "fault_point_resumed",
            name: point,
            visit,
            stoppedMillis: Number((after - before) / 1_000_000n)
          })
        )
      }
    }
    // Nothing of it may be cut short by an interruption that arrives with the resumption.
  }).pipe(Effect.uninterruptible)
