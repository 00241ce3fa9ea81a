/**
 * The virtual world: one event queue, one integer clock, many nodes, one thread, one synchronous call.
 *
 * Nothing in a run waits for anything real. A node's fibers run in slices; when no node can run, time jumps to the next
 * event. Everything that could go one way or another (which node, which fiber, how long a slice takes, how late a timer
 * fires) is drawn from the seed, so a run is a function of its options and its plan.
 *
 * Nodes meet only through events of this world (network, stores, test control). Effect's own meeting places (Deferred,
 * Queue, Latch, Semaphore) resume the waiter on the stack of whoever completes them: shared by two nodes they would let a
 * paused node run, and are reported by name.
 */
import { mix, named, Purpose, type Named } from "./Draw.ts"
import { EventQueue, WorldEvent, type EventOwner } from "./EventQueue.ts"
import { LeakError } from "./Leaks.ts"
import type { Lane } from "./Lane.ts"
import { Node, type NodeOptions, type Process } from "./Node.ts"
import { Trace, What } from "./Trace.ts"

/**
 * Who runs next when several could.
 * - `fifo`: in turn; the order that reads best in a counterexample.
 * - `random`: any node, any of its runnable tasks.
 * - `pct`: probabilistic concurrency testing. Every fiber has a random priority, the highest runs, and at a few random
 *   steps it is put last: finds an order of d events with a probability that does not vanish as the run gets longer.
 */
export type Policy = "fifo" | "random" | "pct"

export interface WorldOptions {
  readonly seed: number
  /** Default `fifo`. */
  readonly policy?: Policy
  /**
   * Most Effect operations of a slice beyond the first two, drawn per slice. 0 (default): a fiber keeps the CPU as in
   * production, up to 2048 operations, which hides every race inside a process.
   */
  readonly quantum?: number
  /** Most virtual microseconds that a slice occupies its node's CPU. Default 0. */
  readonly sliceMicrosMax?: number
  /** A timer may fire up to this much before its time (a real one is kept in whole milliseconds). Default 0. */
  readonly timerEarlyMicrosMax?: number
  /** A timer may fire up to this much after its time. Default 0. */
  readonly timerLateMicrosMax?: number
  /**
   * Fibers resumed by a fiber of their own process go on at once, as in production, instead of through the run queue.
   * Fewer orders, about a tenth faster. Default false.
   */
  readonly inlineResume?: boolean
  /** For `pct`: how many events the ordering to be found has (default 3), and the steps a run is expected to take. */
  readonly pctDepth?: number
  readonly pctSteps?: number
  /** Keep the events for reading. Default false: only the hashes. */
  readonly keepTrace?: boolean
  /** Keep the name of every visible operation, for a catalogue of places where a fault can fall. Default false. */
  readonly keepVisible?: boolean
  /** Spans are made, with ids from the seed. Default false: no span costs anything. */
  readonly tracing?: boolean
  /** Each process has its own metrics. Default false: they are counted together and mean nothing. */
  readonly keepMetrics?: boolean
}

/**
 * - `quiescent`: nothing can happen any more
 * - `horizon`: the virtual time limit was reached
 * - `steps`: the slice budget was used up, usually a busy loop
 * - `stopped`: somebody called `stop`
 */
export type StopReason = "quiescent" | "horizon" | "steps" | "stopped"

export class VirtualWorld {
  /** Virtual microseconds since the beginning. */
  now = 0
  /** Slices run. */
  steps = 0
  /** World events run. */
  happened = 0
  readonly seed: number
  readonly policy: Policy
  readonly quantum: number
  readonly sliceMicrosMax: number
  readonly timerEarlyMicrosMax: number
  readonly timerLateMicrosMax: number
  readonly inlineResume: boolean
  readonly keepVisible: boolean
  readonly tracing: boolean
  readonly keepMetrics: boolean
  readonly trace: Trace
  readonly nodes: Array<Node> = []
  /** The process whose slice is on the stack. */
  running: Process | undefined
  /** Defects of handlers: each is a bug in the program or a leak, never an answer. */
  readonly defects: Array<string> = []
  private readonly events = new EventQueue()
  /** Nodes with something in their run queue, in the order of their turn. */
  private readonly working: Array<Node> = []
  /** When the first busy node with work is free. Set by `pickNode`. */
  private wake = Infinity
  private seq = 0
  private leaked: string | undefined
  private stopping = false
  private inRun = false
  /** Of the run that is going on: its last slice and its end. */
  private stepsLast = 0
  private untilMicros = 0
  private readonly changePoints: ReadonlySet<number>

  constructor(options: WorldOptions) {
    this.seed = options.seed
    this.policy = options.policy ?? "fifo"
    this.quantum = options.quantum ?? 0
    this.sliceMicrosMax = options.sliceMicrosMax ?? 0
    this.timerEarlyMicrosMax = options.timerEarlyMicrosMax ?? 0
    this.timerLateMicrosMax = options.timerLateMicrosMax ?? 0
    this.inlineResume = options.inlineResume ?? false
    this.keepVisible = options.keepVisible ?? false
    this.tracing = options.tracing ?? false
    this.keepMetrics = options.keepMetrics ?? false
    this.trace = new Trace(options.keepTrace ?? false)
    const changePoints = new Set<number>()
    if (this.policy === "pct") {
      const steps = options.pctSteps ?? 1000
      for (let i = 1; i < (options.pctDepth ?? 3); i++) changePoints.add(mix(this.seed, Purpose.change, i) % steps)
    }
    this.changePoints = changePoints
  }

  node(name: string, options: NodeOptions = {}): Node {
    if (this.nodes.some((node) => node.name === name)) throw new Error(`two nodes are called ${name}`)
    const node = new Node(this, this.nodes.length, name, options)
    this.nodes.push(node)
    return node
  }

  /**
   * Something happens at a virtual time. With an owner it happens only if the owner is still alive. Events of the same
   * microsecond happen in the order in which they were made; under other policies than `fifo` in a drawn one, except those
   * of the same key, by default that of the owner.
   */
  at(time: number, run: () => void, owner?: EventOwner, key: number = owner?.key ?? 0): WorldEvent {
    const at = time < this.now ? this.now : time
    const tie = this.policy === "fifo" ? 0 : mix(this.seed, Purpose.tie, key, at)
    const event = new WorldEvent(at, tie, this.seq++, owner, run)
    this.events.push(event)
    return event
  }

  after(micros: number, run: () => void, owner?: EventOwner, key?: number): WorldEvent {
    return this.at(this.now + micros, run, owner, key)
  }

  /** Ends the run after the current slice: the goal is reached although servers would go on for ever. */
  stop(): void {
    this.stopping = true
  }

  /** Reports something that no simulated program may do. The run ends with a `LeakError` naming it. */
  leak(what: string): void {
    this.leaked ??= what
  }

  record(node: Named, what: Named, subject: Named, value = 0): void {
    this.trace.record(this.now, node, what, subject, value)
  }

  /** Something the program's own world wants to see in the trace, and in its hash. */
  note(node: Named, text: string, value = 0): void {
    this.record(node, What.note, named(text), value)
  }

  /** Runs until nothing can happen any more, the horizon, or the step budget. Synchronous; may be called again. */
  run(untilMicros = Infinity, stepsMax = 1_000_000): StopReason {
    if (this.inRun) throw new Error("a world cannot be run from inside itself")
    this.inRun = true
    const last = this.steps + stepsMax
    this.stepsLast = last
    this.untilMicros = untilMicros
    try {
      for (;;) {
        if (this.leaked !== undefined) throw new LeakError(this.leaked)
        if (this.stopping) {
          this.stopping = false
          return "stopped"
        }
        const event = this.events.peek()
        if (event !== undefined && event.at <= this.now) {
          this.happen(event)
          continue
        }
        const node = this.pickNode()
        if (node !== undefined) {
          if (this.steps >= last) return "steps"
          this.steps++
          node.process!.slice()
          continue
        }
        const next = event !== undefined && event.at <= this.wake ? event.at : this.wake
        if (next === Infinity) return "quiescent"
        if (next > untilMicros) {
          this.now = untilMicros
          return "horizon"
        }
        this.now = next
      }
    } finally {
      this.inRun = false
    }
  }

  /**
   * Lets a node that is in its slice go on at `until`, if nothing else can happen before: no event, and, where time passes,
   * no other node. (At one and the same time the order of two nodes makes no difference to them: messages take time.)
   */
  passTo(node: Node, until: number): boolean {
    if (this.steps >= this.stepsLast || until > this.untilMicros || this.stopping) return false
    const event = this.events.peek()
    if (event !== undefined && event.at <= until) return false
    if (until > this.now) {
      for (const other of this.working) if (other !== node && other.pending > 0) return false
    }
    if (this.changePoints.has(this.steps)) return false
    this.steps++
    this.now = until
    return true
  }

  private happen(event: WorldEvent): void {
    this.events.pop()
    const run = event.run!
    // a timer that has fired can no longer be cancelled, and lets go of what it holds
    event.run = undefined
    this.happened++
    run()
  }

  /** A node has got work: it takes its turn behind those which already have some. */
  work(node: Node): void {
    this.working.push(node)
  }

  private pickNode(): Node | undefined {
    const working = this.working
    const now = this.now
    let ready = 0
    let wake = Infinity
    let kept = 0
    for (let i = 0; i < working.length; i++) {
      const node = working[i]!
      // emptied by its last slice, or killed
      if (node.pending === 0) {
        node.working = false
        continue
      }
      working[kept++] = node
      if (node.busyUntil <= now) ready++
      else if (node.busyUntil < wake) wake = node.busyUntil
    }
    working.length = kept
    this.wake = wake
    if (ready === 0) return undefined
    if (this.policy === "pct") return this.pickByPriority()
    const index = ready > 1 && this.policy === "random" ? this.drawnNode() : this.firstNode()
    const node = working[index]
    // to the end of the row, so that a node which never runs out of work does not starve the others
    if (node !== undefined && index < kept - 1) {
      working.splice(index, 1)
      working.push(node)
    }
    return node
  }

  private firstNode(): number {
    for (let i = 0; i < this.working.length; i++) if (this.working[i]!.busyUntil <= this.now) return i
    return -1
  }

  /**
   * Each ready node holds a number drawn for its coming slice, and the lowest goes first. Whether w1's third slice goes
   * before w2's second does therefore not depend on how many slices the rest of the world has had.
   */
  private drawnNode(): number {
    let best = -1
    let lowest = Infinity
    for (let i = 0; i < this.working.length; i++) {
      const node = this.working[i]!
      if (node.busyUntil > this.now) continue
      const drawn = mix(this.seed, Purpose.node, node.key, node.slices)
      if (drawn < lowest) {
        lowest = drawn
        best = i
      }
    }
    return best
  }

  /** The node with the fiber of the highest priority; at a change point that fiber is put behind all others first. */
  private pickByPriority(): Node | undefined {
    if (this.changePoints.has(this.steps)) {
      const lane = this.highest()?.process?.highest()
      if (lane !== undefined) lane.priority = -1 - this.steps
    }
    return this.highest()
  }

  private highest(): Node | undefined {
    let best: Node | undefined
    let top: Lane | undefined
    for (const node of this.working) {
      if (node.busyUntil > this.now) continue
      const lane = node.process?.highest()
      if (lane !== undefined && (top === undefined || lane.priority > top.priority)) {
        best = node
        top = lane
      }
    }
    return best
  }
}
