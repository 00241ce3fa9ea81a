// @effect-diagnostics nodeBuiltinImport:off
/**
 * A soak that is interrupted or killed leaves nothing on the machine, above all no worker that stands stopped (SIGSTOP).
 *
 * Takes two minutes, so only when asked for: DLOCK_INTERRUPTS=1 npx vitest run test/e2e/Soak.test.ts
 */
import { assert, describe, it } from "@effect/vitest"
import { Config, Console, Effect } from "effect"
import * as fs from "node:fs"
import * as os from "node:os"
import { emptyDirectory, nothingLeft, portsOf, processesOf, type Run, run } from "../support/leftovers.ts"
import { waitUntil } from "../support/waitUntil.ts"

const isStopped = (pid: number): boolean => {
  try {
    return /\) T /.test(fs.readFileSync(`/proc/${pid}/stat`, "latin1"))
  } catch {
    return false
  }
}

interface Moment {
  readonly name: string
  readonly signal: "SIGINT" | "SIGKILL"
  readonly come: (soak: Run, temporary: string) => boolean
}

const runs = (soak: Run) => soak.stderr().includes("everything runs")
const moments: ReadonlyArray<Moment> = [
  { name: "Ctrl-C while it starts", signal: "SIGINT", come: (_, temporary) => processesOf(temporary).length > 8 },
  {
    name: "Ctrl-C while a worker is stopped",
    signal: "SIGINT",
    come: (soak, temporary) => runs(soak) && processesOf(temporary).some(isStopped)
  },
  {
    name: "SIGKILL while a worker is stopped",
    signal: "SIGKILL",
    come: (soak, temporary) => runs(soak) && processesOf(temporary).some(isStopped)
  },
  { name: "Ctrl-C while it heals", signal: "SIGINT", come: (soak) => soak.stderr().includes("the faults are over") }
]

const interruptedAt = ({ come, name, signal }: Moment, temporary: string) =>
  Effect.gen(function* () {
    const soak = yield* run(["soak", "--minutes", "1", "--seed", "3", "--workers", "4", "--payouts", "40"], {
      cwd: temporary,
      environment: { TMPDIR: temporary }
    })
    yield* waitUntil(
      `the moment of "${name}" has come`,
      Effect.sync(() => {
        assert.isUndefined(soak.exit(), soak.stderr())
        return come(soak, temporary)
      }),
      "120 seconds"
    )
    const pids = processesOf(temporary)
    const ports = portsOf(pids)
    assert.isAbove(pids.length, 8, "the soak had started others")
    soak.child.kill(signal)
    yield* waitUntil(
      "the soak has ended",
      Effect.sync(() => soak.exit() !== undefined),
      "40 seconds"
    )
    assert.strictEqual(soak.exit(), signal === "SIGINT" ? 130 : "SIGKILL", soak.stderr())
    // Who was killed can not wait for the rest; its watchdogs do that.
    yield* nothingLeft(temporary, ports, signal === "SIGINT" ? "2 seconds" : "30 seconds", name)
    yield* Console.error(`nothing is left after: ${name}`)
  }).pipe(Effect.scoped)

describe.skipIf(process.platform !== "linux")("a soak, interrupted,", () => {
  it.live(
    "leaves no process, no port and no temporary directory",
    () =>
      Effect.gen(function* () {
        if ((yield* Config.withDefault(Config.Int("DLOCK_INTERRUPTS"), 0)) === 0) return
        // One for all moments: the copy of PostgreSQL in it is made once.
        const temporary = yield* emptyDirectory(os.tmpdir())
        for (const moment of moments) yield* interruptedAt(moment, temporary)
      }).pipe(Effect.scoped),
    600_000
  )
})
