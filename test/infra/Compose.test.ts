// @effect-diagnostics nodeBuiltinImport:off
/**
 * compose.yaml and the Dockerfile as texts: what can be said of them without Docker. That the stack really comes up is shown
 * by scripts/containers.sh.
 */
import { assert, describe, it } from "@effect/vitest"
import { ConfigProvider, Effect, Exit } from "effect"
import { parse } from "effect/encoding/Yaml"
import * as fs from "node:fs"
import { load, type ServiceName, services } from "../../src/services/platform/ServiceConfig.ts"

const read = (file: string) => fs.readFileSync(file, "utf8")

interface Service {
  readonly image: string
  readonly command?: ReadonlyArray<string>
  readonly profiles?: ReadonlyArray<string>
  readonly environment?: Readonly<Record<string, string>>
  readonly ports?: ReadonlyArray<string>
  readonly networks?: ReadonlyArray<string> | Readonly<Record<string, unknown>>
  readonly depends_on?: Readonly<Record<string, { readonly condition: string; readonly required?: boolean }>>
  readonly healthcheck?: Readonly<Record<string, unknown>>
  readonly volumes?: ReadonlyArray<string>
  readonly [field: string]: unknown
}
interface Stack {
  readonly services: Readonly<Record<string, Service>>
  readonly volumes: Readonly<Record<string, unknown>>
  readonly networks: Readonly<Record<string, unknown>>
}

/** What `<<` means, which the reader of YAML may leave as a key. */
const merged = (node: unknown): unknown => {
  if (Array.isArray(node)) return node.map(merged)
  if (typeof node !== "object" || node === null) return node
  const { "<<": base, ...own } = node as Record<string, unknown>
  const bases = (base === undefined ? [] : [base].flat()) as ReadonlyArray<object>
  return Object.fromEntries(
    Object.entries(Object.assign({}, ...bases.map(merged), own) as object).map(([key, value]) => [key, merged(value)])
  )
}
const stackOf = (text: string) => merged(parse(text)) as Stack

/** `${NAME:-default}` as its default; what has none is an error. */
const filled = (text: string) => text.replaceAll(/\$\{(\w+):-([^}]*)\}/g, "$2")

const problemsOf = (text: string): ReadonlyArray<string> => {
  const stack = stackOf(text)
  const found: Array<string> = []
  const isOurs = ({ image }: Service) => image.startsWith("${DLOCK_IMAGE:-")
  const networksOf = ({ networks = [] }: Service) =>
    (Array.isArray(networks) ? networks : Object.keys(networks)) as ReadonlyArray<string>
  const portsOf = new Map<string, ReadonlyArray<number>>([
    ...Object.entries(services).map(
      ([name, { managementPort, port }]) =>
        [name, port === undefined ? [managementPort] : [port, managementPort]] as const
    ),
    ["lock-server-etcd", [services["lock-server"].port, services["lock-server"].managementPort]],
    ["lockdb", [5432]],
    ["paydb", [5432]],
    ["etcd", [2379]]
  ])
  const isService = (name: string | undefined): name is ServiceName =>
    name !== undefined && Object.hasOwn(services, name)
  for (const name of Object.keys(services)) {
    if (!Object.hasOwn(stack.services, name)) found.push(`there is no ${name}`)
  }
  for (const [name, service] of Object.entries(stack.services)) {
    const say = (problem: string) => found.push(`${name}: ${problem}`)
    const [, variable, image = ""] = /^\$\{(DLOCK_\w+_IMAGE|DLOCK_IMAGE):-([^}]+)\}$/.exec(service.image) ?? []
    if (variable === undefined) say("its image can not be another")
    else if (!isOurs(service) && !/:v?\d+\.\d+(?:\.\d+)?$/.test(image)) say(`image ${image} is not pinned`)
    for (const port of service.ports ?? []) {
      if (!port.startsWith("127.0.0.1:")) say(`port ${port} is open to everybody`)
      const inside = Number(port.split(":").at(-1))
      const known = portsOf.get(name)
      if (known !== undefined && !known.includes(inside)) say(`port ${inside} is none of its ports`)
    }
    for (const [other, { condition, required }] of Object.entries(service.depends_on ?? {})) {
      const needed = stack.services[other]
      if (needed === undefined) say(`there is no ${other} to wait for`)
      else if (needed.profiles !== undefined && service.profiles === undefined && required !== false)
        say(`${other} is not in every profile`)
      else if (condition === "service_completed_successfully" && needed["restart"] !== "no")
        say(`${other} does not end`)
    }
    for (const volume of service.volumes ?? []) {
      const [source = ""] = volume.split(":")
      if (source.startsWith(".") ? !fs.existsSync(source) : !Object.hasOwn(stack.volumes, source))
        say(`there is no ${source}`)
    }
    for (const network of networksOf(service))
      if (!Object.hasOwn(stack.networks, network)) say(`there is no network ${network}`)
    if (!isOurs(service)) continue

    // ---- our own
    if (service["read_only"] !== true) say("may write its file system")
    if (service["init"] !== true) say("is process 1, and can not be stopped from inside")
    const [command, what] = service.command ?? []
    if (command === "migrate") {
      if (what !== "lockdb" && what !== "paydb") say("migrates nothing")
      continue
    }
    if (!isService(command)) {
      say(`runs ${command}`)
      continue
    }
    const environment = Object.fromEntries(
      Object.entries(service.environment ?? {}).map(([key, value]) => [key, filled(value)])
    )
    if (environment["MANAGEMENT_PORT"] !== String(services[command].managementPort))
      say("its health is not asked at its management port")
    if (service.healthcheck !== undefined) say("its health is not the image's to tell")
    const exit = Effect.runSyncExit(
      Effect.provideService(load(command), ConfigProvider.ConfigProvider, ConfigProvider.fromEnvRecord(environment))
    )
    if (Exit.isFailure(exit)) say(`does not start: ${String(exit.cause)}`)
    else {
      const known = new Set([
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        ...Object.keys(exit.value.effective).map((setting) => setting.replaceAll(/[.-]/g, "_").toUpperCase())
      ])
      for (const setting of Object.keys(environment)) if (!known.has(setting)) say(`there is no setting ${setting}`)
    }
    for (const [setting, value] of Object.entries(environment)) {
      if (!/_URL$|_ENDPOINTS$/.test(setting) || !URL.canParse(value)) continue
      const { hostname, port } = new URL(value)
      if (portsOf.get(hostname)?.includes(Number(port)) !== true) say(`${setting}: nobody is ${hostname}:${port}`)
    }
    if (networksOf(service).includes("rail") && name !== "rail-stub" && name !== "rail-proxy") say("reaches the rail")
  }
  return found
}

const compose = read("compose.yaml")
const dockerfile = read("infra/docker/Dockerfile")

const imageProblems = (text: string): ReadonlyArray<string> => {
  const found: Array<string> = []
  const values = new Map([...text.matchAll(/^ARG (\w+)=(.+)$/gm)].map(([, name = "", value = ""]) => [name, value]))
  const stages = new Set([...text.matchAll(/^FROM .+ AS (\S+)$/gm)].map(([, name]) => name))
  for (const [, from = ""] of text.matchAll(/^FROM (\S+)/gm)) {
    const image = from.replace(/^\$\{(\w+)\}$/, (_, name: string) => values.get(name) ?? "")
    if (!stages.has(image) && !/:v?\d+\.\d+\.\d+(?:-[a-z-]+)?$/.test(image)) found.push(`image ${image} is not pinned`)
  }
  if (!/^USER [1-9]\d*:[1-9]\d*$/m.test(text)) found.push("runs as root, or as a name that Kubernetes can not judge")
  if (!/npm ci .*--omit=dev/.test(text)) found.push("is not installed from the lock file")
  if (/npm (?:install|i) /.test(text)) found.push("installs what is not locked")
  if (!/^HEALTHCHECK /m.test(text)) found.push("has no health check")
  if (/(?:PASSWORD|SECRET|TOKEN|_PG_URL)=/.test(text)) found.push("has a secret inside")
  return found
}

describe("compose.yaml", () => {
  it("agrees with the program: commands, ports, settings, who needs whom, and nothing open to everybody", () => {
    assert.deepStrictEqual(problemsOf(compose), [])
  })
  const mistakes: ReadonlyArray<readonly [from: string, to: string, found: string]> = [
    ['"127.0.0.1:${DLOCK_LOCK_PORT:-8080}:8080"', '"8080:8080"', "is open to everybody"],
    [':8081"', ':8085"', "is none of its ports"],
    ["postgres:16.14", "postgres:latest", "is not pinned"],
    ["${DLOCK_ETCD_IMAGE:-quay.io/coreos/etcd:v3.6.5}", "quay.io/coreos/etcd:v3.6.5", "can not be another"],
    ["read_only: true", "read_only: false", "may write its file system"],
    ["init: true", "init: false", "is process 1"],
    ["command: [rail-proxy]", "command: [rail-prox]", "runs rail-prox"],
    ['MANAGEMENT_PORT: "9082"', 'MANAGEMENT_PORT: "9083"', "not asked at its management port"],
    ["http://rail-stub:8083", "http://rail:8083", "nobody is rail:8083"],
    [
      "PAYMENT_FENCING_ENABLED: ${PAYMENT_FENCING_ENABLED:-true}",
      "PAYMENT_FENCING: on",
      "there is no setting PAYMENT_FENCING"
    ],
    ["LOCK_BACKEND: etcd", "LOCK_BACKEND: redis", "does not start"],
    [
      "lock-server: { condition: service_healthy, required: false }",
      "lock-server: { condition: service_healthy }",
      "is not in every profile"
    ],
    [
      "migrate-paydb: { condition: service_completed_successfully }",
      "migrate-pay: { condition: service_completed_successfully }",
      "to wait for"
    ],
    ["./infra/prometheus/rules:", "./infra/prometheus/rule:", "there is no ./infra/prometheus/rule"],
    ["  payment-resource:\n    <<: *service\n", "  payment:\n    <<: *service\n", "there is no payment-resource"]
  ]
  for (const [from, to, expected] of mistakes) {
    it(`shows this mistake: ${expected} (${to.trim()})`, () => {
      assert.include(compose, from)
      const problems = problemsOf(compose.replace(from, to))
      assert.isTrue(
        problems.some((problem) => problem.includes(expected)),
        `no ${expected} among: ${problems.join("; ")}`
      )
    })
  }
  it("lets Prometheus scrape every service at its management port, under its name", () => {
    const { scrape_configs } = parse(read("infra/compose/prometheus.yml")) as unknown as {
      readonly scrape_configs: ReadonlyArray<{
        readonly job_name: string
        readonly metrics_path?: string
        readonly dns_sd_configs: ReadonlyArray<{ readonly names: ReadonlyArray<string>; readonly port: number }>
      }>
    }
    for (const [name, { managementPort }] of Object.entries(services)) {
      const job = scrape_configs.find(({ job_name }) => job_name === name)
      assert.strictEqual(job?.metrics_path, "/actuator/prometheus")
      assert.deepInclude(job?.dns_sd_configs[0], { names: [name], port: managementPort })
    }
  })
})

describe("the Dockerfile", () => {
  it("is pinned, locked, without a user that is somebody, and tells its health", () => {
    assert.deepStrictEqual(imageProblems(dockerfile), [])
  })
  const mistakes: ReadonlyArray<readonly [from: string | RegExp, to: string, found: string]> = [
    ["node:24.21.0-bookworm-slim", "node:24", "is not pinned"],
    ["USER 10001:10001", "USER node", "runs as root"],
    [/^USER.*\n/m, "", "runs as root"],
    ["npm ci --ignore-scripts --omit=dev", "npm install --omit=dev", "is not installed from the lock file"],
    [/^HEALTHCHECK.*\n/m, "", "has no health check"],
    ["ENV NODE_ENV=production", "ENV LOCK_PG_URL=postgres://u:p@h/d NODE_ENV=production", "has a secret inside"]
  ]
  for (const [from, to, expected] of mistakes) {
    it(`shows this mistake: ${expected} (${to === "" ? "left out" : to})`, () => {
      const other = dockerfile.replace(from, to)
      assert.notStrictEqual(other, dockerfile)
      assert.isTrue(imageProblems(other).some((problem) => problem.includes(expected)))
    })
  }
})
