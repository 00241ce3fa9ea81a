// @effect-diagnostics nodeBuiltinImport:off
/** What a program leaves on the machine: processes, listening ports, files. Linux only: asks /proc. */
import { type ChildProcess, spawn } from "node:child_process"
import * as fs from "node:fs"
import * as path from "node:path"
import { assert } from "@effect/vitest"
import { type Duration, Effect, type Scope } from "effect"
import { waitUntil } from "./waitUntil.ts"

/** This program, compiled if it has been (as `npm test` does), else from its sources. */
export const program = path.resolve(fs.existsSync("dist/main.js") ? "dist/main.js" : "src/main.ts")

const read = (file: string) => {
  try {
    return fs.readFileSync(file, "latin1")
  } catch {
    return ""
  }
}

const target = (link: string) => {
  try {
    return fs.readlinkSync(link)
  } catch {
    return ""
  }
}

/** Processes that work in this directory, or that were told of it: by argument or by environment. */
export const processesOf = (directory: string): ReadonlyArray<number> =>
  fs
    .readdirSync("/proc")
    .filter((name) => /^[0-9]+$/.test(name) && Number(name) !== process.pid)
    .filter((pid) =>
      [target(`/proc/${pid}/cwd`), read(`/proc/${pid}/cmdline`), read(`/proc/${pid}/environ`)].some((text) =>
        text.includes(directory)
      )
    )
    .map(Number)

export const commandLine = (pid: number): string => read(`/proc/${pid}/cmdline`).replaceAll("\0", " ").slice(0, 300)

/** TCP ports on which any of these processes listens. */
export const portsOf = (pids: ReadonlyArray<number>): ReadonlyArray<number> => {
  const sockets = new Set(
    pids.flatMap((pid) => {
      try {
        return fs
          .readdirSync(`/proc/${pid}/fd`)
          .map((fd) => /^socket:\[(\d+)\]$/.exec(target(`/proc/${pid}/fd/${fd}`))?.[1])
      } catch {
        return []
      }
    })
  )
  return listeners()
    .filter(({ inode }) => sockets.has(inode))
    .map(({ port }) => port)
}

/** Ports of the machine that anybody listens on. */
export const openPorts = (): ReadonlySet<number> => new Set(listeners().map(({ port }) => port))

const LISTEN = "0A"

const listeners = () =>
  ["/proc/net/tcp", "/proc/net/tcp6"]
    .flatMap((file) => read(file).split("\n").slice(1))
    .flatMap((line) => {
      const [, local = "", , state, , , , , , inode = ""] = line.trim().split(/\s+/)
      return state === LISTEN ? [{ inode, port: Number.parseInt(local.slice(local.lastIndexOf(":") + 1), 16) }] : []
    })

/** Of a command that was told of `temporary` and had these ports: no process, no directory and no port, within the time. */
export const nothingLeft = (
  temporary: string,
  ports: ReadonlyArray<number>,
  within: Duration.Input,
  name: string
): Effect.Effect<void> =>
  Effect.gen(function* () {
    const left = () => [
      ...processesOf(temporary).map((pid) => `process ${pid}: ${commandLine(pid)}`),
      ...fs.readdirSync(temporary).filter((one) => /^dlock-(?!pg-\d)/.test(one))
    ]
    yield* waitUntil(
      "nothing is left",
      Effect.sync(() => left().length === 0),
      within
    ).pipe(Effect.catchCause(() => Effect.sync(() => assert.deepStrictEqual(left(), [], name))))
    const open = openPorts()
    assert.deepStrictEqual(
      ports.filter((port) => open.has(port)),
      []
    )
  })

export interface Run {
  readonly child: ChildProcess
  /** Both outputs so far. */
  readonly stdout: () => string
  readonly stderr: () => string
  /** Undefined while it runs; a signal's name when it died of one. */
  readonly exit: () => number | NodeJS.Signals | undefined
}

/** Runs the program in a directory, with nothing of the caller's environment but what is said. */
export const run = (
  args: ReadonlyArray<string>,
  options: { readonly cwd: string; readonly environment?: Readonly<Record<string, string>> }
): Effect.Effect<Run, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync((): Run => {
      const child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", program, ...args], {
        cwd: options.cwd,
        env: { PATH: process.env["PATH"], HOME: options.cwd, ...options.environment },
        stdio: ["ignore", "pipe", "pipe"]
      })
      let stdout = ""
      let stderr = ""
      let exit: number | NodeJS.Signals | undefined
      child.stdout.setEncoding("utf8").on("data", (text: string) => (stdout += text))
      child.stderr.setEncoding("utf8").on("data", (text: string) => (stderr += text))
      child.once("exit", (code, signal) => (exit = code ?? signal ?? undefined))
      return { child, stdout: () => stdout, stderr: () => stderr, exit: () => exit }
    }),
    ({ child, exit }) => Effect.sync(() => void (exit() === undefined && child.kill("SIGKILL")))
  )

/** When a command is interrupted or killed, and what runs by then. */
export interface Moment {
  readonly name: string
  readonly signal: "SIGINT" | "SIGKILL"
  /** More processes than this run by then; undefined: it does not matter. */
  readonly moreThan: number | undefined
  /** Whether it is now, asked again and again. */
  readonly come: (command: Run, temporary: string) => boolean
}

/** Runs a command until its moment, and shows that nothing is left of it. */
export const interruptedAt = (
  args: ReadonlyArray<string>,
  { come, moreThan, name, signal }: Moment,
  of: { readonly temporary: string; readonly comesWithin: Duration.Input }
): Effect.Effect<void> =>
  Effect.gen(function* () {
    const { comesWithin, temporary } = of
    const command = yield* run(args, { cwd: temporary, environment: { TMPDIR: temporary } })
    yield* waitUntil(
      `the moment of "${name}" has come`,
      Effect.sync(() => {
        assert.isUndefined(command.exit(), command.stderr())
        return come(command, temporary)
      }),
      comesWithin
    )
    const pids = processesOf(temporary)
    const ports = portsOf(pids)
    if (moreThan !== undefined) assert.isAbove(pids.length, moreThan, "it had started others")
    command.child.kill(signal)
    yield* waitUntil(
      "the command has ended",
      Effect.sync(() => command.exit() !== undefined),
      "40 seconds"
    )
    assert.strictEqual(command.exit(), signal === "SIGINT" ? 130 : "SIGKILL", command.stderr())
    // Who was killed can not wait for the rest; its watchdogs do that.
    yield* nothingLeft(temporary, ports, signal === "SIGINT" ? "2 seconds" : "30 seconds", name)
  }).pipe(Effect.scoped)

/**
 * An empty directory like the temporary one, that everybody may enter and write to: as root PostgreSQL runs as `nobody`,
 * and removes its own data when its parent is killed. Gone with the scope.
 */
export const emptyDirectory = (parent: string): Effect.Effect<string, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const directory = fs.mkdtempSync(path.join(parent, "dlock-e2e-"))
      fs.chmodSync(directory, 0o1777)
      return directory
    }),
    (directory) => Effect.sync(() => fs.rmSync(directory, { recursive: true, force: true, maxRetries: 5 }))
  )
