/** Programs out of Debian's packages, for machines that have its apt: fetched as any user, into a directory of ours. */

export interface DebianPackage {
  /** Whatever this machine runs. Programs in Go run on older systems too; those in C want the libc of their own suite. */
  readonly suite: string
  readonly name: string
  /** Of its `/usr/bin`. */
  readonly binaries: ReadonlyArray<string>
}

/**
 * For /bin/sh, with the directory as its argument. An apt state of its own, so that nothing of the machine's is touched and
 * no root is needed; what arrives half stays under another name. The last line of its stderr says what is missing.
 */
export const downloadScript = ({ binaries, name, suite }: DebianPackage): string => `
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
printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s ${suite} main\\n' "$mirror" >"$staging/sources.list"
cd "$staging"
apt() {
  apt-get -qq -o Dir::Etc::sourcelist="$staging/sources.list" -o Dir::Etc::sourceparts=- \\
    -o Dir::State::lists="$staging/lists" -o Dir::Cache="$staging/cache" -o Dir::State::status=/dev/null \\
    -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none -o Acquire::Retries=3 "$@"
}
apt update
apt download ${name}
for binary in ${binaries.join(" ")}; do
  dpkg-deb --fsys-tarfile ${name}_*.deb | tar -x -C "$staging/files" "./usr/bin/$binary"
  chmod 755 "$staging/files/usr/bin/$binary"
  mv -f "$staging/files/usr/bin/$binary" "$cache/$binary"
done
`
