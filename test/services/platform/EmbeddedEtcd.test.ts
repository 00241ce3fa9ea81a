import { assert, describe, it } from "@effect/vitest"
import { noop } from "cockatiel"
import { ConfigProvider, Effect, type Scope } from "effect"
import { Etcd3 } from "etcd3"
import { type ChildProcess, spawn } from "node:child_process"
import * as fs from "node:fs/promises"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import * as EmbeddedEtcd from "../../../src/services/platform/EmbeddedEtcd.ts"
import { waitUntil } from "../../support/waitUntil.ts"

const tempDirectory = Effect.acquireRelease(
  Effect.promise(() =>
    fs.mkdtemp(path.join(os.tmpdir(), "dlock-test-")).then((made) => fs.chmod(made, 0o1777).then(() => made))
  ),
  (made) => Effect.promise(() => fs.rm(made, { recursive: true, force: true, maxRetries: 5 }))
)

const isAlive = (pid: number | undefined) => {
  try {
    process.kill(pid ?? 0, 0)
    return true
  } catch {
    return false
  }
}

const client = (endpoint: string) =>
  Effect.acquireRelease(
    Effect.sync(() => new Etcd3({ hosts: endpoint, faultHandling: { global: noop, host: () => noop } })),
    (etcd) => Effect.sync(() => etcd.close())
  )

const get = (etcd: Etcd3, key: string) =>
  Effect.tryPromise(() => etcd.get(key).string()).pipe(Effect.orElseSucceed(() => "unanswered"))

const program = fileURLToPath(new URL("../../support/etcdProcess.ts", import.meta.url))

/** Runs `etcdProcess.ts`; answers when its server is up, fails with its output when it ends before. */
const serverProcess = (
  tmp: string,
  options?: { readonly program?: string; readonly path?: string; readonly uid?: number }
): Effect.Effect<{ readonly process: ChildProcess; readonly pid: number }, string, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() =>
      spawn(process.execPath, [options?.program ?? program], {
        // oxlint-disable-next-line node/no-process-env
        env: { ...process.env, TMPDIR: tmp, ...(options?.path === undefined ? {} : { PATH: options.path }) },
        stdio: ["ignore", "pipe", "pipe"],
        ...(options?.uid === undefined ? {} : { uid: options.uid, gid: options.uid })
      })
    ),
    (child) => Effect.sync(() => child.kill("SIGKILL"))
  ).pipe(
    Effect.flatMap((child) =>
      Effect.callback<{ readonly process: ChildProcess; readonly pid: number }, string>((resume) => {
        let output = ""
        const read = (text: Buffer) => {
          output += text.toString()
          const pid = /"pid":([0-9]+)/.exec(output)?.[1]
          if (pid !== undefined) resume(Effect.succeed({ process: child, pid: Number(pid) }))
        }
        child.stdout.on("data", read)
        child.stderr.on("data", read)
        child.once("close", () => resume(Effect.fail(output)))
      })
    )
  )

describe("EmbeddedEtcd", { timeout: 90_000 }, () => {
  it.live("data and ports survive kill and restart, and everything is gone with the scope", () =>
    Effect.gen(function* () {
      const { data, pid } = yield* Effect.scoped(
        Effect.gen(function* () {
          const server = yield* EmbeddedEtcd.start({ storage: { kind: "temporary" } })
          const etcd = yield* client(server.endpoint)
          yield* Effect.promise(() => etcd.put("kept").value("7"))
          const first = yield* server.pid
          const [, data] = /--data-dir=([^\0]+)/.exec(
            yield* Effect.promise(() => fs.readFile(`/proc/${first}/cmdline`, "utf8"))
          ) ?? ["", ""]
          yield* server.kill
          assert.isUndefined(yield* server.pid)
          assert.strictEqual(yield* get(etcd, "kept"), "unanswered")
          yield* server.restart
          assert.notStrictEqual(yield* server.pid, first)
          yield* waitUntil(
            "the value is back",
            Effect.map(get(etcd, "kept"), (value) => value === "7")
          )
          yield* server.stop
          yield* server.stop
          yield* server.restart
          return { data, pid: yield* server.pid }
        })
      )
      assert.isFalse(isAlive(pid))
      assert.isAbove(data.length, 0)
      assert.isFalse(
        yield* Effect.promise(() =>
          fs.access(data).then(
            () => true,
            () => false
          )
        )
      )
    })
  )

  it.live("a paused server answers nothing until it is resumed, and can be killed", () =>
    Effect.gen(function* () {
      const server = yield* EmbeddedEtcd.start({ storage: { kind: "temporary" } })
      const etcd = yield* client(server.endpoint)
      yield* Effect.promise(() => etcd.put("kept").value("7"))
      yield* server.pause
      const answer = yield* Effect.option(Effect.timeout(get(etcd, "kept"), "300 millis"))
      assert.strictEqual(answer._tag, "None")
      yield* server.resume
      yield* waitUntil(
        "the server answers",
        Effect.map(get(etcd, "kept"), (value) => value === "7")
      )
      yield* server.pause
      yield* server.kill
      assert.isUndefined(yield* server.pid)
    })
  )

  it.live("persistent data is there the next time", () =>
    Effect.gen(function* () {
      const directory = path.join(yield* tempDirectory, "etcd")
      const use = <A>(run: (etcd: Etcd3) => Promise<A>) =>
        EmbeddedEtcd.start({ storage: { kind: "persistent", directory } }).pipe(
          Effect.flatMap((server) => client(server.endpoint)),
          Effect.flatMap((etcd) => Effect.promise(() => run(etcd))),
          Effect.scoped
        )
      yield* use((etcd) => etcd.put("kept").value("7").exec())
      assert.strictEqual(yield* use((etcd) => etcd.get("kept").string()), "7")
    })
  )

  it.live("SIGTERM, SIGINT and SIGKILL to the process end etcd, also a paused one, and remove its data", () =>
    Effect.forEach(
      ["SIGTERM", "SIGINT", "SIGKILL"] as const,
      Effect.fnUntraced(function* (signal) {
        const tmp = yield* tempDirectory
        const server = yield* serverProcess(tmp)
        if (signal === "SIGKILL") process.kill(server.pid, "SIGSTOP")
        server.process.kill(signal)
        yield* waitUntil(
          `etcd has ended after ${signal}`,
          Effect.sync(() => !isAlive(server.pid))
        )
        yield* waitUntil(
          `no data is left after ${signal}`,
          Effect.map(
            Effect.promise(() => fs.readdir(tmp)),
            (names) => names.length === 0
          )
        )
      }),
      { concurrency: 3 }
    )
  )

  it.live("a port in use, and a flag that etcd does not know, fail with the reason", () =>
    Effect.gen(function* () {
      const { ports } = yield* EmbeddedEtcd.start({ storage: { kind: "temporary" }, fast: true })
      const taken = yield* Effect.flip(EmbeddedEtcd.start({ storage: { kind: "temporary" }, ports }))
      assert.include(taken.message, `port ${ports.client} is in use`)
      const unknown = yield* Effect.flip(
        EmbeddedEtcd.start({ storage: { kind: "temporary" }, flags: { "no-such-flag": "1" } })
      )
      assert.include(unknown.message, "no-such-flag")
    })
  )

  it.live("a binary that is named and does not run fails, it is not silently replaced", () =>
    Effect.gen(function* () {
      const provider = ConfigProvider.fromEnv({ env: { DLOCK_ETCD_BIN: "/no/such/etcd" } })
      const failed = yield* Effect.flip(
        Effect.provideService(EmbeddedEtcd.install, ConfigProvider.ConfigProvider, provider)
      )
      assert.strictEqual(failed.operation, "install")
      assert.include(failed.message, "/no/such/etcd")
    })
  )

  it.live("where there is none, an old one on the PATH is passed over and the failure names the choices", () =>
    Effect.gen(function* () {
      // A checkout of its own, so that the cache is empty, and a PATH with an etcd 3.4 but without apt.
      const tmp = yield* tempDirectory
      const root = fileURLToPath(new URL("../../..", import.meta.url))
      yield* Effect.promise(() =>
        Promise.all(
          ["src", "test/support", "bin", "tmp"].map((name) => fs.mkdir(path.join(tmp, name), { recursive: true }))
        )
          .then(() => fs.cp(path.join(root, "src"), path.join(tmp, "src"), { recursive: true }))
          .then(() => fs.cp(program, path.join(tmp, "test/support/etcdProcess.ts")))
          .then(() => fs.symlink(path.join(root, "node_modules"), path.join(tmp, "node_modules")))
          .then(() => fs.cp(path.join(root, "package.json"), path.join(tmp, "package.json")))
          .then(() =>
            fs.writeFile(path.join(tmp, "bin", "etcd"), "#!/bin/sh\necho 'etcd Version: 3.4.23'\n", { mode: 0o755 })
          )
          .then(() =>
            Promise.all(["cat", "grep", "head"].map((name) => fs.symlink(`/bin/${name}`, path.join(tmp, "bin", name))))
          )
      )
      const failed = yield* Effect.flip(
        serverProcess(path.join(tmp, "tmp"), {
          program: path.join(tmp, "test/support/etcdProcess.ts"),
          path: path.join(tmp, "bin")
        })
      )
      for (const choice of [
        "this machine has no apt",
        "PATH",
        "DLOCK_ETCD_BIN",
        ".dlock/etcd",
        "LOCK_ETCD_ENDPOINTS"
      ]) {
        assert.include(failed, choice)
      }
    })
  )
})
