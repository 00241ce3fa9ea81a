// @effect-diagnostics nodeBuiltinImport:off
/**
 * An etcd server of our own: for local use, the tests and the failover experiments.
 *
 * - The binary is the first of: `DLOCK_ETCD_BIN`, the PATH (3.5 or newer), the cache (`.dlock/etcd` of the checkout, or
 *   `dlock-etcd-<uid>` in the temp dir where that cannot be written), and the Debian package `etcd-server`, which is
 *   downloaded once through this machine's own apt mirror, checked by apt, and unpacked into the cache. No root needed.
 * - Leaves nothing behind. The server is the child of a shell that waits on a pipe from this process: when the pipe
 *   closes, also because this process was killed with SIGKILL, the shell ends etcd and removes temporary data.
 * - Durable by default (`fsync` on). `fast` trades that for speed: a killed server may then forget what it answered.
 */
import { Config, Deferred, Effect, Option, Schema, type Scope, Semaphore } from "effect"
import { type ChildProcess, execFile, spawn } from "node:child_process"
import * as fs from "node:fs/promises"
import * as http from "node:http"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import * as DirectoryGuard from "./DirectoryGuard.ts"
import { type DebianPackage, downloadScript } from "./DebianPackage.ts"
import { freePort, isFree } from "./Loopback.ts"
import * as Pid from "./Pid.ts"

/** The server could not be installed, started, stopped or killed; `message` says what to do next. */
export class EmbeddedEtcdError extends Schema.TaggedError<EmbeddedEtcdError>()("EmbeddedEtcdError", {
  operation: Schema.Literals(["install", "start", "stop", "kill"]),
  message: Schema.String
}) {}

export interface EmbeddedEtcdOptions {
  /** `temporary`: data in the temp dir, gone with the scope. `persistent`: it stays in `directory` between runs. */
  readonly storage: { readonly kind: "temporary" } | { readonly kind: "persistent"; readonly directory: string }
  /** Absent: free ones, outside the range from which the system takes the ports of outgoing connections. */
  readonly ports?: EtcdPorts
  /** Server flags by name without dashes, such as `{ "election-timeout": "1000" }`; they win over the defaults here. */
  readonly flags?: Readonly<Record<string, string>>
  /** No fsync: for tests that never kill the server. Default: false. */
  readonly fast?: boolean
}

export interface EtcdPorts {
  readonly client: number
  readonly peer: number
  /** Plain HTTP, also when clients need TLS: health and metrics. */
  readonly metrics: number
}

export interface EmbeddedEtcd {
  /** `http://127.0.0.1:<client port>`; stays the same over `kill` and `restart`. */
  readonly endpoint: string
  readonly ports: EtcdPorts
  /** The data directory: to be copied, or replaced by a copy, only while the server is down. */
  readonly data: string
  /** Process id of the running server, undefined while it is down. */
  readonly pid: Effect.Effect<number | undefined>
  /** Orderly shutdown; the data stays until the scope closes. */
  readonly stop: Effect.Effect<void, EmbeddedEtcdError>
  /** SIGKILL, as in a power cut; the data stays as it is. */
  readonly kill: Effect.Effect<void, EmbeddedEtcdError>
  /** Starts the server again on the same data and ports; stops it first when it still runs. */
  readonly restart: Effect.Effect<void, EmbeddedEtcdError>
  /** SIGSTOP: connections are accepted, nothing is answered. */
  readonly pause: Effect.Effect<void>
  readonly resume: Effect.Effect<void>
  /** What the server wrote to its log, the last 64 kB. */
  readonly log: Effect.Effect<string>
}

type Operation = EmbeddedEtcdError["operation"]

const failure = (operation: Operation, message: string) => new EmbeddedEtcdError({ operation, message })

const attempt = <A>(operation: Operation, what: string, run: () => Promise<A>) =>
  Effect.tryPromise({
    try: run,
    catch: (cause) => failure(operation, `${what}: ${cause instanceof Error ? cause.message : String(cause)}`)
  })

/** Starts a server; it ends with the scope. Takes about half a second once the binary is there. */
export const start = Effect.fnUntraced(function* (
  options: EmbeddedEtcdOptions
): Effect.fn.Return<EmbeddedEtcd, EmbeddedEtcdError, Scope.Scope> {
  const binary = yield* install
  const home = yield* dataDirectory(options.storage)
  const ports = options.ports ?? (yield* freePorts)
  for (const port of Object.values(ports)) {
    if (!(yield* isFree(port))) {
      return yield* failure("start", `port ${port} is in use: stop what listens there, or choose another port`)
    }
  }
  const endpoint = `http://127.0.0.1:${ports.client}`
  const data = path.join(home, "data")
  const arguments_ = [
    binary,
    data,
    options.storage.kind === "temporary" ? home : "",
    ...Object.entries({
      ...defaults(ports, endpoint),
      ...(options.fast === true ? { "unsafe-no-fsync": "true" } : {}),
      ...options.flags
    }).map(([name, value]) => `--${name}=${value}`)
  ]

  // One run at a time: `kill` from one fiber and `restart` from another do not overlap.
  const turn = yield* Semaphore.make(1)
  let run: Run | undefined
  let log = ""
  const begin = Effect.suspend(() => {
    const started = launch(arguments_)
    run = started
    return Effect.onExit(awaitReady(ports, started), () => Effect.sync(() => (log = started.log())))
  })
  const running = () => (run === undefined || Deferred.isDoneUnsafe(run.exited) ? undefined : run)
  const signal = (name: "SIGTERM" | "SIGKILL" | "SIGSTOP" | "SIGCONT") => {
    const pid = running()?.pid()
    if (pid !== undefined) Pid.send(pid, name)
  }
  const end = (operation: "stop" | "kill") =>
    Effect.gen(function* () {
      const current = running()
      if (current === undefined) return
      signal(operation === "kill" ? "SIGKILL" : "SIGTERM")
      // A paused process takes the signal when it goes on.
      signal("SIGCONT")
      yield* Deferred.await(current.exited).pipe(
        Effect.timeoutOrElse({
          duration: "20 seconds",
          orElse: () => Effect.fail(failure(operation, "etcd did not end within 20 s; try `kill`"))
        })
      )
    })

  yield* Effect.addFinalizer(() =>
    Effect.suspend(() => {
      const current = running()
      if (current === undefined) return Effect.void
      // Closing the pipe makes the shell end the server and remove temporary data.
      current.child.stdin?.end()
      return Deferred.await(current.exited).pipe(
        Effect.timeoutOrElse({
          duration: "10 seconds",
          orElse: () =>
            Effect.andThen(
              Effect.sync(() => signal("SIGKILL")),
              Deferred.await(current.exited)
            )
        })
      )
    })
  )
  yield* turn.withPermit(begin)

  return {
    endpoint,
    ports,
    data,
    pid: Effect.sync(() => running()?.pid()),
    stop: turn.withPermit(end("stop")),
    kill: turn.withPermit(end("kill")),
    restart: turn.withPermit(Effect.andThen(end("stop"), begin)),
    pause: Effect.sync(() => signal("SIGSTOP")),
    resume: Effect.sync(() => signal("SIGCONT")),
    log: Effect.sync(() => run?.log() ?? log)
  }
})

// -----------------------------------------------------------------------------
// the running server
// -----------------------------------------------------------------------------

const defaults = (ports: EtcdPorts, endpoint: string): Readonly<Record<string, string>> => ({
  name: "dlock",
  "listen-client-urls": endpoint,
  "advertise-client-urls": endpoint,
  "listen-peer-urls": `http://127.0.0.1:${ports.peer}`,
  "initial-advertise-peer-urls": `http://127.0.0.1:${ports.peer}`,
  "initial-cluster": `dlock=http://127.0.0.1:${ports.peer}`,
  "listen-metrics-urls": `http://127.0.0.1:${ports.metrics}`,
  // A leader is replaced within a second, and leases of one second are possible (the floor is 1.5 elections).
  "heartbeat-interval": "50",
  "election-timeout": "500",
  // Without it the history of every lock ever taken stays, until the quota is full and every write is refused.
  "auto-compaction-mode": "periodic",
  "auto-compaction-retention": "5m",
  logger: "zap",
  "log-level": "warn"
})

interface Run {
  readonly child: ChildProcess
  readonly pid: () => number | undefined
  /** Done when the shell, and so the server, has ended. */
  readonly exited: Deferred.Deferred<void>
  readonly log: () => string
}

/**
 * Runs the server and ends it when the pipe on stdin closes. The watcher signals the shell (USR1) first, so that the
 * shell can tell the end of its parent, after which temporary data is removed, from a crash of the server, after which
 * it must stay for the restart. A server without a quorum takes its time to end in order, hence the SIGKILL.
 */
const script = `
bin=$1 data=$2 scratch=$3
shift 3
exec 3<&0 </dev/null
trap closing=1 USR1
export TZ=UTC LC_ALL=C
umask 077
{ cat <&3 >/dev/null; kill -USR1 $$; } & watcher=$!
"$bin" --data-dir="$data" "$@" 3<&- >&2 & pid=$!
echo $pid
code=0 asked=
while kill -0 $pid 2>/dev/null; do
  if [ -n "$closing" ] && [ -z "$asked" ]; then
    asked=1
    # Who reads what this shell has to say may be gone, and SIGPIPE would come before the removal.
    exec >/dev/null 2>&1
    if [ -n "$scratch" ]; then
      kill -KILL $pid 2>/dev/null
    else
      kill -TERM $pid 2>/dev/null
      kill -CONT $pid 2>/dev/null
      { sleep 5; kill -KILL $pid; } 3<&- & killer=$!
    fi
  fi
  wait $pid
  code=$?
done
[ -n "$killer" ] && kill $killer 2>/dev/null
if [ -n "$closing" ]; then
  [ -n "$scratch" ] && rm -rf -- "$scratch"
else
  kill $watcher 2>/dev/null
fi
exit $code
`

const launch = (arguments_: ReadonlyArray<string>): Run => {
  // A session of its own: Ctrl-C in the terminal reaches this process only, which then ends the server in order.
  const child = spawn("/bin/sh", ["-c", script, "sh", ...arguments_], {
    cwd: "/",
    detached: true,
    stdio: ["pipe", "pipe", "pipe"]
  })
  const exited = Deferred.makeUnsafe<void>()
  let log = ""
  let output = ""
  const finish = () => {
    child.stdin?.destroy()
    Deferred.doneUnsafe(exited, Effect.void)
  }
  child.stdin?.on("error", () => {})
  child.stdout?.setEncoding("utf8").on("data", (text: string) => (output += text))
  child.stderr?.setEncoding("utf8").on("data", (text: string) => {
    log = (log + text).slice(-65_536)
  })
  child.once("error", (cause) => {
    log += `cannot run /bin/sh: ${cause.message}\n`
    finish()
  })
  child.once("exit", finish)
  return { child, exited, log: () => log, pid: () => (output.includes("\n") ? Number(output.trim()) : undefined) }
}

const awaitReady = (ports: EtcdPorts, run: Run) =>
  Effect.gen(function* () {
    while (run.pid() === undefined || !(yield* isHealthy(ports))) {
      if (Deferred.isDoneUnsafe(run.exited)) {
        return yield* failure("start", `etcd ended during its start:\n${run.log().trim()}`)
      }
      yield* Effect.sleep("20 millis")
    }
  }).pipe(
    Effect.timeoutOrElse({
      duration: "60 seconds",
      orElse: () => Effect.fail(failure("start", `etcd was not ready within 60 s:\n${run.log().trim()}`))
    })
  )

/** Answered true only by a member that can read linearizably, so that has a leader. */
const isHealthy = (ports: EtcdPorts) =>
  Effect.callback<boolean>((resume) => {
    const request = http.get(
      { host: "127.0.0.1", port: ports.metrics, path: "/health", timeout: 1_000 },
      (response) => {
        response.resume()
        resume(Effect.succeed(response.statusCode === 200))
      }
    )
    request.once("timeout", () => request.destroy())
    request.once("error", () => resume(Effect.succeed(false)))
    return Effect.sync(() => request.destroy())
  })

// -----------------------------------------------------------------------------
// directories and ports
// -----------------------------------------------------------------------------

const dataDirectory = (storage: EmbeddedEtcdOptions["storage"]) => {
  if (storage.kind === "temporary") {
    // The shell removes it as well; these cover a server that is down when the scope closes, or when this process is killed.
    return Effect.acquireRelease(
      attempt("start", "creating the data directory", () => fs.mkdtemp(path.join(os.tmpdir(), "dlock-etcddata-"))),
      (directory) => Effect.promise(() => fs.rm(directory, { recursive: true, force: true, maxRetries: 5 }))
    ).pipe(Effect.tap((directory) => DirectoryGuard.guard(directory)))
  }
  const directory = path.resolve(storage.directory)
  return Effect.as(
    attempt("start", `creating ${directory}`, () => fs.mkdir(directory, { recursive: true, mode: 0o700 })),
    directory
  )
}

export const freePorts: Effect.Effect<EtcdPorts, EmbeddedEtcdError> = Effect.gen(function* () {
  const found = new Set<number>()
  for (let attempts = 0; attempts < 10; attempts++) {
    const port = yield* freePort
    if (Option.isSome(port)) found.add(port.value)
    const [client, peer, metrics] = found
    if (client !== undefined && peer !== undefined && metrics !== undefined) return { client, peer, metrics }
  }
  return yield* failure("start", "no free ports between 20000 and 32000: choose some with `ports`")
})

// -----------------------------------------------------------------------------
// the binary
// -----------------------------------------------------------------------------

/** The path of an etcd binary, found or downloaded. Only the download takes time (about 10 s). */
export const install: Effect.Effect<string, EmbeddedEtcdError> = Effect.gen(function* () {
  if (process.platform === "win32") {
    return yield* failure("install", "the embedded etcd needs /bin/sh: use WSL, or name a server by its endpoint")
  }
  const named = Option.getOrUndefined(yield* setting("DLOCK_ETCD_BIN"))
  if (named !== undefined) {
    if ((yield* versionOf(named)) !== undefined) return path.resolve(named)
    return yield* failure("install", `DLOCK_ETCD_BIN is ${named}, which does not run as etcd: correct or unset it`)
  }
  for (const directory of Option.getOrElse(yield* setting("PATH"), () => "").split(path.delimiter)) {
    const candidate = path.join(directory, "etcd")
    if (directory !== "" && isRecent(yield* versionOf(candidate))) return candidate
  }
  const [checkout, temporary] = cacheDirectories()
  for (const cache of [checkout, temporary]) {
    if ((yield* isOurs(cache)) && isRecent(yield* versionOf(path.join(cache, "etcd")))) return path.join(cache, "etcd")
  }
  const cache = (yield* Effect.isSuccess(makeCache(checkout))) ? checkout : temporary
  yield* makeCache(cache)
  if (!(yield* isOurs(cache))) {
    return yield* failure("install", `${cache} is not ours or others can write to it: remove it, or set TMPDIR`)
  }
  yield* download(cache)
  const installed = path.join(cache, "etcd")
  const version = yield* versionOf(installed)
  if (isRecent(version)) return installed
  return yield* failure("install", `the downloaded ${installed} does not run as etcd 3.5 or newer (${version ?? "?"})`)
})

// A setting that cannot be read is not set; the source is the environment.
const setting = (name: string) => Effect.orElseSucceed(Config.option(Config.String(name)), () => Option.none<string>())

/** `.dlock/etcd` beside `src` or `dist`, and one for each user in the temp dir. */
const cacheDirectories = (): readonly [string, string] => [
  fileURLToPath(new URL("../../../.dlock/etcd", import.meta.url)),
  path.join(os.tmpdir(), `dlock-etcd-${process.getuid?.() ?? 0}`)
]

const makeCache = (directory: string) =>
  attempt("install", `creating ${directory}`, () =>
    fs.mkdir(directory, { recursive: true, mode: 0o755 }).then(() => fs.access(directory, fs.constants.W_OK))
  )

/** A stranger may have made a directory of that name first, with a program of his in it. */
const isOurs = (directory: string) =>
  Effect.promise(() =>
    fs.lstat(directory).then(
      (found) => found.isDirectory() && [process.getuid?.() ?? 0, 0].includes(found.uid) && (found.mode & 0o022) === 0,
      () => false
    )
  )

const versionOf = (binary: string) =>
  Effect.callback<string | undefined>((resume) => {
    execFile(binary, ["--version"], { timeout: 10_000 }, (_error, output) =>
      resume(Effect.succeed(/etcd Version: ([0-9.]+)/.exec(output)?.[1]))
    )
  })

/** 3.5 or newer, what the lock store is made for. What is no version is not. */
export const isRecent = (version: string | undefined) => {
  const [major = 0, minor = 0] = (version ?? "").split(".").map(Number)
  return major > 3 || (major === 3 && minor >= 5)
}

/** Of Debian's current stable: a machine's own may have 3.4 only. */
const etcdServer: DebianPackage = { suite: "trixie", name: "etcd-server", binaries: ["etcd"] }

const download = (cache: string) =>
  Effect.callback<void, EmbeddedEtcdError>((resume) => {
    const child = execFile(
      "/bin/sh",
      ["-c", downloadScript(etcdServer), "sh", cache],
      { timeout: 180_000 },
      (error, _, output) =>
        resume(
          error === null
            ? Effect.void
            : Effect.fail(
                failure(
                  "install",
                  `there is no etcd 3.5 or newer here, and it could not be downloaded (${output.trim().split("\n").at(-1)}). ` +
                    "Either install etcd and have it on the PATH, or name the binary in DLOCK_ETCD_BIN " +
                    `(it can be copied out of a container image), or put it at ${path.join(cache, "etcd")}, ` +
                    "or name a running server in LOCK_ETCD_ENDPOINTS."
                )
              )
        )
    )
    return Effect.sync(() => child.kill())
  })
