/** A process that stops, kills or ends itself at a named point, seen from outside. */
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { type ChildProcess, spawn } from "node:child_process"
import { readFileSync } from "node:fs"

interface Line {
  readonly message: string
  readonly event?: string
  readonly round?: number
  readonly stoppedMillis?: number
}

const run = (faultPoint: string) =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const child = spawn(process.execPath, ["test/support/faultProcess.ts"], {
        stdio: ["ignore", "pipe", "inherit"],
        env: { PATH: process.env["PATH"], DLOCK_FAULT_POINT: faultPoint, DLOCK_ENV: "dev" }
      })
      let text = ""
      child.stdout.setEncoding("utf8").on("data", (part: string) => (text += part))
      let ended: readonly [code: number | null, signal: NodeJS.Signals | null] | undefined
      child.on("close", (code, signal) => (ended = [code, signal]))
      const lines = () =>
        text
          .split("\n")
          .filter((line) => line !== "")
          .map((line) => JSON.parse(line) as Line)
      return { child, lines, ended: () => ended }
    }),
    ({ child }) => Effect.sync(() => child.kill("SIGKILL"))
  )

const until = (description: string, condition: () => boolean) =>
  Effect.sleep(10).pipe(
    Effect.repeat({ until: condition }),
    Effect.timeoutOrElse({ duration: "15 seconds", orElse: () => Effect.die(new Error(`never: ${description}`)) })
  )

/** State T of /proc: stopped by a signal. */
const isStopped = (child: ChildProcess) =>
  readFileSync(`/proc/${child.pid}/stat`, "utf8").split(") ").at(-1)?.startsWith("T") === true

const story = (lines: ReadonlyArray<Line>) => lines.map(({ event, message, round }) => event ?? `${message} ${round}`)

describe.skipIf(process.platform !== "linux")("a process at its fault point", () => {
  it.live("stops before the next statement, says so first, and goes on when it is resumed", () =>
    Effect.gen(function* () {
      const { child, ended, lines } = yield* run("submit.before:stop#2")
      yield* until("the process is stopped", () => isStopped(child))
      const stopped = ["before 1", "after 1", "before 2", "fault_point"]
      // The pipe may be read later than the process was stopped, but nothing more is in it.
      yield* until("its lines have arrived", () => lines().length >= stopped.length)
      yield* Effect.sleep(200)
      assert.deepStrictEqual(story(lines()), stopped)
      child.kill("SIGCONT")
      yield* until("the process has ended", () => ended() !== undefined)
      assert.deepStrictEqual(story(lines()), [...stopped, "fault_point_resumed", "after 2", "before 3", "after 3"])
      assert.isAtLeast(lines().find(({ event }) => event === "fault_point_resumed")?.stoppedMillis ?? 0, 200)
      assert.deepStrictEqual(ended(), [0, null])
    }).pipe(Effect.scoped)
  )

  it.live("is killed there, with its last line written", () =>
    Effect.gen(function* () {
      const { ended, lines } = yield* run("other.point:kill,submit.before:kill")
      yield* until("the process has ended", () => ended() !== undefined)
      assert.deepStrictEqual(ended(), [null, "SIGKILL"])
      assert.deepStrictEqual(story(lines()), ["before 1", "fault_point"])
    }).pipe(Effect.scoped)
  )

  it.live("exits there, without any clean-up", () =>
    Effect.gen(function* () {
      const { ended, lines } = yield* run("submit.before:exit#3")
      yield* until("the process has ended", () => ended() !== undefined)
      assert.deepStrictEqual(ended(), [1, null])
      assert.deepStrictEqual(story(lines()).at(-1), "fault_point")
    }).pipe(Effect.scoped)
  )

  it.live("only says that it was there, at every visit", () =>
    Effect.gen(function* () {
      const { ended, lines } = yield* run("submit.before:note")
      yield* until("the process has ended", () => ended() !== undefined)
      assert.deepStrictEqual(ended(), [0, null])
      assert.strictEqual(lines().filter(({ event }) => event === "fault_point").length, 3)
    }).pipe(Effect.scoped)
  )

  it.live("passes when nothing is set", () =>
    Effect.gen(function* () {
      const { ended, lines } = yield* run("")
      yield* until("the process has ended", () => ended() !== undefined)
      assert.deepStrictEqual([ended(), lines().length], [[0, null], 6])
    }).pipe(Effect.scoped)
  )
})
