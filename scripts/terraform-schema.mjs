/**
 * Writes test/infra/terraform-schema.json: of each resource that infra/terraform uses, the arguments and blocks that the
 * provider knows, as the archived CDK bindings of google 6.50 tell them:
 *
 *     npm pack @cdktf/provider-google@16.12.1 && tar xzf cdktf-provider-google-*.tgz
 *     node scripts/terraform-schema.mjs package
 *
 * The provider itself, and so `terraform validate`, needs Terraform's registry, which not every machine reaches. A name ending
 * in `!` is required; a block is an object.
 */
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs"
import { join, resolve } from "node:path"

const resources = [
  "artifact_registry_repository",
  "billing_budget",
  "compute_global_address",
  "compute_network",
  "compute_router",
  "compute_router_nat",
  "compute_subnetwork",
  "container_cluster",
  "monitoring_notification_channel",
  "project_iam_member",
  "project_service",
  "secret_manager_secret",
  "secret_manager_secret_iam_member",
  "service_account",
  "service_account_iam_member",
  "service_networking_connection",
  "sql_database",
  "sql_database_instance",
  "storage_bucket",
  "storage_bucket_iam_member"
]
/** Of Autopilot clusters none of ours; left out for its size. */
const skipped = new Set(["node_pool", "node_config"])
const lib = join(resolve(process.argv[2] ?? "package"), "lib")

const fieldsOf = (text, name, isResource = false) => {
  const start = text.search(new RegExp(`^export interface ${name}\\b`, "m"))
  if (start < 0) return undefined
  const body = text.slice(start, text.indexOf("\n}", start))
  const fields = {}
  for (const [, snake, optional, type] of body.matchAll(/#(\w+) \w+#\w+\}[^/]*\*\/\s*readonly \w+(\??): ([^;]+);/g)) {
    if ((isResource && snake === "id") || skipped.has(snake)) continue
    const inner = type.replace(/\[\] \| cdktf\.IResolvable$|\[\]$/, "")
    const block = /^[A-Z]\w+$/.test(inner) ? fieldsOf(text, inner) : undefined
    fields[optional === "?" ? snake : `${snake}!`] =
      block ?? type.replaceAll(" | cdktf.IResolvable", "").replace(/^\{.*$/s, "map")
  }
  return fields
}
const schema = {}
for (const resource of resources) {
  const folder = join(lib, resource.replaceAll("_", "-"))
  const structs = join(folder, "index-structs")
  const text = [
    join(folder, "index.d.ts"),
    // Where the blocks of a large resource are.
    ...(existsSync(structs)
      ? readdirSync(structs).flatMap((file) => (file.endsWith(".d.ts") ? [join(structs, file)] : []))
      : [])
  ]
    .map((file) => readFileSync(file, "utf8"))
    .join("\n")
  const name = resource.replaceAll(/(?:^|_)(\w)/g, (_, letter) => letter.toUpperCase())
  schema[`google_${resource}`] = fieldsOf(text, `${name}Config`, true)
}
const lines = Object.entries(schema).map(([name, fields]) => `  ${JSON.stringify(name)}: ${JSON.stringify(fields)}`)
writeFileSync(new URL("../test/infra/terraform-schema.json", import.meta.url), `{\n${lines.join(",\n")}\n}\n`)
