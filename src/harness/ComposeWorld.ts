// @effect-diagnostics nodeBuiltinImport:off
/**
 * The ground of a world on containers: the databases of compose.yaml are started under a project of their own, and each
 * participant is a container of its service there (`docker compose run`), with the settings of the experiment.
 *
 *     w1 ──> gateway of the network, which is this machine: [TcpFaults] ──> [HttpTap] ──> published port of lock-server
 *
 * Signals go through the container: its program is told to stop by `kill -STOP` inside, and is stopped when the kernel says
 * so of that very process. Process 1 of a container can not be stopped from inside, which compose.yaml knows (`init`).
 *
 * Linux only: a container reaches this machine by the gateway's address. Whatever ends this process, also SIGKILL, the
 * project is taken down: a shell waits for a pipe to close.
 */
import { Effect, Random, Redacted, type Scope, Semaphore } from "effect"
import { type ChildProcess, spawn } from "node:child_process"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { freePort } from "../services/platform/Loopback.ts"
import { services } from "../services/platform/ServiceConfig.ts"
import { assignments, run as runCommand } from "./Commands.ts"
import type { Ground } from "./Ground.ts"
import { type BackendKind, type LockBackend, pgEvents, wrong } from "./LockBackends.ts"
import { type Control, HarnessError, isEvent, observe, type Processes, waitUntil } from "./Processes.ts"

const compose = fileURLToPath(new URL("../../compose.yaml", import.meta.url))
const password = "lab-only"
/** Nothing answers for longer than this, however busy the machine. */
const patience = "2 minutes"

/** A container is further away than a process, and shares its machine with more: what takes a second there may take three. */
const slack = { LOCK_BACKEND_TIMEOUT: "3000", LOCK_CLIENT_CALL_TIMEOUT: "3500", RAIL_SEND_WINDOW: "3000" }

/** Takes the project down when the pipe closes: in order, or because this process is gone. */
const watchdog = `
trap '' INT TERM HUP
while read -r line; do :; done
exec docker compose -f "$1" -p "$2" --profile '*' down --volumes --remove-orphans --timeout 2
`

export const start = Effect.fnUntraced(function* (
  kind: BackendKind
): Effect.fn.Return<Ground, HarnessError, Scope.Scope> {
  const project = `dlock-lab-${(yield* Random.nextIntBetween(0, 0xffff_ffff)).toString(16).padStart(8, "0")}`
  const [lockPort, payPort] = [yield* aPort, yield* aPort]
  const environment = {
    DLOCK_PG_PASSWORD: password,
    DLOCK_LOCKDB_PORT: String(lockPort),
    DLOCK_ETCD_PORT: String(lockPort),
    DLOCK_PAYDB_PORT: String(payPort)
  }
  const docker = (step: string, args: ReadonlyArray<string>) =>
    runCommand("docker", args, { step, environment, timeout: patience })
  const inProject = (step: string, ...args: ReadonlyArray<string>) =>
    docker(step, ["compose", "-f", compose, "-p", project, "--profile", kind, ...args])

  yield* guard(project, environment)
  const database = kind === "pg" ? "lockdb" : "etcd"
  yield* inProject("start the databases", "up", "--detach", "--wait", "--pull=never", "--quiet-pull", "paydb", database)
  const host = yield* docker("find the gateway", [
    "network",
    "inspect",
    `${project}_dlock`,
    "--format",
    "{{(index .IPAM.Config 0).Gateway}}"
  ])
  const url =
    (port: number) =>
    (name: string, user = "postgres") =>
      Redacted.make(`postgres://${user}:${password}@127.0.0.1:${port}/${name}`)

  // Two that start at once would both make the network that neither finds.
  const oneByOne = yield* Semaphore.make(1)
  let lives = 0
  const processes: Processes = {
    scratch: path.dirname(compose),
    start: (name, command, settings) =>
      Effect.acquireRelease(
        Effect.gen(function* () {
          const container = `${project}-${name}-${++lives}`
          const service = serviceOf(command)
          const { managementPort, port } = services[service]
          const published = port === undefined ? undefined : yield* aPort
          const management = yield* aPort
          const given = {
            ...settings,
            ...(service === "payment-resource" || service === "rail-proxy" ? slack : {}),
            // As in the image: the ports of the service, and everybody may connect.
            HTTP_HOST: "0.0.0.0",
            MANAGEMENT_PORT: String(managementPort),
            ...(port === undefined ? {} : { HTTP_PORT: String(port) })
          }
          yield* oneByOne.withPermit(
            inProject(
              `start ${name}`,
              "run",
              "--detach",
              "--no-deps",
              "--pull=never",
              "--name",
              container,
              ...(published === undefined ? [] : ["--publish", `127.0.0.1:${published}:${port}`]),
              "--publish",
              `127.0.0.1:${management}:${managementPort}`,
              ...Object.entries(given).flatMap(([setting, value]) => ["--env", `${setting}=${value}`]),
              service === "lock-server" && kind === "etcd" ? "lock-server-etcd" : service,
              ...command
            )
          )
          const follower = spawn("docker", ["logs", "--follow", container], { stdio: ["ignore", "pipe", "pipe"] })
          const life: ReturnType<typeof observe> = observe(
            name,
            follower,
            inContainer({
              docker,
              container,
              pid: () => Number(life.log.find(isEvent("listening"))?.["pid"] ?? 0),
              url: published === undefined ? "" : `http://127.0.0.1:${published}`,
              managementUrl: `http://127.0.0.1:${management}`
            })
          )
          return { life, container, follower }
        }),
        ({ container, follower, life }) =>
          life.stop.pipe(
            Effect.andThen(Effect.ignore(docker(`remove ${name}`, ["rm", "--force", "--volumes", container]))),
            Effect.andThen(ended(follower))
          )
      ).pipe(Effect.map(({ life }) => life))
  }

  return {
    processes,
    payServer: { port: payPort, url: url(payPort) },
    backend: () =>
      kind === "pg"
        ? pgBackend({ inProject, host, port: lockPort, url: url(lockPort) })
        : etcdBackend({ inProject, host, port: lockPort }),
    host,
    manyBackends: false,
    run: ""
  }
})

// -----------------------------------------------------------------------------
// one container
// -----------------------------------------------------------------------------

type Docker = (step: string, args: ReadonlyArray<string>) => Effect.Effect<string, HarnessError>

const isService = (name: string | undefined): name is keyof typeof services =>
  name !== undefined && Object.hasOwn(services, name)

const serviceOf = ([name]: ReadonlyArray<string>): keyof typeof services => (isService(name) ? name : "reconciler")

/** By the container: by its engine what ends it, from inside what only one process is to feel. */
const inContainer = (options: {
  readonly docker: Docker
  readonly container: string
  readonly pid: () => number
  readonly url: string
  readonly managementUrl: string
}): Control => {
  const { container, docker, pid } = options
  const inside = (step: string, ...command: ReadonlyArray<string>) => docker(step, ["exec", container, ...command])
  return {
    pid,
    signal: (which) =>
      Effect.suspend(() => {
        if (which !== "SIGSTOP" && which !== "SIGCONT") {
          return Effect.asVoid(docker(`${which} to ${container}`, ["kill", "--signal", which, container]))
        }
        return pid() === 1
          ? Effect.fail(
              new HarnessError({
                step: `${which} in ${container}`,
                message: "it is process 1, which no signal from inside its container can stop: run it with an init"
              })
            )
          : Effect.asVoid(inside(`${which} in ${container}`, "/bin/sh", "-c", `kill -${which.slice(3)} ${pid()}`))
      }),
    state: Effect.suspend(() => inside(`look at ${container}`, "/bin/cat", `/proc/${pid()}/stat`)).pipe(
      Effect.map((stat) => stat.slice(stat.lastIndexOf(")") + 2, stat.lastIndexOf(")") + 3)),
      Effect.orElseSucceed(() => "gone")
    ),
    addressOf: () => ({ url: options.url, managementUrl: options.managementUrl })
  }
}

const ended = (child: ChildProcess) =>
  Effect.callback<void>((resume) => {
    if (child.exitCode !== null || child.signalCode !== null) return resume(Effect.void)
    child.once("exit", () => resume(Effect.void))
    child.kill("SIGKILL")
  })

const aPort = Effect.flatMap(freePort, (found) =>
  Effect.mapError(Effect.fromOption(found), () => new HarnessError({ step: "find a port", message: "none is free" }))
)

const guard = (project: string, environment: Readonly<Record<string, string>>) =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const shell = spawn("env", [...assignments(environment), "/bin/sh", "-c", watchdog, "sh", compose, project], {
        stdio: ["pipe", "ignore", "ignore"],
        detached: true
      })
      shell.on("error", () => {})
      shell.stdin.on("error", () => {})
      return shell
    }),
    (shell) =>
      Effect.callback<void>((resume) => {
        if (shell.exitCode !== null) return resume(Effect.void)
        shell.once("exit", () => resume(Effect.void))
        shell.stdin.end()
      })
  )

// -----------------------------------------------------------------------------
// the lock backends
// -----------------------------------------------------------------------------

interface Shared {
  readonly inProject: (step: string, ...args: ReadonlyArray<string>) => Effect.Effect<string, HarnessError>
  readonly host: string
  readonly port: number
}

const outage = ({ inProject }: Shared, database: string) => ({
  kill: Effect.gen(function* () {
    yield* inProject(`kill ${database}`, "kill", "--signal", "SIGKILL", database)
    yield* waitUntil(
      `${database} is gone`,
      Effect.map(
        inProject(`look for ${database}`, "ps", "--status", "running", "--quiet", database),
        (id) => id === ""
      ),
      "10 seconds"
    )
    return `the container of ${database} is gone`
  }),
  recover: Effect.as(
    inProject(`start ${database}`, "up", "--detach", "--wait", "--no-recreate", "--pull=never", database),
    `${database} is healthy again`
  )
})

const pgBackend = (
  shared: Shared & { readonly url: (name: string) => Redacted.Redacted }
): Effect.Effect<LockBackend, HarnessError> =>
  Effect.succeed({
    kind: "pg",
    replicated: false,
    ports: Effect.succeed([shared.port]),
    settings: ([port]) => {
      const address = new URL(Redacted.value(shared.url("lockdb")))
      address.hostname = shared.host
      address.port = String(port)
      return { LOCK_BACKEND: "pg", LOCK_PG_URL: address.href }
    },
    ...outage(shared, "lockdb"),
    events: (keys) => pgEvents(shared.url("lockdb"), keys)
  })

const etcdBackend = Effect.fnUntraced(
  function* (shared: Shared): Effect.fn.Return<LockBackend, HarnessError, Scope.Scope> {
    const { followEtcd } = yield* Effect.promise(() => import("./EtcdBackend.ts"))
    return {
      kind: "etcd",
      replicated: false,
      ports: Effect.succeed([shared.port]),
      settings: (ports) => ({
        LOCK_BACKEND: "etcd",
        LOCK_ETCD_ENDPOINTS: ports.map((port) => `http://${shared.host}:${port}`).join(",")
      }),
      ...outage(shared, "etcd"),
      events: yield* followEtcd([`http://127.0.0.1:${shared.port}`])
    }
  },
  Effect.mapError(wrong("follow etcd"))
)
