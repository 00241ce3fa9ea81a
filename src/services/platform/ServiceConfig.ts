// @effect-diagnostics nodeBuiltinImport:off
/**
 * Where the settings come from: environment variables first, then the `--config` file (JSON or `.env`), then defaults.
 *
 * `lock.default.ttl` is `LOCK_DEFAULT_TTL` in the environment and in a `.env` file; in JSON it may be written dotted,
 * nested or as in the environment. An empty value counts as absent. A duration is `15 s`, `500 ms`, `4 h` or a plain
 * number of milliseconds. (`Config.Duration` takes `15 seconds` only, and no plain number.)
 *
 * Every problem is found in one go, and a process with one does not start: a setting silently replaced by its default
 * is how an experiment ends up measuring something else.
 */
import { Config, ConfigProvider, Context, Effect, Layer, Metric, Option, Random, Redacted, Schema } from "effect"
import { readFileSync } from "node:fs"
import { parseEnv } from "node:util"
import type { FencingSwitches } from "../../core/Fencing.ts"
import * as Metrics from "../../core/Metrics.ts"
import { defaults, problems as relationProblems, type Settings } from "../../core/Settings.ts"

/** Settings that can not be used. Exit code 2. */
export class ConfigProblem extends Schema.TaggedError<ConfigProblem>()("ConfigProblem", {
  problems: Schema.Array(Schema.Struct({ setting: Schema.String, value: Schema.String, allowed: Schema.String }))
}) {
  override get message(): string {
    return this.problems
      .map(({ allowed, setting, value }) => `${setting} (${envName(setting)}) is ${value}; allowed: ${allowed}`)
      .join("\n")
  }
}

export const configProblem = (setting: string, value: string, allowed: string): ConfigProblem =>
  new ConfigProblem({ problems: [{ setting, value, allowed }] })

/** Name to default service port and management port; a service without a surface has only the latter. */
export const services = {
  "lock-server": { port: 8080, managementPort: 9080 },
  "payment-resource": { port: 8081, managementPort: 9081 },
  "rail-proxy": { port: 8082, managementPort: 9082 },
  "rail-stub": { port: 8083, managementPort: 9083 },
  "payout-executor": { port: undefined, managementPort: 9084 },
  reconciler: { port: undefined, managementPort: 9085 }
} as const
export type ServiceName = keyof typeof services

/** Paths of PEM files; the certificate of the other side is always verified. */
export interface TlsFiles {
  readonly ca: string | undefined
  readonly cert: string | undefined
  readonly key: string | undefined
}

export interface PgEndpoint {
  /** Setting name of the URL, for messages. */
  readonly setting: string
  /** `postgres://user:password@host:port/database?sslmode=require`; absent: see `Database.ts`. */
  readonly url: Redacted.Redacted | undefined
  readonly tls: TlsFiles
}

export interface ServiceConfigValues {
  readonly service: ServiceName
  /**
   * Names this process in logs and audits when several of a kind run. Default: the service's name and eight random hex
   * digits, since two holders of locks under one owner id could not be told apart.
   */
  readonly instance: string
  readonly env: "local" | "dev" | "production"
  readonly host: string
  /** 0: any free one. */
  readonly port: number
  readonly managementPort: number
  /** Bring the schema up to date at start. */
  readonly migrate: boolean
  readonly lock: {
    readonly backend: "pg" | "etcd"
    readonly pg: PgEndpoint
    readonly etcd: {
      /** Absent: see `EtcdBackend.ts`. */
      readonly endpoints: ReadonlyArray<string> | undefined
      /** Use an etcd older than 3.5 all the same. */
      readonly allowOld: boolean
      readonly username: string | undefined
      readonly password: Redacted.Redacted | undefined
      readonly tls: TlsFiles
    }
    readonly url: string
    /** For operators: `/admin` is on the management port only. */
    readonly managementUrl: string
  }
  readonly payment: { readonly pg: PgEndpoint; readonly url: string }
  readonly rail: {
    readonly pg: PgEndpoint
    /** Where the rail itself is. */
    readonly url: string
    readonly proxyUrl: string
  }
  readonly fencing: FencingSwitches
  /** Experiment only: an executor that ignores the loss of its lock. */
  readonly staleHolder: boolean
  /** Experiment only: see `ProcessFaults.ts`. */
  readonly faultPoints: ReadonlyArray<FaultPointSpec>
  readonly settings: Settings
  /** What `--print-config` shows: every setting by its dotted name, secrets hidden. */
  readonly effective: Readonly<Record<string, string | null>>
}

export class ServiceConfig extends Context.Service<ServiceConfig, ServiceConfigValues>()(
  "dlock/services/platform/ServiceConfig"
) {}

export interface FaultPointSpec {
  readonly point: string
  /** `note`: every visit leaves a line in the log, and nothing else happens. */
  readonly action: "stop" | "kill" | "exit" | "note"
  /** On which visit it happens, from 1; every other visit passes. */
  readonly visit: number
}

// -----------------------------------------------------------------------------
// how one setting is written
// -----------------------------------------------------------------------------

interface Kind<A> {
  readonly allowed: string
  readonly parse: (text: string) => A | undefined
  readonly secret?: true
}

const units: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000, min: 60_000, h: 3_600_000 }

/** In integer milliseconds. */
const duration: Kind<number> = {
  allowed: "a duration such as 15 s, 500 ms, 5 min, 4 h, or a number of milliseconds",
  parse: (text) => {
    const [, digits, unit] = /^(\d{1,12}(?:\.\d{1,3})?) ?(ms|s|m|min|h)?$/.exec(text) ?? []
    if (digits === undefined) return undefined
    const millis = Number(digits) * (units[unit ?? "ms"] ?? 1)
    return Number.isSafeInteger(Math.round(millis)) && Math.abs(millis - Math.round(millis)) < 1e-6
      ? Math.round(millis)
      : undefined
  }
}
const count: Kind<number> = {
  allowed: "a whole number",
  parse: (text) => (/^\d{1,9}$/.test(text) ? Number(text) : undefined)
}
const port: Kind<number> = {
  allowed: "0 (any free port) to 65535",
  parse: (text) => (/^\d{1,5}$/.test(text) && Number(text) <= 65_535 ? Number(text) : undefined)
}
/** Only these two: `PAYMENT_FENCING_ENABLED=0` must not be read as anything by anyone's convention. */
const switchKind: Kind<boolean> = {
  allowed: "true or false",
  parse: (text) => (text === "true" ? true : text === "false" ? false : undefined)
}
const oneOf = <const Values extends ReadonlyArray<string>>(...values: Values): Kind<Values[number]> => ({
  allowed: values.join(", "),
  parse: (text) => values.find((value) => value === text)
})
const text: Kind<string> = { allowed: "text", parse: (value) => value }
const secretText: Kind<Redacted.Redacted> = { allowed: "text", parse: (value) => Redacted.make(value), secret: true }
const host: Kind<string> = {
  allowed: "a host name or address",
  parse: (value) => (/^[A-Za-z0-9._:-]{1,253}$/.test(value) ? value : undefined)
}
const identifier: Kind<string> = {
  allowed: "1..64 characters of A-Z a-z 0-9 . _ : @ -",
  parse: (value) => (/^[A-Za-z0-9._:@-]{1,64}$/.test(value) ? value : undefined)
}
const isUrl = (value: string, protocols: ReadonlyArray<string>) =>
  URL.canParse(value) && protocols.includes(new URL(value).protocol) && new URL(value).hostname !== ""
const httpUrl: Kind<string> = {
  allowed: "an http:// or https:// URL without credentials",
  parse: (value) => (isUrl(value, ["http:", "https:"]) && !value.includes("@") ? value.replace(/\/+$/, "") : undefined)
}
const pgUrl: Kind<Redacted.Redacted> = {
  allowed: "postgres://user:password@host:port/database",
  parse: (value) => (isUrl(value, ["postgres:", "postgresql:"]) ? Redacted.make(value) : undefined),
  secret: true
}
const endpoints: Kind<ReadonlyArray<string>> = {
  allowed: "http:// or https:// URLs, separated by commas",
  parse: (value) => {
    const list = value.split(",").map((one) => one.trim().replace(/\/+$/, ""))
    return list.every((one) => httpUrl.parse(one) !== undefined) ? list : undefined
  }
}
const faultPoints: Kind<ReadonlyArray<FaultPointSpec>> = {
  allowed: "<fault point>:stop, :kill, :exit or :note, optionally #<visit>, separated by commas (submit.before:stop#2)",
  parse: (value) => {
    const list = value.split(",").map((one): FaultPointSpec | undefined => {
      const [, point, action, visit] = /^([a-zA-Z0-9._-]{1,64}):(\w+)(?:#([1-9]\d{0,5}))?$/.exec(one.trim()) ?? []
      return point === undefined || (action !== "stop" && action !== "kill" && action !== "exit" && action !== "note")
        ? undefined
        : { point, action, visit: Number(visit ?? 1) }
    })
    return list.every((one) => one !== undefined) ? list : undefined
  }
}

/** Credentials do not belong into a URL that is no secret; if they are there, they are not repeated. */
const shown = <A>(kind: Kind<A>, raw: string): string =>
  kind.secret === true ? "<hidden>" : raw.replace(/\/\/[^/\s]*@/g, "//<hidden>@")

/** `lock.client.safety-margin` to `LOCK_CLIENT_SAFETY_MARGIN`. */
export const envName = (setting: string): string => setting.replace(/[.-]/g, "_").toUpperCase()

// -----------------------------------------------------------------------------
// reading
// -----------------------------------------------------------------------------

type Problem = ConfigProblem["problems"][number]

const anyHex = Effect.map(Random.nextIntBetween(0, 0xffff_ffff), (n) => n.toString(16).padStart(8, "0"))

export interface LoadOptions {
  /** `--config`: a JSON object or a `.env` file. */
  readonly file?: string | undefined
}

/** Reads everything; fails with all that is wrong. */
export const load = Effect.fnUntraced(function* (service: ServiceName, options: LoadOptions = {}) {
  const file = options.file === undefined ? {} : yield* readFile(options.file)
  const provider = ConfigProvider.orElse(yield* ConfigProvider.ConfigProvider, ConfigProvider.fromEnvRecord(file))
  const problems: Array<Problem> = []
  const effective: Record<string, string | null> = {}

  const read = <A>(setting: string, kind: Kind<A>): Effect.Effect<A | undefined> =>
    Config.option(Config.String(envName(setting)))
      .parse(provider)
      .pipe(
        // The sources are records in memory: a failure of the source itself is impossible.
        Effect.orDie,
        Effect.map((found) => {
          const raw = Option.getOrUndefined(found)?.trim()
          effective[setting] = raw === undefined ? null : shown(kind, raw)
          if (raw === undefined) return undefined
          const value = kind.parse(raw)
          if (value === undefined) {
            problems.push({ setting, value: shown(kind, raw), allowed: kind.allowed })
          }
          return value
        })
      )
  const withDefault = <A>(setting: string, kind: Kind<A>, fallback: A, label = String(fallback)): Effect.Effect<A> =>
    Effect.map(read(setting, kind), (value) => {
      effective[setting] ??= label
      return value ?? fallback
    })
  const millis = (setting: string, fallback: number) => withDefault(setting, duration, fallback, `${fallback} ms`)
  const tls = Effect.fnUntraced(function* (prefix: string) {
    return {
      ca: yield* read(`${prefix}.tls.ca`, text),
      cert: yield* read(`${prefix}.tls.cert`, text),
      key: yield* read(`${prefix}.tls.key`, text)
    }
  })
  const pg = Effect.fnUntraced(function* (prefix: string) {
    return { setting: `${prefix}.url`, url: yield* read(`${prefix}.url`, pgUrl), tls: yield* tls(prefix) }
  })

  const readTimeoutMillis = yield* millis("rail.read-timeout", defaults.rail.readTimeoutMillis)
  const settings: Settings = {
    lock: {
      defaultTtlMillis: yield* millis("lock.default.ttl", defaults.lock.defaultTtlMillis),
      sessionTtlMillis: yield* millis("lock.session.ttl", defaults.lock.sessionTtlMillis),
      backendTimeoutMillis: yield* millis("lock.backend.timeout", defaults.lock.backendTimeoutMillis)
    },
    client: {
      safetyMarginMillis: yield* millis("lock.client.safety-margin", defaults.client.safetyMarginMillis),
      heartbeatIntervalMillis: (yield* read("lock.client.heartbeat-interval", duration)) ?? null,
      callTimeoutMillis: yield* millis("lock.client.call-timeout", defaults.client.callTimeoutMillis),
      retry: {
        baseMillis: yield* millis("lock.client.retry.base", defaults.client.retry.baseMillis),
        capMillis: yield* millis("lock.client.retry.cap", defaults.client.retry.capMillis),
        attempts: yield* withDefault("lock.client.retry.attempts", count, defaults.client.retry.attempts)
      }
    },
    rail: {
      readTimeoutMillis,
      sendWindowMillis: yield* millis("rail.send-window", defaults.rail.sendWindowMillis)
    },
    executor: {
      railTimeoutMillis: yield* millis("payout.executor.rail-timeout", readTimeoutMillis + 2_000),
      pollIntervalMillis: yield* millis("payout.executor.poll-interval", defaults.executor.pollIntervalMillis),
      concurrency: yield* withDefault("payout.executor.concurrency", count, defaults.executor.concurrency)
    },
    reconcile: {
      intervalMillis: yield* millis("reconcile.interval", defaults.reconcile.intervalMillis),
      slaMillis: yield* millis("reconcile.sla", defaults.reconcile.slaMillis)
    }
  }
  const values: ServiceConfigValues = {
    service,
    instance: yield* withDefault("dlock.instance", identifier, `${service}-${yield* anyHex}`, `${service}-<random>`),
    env: yield* withDefault("dlock.env", oneOf("local", "dev", "production"), "local"),
    host: yield* withDefault("http.host", host, "127.0.0.1"),
    port: yield* withDefault("http.port", port, services[service].port ?? 0),
    managementPort: yield* withDefault("management.port", port, services[service].managementPort),
    migrate: yield* withDefault("dlock.migrate", switchKind, true),
    lock: {
      backend: yield* withDefault("lock.backend", oneOf("pg", "etcd"), "pg"),
      pg: yield* pg("lock.pg"),
      etcd: {
        endpoints: yield* read("lock.etcd.endpoints", endpoints),
        allowOld: yield* withDefault("lock.etcd.allow-old", switchKind, false),
        username: yield* read("lock.etcd.username", text),
        password: yield* read("lock.etcd.password", secretText),
        tls: yield* tls("lock.etcd")
      },
      url: yield* withDefault("lock.url", httpUrl, localUrl("lock-server")),
      managementUrl: yield* withDefault(
        "lock.management.url",
        httpUrl,
        `http://127.0.0.1:${services["lock-server"].managementPort}`
      )
    },
    payment: {
      pg: yield* pg("payment.pg"),
      url: yield* withDefault("payment.url", httpUrl, localUrl("payment-resource"))
    },
    rail: {
      pg: yield* pg("rail.pg"),
      url: yield* withDefault("rail.url", httpUrl, localUrl("rail-stub")),
      proxyUrl: yield* withDefault("rail.proxy.url", httpUrl, localUrl("rail-proxy"))
    },
    fencing: {
      payment: yield* withDefault("payment.fencing.enabled", switchKind, true),
      rail: yield* withDefault("rail.fencing.enabled", switchKind, true)
    },
    staleHolder: yield* withDefault("payout.executor.stale-holder", switchKind, false),
    faultPoints: yield* withDefault("dlock.fault-point", faultPoints, [], ""),
    settings,
    effective
  }

  // In a file a name nobody reads is a typing error; the environment is full of names that are not ours.
  const known = new Set(Object.keys(effective).map(envName))
  for (const name of Object.keys(file)) {
    if (!known.has(name) && !processWide.has(name)) {
      problems.push({ setting: name, value: "set", allowed: "no setting has this name" })
    }
  }
  for (const { allowed, setting, value } of relationProblems(settings)) {
    problems.push({ setting, value: String(value), allowed })
  }
  if (values.env === "production") problems.push(...experiments(values))
  return problems.length > 0 ? yield* new ConfigProblem({ problems }) : values
})

/** Settings of the whole process, read elsewhere (`Telemetry.ts`), that a config file may hold as well. */
const processWide: ReadonlySet<string> = new Set(["LOG_FORMAT", "LOG_LEVEL", "OTEL_EXPORTER_OTLP_ENDPOINT", "NO_COLOR"])

const localUrl = (service: ServiceName): string => `http://127.0.0.1:${services[service].port}`

/** What is switched to an experiment, as problems: production refuses to start with any of these (FR-29). */
const experiments = (config: ServiceConfigValues): ReadonlyArray<Problem> => [
  ...(config.fencing.payment
    ? []
    : [problem("payment.fencing.enabled", "false", "true while dlock.env is production")]),
  ...(config.fencing.rail ? [] : [problem("rail.fencing.enabled", "false", "true while dlock.env is production")]),
  ...(config.staleHolder
    ? [problem("payout.executor.stale-holder", "true", "false while dlock.env is production")]
    : []),
  ...(config.faultPoints.length > 0
    ? [
        problem(
          "dlock.fault-point",
          config.effective["dlock.fault-point"] ?? "",
          "nothing while dlock.env is production"
        )
      ]
    : [])
]
const problem = (setting: string, value: string, allowed: string): Problem => ({ setting, value, allowed })

export const layer = (service: ServiceName, options?: LoadOptions): Layer.Layer<ServiceConfig, ConfigProblem> =>
  Layer.effect(ServiceConfig, load(service, options))

/**
 * To be run by every service at start: sets `fencing_enabled` of the fence point that the service owns, and says at
 * ERROR what is switched off, so that nobody takes an experiment for the real thing.
 */
export const announceExperiments: Effect.Effect<void, never, ServiceConfig> = Effect.gen(function* () {
  const config = yield* ServiceConfig
  if (config.service === "payment-resource") {
    yield* Metric.update(Metrics.payment.fencingEnabled, config.fencing.payment ? 1 : 0)
  }
  if (config.service === "rail-proxy") {
    yield* Metric.update(Metrics.rail.fencingEnabled, config.fencing.rail ? 1 : 0)
  }
  for (const { setting, value } of experiments(config)) {
    yield* Effect.logError("an experiment is switched on: results and money are not to be trusted").pipe(
      Effect.annotateLogs({
        event: setting.endsWith("fencing.enabled") ? "fencing_disabled" : "experiment",
        setting,
        value
      })
    )
  }
})

// -----------------------------------------------------------------------------
// the config file
// -----------------------------------------------------------------------------

/** By environment name. */
const readFile = (path: string): Effect.Effect<Readonly<Record<string, string>>, ConfigProblem> =>
  Effect.try({
    try: () => {
      const content = readFileSync(path, "utf8")
      return /^\s*[[{"]/.test(content) ? flatten(jsonObject(content)) : parseEnvText(content)
    },
    catch: (cause) => configProblem("--config", path, `a readable JSON object or .env file (${reasonOf(cause)})`)
  })

/** The text of the file may be a secret and JSON.parse quotes it: only the kind of error is told. */
const reasonOf = (cause: unknown): string =>
  cause instanceof SyntaxError
    ? "no valid JSON"
    : cause instanceof Error && "code" in cause
      ? String(cause.code)
      : "unreadable"

const jsonObject = (content: string): object => {
  const value: unknown = JSON.parse(content)
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new SyntaxError("no object")
  return value
}

const parseEnvText = (content: string): Readonly<Record<string, string>> =>
  Object.fromEntries(Object.entries(parseEnv(content)).map(([name, value]) => [name, value ?? ""]))

const flatten = (node: object, prefix = ""): Readonly<Record<string, string>> => {
  const out: Record<string, string> = {}
  for (const [key, value] of Object.entries(node)) {
    const name = prefix === "" ? key : `${prefix}.${key}`
    if (value === null || value === undefined) continue
    if (typeof value === "object" && !Array.isArray(value)) Object.assign(out, flatten(value, name))
    else out[envName(name)] = Array.isArray(value) ? value.join(",") : String(value)
  }
  return out
}
