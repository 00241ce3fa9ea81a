/**
 * What only Prometheus itself can say of infra/prometheus: the configuration and the rules are valid, every alert fires
 * and stays silent where its unit tests say, and the names of the metrics are good ones.
 *
 *     npm run check:infra
 *
 * The tests are tested as well: with rules that never fire, that always fire, and that are a little wrong, promtool must
 * complain about every alert concerned.
 *
 * promtool is `DLOCK_PROMTOOL`, or on the PATH, or Debian's (see prometheus.mjs).
 */
import { PrometheusMetrics } from "effect/observability"
import { Effect, Metric } from "effect"
import { parse } from "effect/encoding/Yaml"
import { spawnSync } from "node:child_process"
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import * as Metrics from "../src/core/Metrics.ts"
import { tool } from "./prometheus.mjs"

const root = fileURLToPath(new URL("../", import.meta.url))
const prometheus = join(root, "infra/prometheus")

const binary = tool("promtool")
const call = (args, input) => {
  const { status, stderr, stdout } = spawnSync(binary, args, { cwd: prometheus, encoding: "utf8", input })
  return { ok: status === 0, output: `${stdout}${stderr}` }
}

// -----------------------------------------------------------------------------
// checks
// -----------------------------------------------------------------------------

let failed = false
const say = (what, ok, detail = "") => {
  process.stdout.write(`${ok ? "ok    " : "FAILED"} ${what}\n${ok ? "" : `${detail}\n`}`)
  failed ||= !ok
}

const filesOf = (directory) => readdirSync(join(prometheus, directory)).map((file) => `${directory}/${file}`)
const rules = filesOf("rules")
const tests = filesOf("tests")

const checked = (what, args, input) => {
  const { ok, output } = call(args, input)
  say(what, ok, output)
}
checked("prometheus.yaml and its rules are valid", ["check", "config", "prometheus.yaml"])
checked("the rules pass their unit tests", ["test", "rules", ...tests])

/** Every series as a service exports it before anything happened. */
const exposition = Effect.gen(function* () {
  const { lock, lockClient, payment, process, rail, railEvidence, reconciler } = Metrics
  yield* Metrics.register(lock, lockClient, payment, rail, railEvidence, reconciler, process)
  yield* Metric.update(payment.fencingEnabled, 1)
  yield* Metric.update(payment.fencingDatabase, 1)
  yield* Metric.value(Metrics.httpServerRequest("GET", "/v1/locks/:key", "2xx"))
  return yield* PrometheusMetrics.format()
}).pipe(Effect.provideService(Metric.MetricRegistry, new Map()))
checked("the exposition is well formed and well named", ["check", "metrics"], Effect.runSync(exposition))
say(
  "a badly named metric is found",
  !call(["check", "metrics"], "# HELP things_count x\n# TYPE things_count counter\nthings_count 1\n").ok
)

// -----------------------------------------------------------------------------
// the tests of the tests
// -----------------------------------------------------------------------------

/** Something that a reviewer could overlook: in which expression, what, and by what it is replaced. */
const slips = [
  [
    "RailDuplicateAttempted",
    "rail_duplicate_attempted_total unless rail_duplicate_attempted_total offset 10m",
    "vector(0)"
  ],
  ["FencedOutMany", ">= 5", ">= 4"],
  ["FencedOut", "sum((lock", "sum by (point) ((lock"],
  ["FencingDisabled", '{environment!="lab"}', ""],
  ["MoneySignalMissing", 'absent(fencing_enabled{point="rail"})', 'absent(fencing_enabled{point="resource"})'],
  ["PayoutBacklogBlind", "or time() - max(payout_backlog_refreshed_timestamp_seconds) > 300", ""],
  ["PayoutLeadTimeFastBurn", "and sum(increase(payout_lead_time_seconds_count[1h])) > 20", ""],
  ["PayoutAmbiguousOld", "7200", "3600"],
  ["LedgerVerifyStale", "absent(ledger_verify_timestamp_seconds) or", ""],
  ["LockAcquireErrors", "dlock:lock_acquire_error:ratio_rate5m > 0.05 and", ""],
  ["LockBackendOutage", 'le="2"', 'le="1"'],
  ["EtcdLeaderChurn", "> 3", "> 0"],
  ["WorkerPaused", "max_over_time(process_pause_seconds[10m])", "process_pause_seconds"]
]

/** Runs the unit tests on changed rules; answers the alerts that promtool complains about. */
const complaintsOn = (change) => {
  const directory = mkdtempSync(join(tmpdir(), "dlock-rules-"))
  try {
    cpSync(join(prometheus, "tests"), join(directory, "tests"), { recursive: true })
    mkdirSync(join(directory, "rules"))
    for (const file of rules) {
      const content = parse(readFileSync(join(prometheus, file), "utf8"))
      for (const { rules: list } of content.groups) for (const rule of list) change(rule)
      // JSON is YAML.
      writeFileSync(join(directory, file), JSON.stringify(content))
    }
    const { output } = call(["test", "rules", ...tests.map((file) => join(directory, file))])
    return new Set([...output.matchAll(/alertname: ?(\w+)/g)].map(([, name]) => name))
  } finally {
    rmSync(directory, { recursive: true, force: true })
  }
}

const alerts = rules.flatMap((file) =>
  parse(readFileSync(join(prometheus, file), "utf8")).groups.flatMap(({ rules: list }) =>
    list.flatMap(({ alert }) => (alert === undefined ? [] : [alert]))
  )
)
const complains = (what, names, change) => {
  const complaints = complaintsOn(change)
  const missed = names.filter((name) => !complaints.has(name))
  say(what, missed.length === 0, `       no test noticed: ${missed.join(", ")}`)
}

complains("an alert that never fires is noticed, whichever it is", alerts, (rule) => {
  if (rule.alert !== undefined) Object.assign(rule, { expr: "vector(0) > 1", for: undefined })
})
complains("an alert that always fires is noticed, whichever it is", alerts, (rule) => {
  if (rule.alert !== undefined) Object.assign(rule, { expr: "vector(1)", for: undefined })
})
complains(
  "an alert that is a little wrong is noticed",
  slips.map(([alert]) => alert),
  (rule) => {
    const [, from, to] = slips.find(([alert]) => alert === rule.alert) ?? []
    if (from === undefined) return
    if (!rule.expr.includes(from)) throw new Error(`${rule.alert} has no ${from} any more`)
    rule.expr = rule.expr.replace(from, to)
  }
)

if (failed) process.exitCode = 5
