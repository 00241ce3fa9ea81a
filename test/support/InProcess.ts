/**
 * The production programs of executor, reconciler and rail-proxy in one process, each as a process that can be killed at any
 * of its fault points (`Mortal.ts`), over whatever stores a test brings.
 */
import { Context, Effect, Exit, Fiber, Layer, Scope } from "effect"
import { FaultPoint } from "../../src/core/FaultPoint.ts"
import { OwnerId } from "../../src/core/lock/Lock.ts"
import { LockApi } from "../../src/core/lock/LockApi.ts"
import { backendUnavailable, type BackendUnavailable } from "../../src/core/lock/LockErrors.ts"
import { PaymentResource } from "../../src/core/payment/PaymentResource.ts"
import { Rail } from "../../src/core/rail/Rail.ts"
import { RailProxy } from "../../src/core/rail/RailProxy.ts"
import { SubmissionStore } from "../../src/core/rail/SubmissionStore.ts"
import { defaults, type Settings } from "../../src/core/Settings.ts"
import * as LockClient from "../../src/services/lock-client/LockClient.ts"
import * as PayoutExecutor from "../../src/services/payout-executor/PayoutExecutor.ts"
import * as RailService from "../../src/services/rail-proxy/RailService.ts"
import * as Reconciler from "../../src/services/reconciler/Reconciler.ts"
import { Mortal } from "./Mortal.ts"

export interface Ports {
  readonly locks: LockApi["Service"]
  readonly payments: PaymentResource["Service"]
  readonly submissions: SubmissionStore["Service"]
  readonly rail: Rail["Service"]
  readonly settings?: Settings
}

export interface ProcessOptions {
  readonly name: string
  /** Default: lives until it is stopped. */
  readonly mortal?: Mortal
}

/** The rail-proxy as seen over a network: it goes on when its caller is gone, and its death is a reset connection. */
export const makeProxy = Effect.fnUntraced(function* (ports: Ports) {
  let current: { readonly mortal: Mortal; readonly service: RailProxy["Service"] } | undefined

  const start = Effect.fnUntraced(function* (mortal: Mortal) {
    const layer = RailService.layer((ports.settings ?? defaults).rail).pipe(
      Layer.provide(
        Layer.mergeAll(
          Layer.succeed(SubmissionStore, mortal.port(ports.submissions)),
          Layer.succeed(Rail, mortal.port(ports.rail))
        )
      )
    )
    // Never closed: a killed process runs no finalizer.
    const context = yield* Layer.buildWithScope(layer, Scope.makeUnsafe())
    current = { mortal, service: Context.get(context, RailProxy) }
  })

  const remote = <A, E>(
    use: (proxy: RailProxy["Service"]) => Effect.Effect<A, E>
  ): Effect.Effect<A, E | BackendUnavailable> =>
    Effect.suspend(() => {
      if (current === undefined || current.mortal.isDead) {
        return Effect.fail(backendUnavailable("rail-proxy", "connection refused"))
      }
      const { mortal, service } = current
      return Effect.flatMap(
        Effect.forkDetach(Effect.provideService(use(service), FaultPoint, mortal.faultPoint)),
        (running) =>
          Effect.raceFirst(
            Fiber.join(running),
            Effect.andThen(mortal.died, Effect.fail(backendUnavailable("rail-proxy", "connection reset")))
          )
      )
    })

  const proxy = RailProxy.of({
    submit: (request) => remote((service) => service.submit(request)),
    readSubmission: (payoutId) => remote((service) => service.readSubmission(payoutId)),
    lookup: (request) => remote((service) => service.lookup(request)),
    seal: (request) => remote((service) => service.seal(request)),
    evidence: (request) => remote((service) => service.evidence(request))
  })
  yield* start(new Mortal())
  return { proxy, restart: start, isDown: () => current?.mortal.isDead ?? true }
})

const processOf = <A>(
  ports: Ports,
  proxy: RailProxy["Service"],
  { mortal = new Mortal(), name }: ProcessOptions,
  program: (actor: OwnerId) => Layer.Layer<A, never, PaymentResource | RailProxy | LockClient.LockClient>
) =>
  Effect.gen(function* () {
    const ownerId = OwnerId.make(name)
    const settings = ports.settings ?? defaults
    const locks = Layer.effect(
      LockClient.LockClient,
      LockClient.make({
        ownerId,
        settings: settings.client,
        sessionTtlMillis: settings.lock.sessionTtlMillis,
        lockTtlMillis: settings.lock.defaultTtlMillis
      })
    ).pipe(Layer.provide(Layer.succeed(LockApi, mortal.port(ports.locks))))
    const layer = program(ownerId).pipe(
      Layer.provide(
        Layer.mergeAll(
          locks,
          Layer.succeed(PaymentResource, mortal.port(ports.payments)),
          Layer.succeed(RailProxy, mortal.port(proxy))
        )
      )
    )
    const scope = Scope.makeUnsafe()
    const context = yield* Layer.buildWithScope(layer, scope)
    /** In this process: under its fault points, on a fiber that outlives the test's interest in it. */
    const run = <B, E>(effect: Effect.Effect<B, E>) =>
      Effect.forkDetach(Effect.provideService(effect, FaultPoint, mortal.faultPoint))
    return { context, mortal, run, stop: Scope.close(scope, Exit.void) }
  })

export const startExecutor = Effect.fnUntraced(function* (
  ports: Ports,
  proxy: RailProxy["Service"],
  options: ProcessOptions & { readonly staleHolder?: boolean }
) {
  const settings = ports.settings ?? defaults
  const { context, mortal, run, stop } = yield* processOf(ports, proxy, options, (actor) =>
    PayoutExecutor.layer({
      actor,
      settings: settings.executor,
      retry: settings.client.retry,
      staleHolder: options.staleHolder ?? false
    })
  )
  const executor = Context.get(context, PayoutExecutor.PayoutExecutor)
  return { executor, mortal, run, stop }
})

export const startReconciler = Effect.fnUntraced(function* (
  ports: Ports,
  proxy: RailProxy["Service"],
  options: ProcessOptions
) {
  const settings = ports.settings ?? defaults
  const { context, mortal, run, stop } = yield* processOf(ports, proxy, options, (actor) =>
    Reconciler.layer({ actor, settings: settings.reconcile })
  )
  const reconciler = Context.get(context, Reconciler.Reconciler)
  return { reconciler, mortal, run, stop }
})
