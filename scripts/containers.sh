#!/usr/bin/env bash
# The container stage: the image is built, the compose stack comes up and goes away, and use cases hold and corrupt on it.
#
#     scripts/containers.sh            needs bash, apt and root where Docker is not there yet; leaves nothing running
#     scripts/containers.sh all        also a rollout under load, UC-03 unfenced on etcd, all of UC-03 and UC-04, store laws
#
# Where Docker can not run it fails and says so; DLOCK_SKIP_CONTAINERS=1 lets it pass instead, and says so as well.
# DLOCK_IMAGE_IN_DOCKER=1 compiles and installs inside the build too, as on a machine that has nothing but Docker; by default
# what this checkout has already compiled is taken.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/node_modules/.bin:$PATH
all=
[ "${1:-}" = all ] && all=1
report=.dlock/containers
mkdir -p "$report"
started=$SECONDS

say() { printf '%4ss  %s\n' "$((SECONDS - started))" "$*"; }
give_up() {
  if [ "${DLOCK_SKIP_CONTAINERS:-}" = 1 ]; then
    echo "containers: SKIPPED (DLOCK_SKIP_CONTAINERS=1): $*"
    exit 0
  fi
  echo "containers: FAILED: $*" >&2
  echo "containers: set DLOCK_SKIP_CONTAINERS=1 to pass without them" >&2
  exit 1
}

# --- Docker ---
daemon=
project=dlock-stage-$$
clean() {
  local code=$?
  if docker info >/dev/null 2>&1; then
    docker ps -aq --filter label=org.testcontainers=true | xargs -r docker rm -f -v >/dev/null 2>&1 || true
    docker compose -p "$project" --profile '*' down --volumes --remove-orphans --timeout 5 >/dev/null 2>&1 || true
  fi
  if [ -n "$daemon" ]; then
    kill "$daemon" 2>/dev/null || true
    for _ in $(seq 100); do kill -0 "$daemon" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$daemon" 2>/dev/null || true
  fi
  say "cleaned up"
  exit $code
}
trap clean EXIT
trap 'exit 130' INT TERM HUP

if ! docker info >/dev/null 2>&1; then
  [ "$(id -u)" = 0 ] || give_up "no Docker answers, and only root can start one"
  if ! command -v dockerd >/dev/null || ! command -v iptables >/dev/null; then
    command -v apt-get >/dev/null || give_up "no dockerd, and no apt to install it with"
    say "installing Docker"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends docker.io iptables; } >"$report/apt.log" 2>&1 ||
      give_up "Docker can not be installed ($report/apt.log)"
  fi
  setsid dockerd >"$report/dockerd.log" 2>&1 &
  daemon=$!
  for _ in $(seq 300); do
    docker info >/dev/null 2>&1 && break
    kill -0 "$daemon" 2>/dev/null || { daemon=; give_up "dockerd does not start here ($report/dockerd.log)"; }
    sleep 0.1
  done
  docker info >/dev/null 2>&1 || give_up "dockerd does not answer ($report/dockerd.log)"
fi
if ! docker compose version >/dev/null 2>&1 || ! docker buildx version >/dev/null 2>&1; then
  DOCKER_CONFIG=$(infra/docker/plugins.sh) || give_up "no compose plugin, and Debian's can not be had"
  export DOCKER_CONFIG
fi
say "Docker $(docker version --format '{{.Server.Version}}'), compose $(docker compose version --short)"

# --- images ---
export DLOCK_ETCD_IMAGE=${DLOCK_ETCD_IMAGE:-quay.io/coreos/etcd:v3.5.30}
modules=.dlock/image
install_modules() {
  mkdir -p $modules
  if ! cmp -s package-lock.json $modules/package-lock.json || [ ! -f $modules/installed ]; then
    rm -rf $modules/installed
    cp package.json package-lock.json .npmrc $modules/
    (cd $modules && npm ci --ignore-scripts --omit=dev --omit=optional --prefer-offline --no-audit --no-fund)
    touch $modules/installed
  fi
}
# The base images take Node and PostgreSQL from the packages.
node scripts/bootstrap.mjs
# What bash remembers of `node` is the system's; from here on it is the one that was just installed.
hash -r
if [ "${DLOCK_IMAGE_IN_DOCKER:-}" != 1 ]; then
  install_modules >"$report/modules.log" 2>&1 &
  installing=$!
fi
infra/docker/bases.sh
say "base images"
arguments=()
if [ "${DLOCK_IMAGE_IN_DOCKER:-}" != 1 ]; then
  wait $installing || { cat "$report/modules.log" >&2; exit 1; }
  tar --transform 's,^,app/,' --owner=0 --group=0 -c dist | docker import - dlock-compiled:local >/dev/null
  tar -C $modules --transform 's,^,app/,' --owner=0 --group=0 -c node_modules | docker import - dlock-modules:local >/dev/null
  arguments=(--build-arg COMPILED=dlock-compiled:local --build-arg MODULES=dlock-modules:local)
fi
docker build --quiet --file infra/docker/Dockerfile --tag dlock:local "${arguments[@]}" . >"$report/image.txt"
say "dlock:local, $(docker image inspect dlock:local --format '{{.Size}}' | awk '{printf "%.0f MB", $1 / 1e6}')"

# --- the stack comes up healthy, works, is replaced while it works, and leaves nothing ---
nothing_left() {
  local left
  left=$(docker ps -aq --filter "label=com.docker.compose.project=$project" &&
    docker volume ls -q --filter "label=com.docker.compose.project=$project" &&
    docker network ls -q --filter "label=com.docker.compose.project=$project")
  [ -z "$left" ] || { echo "containers: FAILED: left behind: $left" >&2; exit 1; }
}
# Ports that nobody else has: a developer's own stack may be up.
for port in LOCKDB PAYDB ETCD LOCK LOCK_MANAGEMENT PAYMENT PAYMENT_MANAGEMENT RAIL_PROXY RAIL_PROXY_MANAGEMENT RAIL RAIL_MANAGEMENT PROMETHEUS; do
  number=$((${number:-27000} + 1))
  export "DLOCK_${port}_PORT=$number"
done
for profile in pg etcd; do
  since=$SECONDS
  docker compose -p "$project" --profile $profile up --detach --wait --pull never --quiet-pull >"$report/up-$profile.log" 2>&1 ||
    { cat "$report/up-$profile.log" >&2; docker compose -p "$project" --profile $profile logs --tail 20 >&2; exit 1; }
  took=$((SECONDS - since))
  say "$profile: up and healthy in $took s"
  [ $took -le "${DLOCK_UP_SECONDS:-60}" ] || { echo "containers: FAILED: it must be up within ${DLOCK_UP_SECONDS:-60} s" >&2; exit 1; }
  if [ -n "$all" ] && [ $profile = pg ]; then
    docker compose -p "$project" --profile pg --profile observability up --detach --wait --pull never --no-recreate prometheus \
      >"$report/up-prometheus.log" 2>&1 || { cat "$report/up-prometheus.log" >&2; exit 1; }
    node scripts/replace.mjs "$project"
    say "$profile: replaced under load"
  fi
  docker compose -p "$project" --profile '*' down --volumes --remove-orphans >"$report/down-$profile.log" 2>&1
  nothing_left
  say "$profile: down, nothing left"
done

# --- the use cases ---
run() { # name of the report, and what `scenario run` is told; several are run in one world
  local name=$1
  shift
  node dist/main.js scenario run "$@" --target compose --report "$report/$name" >"$report/$name.txt" 2>"$report/$name.log" ||
    { tail -40 "$report/$name.log" >&2; exit 1; }
  say "$name: as expected"
}
unfenced() { run "unfenced-$1" uc-03 --backend "$1" --payment-fencing off --rail-fencing off; }
unfenced pg
if [ -n "$all" ]; then
  unfenced etcd
  run etcd uc-03 --backend etcd
  run pg uc-01 uc-03 uc-04 --backend pg
  DLOCK_TESTCONTAINERS=1 TESTCONTAINERS_RYUK_DISABLED=true vitest run test/laws/ContainerStores.test.ts >"$report/laws.txt" 2>&1 ||
    { tail -30 "$report/laws.txt" >&2; exit 1; }
  say "the laws of a lock store hold on the PostgreSQL image"
else
  run etcd "uc-03 stale" --backend etcd
  run pg uc-01 "uc-03 stale" "uc-04 in the call" --backend pg
fi
[ -z "$(docker ps -aq --filter name=dlock-lab-)" ] || { echo "containers: FAILED: participants are left" >&2; exit 1; }
say "done"
