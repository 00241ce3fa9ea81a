/**
 * The typed wire: the ports of the services as calls over the simulated network, as values. What a real client adds is
 * kept: a call that gets no answer of the service's own is `BackendUnavailable`, and every call ends within its bound.
 */
import type { Effect } from "effect"
import type { LockApi } from "../core/lock/LockApi.ts"
import { type BackendUnavailable, backendUnavailable } from "../core/lock/LockErrors.ts"
import type { PaymentResource } from "../core/payment/PaymentResource.ts"
import type { RailProxy } from "../core/rail/RailProxy.ts"
import { dotted } from "./Draw.ts"
import type { Process } from "./Node.ts"
import type { Endpoint, SimNetwork } from "./SimNetwork.ts"

/** How a process reaches the services, and how one is reached. */
export interface Wire {
  readonly serveLocks: (process: Process, end: Endpoint<LockApi["Service"]>, service: LockApi["Service"]) => void
  readonly servePayments: (process: Process, service: PaymentResource["Service"]) => void
  readonly serveRail: (process: Process, end: Endpoint<RailProxy["Service"]>, service: RailProxy["Service"]) => void
  readonly locks: (process: Process) => LockApi["Service"]
  readonly payments: (process: Process) => PaymentResource["Service"]
  readonly rail: (process: Process) => RailProxy["Service"]
}

export interface Services {
  readonly network: SimNetwork
  /** Of a process: which of the lock servers it talks to. */
  readonly lockServer: (process: Process) => Endpoint<LockApi["Service"]>
  readonly payment: Endpoint<PaymentResource["Service"]>
  /** Of a process: which of the proxies it talks to. */
  readonly railProxy: (process: Process) => Endpoint<RailProxy["Service"]>
  readonly callTimeoutMillis: number
  readonly railTimeoutMillis: number
}

export const typedWire = (services: Services): Wire => {
  const { callTimeoutMillis, network, railTimeoutMillis } = services

  const caller =
    <S>(process: Process, endpoint: Endpoint<S>, prefix: string) =>
    <Request extends ReadonlyArray<unknown>, A, E>(
      operation: string,
      handle: (service: S, ...request: Request) => Effect.Effect<A, E>,
      timeoutMillis = callTimeoutMillis
    ) =>
    (...request: Request): Effect.Effect<A, E | BackendUnavailable> =>
      network.call(process, endpoint, dotted(prefix, operation), (service) => handle(service, ...request), {
        timeoutMillis,
        unanswered: (reason) => backendUnavailable(operation, reason)
      })

  return {
    serveLocks: (process, end, service) => end.listen(process, service),
    servePayments: (process, service) => services.payment.listen(process, service),
    serveRail: (process, end, service) => end.listen(process, service),
    locks: (process) => {
      const call = caller(process, services.lockServer(process), "lock")
      return {
        openSession: call("openSession", (service, request) => service.openSession(request)),
        heartbeat: call("heartbeat", (service, sessionId, ownerId) => service.heartbeat(sessionId, ownerId)),
        closeSession: call("closeSession", (service, sessionId, ownerId) => service.closeSession(sessionId, ownerId)),
        // Longer by what it is willing to wait.
        acquire: (request) =>
          call(
            "acquire",
            (service, asked: typeof request) => service.acquire(asked),
            callTimeoutMillis + (request.waitMillis ?? 0)
          )(request),
        renew: call("renew", (service, request) => service.renew(request)),
        release: call("release", (service, request) => service.release(request)),
        inspect: call("inspect", (service, key) => service.inspect(key)),
        revoke: call("revoke", (service, request) => service.revoke(request))
      }
    },
    payments: (process) => {
      const call = caller(process, services.payment, "pay")
      return {
        listPayouts: call("listPayouts", (service, query) => service.listPayouts(query)),
        readPayout: call("readPayout", (service, payoutId) => service.readPayout(payoutId)),
        createPayout: call("createPayout", (service, order) => service.createPayout(order)),
        claim: call("claim", (service, write) => service.claim(write)),
        post: call("post", (service, write) => service.post(write)),
        fail: call("fail", (service, write) => service.fail(write)),
        ambiguous: call("ambiguous", (service, write) => service.ambiguous(write)),
        resolve: call("resolve", (service, write) => service.resolve(write)),
        readAccount: call("readAccount", (service, accountId) => service.readAccount(accountId)),
        readLedger: call("readLedger", (service, query) => service.readLedger(query)),
        createAccount: call("createAccount", (service, request) => service.createAccount(request)),
        readHistory: call("readHistory", (service, payoutId) => service.readHistory(payoutId))
      }
    },
    rail: (process) => {
      const call = caller(process, services.railProxy(process), "rail")
      return {
        submit: call("submit", (service, request) => service.submit(request), railTimeoutMillis),
        readSubmission: call("readSubmission", (service, payoutId) => service.readSubmission(payoutId)),
        lookup: call("lookup", (service, request) => service.lookup(request), railTimeoutMillis),
        seal: call("seal", (service, request) => service.seal(request)),
        evidence: call("evidence", (service, request) => service.evidence(request))
      }
    }
  }
}
