/**
 * Writes test/infra/k8s-schema.json: for each kind that the manifests use, and for all that these are made of, the fields,
 * their types, and which are required. From Kubernetes' own OpenAPI description, as npm's @kubernetes/client-node carries it:
 *
 *     npm pack @kubernetes/client-node@2.0.1 && tar xzf kubernetes-client-node-*.tgz
 *     node scripts/k8s-schema.mjs package
 *
 * The extract is kept rather than the package: 62 MB, for the few types that are needed.
 */
import { readFileSync, writeFileSync } from "node:fs"
import { join, resolve } from "node:path"
import { pathToFileURL } from "node:url"

const roots = [
  "V1Namespace",
  "V1ServiceAccount",
  "V1Service",
  "V1ConfigMap",
  "V1Secret",
  "V1PersistentVolumeClaim",
  "V1Pod",
  "V1Deployment",
  "V1StatefulSet",
  "V1Job",
  "V1CronJob",
  "V1PodDisruptionBudget",
  "V1NetworkPolicy",
  "V1Role",
  "V1RoleBinding",
  "V2HorizontalPodAutoscaler"
]
const models = join(resolve(process.argv[2] ?? "package"), "dist/gen/models")
const types = {}

/** `Array<V1X>` is `V1X[]`, a map of strings `{string}`. */
const short = (type) =>
  type
    .replace(/^Array<(.*)>$/, "$1[]")
    .replace(/^\{ \[key: string\]: (.*); \}$/, "{$1}")
    .replace(/^(?:any|object)$/, "any")

const pending = [...roots]
while (pending.length > 0) {
  const name = pending.pop()
  if (name in types) continue
  const model = (await import(pathToFileURL(join(models, `${name}.js`)).href))[name]
  const declared = readFileSync(join(models, `${name}.d.ts`), "utf8")
  types[name] = {}
  for (const { baseName, type } of model.attributeTypeMap) {
    // What the cluster says of an object is no part of a manifest.
    if (baseName === "status" && roots.includes(name)) continue
    const required = new RegExp(`^    '${baseName.replaceAll("$", "\\$")}': `, "m").test(declared)
    types[name][required ? `${baseName}!` : baseName] = short(type)
    const inner = short(type).replace(/\[\]$|^\{|\}$/g, "")
    if (/^[A-Z]\w*V\d|^V\d/.test(inner)) pending.push(inner)
  }
}
const sorted = Object.fromEntries(Object.entries(types).sort(([a], [b]) => (a < b ? -1 : 1)))
const lines = Object.entries(sorted).map(([name, fields]) => `  ${JSON.stringify(name)}: ${JSON.stringify(fields)}`)
writeFileSync(new URL("../test/infra/k8s-schema.json", import.meta.url), `{\n${lines.join(",\n")}\n}\n`)
