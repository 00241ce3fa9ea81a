// @effect-diagnostics nodeBuiltinImport:off
/**
 * The services as real operating-system processes on this machine: started, watched through their JSON logs, stopped,
 * paused and killed.
 *
 * Nothing outlives the harness, not even a worker that is stopped (SIGSTOP) when the harness itself is killed (SIGKILL): see
 * `platform/DirectoryGuard.ts`.
 */
import { Clock, Deferred, Duration, Effect, Schema, type Scope } from "effect"
import { type ChildProcess, spawn } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import * as DirectoryGuard from "../services/platform/DirectoryGuard.ts"

/** An error that occurs when the experiment itself could not be carried out: it says nothing about the system. */
export class HarnessError extends Schema.TaggedError<HarnessError>()("HarnessError", {
  step: Schema.String,
  message: Schema.String
}) {}

/** One line of a service's log, as C4 has it. */
export interface LogRecord {
  readonly timestamp: string
  readonly level: string
  readonly message: string
  readonly service?: string
  readonly [annotation: string]: unknown
}

/** Fixed event names are in the annotation `event`; the message is for people. */
export const isEvent =
  (name: string) =>
  (record: LogRecord): boolean =>
    record["event"] === name

export interface ServiceProcess {
  readonly name: string
  readonly pid: number
  /** Everything it has logged so far. */
  readonly log: ReadonlyArray<LogRecord>
  /** The first record, past or future, that satisfies the predicate. */
  readonly awaitRecord: (
    description: string,
    matches: (record: LogRecord) => boolean,
    timeout: Duration.Input
  ) => Effect.Effect<LogRecord, HarnessError>
  /** `http://127.0.0.1:port` as logged once it listens. */
  readonly listening: Effect.Effect<{ readonly url: string; readonly managementUrl: string }, HarnessError>
  /** Waits until the kernel says that the process is stopped (state T). */
  readonly awaitStopped: Effect.Effect<void, HarnessError>
  /** SIGCONT, and waits until the kernel says that it runs. */
  readonly resume: Effect.Effect<void, HarnessError>
  /** SIGSTOP, and waits until the kernel says that it is stopped. */
  readonly pause: Effect.Effect<void, HarnessError>
  readonly kill: Effect.Effect<void>
  /** Waits until it is gone, however it ended. */
  readonly awaitEnded: Effect.Effect<void, HarnessError>
  /** SIGTERM; SIGKILL when it has not ended in time. Answers the exit code. */
  readonly stop: Effect.Effect<number | null>
}

export interface Processes {
  /** A directory that is gone when the world is. */
  readonly scratch: string
  readonly start: (
    name: string,
    command: ReadonlyArray<string>,
    environment: Readonly<Record<string, string>>
  ) => Effect.Effect<ServiceProcess, HarnessError, Scope.Scope>
}

/** This program, as this process runs it: compiled, or straight from the sources. */
const program = fileURLToPath(new URL(import.meta.url.endsWith(".ts") ? "../main.ts" : "../main.js", import.meta.url))

export const make: Effect.Effect<Processes, HarnessError, Scope.Scope> = Effect.gen(function* () {
  const scratch = yield* Effect.try({
    try: () => fs.mkdtempSync(path.join(os.tmpdir(), "dlock-world-")),
    catch: (cause) => new HarnessError({ step: "scratch", message: String(cause) })
  })
  const guard = yield* DirectoryGuard.guard(scratch)
  return {
    scratch,
    start: (name, command, environment) =>
      Effect.acquireRelease(
        Effect.suspend(() => {
          const child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", program, ...command], {
            stdio: ["ignore", "pipe", "pipe"],
            // Ctrl-C in the terminal reaches the harness only, which then ends the services in order.
            detached: true,
            cwd: scratch,
            // Nothing of the caller's environment: a LOCK_URL set there must not end up in an experiment.
            env: {
              HOME: scratch,
              // The second and later processes load the compiled code of the first.
              NODE_COMPILE_CACHE: path.join(scratch, "compile-cache"),
              ...environment
            }
          })
          if (child.pid === undefined) {
            return Effect.fail(new HarnessError({ step: `start ${name}`, message: "the process could not be started" }))
          }
          guard.alsoEnds(child.pid)
          return Effect.succeed(observe(name, child, onThisMachine(child, child.pid)))
        }),
        (service) => service.stop
      )
  }
})

/** How a process is reached: by the kernel of this machine, or through whatever it runs in. */
export interface Control {
  /** In the namespace that its signals go through. */
  readonly pid: () => number
  readonly signal: (which: NodeJS.Signals) => Effect.Effect<void, HarnessError>
  /** The state letter of /proc: R, S, D, T (stopped), Z; `gone` when there is no such process. */
  readonly state: Effect.Effect<string>
  /** Where it is reached from here, once it has said that it listens. */
  readonly addressOf: (listening: LogRecord) => { readonly url: string; readonly managementUrl: string }
}

const onThisMachine = (child: ChildProcess, pid: number): Control => ({
  pid: () => pid,
  signal: (which) =>
    Effect.sync(() => {
      child.kill(which)
    }),
  state: Effect.sync(() => kernelState(pid)),
  addressOf: (record) => ({
    url: `http://127.0.0.1:${String(record["port"])}`,
    managementUrl: `http://127.0.0.1:${String(record["managementPort"])}`
  })
})

/** `child` writes the log of the process to its stdout and ends with it: the process itself, or who follows it. */
export const observe = (name: string, child: ChildProcess, control: Control): ServiceProcess => {
  const log: Array<LogRecord> = []
  let stderr = ""
  let exitCode: number | null | undefined
  const ended = Deferred.makeUnsafe<void>()
  const waiting = new Set<() => void>()
  const look = () => {
    for (const wake of waiting) wake()
  }
  let rest = ""
  child.stdout?.setEncoding("utf8").on("data", (text: string) => {
    const lines = (rest + text).split("\n")
    rest = lines.pop() ?? ""
    for (const line of lines) {
      const record = parse(line)
      if (record !== undefined) log.push(record)
    }
    look()
  })
  child.stderr?.setEncoding("utf8").on("data", (text: string) => {
    stderr = (stderr + text).slice(-8_000)
  })
  child.once("error", (cause) => {
    stderr += String(cause)
  })
  child.once("exit", (code) => {
    exitCode = code
    Deferred.doneUnsafe(ended, Effect.void)
    look()
  })

  const lastWords = () => [...log.slice(-5).map((record) => JSON.stringify(record)), stderr].join("\n").trim()
  const awaitRecord: ServiceProcess["awaitRecord"] = (description, matches, timeout) =>
    Effect.callback<LogRecord, HarnessError>((resume) => {
      const attempt = () => {
        const found = log.find(matches)
        if (found !== undefined) {
          waiting.delete(attempt)
          resume(Effect.succeed(found))
        } else if (exitCode !== undefined) {
          waiting.delete(attempt)
          resume(
            Effect.fail(
              new HarnessError({ step: `${name}: ${description}`, message: `it ended (${exitCode}):\n${lastWords()}` })
            )
          )
        }
      }
      waiting.add(attempt)
      attempt()
      return Effect.sync(() => waiting.delete(attempt))
    }).pipe(
      Effect.timeoutOrElse({
        duration: timeout,
        orElse: () =>
          Effect.fail(
            new HarnessError({
              step: `${name}: ${description}`,
              message: `not seen within ${Duration.format(Duration.fromInputUnsafe(timeout))}; last words:\n${lastWords()}`
            })
          )
      })
    )

  const signal = (which: NodeJS.Signals) =>
    Effect.suspend(() => (exitCode === undefined ? control.signal(which) : Effect.void))
  const awaitState = (description: string, holds: (state: string) => boolean) =>
    waitUntil(`${name}: ${description}`, Effect.map(control.state, holds), "5 seconds")
  return {
    name,
    get pid() {
      return control.pid()
    },
    log,
    awaitRecord,
    listening: Effect.map(awaitRecord("listens", isEvent("listening"), "30 seconds"), control.addressOf),
    awaitStopped: awaitState("is stopped", (state) => state === "T"),
    pause: Effect.andThen(
      signal("SIGSTOP"),
      awaitState("is stopped", (state) => state === "T")
    ),
    resume: Effect.andThen(
      signal("SIGCONT"),
      awaitState("runs again", (state) => state !== "T")
    ),
    kill: Effect.andThen(Effect.ignore(signal("SIGKILL")), Deferred.await(ended)),
    awaitEnded: Deferred.await(ended).pipe(
      Effect.timeoutOrElse({
        duration: "10 seconds",
        orElse: () => Effect.fail(new HarnessError({ step: `${name}: ends`, message: "not within 10 seconds" }))
      })
    ),
    stop: Effect.gen(function* () {
      // A stopped process would only see SIGTERM once it is continued.
      if ((yield* control.state) === "T") yield* Effect.ignore(signal("SIGKILL"))
      yield* Effect.ignore(signal("SIGTERM"))
      yield* Deferred.await(ended).pipe(
        Effect.timeoutOrElse({
          duration: "15 seconds",
          orElse: () => Effect.andThen(Effect.ignore(signal("SIGKILL")), Deferred.await(ended))
        })
      )
      return exitCode ?? null
    })
  }
}

const parse = (line: string): LogRecord | undefined => {
  try {
    const value: unknown = JSON.parse(line)
    return typeof value === "object" && value !== null && "message" in value ? (value as LogRecord) : undefined
  } catch {
    return undefined
  }
}

/** The state letter of /proc: R, S, D, T (stopped), Z; `gone` when there is no such process. */
const kernelState = (pid: number): string => {
  try {
    const stat = fs.readFileSync(`/proc/${pid}/stat`, "utf8")
    return stat.slice(stat.lastIndexOf(")") + 2, stat.lastIndexOf(")") + 3)
  } catch {
    return "gone"
  }
}

/** Looks every 20 ms until the condition holds; fails with the description of what was waited for. */
export const waitUntil = <E, R>(
  description: string,
  condition: Effect.Effect<boolean, E, R>,
  timeout: Duration.Input
): Effect.Effect<void, E | HarnessError, R> =>
  Effect.gen(function* () {
    const limit = Duration.toMillis(Duration.fromInputUnsafe(timeout))
    const start = yield* Clock.currentTimeMillis
    while (!(yield* condition)) {
      if ((yield* Clock.currentTimeMillis) - start > limit) {
        return yield* new HarnessError({ step: description, message: `not so within ${limit} ms` })
      }
      yield* Effect.sleep("20 millis")
    }
  })
