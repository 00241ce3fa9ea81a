#!/bin/bash
# Run once by a new PostgreSQL server: the roles of the services, with passwords. The migrations make them without, and
# leave alone the ones that are there. Sourced by the server's entrypoint.
for role in ${DLOCK_ROLES:?}; do
  psql -v ON_ERROR_STOP=1 -X -q -v role="$role" -v password="${DLOCK_ROLE_PASSWORD:?}" <<'END'
CREATE ROLE :"role" LOGIN PASSWORD :'password';
END
done
