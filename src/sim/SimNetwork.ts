/**
 * Typed calls between nodes: the fast wire.
 *
 * `call` runs a handler on the target's scheduler and brings back its `Exit`; nothing is encoded. The failures of a real
 * connection are kept: refused when nobody listens, reset when the server dies, silence when its machine does, a deadline
 * kept by the transport, and the interruption of the handler when the caller gives up (as the HTTP server of Node does).
 *
 * Around each call with label `submit` four points can be visited by a fault: `submit.before` and `submit.after` on the
 * caller, `submit.serving` and `submit.served` on the server (handled, and committed if it is a store, but not answered).
 */
import { Cause, Data, Effect, type Exit, type Fiber } from "effect"
import type { Ambient } from "./Ambient.ts"
import { dotted } from "./Draw.ts"
import type { WorldEvent } from "./EventQueue.ts"
import type { Connection, Node, Process } from "./Node.ts"
import { calm, Link, type LinkConditions, type Route } from "./SimLink.ts"
import { What } from "./Trace.ts"
import type { VirtualWorld } from "./VirtualWorld.ts"

/**
 * An error that occurs when a call got no answer. Only after `refused` is it certain that nothing was done.
 * - `refused`: nobody listens there
 * - `reset`: the server died, or was stopped while it worked on the call
 * - `timeout`: no answer within the deadline
 * - `defect`: the handler died of a bug; HTTP answers 500
 */
export class CallFailed extends Data.TaggedError("CallFailed")<{
  readonly reason: "refused" | "reset" | "timeout" | "defect"
  readonly to: string
  readonly label: string
}> {}

/** Where a service can be called: bound to the process that serves it, so that a restarted server must bind again. */
export class Endpoint<S> {
  readonly node: Node
  private bound: { readonly process: Process; readonly service: S } | undefined

  constructor(node: Node) {
    this.node = node
  }

  /** Serves from now until the process is gone. */
  listen(process: Process, service: S): void {
    this.bound = { process, service }
  }

  /** Closes the port although the process lives on. */
  close(): void {
    this.bound = undefined
  }

  /** The service, if the given process is the one that serves it. */
  serviceOf(process: Process): S | undefined {
    return this.bound?.process === process ? this.bound.service : undefined
  }
}

export interface CallOptions<F = CallFailed> {
  /** The transport gives up after so long by the caller's clock. Default: never. A third cheaper than `Effect.timeout`. */
  readonly timeoutMillis?: number
  /** What the caller makes of a call without an answer. Default: `CallFailed`. */
  readonly unanswered?: (reason: CallFailed["reason"]) => F
}

export interface NetworkOptions extends Partial<LinkConditions> {
  /** A caller that gives up closes the connection, and the server then interrupts the handler. Default true. */
  readonly abort?: boolean
}

export class SimNetwork {
  readonly world: VirtualWorld
  readonly abort: boolean
  /** Calls made. */
  calls = 0
  /** The fault phase is over: what a plan still has in store does not happen. */
  healed = false
  /** Of every link that has no own. */
  conditions: LinkConditions
  /** By index of the two nodes. */
  private readonly links: Array<Array<Link | undefined>> = []

  constructor(world: VirtualWorld, options: NetworkOptions = {}) {
    this.world = world
    this.abort = options.abort ?? true
    this.conditions = { ...calm, ...options }
  }

  endpoint<S>(node: Node): Endpoint<S> {
    return new Endpoint<S>(node)
  }

  link(from: Node, to: Node): Link {
    const row = (this.links[from.index] ??= [])
    let link = row[to.index]
    if (link === undefined) {
      link = new Link(this.world, from, to, this.conditions)
      row[to.index] = link
    }
    return link
  }

  /** All links used so far, in a stable order. */
  get allLinks(): ReadonlyArray<Link> {
    return this.links.flatMap((row) => row.filter((link) => link !== undefined))
  }

  /** New conditions for every link. */
  setConditions(conditions: Partial<LinkConditions>): void {
    this.conditions = { ...this.conditions, ...conditions }
    for (const link of this.allLinks) link.conditions = this.conditions
  }

  route(from: Node, to: Node, label: string): Route {
    const link = this.link(from, to)
    let route = link.routes.get(label)
    if (route === undefined) {
      route = {
        request: link.channel(label, "request"),
        answer: this.link(to, from).channel(label, "answer"),
        before: from.point(dotted(label, "before")),
        after: from.point(dotted(label, "after")),
        serving: to.point(dotted(label, "serving")),
        served: to.point(dotted(label, "served"))
      }
      link.routes.set(label, route)
    }
    return route
  }

  /** Calls a service on another node. The handler runs there as a fiber of its own. */
  call<S, A, E, F = CallFailed>(
    from: Process,
    to: Endpoint<S>,
    label: string,
    handle: (service: S) => Effect.Effect<A, E, Ambient>,
    options?: CallOptions<F>
  ): Effect.Effect<A, E | F> {
    return this.request(from, to.node, label, options, (call, process) => {
      const service = to.serviceOf(process)
      return service === undefined ? undefined : () => call.run(process, handle(service))
    })
  }

  /**
   * One atomic step on another node: a store transaction. `commit` runs as a whole when the request is its turn there, so
   * the order of these steps is the commit order. What it changes outlives the process; that the caller hears of it is not
   * certain: kill the node at `<label>.served` or lose the answer.
   */
  transact<A, E, F = CallFailed>(
    from: Process,
    to: Node,
    label: string,
    commit: () => Exit.Exit<A, E>,
    options?: CallOptions<F>
  ): Effect.Effect<A, E | F> {
    return this.request(from, to, label, options, (call, process) => () => call.finish(process, commit()))
  }

  private request<A, E, F>(
    from: Process,
    to: Node,
    label: string,
    options: CallOptions<F> | undefined,
    prepare: Prepare<A, E, F>
  ): Effect.Effect<A, E | F> {
    return Effect.callback<A, E | F>((resume) => {
      const call = new Call(this, from, to, this.route(from.node, to, label), prepare, resume, options)
      call.begin()
      return Effect.sync(() => call.giveUp())
    })
  }
}

/** What the server will do about a call, or undefined if nobody there listens for it. */
type Prepare<A, E, F> = (call: Call<A, E, F>, process: Process) => (() => void) | undefined

class Call<A, E, F> implements Connection {
  private readonly network: SimNetwork
  private readonly from: Process
  private readonly to: Node
  private readonly route: Route
  private readonly prepare: Prepare<A, E, F>
  private readonly resume: (effect: Effect.Effect<A, E | F>) => void
  private readonly options: CallOptions<F> | undefined
  private nth = 0
  /** The caller has its answer, or does not want it any more. */
  private settled = false
  private deadline: WorldEvent | undefined
  /** The process that got the request last. */
  private server: Process | undefined
  /** The handler that is tied to the connection: a duplicate is a second handler, which nobody interrupts. */
  private handler: { readonly process: Process; readonly fiber: Fiber.Fiber<A, E> } | undefined

  constructor(
    network: SimNetwork,
    from: Process,
    to: Node,
    route: Route,
    prepare: Prepare<A, E, F>,
    resume: (effect: Effect.Effect<A, E | F>) => void,
    options: CallOptions<F> | undefined
  ) {
    this.network = network
    this.from = from
    this.to = to
    this.route = route
    this.prepare = prepare
    this.resume = resume
    this.options = options
  }

  /** A fault planted right before it is sent holds it back, or for ever. */
  begin(): void {
    const { from } = this
    from.node.reach(this.route.before)
    if (!from.alive) return
    if (from.node.paused) from.enqueue(() => this.start())
    else this.start()
  }

  private start(): void {
    if (this.settled) return
    const timeoutMillis = this.options?.timeoutMillis
    const { request } = this.route
    this.network.calls++
    this.nth = ++request.count
    this.from.connections.add(this)
    if (timeoutMillis !== undefined) {
      const micros = Math.max(1, Math.ceil((timeoutMillis * 1000) / this.from.node.monotonicRate))
      this.deadline = this.network.world.after(micros, () => this.expire(), this.from)
    }
    request.link.send(request, this.nth, () => this.arrive())
    this.from.node.see(request)
  }

  /** The request is at the machine. */
  private arrive(): void {
    const process = this.to.process
    if (process === undefined) {
      // a dead machine says nothing at all
      if (this.to.down !== "unplugged") this.refuse()
      return
    }
    const work = this.prepare(this, process)
    if (work === undefined) return this.refuse()
    this.server = process
    process.connections.add(this)
    process.enqueue(() => {
      this.to.reach(this.route.serving)
      if (!process.alive) return
      // paused right here: what a store does in one step must wait like any fiber
      if (this.to.paused) process.enqueue(work)
      else work()
    })
  }

  /** The handler as a fiber of the server. */
  run(process: Process, effect: Effect.Effect<A, E, Ambient>): void {
    const fiber = process.fork(effect)
    if (this.handler === undefined || !this.handler.process.alive) this.handler = { process, fiber }
    fiber.addObserver((exit) => this.finish(process, exit))
  }

  /** The server is done; whether the caller will hear of it is another matter. */
  finish(process: Process, exit: Exit.Exit<A, E>): void {
    if (!process.alive) return
    this.to.reach(this.route.served)
    if (!process.alive) return
    if (this.to.paused) process.enqueue(() => this.respond(process, exit))
    else this.respond(process, exit)
  }

  private respond(process: Process, exit: Exit.Exit<A, E>): void {
    process.connections.delete(this)
    this.answer(this.asSeenByCaller(exit))
    this.to.see(this.route.answer)
  }

  /** Answers have the number of their request, so that a plan can name both. */
  private answer(result: Effect.Effect<A, E | F>): void {
    const { answer } = this.route
    if (answer.count < this.nth) answer.count = this.nth
    answer.link.send(answer, this.nth, () => this.answered(result))
  }

  /** A handler's typed failure travels; its interruption is a closed connection and its defect a 500. */
  private asSeenByCaller(exit: Exit.Exit<A, E>): Effect.Effect<A, E | F> {
    if (exit._tag === "Success") return exit
    if (Cause.hasDies(exit.cause)) {
      this.network.world.defects.push(
        `${this.to.name} died in ${this.route.request.label}: ${Cause.pretty(exit.cause).split("\n")[0]}`
      )
      return this.failed("defect")
    }
    if (Cause.hasFails(exit.cause)) return exit
    return this.failed("reset")
  }

  private failed(reason: CallFailed["reason"]): Effect.Effect<never, F> {
    const unanswered = this.options?.unanswered
    return Effect.fail(
      unanswered === undefined
        ? // Where nothing else is said, F is its default.
          (new CallFailed({ reason, to: this.to.name, label: this.route.request.label }) as F)
        : unanswered(reason)
    )
  }

  private refuse(): void {
    this.network.world.record(this.to, What.refused, this.route.answer, this.nth)
    this.answer(this.failed("refused"))
  }

  /** The answer is at the caller's machine. If the caller is dead or has given up, nobody is there to read it. */
  private answered(result: Effect.Effect<A, E | F>): void {
    if (this.settled) return
    this.from.enqueue(() => {
      if (this.settled) return
      this.settle()
      this.from.node.reach(this.route.after)
      // paused here, the guard stops the fiber at its first operation
      this.resume(result)
    })
  }

  private settle(): void {
    this.settled = true
    this.deadline?.cancel()
    this.from.connections.delete(this)
  }

  private expire(): void {
    this.from.enqueue(() => {
      if (this.settled) return
      this.network.world.record(this.from.node, What.timeout, this.route.request, this.nth)
      this.giveUp()
      this.resume(this.failed("timeout"))
    })
  }

  /** The caller was interrupted or has waited long enough: it closes the connection. */
  giveUp(): void {
    if (this.settled) return
    this.settle()
    if (this.network.abort && this.nth > 0) this.close()
  }

  /** Tells the server that nobody waits any more. Counts as no message: it must not renumber the requests. */
  private close(): void {
    const link = this.route.request.link
    this.network.world.after(link.conditions.latencyMicros, () => {
      const process = this.server
      if (process === undefined || !process.alive || !link.open) return
      process.connections.delete(this)
      process.enqueue(() => {
        // the first copy may have been handled by a process that is dead now, and this one by its successor
        if (this.handler?.process === process) this.handler.fiber.interruptUnsafe()
      })
    })
  }

  /** One of the two processes has died; its machine tells the other end. */
  lost(process: Process): void {
    if (process === this.from) {
      this.settled = true
      if (this.network.abort) this.close()
      return
    }
    this.network.world.record(this.to, What.reset, this.route.answer, this.nth)
    this.answer(this.failed("reset"))
  }
}
