/**
 * What a service says of itself: `/actuator/health` and `/actuator/info`, which every service answers on both of its
 * ports, and by which clock it answers.
 */
import { Clock, Context, Effect, Layer, Schema } from "effect"
import { HttpClient, HttpClientRequest } from "effect/http"
import { boundedBy } from "../../core/Bound.ts"
import { type BackendUnavailable, backendUnavailable } from "../../core/lock/LockErrors.ts"

const Component = Schema.Struct({
  status: Schema.Literals(["UP", "DOWN"]),
  details: Schema.Record(Schema.String, Schema.Unknown)
})
const HealthJson = Schema.Struct({
  status: Schema.Literals(["UP", "DOWN"]),
  fencing: Schema.Literals(["on", "OFF"]),
  components: Schema.Record(Schema.String, Component)
})
export type Health = typeof HealthJson.Type

const InfoJson = Schema.Struct({
  service: Schema.String,
  instance: Schema.String,
  version: Schema.String,
  environment: Schema.String,
  backend: Schema.optionalKey(Schema.String)
})
export type Info = typeof InfoJson.Type

export interface ServiceView {
  readonly health: Health
  readonly info: Info
  /** How far the service's clock is ahead of this one, by the second that HTTP tells; the error is half of it and the way. */
  readonly clockAheadMillis: number | null
}

export class Actuator extends Context.Service<
  Actuator,
  { readonly look: (url: string) => Effect.Effect<ServiceView, BackendUnavailable> }
>()("dlock/services/operator/Actuator") {}

export const make = Effect.fnUntraced(function* (callTimeoutMillis: number) {
  const client = yield* HttpClient.HttpClient
  const get = <A>(url: string, schema: Schema.Codec<A, unknown>) =>
    Effect.gen(function* () {
      const sent = yield* Clock.currentTimeMillis
      const response = yield* client.execute(HttpClientRequest.get(url))
      const received = yield* Clock.currentTimeMillis
      const value = yield* Effect.flatMap(response.json, Schema.decodeUnknownEffect(schema))
      const date = Date.parse(response.headers["date"] ?? "")
      return { value, clockAheadMillis: Number.isNaN(date) ? null : date + 500 - (sent + received) / 2 }
    }).pipe(
      Effect.mapError((error) => backendUnavailable(`GET ${url}`, error.message.slice(0, 300))),
      boundedBy(callTimeoutMillis, () => backendUnavailable(`GET ${url}`, `no answer in ${callTimeoutMillis} ms`))
    )
  return Actuator.of({
    look: (url) =>
      Effect.map(
        Effect.all([get(`${url}/actuator/health`, HealthJson), get(`${url}/actuator/info`, InfoJson)]),
        ([health, info]) => ({
          health: health.value,
          info: info.value,
          clockAheadMillis: info.clockAheadMillis
        })
      )
  })
})

export const layer = (callTimeoutMillis: number): Layer.Layer<Actuator, never, HttpClient.HttpClient> =>
  Layer.effect(Actuator, make(callTimeoutMillis))
