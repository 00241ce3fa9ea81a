/**
 * Are the fences on? Each has two keys, the service's setting and the row in the database, and stands aside only when both
 * say so; so both are asked, and a disagreement is a finding as well.
 */
import { Effect } from "effect"
import { Actuator, type ServiceView } from "./Actuator.ts"

export interface FencePoint {
  readonly point: "resource" | "rail"
  readonly service: "payment-resource" | "rail-proxy"
  readonly setting: "on" | "OFF" | "unknown"
  readonly database: "on" | "OFF" | "unknown"
  /** True: an experiment has written to this database, and it can never serve production. */
  readonly unfencedRows: boolean | null
  readonly environment: string | null
  readonly verdict: "on" | "OFF" | "disagree" | "unknown"
  readonly cause: string | null
}

export const pointOf = (
  point: FencePoint["point"],
  service: FencePoint["service"],
  view: ServiceView | { readonly cause: string }
): FencePoint => {
  if ("cause" in view) {
    const unknown = { setting: "unknown", database: "unknown", verdict: "unknown" } as const
    return { point, service, ...unknown, unfencedRows: null, environment: null, cause: view.cause }
  }
  const setting = view.health.fencing
  const payDb = view.health.components["payDb"]
  const error = payDb?.details["error"]
  const told = payDb?.details["fencing"]
  const database =
    told === "on" || told === "OFF"
      ? told
      : error === "FencingDisagrees"
        ? setting === "on"
          ? "OFF"
          : "on"
        : "unknown"
  const unfenced = payDb?.details["unfencedRows"]
  return {
    point,
    service,
    setting,
    database,
    unfencedRows: typeof unfenced === "boolean" ? unfenced : error === "UnfencedRows" ? true : null,
    environment: view.info.environment,
    verdict:
      database === "unknown" ? (setting === "OFF" ? "OFF" : "unknown") : database === setting ? setting : "disagree",
    cause: typeof error === "string" ? error : null
  }
}

export const status = Effect.fnUntraced(function* (urls: { readonly payment: string; readonly rail: string }) {
  const { look } = yield* Actuator
  const each = (point: FencePoint["point"], service: FencePoint["service"], url: string) =>
    look(url).pipe(
      Effect.catchTag("BackendUnavailable", ({ cause }) => Effect.succeed({ cause })),
      Effect.map((view) => pointOf(point, service, view))
    )
  return yield* Effect.all(
    [each("resource", "payment-resource", urls.payment), each("rail", "rail-proxy", urls.rail)],
    { concurrency: "unbounded" }
  )
})
