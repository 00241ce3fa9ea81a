// @effect-diagnostics nodeBuiltinImport:off
/**
 * The first minutes with the lock service: started in an empty directory with nothing configured, asked with curl as the
 * documentation has it, stopped, and started again on what it kept.
 */
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { execFile, execFileSync } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import { emptyDirectory, openPorts, portsOf, processesOf, run } from "../support/leftovers.ts"
import { waitUntil } from "../support/waitUntil.ts"

const hasCurl = (() => {
  try {
    execFileSync("curl", ["--version"])
    return true
  } catch {
    return false
  }
})()

/** The words of a command line, quotes taken off. */
const words = (line: string) =>
  [...line.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, bare]) => quoted ?? bare ?? "").slice(1)

/** Runs a line of curl; without curl, what it would have sent and shown. Answers what it prints. */
const curl = (line: string) =>
  Effect.promise((signal) => {
    const args = words(line)
    if (hasCurl) {
      return new Promise<string>((resolve, reject) => {
        execFile("curl", args, { signal, timeout: 20_000, env: { PATH: process.env["PATH"] } }, (failure, stdout) =>
          failure === null ? resolve(stdout) : reject(failure)
        )
      })
    }
    const headers = args.flatMap((arg, i) => (args[i - 1] === "-H" ? [arg.split(": ") as [string, string]] : []))
    const body = args.find((_, i) => args[i - 1] === "-d") ?? null
    const method = args.find((arg) => arg.startsWith("-X"))?.slice(2) ?? "GET"
    return fetch(`http://${args.at(-1)}`, { method, headers, body, signal }).then((response) =>
      response.text().then((text) => {
        const head = [...response.headers].map(([name, value]) => `${name}: ${value}\r\n`).join("")
        return args.includes("-i") ? `HTTP/1.1 ${response.status} \r\n${head}\r\n${text}` : text
      })
    )
  })

/** Status and body of what `curl -i` printed. */
const shown = (text: string) => {
  const [head = "", body = ""] = text.split("\r\n\r\n")
  return {
    status: Number(head.split(" ")[1]),
    contentType: /^content-type: (.*)$/im.exec(head)?.[1]?.trim(),
    // Every answer of the surface is an object.
    json: JSON.parse(body) as Readonly<Record<string, unknown>>
  }
}

/** The service as it starts by itself; only its ports are free ones, so that nothing of this machine is in its way. */
const lockServer = Effect.fnUntraced(function* (directory: string) {
  const server = yield* run(["lock-server"], {
    cwd: directory,
    environment: { HTTP_PORT: "0", MANAGEMENT_PORT: "0" }
  })
  const listening = () =>
    /"port":(\d+)/.exec(
      server
        .stdout()
        .split("\n")
        .find((one) => one.includes('"listening"')) ?? ""
    )
  yield* waitUntil(
    "the lock service listens",
    Effect.sync(() => {
      assert.isUndefined(server.exit(), server.stdout() + server.stderr())
      return listening() !== null
    }),
    "60 seconds"
  )
  const host = `localhost:${listening()?.[1]}`
  return {
    ...server,
    host,
    curl: (line: string) => curl(line.replace("localhost:8080", host)),
    stop: Effect.gen(function* () {
      const pids = processesOf(directory)
      const ports = portsOf(pids)
      // Service, management and database.
      assert.isAtLeast(ports.length, 3)
      server.child.kill("SIGTERM")
      yield* waitUntil(
        "it has ended",
        Effect.sync(() => server.exit() !== undefined),
        "30 seconds"
      )
      assert.strictEqual(server.exit(), 0, server.stderr())
      yield* waitUntil(
        "no process of it is left",
        Effect.sync(() => processesOf(directory).length === 0)
      )
      const open = openPorts()
      assert.deepStrictEqual(
        ports.filter((port) => open.has(port)),
        []
      )
    })
  }
})

describe.skipIf(process.platform !== "linux")("the lock service in an empty directory", () => {
  it.live(
    "answers curl as documented, ends with 0 leaving no process, and goes on from what it kept",
    () =>
      Effect.gen(function* () {
        const directory = yield* emptyDirectory(os.tmpdir())
        const first = yield* lockServer(directory)
        assert.include(first.stdout(), "embedded_database")
        assert.deepStrictEqual(fs.readdirSync(directory), [".dlock"])

        const opened = shown(
          yield* first.curl(
            `curl -i -XPOST -H 'X-Owner-Id: w1' -H 'Content-Type: application/json' -d '{"ttlMillis":15000}' localhost:8080/v1/sessions`
          )
        )
        assert.strictEqual(opened.status, 201)
        assert.match(String(opened.json["sessionId"]), /^\S+$/)
        const second = shown(
          yield* first.curl(
            `curl -i -XPOST -H 'X-Owner-Id: w2' -H 'Content-Type: application/json' -d '{"ttlMillis":15000}' localhost:8080/v1/sessions`
          )
        )

        const acquire = (owner: string, sessionId: unknown) =>
          `curl -i -XPOST -H 'X-Owner-Id: ${owner}' -H 'Content-Type: application/json' -d '{"sessionId":"${String(sessionId)}"}' localhost:8080/v1/locks/payout:acct-1/acquire`
        const granted = shown(yield* first.curl(acquire("w1", opened.json["sessionId"])))
        assert.strictEqual(granted.status, 200)
        const contended = shown(yield* first.curl(acquire("w2", second.json["sessionId"])))
        assert.deepInclude(contended, { status: 409, contentType: "application/json; charset=utf-8" })
        assert.deepInclude(contended.json, { code: "LOCK_CONTENDED", retrySafe: true })
        assert.strictEqual((contended.json["details"] as { holderOwnerId: string }).holderOwnerId, "w1")

        const invalid = shown(
          yield* first.curl(
            `curl -i -XDELETE -H 'X-Owner-Id: w1' -H 'X-Fencing-Token: abc' localhost:8080/v1/locks/payout:acct-1`
          )
        )
        assert.strictEqual(invalid.status, 400)
        assert.deepInclude(invalid.json, { code: "INVALID_TOKEN", retrySafe: false })

        const held = yield* first.curl(`curl -s localhost:8080/v1/locks/payout:acct-1`)
        assert.deepInclude(JSON.parse(held) as object, { held: true, holderOwnerId: "w1" })

        const metrics = yield* first.curl(`curl -s localhost:8080/actuator/prometheus`)
        assert.match(metrics, /^lock_acquire_seconds_count\{outcome="granted"\} 1$/m)
        assert.match(metrics, /^lock_acquire_seconds_count\{outcome="contended"\} 1$/m)
        yield* first.stop

        const again = yield* lockServer(directory)
        assert.notInclude(again.stdout(), "migration applied")
        const seen = yield* again.curl(`curl -s localhost:8080/v1/locks/payout:acct-1`)
        assert.strictEqual((JSON.parse(seen) as { key?: string }).key, "payout:acct-1", seen)
        const third = shown(
          yield* again.curl(
            `curl -i -XPOST -H 'X-Owner-Id: w3' -H 'Content-Type: application/json' -d '{"ttlMillis":15000}' localhost:8080/v1/sessions`
          )
        )
        const later = shown(
          yield* again.curl(acquire("w3", third.json["sessionId"]).replace("payout:acct-1", "payout:acct-2"))
        )
        assert.isTrue(BigInt(String(later.json["fencingToken"])) > BigInt(String(granted.json["fencingToken"])))
        yield* again.stop
      }).pipe(Effect.scoped),
    180_000
  )
})
