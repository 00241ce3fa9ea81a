// @effect-diagnostics nodeBuiltinImport:off
/** What the experiment asks of a cluster, each as one call of kubectl in namespace `dlock`. */
import { Effect, type Scope } from "effect"
import { type ChildProcess, spawn } from "node:child_process"
import { run } from "./Commands.ts"
import { HarnessError } from "./Processes.ts"

/** As much of these as is looked at; the rest is passed on as it is. */
export interface Container {
  readonly name: string
  readonly ports?: ReadonlyArray<{ readonly name?: string; readonly containerPort: number }>
  readonly [field: string]: unknown
}
export interface PodSpec {
  readonly containers: ReadonlyArray<Container>
  readonly [field: string]: unknown
}
export interface PodTemplate {
  readonly spec: PodSpec
}
export interface Pod extends PodTemplate {
  readonly apiVersion: "v1"
  readonly kind: "Pod"
  readonly metadata: {
    readonly name: string
    readonly labels: Readonly<Record<string, string>>
    readonly annotations: Readonly<Record<string, string>>
  }
}

/** A node may have to be added first. */
const patience = "3 minutes"
const inNamespace = ["--namespace", "dlock"]

const kubectl = (step: string, args: ReadonlyArray<string>, input?: string): Effect.Effect<string, HarnessError> =>
  run("kubectl", [...inNamespace, ...args], { step, timeout: patience, ...(input === undefined ? {} : { input }) })

const parsed = <A>(step: string, json: string): Effect.Effect<A, HarnessError> =>
  Effect.try({
    // The API server's own object, of which only what is named above is used.
    try: () => JSON.parse(json) as A,
    catch: () => new HarnessError({ step, message: "kubectl did not answer JSON" })
  })

/** From which its Deployment makes its pods. */
export const templateOf = (deployment: string): Effect.Effect<PodTemplate, HarnessError> => {
  const step = `read deployment ${deployment}`
  return Effect.flatMap(kubectl(step, ["get", "deployment", deployment, "--output", "json"]), (json) =>
    Effect.map(
      parsed<{ readonly spec: { readonly template: PodTemplate } }>(step, json),
      ({ spec: { template } }) => template
    )
  )
}

export const createPod = (pod: Pod): Effect.Effect<void, HarnessError> =>
  Effect.asVoid(
    kubectl(`create ${pod.metadata.name}`, ["create", "--validate=false", "--filename", "-"], JSON.stringify(pod))
  )

/** Ends when the pod does. */
export const followLog = (pod: string): Effect.Effect<ChildProcess, HarnessError> =>
  Effect.sync(() =>
    spawn("kubectl", [...inNamespace, "logs", "--follow", "--pod-running-timeout=3m", pod], {
      stdio: ["ignore", "pipe", "pipe"]
    })
  )

export const ipOf = (pod: string): Effect.Effect<string, HarnessError> =>
  Effect.andThen(
    kubectl(`wait for ${pod}`, ["wait", "--for=jsonpath={.status.podIP}", "--timeout=170s", `pod/${pod}`]),
    kubectl(`look at ${pod}`, ["get", "pod", pod, "--output", "jsonpath={.status.podIP}"])
  )

/** Exit code 0, or it failed. */
export const exec = (pod: string, command: ReadonlyArray<string>): Effect.Effect<string, HarnessError> =>
  kubectl(`${command.join(" ")} in ${pod}`, ["exec", pod, "--", ...command])

/** SIGKILL, and no time to do anything about it. */
export const killPod = (pod: string): Effect.Effect<void, HarnessError> =>
  Effect.asVoid(
    kubectl(`kill ${pod}`, ["delete", "pod", pod, "--force", "--grace-period=0", "--ignore-not-found", "--wait=false"])
  )

/** SIGTERM, and the time that the pod has for it. */
export const endPod = (pod: string): Effect.Effect<void, HarnessError> =>
  Effect.asVoid(kubectl(`end ${pod}`, ["delete", "pod", pod, "--ignore-not-found", "--wait=false"]))

/**
 * Cut off from everything while the scope lasts: no policy but the one that denies means it any more. Silent, as a partition
 * is; what is under way is dropped when the cluster enforces policies on connections that are open, which not every one does.
 */
export const isolate = (pod: string): Effect.Effect<void, HarnessError, Scope.Scope> => {
  const label = (value: string) =>
    Effect.asVoid(kubectl(`label ${pod} ${value}`, ["label", "pod", pod, `dlock-lab=${value}`, "--overwrite"]))
  return Effect.acquireRelease(label("isolated"), () => Effect.ignore(label("participant")))
}

export const deletePods = (selector: string): Effect.Effect<void, HarnessError> =>
  Effect.asVoid(
    kubectl(`delete pods ${selector}`, [
      "delete",
      "pods",
      "--selector",
      selector,
      "--force",
      "--grace-period=0",
      "--wait=false"
    ])
  )

export const rolledOut = (what: string): Effect.Effect<void, HarnessError> =>
  Effect.asVoid(kubectl(`wait for ${what}`, ["rollout", "status", what, "--timeout=170s"]))
