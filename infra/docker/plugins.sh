#!/usr/bin/env bash
# Puts Docker's compose (v2) and buildx plugins of Debian into a configuration directory of their own, and prints it:
#
#     export DOCKER_CONFIG=$(infra/docker/plugins.sh [WORKDIR])
#
# Only for machines that have neither; the directory holds no credentials.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=${1:-$root/.dlock/docker}
mkdir -p "$work"
plugins=$work/config/cli-plugins
if [ ! -x "$plugins/docker-compose" ] || [ ! -x "$plugins/docker-buildx" ]; then
  . "$root/infra/docker/debian.sh"
  unpack forky "$work/plugins" docker-compose docker-buildx >&2
  mkdir -p "$plugins"
  ln -sf "$work"/plugins/files/usr/libexec/docker/cli-plugins/docker-{compose,buildx} "$plugins/"
fi
echo "$work/config"
