/**
 * Prometheus and promtool: the ones of this machine, else Debian's (downloaded once to `.dlock/promtool`, as any user).
 * `DLOCK_PROMTOOL` and `DLOCK_PROMETHEUS` name other binaries.
 */
import { spawnSync } from "node:child_process"
import { existsSync, mkdirSync } from "node:fs"
import { delimiter, join } from "node:path"
import { fileURLToPath } from "node:url"

const root = fileURLToPath(new URL("../", import.meta.url))

const runs = (binary) => spawnSync(binary, ["--version"], { stdio: "ignore" }).status === 0

/**
 * Of Debian 12, whatever this machine runs: in later releases the binary wants a newer libc. An apt state of its own, so
 * that nothing of the machine's is touched and no root is needed.
 */
const downloadScript = `
set -eu
cache=$1
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || { echo "this machine has no apt" >&2; exit 3; }
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
  awk '/^URIs:/{print $2} /^deb /{for (i = 2; i <= NF; i++) if ($i ~ /^https?:/) {print $i; break}}' |
  grep -E '/debian/?$' | head -n 1)
[ -n "$mirror" ] || { echo "no Debian mirror is configured on this machine" >&2; exit 3; }
staging=$(mktemp -d "$cache/staging.XXXXXX")
trap 'rm -rf -- "$staging"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "$staging/lists/partial" "$staging/cache/archives/partial" "$staging/files"
printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s bookworm main\\n' "$mirror" >"$staging/sources.list"
cd "$staging"
apt() {
  apt-get -qq -o Dir::Etc::sourcelist="$staging/sources.list" -o Dir::Etc::sourceparts=- \\
    -o Dir::State::lists="$staging/lists" -o Dir::Cache="$staging/cache" -o Dir::State::status=/dev/null \\
    -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none -o Acquire::Retries=3 "$@"
}
apt update
apt download prometheus
dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x -C "$staging/files" ./usr/bin/promtool ./usr/bin/prometheus
for binary in promtool prometheus; do
  chmod 755 "$staging/files/usr/bin/$binary"
  mv -f "$staging/files/usr/bin/$binary" "$cache/$binary"
done
`

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
  const { stderr, status } = spawnSync("/bin/sh", ["-c", downloadScript, "sh", cache], {
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
