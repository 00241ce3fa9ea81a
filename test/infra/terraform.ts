// @effect-diagnostics nodeBuiltinImport:off
/** What is wrong with infra/terraform, in words: as text by file, so that a test can plant a mistake into it. */
import * as fs from "node:fs"
import * as path from "node:path"
import { type Block, type Expression, HclError, parseHcl } from "./hcl.ts"
import schema from "./terraform-schema.json" with { type: "json" }

export type Files = ReadonlyMap<string, string>

export const readFiles = (directory: string): Files =>
  new Map(
    fs
      .readdirSync(directory, { recursive: true, encoding: "utf8" })
      .filter((file) => file.endsWith(".tf"))
      .map((file) => [file, fs.readFileSync(path.join(directory, file), "utf8")])
  )

type Fields = { readonly [name: string]: string | Fields }
const resources: Fields = schema
/** Of the language, in every resource. */
const meta = new Set(["for_each", "count", "depends_on", "provider", "lifecycle", "timeouts"])
/** Resources whose arguments are secrets, or that make one: what they hold would be in the state. */
const secretHolders =
  /^(?:google_service_account_key|google_secret_manager_secret_version|google_sql_user|random_password|tls_private_key)$/
const secretName = /password|passwd|secret|private_key|credential|api_key|token/i

interface Module {
  readonly directory: string
  readonly blocks: ReadonlyArray<Block & { readonly file: string }>
}

const labelOf = (block: Block) => [block.type, ...block.labels].join(" ")

/** Every expression of a block and of those in it, with the names that `dynamic` blocks around it give. */
const expressionsOf = (
  block: Block,
  iterators: ReadonlyArray<string> = []
): ReadonlyArray<readonly [Expression, ReadonlyArray<string>]> => {
  const inner = block.type === "dynamic" ? [...iterators, block.labels[0] ?? ""] : iterators
  return [
    ...[...block.attributes.values()].map((expression) => [expression, inner] as const),
    ...block.blocks.flatMap((one) => expressionsOf(one, inner))
  ]
}

export const problemsOf = (files: Files): ReadonlyArray<string> => {
  const found: Array<string> = []
  const modules = new Map<string, Module>()
  for (const [file, text] of files) {
    const directory = path.dirname(file)
    const known = modules.get(directory) ?? { directory, blocks: [] }
    try {
      modules.set(directory, {
        directory,
        blocks: [...known.blocks, ...parseHcl(text).map((block) => ({ ...block, file }))]
      })
    } catch (error) {
      if (!(error instanceof HclError)) throw error
      found.push(`${file}: ${error.message}`)
    }
  }
  const blocksOf = (module: Module | undefined, type: string) =>
    (module?.blocks ?? []).filter((block) => block.type === type)

  for (const module of modules.values()) {
    const named = (type: string) => new Map(blocksOf(module, type).map((block) => [block.labels[0] ?? "", block]))
    const variables = named("variable")
    const calls = named("module")
    const locals = new Set(blocksOf(module, "locals").flatMap((block) => [...block.attributes.keys()]))
    const made = new Set(blocksOf(module, "resource").map((block) => block.labels.join(".")))
    const used = new Set<string>()

    for (const block of module.blocks) {
      const say = (problem: string) => found.push(`${block.file}: ${labelOf(block)}: ${problem}`)
      // A variable's type is written in words that refer to nothing; its condition may name itself.
      const expressions =
        block.type === "variable" ? block.blocks.flatMap((one) => expressionsOf(one)) : expressionsOf(block)
      for (const [{ line, references }, iterators] of expressions) {
        for (const reference of references) {
          const [head = "", name = "", member = ""] = reference.split(".")
          if (iterators.includes(head)) continue
          switch (head) {
            case "var":
              used.add(name)
              if (!variables.has(name)) say(`line ${line}: there is no variable ${name}`)
              break
            case "local":
              if (!locals.has(name)) say(`line ${line}: there is no local ${name}`)
              break
            case "module": {
              const call = calls.get(name)
              const target = call === undefined ? undefined : modules.get(sourceOf(module, call))
              if (call === undefined) say(`line ${line}: there is no module ${name}`)
              else if (member !== "" && !blocksOf(target, "output").some(({ labels }) => labels[0] === member)) {
                say(`line ${line}: module ${name} has no output ${member}`)
              }
              break
            }
            case "each":
            case "path":
            case "self":
              break
            default:
              if (!head.startsWith("google_")) {
                if (reference.includes(".")) say(`line ${line}: nothing is called ${reference}`)
              } else if (!made.has(`${head}.${name}`)) say(`line ${line}: there is no ${head}.${name}`)
          }
        }
      }
      switch (block.type) {
        case "variable": {
          const [name = ""] = block.labels
          const fallback = block.attributes.get("default")
          if (!block.attributes.has("type")) say("has no type")
          if (secretName.test(name)) say("a secret has no business here: its value would be in the state")
          if (
            fallback !== undefined &&
            /(?:postgres(?:ql)?:\/\/[^@\s]*:[^@\s]*@|-----BEGIN|AIza|"[A-Za-z0-9+/]{40,}")/.test(fallback.text)
          ) {
            say("a secret in its default")
          }
          break
        }
        case "module": {
          const target = modules.get(sourceOf(module, block))
          if (target === undefined) {
            say("its source is nowhere")
            break
          }
          const wanted = new Map(blocksOf(target, "variable").map((one) => [one.labels[0] ?? "", one]))
          for (const name of block.attributes.keys()) {
            if (!wanted.has(name) && name !== "source" && !meta.has(name)) say(`the module has no variable ${name}`)
          }
          for (const [name, one] of wanted) {
            if (!one.attributes.has("default") && !block.attributes.has(name)) say(`${name} is not given`)
          }
          break
        }
        case "resource":
        case "data": {
          const [type = ""] = block.labels
          if (secretHolders.test(type)) {
            say("what it holds would be in the state")
            break
          }
          const fields = resources[type]
          if (typeof fields !== "object") say("a resource that nobody checks")
          else found.push(...fieldProblems(block, fields, `${block.file}: ${labelOf(block)}`))
          break
        }
      }
    }
    for (const name of variables.keys()) {
      if (!used.has(name)) found.push(`${module.directory}: variable ${name} is used by nobody`)
    }
    const [terraform] = blocksOf(module, "terraform")
    if (terraform === undefined) found.push(`${module.directory}: does not say which Terraform and provider it needs`)
    else {
      if (!terraform.attributes.has("required_version")) found.push(`${module.directory}: no required_version`)
      const providers = terraform.blocks.find(({ type }) => type === "required_providers")
      if (!/"~> \d+\.\d+"/.test(providers?.attributes.get("google")?.text ?? "")) {
        found.push(`${module.directory}: the version of the provider is not pinned`)
      }
    }
  }
  return [...found, ...contractProblems(modules)]
}

const sourceOf = (module: Module, call: Block) =>
  path.normalize(path.join(module.directory, String(call.attributes.get("source")?.literal ?? "?")))

const fieldProblems = (block: Block, fields: Fields, where: string): ReadonlyArray<string> => {
  const problems: Array<string> = []
  const fieldOf = (name: string) => fields[name] ?? fields[`${name}!`]
  for (const [name, { line }] of block.attributes) {
    if (meta.has(name)) continue
    const field = fieldOf(name)
    if (field === undefined) problems.push(`${where}: line ${line}: there is no argument ${name}`)
    else if (typeof field === "object") problems.push(`${where}: line ${line}: ${name} is a block`)
  }
  const inner = block.blocks.map((one) =>
    one.type === "dynamic"
      ? ([one.labels[0] ?? "", one.blocks.find(({ type }) => type === "content") ?? one] as const)
      : ([one.type, one] as const)
  )
  for (const [name, one] of inner) {
    if (meta.has(name)) continue
    const field = fieldOf(name)
    if (typeof field !== "object") problems.push(`${where}: line ${one.line}: there is no block ${name}`)
    else problems.push(...fieldProblems(one, field, where))
  }
  for (const name of Object.keys(fields)) {
    if (!name.endsWith("!")) continue
    const bare = name.slice(0, -1)
    if (!block.attributes.has(bare) && !inner.some(([given]) => given === bare))
      problems.push(`${where}: ${bare} is missing`)
  }
  return problems
}

// -----------------------------------------------------------------------------
// as the contracts have it
// -----------------------------------------------------------------------------

const contractProblems = (modules: ReadonlyMap<string, Module>): ReadonlyArray<string> => {
  const found: Array<string> = []
  const all = [...modules.values()].flatMap(({ blocks, directory }) => blocks.map((block) => ({ block, directory })))
  const resource = (type: string) => all.filter(({ block }) => block.type === "resource" && block.labels[0] === type)
  const dev = modules.get("envs/dev")
  const bootstrap = modules.get("bootstrap")
  const fallback = (module: Module | undefined, name: string) =>
    module?.blocks.find(({ labels, type }) => type === "variable" && labels[0] === name)?.attributes.get("default")
      ?.literal
  for (const [directory, module] of [
    ["envs/dev", dev],
    ["bootstrap", bootstrap]
  ] as const) {
    if (fallback(module, "project_id") !== "dlock-lab") found.push(`${directory}: the project is not dlock-lab`)
    if (fallback(module, "region") !== "europe-central2") found.push(`${directory}: the region is not europe-central2`)
  }
  const instances = new Map(
    (dev?.blocks ?? []).flatMap((block) => {
      const name = block.attributes.get("name")?.literal
      return block.type === "module" && block.attributes.get("source")?.literal === "../../modules/cloudsql"
        ? [
            [
              name,
              [block.attributes.get("availability_type")?.literal, block.attributes.get("database")?.literal].join(" ")
            ]
          ]
        : []
    })
  )
  if (instances.get("dlock-pg-lock") !== "REGIONAL lockdb") found.push("dlock-pg-lock is not regional, with lockdb")
  if (instances.get("dlock-pg-pay") !== "ZONAL paydb") found.push("dlock-pg-pay is not zonal, with paydb")
  if (instances.size !== 2) found.push(`${instances.size} database servers, not two`)
  const [server] = resource("google_sql_database_instance")
  if (server?.block.attributes.get("database_version")?.literal !== "POSTGRES_16") found.push("not PostgreSQL 16")
  const settings = server?.block.blocks.find(({ type }) => type === "settings")
  const ip = settings?.blocks.find(({ type }) => type === "ip_configuration")
  if (ip?.attributes.get("ipv4_enabled")?.literal !== false) found.push("a database has a public address")
  const [cluster] = resource("google_container_cluster")
  if (cluster?.block.attributes.get("enable_autopilot")?.literal !== true) found.push("the cluster is not Autopilot")

  // ---- what is first
  const isCalled = (module: Module | undefined, source: string) =>
    module?.blocks.some(({ attributes, type }) => type === "module" && attributes.get("source")?.literal === source) ===
    true
  if (!isCalled(bootstrap, "../modules/budget") || resource("google_billing_budget").length !== 1) {
    found.push("there is no budget alert before the first apply")
  }
  const [state] = resource("google_storage_bucket").filter(({ directory }) => directory === "bootstrap")
  if (state === undefined) found.push("there is no bucket for the state")
  if (!(state?.block.attributes.get("depends_on")?.references ?? []).includes("module.budget")) {
    found.push("the budget alert is not the first thing that is made")
  }
  const backend = dev?.blocks.find(({ type }) => type === "terraform")?.blocks.find(({ type }) => type === "backend")
  if (backend?.labels[0] !== "gcs" || backend.attributes.get("bucket")?.literal !== "dlock-lab-tfstate") {
    found.push("envs/dev: its state is not in the bucket of bootstrap")
  }
  return found
}

/** The workloads that have an identity at Google, with what each may. */
export const workloadsOf = (files: Files): ReadonlyMap<string, string> => {
  const text = files.get("envs/dev/main.tf") ?? ""
  return new Map(
    [...text.matchAll(/^ {4}([a-z-]+) += \{ (secret.*) \}$/gm)].map(([, name = "", rights = ""]) => [name, rights])
  )
}
