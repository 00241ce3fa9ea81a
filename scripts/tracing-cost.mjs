/**
 * What tracing costs while nobody listens: CPU of lock-server per acquire and release, as it is (no OTLP endpoint) against
 * the same process in which no span is made at all.
 *
 *     node scripts/tracing-cost.mjs [--pairs 10] [--requests 5000] [--limit 3]
 *
 * Both run side by side and are asked in turns of a few requests, so that what the machine does meanwhile befalls both; the
 * figure is the median of the pairs. Exit code 5 when it is above the limit (in percent). Needs Node 24 and a quiet machine, for
 * four minutes: pairs of 2,000 requests are too short, two equal processes differ by up to 14 % in one.
 */
import { References } from "effect"
import { Effect, Redacted } from "effect"
import { spawn } from "node:child_process"
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs"
import http from "node:http"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { parseArgs } from "node:util"

/** Requests of one turn. */
const BLOCK = 50

if (process.env["DLOCK_WITHOUT_SPANS"] === "1") {
  // Loaded before the program (`--import`): the default that every fiber starts from.
  References.TracerEnabled["~effect/Context/defaultValue"] = false
} else {
  await main()
}

async function main() {
  const { values } = parseArgs({
    options: { pairs: { type: "string" }, requests: { type: "string" }, limit: { type: "string" } }
  })
  const pairs = Number(values.pairs ?? 10)
  const requests = Number(values.requests ?? 5_000)
  const limit = Number(values.limit ?? 3)
  const EmbeddedPostgres = await import("../src/services/platform/EmbeddedPostgres.ts")
  const Migrations = await import("../src/services/platform/Migrations.ts")

  const measured = Effect.gen(function* () {
    const postgres = yield* EmbeddedPostgres.start({ storage: { kind: "temporary" } })
    yield* Migrations.ensureDatabase({ adminUrl: postgres.url("postgres"), database: "lockdb" })
    const url = Redacted.value(postgres.url("lockdb"))
    const asItIs = yield* server({ LOCK_PG_URL: url })
    const without = yield* server({ LOCK_PG_URL: url, DLOCK_WITHOUT_SPANS: "1" })
    return yield* Effect.promise(async () => {
      for (const each of [asItIs, without]) await load(each, requests)
      const ratios = []
      for (let pair = 0; pair < pairs; pair++) {
        const before = [cpuOf(asItIs.pid), cpuOf(without.pid)]
        for (let block = 0; block < requests / BLOCK; block++) {
          // In both orders, so that who comes second has no advantage.
          const turns = block % 2 === 0 ? [asItIs, without] : [without, asItIs]
          for (const each of turns) await load(each, BLOCK)
        }
        const used = [cpuOf(asItIs.pid) - before[0], cpuOf(without.pid) - before[1]]
        ratios.push(used[0] / used[1])
        const micros = (seconds) => ((seconds / requests) * 1e6).toFixed(0)
        process.stdout.write(
          `pair ${pair + 1}: ${micros(used[0])} us with, ${micros(used[1])} us without, ${percent(used[0] / used[1])}\n`
        )
      }
      return ratios
    })
  }).pipe(Effect.scoped)

  const stop = new AbortController()
  for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => stop.abort())
  const ratios = (await Effect.runPromise(measured, { signal: stop.signal })).toSorted((a, b) => a - b)
  const median = (ratios[(ratios.length - 1) >> 1] + ratios[ratios.length >> 1]) / 2
  process.stdout.write(
    `tracing without an endpoint: ${percent(median)} CPU (median of ${pairs} pairs, ${percent(ratios[0])} to ${percent(ratios.at(-1))})\n`
  )
  if ((median - 1) * 100 > limit) process.exitCode = 5
}

function percent(ratio) {
  return `${ratio >= 1 ? "+" : ""}${((ratio - 1) * 100).toFixed(1)} %`
}

/** lock-server as a process, until the scope closes. */
function server(environment) {
  const main = fileURLToPath(
    new URL(
      existsSync(new URL("../dist/main.js", import.meta.url)) ? "../dist/main.js" : "../src/main.ts",
      import.meta.url
    )
  )
  return Effect.acquireRelease(
    Effect.promise(async () => {
      const cwd = mkdtempSync(join(tmpdir(), "dlock-tracing-"))
      const preload = environment["DLOCK_WITHOUT_SPANS"] === "1" ? ["--import", fileURLToPath(import.meta.url)] : []
      const child = spawn(
        process.execPath,
        ["--disable-warning=ExperimentalWarning", ...preload, main, "lock-server"],
        {
          cwd,
          env: {
            PATH: process.env["PATH"],
            HOME: cwd,
            HTTP_PORT: "0",
            MANAGEMENT_PORT: "0",
            LOG_LEVEL: "Warn",
            ...environment
          },
          stdio: ["ignore", "pipe", "inherit"]
        }
      )
      const port = await listening(child)
      const agent = new http.Agent({ keepAlive: true, maxSockets: 8 })
      const { sessionId } = await call({ port, agent }, "POST", "/v1/sessions", {}, { ttlMillis: 300_000 })
      return { pid: child.pid, child, cwd, port, agent, sessionId }
    }),
    ({ agent, child, cwd }) =>
      Effect.promise(async () => {
        agent.destroy()
        await new Promise((resolve) => {
          child.once("exit", resolve)
          child.kill("SIGTERM")
        })
        rmSync(cwd, { recursive: true, force: true })
      })
  )
}

/** The port is told at INFO, which is more than the measurement wants: it is asked of the kernel. */
async function listening(child) {
  const until = Date.now() + 60_000
  while (Date.now() < until) {
    if (child.exitCode !== null) throw new Error(`lock-server ended with ${child.exitCode}`)
    for (const port of listeners(child.pid)) {
      const found = await call({ port, agent: undefined }, "GET", "/v1/locks/none", {}).catch(() => undefined)
      // The management port has no such route; until the store is there, the service port says that too.
      if (found?.code === "LOCK_NOT_FOUND") return port
    }
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
  throw new Error("lock-server does not listen")
}

function listeners(pid) {
  let inodes
  try {
    const { readdirSync, readlinkSync } = process.getBuiltinModule("node:fs")
    inodes = new Set(
      readdirSync(`/proc/${pid}/fd`).map((fd) => {
        try {
          return /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`))?.[1]
        } catch {
          return undefined
        }
      })
    )
  } catch {
    return []
  }
  return readFileSync("/proc/net/tcp", "latin1")
    .split("\n")
    .slice(1)
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[3] === "0A" && inodes.has(fields[9]))
    .map((fields) => Number.parseInt(fields[1].split(":")[1], 16))
}

/** So many acquires and releases, eight at a time. */
async function load(target, requests) {
  let next = 0
  const worker = async (name) => {
    while (next < requests) {
      next++
      const key = `k-${name}-${next}`
      const grant = await call(target, "POST", `/v1/locks/${key}/acquire`, {}, { sessionId: target.sessionId })
      if (grant.fencingToken === undefined) throw new Error(`the machine is too busy to measure: ${grant.message}`)
      await call(target, "DELETE", `/v1/locks/${key}`, { "x-fencing-token": grant.fencingToken })
    }
  }
  await Promise.all(Array.from({ length: 8 }, (_, name) => worker(name)))
}

/** User and system time of a process, in seconds (100 ticks a second on every Linux). */
function cpuOf(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "latin1").split(") ")[1].split(" ")
  return (Number(fields[11]) + Number(fields[12])) / 100
}

function call({ agent, port }, method, path, headers, body) {
  return new Promise((resolve, reject) => {
    const request = http.request(
      {
        agent,
        host: "127.0.0.1",
        port,
        method,
        path,
        headers: {
          "x-owner-id": "cost",
          // As a traced caller sends it: what is measured is the whole way of a request with a parent.
          traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
          ...headers,
          ...(body === undefined ? {} : { "content-type": "application/json" })
        }
      },
      (response) => {
        const chunks = []
        response.on("data", (chunk) => chunks.push(chunk))
        response.on("error", reject)
        response.on("end", () => {
          const text = Buffer.concat(chunks).toString("utf8")
          resolve(text === "" ? {} : JSON.parse(text))
        })
      }
    )
    request.on("error", reject)
    request.end(body === undefined ? undefined : JSON.stringify(body))
  })
}
