#!/bin/bash
# The entrypoint of the PostgreSQL stand-in (bases.sh): the parts of the official image's that compose.yaml and
# testcontainers rely on. Makes a cluster when the data directory is empty, runs what is in /docker-entrypoint-initdb.d,
# then becomes the server.
set -Eeuo pipefail
: "${POSTGRES_USER:=postgres}" "${PGDATA:=/var/lib/postgresql/data}"
: "${POSTGRES_DB:=$POSTGRES_USER}"

case ${1:-} in -*) set -- postgres "$@" ;; esac
if [ "$1" != postgres ]; then exec "$@"; fi

if [ "$(id -u)" = 0 ]; then
  mkdir -p "$PGDATA"
  chown -R 999:999 "$PGDATA" /var/run/postgresql
  chmod 700 "$PGDATA"
  exec setpriv --reuid=999 --regid=999 --clear-groups "$0" "$@"
fi

if [ ! -s "$PGDATA/PG_VERSION" ]; then
  : "${POSTGRES_PASSWORD:?must be set for a new cluster}"
  initdb -D "$PGDATA" -U "$POSTGRES_USER" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") \
    --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8 >/dev/null
  echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
  # Its log stays on stdout: who counts the lines "ready to accept connections" waits for the second one.
  pg_ctl -D "$PGDATA" -w start -o "-c listen_addresses=''"
  export PGUSER=$POSTGRES_USER PGHOST=/var/run/postgresql
  [ "$POSTGRES_DB" = postgres ] || psql -v ON_ERROR_STOP=1 -q -d postgres -c "CREATE DATABASE \"$POSTGRES_DB\""
  export PGDATABASE=$POSTGRES_DB
  for script in /docker-entrypoint-initdb.d/*; do
    case $script in
      *.sh) . "$script" ;;
      *.sql) psql -v ON_ERROR_STOP=1 -X -q -f "$script" ;;
    esac
  done
  unset PGUSER PGHOST PGDATABASE
  pg_ctl -D "$PGDATA" -m fast -w stop >/dev/null
  echo "PostgreSQL init process complete; ready for start up."
fi
exec "$@"
