// @effect-diagnostics nodeBuiltinImport:off
/** infra/terraform, as far as it can be judged without Google and without Terraform's registry; and each mistake, planted. */
import { assert, describe, it } from "@effect/vitest"
import { spawnSync } from "node:child_process"
import * as fs from "node:fs"
import { HclError, parseHcl } from "./hcl.ts"
import { problemsOf, readFiles, workloadsOf } from "./terraform.ts"

const files = readFiles("infra/terraform")
const read = (file: string) => fs.readFileSync(file, "utf8")
const hasTerraform = spawnSync("terraform", ["version"], { stdio: "ignore" }).status === 0

const withMistake = (file: string, from: string | RegExp, to: string) => {
  const text = files.get(file) ?? ""
  const other = text.replace(from, to)
  assert.notStrictEqual(other, text, `${file} has no ${String(from)}`)
  return new Map([...files, [file, other]])
}

describe("infra/terraform", () => {
  it("is right, as far as that can be seen here", () => {
    assert.deepStrictEqual(problemsOf(files), [])
  })

  it.skipIf(!hasTerraform)("is formatted (by terraform, which is not on every machine)", () => {
    const { status, stdout } = spawnSync("terraform", ["fmt", "-check", "-recursive", "infra/terraform"], {
      encoding: "utf8"
    })
    assert.strictEqual(status, 0, `to be formatted: ${stdout}`)
  })

  const mistakes: ReadonlyArray<readonly [file: string, from: string | RegExp, to: string, found: string]> = [
    ["envs/dev/main.tf", "region = var.region", "region = var.regionn", "there is no variable regionn"],
    [
      "envs/dev/main.tf",
      'availability_type = "REGIONAL"',
      'availability_type = "ZONAL"',
      "dlock-pg-lock is not regional"
    ],
    ["envs/dev/main.tf", 'availability_type = "ZONAL"', 'availability_type = "REGIONAL"', "dlock-pg-pay is not zonal"],
    ["envs/dev/main.tf", "module.network.subnetwork", "module.network.subnet", "has no output subnet"],
    ["envs/dev/main.tf", "module.gke.workload_pool", "module.cluster.workload_pool", "there is no module cluster"],
    ["envs/dev/main.tf", /  namespace +=.*\n/, "", "namespace is not given"],
    ["envs/dev/main.tf", "  writer     =", "  reader     =", "has no variable reader"],
    ["envs/dev/main.tf", "../../modules/registry", "../../modules/registri", "its source is nowhere"],
    ["envs/dev/main.tf", /\n}\n$/, "\n", "is not understood"],
    ["envs/dev/variables.tf", '"europe-central2"', '"us-central1"', "the region is not europe-central2"],
    ["envs/dev/variables.tf", '"dlock-lab"', '"my-project"', "the project is not dlock-lab"],
    ["envs/dev/versions.tf", "dlock-lab-tfstate", "dlock-state", "not in the bucket of bootstrap"],
    ["envs/dev/versions.tf", '"~> 6.50"', '">= 5"', "the provider is not pinned"],
    [
      "envs/dev/variables.tf",
      /$/,
      'variable "db_password" {\n  type    = string\n  default = "hunter2"\n}\n',
      "a secret has no business here"
    ],
    [
      "envs/dev/variables.tf",
      /$/,
      'variable "database" {\n  type    = string\n  default = "postgres://u:hunter2@h/d"\n}\n',
      "a secret in its default"
    ],
    ["envs/dev/variables.tf", /$/, 'variable "unused" {\n  type = string\n}\n', "variable unused is used by nobody"],
    ["modules/gke/main.tf", "enable_autopilot = true", "enable_autopilot = false", "the cluster is not Autopilot"],
    ["modules/gke/main.tf", "enable_autopilot", "autopilot_enabled", "there is no argument autopilot_enabled"],
    ["modules/gke/main.tf", "secret_manager_config {", "secrets_config {", "there is no block secrets_config"],
    ["modules/cloudsql/main.tf", '"POSTGRES_16"', '"POSTGRES_15"', "not PostgreSQL 16"],
    ["modules/cloudsql/main.tf", "ipv4_enabled    = false", "ipv4_enabled    = true", "has a public address"],
    [
      "modules/cloudsql/main.tf",
      "google_sql_database_instance.server.name",
      "google_sql_database_instance.serve.name",
      "there is no google_sql_database_instance.serve"
    ],
    ["modules/cloudsql/main.tf", /  database_version .*\n/, "", "database_version is missing"],
    [
      "modules/workloads/main.tf",
      /$/,
      'resource "google_service_account_key" "k" {\n  service_account_id = var.namespace\n}\n',
      "would be in the state"
    ],
    [
      "modules/workloads/main.tf",
      /$/,
      'resource "google_secret_manager_secret_version" "v" {\n  secret = var.namespace\n}\n',
      "would be in the state"
    ],
    ["bootstrap/main.tf", '"../modules/budget"', '"../modules/registry"', "no budget alert"],
    ["bootstrap/main.tf", "  depends_on = [module.budget]\n", "", "not the first thing"],
    ["modules/budget/versions.tf", /[\s\S]*/, "", "does not say which Terraform"]
  ]
  for (const [file, from, to, expected] of mistakes) {
    it(`shows this mistake: ${expected} (${file})`, () => {
      const problems = problemsOf(withMistake(file, from, to))
      assert.isTrue(
        problems.some((problem) => problem.includes(expected)),
        `no ${expected} among: ${problems.join("; ")}`
      )
    })
  }

  it("gives an identity and a secret to exactly the workloads that the manifests have", () => {
    const gcp = ["gcp", "gcp-pg", "gcp-etcd", "gke"]
      .flatMap((name) =>
        fs.readdirSync(`infra/k8s/components/${name}`).map((file) => read(`infra/k8s/components/${name}/${file}`))
      )
      .join("\n")
    const workloads = workloadsOf(files)
    const identities = [...gcp.matchAll(/gcp-service-account: dlock-([a-z-]+)@dlock-lab\./g)].map(([, name]) => name)
    assert.deepStrictEqual(identities.toSorted(), [...workloads.keys()].toSorted())
    for (const name of workloads.keys()) assert.isAtMost(`dlock-${name}`.length, 30, "Google's limit")
    const secrets = [...gcp.matchAll(/projects\/dlock-lab\/secrets\/([a-z-]+)-settings\//g)].map(([, name]) => name)
    const having = [...workloads].flatMap(([name, rights]) => (rights.includes("secret = true") ? [name] : []))
    assert.deepStrictEqual(secrets.toSorted(), having.toSorted())
    const instances = new Set([...gcp.matchAll(/dlock-lab:europe-central2:([a-z-]+)/g)].map(([, name]) => name))
    assert.deepStrictEqual([...instances].toSorted(), ["dlock-pg-lock", "dlock-pg-pay"])
    // The one way out of the cluster to the databases is to where they are.
    assert.match(gcp, /cidr: 10\.30\.0\.0\/20/)
    const network = files.get("modules/network/main.tf") ?? ""
    assert.match(network, /address += "10\.30\.0\.0"\s+prefix_length = 20/)
    assert.match(gcp, /gs:\/\/dlock-lab-etcd-backup\//)
    assert.match(files.get("modules/etcd-backup/main.tf") ?? "", /"\$\{var\.project_id\}-etcd-backup"/)
  })

  it("keeps the images where the manifests take them from", () => {
    assert.match(files.get("modules/registry/main.tf") ?? "", /repository_id = "dlock"/)
    for (const overlay of ["gcp-dev/pg", "gcp-dev/etcd"]) {
      assert.match(
        read(`infra/k8s/overlays/${overlay}/kustomization.yaml`),
        /europe-central2-docker\.pkg\.dev\/dlock-lab\/dlock\/dlock,/
      )
    }
  })
})

describe("what reads Terraform's language", () => {
  it("knows blocks, attributes, templates, loops and what they refer to", () => {
    const [resource] = parseHcl(`
      # a comment
      resource "a" "b" {
        name   = "x-\${var.name}-\${local.here["k"]}" // and another
        each   = { for k, v in var.map : k => v.id if v.on }
        list   = [
          module.m.out,
          2,
        ]
        nested {
          on = true
        }
      }`)
    assert.deepStrictEqual(resource?.labels, ["a", "b"])
    assert.deepStrictEqual(resource?.attributes.get("name")?.references, ["var.name", "local.here"])
    assert.deepStrictEqual(resource?.attributes.get("each")?.references, ["var.map"])
    assert.deepStrictEqual(resource?.attributes.get("list")?.references, ["module.m.out"])
    assert.strictEqual(resource?.blocks[0]?.attributes.get("on")?.literal, true)
    assert.isUndefined(resource?.attributes.get("name")?.literal)
  })
  for (const text of ['a "b" {', 'a = "x', "a {\n b = \n}", "a {\n b = [1\n}", "a {\n b = 1\n b = 2\n}", "a { ` }"]) {
    it(`says in which line it does not understand: ${JSON.stringify(text)}`, () => {
      assert.throws(() => parseHcl(text), HclError, /line/)
    })
  }
})
