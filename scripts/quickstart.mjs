/**
 * The README's "A lock of your own in ten minutes", done: a fresh clone of this repository, the commands and the program as
 * they stand on the page, and how long it took.
 *
 *     node scripts/quickstart.mjs [--keep]
 *
 * Runs on the Node that the reader has (20 or newer). Exit code 5 when it prints something else than the README says, or
 * takes longer than ten minutes; 6 when port 8080 or 9080 is taken. What it made is removed.
 */
import { spawn, spawnSync } from "node:child_process"
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { connect } from "node:net"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"

const root = fileURLToPath(new URL("../", import.meta.url))
const LIMIT_MILLIS = 10 * 60 * 1_000

const fail = (code, message) => {
  process.stderr.write(`${message}\n`)
  process.exit(code)
}

const isOpen = (port) =>
  new Promise((resolve) => {
    const socket = connect({ host: "127.0.0.1", port }, () => {
      socket.destroy()
      resolve(true)
    })
    socket.once("error", () => resolve(false))
  })

/** The three blocks of the section, and what it says is printed. */
const stepsOf = (readme) => {
  const section = /## A lock of your own in ten minutes\n([\s\S]*?)\n## /.exec(readme)?.[1]
  if (section === undefined) fail(5, "the README has no such section any more")
  const shell = [...section.matchAll(/```sh\n([\s\S]*?)```/g)].map(([, block]) => block)
  const program = /```js\n([\s\S]*?)```/.exec(section)?.[1]
  const prints = /It prints `([^`]+)`/.exec(section)?.[1]
  const file = /put this into `([^`]+)`/.exec(section)?.[1]
  if (shell.length !== 2 || program === undefined || prints === undefined || file === undefined) {
    fail(5, "the section has not the blocks that this script runs")
  }
  return { first: shell[0], second: shell[1], program, prints, file }
}

for (const port of [8080, 9080]) if (await isOpen(port)) fail(6, `port ${port} is taken: the README's commands need it`)

const directory = mkdtempSync(join(tmpdir(), "dlock-quickstart-"))
// As root PostgreSQL runs as another user, who must get in.
chmodSync(directory, 0o755)
const clone = join(directory, "dlock")
const started = Date.now()
const said = (text) => process.stdout.write(`${((Date.now() - started) / 1_000).toFixed(0).padStart(4)} s  ${text}\n`)
let server
const clean = () => {
  // The whole group: the service and the database that it started.
  if (server?.pid !== undefined && server.exitCode === null) process.kill(-server.pid, "SIGTERM")
  if (!process.argv.includes("--keep"))
    rmSync(directory, { recursive: true, force: true, maxRetries: 10, retryDelay: 300 })
}
process.once("SIGINT", () => (clean(), process.exit(130)))
process.once("SIGTERM", () => (clean(), process.exit(143)))

const sh = (script, options = {}) => {
  const { status, stderr, stdout } = spawnSync("/bin/sh", ["-euc", script], {
    cwd: clone,
    encoding: "utf8",
    ...options
  })
  if (status !== 0) {
    clean()
    fail(5, `this did not work:\n${script}\n${stdout ?? ""}${stderr ?? ""}`)
  }
  return stdout
}

sh(`git clone -q '${root}' '${clone}'`, { cwd: directory })
said("cloned")
const { file, first, prints, program, second } = stepsOf(readFileSync(join(clone, "README.md"), "utf8"))
// A reader's first terminal: everything up to the service, which stays.
server = spawn("/bin/sh", ["-euc", first], { cwd: clone, detached: true, stdio: ["ignore", "pipe", "inherit"] })
let lastWords = ""
server.stdout.setEncoding("utf8").on("data", (text) => (lastWords = (lastWords + text).slice(-3_000)))
while (!(await isOpen(8080))) {
  if (server.exitCode !== null) {
    clean()
    fail(5, `the first block ended before lock-server listened:\n${lastWords}`)
  }
  if (Date.now() - started > LIMIT_MILLIS) {
    clean()
    fail(5, "ten minutes are over and lock-server does not listen")
  }
  await new Promise((resolve) => setTimeout(resolve, 200))
}
said("lock-server listens")
writeFileSync(join(clone, file), program)
const output = sh(second)
process.stdout.write(output.replaceAll(/^/gm, "        "))
const tookMillis = Date.now() - started
said("a lock was held by the program on the page")
const stopped = new Promise((resolve) => server.once("exit", resolve))
clean()
await stopped
if (!output.includes(prints)) fail(5, `it did not print: ${prints}`)
if (!/greeting:world +no +1 +hello/.test(output)) fail(5, "the list does not show the lock")
if (tookMillis > LIMIT_MILLIS) fail(5, "it took longer than ten minutes")
