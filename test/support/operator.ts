/**
 * The operator's commands as `main.ts` has them, run in this process: parsed, executed against real services, printed. What
 * they print and their exit code is what a shell would see.
 */
import * as NodeServices from "@effect/platform-node/NodeServices"
import { assert } from "@effect/vitest"
import { Cause, ConfigProvider, Console, Effect, Exit } from "effect"
import { CliError, CliOutput, Command } from "effect/cli"
import { exitCodeOf, exitCodes } from "../../src/services/platform/ExitCodes.ts"
import { locks, sessions, tokens } from "../../src/services/operator/LockCommands.ts"
import { payouts, reconcile } from "../../src/services/operator/PayoutCommands.ts"
import { doctor, fencing } from "../../src/services/operator/StatusCommands.ts"

export interface Printed {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

const dlock = Command.runWith(
  Command.make("dlock").pipe(Command.withSubcommands([locks, sessions, tokens, payouts, reconcile, fencing, doctor])),
  { version: "0" }
)

const capturing = () => {
  const out: Array<string> = []
  const err: Array<string> = []
  const to =
    (lines: Array<string>) =>
    (...parts: ReadonlyArray<unknown>) =>
      void lines.push(parts.map(String).join(" "))
  const real = globalThis.console
  return { out, err, console: { ...real, log: to(out), info: to(out), error: to(err), warn: to(err), debug: to(err) } }
}

/** Runs one command line, without a terminal, in this environment only. */
export const run = (args: ReadonlyArray<string>, environment: Readonly<Record<string, string>>) =>
  Effect.suspend(() => {
    const { console, err, out } = capturing()
    return dlock(args).pipe(
      Effect.provideService(Console.Console, console),
      Effect.provideService(CliOutput.Formatter, CliOutput.defaultFormatter({ colors: false })),
      Effect.provideService(ConfigProvider.ConfigProvider, ConfigProvider.fromEnvRecord({ ...environment })),
      Effect.provide(NodeServices.layer),
      Effect.exit,
      Effect.map((exit): Printed => {
        const failure: unknown = Exit.isFailure(exit) ? Cause.squash(exit.cause) : undefined
        const code = Exit.isSuccess(exit) ? 0 : CliError.isCliError(failure) ? exitCodes.usage : exitCodeOf(exit.cause)
        return { code, stdout: out.join("\n"), stderr: err.join("\n") }
      })
    )
  })

/** What a command answered as one JSON document; its exit code is the expected one, or the test fails with its words. */
export const document = (
  args: ReadonlyArray<string>,
  environment: Readonly<Record<string, string>>,
  expected = 0
): Effect.Effect<Record<string, unknown>> =>
  Effect.map(run([...args, "--json"], environment), ({ code, stderr, stdout }) => {
    assert.strictEqual(code, expected, `${args.join(" ")}: ${stdout}${stderr}`)
    // Every document of these commands is an object.
    return JSON.parse(expected === 0 || stdout !== "" ? stdout : stderr) as Record<string, unknown>
  })
