/**
 * The whole payout system as nodes of one virtual world: the programs of production, unchanged, on fake stores behind a
 * hostile network.
 *
 *     w1 w2 ..  ──> lock-server  ──> lockdb
 *        │  └─────> payment-resource ──> paydb
 *        └────────> rail-proxy ──────────┘ └──> rail
 *     reconciler: as a worker
 *
 * What is durable (lockdb, paydb, the rail's book) lives outside the nodes' programs and so survives their processes.
 */
import { Clock, Context, Effect, Layer, Random, type Scope } from "effect"
import type { History } from "../core/History.ts"
import { AcquireId, OwnerId } from "../core/lock/Lock.ts"
import { LockApi } from "../core/lock/LockApi.ts"
import { httpWire } from "./HttpWire.ts"
import { LockStore } from "../core/lock/LockStore.ts"
import { PaymentResource } from "../core/payment/PaymentResource.ts"
import { PaymentStore } from "../core/payment/PaymentStore.ts"
import { type AccountId, lockKeyOf, type PayoutId } from "../core/payment/Payout.ts"
import { Rail } from "../core/rail/Rail.ts"
import { RailProxy } from "../core/rail/RailProxy.ts"
import { SubmissionStore } from "../core/rail/SubmissionStore.ts"
import type { Settings } from "../core/Settings.ts"
import * as LockClient from "../services/lock-client/LockClient.ts"
import * as LockService from "../services/lock-server/LockService.ts"
import * as PaymentService from "../services/payment-resource/PaymentService.ts"
import * as PayoutExecutor from "../services/payout-executor/PayoutExecutor.ts"
import * as RailService from "../services/rail-proxy/RailService.ts"
import * as RailStub from "../services/rail-stub/RailStub.ts"
import * as Reconciler from "../services/reconciler/Reconciler.ts"
import { mix, Rng } from "./Draw.ts"
import type { Node, Process, Program } from "./Node.ts"
import { NodeClock } from "./NodeClock.ts"
import * as Observed from "./Observed.ts"
import { Recorder } from "./Recorder.ts"
import { commitNow, lockStoreAt, paymentStoreAt, submissionStoreAt } from "./RemoteStores.ts"
import { finalityMillisOf, lateMillisMax, type RunSpec, settingsOf } from "./RunSpec.ts"
import * as SimLockStore from "./SimLockStore.ts"
import { type Endpoint, SimNetwork } from "./SimNetwork.ts"
import * as SimPaydb from "./SimPaydb.ts"
import * as SimPaymentStore from "./SimPaymentStore.ts"
import * as SimRail from "./SimRail.ts"
import * as SimSubmissionStore from "./SimSubmissionStore.ts"
import { typedWire, type Wire } from "./SimWire.ts"
import { VirtualWorld } from "./VirtualWorld.ts"

export const amountMinor = 2_500n

export interface Cluster {
  readonly spec: RunSpec
  readonly settings: Settings
  readonly world: VirtualWorld
  readonly network: SimNetwork
  readonly recorder: Recorder
  readonly wire: Wire
  readonly paydb: SimPaydb.SimPaydbState
  /** Executors and reconciler: what has to come to an end when it is told to. */
  readonly workers: ReadonlyArray<Node>
  /** The last of the workers, started when there is something to reconcile. */
  readonly reconcilers: ReadonlyArray<Node>
  /** What a process of its own needs to work on payouts as the workers do. */
  readonly clients: (
    process: Process
  ) => Effect.Effect<Context.Context<LockClient.LockClient | PaymentResource | RailProxy>, never, Scope.Scope>
  readonly servers: ReadonlyArray<Node>
  readonly railNode: Node
  readonly history: (settled: boolean) => History
}

export interface ClusterOptions {
  readonly keepTrace?: boolean
  readonly keepVisible?: boolean
}

export const accountIdOf = (n: number): AccountId => `acct-${n}` as AccountId
export const payoutIdOf = (n: number): PayoutId => `00000000-0000-4000-8000-${String(n).padStart(12, "0")}` as PayoutId

/** Something durable that is made on a node: on its clock, and with a stream of its own. */
const durable = <A>(node: Node, effect: Effect.Effect<A>): A => {
  const process = node.process
  if (process === undefined) throw new Error(`${node.name} has no process`)
  const rng = new Rng(mix(node.world.seed, node.key))
  return Effect.runSync(
    effect.pipe(
      Effect.provideService(Clock.Clock, new NodeClock(process)),
      Effect.provideService(Random.Random, {
        nextIntUnsafe: () => rng.integer(),
        nextDoubleUnsafe: () => rng.unit()
      })
    )
  )
}

export const build = (spec: RunSpec, options: ClusterOptions = {}): Cluster => {
  const settings = settingsOf(spec)
  const world = new VirtualWorld({
    seed: spec.seed,
    policy: spec.policy,
    quantum: spec.quantum,
    // The order of production; with a quantum, in half of the runs every resumption takes its turn in the queue.
    inlineResume: spec.quantum === 0 || ((spec.seed >>> 6) & 1) === 0,
    sliceMicrosMax: spec.sliceMicrosMax,
    timerEarlyMicrosMax: spec.sliceMicrosMax > 0 ? 500 : 0,
    timerLateMicrosMax: spec.sliceMicrosMax > 0 ? 1_000 : 0,
    keepTrace: options.keepTrace ?? false,
    keepVisible: options.keepVisible ?? false
  })
  const network = new SimNetwork(world, {
    jitterMicros: spec.jitterMicros,
    lossPerMille: spec.lossPerMille,
    duplicatePerMille: spec.duplicatePerMille,
    latePerMille: spec.latePerMille,
    lateMicrosMax: lateMillisMax(spec) * 1000
  })
  const recorder = new Recorder(world)

  // ---- what is durable

  const lockdb = world.node("lockdb", { daemon: true })
  const paydbNode = world.node("paydb", { daemon: true })
  lockdb.start()
  paydbNode.start()
  recorder.lockdb = lockdb
  const lockStore = durable(lockdb, SimLockStore.make())
  const paydb = durable(
    paydbNode,
    SimPaydb.make({
      switches: { resource: spec.paymentFencing, rail: spec.railFencing },
      policy: { finalityWindowMillis: finalityMillisOf(spec), minNotFound: 2, minSpacingMillis: 300 }
    })
  )
  recorder.paydb = paydb
  const paymentStore = durable(paydbNode, Effect.provideService(SimPaymentStore.make, SimPaydb.SimPaydb, paydb))
  const submissionStore = durable(
    paydbNode,
    Effect.provideService(
      SimSubmissionStore.make(settings.rail, spec.guards ? {} : { without: { claimant: true, slot: true } }),
      SimPaydb.SimPaydb,
      paydb
    )
  )
  order(spec, paymentStore)

  // ---- the rail

  const railNode = world.node("rail", {
    daemon: true,
    program: (process) =>
      Effect.suspend(() => {
        railEnd.listen(process, stub)
        return Effect.never
      })
  })
  const railEnd: Endpoint<RailStub.RailStub["Service"]> = network.endpoint(railNode)
  railNode.start()
  const stub = durable(railNode, RailStub.make)
  durable(
    railNode,
    stub.replaceControl({
      ...RailStub.wellBehaved,
      latency: { fixedMillis: spec.railLatencyMillis, jitterMillis: 0 },
      holdMillis: settings.rail.readTimeoutMillis * 2,
      faults: spec.rail.map(({ kind, paid }) => ({ kind, paid, times: 1 })),
      lookup: { ...RailStub.wellBehaved.lookup, visibilityDelayMillis: spec.railBlindMillis }
    })
  )

  // ---- the servers

  const lockNodes: Array<Node> = []
  const lockEnds: Array<Endpoint<LockApi["Service"]>> = []
  const connection = (process: Process, database: Node, timeoutMillis: number) => ({
    network,
    process,
    database,
    timeoutMillis
  })
  for (let n = 1; n <= spec.lockServers; n++) {
    const node = world.node(n === 1 ? "lock-server" : `lock-server-${n}`, {
      daemon: true,
      program: server((process) => {
        const store = lockStoreAt(connection(process, lockdb, settings.lock.backendTimeoutMillis), lockStore, recorder)
        return Effect.map(Effect.provideService(LockService.make(settings.lock), LockStore, store), (context) =>
          wire.serveLocks(process, end, Context.get(context, LockApi))
        )
      })
    })
    const end = network.endpoint<LockApi["Service"]>(node)
    lockNodes.push(node)
    lockEnds.push(end)
    neverTwice(network, node, lockdb)
  }
  const paymentNode = world.node("payment-resource", {
    daemon: true,
    program: server((process) => {
      const store = paymentStoreAt(connection(process, paydbNode, databaseMillis(settings)), paymentStore, recorder)
      return Effect.map(Effect.provideService(PaymentService.make, PaymentStore, store), (service) =>
        wire.servePayments(process, service)
      )
    })
  })
  const proxyNodes: Array<Node> = []
  const proxyEnds: Array<Endpoint<RailProxy["Service"]>> = []
  for (let n = 1; n <= spec.proxies; n++) {
    const node = world.node(n === 1 ? "rail-proxy" : `rail-proxy-${n}`, {
      daemon: true,
      program: server((process) => {
        const store = submissionStoreAt(
          // The intent's commit must be confirmed within the send window or nothing is sent.
          connection(process, paydbNode, Math.min(databaseMillis(settings), settings.rail.sendWindowMillis)),
          submissionStore,
          recorder
        )
        const rail = SimRail.make({
          submit: (payment) =>
            network.call(process, railEnd, "rail.pay", (bank) =>
              Effect.suspend(() => {
                recorder.railReceived(payment.clientReference)
                return bank.submit(payment)
              })
            ),
          lookup: (reference) => network.call(process, railEnd, "rail.ask", (bank) => bank.lookup(reference))
        })
        return RailService.make(settings.rail).pipe(
          Effect.provideService(SubmissionStore, store),
          Effect.provideService(Rail, rail),
          Effect.map((service) => wire.serveRail(process, end, service))
        )
      })
    })
    const end = network.endpoint<RailProxy["Service"]>(node)
    proxyNodes.push(node)
    proxyEnds.push(end)
    neverTwice(network, node, paydbNode)
    // Nobody survives a network that doubles a payment on its way to a rail that is not idempotent.
    neverTwice(network, node, railNode)
  }
  neverTwice(network, paymentNode, paydbNode)

  const wire: Wire = (spec.wire === "http" ? httpWire : typedWire)({
    network,
    // Each client keeps to one instance until it is restarted.
    lockServer: ({ boot, node }) => lockEnds[(node.index + boot) % lockEnds.length]!,
    payment: network.endpoint(paymentNode),
    // The first worker's payments go through the first proxy, everything else through the last.
    railProxy: ({ boot, node }) => proxyEnds[node.name === "w1" && boot === 1 ? 0 : proxyEnds.length - 1]!,
    callTimeoutMillis: settings.client.callTimeoutMillis,
    railTimeoutMillis: settings.executor.railTimeoutMillis
  })

  // ---- who works

  const clients = (process: Process) =>
    Effect.map(
      Effect.provideService(
        LockClient.make({
          ownerId: OwnerId.make(process.node.name),
          settings: settings.client,
          sessionTtlMillis: settings.lock.sessionTtlMillis,
          lockTtlMillis: settings.lock.defaultTtlMillis
        }),
        LockApi,
        Observed.lockApi(wire.locks(process), process, recorder)
      ),
      (locks) =>
        Context.make(LockClient.LockClient, Observed.lockClient(locks, process, recorder)).pipe(
          Context.add(PaymentResource, Observed.payments(wire.payments(process), process, recorder)),
          Context.add(RailProxy, Observed.rail(wire.rail(process), process, recorder))
        )
    )

  const worker =
    (staleHolder: boolean): Program =>
    (process) =>
      Effect.scoped(
        clients(process).pipe(
          Effect.flatMap((context) =>
            built(
              PayoutExecutor.PayoutExecutor,
              PayoutExecutor.layer({
                actor: OwnerId.make(process.node.name),
                settings: settings.executor,
                retry: settings.client.retry,
                staleHolder
              }),
              context
            )
          ),
          Effect.tap((executor) => Effect.addFinalizer(() => executor.drain)),
          Effect.flatMap((executor) => executor.run)
        )
      )

  const workers: Array<Node> = []
  for (let n = 1; n <= spec.workers; n++) {
    const stale = spec.staleHolder && n === 1
    const node = world.node(`w${n}`, { program: worker(stale) })
    if (stale) recorder.stale.add(node.name)
    workers.push(node)
  }
  const reconciling: Program = (process) =>
    Effect.scoped(
      clients(process).pipe(
        Effect.flatMap((context) =>
          built(
            Reconciler.Reconciler,
            Reconciler.layer({ actor: OwnerId.make(process.node.name), settings: settings.reconcile }),
            context
          )
        ),
        Effect.flatMap(({ run }) => run)
      )
    )
  const reconcilers = Array.from({ length: spec.reconcilers }, (_, n) =>
    world.node(n === 0 ? "reconciler" : `reconciler-${n + 1}`, { program: reconciling })
  )
  workers.push(...reconcilers)

  const servers = [...lockNodes, paymentNode, ...proxyNodes]

  return {
    spec,
    settings,
    world,
    network,
    recorder,
    wire,
    paydb,
    workers,
    reconcilers,
    clients,
    servers,
    railNode,
    history: (settled) => historyOf(recorder, paydb, durable(railNode, stub.payments).payments, settled)
  }
}

/** Bound of a statement: shorter than the callers' own bound, so that they hear of it. */
const databaseMillis = (settings: Settings): number => Math.floor(settings.client.callTimeoutMillis * 0.8)

/** A service as a program: built on the process's own clock and scheduler, then there until it is stopped. */
const server =
  (serve: (process: Process) => Effect.Effect<void, never, Scope.Scope>): Program =>
  (process) =>
    Effect.scoped(Effect.andThen(serve(process), Effect.never))

const built = <Id, S, R>(tag: Context.Service<Id, S>, layer: Layer.Layer<Id, never, R>, context: Context.Context<R>) =>
  Effect.map(Effect.provideContext(Layer.build(layer), context), (services) => Context.get(services, tag))

const neverTwice = (network: SimNetwork, from: Node, to: Node): void => {
  network.link(from, to).duplicates = false
  network.link(to, from).duplicates = false
}

/** The fixture: accounts with money, and payouts that nobody has begun. */
const order = (spec: RunSpec, store: PaymentStore["Service"]): void => {
  const actor = OwnerId.make("orders")
  const must = <A, E>(effect: Effect.Effect<A, E>): void => {
    const exit = commitNow(effect)
    if (exit._tag === "Failure") throw new Error(`the fixture can not be made: ${String(exit.cause)}`)
  }
  for (let n = 1; n <= spec.accounts; n++) {
    const openingBalanceMinor = amountMinor * BigInt(spec.funds)
    must(store.createAccount({ accountId: accountIdOf(n), currency: "EUR", openingBalanceMinor, actor }))
  }
  for (let n = 1; n <= spec.payouts; n++) {
    must(
      store.createPayout({
        idempotencyKey: AcquireId.make(`order-${n}`),
        actor,
        payoutId: payoutIdOf(n),
        accountId: accountIdOf(((n - 1) % spec.accounts) + 1),
        amountMinor,
        currency: "EUR",
        beneficiary: "NL00TEST0000000001"
      })
    )
  }
}

export const lockKey = (account: number) => lockKeyOf(accountIdOf(account))

const historyOf = (
  recorder: Recorder,
  paydb: SimPaydb.SimPaydbState,
  book: ReadonlyArray<{
    readonly at: string
    readonly clientReference: string
    readonly amountMinor: bigint
    readonly railReference: string
  }>,
  settled: boolean
): History => ({
  lock: recorder.oracle.events,
  transitions: paydb.transitions,
  submissions: paydb.submissions.map((sent) => ({
    payoutId: sent.payoutId,
    accountId: sent.accountId,
    clientReference: paydb.payouts.get(sent.payoutId)?.clientReference ?? "",
    token: sent.token,
    outcome: sent.outcome,
    intentAt: sent.intentAt,
    fenced: sent.fenced
  })),
  rail: book.map(({ amountMinor: amount, at, clientReference, railReference }) => ({
    at: Date.parse(at),
    clientReference,
    amountMinor: amount,
    railReference
  })),
  journals: paydb.journals.map((journal) => ({ ...journal, journalId: String(journal.journalId) })),
  accounts: [...paydb.accounts.values()].map((account) => ({
    accountId: account.accountId,
    balanceMinor: account.balanceMinor,
    reservedMinor: account.reservedMinor,
    fence: account.fence,
    railHighWater: paydb.highWater.get(account.accountId)?.token ?? 0n
  })),
  payouts: [...paydb.payouts.values()],
  fences: recorder.fences,
  settled
})
