// @effect-diagnostics nodeBuiltinImport:off
/**
 * The ground of a world on Kubernetes. This program runs in the pod `harness` of the lab (infra/k8s/components/lab); each
 * participant is a pod of its own, made from the template of its service's Deployment, with the settings of the experiment.
 *
 *     w1 ──> this pod: [TcpFaults] ──> [HttpTap] ──> the pod of lock-server
 *
 * Everything goes through kubectl. A program is told to stop by `kill -STOP` inside its pod and is stopped when the kernel
 * says so of that very process. Process 1 of a pod can not be stopped from inside: `kill` succeeds, and nothing happens. So
 * the pods share one process namespace, and a program that says it is process 1 is refused.
 *
 * The databases are the lab's own: what is written without a fence is marked for ever.
 */
import { Config, Effect, Option, Random, Redacted, type Scope } from "effect"
import type { ChildProcess } from "node:child_process"
import type { ServiceName } from "../services/platform/ServiceConfig.ts"
import type { Ground } from "./Ground.ts"
import * as Kubectl from "./Kubectl.ts"
import { type BackendKind, type LockBackend, pgEvents, wrong } from "./LockBackends.ts"
import { type Control, HarnessError, isEvent, observe, type Processes, type ServiceProcess } from "./Processes.ts"

export const start = Effect.fnUntraced(function* (
  kind: BackendKind
): Effect.fn.Return<Ground, HarnessError, Scope.Scope> {
  const run = (yield* Random.nextIntBetween(0, 0xffff_ffff)).toString(16).padStart(8, "0")
  const host = yield* text("DLOCK_HARNESS_ADDRESS", "127.0.0.1")
  const paydb = yield* url("PAYMENT_PG_URL")
  return {
    processes: yield* pods(run),
    payServer: server(paydb),
    backend: () => (kind === "pg" ? Effect.map(url("LOCK_PG_URL"), pgBackend(host)) : etcdBackend(host)),
    host,
    manyBackends: false,
    run: `${run}-`
  }
})

// -----------------------------------------------------------------------------
// settings
// -----------------------------------------------------------------------------

const text = (name: string, fallback?: string): Effect.Effect<string, HarnessError> =>
  Effect.flatMap(
    // The source is the environment, and any text is a text.
    Effect.orDie(Config.option(Config.String(name))),
    (found) =>
      Option.isSome(found)
        ? Effect.succeed(found.value)
        : fallback === undefined
          ? Effect.fail(new HarnessError({ step: name, message: "is not set: this runs in the pod `harness`" }))
          : Effect.succeed(fallback)
  )

/** As somebody who may create databases. */
const url = (name: string): Effect.Effect<URL, HarnessError> =>
  Effect.flatMap(text(name), (value) =>
    URL.canParse(value)
      ? Effect.succeed(new URL(value))
      : Effect.fail(new HarnessError({ step: name, message: "is no URL" }))
  )

const server = (address: URL) => ({
  host: address.hostname,
  port: Number(address.port || "5432"),
  url: (database: string, user?: string) => {
    const other = new URL(address)
    other.pathname = `/${database}`
    // The lab's roles share one password, which protects nothing.
    if (user !== undefined) other.username = user
    return Redacted.make(other.href)
  }
})

// -----------------------------------------------------------------------------
// participants
// -----------------------------------------------------------------------------

/** Participants as pods; whatever is left of this run is deleted with the scope. */
export const pods = Effect.fnUntraced(function* (run: string): Effect.fn.Return<Processes, HarnessError, Scope.Scope> {
  yield* Effect.addFinalizer(() => Effect.ignore(Kubectl.deletePods(`dlock-lab-run=${run}`)))
  const templates = new Map<string, Kubectl.PodTemplate>()
  let lives = 0
  return {
    scratch: "",
    start: (name, command, settings) =>
      Effect.acquireRelease(
        Effect.gen(function* () {
          const service = (command[0] ?? name) as ServiceName
          const template = templates.get(service) ?? (yield* Kubectl.templateOf(service))
          templates.set(service, template)
          const pod = `lab-${run}-${name}-${++lives}`
          yield* Kubectl.createPod(participant(pod, { run, name, template, settings }))
          const follower = yield* Kubectl.followLog(pod)
          const ip = yield* Kubectl.ipOf(pod)
          return { life: observePod(pod, ip, follower), pod, follower }
        }),
        ({ follower, life, pod }) =>
          life.stop.pipe(
            Effect.andThen(Effect.ignore(Kubectl.killPod(pod))),
            Effect.andThen(Effect.sync(() => follower.kill("SIGKILL")))
          )
      ).pipe(Effect.map(({ life }) => life))
  }
})

/** The pod of its service, but for: its name and labels, its settings, and whoever would restart it when it does not answer. */
const participant = (
  pod: string,
  of: {
    readonly run: string
    readonly name: string
    readonly template: Kubectl.PodTemplate
    readonly settings: Readonly<Record<string, string>>
  }
): Kubectl.Pod => {
  const [container, ...sidecars] = of.template.spec.containers
  const { lifecycle: _l, livenessProbe: _p, readinessProbe: _r, startupProbe: _s, ...kept } = container ?? { name: "" }
  return {
    apiVersion: "v1",
    kind: "Pod",
    metadata: {
      name: pod,
      // Not those of the service: nobody else's traffic may come here.
      labels: {
        "app.kubernetes.io/part-of": "dlock",
        "dlock-lab": "participant",
        "dlock-lab-run": of.run,
        "dlock-lab-name": of.name
      },
      annotations: { "cluster-autoscaler.kubernetes.io/safe-to-evict": "false" }
    },
    spec: {
      ...of.template.spec,
      restartPolicy: "Never",
      shareProcessNamespace: true,
      containers: [
        {
          ...kept,
          env: Object.entries({
            ...of.settings,
            HTTP_HOST: "0.0.0.0",
            // The ports of the service, whatever free ones a process of one machine would be given.
            HTTP_PORT: portOf(container, "http"),
            MANAGEMENT_PORT: portOf(container, "http-metrics")
          }).map(([setting, value]) => ({ name: setting, value }))
        },
        ...sidecars
      ]
    }
  }
}

const portOf = (container: Kubectl.Container | undefined, name: string): string =>
  String(container?.ports?.find((port) => port.name === name)?.containerPort ?? 0)

/** A pod whose log this follows. */
export const observePod = (pod: string, ip: string, follower: ChildProcess): ServiceProcess => {
  const life: ServiceProcess = observe(
    pod,
    follower,
    inPod(pod, ip, () => Number(life.log.find(isEvent("listening"))?.["pid"] ?? 0))
  )
  return life
}

/** From inside what only one process is to feel; by the API server what ends the pod. */
const inPod = (pod: string, ip: string, pid: () => number): Control => ({
  pid,
  signal: (which) =>
    Effect.suspend(() => {
      if (which === "SIGKILL") return Kubectl.killPod(pod)
      if (which === "SIGTERM") return Kubectl.endPod(pod)
      return pid() === 1
        ? Effect.fail(
            new HarnessError({
              step: `${which} in ${pod}`,
              message: "it is process 1, which no signal from inside its pod can stop: share the process namespace"
            })
          )
        : Effect.asVoid(Kubectl.exec(pod, ["/bin/sh", "-c", `kill -${which.slice(3)} ${pid()}`]))
    }),
  state: Effect.suspend(() => Kubectl.exec(pod, ["/bin/cat", `/proc/${pid()}/stat`])).pipe(
    Effect.map((stat) => stat.slice(stat.lastIndexOf(")") + 2, stat.lastIndexOf(")") + 3)),
    Effect.orElseSucceed(() => "gone")
  ),
  addressOf: (record) => ({
    url: `http://${ip}:${String(record["port"])}`,
    managementUrl: `http://${ip}:${String(record["managementPort"])}`
  })
})

// -----------------------------------------------------------------------------
// the lock backends
// -----------------------------------------------------------------------------

const outage = (set: string) => ({
  kill: Effect.as(Kubectl.killPod(`${set}-0`), `pod ${set}-0 was deleted`),
  recover: Effect.as(Kubectl.rolledOut(`statefulset/${set}`), `${set} is ready again`)
})

const pgBackend =
  (host: string) =>
  (address: URL): LockBackend => {
    const { port, url: urlOf } = server(address)
    return {
      kind: "pg",
      replicated: false,
      host: address.hostname,
      ports: Effect.succeed([port]),
      settings: ([at]) => {
        const through = new URL(Redacted.value(urlOf("lockdb")))
        through.hostname = host
        through.port = String(at)
        return { LOCK_BACKEND: "pg", LOCK_PG_URL: through.href }
      },
      ...outage("lockdb"),
      events: (keys) => pgEvents(urlOf("lockdb"), keys)
    }
  }

const etcdBackend = Effect.fnUntraced(
  function* (host: string): Effect.fn.Return<LockBackend, HarnessError, Scope.Scope> {
    const endpoints = (yield* text("LOCK_ETCD_ENDPOINTS")).split(",")
    const { followEtcd } = yield* Effect.promise(() => import("./EtcdBackend.ts"))
    const [first = ""] = endpoints
    return {
      kind: "etcd",
      replicated: false,
      // One member is enough for its clients: it forwards to the leader.
      host: new URL(first).hostname,
      ports: Effect.succeed([Number(new URL(first).port)]),
      settings: (ports) => ({
        LOCK_BACKEND: "etcd",
        LOCK_ETCD_ENDPOINTS: ports.map((port) => `http://${host}:${port}`).join(",")
      }),
      ...outage("dlock-etcd"),
      events: yield* followEtcd(endpoints)
    }
  },
  Effect.mapError(wrong("follow etcd"))
)
