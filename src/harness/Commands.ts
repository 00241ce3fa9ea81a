// @effect-diagnostics nodeBuiltinImport:off
/** A command of this machine, run to its end: docker, kubectl. */
import { Effect, type Duration } from "effect"
import { spawn } from "node:child_process"
import { HarnessError } from "./Processes.ts"

export interface RunOptions {
  /** What it is for, in errors. */
  readonly step: string
  /** Besides this process' own. */
  readonly environment?: Readonly<Record<string, string>>
  readonly input?: string
  readonly timeout: Duration.Input
}

/** For `env`, which adds them to what this process was given. */
export const assignments = (environment: Readonly<Record<string, string>>): ReadonlyArray<string> =>
  Object.entries(environment).map(([name, value]) => `${name}=${value}`)

/** What it wrote to stdout, without the last line's end. Anything but exit code 0 fails, with what it wrote to stderr. */
export const run = (
  program: string,
  args: ReadonlyArray<string>,
  { environment = {}, input, step, timeout }: RunOptions
): Effect.Effect<string, HarnessError> =>
  Effect.callback<string, HarnessError>((resume) => {
    const child = spawn("env", [...assignments(environment), program, ...args], { stdio: ["pipe", "pipe", "pipe"] })
    let stdout = ""
    let stderr = ""
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      stdout += text
    })
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      stderr = (stderr + text).slice(-4_000)
    })
    child.stdin.on("error", () => {})
    child.stdin.end(input ?? "")
    child.once("error", (cause) => resume(Effect.fail(new HarnessError({ step, message: cause.message }))))
    child.once("close", (code) =>
      resume(
        code === 0
          ? Effect.succeed(stdout.trimEnd())
          : Effect.fail(new HarnessError({ step, message: `${program} ended with ${code}: ${stderr.trim()}` }))
      )
    )
    return Effect.sync(() => child.kill("SIGKILL"))
  }).pipe(
    Effect.timeoutOrElse({
      duration: timeout,
      orElse: () => Effect.fail(new HarnessError({ step, message: `${program} did not end in time` }))
    })
  )
