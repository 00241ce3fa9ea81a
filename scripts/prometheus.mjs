/**
 * Prometheus and promtool: the ones of this machine, else Debian's (downloaded once to `.dlock/promtool`, as any user).
 * `DLOCK_PROMTOOL` and `DLOCK_PROMETHEUS` name other binaries.
 */
import { spawnSync } from "node:child_process"
import { existsSync, mkdirSync } from "node:fs"
import { delimiter, join } from "node:path"
import { fileURLToPath } from "node:url"
import { downloadScript } from "../src/services/platform/DebianPackage.ts"

const root = fileURLToPath(new URL("../", import.meta.url))

const runs = (binary) => spawnSync(binary, ["--version"], { stdio: "ignore" }).status === 0

/** Of Debian 12: in later releases the binaries want a newer libc. */
const prometheus = { suite: "bookworm", name: "prometheus", binaries: ["promtool", "prometheus"] }

/** `promtool` or `prometheus`: where to run it from. */
export const tool = (name) => {
  const setting = `DLOCK_${name.toUpperCase()}`
  const named = process.env[setting]
  if (named !== undefined && named !== "") {
    if (runs(named)) return named
    process.stderr.write(`${setting} is ${named}, which does not run as ${name}: correct or unset it\n`)
    process.exit(2)
  }
  const cache = join(root, ".dlock/promtool")
  const installed = join(cache, name)
  for (const candidate of [
    ...(process.env["PATH"] ?? "").split(delimiter).map((directory) => join(directory, name)),
    installed
  ]) {
    if (existsSync(candidate) && runs(candidate)) return candidate
  }
  process.stderr.write(`no ${name} here: downloading Debian's to .dlock/promtool ...\n`)
  mkdirSync(cache, { recursive: true })
  const { stderr, status } = spawnSync("/bin/sh", ["-c", downloadScript(prometheus), "sh", cache], {
    encoding: "utf8",
    timeout: 300_000
  })
  if (status === 0 && runs(installed)) return installed
  process.stderr.write(
    `it could not be downloaded (${stderr?.trim().split("\n").at(-1) ?? "no shell"}).\n` +
      `Either install Prometheus and have ${name} on the PATH, or name the binary in ${setting}, ` +
      `or put it at ${installed} (it can be copied out of a container image).\n`
  )
  process.exit(6)
}
