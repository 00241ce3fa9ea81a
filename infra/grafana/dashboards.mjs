/**
 * The Grafana dashboards, as what they say rather than as what Grafana stores: a row of panels is a line here. Writes
 * `dashboards/*.json`; with `--check` it writes nothing and fails when they are stale.
 *
 *     node infra/grafana/dashboards.mjs [--check]
 *
 * Panels name metrics and closed tags only, and never a data source: it is chosen at the top of the dashboard.
 */
import { mkdirSync, readFileSync, writeFileSync } from "node:fs"

const directory = new URL("dashboards/", import.meta.url)
const datasource = { type: "prometheus", uid: "${datasource}" }

// -----------------------------------------------------------------------------
// panels
// -----------------------------------------------------------------------------

const targets = (queries) =>
  Object.entries(queries).map(([legendFormat, expr], index) => ({
    refId: "ABCDEFGHIJ"[index],
    datasource,
    expr,
    legendFormat
  }))

/** Lines over time. `queries`: legend to PromQL. */
const lines = (title, unit, queries, description = "") => ({
  type: "timeseries",
  title,
  description,
  datasource,
  targets: targets(queries),
  fieldConfig: { defaults: { unit, custom: { fillOpacity: 8, lineWidth: 1 } }, overrides: [] },
  options: { legend: { displayMode: "list", placement: "bottom" }, tooltip: { mode: "multi", sort: "desc" } }
})

/** One number, green while it is as it must be: below `limit` (or equal to `must`), red otherwise. */
const number = (title, unit, queries, { limit, must, description = "" }) => ({
  type: "stat",
  title,
  description,
  datasource,
  targets: targets(queries).map((target) => ({ ...target, instant: true })),
  fieldConfig: {
    defaults: {
      unit,
      noValue: "no data",
      thresholds: {
        mode: "absolute",
        steps:
          must === 1
            ? [
                { color: "red", value: null },
                { color: "green", value: 1 }
              ]
            : [
                { color: "green", value: null },
                { color: "red", value: limit }
              ]
      }
    },
    overrides: []
  },
  options: { colorMode: "background", graphMode: "none", reduceOptions: { calcs: ["lastNotNull"] } }
})

/** How a histogram's values are spread over time. */
const heatmap = (title, unit, metric, description = "") => ({
  type: "heatmap",
  title,
  description,
  datasource,
  targets: [
    {
      refId: "A",
      datasource,
      expr: `sum by (le) (increase(${metric}_bucket[$__rate_interval]))`,
      format: "heatmap",
      legendFormat: "{{le}}"
    }
  ],
  options: { calculate: false, yAxis: { unit }, cellGap: 1, color: { scheme: "Blues", mode: "scheme" } }
})

const quantile = (q, metric, by) =>
  `histogram_quantile(${q}, sum by (le${by === undefined ? "" : `, ${by}`}) (rate(${metric}_bucket[$__rate_interval])))`
const perSecond = (metric, by) => `sum by (${by}) (rate(${metric}[$__rate_interval]))`
/** A counter whose every step matters: the whole range that is shown. */
const total = (metric, by) => `sum${by === undefined ? "" : ` by (${by})`} (increase(${metric}[$__range]))`

// -----------------------------------------------------------------------------
// a dashboard
// -----------------------------------------------------------------------------

/** Rows of panels, each row 24 columns wide, shared equally. */
const dashboard = (name, title, description, rows) => {
  const panels = []
  let y = 0
  for (const row of rows) {
    const h = row.every(({ type }) => type === "stat") ? 4 : 8
    const w = Math.floor(24 / row.length)
    row.forEach((panel, index) => panels.push({ id: panels.length + 1, gridPos: { x: index * w, y, w, h }, ...panel }))
    y += h
  }
  return {
    uid: `dlock-${name}`,
    title: `dlock: ${title}`,
    description,
    tags: ["dlock"],
    schemaVersion: 39,
    editable: false,
    refresh: "15s",
    time: { from: "now-1h", to: "now" },
    timezone: "utc",
    templating: {
      list: [{ name: "datasource", label: "Data source", type: "datasource", query: "prometheus", hide: 0 }]
    },
    annotations: {
      list: [
        {
          name: "Alerts",
          enable: true,
          iconColor: "red",
          datasource,
          expr: 'ALERTS{alertstate="firing",severity="page"}',
          titleFormat: "{{alertname}}"
        }
      ]
    },
    panels
  }
}

const invariants = number(
  "Violated invariants",
  "none",
  { "{{invariant}}": "max by (invariant) (ledger_invariant_violations)" },
  { limit: 1, description: "Rows that the view pay.invariant_violation shows. Must be 0." }
)
const fences = number(
  "Fences (1 on, 0 off)",
  "none",
  { "{{point}}": "min by (point) (fencing_enabled)" },
  { must: 1, description: "Must be 1 outside the lab." }
)
const fencedOut = lines(
  "Fenced out in 10 min",
  "none",
  { "{{point}} {{op}}": "sum by (point, op) (increase(lock_fenced_out_total[10m]))" },
  "Stale tokens refused. Each one is an incident; five within ten minutes page."
)

const dashboards = {
  money: dashboard("money", "Money", "Is any money wrong, and are payouts in time?", [
    [
      number("Duplicates attempted", "none", { attempted: total("rail_duplicate_attempted_total") }, { limit: 0.5 }),
      number("Paid twice", "none", { detected: total("rail_duplicate_detected_total") }, { limit: 0.5 }),
      number("Paid after FAILED", "none", { late: total("rail_late_execution_total") }, { limit: 0.5 }),
      number("Ledger imbalance", "none", { imbalance: "max(ledger_imbalance)" }, { limit: 1 }),
      invariants,
      fences
    ],
    [
      number("Oldest pending", "s", { age: "max(payout_backlog_age_seconds)" }, { limit: 900 }),
      number("Oldest claimed", "s", { age: "max(payout_claimed_age_seconds)" }, { limit: 600 }),
      number("Oldest ambiguous", "s", { age: "max(payout_ambiguous_age_seconds)" }, { limit: 7200 }),
      number(
        "Backlog measured before",
        "s",
        { age: "time() - max(payout_backlog_refreshed_timestamp_seconds)" },
        { limit: 300, description: "The other numbers freeze when they can not be computed; this one grows." }
      ),
      number("Ledger checked before", "s", { age: "time() - max(ledger_verify_timestamp_seconds)" }, { limit: 900 })
    ],
    [
      lines("Backlog", "none", { "{{state}}": "max by (state) (payout_backlog)" }),
      lines("Payouts per second, by the state they reach", "ops", {
        "{{to}}": perSecond("payout_transition_total", "to")
      })
    ],
    [
      heatmap("Lead time, order to POSTED or FAILED", "s", "payout_lead_time_seconds"),
      lines("Share of payouts slower than 10 min", "percentunit", {
        "5 min": "dlock:payout_slow:ratio_rate5m",
        "1 h": "dlock:payout_slow:ratio_rate1h",
        "6 h": "dlock:payout_slow:ratio_rate6h",
        "3 days": "dlock:payout_slow:ratio_rate3d"
      })
    ],
    [fencedOut]
  ]),

  locks: dashboard("locks", "Locks", "Does the lock service answer, and do holders keep what they hold?", [
    [
      number("Live grants", "none", { grants: "max(lock_grants_live)" }, { limit: 1e6 }),
      number("Live sessions", "none", { sessions: "max(lock_sessions_live)" }, { limit: 1e6 }),
      number("Tokens that went back", "none", { regressions: total("lock_token_regression_total") }, { limit: 0.5 }),
      number("Revoked", "none", { revoked: total("lock_revoked_total") }, { limit: 0.5 }),
      number("Sessions expired", "none", { expired: total("lock_session_expired_total") }, { limit: 1e6 })
    ],
    [
      lines("Acquires per second", "ops", { "{{outcome}}": perSecond("lock_acquire_seconds_count", "outcome") }),
      lines("Time to answer an acquire", "s", {
        "p50 {{outcome}}": quantile(0.5, "lock_acquire_seconds", "outcome"),
        "p99 {{outcome}}": quantile(0.99, "lock_acquire_seconds", "outcome")
      })
    ],
    [
      lines(
        "Time in the queue",
        "s",
        {
          "p50 {{outcome}}": quantile(0.5, "lock_wait_seconds", "outcome"),
          "p99 {{outcome}}": quantile(0.99, "lock_wait_seconds", "outcome")
        },
        "Acquires with waitMillis above 0."
      ),
      lines(
        "How grants end, per second",
        "ops",
        { "{{end}}": perSecond("lock_hold_seconds_count", "end") },
        "expired: its holder neither renewed nor released. session_closed: its holder stopped answering."
      ),
      lines("Time a lock is held, p99", "s", { "{{end}}": quantile(0.99, "lock_hold_seconds", "end") })
    ],
    [
      lines("Locks lost at work, per second", "ops", { "{{reason}}": perSecond("lock_client_lost_total", "reason") }),
      lines("Heartbeats", "s", { "p99 {{outcome}}": quantile(0.99, "lock_client_heartbeat_seconds", "outcome") }),
      lines("Renewals and releases that failed, per second", "ops", {
        "renew {{outcome}}": 'sum by (outcome) (rate(lock_renew_total{outcome!="renewed"}[$__rate_interval]))',
        "release {{outcome}}": 'sum by (outcome) (rate(lock_release_total{outcome!="released"}[$__rate_interval]))'
      })
    ],
    [
      lines("Backend calls, p99", "s", { "{{op}}": quantile(0.99, "lock_backend_call_seconds", "op") }),
      lines("Backend calls without an answer, per second", "ops", {
        "{{op}}": 'sum by (op) (rate(lock_backend_call_seconds_count{outcome="unavailable"}[$__rate_interval]))'
      }),
      lines(
        "Backend outages",
        "none",
        {
          all: "sum(increase(lock_backend_unavailable_seconds_count[1h]))",
          "within 2 s": 'sum(increase(lock_backend_unavailable_seconds_bucket{le="2"}[1h]))'
        },
        "In the last hour. An election may take 2 s; an outage counts when it ends."
      )
    ],
    [lines("Longest stall of a process", "s", { "{{job}} {{instance}}": "process_pause_seconds" }), fencedOut]
  ]),

  rail: dashboard("rail", "Rail", "What the rail answers, and what it did that nobody ordered.", [
    [
      number("Duplicates attempted", "none", { attempted: total("rail_duplicate_attempted_total") }, { limit: 0.5 }),
      number("Paid twice", "none", { detected: total("rail_duplicate_detected_total") }, { limit: 0.5 }),
      number("Paid after FAILED", "none", { late: total("rail_late_execution_total") }, { limit: 0.5 }),
      number("Oldest ambiguous", "s", { age: "max(payout_ambiguous_age_seconds)" }, { limit: 7200 }),
      number(
        "Reconciled before",
        "s",
        { age: "time() - max(reconcile_last_success_timestamp_seconds)" },
        { limit: 1800 }
      )
    ],
    [
      lines("Submissions per second", "ops", { "{{outcome}}": perSecond("rail_submit_seconds_count", "outcome") }),
      lines(
        "Time of a submission",
        "s",
        {
          "p50 {{outcome}}": quantile(0.5, "rail_submit_seconds", "outcome"),
          "p99 {{outcome}}": quantile(0.99, "rail_submit_seconds", "outcome")
        },
        "rail-proxy gives up after rail.read-timeout (8 s)."
      )
    ],
    [
      lines("Share of submissions without an answer", "percentunit", {
        timeout:
          'sum(rate(rail_submit_seconds_count{outcome="timeout"}[$__rate_interval])) / sum(rate(rail_submit_seconds_count[$__rate_interval]))'
      }),
      lines("Ambiguous payouts", "none", { ambiguous: 'max(payout_backlog{state="RAIL_AMBIGUOUS"})' }),
      lines("Refused at the rail's fence in 10 min", "none", {
        "{{op}}": 'sum by (op) (increase(lock_fenced_out_total{point="rail"}[10m]))'
      })
    ],
    [
      lines("Requests to rail-proxy per second", "ops", {
        "{{method}} {{route}} {{status}}":
          'sum by (method, route, status) (rate(http_server_request_seconds_count{job="rail-proxy"}[$__rate_interval]))'
      }),
      lines("Requests to rail-proxy, p99", "s", {
        "{{method}} {{route}}":
          'histogram_quantile(0.99, sum by (le, method, route) (rate(http_server_request_seconds_bucket{job="rail-proxy"}[$__rate_interval])))'
      })
    ]
  ]),

  experiment: dashboard(
    "experiment",
    "Experiment",
    "A worker is stopped past its lease: what the fences do about it, and what happens without them.",
    [
      [
        fences,
        number(
          "Acknowledged by the rail",
          "none",
          { acked: 'sum(increase(rail_submit_seconds_count{outcome="acked"}[$__range]))' },
          { limit: 1e6 }
        ),
        number(
          "Posted",
          "none",
          { posted: 'sum(increase(payout_transition_total{to="POSTED"}[$__range]))' },
          { limit: 1e6 }
        ),
        number("Fenced out", "none", { "{{point}}": total("lock_fenced_out_total", "point") }, { limit: 1e6 }),
        invariants
      ],
      [
        lines(
          "Payments against postings",
          "none",
          {
            "acknowledged by the rail": 'sum(rail_submit_seconds_count{outcome="acked"})',
            posted: 'sum(payout_transition_total{to="POSTED"})'
          },
          "One payout: both lines take one step. Without the rail's fence the first takes two, without the ledger's the second."
        ),
        fencedOut
      ],
      [
        lines(
          "Longest stall of a process",
          "s",
          { "{{job}} {{instance}}": "process_pause_seconds" },
          "The stop itself."
        ),
        lines("Locks lost at work", "none", { "{{reason}}": "sum by (reason) (lock_client_lost_total)" }),
        lines("Grants that ended by themselves", "none", {
          "{{end}}": 'sum by (end) (lock_hold_seconds_count{end=~"expired|session_closed"})'
        })
      ],
      [
        lines("Fences (1 on, 0 off)", "none", { "{{point}}": "min by (point) (fencing_enabled)" }),
        lines("Violated invariants", "none", { "{{invariant}}": "max by (invariant) (ledger_invariant_violations)" })
      ]
    ]
  )
}

// -----------------------------------------------------------------------------
// writing
// -----------------------------------------------------------------------------

const check = process.argv.includes("--check")
mkdirSync(directory, { recursive: true })
for (const [name, content] of Object.entries(dashboards)) {
  const file = new URL(`${name}.json`, directory)
  const text = `${JSON.stringify(content, null, 2)}\n`
  if (!check) {
    writeFileSync(file, text)
    continue
  }
  let found
  try {
    found = readFileSync(file, "utf8")
  } catch {
    found = undefined
  }
  if (found !== text) {
    process.stderr.write(`infra/grafana/dashboards/${name}.json is stale: node infra/grafana/dashboards.mjs\n`)
    process.exitCode = 5
  }
}
