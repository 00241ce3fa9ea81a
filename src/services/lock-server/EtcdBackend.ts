// @effect-diagnostics nodeBuiltinImport:off
/**
 * The etcd that lock-server uses: the one its settings name, or, on a developer's machine, one that starts by itself.
 */
import { Effect, Layer, Option, Schema, type Scope } from "effect"
import * as fs from "node:fs"
import * as path from "node:path"
import type { LockStore } from "../../core/lock/LockStore.ts"
import * as EmbeddedEtcd from "../platform/EmbeddedEtcd.ts"
import * as Pid from "../platform/Pid.ts"
import { type ConfigProblem, configProblem, ServiceConfig } from "../platform/ServiceConfig.ts"
import { readTls } from "../platform/TlsFiles.ts"
import type { EtcdTooOld } from "./EtcdClient.ts"
import * as EtcdLockStore from "./EtcdLockStore.ts"

export const layer: Layer.Layer<LockStore, ConfigProblem | EmbeddedEtcd.EmbeddedEtcdError | EtcdTooOld, ServiceConfig> =
  Layer.unwrap(
    Effect.gen(function* () {
      const { lock, settings } = yield* ServiceConfig
      const { allowOld, password, tls, username } = lock.etcd
      return EtcdLockStore.layer({
        endpoints: yield* endpoints,
        username,
        password,
        tls: yield* readTls("lock.etcd.tls", tls),
        allowOld,
        timeoutMillis: settings.lock.backendTimeoutMillis
      })
    })
  )

/**
 * Without a setting and with `dlock.env` local, an embedded etcd keeps its data under `.dlock/` of the working directory,
 * for this process and every other that is started there; it ends with the process that started it.
 */
const endpoints = Effect.gen(function* () {
  const { env, lock } = yield* ServiceConfig
  if (lock.etcd.endpoints !== undefined) return lock.etcd.endpoints
  if (env !== "local") {
    return yield* configProblem(
      "lock.etcd.endpoints",
      "not set",
      "http:// or https:// URLs, separated by commas (only while dlock.env is local an etcd starts by itself)"
    )
  }
  const directory = path.resolve(".dlock", "lock-etcd")
  const endpoint = yield* sharedEndpoint(directory)
  yield* Effect.logInfo("no etcd is configured: using an embedded one").pipe(
    Effect.annotateLogs({ event: "embedded_etcd", directory, endpoint, setting: "lock.etcd.endpoints" })
  )
  return [endpoint]
})

/**
 * Two instances may start at once: who writes the note starts the server, the other one waits for its endpoint. The
 * note of a process that is gone counts for nothing.
 */
const sharedEndpoint = (directory: string): Effect.Effect<string, EmbeddedEtcd.EmbeddedEtcdError, Scope.Scope> =>
  Effect.suspend(() => {
    fs.mkdirSync(directory, { recursive: true, mode: 0o700 })
    const file = path.join(directory, "server.json")
    if (claim(file)) {
      return Effect.addFinalizer(() => Effect.sync(() => fs.rmSync(file, { force: true }))).pipe(
        Effect.andThen(EmbeddedEtcd.start({ storage: { kind: "persistent", directory } })),
        Effect.tap(({ endpoint }) =>
          Effect.sync(() => fs.writeFileSync(file, JSON.stringify({ owner: process.pid, endpoint })))
        ),
        Effect.map(({ endpoint }) => endpoint)
      )
    }
    const note = readNote(file)
    if (note !== undefined && Pid.isAlive(note.owner)) {
      return note.endpoint === undefined
        ? Effect.delay(sharedEndpoint(directory), "200 millis")
        : Effect.succeed(note.endpoint)
    }
    fs.rmSync(file, { force: true })
    return Effect.delay(sharedEndpoint(directory), "50 millis")
  })

const claim = (file: string) => {
  try {
    fs.writeFileSync(file, JSON.stringify({ owner: process.pid }), { flag: "wx", mode: 0o600 })
    return true
  } catch {
    return false
  }
}

const Note = Schema.fromJsonString(Schema.Struct({ owner: Schema.Int, endpoint: Schema.optionalKey(Schema.String) }))
const decodeNote = Schema.decodeUnknownOption(Note)

const readNote = (file: string) => {
  try {
    return Option.getOrUndefined(decodeNote(fs.readFileSync(file, "utf8")))
  } catch {
    return undefined
  }
}
