// @effect-diagnostics nodeBuiltinImport:off
/**
 * What is wrong with a set of Kubernetes objects, in words: the whole of one overlay, as `kubectl kustomize` gives it.
 *
 * The API server would take most of these mistakes: a selector that matches nothing, a policy for a port that nobody has, a
 * probe of a path that answers 404. Fields and types come from Kubernetes' own description (k8s-schema.json); names and ports
 * from the program.
 */
import { ConfigProvider, Effect, Exit } from "effect"
import { parse } from "effect/encoding/Yaml"
import { parseEnv } from "node:util"
import * as Management from "../../src/services/platform/Management.ts"
import { load, type ServiceName, services } from "../../src/services/platform/ServiceConfig.ts"
import schema from "./k8s-schema.json" with { type: "json" }

export interface Json {
  readonly [name: string]: Json
}
export type Overlay = "local" | "gcp-dev" | "gcp-lab"

export const parseObjects = (yaml: string): ReadonlyArray<Json> =>
  yaml
    .split(/^---$/m)
    .filter((document) => document.trim() !== "")
    // The text is a file of this repository or of kustomize.
    .map((document) => parse(document) as unknown as Json)

// -----------------------------------------------------------------------------
// reading what may not be there
// -----------------------------------------------------------------------------

const at = (node: unknown, path: string): unknown =>
  path
    .split("/")
    .reduce<unknown>(
      (inner, name) => (typeof inner === "object" && inner !== null ? Reflect.get(inner, name) : undefined),
      node
    )
const text = (node: unknown, path: string): string => {
  const found = at(node, path)
  return typeof found === "string" || typeof found === "number" ? String(found) : ""
}
const list = (node: unknown, path: string): ReadonlyArray<unknown> => {
  const found = at(node, path)
  return Array.isArray(found) ? found : []
}
const labels = (node: unknown, path: string): Readonly<Record<string, string>> => {
  const found = at(node, path)
  return typeof found === "object" && found !== null ? (found as Record<string, string>) : {}
}
const nameOf = (object: unknown) => text(object, "metadata/name")
const idOf = (object: unknown) => `${text(object, "kind")} ${nameOf(object)}`

// -----------------------------------------------------------------------------
// fields and types
// -----------------------------------------------------------------------------

const types: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  ...schema,
  // Of operators, whose descriptions are not Kubernetes' own.
  V1PodMonitoring: { apiVersion: "string", kind: "string", metadata: "V1ObjectMeta", "spec!": "PodMonitoringSpec" },
  PodMonitoringSpec: {
    "selector!": "V1LabelSelector",
    "endpoints!": "PodMonitoringEndpoint[]",
    targetLabels: "PodMonitoringLabels"
  },
  PodMonitoringEndpoint: { "port!": "IntOrString", path: "string", interval: "string", timeout: "string" },
  PodMonitoringLabels: { fromPod: "PodMonitoringLabel[]", metadata: "string[]" },
  PodMonitoringLabel: { "from!": "string", to: "string" },
  V1SecretProviderClass: { apiVersion: "string", kind: "string", metadata: "V1ObjectMeta", "spec!": "SecretProvider" },
  SecretProvider: { "provider!": "string", "parameters!": "{string}" }
}
const versions: Readonly<Record<string, string>> = {
  Namespace: "v1",
  ServiceAccount: "v1",
  Service: "v1",
  ConfigMap: "v1",
  Secret: "v1",
  PersistentVolumeClaim: "v1",
  Deployment: "apps/v1",
  StatefulSet: "apps/v1",
  Job: "batch/v1",
  CronJob: "batch/v1",
  PodDisruptionBudget: "policy/v1",
  NetworkPolicy: "networking.k8s.io/v1",
  Role: "rbac.authorization.k8s.io/v1",
  RoleBinding: "rbac.authorization.k8s.io/v1",
  HorizontalPodAutoscaler: "autoscaling/v2",
  PodMonitoring: "monitoring.googleapis.com/v1",
  SecretProviderClass: "secrets-store.csi.x-k8s.io/v1"
}
const quantity = /^\d+(?:\.\d+)?(?:m|k|M|G|T|Ki|Mi|Gi|Ti)?$/

const typeProblems = (value: unknown, type: string, path: string): ReadonlyArray<string> => {
  if (type.endsWith("[]")) {
    return Array.isArray(value)
      ? value.flatMap((one, i) => typeProblems(one, type.slice(0, -2), `${path}[${i}]`))
      : [`${path}: not a list`]
  }
  if (type.startsWith("{")) {
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? Object.entries(value).flatMap(([key, one]) => [
          ...typeProblems(one, type.slice(1, -1), `${path}.${key}`),
          ...(/\.(?:limits|requests)$/.test(path) && !quantity.test(String(one))
            ? [`${path}.${key}: no quantity: ${String(one)}`]
            : [])
        ])
      : [`${path}: not a map`]
  }
  switch (type) {
    case "any":
      return []
    case "IntOrString":
      return typeof value === "string" || Number.isInteger(value) ? [] : [`${path}: neither a number nor a name`]
    case "Date":
      return typeof value === "string" ? [] : [`${path}: not a string`]
    case "string":
    case "number":
    case "boolean":
      return typeof value === type ? [] : [`${path}: not a ${type}`]
  }
  const fields = types[type]
  if (fields === undefined) return [`${path}: there is no type ${type}`]
  if (typeof value !== "object" || value === null || Array.isArray(value)) return [`${path}: not a ${type}`]
  return [
    ...Object.entries(value).flatMap(([key, one]) => {
      const field = fields[key] ?? fields[`${key}!`]
      return field === undefined ? [`${path}.${key}: unknown field`] : typeProblems(one, field, `${path}.${key}`)
    }),
    ...Object.keys(fields).flatMap((key) =>
      key.endsWith("!") && !(key.slice(0, -1) in value) ? [`${path}.${key.slice(0, -1)}: missing`] : []
    )
  ]
}

const schemaProblems = (object: Json): ReadonlyArray<string> => {
  const kind = text(object, "kind")
  const version = versions[kind]
  if (version === undefined) return [`${idOf(object)}: a kind that nobody checks`]
  if (text(object, "apiVersion") !== version) return [`${idOf(object)}: apiVersion is not ${version}`]
  const type = `${kind === "HorizontalPodAutoscaler" ? "V2" : "V1"}${kind}`
  return typeProblems(object, type, kind).map((problem) => `${idOf(object)}: ${problem}`)
}

// -----------------------------------------------------------------------------
// pods, and who means which
// -----------------------------------------------------------------------------

/** Of a workload: its template and its name. */
interface Pods {
  readonly object: Json
  readonly name: string
  readonly kind: string
  readonly labels: Readonly<Record<string, string>>
  readonly spec: unknown
  readonly annotations: Readonly<Record<string, string>>
}

const podsOf = (objects: ReadonlyArray<Json>): ReadonlyArray<Pods> =>
  objects.flatMap((object) => {
    const kind = text(object, "kind")
    const path =
      kind === "CronJob"
        ? "spec/jobTemplate/spec/template"
        : /^(?:Deployment|StatefulSet|Job)$/.test(kind)
          ? "spec/template"
          : ""
    return path === ""
      ? []
      : [
          {
            object,
            kind,
            name: nameOf(object),
            labels: labels(object, `${path}/metadata/labels`),
            annotations: labels(object, `${path}/metadata/annotations`),
            spec: at(object, `${path}/spec`)
          }
        ]
  })

const containersOf = ({ spec }: Pods) => [...list(spec, "initContainers"), ...list(spec, "containers")]
const portsOf = (pods: Pods) =>
  new Map(
    containersOf(pods).flatMap((container) =>
      list(container, "ports").map((port) => [text(port, "name"), Number(text(port, "containerPort"))] as const)
    )
  )

/** As Kubernetes does: every label and every expression; nothing selects everything. */
const selects = (selector: unknown, of: Readonly<Record<string, string>>): boolean =>
  Object.entries(labels(selector, "matchLabels")).every(([key, value]) => of[key] === value) &&
  list(selector, "matchExpressions").every((expression) => {
    const value = of[text(expression, "key")]
    const values = list(expression, "values")
    switch (text(expression, "operator")) {
      case "In":
        return value !== undefined && values.includes(value)
      case "NotIn":
        return value === undefined || !values.includes(value)
      case "Exists":
        return value !== undefined
      default:
        return value === undefined
    }
  })

const isMade = (name: string, made: string) => name === made || name.replace(/-[a-z0-9]{10}$/, "") === made

// -----------------------------------------------------------------------------
// network policies
// -----------------------------------------------------------------------------

interface Flow {
  readonly from: string
  readonly to: string
  readonly port: string
}

const policyAllows = (
  direction: "ingress" | "egress",
  policies: ReadonlyArray<Json>,
  self: Pods,
  peer: Pods,
  port: string,
  destination: Pods
): boolean => {
  const applied = policies.filter(
    (policy) =>
      selects(at(policy, "spec/podSelector"), self.labels) &&
      list(policy, "spec/policyTypes").includes(direction === "ingress" ? "Ingress" : "Egress")
  )
  if (applied.length === 0) return true
  return applied.some((policy) =>
    list(policy, `spec/${direction}`).some((rule) => {
      const peers = list(rule, direction === "ingress" ? "from" : "to")
      const ports = list(rule, "ports")
      return (
        (peers.length === 0 ||
          peers.some(
            (one) =>
              at(one, "namespaceSelector") === undefined &&
              at(one, "ipBlock") === undefined &&
              selects(at(one, "podSelector"), peer.labels)
          )) &&
        (ports.length === 0 ||
          ports.some(
            (one) => text(one, "port") === port || text(one, "port") === String(portsOf(destination).get(port))
          ))
      )
    })
  )
}

/** What `to` itself lets in, whatever `from` may send. */
const isLetIn = (objects: ReadonlyArray<Json>, { from, port, to }: Flow): boolean => {
  const pods = podsOf(objects)
  const source = pods.find(({ name }) => name === from)
  const target = pods.find(({ name }) => name === to)
  if (source === undefined || target === undefined) return false
  const policies = objects.filter((object) => text(object, "kind") === "NetworkPolicy")
  return policyAllows("ingress", policies, target, source, port, target)
}

/** Both ends must agree. */
export const isAllowed = (objects: ReadonlyArray<Json>, { from, port, to }: Flow): boolean => {
  const pods = podsOf(objects)
  const source = pods.find(({ name }) => name === from)
  const target = pods.find(({ name }) => name === to)
  if (source === undefined || target === undefined) return false
  const policies = objects.filter((object) => text(object, "kind") === "NetworkPolicy")
  return (
    policyAllows("egress", policies, source, target, port, target) &&
    policyAllows("ingress", policies, target, source, port, target)
  )
}

// -----------------------------------------------------------------------------
// everything
// -----------------------------------------------------------------------------

const names = Object.keys(services) as ReadonlyArray<ServiceName>
/** Which services a process of this kind calls. */
const calls: Readonly<Record<ServiceName, ReadonlyArray<ServiceName>>> = {
  "lock-server": [],
  "payment-resource": [],
  "rail-proxy": ["rail-stub"],
  "rail-stub": [],
  "payout-executor": ["lock-server", "payment-resource", "rail-proxy"],
  reconciler: ["lock-server", "payment-resource", "rail-proxy"]
}
const urlSettings = ["LOCK_URL", "PAYMENT_URL", "RAIL_PROXY_URL", "RAIL_URL"]

export const problemsOf = (objects: ReadonlyArray<Json>, overlay: Overlay): ReadonlyArray<string> => {
  const found = objects.flatMap(schemaProblems)
  const say = (problem: string) => found.push(problem)
  const of = (kind: string) => objects.filter((object) => text(object, "kind") === kind)
  const pods = podsOf(objects)
  const has = (kind: string, name: string) => of(kind).some((object) => nameOf(object) === name)
  const matching = (selector: unknown) => pods.filter((one) => selects(selector, one.labels))

  // ---- names
  const seen = new Set<string>()
  for (const object of objects) {
    if (seen.has(idOf(object))) say(`${idOf(object)}: twice`)
    seen.add(idOf(object))
    if (text(object, "kind") !== "Namespace" && text(object, "metadata/namespace") !== "dlock") {
      say(`${idOf(object)}: not in namespace dlock`)
    }
  }
  const [namespace] = of("Namespace")
  if (text(namespace, "metadata/labels/pod-security.kubernetes.io~1enforce".replace("~1", "/")) === "") {
    // The label's name has a slash, which paths here do not.
    if (labels(namespace, "metadata/labels")["pod-security.kubernetes.io/enforce"] !== "restricted") {
      say("Namespace dlock: does not enforce restricted pods")
    }
  }

  // ---- selectors
  for (const { kind, labels: own, object } of pods) {
    if (kind === "Deployment" || kind === "StatefulSet") {
      if (!selects(at(object, "spec/selector"), own)) say(`${idOf(object)}: its selector does not match its own pods`)
    }
  }
  for (const service of of("Service")) {
    const matched = pods.filter((one) => selects({ matchLabels: at(service, "spec/selector") }, one.labels))
    if (matched.length === 0) say(`${idOf(service)}: its selector matches nothing`)
    for (const port of list(service, "spec/ports")) {
      for (const one of matched) {
        const target = portsOf(one).get(text(port, "targetPort"))
        if (target === undefined) say(`${idOf(service)}: ${one.name} has no port ${text(port, "targetPort")}`)
        else if (target !== Number(text(port, "port")))
          say(`${idOf(service)}: port ${text(port, "port")} is not ${target}`)
      }
    }
  }
  for (const object of [...of("PodDisruptionBudget"), ...of("PodMonitoring")]) {
    if (matching(at(object, "spec/selector")).length === 0) say(`${idOf(object)}: its selector matches nothing`)
  }
  for (const policy of of("NetworkPolicy")) {
    const own = matching(at(policy, "spec/podSelector"))
    if (own.length === 0 && nameOf(policy) !== "participants") say(`${idOf(policy)}: its selector matches nothing`)
    for (const direction of ["ingress", "egress"]) {
      for (const rule of list(policy, `spec/${direction}`)) {
        for (const peer of list(rule, direction === "ingress" ? "from" : "to")) {
          if (at(peer, "namespaceSelector") !== undefined || at(peer, "ipBlock") !== undefined) continue
          const others = matching(at(peer, "podSelector"))
          const wanted = list(at(peer, "podSelector"), "matchExpressions").flatMap((one) => list(one, "values"))
          if (others.length < Math.max(1, wanted.length)) say(`${idOf(policy)}: a peer's selector matches nothing`)
          for (const { port } of list(rule, "ports") as ReadonlyArray<{ readonly port: unknown }>) {
            for (const one of direction === "ingress" ? own : others) {
              if (typeof port === "string" && !portsOf(one).has(port))
                say(`${idOf(policy)}: ${one.name} has no port ${port}`)
            }
          }
        }
      }
    }
    // A name that is not in this overlay is somebody's typing error, or a rule for nobody.
    for (const expression of list(policy, "spec/podSelector/matchExpressions")) {
      for (const value of list(expression, "values")) {
        // It names both backends' workloads.
        const elsewhere = nameOf(policy) === "to-google"
        if (!elsewhere && !pods.some(({ name }) => name === value)) say(`${idOf(policy)}: there is no ${String(value)}`)
      }
    }
  }

  // ---- the pods themselves
  const config = of("ConfigMap").find((object) => isMade(nameOf(object), "dlock-config"))
  const settings = labels(config, "data")
  for (const one of pods) {
    const say1 = (problem: string) => say(`${idOf(one.object)}: ${problem}`)
    const { spec } = one
    const account = text(spec, "serviceAccountName")
    if (account !== one.name || !has("ServiceAccount", account)) say1("no service account of its own")
    if (at(spec, "automountServiceAccountToken") !== (one.name === "harness")) say1("its token is mounted")
    if (at(spec, "securityContext/runAsNonRoot") !== true) say1("may run as root")
    if (text(spec, "securityContext/seccompProfile/type") !== "RuntimeDefault") say1("no seccomp profile")
    if (one.annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] === undefined)
      say1("does not say whether it may be evicted")
    for (const volume of list(spec, "volumes")) {
      const secret = text(volume, "secret/secretName")
      const claim = text(volume, "persistentVolumeClaim/claimName")
      const provider = text(volume, "csi/volumeAttributes/secretProviderClass")
      if (secret !== "" && !has("Secret", secret)) say1(`there is no secret ${secret}`)
      if (claim !== "" && !has("PersistentVolumeClaim", claim)) say1(`there is no volume claim ${claim}`)
      if (provider !== "" && !has("SecretProviderClass", provider)) say1(`there is no secret provider ${provider}`)
    }
    const volumes = new Set([
      ...list(spec, "volumes").map((volume) => text(volume, "name")),
      ...list(one.object, "spec/volumeClaimTemplates").map(nameOf)
    ])
    for (const container of containersOf(one)) {
      const image = text(container, "image")
      const name = text(container, "name")
      if (!/@sha256:[0-9a-f]{64}$|:v?\d+\.\d+(?:\.\d+)?(?:-[a-z]+)?$/.test(image)) say1(`image ${image} is not pinned`)
      if (overlay !== "local" && /\/dlock(?:-lab)?[:@]/.test(image) && !image.includes("@"))
        say1(`image ${image} has no digest`)
      if (at(container, "securityContext/allowPrivilegeEscalation") !== false) say1(`${name} may escalate`)
      if (at(container, "securityContext/readOnlyRootFilesystem") !== true) say1(`${name} may write its file system`)
      if (!list(container, "securityContext/capabilities/drop").includes("ALL")) say1(`${name} keeps capabilities`)
      for (const what of ["requests/cpu", "requests/memory", "limits/memory"]) {
        if (text(container, `resources/${what}`) === "") say1(`${name} has no ${what}`)
      }
      for (const probe of ["startupProbe", "livenessProbe", "readinessProbe"]) {
        for (const how of ["httpGet", "tcpSocket"]) {
          const port = at(container, `${probe}/${how}/port`)
          if (port !== undefined && !portsOf(one).has(String(port)))
            say1(`${probe} asks port ${String(port)}, which it has not`)
        }
      }
      for (const mount of list(container, "volumeMounts")) {
        if (!volumes.has(text(mount, "name"))) say1(`there is no volume ${text(mount, "name")}`)
      }
      for (const from of list(container, "envFrom")) {
        const map = text(from, "configMapRef/name")
        const secret = text(from, "secretRef/name")
        if (map !== "" && !has("ConfigMap", map)) say1(`there is no config map ${map}`)
        if (secret !== "" && at(from, "secretRef/optional") !== true && !has("Secret", secret)) {
          say1(`there is no secret ${secret}`)
        }
      }
      for (const variable of list(container, "env")) {
        const secret = text(variable, "valueFrom/secretKeyRef/name")
        if (secret !== "" && !has("Secret", secret)) say1(`there is no secret ${secret}`)
        if (/PASSWORD|_PG_URL/.test(text(variable, "name")) && at(variable, "value") !== undefined)
          say1("a secret in its environment")
      }
      const file = list(container, "args").indexOf("--config")
      if (
        file >= 0 &&
        !list(container, "volumeMounts").some((mount) =>
          text(container, `args/${file + 1}`).startsWith(`${text(mount, "mountPath")}/`)
        )
      ) {
        say1("its settings file is not mounted")
      }
    }

    // ---- several of a kind
    const scaled = of("HorizontalPodAutoscaler").find((object) => text(object, "spec/scaleTargetRef/name") === one.name)
    const replicas =
      scaled === undefined ? Number(text(one.object, "spec/replicas")) : Number(text(scaled, "spec/minReplicas"))
    if ((one.kind === "Deployment" || one.kind === "StatefulSet") && replicas > 1) {
      const budgets = of("PodDisruptionBudget").filter((object) => selects(at(object, "spec/selector"), one.labels))
      if (budgets.length !== 1) say1(`${budgets.length} disruption budgets`)
      const zones = list(spec, "topologySpreadConstraints")
      if (!zones.some((zone) => text(zone, "topologyKey") === "topology.kubernetes.io/zone"))
        say1("is not spread over zones")
      for (const zone of zones) {
        if (!selects(at(zone, "labelSelector"), one.labels)) say1("is spread by a selector that does not match itself")
      }
    }
  }
  for (const object of of("HorizontalPodAutoscaler")) {
    const target = of(text(object, "spec/scaleTargetRef/kind")).find(
      (one) => nameOf(one) === text(object, "spec/scaleTargetRef/name")
    )
    if (target === undefined) say(`${idOf(object)}: scales nothing`)
    else if (at(target, "spec/replicas") !== undefined) say(`${idOf(target)}: both it and its autoscaler say how many`)
  }

  // ---- as the program has it
  for (const name of names) {
    const one = pods.find((pod) => pod.name === name && pod.kind === "Deployment")
    if (one === undefined) {
      say(`there is no deployment ${name}`)
      continue
    }
    const { managementPort, port } = services[name]
    const container = list(one.spec, "containers")[0]
    const say1 = (problem: string) => say(`Deployment ${name}: ${problem}`)
    if (list(container, "args")[0] !== name) say1("runs another command")
    const ports = new Map(
      list(container, "ports").map((each) => [text(each, "name"), Number(text(each, "containerPort"))])
    )
    if (ports.get("http") !== port) say1(`port http is not ${port ?? "absent"}`)
    if (ports.get("http-metrics") !== managementPort) say1(`port http-metrics is not ${managementPort}`)
    for (const [probe, path] of [
      ["startupProbe", Management.paths.liveness],
      ["livenessProbe", Management.paths.liveness],
      ["readinessProbe", Management.paths.readiness]
    ] as const) {
      if (text(container, `${probe}/httpGet/path`) !== path) say1(`${probe} does not ask ${path}`)
      if (text(container, `${probe}/httpGet/port`) !== "http-metrics") say1(`${probe} does not ask http-metrics`)
    }
    if (port !== undefined && !has("Service", name)) say1("nobody can find it")
    const monitoring = of("PodMonitoring").find((object) => nameOf(object) === name)
    if (overlay !== "local") {
      const [endpoint] = list(monitoring, "spec/endpoints")
      if (monitoring === undefined || !selects(at(monitoring, "spec/selector"), one.labels))
        say1("nobody scrapes it under its name")
      if (text(endpoint, "path") !== Management.paths.prometheus)
        say1(`is not scraped at ${Management.paths.prometheus}`)
      if (text(endpoint, "port") !== "http-metrics") say1("is not scraped at http-metrics")
      const account = of("ServiceAccount").find((object) => nameOf(object) === name)
      const google = labels(account, "metadata/annotations")["iam.gke.io/gcp-service-account"]
      if (overlay === "gcp-dev" && google !== `dlock-${name}@dlock-lab.iam.gserviceaccount.com`) {
        say1("has no identity at Google of its own")
      }
    }
    for (const callee of calls[name]) {
      if (!isAllowed(objects, { from: name, to: callee, port: "http" })) say1(`may not call ${callee}`)
      if (isAllowed(objects, { from: name, to: callee, port: "http-metrics" }))
        say1(`reaches the management port of ${callee}`)
    }
    // Every setting is one that the program has, and has a value that it takes; a secret's file as well.
    const secret = of("Secret").find((object) => isMade(nameOf(object), `${name}-settings`))
    const file = parseEnv(
      text({ file: Buffer.from(text(at(secret, "data"), "settings.env"), "base64").toString() }, "file")
    )
    const given = { ...settings, ...file } as Record<string, string>
    const exit = Effect.runSyncExit(
      Effect.provideService(load(name), ConfigProvider.ConfigProvider, ConfigProvider.fromEnvRecord(given))
    )
    if (Exit.isFailure(exit)) say1(`does not start: ${String(exit.cause)}`)
    else {
      const { effective, executor, rail } = { effective: exit.value.effective, ...exit.value.settings }
      const env = (setting: string) => setting.replaceAll(/[.-]/g, "_").toUpperCase()
      const known = new Set(Object.keys(effective).map(env))
      for (const setting of Object.keys(given)) if (!known.has(setting)) say1(`there is no setting ${setting}`)
      const grace = Number(text(one.spec, "terminationGracePeriodSeconds")) * 1_000
      if (name === "payout-executor" && grace <= 2 * executor.railTimeoutMillis)
        say1("is killed in the middle of a payout")
      if (name === "rail-proxy" && grace <= rail.readTimeoutMillis + 10_000)
        say1("is killed in the middle of a submission")
    }
  }

  // ---- where the settings point to
  for (const setting of urlSettings) {
    const url = settings[setting] ?? ""
    const host = URL.canParse(url) ? new URL(url).hostname : ""
    const service = of("Service").find((object) => nameOf(object) === host)
    if (service === undefined) say(`${setting}: there is no service ${host}`)
    else if (!list(service, "spec/ports").some((port) => text(port, "port") === new URL(url).port))
      say(`${setting}: ${host} has no port ${new URL(url).port}`)
  }
  for (const endpoint of (settings["LOCK_ETCD_ENDPOINTS"] ?? "").split(",").filter((one) => one !== "")) {
    const [pod = "", service = ""] = new URL(endpoint).hostname.split(".")
    const set = of("StatefulSet").find((object) => pod.startsWith(`${nameOf(object)}-`))
    if (set === undefined || !(Number(pod.slice(nameOf(set).length + 1)) < Number(text(set, "spec/replicas"))))
      say(`there is no etcd ${pod}`)
    if (!has("Service", service)) say(`there is no service ${service}`)
  }
  if (settings["LOCK_BACKEND"] !== "pg" && settings["LOCK_BACKEND"] !== "etcd") say("no backend of the locks is chosen")
  if (settings["LOCK_BACKEND"] === "etcd") {
    if (!isAllowed(objects, { from: "lock-server", to: "dlock-etcd", port: "client" }))
      say("lock-server may not call etcd")
    if (!isAllowed(objects, { from: "dlock-etcd-backup", to: "dlock-etcd", port: "client" }))
      say("the backup may not call etcd")
    if (isAllowed(objects, { from: "payout-executor", to: "dlock-etcd", port: "client" })) say("a worker reaches etcd")
  }
  if (overlay !== "gcp-dev") {
    for (const from of ["payment-resource", "rail-proxy", "migrate-paydb"]) {
      if (!isAllowed(objects, { from, to: "paydb", port: "postgres" })) say(`${from} may not call paydb`)
    }
    for (const from of ["payout-executor", "reconciler", "lock-server", "rail-stub"]) {
      if (isAllowed(objects, { from, to: "paydb", port: "postgres" })) say(`${from} reaches paydb`)
    }
  }

  // ---- who may connect to whom: nothing, but for what is listed
  const deny = of("NetworkPolicy").find(
    (policy) =>
      Object.keys(labels(policy, "spec/podSelector")).length === 0 &&
      list(policy, "spec/policyTypes").length === 2 &&
      at(policy, "spec/ingress") === undefined &&
      at(policy, "spec/egress") === undefined
  )
  if (deny === undefined) say("nothing denies what is not allowed")
  for (const { name: from } of pods) {
    const may = from === "rail-proxy" || from === "harness"
    for (const port of ["http", "http-metrics"]) {
      if (!may && isLetIn(objects, { from, to: "rail-stub", port })) say(`rail-stub is reached by ${from}`)
    }
  }
  // What an address or another namespace may do is not seen by the pairs above.
  for (const policy of of("NetworkPolicy")) {
    for (const rule of list(policy, "spec/ingress")) {
      for (const peer of list(rule, "from")) {
        if (at(peer, "ipBlock") !== undefined) say(`${idOf(policy)}: lets addresses in`)
        const space = labels(peer, "namespaceSelector/matchLabels")["kubernetes.io/metadata.name"]
        if (at(peer, "namespaceSelector") !== undefined && space !== "gmp-system")
          say(`${idOf(policy)}: lets another namespace in`)
        const only =
          list(rule, "ports").every((port) => text(port, "port") === "http-metrics") && list(rule, "ports").length > 0
        if (space === "gmp-system" && !only) say(`${idOf(policy)}: Prometheus reaches more than the metrics`)
      }
    }
  }
  if (overlay === "gcp-lab") {
    for (const name of names) {
      const one = pods.find((pod) => pod.name === name)
      if (at(one?.spec, "shareProcessNamespace") !== true)
        say(`Deployment ${name}: can not be stopped from inside its pod`)
    }
  } else if (has("Deployment", "harness")) say("the harness is not in the lab")
  return found
}
