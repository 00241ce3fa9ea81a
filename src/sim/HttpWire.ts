/**
 * The HTTP wire: the production clients, the production routers, handlers and error table, in one process. What travels is
 * what travels over a socket: method, path, headers and body as text. Only the socket is the simulated network.
 *
 * Routers and clients are built once for all worlds (building them takes longer than a run). So what they capture is
 * late-bound: a handler finds the service of the process it runs in, a client the network of the process that calls.
 * A builder puts the context it was built in over that of each request, so it must be built outside of any world.
 */
import { Context, Effect, Layer, Scope } from "effect"
import {
  HttpClient,
  HttpClientError,
  type HttpClientRequest,
  HttpEffect,
  HttpRouter,
  HttpServer,
  HttpServerRequest,
  HttpServerResponse
} from "effect/http"
import { type HttpApi, HttpApiBuilder, type HttpApiGroup } from "effect/http-api"
import { LockApi } from "../core/lock/LockApi.ts"
import { PaymentResource } from "../core/payment/PaymentResource.ts"
import { RailProxy } from "../core/rail/RailProxy.ts"
import * as Envelope from "../services/api/Envelope.ts"
import * as HttpLockApi from "../services/api/HttpLockApi.ts"
import * as HttpPaymentResource from "../services/api/HttpPaymentResource.ts"
import * as HttpRailProxy from "../services/api/HttpRailProxy.ts"
import { LockHttpApi } from "../services/api/LockHttpApi.ts"
import { PaymentHttpApi } from "../services/api/PaymentHttpApi.ts"
import { RailHttpApi } from "../services/api/RailHttpApi.ts"
import * as RequestErrors from "../services/api/RequestErrors.ts"
import * as LockHandlers from "../services/lock-server/LockHandlers.ts"
import * as PaymentHandlers from "../services/payment-resource/PaymentHandlers.ts"
import * as RailHandlers from "../services/rail-proxy/RailHandlers.ts"
import { type Ambient, CurrentProcess } from "./Ambient.ts"
import type { Process } from "./Node.ts"
import type { Endpoint, SimNetwork } from "./SimNetwork.ts"
import type { Services, Wire } from "./SimWire.ts"

/** What a server process answers with: the response is left on the request. */
type App = Effect.Effect<void, never, HttpServerRequest.HttpServerRequest>

const response = Symbol("response")

// -----------------------------------------------------------------------------
// servers
// -----------------------------------------------------------------------------

/** The service that a process serves. */
const served = new WeakMap<Process, object>()

/** A service whose every operation is that of the process it is called in. */
const lateBound = <S extends object>(operations: ReadonlyArray<keyof S & string>): S =>
  Object.fromEntries(
    operations.map((operation) => [
      operation,
      (...request: ReadonlyArray<unknown>) =>
        Effect.flatMap(CurrentProcess, (process) => {
          const service = served.get(process)
          if (service === undefined) return Effect.die(`${process.node.name} serves nothing`)
          const operate: unknown = Reflect.get(service, operation)
          return (operate as (...of: ReadonlyArray<unknown>) => Effect.Effect<unknown>)(...request)
        })
    ])
    // Built from the names of its operations.
  ) as unknown as S

const app = <Id extends string, Groups extends HttpApiGroup.Constraint, E, R>(
  api: HttpApi.HttpApi<Id, Groups>,
  handlers: Layer.Layer<HttpApiGroup.ToService<Id, Groups>, E, R>
): App => {
  const surface = HttpApiBuilder.layer(api).pipe(Layer.provide(handlers), Layer.provide(RequestErrors.layer))
  const routes = Layer.mergeAll(surface, Envelope.layer(api)).pipe(
    Layer.provide(Envelope.maxBody),
    Layer.provide(HttpServer.layerServices)
    // What is left to be provided is in the context of each request.
  ) as unknown as Layer.Layer<never, never, HttpRouter.HttpRouter>
  const router = HttpRouter.toHttpEffect(routes).pipe(
    Effect.provideService(Scope.Scope, Scope.makeUnsafe()),
    Effect.provideService(HttpRouter.RouterConfig, Envelope.routerConfig)
  )
  return HttpEffect.toHandled(Effect.runSync(router), (request, answer) => {
    Reflect.set(request, response, answer)
    return Effect.void
  })
}

const once = <A>(make: () => A): (() => A) => {
  let made: { readonly value: A } | undefined
  return () => (made ??= { value: make() }).value
}

const lockApp = once(() =>
  app(
    LockHttpApi,
    Layer.provide(
      LockHandlers.layer,
      Layer.succeed(
        LockApi,
        lateBound<LockApi["Service"]>([
          "openSession",
          "heartbeat",
          "closeSession",
          "acquire",
          "renew",
          "release",
          "inspect",
          "revoke"
        ])
      )
    )
  )
)
const paymentApp = once(() =>
  app(
    PaymentHttpApi,
    Layer.provide(
      PaymentHandlers.layer,
      Layer.succeed(
        PaymentResource,
        lateBound<PaymentResource["Service"]>([
          "listPayouts",
          "readPayout",
          "createPayout",
          "claim",
          "post",
          "fail",
          "ambiguous",
          "resolve",
          "readAccount",
          "readLedger",
          "createAccount",
          "readHistory"
        ])
      )
    )
  )
)
const railApp = once(() =>
  app(
    RailHttpApi,
    Layer.provide(
      RailHandlers.layer,
      Layer.succeed(
        RailProxy,
        lateBound<RailProxy["Service"]>(["submit", "readSubmission", "lookup", "seal", "evidence"])
      )
    )
  )
)

// -----------------------------------------------------------------------------
// clients
// -----------------------------------------------------------------------------

interface Peer {
  readonly network: SimNetwork
  readonly hosts: Readonly<Record<Host, Endpoint<App>>>
}
type Host = "lock" | "pay" | "rail"

/** Where a calling process finds the hosts. */
const peers = new WeakMap<Process, Peer>()

/** The same labels as on the typed wire, so that one plan means the same on both. */
const labels: Readonly<Record<Host, ReadonlyArray<readonly [method: string, path: RegExp, label: string]>>> = {
  lock: [
    ["POST", /\/sessions$/, "lock.openSession"],
    ["POST", /\/heartbeat$/, "lock.heartbeat"],
    ["DELETE", /\/sessions\/[^/]+$/, "lock.closeSession"],
    ["POST", /\/acquire$/, "lock.acquire"],
    ["POST", /\/renew$/, "lock.renew"],
    ["POST", /\/revoke$/, "lock.revoke"],
    ["DELETE", /\/locks\/[^/]+$/, "lock.release"],
    ["GET", /\/locks\/[^/]+$/, "lock.inspect"]
  ],
  pay: [
    ["POST", /\/claim$/, "pay.claim"],
    ["POST", /\/post$/, "pay.post"],
    ["POST", /\/fail$/, "pay.fail"],
    ["POST", /\/ambiguous$/, "pay.ambiguous"],
    ["POST", /\/resolve$/, "pay.resolve"],
    ["GET", /\/payouts$/, "pay.listPayouts"],
    ["POST", /\/payouts$/, "pay.createPayout"],
    ["GET", /\/(transitions|history)$/, "pay.readHistory"],
    ["GET", /\/payouts\/[^/]+$/, "pay.readPayout"],
    ["GET", /\/ledger$/, "pay.readLedger"],
    ["GET", /\/accounts\/[^/]+$/, "pay.readAccount"],
    ["POST", /\/accounts$/, "pay.createAccount"]
  ],
  rail: [
    ["POST", /\/submissions$/, "rail.submit"],
    ["POST", /\/lookup$/, "rail.lookup"],
    ["POST", /\/void$/, "rail.seal"],
    ["POST", /\/evidence$/, "rail.evidence"],
    ["GET", /\/submissions\/[^/]+$/, "rail.readSubmission"]
  ]
}

const labelOf = (host: Host, { method, url }: HttpClientRequest.HttpClientRequest): string => {
  const path = url.split("?")[0] ?? url
  const row = labels[host].find(([verb, pattern]) => verb === method && pattern.test(path))
  if (row === undefined) throw new Error(`no label for ${method} ${path}`)
  return row[2]
}

/** The simulated socket. No URL is parsed, and no collector of garbage is asked when to abort. */
const clientOf = (host: Host): HttpClient.HttpClient => {
  const lean = HttpClient.makeWith<never, never, HttpClientError.HttpClientError, CurrentProcess>(
    Effect.flatMap((request) =>
      Effect.flatMap(CurrentProcess, (process) => {
        const peer = peers.get(process)
        if (peer === undefined) return Effect.die(`${process.node.name} knows no hosts`)
        return peer.network.call(
          process,
          peer.hosts[host],
          labelOf(host, request),
          (serve) => {
            const received = HttpServerRequest.fromClientRequest(request)
            return Effect.map(Effect.provideService(serve, HttpServerRequest.HttpServerRequest, received), () =>
              HttpServerResponse.toClientResponse(Reflect.get(received, response), { request })
            ) as Effect.Effect<ReturnType<typeof HttpServerResponse.toClientResponse>, never, Ambient>
          },
          {
            unanswered: (cause) =>
              new HttpClientError.HttpClientError({ reason: new HttpClientError.TransportError({ request, cause }) })
          }
        )
      })
    ),
    Effect.succeed
  )
  // The process that calls is always there: a client that needs nothing, as far as its users are concerned.
  return lean as unknown as HttpClient.HttpClient
}

interface Clients {
  readonly locks: LockApi["Service"]
  readonly payments: PaymentResource["Service"]
  readonly rail: RailProxy["Service"]
}

const clientsBySettings = new Map<string, Clients>()

const clientsOf = ({ callTimeoutMillis, railTimeoutMillis }: Services): Clients => {
  const name = `${callTimeoutMillis} ${railTimeoutMillis}`
  let clients = clientsBySettings.get(name)
  if (clients === undefined) {
    const at = (host: Host) => Context.make(HttpClient.HttpClient, clientOf(host))
    clients = {
      locks: Effect.runSync(
        Effect.provideContext(HttpLockApi.make({ url: "http://lock.invalid", callTimeoutMillis }), at("lock"))
      ),
      payments: Effect.runSync(
        Effect.provideContext(HttpPaymentResource.make({ url: "http://pay.invalid", callTimeoutMillis }), at("pay"))
      ),
      rail: Effect.runSync(
        Effect.provideContext(
          HttpRailProxy.make({ url: "http://rail.invalid", railTimeoutMillis, callTimeoutMillis }),
          at("rail")
        )
      )
    }
    clientsBySettings.set(name, clients)
  }
  return clients
}

export const httpWire = (services: Services): Wire => {
  const clients = clientsOf(services)
  const { network } = services
  /** The same machines, with a router behind the port instead of a service. */
  const ports = new Map<object, Endpoint<App>>()
  const portOf = (end: Endpoint<unknown>): Endpoint<App> => {
    let port = ports.get(end)
    if (port === undefined) ports.set(end, (port = network.endpoint<App>(end.node)))
    return port
  }
  const join = (process: Process): void => {
    if (peers.has(process)) return
    peers.set(process, {
      network,
      hosts: {
        lock: portOf(services.lockServer(process)),
        pay: portOf(services.payment),
        rail: portOf(services.railProxy(process))
      }
    })
  }
  const serve = (process: Process, end: Endpoint<unknown>, router: App, service: object): void => {
    served.set(process, service)
    portOf(end).listen(process, router)
  }
  const from =
    <S>(service: S) =>
    (process: Process): S => {
      join(process)
      return service
    }
  return {
    serveLocks: (process, end, service) => serve(process, end, lockApp(), service),
    servePayments: (process, service) => serve(process, services.payment, paymentApp(), service),
    serveRail: (process, end, service) => serve(process, end, railApp(), service),
    locks: from(clients.locks),
    payments: from(clients.payments),
    rail: from(clients.rail)
  }
}
