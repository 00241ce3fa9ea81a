/**
 * What a PromQL expression asks for, held against what the services export: the names and closed tag values of
 * `core/Metrics.ts` as a scrape shows them, not a list kept by hand.
 */
import { Effect, Metric } from "effect"
import { PrometheusMetrics } from "effect/observability"
import * as Metrics from "../../src/core/Metrics.ts"
import { services } from "../../src/services/platform/ServiceConfig.ts"

export interface Selector {
  readonly name: string
  readonly matchers: ReadonlyArray<{ readonly label: string; readonly op: string; readonly value: string }>
}

export interface Asked {
  readonly selectors: ReadonlyArray<Selector>
  /** Labels of `by`, `without`, `on`, `ignoring`. */
  readonly groupings: ReadonlyArray<string>
  /** Texts given to functions, which may become labels. */
  readonly texts: ReadonlyArray<string>
}

const words = new Set(["and", "or", "unless", "bool", "offset", "inf", "nan"])
const groupingWords = new Set(["by", "without", "on", "ignoring", "group_left", "group_right"])
// A range in brackets and a number with its unit name nothing.
const token = /\[[^\]]*\]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[a-zA-Z_:][\w:]*|\d[\w.]*|=~|!~|!=|\S/g

export const asked = (expression: string): Asked => {
  const tokens = (expression.match(token) ?? []).filter((one) => !one.startsWith("["))
  const selectors: Array<Selector> = []
  const groupings: Array<string> = []
  const texts: Array<string> = []
  const isName = (one: string | undefined) => one !== undefined && /^[a-zA-Z_:]/.test(one)
  const unquoted = (one: string | undefined) => (one ?? "").slice(1, -1)
  for (let at = 0; at < tokens.length; at++) {
    const word = tokens[at] ?? ""
    if (/^["']/.test(word)) {
      texts.push(unquoted(word))
    } else if (groupingWords.has(word) && tokens[at + 1] === "(") {
      for (at += 2; at < tokens.length && tokens[at] !== ")"; at++)
        if (isName(tokens[at])) groupings.push(tokens[at] ?? "")
    } else if (isName(word) && !words.has(word.toLowerCase()) && !/^(?:\(|by|without)$/.test(tokens[at + 1] ?? "")) {
      const matchers: Array<Selector["matchers"][number]> = []
      if (tokens[at + 1] === "{") {
        for (at += 2; at < tokens.length && tokens[at] !== "}"; at++) {
          if (!isName(tokens[at])) continue
          matchers.push({ label: tokens[at] ?? "", op: tokens[at + 1] ?? "", value: unquoted(tokens[at + 2]) })
          at += 2
        }
      }
      selectors.push({ name: word, matchers })
    }
  }
  return { selectors, groupings, texts }
}

/** Series name to its labels to their values. */
export type Exported = ReadonlyMap<string, ReadonlyMap<string, ReadonlySet<string>>>

const scrape = Effect.gen(function* () {
  const { lock, lockClient, payment, process, rail, railEvidence, reconciler } = Metrics
  yield* Metrics.register(lock, lockClient, payment, rail, railEvidence, reconciler, process)
  yield* Metric.update(payment.fencingEnabled, 1)
  yield* Metric.update(Metrics.rail.fencingEnabled, 1)
  yield* Metric.value(Metrics.httpServerRequest("GET", "/v1/locks/:key", "2xx"))
  return yield* PrometheusMetrics.format()
}).pipe(Effect.provideService(Metric.MetricRegistry, new Map()))

/** Every series of the registry, as it is scraped. */
export const exported = (): Exported => {
  const found = new Map<string, Map<string, Set<string>>>()
  for (const [, name = "", tags = ""] of Effect.runSync(scrape).matchAll(/^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S+$/gm)) {
    const labels = found.get(name) ?? new Map<string, Set<string>>()
    found.set(name, labels)
    for (const [, label = "", value = ""] of tags.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels.set(label, (labels.get(label) ?? new Set()).add(value))
    }
  }
  return found
}

/** Exported by others; of these only the name is known. */
export const foreign: Readonly<Record<string, string>> = {
  up: "Prometheus, per target",
  ALERTS: "Prometheus, per alert",
  etcd_server_leader_changes_seen_total: "etcd"
}

/** Set by whoever scrapes (infra/prometheus/prometheus.yaml). */
export const scrapeLabels: Readonly<Record<string, ReadonlySet<string> | undefined>> = {
  job: new Set(Object.keys(services)),
  instance: undefined,
  environment: new Set(["lab", "local", "dev", "production"])
}
/** Every value a request can have; the surfaces say which there are. */
const requestLabels = new Set(["method", "route", "status"])

/** What an expression asks for and nobody gives, in words. `recorded`: names made by recording rules. */
export const problemsOf = (
  expression: string,
  series: Exported,
  recorded: ReadonlySet<string>
): ReadonlyArray<string> => {
  const { groupings, selectors } = asked(expression)
  const found: Array<string> = []
  const known = new Set(Object.keys(scrapeLabels))
  for (const { matchers, name } of selectors) {
    if (recorded.has(name) || Object.hasOwn(foreign, name)) continue
    const labels = series.get(name)
    if (labels === undefined) {
      found.push(`nobody exports ${name}`)
      continue
    }
    for (const label of labels.keys()) known.add(label)
    for (const { label, op, value } of matchers) {
      const isScrapeLabel = Object.hasOwn(scrapeLabels, label)
      const values = isScrapeLabel ? scrapeLabels[label] : labels.get(label)
      if (!isScrapeLabel && values === undefined) found.push(`${name} has no tag ${label}`)
      if (values === undefined || requestLabels.has(label)) continue
      for (const one of op.includes("~") ? value.split("|") : [value]) {
        if (!values.has(one)) found.push(`${label} of ${name} is never ${one}`)
      }
    }
  }
  if (selectors.length === 0) found.push(`no metric in ${expression}`)
  for (const label of groupings) if (!known.has(label)) found.push(`nothing here has the label ${label}`)
  return found
}
