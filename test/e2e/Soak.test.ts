// @effect-diagnostics nodeBuiltinImport:off
/**
 * A soak that is interrupted or killed leaves nothing on the machine, above all no worker that stands stopped (SIGSTOP).
 *
 * Takes two minutes, so only when asked for: DLOCK_INTERRUPTS=1 npx vitest run test/e2e/Soak.test.ts
 */
import { describe, it } from "@effect/vitest"
import { Config, Console, Effect } from "effect"
import * as fs from "node:fs"
import * as os from "node:os"
import { emptyDirectory, interruptedAt, type Moment, processesOf, type Run } from "../support/leftovers.ts"

const isStopped = (pid: number): boolean => {
  try {
    return /\) T /.test(fs.readFileSync(`/proc/${pid}/stat`, "latin1"))
  } catch {
    return false
  }
}

const runs = (soak: Run) => soak.stderr().includes("everything runs")
const stands = (soak: Run, temporary: string) => runs(soak) && processesOf(temporary).some(isStopped)
const moreThan = 8
const moments: ReadonlyArray<Moment> = [
  {
    name: "Ctrl-C while it starts",
    signal: "SIGINT",
    moreThan,
    come: (_, temporary) => processesOf(temporary).length > moreThan
  },
  { name: "Ctrl-C while a worker is stopped", signal: "SIGINT", moreThan, come: stands },
  { name: "SIGKILL while a worker is stopped", signal: "SIGKILL", moreThan, come: stands },
  {
    name: "Ctrl-C while it heals",
    signal: "SIGINT",
    moreThan,
    come: (soak) => soak.stderr().includes("the faults are over")
  }
]
const args = ["soak", "--minutes", "1", "--seed", "3", "--workers", "4", "--payouts", "40"]

describe.skipIf(process.platform !== "linux")("a soak, interrupted,", () => {
  it.live(
    "leaves no process, no port and no temporary directory",
    () =>
      Effect.gen(function* () {
        if ((yield* Config.withDefault(Config.Int("DLOCK_INTERRUPTS"), 0)) === 0) return
        // One for all moments: the copy of PostgreSQL in it is made once.
        const temporary = yield* emptyDirectory(os.tmpdir())
        for (const moment of moments) {
          yield* interruptedAt(args, moment, { temporary, comesWithin: "120 seconds" })
          yield* Console.error(`nothing is left after: ${moment.name}`)
        }
      }).pipe(Effect.scoped),
    600_000
  )
})
