// @effect-diagnostics nodeBuiltinImport:off
/**
 * `scenario run` as a user runs it: the paused worker on real processes, its verdict, what it leaves in the report directory,
 * and that nothing outlives an interruption.
 *
 * More use cases: DLOCK_SCENARIOS=all npx vitest run test/e2e/Scenario.test.ts
 */
import { assert, describe, it } from "@effect/vitest"
import { Config, Effect } from "effect"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { emptyDirectory, nothingLeft, portsOf, processesOf, run } from "../support/leftovers.ts"
import { waitUntil } from "../support/waitUntil.ts"

const wanted = Effect.orDie(Config.withDefault(Config.String("DLOCK_SCENARIOS"), "uc-03 stale"))

interface Document {
  readonly verdict: string
  readonly runs: ReadonlyArray<{
    readonly name: string
    readonly outcome: string
    readonly faults: ReadonlyArray<{ readonly fault: string; readonly proof?: string }>
    readonly violations: ReadonlyArray<unknown>
  }>
}

const ended = (command: { readonly exit: () => unknown; readonly stderr: () => string }, within: string) =>
  waitUntil(
    "the command has ended",
    Effect.sync(() => command.exit() !== undefined),
    within as "300 seconds"
  )

describe.skipIf(process.platform !== "linux")("scenario run", () => {
  it.live(
    "holds, proves each fault, and leaves a page, the run and JUnit results that can be judged and replayed",
    () =>
      Effect.gen(function* () {
        const temporary = yield* emptyDirectory(os.tmpdir())
        const report = path.join(temporary, "report")
        const options = { cwd: temporary, environment: { TMPDIR: temporary } }
        const scenario = yield* wanted
        const command = yield* run(["scenario", "run", scenario, "--json", "--report", report], options)
        yield* ended(command, "600 seconds")
        assert.strictEqual(command.exit(), 0, command.stderr())
        const document = JSON.parse(command.stdout()) as Document
        assert.strictEqual(document.verdict, "as expected")
        for (const { faults, name, outcome, violations } of document.runs) {
          assert.deepStrictEqual({ name, outcome, violations }, { name, outcome: "held", violations: [] })
          for (const { fault, proof } of faults) assert.isString(proof, fault)
        }
        const files = fs.readdirSync(report)
        assert.includeMembers(files, ["scenarios-pg.json", "scenarios-pg.xml"])
        if (scenario !== "uc-03 stale") return

        assert.deepStrictEqual(files.sort(), [
          "scenarios-pg.json",
          "scenarios-pg.xml",
          "uc-03-stale-pg.html",
          "uc-03-stale-pg.json"
        ])
        assert.match(document.runs[0]?.faults[0]?.proof ?? "", /was in state T at submit\.before for \d+/)
        assert.include(fs.readFileSync(path.join(report, "scenarios-pg.xml"), "utf8"), 'failures="0" errors="0"')
        const saved = path.join(report, "uc-03-stale-pg.json")
        const judged = yield* run(["check", saved], options)
        const replayed = yield* run(["sim", "replay", saved, "--json"], options)
        yield* ended(judged, "60 seconds")
        yield* ended(replayed, "60 seconds")
        assert.strictEqual(judged.exit(), 0, judged.stdout())
        assert.strictEqual(replayed.exit(), 0, replayed.stdout())
        assert.isTrue((JSON.parse(replayed.stdout()) as { readonly same: boolean }).same)
      }).pipe(Effect.scoped),
    900_000
  )

  // The demo is interrupted in every run of the suite, and its processes are guarded in the same way.
  // oxlint-disable-next-line node/no-process-env
  it.live.skipIf(process.env["DLOCK_SCENARIOS"] === undefined)(
    "leaves no process, no port and no directory when it is interrupted while a worker is stopped",
    () =>
      Effect.gen(function* () {
        const temporary = yield* emptyDirectory(os.tmpdir())
        const command = yield* run(["scenario", "run", "uc-03 told", "--report", path.join(temporary, "report")], {
          cwd: temporary,
          environment: { TMPDIR: temporary }
        })
        yield* waitUntil(
          "a worker is stopped",
          Effect.sync(() => {
            assert.isUndefined(command.exit(), command.stderr())
            return command.stderr().includes("was in state T")
          }),
          "180 seconds"
        )
        const pids = processesOf(temporary)
        const ports = portsOf(pids)
        assert.isAbove(pids.length, 5, "the services had been started")
        command.child.kill("SIGINT")
        yield* ended(command, "60 seconds")
        assert.strictEqual(command.exit(), 130, command.stderr())
        yield* nothingLeft(temporary, ports, "10 seconds", "interrupted")
      }).pipe(Effect.scoped),
    300_000
  )

  it.live("answers usage errors with 2, and says what there is", () =>
    Effect.gen(function* () {
      const temporary = yield* emptyDirectory(os.tmpdir())
      const unknown = yield* run(["scenario", "run", "uc-99"], { cwd: temporary })
      const useless = yield* run(["scenario", "run", "uc-01", "--rail-fencing", "off"], { cwd: temporary })
      const listed = yield* run(["scenario", "list", "--json"], { cwd: temporary })
      for (const command of [unknown, useless, listed]) yield* ended(command, "60 seconds")
      assert.strictEqual(unknown.exit(), 2)
      assert.include(unknown.stderr(), "scenario list")
      assert.strictEqual(useless.exit(), 2)
      assert.strictEqual(listed.exit(), 0)
      assert.isAbove((JSON.parse(listed.stdout()) as ReadonlyArray<unknown>).length, 20)
    }).pipe(Effect.scoped)
  )
})
