// @effect-diagnostics nodeBuiltinImport:off
/**
 * A PostgreSQL 16 server of our own, from the npm binaries: for the demo, the tests and the crash experiments.
 *
 * - Works as root (PostgreSQL refuses uid 0, so it then runs as `nobody`) and as a normal user, from a checkout that
 *   no other user can enter, and under any umask: it runs from a world-readable copy of the binaries (59 MB, made
 *   once) in `<temp dir>/dlock-pg-<version>-<uid>`.
 * - Leaves nothing behind. The server is the child of a shell that waits on a pipe from this process: when the pipe
 *   closes, also because this process was killed with SIGKILL, the shell stops PostgreSQL and removes temporary data.
 * - Durable by default (`fsync` on). `fast` trades that for speed: a killed server may then forget what it answered.
 */
import { Deferred, Effect, Option, Redacted, type Scope, Semaphore } from "effect"
import { type ChildProcess, spawn } from "node:child_process"
import * as crypto from "node:crypto"
import * as fs from "node:fs/promises"
import * as os from "node:os"
import * as path from "node:path"
import * as DirectoryGuard from "./DirectoryGuard.ts"
import { freePort, isFree } from "./Loopback.ts"
import * as Pid from "./Pid.ts"
import { attempt, type EmbeddedPostgresError, failure, install } from "./PostgresBinaries.ts"

export interface EmbeddedPostgresOptions {
  /**
   * `temporary`: data in the temp dir, gone with the scope; every local user may connect (trust, loopback only).
   * `persistent`: data and the generated superuser password stay in `directory` between runs.
   */
  readonly storage: { readonly kind: "temporary" } | { readonly kind: "persistent"; readonly directory: string }
  /** Absent or 0: a free port, outside the range from which the system takes the ports of outgoing connections. */
  readonly port?: number
  /** Server settings, such as `{ max_connections: "50" }`; they win over the defaults here. */
  readonly settings?: Readonly<Record<string, string>>
  /** No fsync: for tests that never kill the server. Default: false. */
  readonly fast?: boolean
}

export interface EmbeddedServer {
  /** Stays the same over `kill` and `restart`. */
  readonly port: number
  /** The data directory: to be copied, or replaced by a copy, only while the server is down. */
  readonly data: string
  /** The superuser's URL of a database; `user` names another role (which then needs no password: trust only). */
  readonly url: (database: string, user?: string) => Redacted.Redacted
  /** Process id of the running postmaster, undefined while the server is down. */
  readonly pid: Effect.Effect<number | undefined>
  /** Orderly (fast) shutdown; the data stays until the scope closes. */
  readonly stop: Effect.Effect<void, EmbeddedPostgresError>
  /** SIGKILL to the postmaster and all its backends at once, as in a power cut; the data stays as it is. */
  readonly kill: Effect.Effect<void, EmbeddedPostgresError>
  /** Starts the server again on the same data and port; stops it first when it still runs. */
  readonly restart: Effect.Effect<void, EmbeddedPostgresError>
  /** What the server wrote to its log, the last 64 kB. */
  readonly log: Effect.Effect<string>
}

/** Starts a server; it ends with the scope. Takes about a second, of which most is the creation of the data. */
export const start = Effect.fnUntraced(function* (
  options: EmbeddedPostgresOptions
): Effect.fn.Return<EmbeddedServer, EmbeddedPostgresError, Scope.Scope> {
  if (process.platform === "win32") {
    return yield* failure("start", "the embedded PostgreSQL needs /bin/sh: use WSL, or name a server by its URL")
  }
  const account = yield* serverAccount
  const base = yield* tempDirectory
  const binaries = yield* install(base)
  const home = yield* dataDirectory(options.storage, base, account)
  const password = options.storage.kind === "persistent" ? yield* superuserPassword(home, account) : undefined
  const port = yield* choosePort(options.port ?? 0)

  const command: Command = {
    data: path.join(home, "data"),
    account,
    arguments: [
      path.join(binaries, "bin"),
      path.join(home, "data"),
      options.storage.kind === "temporary" ? home : "",
      password === undefined ? "" : path.join(home, passwordFile),
      ...settingFlags({ ...defaults, ...(options.fast === true ? fastSettings : {}), ...options.settings }),
      "-p",
      String(port)
    ]
  }

  // One run at a time: `kill` from one fiber and `restart` from another do not overlap.
  const turn = yield* Semaphore.make(1)
  let run: Run | undefined
  let log = ""
  const begin = Effect.gen(function* () {
    yield* clearStalePidFile(command.data)
    const started = launch(command)
    run = started
    yield* Effect.onExit(awaitReady(command, started), () => Effect.sync(() => (log = started.log())))
  })
  const end = (operation: "stop" | "kill") =>
    Effect.gen(function* () {
      const current = run
      if (current === undefined || Deferred.isDoneUnsafe(current.exited)) return
      yield* operation === "kill" ? killAll(command.data) : signal(command.data, "SIGINT")
      yield* Deferred.await(current.exited).pipe(
        Effect.timeoutOrElse({
          duration: "20 seconds",
          orElse: () => Effect.fail(failure(operation, "PostgreSQL did not end within 20 s; try `kill`"))
        })
      )
    })

  yield* Effect.addFinalizer(() =>
    Effect.gen(function* () {
      const current = run
      if (current !== undefined && !Deferred.isDoneUnsafe(current.exited)) {
        // Closing the pipe makes the shell stop the server and remove temporary data.
        current.child.stdin?.end()
        yield* Deferred.await(current.exited).pipe(
          Effect.timeoutOrElse({
            duration: "10 seconds",
            orElse: () => Effect.andThen(Effect.ignore(killAll(command.data)), Deferred.await(current.exited))
          })
        )
      }
    })
  )
  yield* turn.withPermit(begin)

  return {
    port,
    data: command.data,
    url: (database, user) => {
      const credentials = user ?? (password === undefined ? "postgres" : `postgres:${encodeURIComponent(password)}`)
      return Redacted.make(`postgres://${credentials}@127.0.0.1:${port}/${database}`)
    },
    pid: Effect.map(readPidFile(command.data), (file) =>
      run !== undefined && !Deferred.isDoneUnsafe(run.exited) ? file?.pid : undefined
    ),
    stop: turn.withPermit(end("stop")),
    kill: turn.withPermit(end("kill")),
    restart: turn.withPermit(Effect.andThen(end("stop"), begin)),
    log: Effect.sync(() => run?.log() ?? log)
  }
})

// -----------------------------------------------------------------------------
// settings
// -----------------------------------------------------------------------------

const defaults: Readonly<Record<string, string>> = {
  listen_addresses: "127.0.0.1",
  unix_socket_directories: "",
  max_connections: "200",
  log_min_messages: "warning",
  // A client that has gone does not keep a statement waiting for a row lock, and its transaction does not stay open.
  client_connection_check_interval: "1000"
}

const fastSettings: Readonly<Record<string, string>> = {
  fsync: "off",
  full_page_writes: "off",
  synchronous_commit: "off"
}

const settingFlags = (settings: Readonly<Record<string, string>>) =>
  Object.entries(settings).flatMap(([name, value]) => ["-c", `${name}=${value}`])

const passwordFile = "superuser.password"

// -----------------------------------------------------------------------------
// the running server
// -----------------------------------------------------------------------------

interface Account {
  readonly uid?: number
  readonly gid?: number
}

interface Command {
  readonly data: string
  readonly account: Account
  readonly arguments: ReadonlyArray<string>
}

interface Run {
  readonly child: ChildProcess
  /** Done when the shell, and so the postmaster, has ended. */
  readonly exited: Deferred.Deferred<void>
  readonly log: () => string
}

/**
 * Creates the data when there is none, runs the postmaster, and ends it when the pipe on stdin closes.
 *
 * The data is created under another name and then renamed: a half-made directory never looks like a database. The
 * watcher signals the shell (USR1) before it stops the postmaster, so that the shell can tell the end of its parent,
 * after which temporary data is removed, from a crash of the server, after which it must stay for the restart.
 */
const script = `
bin=$1 data=$2 scratch=$3 pwfile=$4
shift 4
exec 3<&0 </dev/null
trap closing=1 USR1
export TZ=UTC LC_ALL=C
umask 077
{ cat <&3 >/dev/null; kill -USR1 $$; } & watcher=$!
code=0
if [ ! -d "$data" ]; then
  auth=trust
  [ -n "$pwfile" ] && auth=scram-sha-256
  "$bin/initdb" -D "$data.$$" -U postgres "--auth=$auth" \${pwfile:+"--pwfile=$pwfile"} \${scratch:+--no-sync} \\
    --encoding=UTF8 --locale=C --no-instructions 3<&- >/dev/null || code=1
  if [ $code = 0 ] && [ ! -d "$data" ]; then mv "$data.$$" "$data"; else rm -rf -- "$data.$$"; fi
fi
if [ $code = 0 ] && [ -z "$closing" ]; then
  "$bin/postgres" -D "$data" "$@" 3<&- & pid=$!
  while kill -0 $pid 2>/dev/null; do
    [ -n "$closing" ] && kill -INT $pid 2>/dev/null
    wait $pid
    code=$?
  done
fi
if [ -n "$closing" ]; then
  [ -n "$scratch" ] && rm -rf -- "$scratch"
else
  kill $watcher 2>/dev/null
fi
exit $code
`

const launch = (command: Command): Run => {
  // A session of its own: Ctrl-C in the terminal reaches this process only, which then stops the server in order.
  const child = spawn("/bin/sh", ["-c", script, "sh", ...command.arguments], {
    ...command.account,
    cwd: "/",
    detached: true,
    stdio: ["pipe", "ignore", "pipe"]
  })
  const exited = Deferred.makeUnsafe<void>()
  let log = ""
  const finish = () => {
    child.stdin?.destroy()
    Deferred.doneUnsafe(exited, Effect.void)
  }
  child.stdin?.on("error", () => {})
  child.stderr?.setEncoding("utf8").on("data", (text: string) => {
    log = (log + text).slice(-65_536)
  })
  child.once("error", (cause) => {
    log += `cannot run /bin/sh: ${cause.message}\n`
    finish()
  })
  child.once("exit", finish)
  return { child, exited, log: () => log }
}

/**
 * Waits for `ready` in postmaster.pid, as `pg_ctl -w` does. An accepted connection is no proof: the postmaster
 * accepts while it still recovers, and then refuses with 57P03.
 */
const awaitReady = (command: Command, run: Run) =>
  Effect.gen(function* () {
    while ((yield* readPidFile(command.data))?.ready !== true) {
      if (Deferred.isDoneUnsafe(run.exited)) {
        return yield* failure("start", `PostgreSQL ended during its start:\n${run.log().trim()}`)
      }
      yield* Effect.sleep("20 millis")
    }
  }).pipe(
    Effect.timeoutOrElse({
      duration: "60 seconds",
      orElse: () => Effect.fail(failure("start", `PostgreSQL was not ready within 60 s:\n${run.log().trim()}`))
    })
  )

const readPidFile = (data: string) =>
  Effect.promise(() => fs.readFile(path.join(data, "postmaster.pid"), "utf8").catch(() => "")).pipe(
    Effect.map((text) => {
      const lines = text.split("\n")
      const pid = Number(lines[0])
      return Number.isInteger(pid) && pid > 1 ? { pid, ready: lines[7]?.trim() === "ready" } : undefined
    })
  )

/**
 * After a crash postmaster.pid names a process that is gone, or, after a reboot or in a container, an unrelated one
 * with the same number, for which PostgreSQL would refuse to start.
 */
const clearStalePidFile = (data: string) =>
  Effect.gen(function* () {
    const file = yield* readPidFile(data)
    if (file === undefined) return
    if (Pid.isAlive(file.pid) && (yield* commandLine(file.pid)).includes(data)) {
      return yield* failure(
        "start",
        `${data} is already served by PostgreSQL process ${file.pid}: stop that one, or choose another directory`
      )
    }
    yield* attempt("start", `removing the stale ${data}/postmaster.pid`, () =>
      fs.rm(path.join(data, "postmaster.pid"), { force: true })
    )
  })

const signal = (data: string, name: "SIGINT" | "SIGSTOP") =>
  Effect.map(readPidFile(data), (file) => {
    if (file !== undefined) Pid.send(file.pid, name)
    return file?.pid
  })

/** The postmaster is stopped first: else it forks a backend for a waiting client between the listing and the kill. */
const killAll = (data: string) =>
  Effect.gen(function* () {
    const postmaster = yield* signal(data, "SIGSTOP")
    if (postmaster === undefined) return
    const family = [postmaster, ...(yield* children(postmaster))]
    for (const pid of family) Pid.send(pid, "SIGKILL")
    // A backend that outlived its postmaster would keep the shared memory, and the restart would refuse to start.
    while (yield* anyRuns(family.slice(1))) yield* Effect.sleep("5 millis")
  })

/** A killed backend without its parent can stay in the process table as a zombie; that one holds nothing any more. */
const anyRuns = (pids: ReadonlyArray<number>) =>
  process.platform === "linux"
    ? Effect.map(linuxProcesses, (table) => table.some(({ pid, state }) => pids.includes(pid) && state !== "Z"))
    : Effect.sync(() => pids.some(Pid.isAlive))

/** Backends have process groups of their own, so a signal to a group would not reach them. */
const children = (parent: number) =>
  process.platform === "linux"
    ? Effect.map(linuxProcesses, (table) => table.filter((entry) => entry.ppid === parent).map((entry) => entry.pid))
    : Effect.map(ps("pid=,ppid="), (lines) =>
        lines.flatMap((line) => {
          const [pid, ppid] = line.trim().split(/\s+/).map(Number)
          return pid !== undefined && ppid === parent ? [pid] : []
        })
      )

const commandLine = (pid: number) =>
  process.platform === "linux"
    ? Effect.promise(() => fs.readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => ""))
    : Effect.map(ps("pid=,args="), (lines) => lines.find((line) => line.trim().startsWith(`${pid} `)) ?? "")

const ps = (columns: "pid=,ppid=" | "pid=,args=") =>
  Effect.callback<ReadonlyArray<string>>((resume) => {
    const child = spawn("ps", ["-axww", "-o", columns], { stdio: ["ignore", "pipe", "ignore"] })
    let output = ""
    child.stdout.setEncoding("utf8").on("data", (text: string) => (output += text))
    child.once("error", () => resume(Effect.succeed([])))
    child.once("close", () => resume(Effect.succeed(output.split("\n"))))
  })

/** Small Linux images have no `ps`. */
const linuxProcesses = Effect.promise(() =>
  fs.readdir("/proc").then((entries) =>
    Promise.all(
      entries
        .filter((entry) => /^[0-9]+$/.test(entry))
        .map((pid) =>
          fs.readFile(`/proc/${pid}/stat`, "utf8").then(
            (stat) => {
              // "pid (name) state ppid ..", and the name may hold blanks and parentheses
              const [state, ppid] = stat
                .slice(stat.lastIndexOf(")") + 1)
                .trim()
                .split(" ")
              return { pid: Number(pid), ppid: Number(ppid), state }
            },
            () => ({ pid: Number(pid), ppid: 0, state: "Z" })
          )
        )
    )
  )
)

// -----------------------------------------------------------------------------
// account, directories, port
// -----------------------------------------------------------------------------

/** initdb and postgres refuse uid 0. `nobody` exists everywhere: nothing is created on the host. */
const serverAccount: Effect.Effect<Account, EmbeddedPostgresError> = Effect.suspend(() => {
  if (process.getuid?.() !== 0) return Effect.succeed({})
  return Effect.map(
    attempt("start", "reading /etc/passwd", () => fs.readFile("/etc/passwd", "utf8")),
    (text) => {
      const [, , uid, gid] =
        text
          .split("\n")
          .find((line) => line.startsWith("nobody:"))
          ?.split(":") ?? []
      return { uid: Number(uid ?? 65_534), gid: Number(gid ?? 65_534) }
    }
  )
})

/** The first directory on the way which other users cannot enter. */
const closedAncestor = (directory: string) =>
  attempt("start", `looking at ${directory}`, () => {
    const ancestors: Array<string> = []
    for (let at = path.resolve(directory); ; at = path.dirname(at)) {
      ancestors.push(at)
      if (at === path.dirname(at)) break
    }
    return Promise.all(
      ancestors.map((at) =>
        fs.stat(at).then(
          (stats) => ((stats.mode & 0o001) === 0 ? at : undefined),
          () => undefined
        )
      )
    ).then((closed) => closed.find((at) => at !== undefined))
  })

/** Root may have a TMPDIR of its own that `nobody` cannot enter, or in which it could not remove its data. */
const tempDirectory = Effect.gen(function* () {
  const preferred = os.tmpdir()
  if (process.getuid?.() !== 0) return preferred
  const writable = yield* attempt("start", `looking at ${preferred}`, () =>
    fs.stat(preferred).then(
      (stats) => (stats.mode & 0o002) !== 0,
      () => false
    )
  )
  return writable && (yield* closedAncestor(preferred)) === undefined ? preferred : "/tmp"
})

const dataDirectory = (storage: EmbeddedPostgresOptions["storage"], base: string, account: Account) => {
  const own = (directory: string) =>
    account.uid === undefined ? Promise.resolve() : fs.chown(directory, account.uid, account.gid ?? account.uid)
  if (storage.kind === "temporary") {
    // The shell removes it as well; these cover a server that is down when the scope closes, or when this process is killed.
    return Effect.acquireRelease(
      attempt("start", "creating the data directory", () =>
        fs.mkdtemp(path.join(base, "dlock-pgdata-")).then((directory) => own(directory).then(() => directory))
      ),
      (directory) => Effect.promise(() => fs.rm(directory, { recursive: true, force: true, maxRetries: 5 }))
    ).pipe(Effect.tap((directory) => DirectoryGuard.guard(directory, account)))
  }
  return Effect.gen(function* () {
    const directory = path.resolve(storage.directory)
    yield* attempt("start", `creating ${directory}`, () =>
      fs.mkdir(directory, { recursive: true, mode: 0o755 }).then((made) => (made === undefined ? undefined : own(made)))
    )
    if (account.uid !== undefined) {
      const closed = yield* closedAncestor(path.dirname(directory))
      if (closed !== undefined) {
        return yield* failure(
          "start",
          `PostgreSQL runs as "nobody" here (it refuses root), which cannot enter ${closed}: ` +
            `choose a data directory outside of it, for example under /var/lib, or run as a normal user`
        )
      }
      yield* attempt("start", `giving ${directory} to "nobody"`, () => own(directory))
    }
    return directory
  })
}

/** Made once, beside the data; only the server's account can read it. */
const superuserPassword = (home: string, account: Account) => {
  const file = path.join(home, passwordFile)
  return attempt("start", `the superuser password ${file}`, () =>
    fs
      .writeFile(file, crypto.randomBytes(24).toString("base64url"), { mode: 0o600, flag: "wx" })
      .then(() => (account.uid === undefined ? undefined : fs.chown(file, account.uid, account.gid ?? account.uid)))
      .catch((cause: NodeJS.ErrnoException) => (cause.code === "EEXIST" ? undefined : Promise.reject(cause)))
      .then(() => fs.readFile(file, "utf8"))
  )
}

const choosePort = (wanted: number) =>
  Effect.gen(function* () {
    if (wanted !== 0) {
      if (yield* isFree(wanted)) return wanted
      return yield* failure("start", `port ${wanted} is in use: stop what listens there, or choose another port`)
    }
    const port = yield* freePort
    if (Option.isSome(port)) return port.value
    return yield* failure("start", "no free port between 20000 and 32000: choose one with `port`")
  })
