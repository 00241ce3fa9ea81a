// @effect-diagnostics nodeBuiltinImport:off
/** Every overlay, built by kubectl and checked as a whole; and each kind of mistake, planted into one, to see that it is found. */
import { assert, describe, it } from "@effect/vitest"
import { execFileSync, spawnSync } from "node:child_process"
import { readdirSync } from "node:fs"
import { isAllowed, type Json, type Overlay, parseObjects, problemsOf } from "./manifests.ts"

const hasKubectl = spawnSync("kubectl", ["version", "--client"], { stdio: "ignore" }).status === 0
const overlays = (["local", "gcp-dev", "gcp-lab"] as const).flatMap((overlay) =>
  ["pg", "etcd"].map((backend) => ({ overlay, backend, path: `infra/k8s/overlays/${overlay}/${backend}` }))
)
const built = new Map<string, ReadonlyArray<Json>>()
const build = (overlay: Overlay, backend: string) => {
  const path = `infra/k8s/overlays/${overlay}/${backend}`
  const known = built.get(path) ?? parseObjects(execFileSync("kubectl", ["kustomize", path], { encoding: "utf8" }))
  built.set(path, known)
  return known
}

/** A mistake: in which object, what is replaced in its text, and a word of the problem that must be found. */
type Mistake = readonly [object: string, from: string | RegExp, to: string, found: string]

const withMistake = (objects: ReadonlyArray<Json>, [object, from, to]: Mistake): ReadonlyArray<Json> => {
  let changed = false
  const mistaken = objects.flatMap((one) => {
    const { kind, metadata } = one as unknown as { readonly kind: string; readonly metadata: { readonly name: string } }
    if (!`${kind} ${metadata.name}`.startsWith(object)) return [one]
    const text = JSON.stringify(one)
    const other = from === "" ? to : text.replace(from, to)
    changed ||= other !== text
    return other === "" ? [] : [JSON.parse(other) as Json]
  })
  assert.isTrue(changed, `${object} has no ${String(from)}`)
  return mistaken
}

const everywhere: ReadonlyArray<Mistake> = [
  ["Deployment lock-server", '"containerPort":9080', '"containerPort":9999', "port http-metrics is not 9080"],
  ["Deployment lock-server", '"name":"http-metrics"', '"name":"metrics"', "port http-metrics is not 9080"],
  ["Deployment payment-resource", '"name":"http"', '"name":"web"', "has no port http"],
  ["Deployment rail-proxy", '"path":"/actuator/health/readiness"', '"path":"/ready"', "readinessProbe does not ask"],
  ["Deployment rail-proxy", '"args":["rail-proxy"', '"args":["railproxy"', "runs another command"],
  ["Deployment rail-proxy", '"containerPort":8082', '"containrPort":8082', "unknown field"],
  ["Deployment rail-proxy", '"replicas":2', '"replicas":"2"', "not a number"],
  ["Deployment rail-proxy", '"memory":"256Mi"', '"memory":"256MiB"', "no quantity"],
  ["Deployment rail-proxy", /"image":"[^"]+"/, '"image":"dlock:latest"', "is not pinned"],
  ["Deployment rail-proxy", /"image":"[^"]+"/, '"image":"dlock"', "is not pinned"],
  ["Deployment rail-proxy", '"runAsNonRoot":true', '"runAsNonRoot":false', "may run as root"],
  ["Deployment rail-proxy", '"readOnlyRootFilesystem":true', '"readOnlyRootFilesystem":false', "may write"],
  ["Deployment rail-proxy", '"allowPrivilegeEscalation":false', '"allowPrivilegeEscalation":true', "may escalate"],
  ["Deployment rail-proxy", '"drop":["ALL"]', '"drop":[]', "keeps capabilities"],
  [
    "Deployment rail-proxy",
    '"serviceAccountName":"rail-proxy"',
    '"serviceAccountName":"default"',
    "no service account"
  ],
  [
    "Deployment rail-proxy",
    '"automountServiceAccountToken":false',
    '"automountServiceAccountToken":true',
    "token is mounted"
  ],
  [
    "Deployment rail-proxy",
    '"terminationGracePeriodSeconds":50',
    '"terminationGracePeriodSeconds":8',
    "killed in the middle"
  ],
  [
    "Deployment payout-executor",
    '"terminationGracePeriodSeconds":50',
    '"terminationGracePeriodSeconds":20',
    "killed in the middle"
  ],
  ["Deployment lock-server", /"topologySpreadConstraints":\[.*?\}\],?/, "", "not spread over zones"],
  [
    "Deployment payout-executor",
    '"cluster-autoscaler.kubernetes.io/safe-to-evict"',
    '"evict"',
    "whether it may be evicted"
  ],
  ["Deployment payout-executor", '"progressDeadlineSeconds":300', '"replicas":3', "say how many"],
  [
    "Deployment reconciler",
    '"matchLabels":{"app.kubernetes.io/name":"reconciler"}',
    '"matchLabels":{"app":"reconciler"}',
    "does not match its own pods"
  ],
  [
    "Service lock-server",
    '"app.kubernetes.io/name":"lock-server"',
    '"app.kubernetes.io/name":"lockserver"',
    "matches nothing"
  ],
  ["Service rail-proxy", '"port":8082', '"port":80', "port 80 is not 8082"],
  ["PodDisruptionBudget lock-server", "", "", "0 disruption budgets"],
  [
    "PodDisruptionBudget rail-proxy",
    '"app.kubernetes.io/name":"rail-proxy"',
    '"app.kubernetes.io/name":"rail"',
    "matches nothing"
  ],
  [
    "HorizontalPodAutoscaler",
    '"kind":"Deployment","name":"payout-executor"',
    '"kind":"Deployment","name":"x"',
    "scales nothing"
  ],
  ["ServiceAccount reconciler", "", "", "no service account"],
  ["ConfigMap dlock-config", "http://lock-server:8080", "http://lock-server:8081", "has no port 8081"],
  ["ConfigMap dlock-config", "http://rail-proxy:8082", "http://railproxy:8082", "there is no service railproxy"],
  ["ConfigMap dlock-config", '"RAIL_READ_TIMEOUT":"8s"', '"RAIL_READ_TIMEOUT":"8 minutes"', "does not start"],
  ["ConfigMap dlock-config", '"RAIL_READ_TIMEOUT"', '"RAIL_TIMEOUT"', "there is no setting RAIL_TIMEOUT"],
  ["ConfigMap dlock-config", /"LOCK_BACKEND":"\w+"/, '"LOCK_BACKEND":"redis"', "does not start"],
  ["NetworkPolicy default-deny", "", "", "nothing denies"],
  ["NetworkPolicy workers", '"port":"http"', '"port":"https"', "has no port https"],
  [
    "NetworkPolicy from-workers",
    '"values":["payout-executor","reconciler"]',
    '"values":["payout-executer","reconciler"]',
    "may not call"
  ],
  [
    "NetworkPolicy rail-stub",
    '"app.kubernetes.io/name":"rail-proxy"',
    '"app.kubernetes.io/part-of":"dlock"',
    "rail-stub is reached by"
  ],
  ["NetworkPolicy rail-stub", /"from":\[.*?\}\}\]/, '"from":[{"ipBlock":{"cidr":"0.0.0.0/0"}}]', "lets addresses in"],
  ["Namespace dlock", '"pod-security.kubernetes.io/enforce":"restricted"', '"x":"y"', "does not enforce"],
  ["Job migrate-paydb", /"image":"[^"]+"/, '"image":"dlock:1"', "is not pinned"]
]
const onGoogle: ReadonlyArray<Mistake> = [
  ["Deployment lock-server", '"containerPort":9080', '"containerPort":9081', "port http-metrics is not 9080"],
  ["PodMonitoring lock-server", "/actuator/prometheus", "/metrics", "is not scraped at /actuator/prometheus"],
  ["PodMonitoring rail-proxy", '"port":"http-metrics"', '"port":"metrics"', "is not scraped at http-metrics"],
  ["PodMonitoring reconciler", "", "", "nobody scrapes it"],
  ["PodMonitoring reconciler", '"endpoints"', '"endpoint"', "unknown field"],
  ["PodMonitoring rail-stub", '"app.kubernetes.io/name":"rail-stub"', '"app":"x"', "matches nothing"],
  ["ServiceAccount rail-proxy", "dlock-rail-proxy@", "default@", "no identity at Google"],
  ["SecretProviderClass payment-resource", "", "", "there is no secret provider"],
  ["Deployment rail-stub", /@sha256:\w+/, ":1.2.3", "has no digest"],
  ["NetworkPolicy from-managed-prometheus", '"port":"http-metrics"', '"port":"http"', "more than the metrics"]
]
const onEtcd: ReadonlyArray<Mistake> = [
  ["ConfigMap dlock-config", "dlock-etcd-2.dlock-etcd.", "dlock-etcd-3.dlock-etcd.", "there is no etcd dlock-etcd-3"],
  ["PodDisruptionBudget dlock-etcd", "", "", "0 disruption budgets"],
  ["NetworkPolicy dlock-etcd", '"port":"client"', '"port":"clients"', "has no port clients"],
  [
    "StatefulSet dlock-etcd",
    '"path":"/readyz","port":"http-metrics"',
    '"path":"/readyz","port":"metrics"',
    "which it has not"
  ],
  ["NetworkPolicy to-etcd", "", "", "may not call etcd"]
]

describe.skipIf(!hasKubectl)("the manifests (built by kubectl, which is not on every machine)", () => {
  it("exist as an overlay for a cluster here, for GKE and for the lab, on both backends", () => {
    assert.deepStrictEqual(readdirSync("infra/k8s/overlays").toSorted(), ["gcp-dev", "gcp-lab", "local"])
  })
  for (const { backend, overlay, path } of overlays) {
    it(`are right: ${path}`, () => {
      assert.deepStrictEqual(problemsOf(build(overlay, backend), overlay), [])
    })
  }
  const planted = [
    ...everywhere.filter(([, , , found]) => found !== "").map((mistake) => ["local", "pg", mistake] as const),
    ...onGoogle.map((mistake) => ["gcp-dev", "pg", mistake] as const),
    ...onEtcd.map((mistake) => ["gcp-dev", "etcd", mistake] as const)
  ]
  for (const [overlay, backend, mistake] of planted) {
    it(`show this mistake: ${mistake[0]}, ${mistake[1] === "" ? "missing" : `${String(mistake[1])} is ${mistake[2]}`}`, () => {
      const problems = problemsOf(withMistake(build(overlay, backend), mistake), overlay)
      assert.isTrue(
        problems.some((problem) => problem.includes(mistake[3])),
        `no ${mistake[3]} among: ${problems.join("; ")}`
      )
    })
  }
  it("let the rail be reached by rail-proxy alone, and by the harness in the lab", () => {
    for (const { backend, overlay } of overlays) {
      const objects = build(overlay, backend)
      const reaches = (from: string) => isAllowed(objects, { from, to: "rail-stub", port: "http" })
      assert.isTrue(reaches("rail-proxy"))
      for (const from of ["lock-server", "payment-resource", "payout-executor", "reconciler", "migrate-paydb"]) {
        assert.isFalse(reaches(from), `${from} in ${overlay}/${backend}`)
      }
    }
  })
  it("do not put the harness anywhere else: it is a problem there", () => {
    assert.isTrue(problemsOf(build("gcp-lab", "pg"), "gcp-dev").some((problem) => problem.includes("not in the lab")))
  })
})
