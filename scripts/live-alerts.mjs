/**
 * A real Prometheus scrapes the running system while UC-03 happens, with the rules of infra/prometheus in short windows:
 *
 *     node scripts/live-alerts.mjs
 *
 * - with both fences on: no page, and one ticket, FencedOut;
 * - with the rail's fence off: FencingDisabled, and the pages of a payout that the rail executed twice.
 *
 * Exit code 5 when it is otherwise. Needs Node 24 and Prometheus (see prometheus.mjs); takes about two minutes.
 */
import * as NodeHttpClient from "@effect/platform-node/NodeHttpClient"
import { Effect, Redacted } from "effect"
import { spawn } from "node:child_process"
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { createServer } from "node:net"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { anyPort, leaseSettings, prepareRow } from "../src/harness/PausedWorker.ts"
import { isEvent, make as makeWorld } from "../src/harness/Processes.ts"
import * as EmbeddedPostgres from "../src/services/platform/EmbeddedPostgres.ts"
import * as Migrations from "../src/services/platform/Migrations.ts"
import { tool } from "./prometheus.mjs"

const binary = tool("prometheus")
const alertsFile = fileURLToPath(new URL("../infra/prometheus/rules/alerts.yaml", import.meta.url))
const recordingFile = fileURLToPath(new URL("../infra/prometheus/rules/recording.yaml", import.meta.url))

/** Minutes and hours become seconds, so that an alert comes, and goes, while one watches. */
const shortened = (rules) =>
  rules
    .replaceAll(/for: \d+[mh]/g, "for: 6s")
    .replaceAll(/\[(?:\d+[mhd])\]/g, "[30s]")
    .replaceAll(/offset \d+[mhd]/g, "offset 30s")

const freePort = () =>
  new Promise((resolve, reject) => {
    const server = createServer()
    server.once("error", reject)
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address()
      server.close(() => resolve(port))
    })
  })

const json = (url) => fetch(url, { signal: AbortSignal.timeout(5_000) }).then((response) => response.json())

/** Prometheus on these targets until the scope closes; answers what fires now. */
const prometheus = (targets) =>
  Effect.acquireRelease(
    Effect.promise(async () => {
      const directory = mkdtempSync(join(tmpdir(), "dlock-prometheus-"))
      mkdirSync(join(directory, "rules"))
      writeFileSync(join(directory, "rules/alerts.yaml"), shortened(readFileSync(alertsFile, "utf8")))
      writeFileSync(join(directory, "rules/recording.yaml"), shortened(readFileSync(recordingFile, "utf8")))
      // JSON is YAML.
      writeFileSync(
        join(directory, "prometheus.yaml"),
        JSON.stringify({
          global: { scrape_interval: "1s", scrape_timeout: "1s", evaluation_interval: "1s" },
          rule_files: ["rules/*.yaml"],
          scrape_configs: Object.entries(targets).map(([job, urls]) => ({
            job_name: job,
            metrics_path: "/actuator/prometheus",
            static_configs: [{ targets: urls.map((url) => new URL(url).host), labels: { environment: "local" } }]
          }))
        })
      )
      const port = await freePort()
      const child = spawn(
        binary,
        [
          `--config.file=${join(directory, "prometheus.yaml")}`,
          `--storage.tsdb.path=${join(directory, "data")}`,
          `--web.listen-address=127.0.0.1:${port}`,
          "--log.level=warn"
        ],
        { stdio: ["ignore", "inherit", "inherit"] }
      )
      return { directory, child, url: `http://127.0.0.1:${port}` }
    }),
    ({ child, directory }) =>
      Effect.promise(async () => {
        if (child.exitCode === null) {
          await new Promise((resolve) => {
            child.once("exit", resolve)
            child.kill("SIGTERM")
          })
        }
        rmSync(directory, { recursive: true, force: true })
      })
  ).pipe(
    Effect.map(({ url }) => ({
      firing: Effect.promise(() =>
        json(`${url}/api/v1/alerts`).then(
          ({ data }) =>
            data.alerts
              .filter(({ state }) => state === "firing")
              .map(({ labels }) => ({
                severity: labels.severity,
                name: labels.alertname,
                about: labels.point ?? labels.invariant ?? labels.job ?? ""
              })),
          () => []
        )
      )
    }))
  )

const told = ({ about, name, severity }) => `${severity} ${name}${about === "" ? "" : ` (${about})`}`

/** Looks for so long and answers everything that ever fired. */
const observe = (firing, millis, enough) =>
  Effect.gen(function* () {
    const seen = new Map()
    const until = Date.now() + millis
    while (Date.now() < until) {
      for (const alert of yield* firing) {
        if (!seen.has(told(alert))) process.stdout.write(`  fires: ${told(alert)}\n`)
        seen.set(told(alert), alert)
      }
      if (enough !== undefined && enough([...seen.values()])) break
      yield* Effect.sleep("500 millis")
    }
    return [...seen.values()]
  })

/** UC-03 under Prometheus: what fired in the end. */
const experiment = (around, switches, index, enough, millis) =>
  Effect.gen(function* () {
    const row = yield* prepareRow(around, switches, index)
    const { url: paymentUrl } = yield* row.payment.listening
    const { url: proxyUrl } = yield* row.rail.listening
    const reconciler = yield* around.world.start(`reconciler-${index}`, ["reconciler"], {
      ...anyPort,
      ...leaseSettings,
      LOCK_URL: around.lockUrl,
      PAYMENT_URL: paymentUrl,
      RAIL_PROXY_URL: proxyUrl,
      RECONCILE_INTERVAL: "1 s"
    })
    const first = yield* row.worker("W1", {
      // It is told that it lost its lock and goes on, else there would be nothing to refuse.
      PAYOUT_EXECUTOR_STALE_HOLDER: "true",
      DLOCK_FAULT_POINT: "submit.before:stop"
    })
    const management = (service) => Effect.map(service.listening, ({ managementUrl }) => managementUrl)
    const { firing } = yield* prometheus({
      "lock-server": [around.lockManagementUrl],
      "rail-stub": [around.railManagementUrl],
      "payment-resource": [yield* management(row.payment)],
      "rail-proxy": [yield* management(row.rail)],
      reconciler: [yield* management(reconciler)]
    })
    yield* first.awaitRecord("reaches the fault point", isEvent("fault_point"), "60 seconds")
    yield* first.awaitStopped
    const second = yield* row.worker("W2", {})
    const posted = yield* second.awaitRecord(
      "posts the payout",
      (record) => record.event === "payout_hop" && record.op === "post",
      "60 seconds"
    )
    process.stdout.write(`  W1 stopped, W2 posted under token ${posted.token}; W1 wakes\n`)
    yield* first.resume
    const woke = yield* first.awaitRecord(
      "submits late",
      (record) => record.event === "stale_hop" && record.op === "submit",
      "60 seconds"
    )
    process.stdout.write(`  W1's submit under token ${woke.token} was answered ${woke.outcome}\n`)
    // Somebody looks at the rail's book, as an operator or the reconciler does.
    yield* Effect.promise(() =>
      fetch(`${proxyUrl}/v1/rail/submissions/${posted.payoutId}/lookup`, {
        method: "POST",
        headers: { "x-owner-id": "live-alerts" },
        signal: AbortSignal.timeout(10_000)
      }).then((response) => response.text())
    )
    return yield* observe(firing, millis, enough)
  }).pipe(Effect.scoped)

const pagesOf = (alerts) => alerts.filter(({ severity }) => severity === "page")
const has = (alerts, name, about) =>
  alerts.some((alert) => alert.name === name && (about === undefined || alert.about === about))

const main = Effect.gen(function* () {
  const world = yield* makeWorld
  const [lockdb, paydb] = yield* Effect.all(
    [
      EmbeddedPostgres.start({ storage: { kind: "temporary" } }),
      EmbeddedPostgres.start({ storage: { kind: "temporary" } })
    ],
    { concurrency: "unbounded" }
  )
  yield* Migrations.ensureDatabase({ adminUrl: lockdb.url("postgres"), database: "lockdb" })
  const lock = yield* world.start("lock-server", ["lock-server"], {
    ...anyPort,
    ...leaseSettings,
    LOCK_PG_URL: Redacted.value(lockdb.url("lockdb"))
  })
  const rail = yield* world.start("rail-stub", ["rail-stub"], { ...anyPort })
  const locks = yield* lock.listening
  const rails = yield* rail.listening
  const around = {
    world,
    lockdb: lockdb.url("lockdb"),
    paydb: paydb.url,
    lockUrl: locks.url,
    lockManagementUrl: locks.managementUrl,
    railUrl: rails.url,
    railManagementUrl: rails.managementUrl
  }
  let failed = false
  const say = (what, ok) => {
    process.stdout.write(`${ok ? "ok    " : "FAILED"} ${what}\n`)
    failed ||= !ok
  }

  process.stdout.write("both fences on\n")
  const on = yield* experiment(around, { payment: true, rail: true }, 1, undefined, 25_000)
  say("with both fences on no page fires", pagesOf(on).length === 0)
  const tickets = on.filter(({ name }) => name.startsWith("Fenc"))
  say("and one ticket does, FencedOut", tickets.length === 1 && has(on, "FencedOut"))

  process.stdout.write("the rail's fence off\n")
  const wanted = (alerts) =>
    has(alerts, "FencingDisabled", "rail") &&
    has(alerts, "RailExecutedTwice") &&
    has(alerts, "LedgerInvariantViolated", "INV-02")
  const off = yield* experiment(around, { payment: true, rail: false }, 2, wanted, 60_000)
  say("with the rail's fence off FencingDisabled pages", has(off, "FencingDisabled", "rail"))
  say("so does the payout that the rail executed twice", has(off, "RailExecutedTwice"))
  say("and the ledger's own check of it", has(off, "LedgerInvariantViolated", "INV-02"))
  if (failed) process.exitCode = 5
}).pipe(Effect.scoped, Effect.provide(NodeHttpClient.layerUndici))

const stop = new AbortController()
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => stop.abort())
await Effect.runPromise(main, { signal: stop.signal })
