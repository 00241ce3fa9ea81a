#!/usr/bin/env bash
# Sourced by scripts here: packages of any Debian suite, unpacked into a directory.
#
#     unpack SUITE DIRECTORY PACKAGE...      (into DIRECTORY/files; $work holds the state of apt)
#
# An apt state of its own: nothing of the machine's is touched and no root is needed. Programs in Go run anywhere; C
# programs must come from the oldest suite that they are to run on.
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
  awk '/^URIs:/{print $2} /^deb /{for (i = 2; i <= NF; i++) if ($i ~ /^https?:/) {print $i; break}}' |
  grep -E '/debian/?$' | head -n 1 || true)
[ -n "$mirror" ] || { echo "no Debian mirror is configured on this machine" >&2; exit 3; }

unpack() {
  local suite=$1 into=$2
  shift 2
  local options=(-qq -o Dir::Etc::sourceparts=- -o "Dir::Etc::sourcelist=$work/apt-$suite/sources.list"
    -o "Dir::State::lists=$work/apt-$suite/lists" -o "Dir::Cache=$work/apt-$suite/cache" -o Dir::State::status=/dev/null
    -o "APT::Sandbox::User=$(id -un)" -o Debug::NoLocking=1 -o Acquire::Languages=none -o Acquire::Retries=3)
  if [ ! -f "$work/apt-$suite/ready" ]; then
    mkdir -p "$work/apt-$suite/lists/partial" "$work/apt-$suite/cache/archives/partial"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$mirror" "$suite" \
      >"$work/apt-$suite/sources.list"
    apt-get "${options[@]}" update
    touch "$work/apt-$suite/ready"
  fi
  rm -rf "$into"
  mkdir -p "$into/packages" "$into/files"
  (cd "$into/packages" && apt-get "${options[@]}" download "$@")
  local package
  for package in "$into"/packages/*.deb; do dpkg-deb -x "$package" "$into/files"; done
  rm -rf "$into/packages"
}
