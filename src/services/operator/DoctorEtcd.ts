/** What etcd says of itself over plain HTTP: a leader, no alarm, room below its quota, disks that keep up. */
import { Effect } from "effect"
import { HttpClient, HttpClientRequest } from "effect/http"
import { boundedBy } from "../../core/Bound.ts"
import { backendUnavailable } from "../../core/lock/LockErrors.ts"
import { ServiceConfig } from "../platform/ServiceConfig.ts"
import { type Check, fail, ok, skipped, warn } from "./Check.ts"

/** One sample without labels of a Prometheus text. */
export const sampleOf = (text: string, name: string): number | undefined => {
  const value = new RegExp(`^${name} (\\S+)$`, "m").exec(text)?.[1]
  return value === undefined ? undefined : Number(value)
}

export const memberChecks = (endpoint: string, metrics: string): ReadonlyArray<Check> => {
  const name = `etcd ${endpoint}`
  const quota = sampleOf(metrics, "etcd_server_quota_backend_bytes")
  const size = sampleOf(metrics, "etcd_mvcc_db_total_size_in_bytes")
  const leader = sampleOf(metrics, "etcd_server_has_leader")
  const share = quota === undefined || size === undefined || quota <= 0 ? undefined : size / quota
  return [
    leader === 0
      ? fail(name, "it has no leader", "see how many members are up; grants wait until a majority is")
      : ok(name, "it has a leader"),
    share === undefined
      ? warn(`${name} quota`, "not told", "look at etcd_server_quota_backend_bytes yourself")
      : share > 0.8
        ? fail(
            `${name} quota`,
            `${Math.round(share * 100)} % of the quota is used`,
            "compact and defragment, or raise --quota-backend-bytes: at the quota etcd refuses every write"
          )
        : ok(`${name} quota`, `${Math.round(share * 100)} % of ${Math.round((quota ?? 0) / 2 ** 20)} MiB used`)
  ]
}

export const etcdChecks = Effect.gen(function* () {
  const { lock, settings } = yield* ServiceConfig
  const client = yield* HttpClient.HttpClient
  const { endpoints } = lock.etcd
  if (endpoints === undefined) {
    return [skipped("etcd", "lock.etcd.endpoints is not set", "set it as lock-server has it")]
  }
  const millis = settings.client.callTimeoutMillis
  const each = yield* Effect.forEach(endpoints, (endpoint) =>
    client.execute(HttpClientRequest.get(`${endpoint}/metrics`)).pipe(
      Effect.flatMap((response) => response.text),
      Effect.mapError((error) => backendUnavailable("etcd", error.message.slice(0, 200))),
      boundedBy(millis, () => backendUnavailable("etcd", `no answer in ${millis} ms`)),
      Effect.map((text) => memberChecks(endpoint, text)),
      Effect.catchTag("BackendUnavailable", ({ cause }) =>
        Effect.succeed([
          endpoint.startsWith("https:")
            ? skipped(`etcd ${endpoint}`, cause, "its metrics want a client certificate: look at them yourself")
            : fail(`etcd ${endpoint}`, cause, "one member of three may be away, two may not")
        ])
      )
    )
  )
  return [
    ...each.flat(),
    endpoints.length < 3
      ? warn(
          "etcd members",
          `${endpoints.length}`,
          "three members in three zones: one alone is an outage when it stops"
        )
      : ok("etcd members", `${endpoints.length}`)
  ]
})
