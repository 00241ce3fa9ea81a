/**
 * A participant: the machine (`Node`), which outlives its processes, and one incarnation of its program (`Process`), which
 * is also the Effect scheduler of all its fibers.
 *
 * How a fiber is kept under control. Effect asks `shouldYield` before every operation; answering yes puts the rest of the
 * fiber behind `scheduleTask`, which is our run queue. So
 * - a *pause* is a very long slice: `busyUntil` lies in the future, every fiber of the node stops at its next operation,
 *   timers and messages pile up in the run queue and run late, and the clocks have jumped;
 * - a *kill* drops the run queue: nobody can resume the fibers any more, so no finalizer runs;
 * - a resumption that did not come out of the run queue (`Deferred.succeed`, `Latch.open`, an interruption evaluate the
 *   waiter on the completer's stack) is recognised by `currentOpCount === 1` and sent through the run queue. If the
 *   completer belongs to another node, the two share something that no network would carry: a leak.
 */
import { Effect, type Context, type Exit, Fiber, type Scheduler } from "effect"
import { processContext, type Ambient } from "./Ambient.ts"
import { hashText, mix, Purpose, type Named } from "./Draw.ts"
import { isEnding } from "./Ending.ts"
import type { EventOwner } from "./EventQueue.ts"
import { Lane } from "./Lane.ts"
import { add, fire, Point } from "./Point.ts"
import { nothing, What } from "./Trace.ts"
import type { VirtualWorld } from "./VirtualWorld.ts"

/**
 * What a node runs. Called once per incarnation: build the Layers inside, on the process's own clock and scheduler. It deals
 * with its failures itself; what is left is a defect, and that is a bug.
 */
export type Program = (process: Process) => Effect.Effect<unknown, never, Ambient>

/**
 * Why a node has no process: never started, came to an end, was killed, or its machine is without power. The last alone
 * does not even refuse connections.
 */
export type Down = "new" | "ended" | "killed" | "unplugged"

export interface NodeOptions {
  readonly program?: Program
  /** Runs for ever by design, so that it is not asked whether it came to an end. Default false. */
  readonly daemon?: boolean
  /** The wall clock's error at the beginning. Default 0. */
  readonly wallOffsetMillis?: number
  /** How much faster the wall clock runs than virtual time, in millionths. Default 0. */
  readonly wallDriftPpm?: number
  /** The same for the monotonic clock, and so for timers. Default 0. */
  readonly monotonicDriftPpm?: number
}

/** The wall clock of a node without error shows this when a world begins. */
const epochMillis = Date.UTC(2026, 0, 1)

interface Mark {
  at: number
  count: number
}

/** Told when a process is gone, so that the peers of its connections can notice. */
export interface Connection {
  lost(process: Process): void
}

export class Node implements Named {
  readonly world: VirtualWorld
  readonly index: number
  readonly name: string
  readonly key: number
  readonly daemon: boolean
  program: Program | undefined
  process: Process | undefined
  /** Undefined while it has a process. */
  down: Down | undefined = "new"
  /** Processes started so far. */
  boots = 0
  /** How the programs that came to an end by themselves, or were stopped, ended. */
  readonly exits: Array<Exit.Exit<unknown>> = []
  /** The CPU is taken until then: by a slice, or by a pause. */
  busyUntil = 0
  /** In the world's list of nodes with work. */
  working = false
  /** Tasks in the run queue. */
  pending = 0
  /** Slices, Effect operations and visible operations so far, over all processes. */
  slices = 0
  ops = 0
  visible = 0
  /** Names of the visible operations, if the world keeps them. */
  readonly visibleNames: Array<string> = []
  wallOffsetMicros: number
  wallRate: number
  monotonicRate: number
  private readonly points = new Map<string, Point>()
  private readonly marks = new Map<string, Mark>()
  private readonly markTriggers = new Map<string, Array<(at: number, nth: number) => void>>()
  private readonly visibleTriggers = new Map<number, Array<() => void>>()
  private readonly opTriggers = new Map<number, Array<() => void>>()

  constructor(world: VirtualWorld, index: number, name: string, options: NodeOptions) {
    this.world = world
    this.index = index
    this.name = name
    this.key = hashText(name)
    this.program = options.program
    this.daemon = options.daemon ?? false
    this.wallOffsetMicros = Math.round((options.wallOffsetMillis ?? 0) * 1000)
    this.wallRate = 1 + (options.wallDriftPpm ?? 0) * 1e-6
    this.monotonicRate = 1 + (options.monotonicDriftPpm ?? 0) * 1e-6
  }

  /** Starts a process, with the program of the node or a new one. A node without a program only serves. */
  start(program: Program | undefined = this.program): Process {
    this.kill()
    this.program = program
    this.boots++
    this.down = undefined
    this.world.record(this, What.start, nothing, this.boots)
    const process = new Process(this)
    this.process = process
    if (program !== undefined) process.launch(program)
    return process
  }

  /**
   * SIGKILL, or the plug pulled. Fibers are dropped and no finalizer runs. After a killed process the machine still refuses
   * connections and resets those that were open; a dead machine says nothing.
   */
  kill(how: "process" | "machine" = "process"): void {
    const process = this.process
    if (process === undefined) return
    this.world.record(this, What.kill, nothing, how === "machine" ? 1 : 0)
    this.down = how === "machine" ? "unplugged" : "killed"
    this.drop(process, how === "process")
  }

  /** Killed for good: nothing that is still planned starts it again. */
  retire(): void {
    this.kill()
    this.down = "ended"
  }

  /** SIGTERM: the program is interrupted and runs its finalizers, in virtual time. */
  stop(): void {
    this.process?.interrupt()
  }

  /** SIGSTOP, a GC pause, a throttled container: nothing of this node runs for so long. */
  pause(micros: number): void {
    if (this.process === undefined || micros <= 0) return
    this.world.record(this, What.pause, nothing, micros)
    const until = this.world.now + micros
    if (until > this.busyUntil) this.busyUntil = until
  }

  /** SIGCONT: ends a pause early. */
  resume(): void {
    if (this.busyUntil <= this.world.now) return
    this.world.record(this, What.resume, nothing)
    this.busyUntil = this.world.now
  }

  /** An operator, or NTP, sets the wall clock. The monotonic clock does not notice. */
  stepWall(millis: number): void {
    this.world.record(this, What.clockStep, nothing, millis)
    this.wallOffsetMicros += Math.round(millis * 1000)
  }

  /** What its wall clock shows: microseconds since the epoch. Looked at from outside, so it is no operation of the node. */
  get wallMicros(): number {
    return epochMillis * 1000 + this.wallOffsetMicros + Math.floor(this.world.now * this.wallRate)
  }

  /** Whether its CPU will be free only later. */
  get paused(): boolean {
    return this.busyUntil > this.world.now
  }

  /** Whether it is down against its will. */
  get killed(): boolean {
    return this.down === "killed" || this.down === "unplugged"
  }

  /** Whether its program should have ended but has not. */
  get hanging(): boolean {
    return !this.daemon && this.process !== undefined && this.program !== undefined
  }

  point(name: string): Point {
    let point = this.points.get(name)
    if (point === undefined) {
      point = new Point(name)
      this.points.set(name, point)
    }
    return point
  }

  /** All points that were visited or have a trigger. */
  get visitedPoints(): ReadonlyArray<Point> {
    return Array.from(this.points.values())
  }

  /** The program is at this point now: planted faults happen here. Afterwards the node may be paused or its process dead. */
  reach(point: Point): void {
    const nth = ++point.visits
    if (point.triggers !== undefined) fire(point.triggers.get(nth))
  }

  /**
   * An operation that others can notice, or that notices them, has just been done: a clock read, a message sent, a named
   * point. What a node does between two of these is invisible, so pausing right after each of them covers all pauses.
   */
  see(what: Named): void {
    const nth = ++this.visible
    // such a region never asks the scheduler: no planted pause or kill would happen in it
    if (Fiber.getCurrent()?.cache.preventYield === true) this.world.leak(`${this.name} uses PreventSchedulerYield`)
    if (this.world.keepVisible) this.visibleNames.push(what.name)
    if (this.visibleTriggers.size > 0) fire(this.visibleTriggers.get(nth))
  }

  /** One Effect operation is about to run. True if a planted fault has stopped the node. */
  countOp(): boolean {
    const nth = ++this.ops
    if (this.opTriggers.size === 0) return false
    const actions = this.opTriggers.get(nth)
    if (actions === undefined) return false
    fire(actions)
    return true
  }

  /** An instant worth aiming at has become known: the end of a lease. In virtual microseconds. */
  mark(name: string, at: number): void {
    const mark = this.marks.get(name)
    const nth = (mark?.count ?? 0) + 1
    if (mark === undefined) this.marks.set(name, { at, count: 1 })
    else {
      mark.at = at
      mark.count = nth
    }
    const triggers = this.markTriggers.get(name)
    if (triggers !== undefined) for (const trigger of triggers) trigger(at, nth)
  }

  /** The latest instant of that name. */
  markedAt(name: string): number | undefined {
    return this.marks.get(name)?.at
  }

  /** At the nth visit of a point. */
  onPoint(name: string, nth: number, action: () => void): void {
    add((this.point(name).triggers ??= new Map()), nth, action)
  }

  /** Right behind the nth visible operation. */
  onVisible(nth: number, action: () => void): void {
    add(this.visibleTriggers, nth, action)
  }

  /** Right before the nth Effect operation. */
  onOp(nth: number, action: () => void): void {
    add(this.opTriggers, nth, action)
  }

  /** So much before (negative) or after the instant that the nth mark of that name names. */
  onMark(name: string, nth: number, plusMicros: number, action: () => void): void {
    const triggers = this.markTriggers.get(name) ?? []
    triggers.push((at, count) => {
      if (count === nth) this.world.at(at + plusMicros, action)
    })
    this.markTriggers.set(name, triggers)
  }

  /** The program has come to an end by itself: like `process.exit`, whatever else was running is dropped. */
  ended(process: Process, exit: Exit.Exit<unknown>): void {
    if (this.process !== process) return
    this.exits.push(exit)
    this.world.record(this, What.end, nothing, exit._tag === "Success" ? 0 : 1)
    this.down = "ended"
    this.drop(process, true)
  }

  private drop(process: Process, noticed: boolean): void {
    process.alive = false
    process.forget()
    this.process = undefined
    this.pending = 0
    this.busyUntil = 0
    const connections = Array.from(process.connections)
    process.connections.clear()
    if (noticed) for (const connection of connections) connection.lost(process)
  }
}

/** Effect's own operation budget (`MaxOpsBeforeYield`): a loop that never waits must not hold the CPU for ever. */
const productionQuantum = 2048

export class Process implements Scheduler.Scheduler, EventOwner {
  readonly executionMode = "sync" as const
  readonly node: Node
  readonly world: VirtualWorld
  /** The node's: keys what is drawn for events of this process. */
  readonly key: number
  /** Which incarnation of its node. */
  readonly boot: number
  /** The root context of all its fibers. */
  readonly context: Context.Context<Ambient>
  alive = true
  /** Open connections, as caller or as server. */
  readonly connections = new Set<Connection>()
  /** Timers started, so that the lateness of each is its own draw. */
  timers = 0
  private readonly tasks: Array<() => void> = []
  /** The lane of each task; kept under `pct` only. */
  private readonly lanes: Array<Lane> = []
  private readonly shared: Lane
  private readonly byPriority: boolean
  private laneCount = 0
  private root: Fiber.Fiber<unknown> | undefined
  private stopping = false
  /** A task taken from the run queue is about to enter its fiber. */
  private entering = false
  /** Operations left in this slice. */
  private left = 0

  constructor(node: Node) {
    this.node = node
    this.world = node.world
    this.key = node.key
    this.boot = node.boots
    this.byPriority = node.world.policy === "pct"
    this.shared = this.newLane()
    this.context = processContext(this)
  }

  makeDispatcher(): Scheduler.SchedulerDispatcher {
    return this.byPriority ? this.newLane() : this.shared
  }

  private newLane(): Lane {
    const nth = this.laneCount++
    return new Lane(this, this.byPriority ? mix(this.world.seed, Purpose.priority, this.node.key ^ this.boot, nth) : 0)
  }

  shouldYield(fiber: Fiber.Fiber<unknown, unknown>): boolean {
    const node = this.node
    if (fiber.currentOpCount === 1) {
      // the run loop was entered just now
      if (this.entering) {
        this.entering = false
        // the point right before may have paused or killed us
        return !this.alive || node.busyUntil > this.world.now
      }
      const running = this.world.running
      this.calledBy(running)
      // A fiber that is interrupted and has nothing left to do but to end needs no turn for that.
      if (running !== this || !(this.world.inlineResume || isEnding(fiber))) return true
    }
    if (!this.alive || node.busyUntil > this.world.now) return true
    if (node.countOp() && (!this.alive || node.busyUntil > this.world.now)) return true
    // Never true at the first operation after a yield: that one is the end of the yield itself, and yielding there again
    // would go on for ever without progress.
    return --this.left <= 0 && !this.goesOn()
  }

  /**
   * The slice is over, but the next one is this fiber's again, for nobody else has anything to do until then: it begins
   * without the detour through the run queue. Three yields in four of a small quantum are like that.
   */
  private goesOn(): boolean {
    const { node, world } = this
    if (world.quantum === 0 || this.tasks.length > 0) return false
    const until = this.sliceEnd(node.slices - 1)
    if (!world.passTo(node, until)) return false
    this.beginSlice()
    // the operation that asked is its first
    this.left--
    return true
  }

  private beginSlice(): void {
    const { node, world } = this
    const nth = node.slices++
    world.trace.slice(world.now, node)
    this.left =
      world.quantum === 0 ? productionQuantum : 2 + (mix(world.seed, Purpose.quantum, node.key, nth) % world.quantum)
  }

  /** When the CPU is free again after the nth slice. */
  private sliceEnd(nth: number): number {
    const { node, world } = this
    const { now, seed, sliceMicrosMax } = world
    return sliceMicrosMax === 0 ? now : now + (mix(seed, Purpose.cost, node.key, nth) % (sliceMicrosMax + 1))
  }

  /** Somebody makes a fiber of this process run: only the process itself may, or an event of the world. */
  calledBy(running: Process | undefined): void {
    if (running === undefined || running === this) return
    const [by, of] = running.node === this.node ? ["a process of ", "its predecessor"] : ["", this.node.name]
    this.world.leak(
      `${by}${running.node.name} resumed a fiber of ${of}: the two share a Deferred, Queue, Latch or Semaphore`
    )
  }

  /** A fiber on this process, from one of its own tasks. */
  fork<A, E>(effect: Effect.Effect<A, E, Ambient>): Fiber.Fiber<A, E> {
    return Effect.runForkWith(this.context)(effect)
  }

  /** Runs something on this process's CPU: message delivery, timers. Forgotten if the process is dead. */
  enqueue(task: () => void): void {
    this.push(task, this.shared)
  }

  push(task: () => void, lane: Lane): void {
    if (!this.alive) return
    this.tasks.push(task)
    if (this.byPriority) this.lanes.push(lane)
    const node = this.node
    node.pending++
    if (!node.working) {
      node.working = true
      this.world.work(node)
    }
  }

  launch(program: Program): void {
    this.enqueue(() => {
      this.root = this.fork(Effect.suspend(() => program(this)))
      this.root.addObserver((exit) => this.node.ended(this, exit))
      if (this.stopping) this.root.interruptUnsafe()
    })
  }

  interrupt(): void {
    this.enqueue(() => {
      // the signal may come before the program has begun
      this.stopping = true
      this.root?.interruptUnsafe()
    })
  }

  /** The lane that would run next under `pct`. */
  highest(): Lane | undefined {
    return this.lanes[this.highestIndex()]
  }

  private highestIndex(): number {
    let best = 0
    for (let i = 1; i < this.lanes.length; i++) if (this.lanes[i]!.priority > this.lanes[best]!.priority) best = i
    return best
  }

  /** Takes one task from the run queue and runs it until it ends, waits or has used up its operations. */
  slice(): void {
    const world = this.world
    const node = this.node
    const tasks = this.tasks
    let index = 0
    if (this.byPriority) index = this.highestIndex()
    else if (world.policy === "random" && tasks.length > 1) {
      index = mix(world.seed, Purpose.slice, node.key, node.slices) % tasks.length
    }
    const task = tasks[index]!
    if (index === 0) tasks.shift()
    else tasks.splice(index, 1)
    node.pending--
    // Under `pct` a message or timer must not run its fiber at the priority of the delivery: the fiber is sent to its own
    // lane by the guard.
    this.entering = !this.byPriority || this.lanes.splice(index, 1)[0] !== this.shared
    this.beginSlice()
    world.running = this
    try {
      task()
    } finally {
      world.running = undefined
      this.entering = false
    }
    if (world.sliceMicrosMax > 0 && this.alive) {
      const until = this.sliceEnd(node.slices - 1)
      if (until > node.busyUntil) node.busyUntil = until
    }
  }

  forget(): void {
    this.tasks.length = 0
    this.lanes.length = 0
  }
}
