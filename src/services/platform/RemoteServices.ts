/**
 * The other services as executor and reconciler reach them, from the settings; and whether they can be reached now.
 */
import * as NodeHttpClient from "@effect/platform-node/NodeHttpClient"
import { Effect, Layer } from "effect"
import { LockKey } from "../../core/lock/Lock.ts"
import { LockApi } from "../../core/lock/LockApi.ts"
import { PaymentResource } from "../../core/payment/PaymentResource.ts"
import { PayoutId } from "../../core/payment/Payout.ts"
import { RailProxy } from "../../core/rail/RailProxy.ts"
import * as HttpLockApi from "../api/HttpLockApi.ts"
import * as HttpPaymentResource from "../api/HttpPaymentResource.ts"
import * as HttpRailProxy from "../api/HttpRailProxy.ts"
import { Readiness } from "./Management.ts"
import { ServiceConfig } from "./ServiceConfig.ts"

const clients: Layer.Layer<LockApi | PaymentResource | RailProxy, never, ServiceConfig> = Layer.unwrap(
  Effect.map(ServiceConfig, ({ lock, payment, rail, settings }) => {
    const { callTimeoutMillis } = settings.client
    const { railTimeoutMillis } = settings.executor
    return Layer.mergeAll(
      HttpLockApi.layer({ url: lock.url, callTimeoutMillis }),
      HttpPaymentResource.layer({ url: payment.url, callTimeoutMillis }),
      HttpRailProxy.layer({ url: rail.proxyUrl, callTimeoutMillis, railTimeoutMillis })
    ).pipe(Layer.provide(NodeHttpClient.layerUndici))
  })
)

/** Asked for what does not exist: "not found" is an answer. */
const noLock = LockKey.make("readiness")
const noPayout = PayoutId.make("00000000-0000-0000-0000-000000000000")

const readiness: Layer.Layer<Readiness, never, LockApi | PaymentResource | RailProxy> = Layer.effect(
  Readiness,
  Effect.gen(function* () {
    const locks = yield* LockApi
    const payments = yield* PaymentResource
    const rail = yield* RailProxy
    return [
      {
        name: "lockServer",
        run: locks.inspect(noLock).pipe(
          Effect.catchTag("LockNotFound", () => Effect.void),
          Effect.as({})
        )
      },
      { name: "paymentResource", run: Effect.as(payments.listPayouts({ limit: 1 }), {}) },
      {
        name: "railProxy",
        run: rail.readSubmission(noPayout).pipe(
          Effect.catchTag("PayoutNotFound", () => Effect.void),
          Effect.as({})
        )
      }
    ]
  })
)

export const layer: Layer.Layer<LockApi | PaymentResource | RailProxy | Readiness, never, ServiceConfig> =
  readiness.pipe(Layer.provideMerge(clients))
