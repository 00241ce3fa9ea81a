/**
 * The participants of a soak as they usually are, and how each comes back to that, whatever befell it.
 *
 * A start may be given up half way (the machine is busy, its bound is over): the process that it began then belongs to
 * nobody, and works on under the name of its successor, or stands stopped for ever. So every process that was ever started
 * is known here, and those that nobody owns are ended.
 */
import { Duration, Effect, Schedule, type Scope, Semaphore } from "effect"
import { HarnessError, type Processes, type ServiceProcess } from "./Processes.ts"
import type { ProcessWorld } from "./ProcessWorld.ts"
import type { StartOptions } from "./World.ts"

/** Every process that was started, by name, in order. */
export interface Roster {
  /** Starts processes and knows them. */
  readonly processes: Processes
  readonly of: (name: string) => ReadonlyArray<ServiceProcess>
  readonly names: () => ReadonlyArray<string>
}

export const makeRoster = (processes: Processes): Roster => {
  const known = new Map<string, Array<ServiceProcess>>()
  return {
    processes: {
      ...processes,
      start: (name, command, environment) =>
        Effect.tap(processes.start(name, command, environment), (service) =>
          Effect.sync(() => void known.set(name, [...(known.get(name) ?? []), service]))
        )
    },
    of: (name) => known.get(name) ?? [],
    names: () => [...known.keys()]
  }
}

/** Of everything that is waited for: what it was, and for how long. */
export const within =
  (limit: Duration.Input, step: string) =>
  <A, E, R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E | HarnessError, R> =>
    Effect.timeoutOrElse(self, {
      duration: limit,
      orElse: () =>
        Effect.fail(
          new HarnessError({
            step,
            message: `not done within ${Duration.format(Duration.fromInputUnsafe(limit))}`
          })
        )
    })

export interface Fleet {
  /** Starts it anew, with what it is to do at its fault points. Its process when it listens. */
  readonly start: (name: string, options: StartOptions) => Effect.Effect<ServiceProcess, HarnessError>
  /** As it usually is, again: nothing when it is. */
  readonly restore: (name: string) => Effect.Effect<string, HarnessError>
  readonly kill: (name: string) => Effect.Effect<string, HarnessError>
  /** SIGCONT, which does nothing to one that runs. */
  readonly resume: (name: string) => Effect.Effect<void, HarnessError>
  /** Everybody is as usual and goes on, and nobody runs beside them: what was put right is told. Fails, naming who is not. */
  readonly heal: Effect.Effect<ReadonlyArray<string>, HarnessError>
  /** Every process, at once; nothing is started after it. */
  readonly end: Effect.Effect<void>
}

/** A start takes a second of a processor: more at a time and none of them is in time. */
const STARTS_AT_ONCE = 2
/** An orderly stop (15 s), and a start (30 s) that is tried twice. */
const START_BOUND = "90 seconds"

export const makeFleet = Effect.fnUntraced(function* (of: {
  readonly world: Pick<ProcessWorld, "kill" | "revive" | "running" | "start">
  readonly roster: Pick<Roster, "names" | "of">
  readonly names: ReadonlyArray<string>
  readonly usual: (name: string) => StartOptions
}): Effect.fn.Return<Fleet, never, Scope.Scope> {
  const { names, roster, usual, world } = of
  const turns = yield* Semaphore.make(STARTS_AT_ONCE)
  let ended = false
  let backendDown = false

  /** Those of this name that nobody owns: all but the last one, and that too when it did not come to run. */
  const endStrays = (name: string) =>
    Effect.suspend(() => {
      const all = roster.of(name)
      const strays = world.running().has(name) ? all.slice(0, -1) : all
      return Effect.forEach(strays, ({ kill }) => Effect.timeoutOption(kill, "10 seconds"), {
        concurrency: "unbounded",
        discard: true
      })
    })

  const started = <A>(name: string, what: Effect.Effect<A, HarnessError>) =>
    turns
      .withPermit(
        Effect.suspend(() =>
          ended
            ? Effect.fail(new HarnessError({ step: `start ${name}`, message: "the soak is over" }))
            : within(START_BOUND, `start ${name}`)(what)
        )
      )
      .pipe(Effect.onError(() => endStrays(name)))

  const start = Effect.fnUntraced(function* (name: string, options: StartOptions) {
    yield* started(name, world.start(name, options))
    const service = roster.of(name).at(-1)
    if (service === undefined) return yield* new HarnessError({ step: `start ${name}`, message: "it has no process" })
    return service
  })

  const isUsual = (name: string) =>
    name === "lockdb" ? !backendDown : world.running().get(name) === (usual(name).points ?? "")

  const restore = (name: string): Effect.Effect<string, HarnessError> =>
    Effect.suspend(() => {
      if (isUsual(name)) return Effect.succeed(`${name} runs`)
      if (name !== "lockdb") return started(name, world.revive(name, usual(name)))
      return Effect.tap(within("60 seconds", "bring the lock backend back")(world.revive(name)), () =>
        Effect.sync(() => (backendDown = false))
      )
    })

  const kill = (name: string) =>
    Effect.suspend(() => {
      // Also when the proof of it is missing in the end: to bring back one that runs does no harm.
      if (name === "lockdb") backendDown = true
      return within("20 seconds", `kill ${name}`)(world.kill(name))
    })

  const resume = (name: string) =>
    Effect.mapError(
      Effect.suspend(() => roster.of(name).at(-1)?.resume ?? Effect.void),
      ({ message }) => new HarnessError({ step: `${name} goes on`, message })
    )

  const heal = Effect.gen(function* () {
    const told: Array<string> = []
    const bring = (name: string) =>
      isUsual(name)
        ? Effect.void
        : Effect.tap(Effect.retry(restore(name), { times: 2, schedule: Schedule.spaced("1 second") }), (proof) =>
            Effect.sync(() => void told.push(proof))
          )
    yield* bring("lockdb")
    yield* Effect.forEach(names, bring, { concurrency: STARTS_AT_ONCE, discard: true })
    yield* Effect.forEach(roster.names(), endStrays, { concurrency: "unbounded", discard: true })
    yield* Effect.forEach(names, resume, { concurrency: "unbounded", discard: true })
    return told
  }).pipe(within("240 seconds", "bring everybody back"))

  return {
    start,
    restore,
    kill,
    resume,
    heal,
    end: Effect.suspend(() => {
      ended = true
      return Effect.forEach(
        roster.names().flatMap((name) => roster.of(name)),
        (service) => Effect.timeoutOption(service.kill, "10 seconds"),
        { concurrency: "unbounded", discard: true }
      )
    })
  }
})
