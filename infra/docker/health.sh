#!/bin/bash
# Succeeds when the service of this container is ready. Without a process of Node: it runs every few seconds.
set -eu
exec 3<>"/dev/tcp/127.0.0.1/${MANAGEMENT_PORT:?}"
printf 'GET /actuator/health/readiness HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3
read -r -t 3 status <&3
[[ $status == *" 200 "* ]]
