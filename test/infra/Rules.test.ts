// @effect-diagnostics nodeBuiltinImport:off
/**
 * Alert rules, their unit tests and the scrape configuration, held against the code: what they name exists, every alert
 * is tested both ways and has a runbook, every runbook an alert. What promtool has to say is in `npm run check:infra`.
 */
import { assert, describe, it } from "@effect/vitest"
import { parse } from "effect/encoding/Yaml"
import * as fs from "node:fs"
import { services } from "../../src/services/platform/ServiceConfig.ts"
import { paths } from "../../src/services/platform/Management.ts"
import { asked, exported, problemsOf } from "./promql.ts"

interface Rule {
  readonly alert?: string
  readonly record?: string
  readonly expr: string
  readonly labels?: Readonly<Record<string, string>>
  readonly annotations?: Readonly<Record<string, string>>
}
interface RuleFile {
  readonly groups: ReadonlyArray<{ readonly name: string; readonly rules: ReadonlyArray<Rule> }>
}
interface UnitTests {
  readonly tests: ReadonlyArray<{
    readonly name: string
    readonly input_series: ReadonlyArray<{ readonly series: string }>
    readonly alert_rule_test?: ReadonlyArray<{
      readonly alertname: string
      readonly exp_alerts: ReadonlyArray<unknown>
    }>
    readonly promql_expr_test?: ReadonlyArray<{ readonly expr: string }>
  }>
}

/** The shapes above are what promtool checks. */
const readYaml = <A>(file: string) => parse(fs.readFileSync(file, "utf8")) as A
const filesOf = (directory: string) => fs.readdirSync(directory).map((file) => `${directory}/${file}`)

const rules = filesOf("infra/prometheus/rules").flatMap((file) =>
  readYaml<RuleFile>(file).groups.flatMap((group) => group.rules)
)
const alerts = rules.filter((rule) => rule.alert !== undefined)
const tests = filesOf("infra/prometheus/tests").flatMap((file) => readYaml<UnitTests>(file).tests)
const recorded = new Set(rules.flatMap(({ record }) => (record === undefined ? [] : [record])))
const series = exported()

describe("the reader of expressions", () => {
  it("sees names, matchers and groupings, and neither functions nor texts nor ranges", () => {
    const { groupings, selectors, texts } = asked(
      `sum by (point, op) (rate(a_total{point="rail",op=~"x|y"}[5m] offset 1h)) > 14.4 * 0.01 and on (job) time() - max(b:c) or label_replace(absent(d), "signal", "e", "", "")`
    )
    assert.deepStrictEqual(
      selectors.map(({ name }) => name),
      ["a_total", "b:c", "d"]
    )
    assert.deepStrictEqual(selectors[0]?.matchers, [
      { label: "point", op: "=", value: "rail" },
      { label: "op", op: "=~", value: "x|y" }
    ])
    assert.deepStrictEqual(groupings, ["point", "op", "job"])
    assert.deepStrictEqual(texts, ["signal", "e", "", ""])
  })

  const planted: ReadonlyArray<readonly [expression: string, problem: string]> = [
    ["min(lock_token_floor_margin) <= 0", "nobody exports lock_token_floor_margin"],
    ["increase(lock_acquire_seconds_total[5m])", "nobody exports lock_acquire_seconds_total"],
    [`rate(lock_acquire_seconds_count{outcome="failed"}[5m])`, "outcome of lock_acquire_seconds_count is never failed"],
    [`rate(lock_acquire_seconds_count{result="error"}[5m])`, "lock_acquire_seconds_count has no tag result"],
    [`rate(payout_lead_time_seconds_bucket{le="601"}[5m])`, "le of payout_lead_time_seconds_bucket is never 601"],
    [`lock_hold_seconds_count{end=~"expired|stolen"}`, "end of lock_hold_seconds_count is never stolen"],
    [`up{job="lockserver"} or process_pause_seconds{job="lockserver"}`, "job of process_pause_seconds is never locks"],
    ["sum by (key) (lock_fenced_out_total)", "nothing here has the label key"],
    ["max by (service) (process_pause_seconds)", "nothing here has the label service"],
    ["dlock:nothing:ratio > 1", "nobody exports dlock:nothing:ratio"],
    ["vector(1)", "no metric in vector(1)"]
  ]
  for (const [expression, problem] of planted) {
    it(`finds: ${problem}`, () => {
      const found = problemsOf(expression, series, recorded)
      assert.isTrue(
        found.some((one) => one.startsWith(problem)),
        `found only: ${found.join("; ")}`
      )
    })
  }
})

describe("the rules", () => {
  it("name only what the services export, with the tags that it has", () => {
    assert.deepStrictEqual(
      rules.flatMap(({ alert, expr, record }) =>
        problemsOf(expr, series, recorded).map((problem) => `${alert ?? record}: ${problem}`)
      ),
      []
    )
  })

  it("are pages or tickets, and say in a sentence what is the matter, with labels that the alert has", () => {
    for (const { alert = "", annotations = {}, expr, labels = {} } of alerts) {
      assert.include(["page", "ticket"], labels["severity"], alert)
      assert.deepStrictEqual(Object.keys(annotations), ["summary", "runbook"], alert)
      const { groupings, texts } = asked(expr)
      for (const [, label = ""] of (annotations["summary"] ?? "").matchAll(/\$labels\.(\w+)/g)) {
        assert.include([...groupings, ...texts, ...(expr.startsWith("up ") ? ["job", "instance"] : [])], label, alert)
      }
    }
  })

  it("page for what C4 wants people woken for, and for nothing that can wait", () => {
    const severity = new Map(alerts.map(({ alert, labels }) => [alert, labels?.["severity"]]))
    for (const alert of [
      "PayoutBacklogAge",
      "PayoutBacklogBlind",
      "PayoutAmbiguousSla",
      "RailDuplicateAttempted",
      "RailExecutedTwice",
      "RailExecutedLate",
      "LedgerInvariantViolated",
      "LockTokenRegression",
      "FencingDisabled",
      "FencedOutMany"
    ]) {
      assert.strictEqual(severity.get(alert), "page", alert)
    }
    for (const alert of ["FencedOut", "LockAcquireErrors", "LockBackendOutage", "LockRevoked"]) {
      assert.strictEqual(severity.get(alert), "ticket", alert)
    }
  })
})

/** Alerts without a test in which they fire, or without one in which they do not. */
const untested = (names: ReadonlyArray<string>, all: UnitTests["tests"]) => {
  const expected = all.flatMap(({ alert_rule_test = [] }) => alert_rule_test)
  return names.flatMap((name) => {
    const own = expected.filter(({ alertname }) => alertname === name)
    return [
      ...(own.some(({ exp_alerts }) => exp_alerts.length > 0) ? [] : [`${name} never fires`]),
      ...(own.some(({ exp_alerts }) => exp_alerts.length === 0) ? [] : [`${name} is never silent`])
    ]
  })
}

describe("the unit tests of the rules", () => {
  it("let every alert fire and every alert be silent", () => {
    assert.deepStrictEqual(
      untested(
        alerts.map(({ alert = "" }) => alert),
        tests
      ),
      []
    )
  })

  it("would be missed", () => {
    const half = [{ name: "", input_series: [], alert_rule_test: [{ alertname: "A", exp_alerts: [] }] }]
    assert.deepStrictEqual(untested(["A", "B"], half), ["A never fires", "B never fires", "B is never silent"])
  })

  it("feed only series that the services export, and expect only alerts that there are", () => {
    assert.deepStrictEqual(
      tests.flatMap(({ input_series, name, promql_expr_test = [] }) =>
        [...input_series.map((one) => one.series), ...promql_expr_test.map((one) => one.expr)].flatMap((text) =>
          problemsOf(text, series, recorded).map((problem) => `${name}: ${problem}`)
        )
      ),
      []
    )
    const names = alerts.map(({ alert }) => alert)
    for (const { alert_rule_test = [] } of tests) {
      for (const { alertname } of alert_rule_test) assert.include(names, alertname)
    }
  })
})

describe("the scrape configuration", () => {
  interface Scrapes {
    readonly scrape_configs: ReadonlyArray<{
      readonly job_name: string
      readonly metrics_path: string
      readonly static_configs: ReadonlyArray<{ readonly targets: ReadonlyArray<string>; readonly labels: object }>
    }>
  }

  it("asks every service at its management port, where the metrics are", () => {
    const { scrape_configs } = readYaml<Scrapes>("infra/prometheus/prometheus.yaml")
    assert.deepStrictEqual(
      scrape_configs.map(({ job_name, metrics_path, static_configs }) => [
        job_name,
        metrics_path,
        static_configs.flatMap(({ targets }) => targets)
      ]),
      Object.entries(services).map(([name, { managementPort }]) => [
        name,
        paths.prometheus,
        [`127.0.0.1:${managementPort}`]
      ])
    )
    for (const { static_configs } of scrape_configs) {
      for (const { labels } of static_configs) assert.deepStrictEqual(labels, { environment: "local" })
    }
  })
})
