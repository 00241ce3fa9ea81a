// @effect-diagnostics nodeBuiltinImport:off
/** The driver for pods, with the real kubectl against a fake API whose pods are processes of this machine (`fakeCluster.ts`). */
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { execFileSync, spawnSync } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import * as KubeWorld from "../../src/harness/KubeWorld.ts"
import * as Kubectl from "../../src/harness/Kubectl.ts"
import { parseObjects } from "../infra/manifests.ts"
import { type FakeCluster, startFakeCluster } from "./fakeCluster.ts"

const hasKubectl = spawnSync("kubectl", ["version", "--client"], { stdio: "ignore" }).status === 0
const stateOf = (pid: number | undefined) => {
  const stat = fs.readFileSync(`/proc/${pid}/stat`, "utf8")
  return stat.slice(stat.lastIndexOf(")") + 2, stat.lastIndexOf(")") + 3)
}

describe.skipIf(!hasKubectl)("a participant that is a pod (with kubectl, which is not on every machine)", () => {
  let cluster: FakeCluster
  let directory = ""
  const before = process.env["KUBECONFIG"]
  beforeAll(async () => {
    // The pods are made from what is really deployed in the lab.
    const objects = parseObjects(
      execFileSync("kubectl", ["kustomize", "infra/k8s/overlays/gcp-lab/pg"], { encoding: "utf8" })
    ) as unknown as ReadonlyArray<{ readonly kind: string; readonly metadata: { readonly name: string } }>
    const deployments = objects.filter(({ kind }) => kind === "Deployment")
    cluster = await startFakeCluster(new Map(deployments.map((one) => [one.metadata.name, one])), [
      "--disable-warning=ExperimentalWarning",
      "src/main.ts"
    ])
    directory = fs.mkdtempSync(path.join(os.tmpdir(), "dlock-kube-"))
    const file = path.join(directory, "config")
    fs.writeFileSync(
      file,
      JSON.stringify({
        apiVersion: "v1",
        kind: "Config",
        clusters: [{ name: "fake", cluster: { server: `http://127.0.0.1:${cluster.port}` } }],
        users: [{ name: "nobody", user: {} }],
        contexts: [{ name: "fake", context: { cluster: "fake", user: "nobody" } }],
        "current-context": "fake"
      })
    )
    process.env["KUBECONFIG"] = file
  })
  afterAll(async () => {
    if (before === undefined) delete process.env["KUBECONFIG"]
    else process.env["KUBECONFIG"] = before
    await cluster.stop()
    fs.rmSync(directory, { recursive: true })
  })

  it.live(
    "runs its service's own program, is stopped and continued from inside, and is gone with its scope",
    () =>
      Effect.gen(function* () {
        const pid = yield* Effect.scoped(
          Effect.gen(function* () {
            const pods = yield* KubeWorld.pods("ab12")
            const rail = yield* pods.start("rail", ["rail-stub"], { DLOCK_INSTANCE: "rail" })
            const { managementUrl, url } = yield* rail.listening
            const pod = cluster.pods.get("lab-ab12-rail-1")
            const real = pod?.child.pid
            // The ports of the service, at the pod's own address.
            assert.match(url, /^http:\/\/127\.0\.77\.\d+:8083$/)
            assert.match(managementUrl, /:9083$/)
            assert.deepInclude(pod?.object.metadata.labels, { "dlock-lab": "participant", "dlock-lab-name": "rail" })
            // Nobody restarts a pod of the experiment because it does not answer.
            assert.isFalse(JSON.stringify(pod?.object).includes("livenessProbe"))
            assert.strictEqual(rail.pid, real)

            yield* rail.pause
            assert.strictEqual(stateOf(real), "T")
            yield* rail.resume
            assert.notStrictEqual(stateOf(real), "T")
            assert.include(cluster.commands, `/bin/sh -c kill -STOP ${real}`)
            yield* Effect.scoped(
              Effect.andThen(
                Kubectl.isolate("lab-ab12-rail-1"),
                Effect.sync(() => assert.strictEqual(pod?.object.metadata.labels?.["dlock-lab"], "isolated"))
              )
            )
            assert.strictEqual(pod?.object.metadata.labels?.["dlock-lab"], "participant")
            // A stopped one does not keep the scope open.
            yield* rail.pause
            return real
          })
        )
        assert.strictEqual(cluster.pods.size, 0)
        assert.isFalse(fs.existsSync(`/proc/${pid}`))
      }),
    60_000
  )

  it.live(
    "is killed without grace, and its log ends with it",
    () =>
      Effect.scoped(
        Effect.gen(function* () {
          const pods = yield* KubeWorld.pods("cd34")
          const rail = yield* pods.start("rail", ["rail-stub"], {})
          yield* rail.listening
          yield* rail.kill
          yield* rail.awaitEnded
          assert.isFalse(cluster.pods.has("lab-cd34-rail-1"))
        })
      ),
    60_000
  )

  it.live(
    "is not believed to be stopped when it is process 1: kill says yes there, and nothing happens",
    () =>
      Effect.scoped(
        Effect.gen(function* () {
          const template = yield* Kubectl.templateOf("rail-stub")
          const { shareProcessNamespace: _, ...own } = template.spec
          yield* Kubectl.createPod({
            apiVersion: "v1",
            kind: "Pod",
            metadata: { name: "alone", labels: {}, annotations: {} },
            spec: {
              ...own,
              containers: own.containers.map((container) => ({
                ...container,
                env: [
                  { name: "HTTP_PORT", value: "0" },
                  { name: "MANAGEMENT_PORT", value: "0" }
                ]
              }))
            }
          })
          const ip = yield* Kubectl.ipOf("alone")
          const alone = KubeWorld.observePod("alone", ip, yield* Kubectl.followLog("alone"))
          yield* alone.listening
          assert.strictEqual(alone.pid, 1)
          yield* Kubectl.exec("alone", ["/bin/sh", "-c", "kill -STOP 1"])
          const real = cluster.pods.get("alone")?.child.pid
          assert.notStrictEqual(stateOf(real), "T")
          const refused = yield* Effect.flip(alone.pause)
          assert.match(refused.message, /process 1/)
          yield* alone.kill
        })
      ),
    60_000
  )
})
