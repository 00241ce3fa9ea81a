/**
 * A progressive rollout on a running compose stack, under load, and what its callers saw of it:
 *
 *     node scripts/replace.mjs PROJECT
 *
 * A replica of the new version is started beside the old one, under the same name in the network. Only when it is healthy is
 * the old one told to stop. A version that does not become healthy is taken away again and the old one never noticed: that is
 * tried first, with a setting that can not work.
 *
 * Under load means: payouts are ordered all the time and worked off by the executors, and locks are taken and released
 * through the SDK. It fails when a caller sees an error that it may not retry, when a payout is not posted in the end, or when
 * the rail has paid one more or less often than once.
 */
import { execFileSync, spawn } from "node:child_process"

const project = process.argv[2] ?? "dlock"
const docker = (...args) => execFileSync("docker", args, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] }).trim()
const compose = (...args) => docker("compose", "-p", project, "--profile", "pg", ...args)
const started = performance.now()
const say = (text) => process.stdout.write(`      ${((performance.now() - started) / 1_000).toFixed(1)} s  ${text}\n`)
const sleep = (millis) => new Promise((resolve) => setTimeout(resolve, millis))

// -----------------------------------------------------------------------------
// the callers, in a container of their own beside the services
// -----------------------------------------------------------------------------

const callers = `
import { connect } from "/app/dist/services/lock-client/PromiseClient.js"
const pay = "http://payment-resource:8081", rail = "http://rail-stub:8083"
const seen = { ordered: 0, locked: 0, retried: 0, retriedLocks: 0, wrong: [] }
const headers = { "content-type": "application/json", "x-owner-id": "callers", connection: "keep-alive" }
let stopping = false
process.stdin.on("end", () => { stopping = true }).resume()
const sleep = (millis) => new Promise((resolve) => setTimeout(resolve, millis))
/** As a client of ours should: again on what may be asked again, with the same key; anything else is a finding. */
const ask = async (url, body, key) => {
  for (let tries = 0; ; tries++) {
    try {
      const response = await fetch(url, { method: body ? "POST" : "GET", headers: key ? { ...headers, "x-idempotency-key": key } : headers,
        ...(body ? { body: JSON.stringify(body) } : {}), signal: AbortSignal.timeout(5000) })
      const said = await response.json()
      if (response.status < 300) return said
      if (response.status !== 503 || tries > 40) { seen.wrong.push(url + ": " + response.status + " " + JSON.stringify(said)); return said }
    } catch (error) {
      // No answer: which is why every order has a key.
      if (tries > 40) { seen.wrong.push(url + ": " + String(error.cause ?? error)); return {} }
    }
    seen.retried++
    await sleep(50)
  }
}
const accounts = ["r-1", "r-2", "r-3", "r-4"]
for (const accountId of accounts) await ask(pay + "/v1/accounts", { accountId, currency: "EUR", openingBalanceMinor: "100000000" })
const orders = async (accountId) => {
  for (let n = 0; !stopping; n++) {
    await ask(pay + "/v1/payouts", { accountId, amountMinor: "100", currency: "EUR", beneficiary: "NL00TEST0000000001" }, accountId + "-" + n)
    seen.ordered++
    await sleep(400)
  }
}
const locks = async (n) => {
  const client = connect({ url: "http://lock-server:8080", ownerId: "callers-" + n })
  while (!stopping) {
    try {
      await client.withLock("replace:" + n, async (lock) => { await sleep(20); lock.checkStillHeld() })
      seen.locked++
    } catch (error) {
      // Both say: ask again later. A grant whose answer was lost stays until its lease ends.
      if (error.name === "LockUnavailableError" || error.name === "ContentionExceededError") seen.retriedLocks++
      else seen.wrong.push("lock: " + error.name + ": " + error.message)
      await sleep(50)
    }
  }
  await client.close()
}
process.stdout.write("ready\\n")
await Promise.all([...accounts.map(orders), ...[1, 2, 3].map(locks)])
// Everything that was ordered is paid in the end, each once.
const all = async () => {
  const items = []
  for (const accountId of accounts) {
    let next = ""
    do {
      const page = await ask(pay + "/v1/payouts?limit=500&accountId=" + accountId + next)
      items.push(...(page.items ?? []))
      next = page.next ? "&after=" + encodeURIComponent(page.next) : ""
    } while (next !== "")
  }
  return items
}
let items = []
for (let n = 0; n < 240; n++) {
  items = await all()
  if (items.length > 0 && items.every(({ state }) => state === "POSTED")) break
  await sleep(500)
}
const paid = new Map()
for (const { clientReference } of (await ask(rail + "/payments")).payments ?? []) paid.set(clientReference, (paid.get(clientReference) ?? 0) + 1)
const lost = items.filter(({ state }) => state !== "POSTED").map(({ payoutId, state }) => payoutId + " is " + state)
const notOnce = items.filter(({ clientReference }) => paid.get(clientReference) !== 1).map(({ payoutId, clientReference }) => payoutId + " was paid " + (paid.get(clientReference) ?? 0) + " times")
process.stdout.write(JSON.stringify({ ...seen, payouts: items.length, payments: paid.size, lost, notOnce }) + "\\n")
`

const startCallers = async () => {
  const child = spawn(
    "docker",
    [
      "run",
      "--rm",
      "-i",
      "--name",
      `${project}-callers`,
      "--network",
      `${project}_dlock`,
      "--entrypoint",
      "node",
      "dlock:local",
      "--input-type=module",
      "-e",
      callers
    ],
    { stdio: ["pipe", "pipe", "inherit"] }
  )
  // The rail is in a network of its own.
  let said = ""
  child.stdout.setEncoding("utf8").on("data", (text) => (said += text))
  const ended = new Promise((resolve) => child.once("exit", resolve))
  for (let n = 0; n < 600 && !said.includes("ready"); n++) {
    if (child.exitCode !== null) throw new Error(`the callers do not start: ${said}`)
    await sleep(100)
  }
  docker("network", "connect", `${project}_rail`, `${project}-callers`)
  return {
    finish: async () => {
      child.stdin.end()
      await ended
      return JSON.parse(said.split("\n").find((line) => line.startsWith("{")) ?? "{}")
    }
  }
}

// -----------------------------------------------------------------------------
// one replacement
// -----------------------------------------------------------------------------

const healthOf = (container) => docker("inspect", "--format", "{{.State.Status}} {{.State.Health.Status}}", container)

/** Answers the name of who serves now: the candidate, or, when it does not become healthy in time, the old one. */
const replace = async (service, old, { name, settings = {}, withinMillis }) => {
  const candidate = `${project}-${service}-${name}`
  const env = Object.entries(settings).flatMap(([key, value]) => ["--env", `${key}=${value}`])
  compose("run", "--detach", "--no-deps", "--use-aliases", "--pull=never", "--name", candidate, ...env, service)
  const deadline = performance.now() + withinMillis
  while (healthOf(candidate) !== "running healthy") {
    if (performance.now() > deadline || healthOf(candidate).startsWith("exited")) {
      docker("rm", "--force", candidate)
      say(`${service}: ${name} did not become healthy and is gone; ${old} serves as before (${healthOf(old)})`)
      return old
    }
    await sleep(200)
  }
  // SIGTERM: it takes nothing new, finishes what is under way, and ends.
  docker("stop", "--time", "45", old)
  say(
    `${service}: ${name} is healthy, ${old} was told to stop and ended with ${docker("inspect", "--format", "{{.State.ExitCode}}", old)}`
  )
  return candidate
}

const nameOf = (service) =>
  docker("inspect", "--format", "{{slice .Name 1}}", compose("ps", "--quiet", service).split("\n")[0])

const clean = () => {
  const ours = docker("ps", "--all", "--quiet", "--filter", `name=^/${project}-callers$`)
  if (ours !== "") docker("rm", "--force", ours)
}
process.on("exit", clean)
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => process.exit(130))

const load = await startCallers()
await sleep(2_000)
const findings = []
/** A version that can not work, taken away again; then one that can. */
const rollOut = async (service, broken) => {
  const first = nameOf(service)
  const undone = await replace(service, first, { name: "broken", settings: broken, withinMillis: 8_000 })
  if (undone !== first) findings.push(`${service}: a version that can not work took over`)
  const second = await replace(service, undone, { name: "next", withinMillis: 90_000 })
  if (second === undone) findings.push(`${service}: the next version did not become healthy`)
  if (docker("inspect", "--format", "{{.State.ExitCode}}", first) !== "0")
    findings.push(`${service}: the old one did not end in order`)
}
await Promise.all([
  rollOut("lock-server", { LOCK_PG_URL: "postgres://dlock_lock_server:wrong@lockdb:5432/lockdb" }),
  rollOut("payment-resource", { PAYMENT_PG_URL: "postgres://dlock_payment:wrong@paydb:5432/paydb" })
])
await sleep(2_000)
const seen = await load.finish()
say(
  `${seen.ordered} orders and ${seen.locked} locks; ${seen.retried} calls and ${seen.retriedLocks} locks were asked for again; ` +
    `${seen.payouts} payouts, ${seen.payments} payments`
)
findings.push(...(seen.wrong ?? ["the callers told nothing"]), ...(seen.lost ?? []), ...(seen.notOnce ?? []))
if (seen.payouts !== seen.ordered) findings.push(`${seen.ordered} were ordered, there are ${seen.payouts}`)
if (!(seen.ordered > 0 && seen.locked > 0)) findings.push("there was no load")
for (const finding of findings) process.stdout.write(`FOUND   ${finding}\n`)
if (findings.length > 0) process.exitCode = 5
