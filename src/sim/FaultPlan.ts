/**
 * Faults as plain data: printed before a run, pasted to replay it, shrunk when it fails.
 *
 * Each names its place by something that survives the shrinking of everything else: "w1's first submit", not "the 1234th
 * step". What is sudden (pause, kill, a clock step) has a `when`; what befalls a message names the message.
 */
import { Schema } from "effect"
import type { Node } from "./Node.ts"
import { calm, type MessageFault } from "./SimLink.ts"
import type { SimNetwork } from "./SimNetwork.ts"

const Nth = Schema.Int.check(Schema.isGreaterThanOrEqualTo(1))
const Millis = Schema.Finite
const NodeName = Schema.String

/**
 * When something sudden happens.
 * - `point`: at the nth visit of a named point of the node, `submit.before`
 * - `visible`: right behind the nth operation that others can notice
 * - `op`: right before the nth Effect operation
 * - `time`: so long after the beginning
 * - `mark`: so long after (negative: before) the instant named by the nth mark, such as the end of a lease
 */
export const When = Schema.Union([
  Schema.Struct({ at: Schema.Literal("point"), name: Schema.String, nth: Nth }),
  Schema.Struct({ at: Schema.Literal("visible"), nth: Nth }),
  Schema.Struct({ at: Schema.Literal("op"), nth: Nth }),
  Schema.Struct({ at: Schema.Literal("time"), millis: Millis }),
  Schema.Struct({ at: Schema.Literal("mark"), name: Schema.String, nth: Nth, plusMillis: Millis })
])
export type When = typeof When.Type

/**
 * Stopped for a while, or until shortly before or after the latest instant of that name. `overtaken` and `passed` are for
 * real processes: until its successor is stopped too, and until the other has submitted; here the length counts.
 */
const Pause = Schema.Struct({
  kind: Schema.Literal("pause"),
  node: NodeName,
  when: When,
  millis: Millis,
  until: Schema.optionalKey(Schema.String)
})

/** No finalizer runs. Restarted after so long, or never. */
const Kill = Schema.Struct({
  kind: Schema.Literal("kill"),
  node: NodeName,
  when: When,
  how: Schema.Literals(["process", "machine"]),
  downMillis: Schema.NullOr(Millis)
})

/** The wall clock is set. */
const ClockStep = Schema.Struct({
  kind: Schema.Literal("clockStep"),
  node: NodeName,
  when: When,
  stepMillis: Millis
})

/** A clock that is wrong from the beginning, and how fast it goes. */
const ClockError = Schema.Struct({
  kind: Schema.Literal("clockError"),
  node: NodeName,
  offsetMillis: Millis,
  wallDriftPpm: Millis,
  monotonicDriftPpm: Millis
})

/** What happens to one message. `from` is the sender of the request, also when `leg` is its answer. */
const Message = Schema.Struct({
  kind: Schema.Literals(["drop", "delay", "duplicate"]),
  from: NodeName,
  to: NodeName,
  label: Schema.String,
  leg: Schema.Literals(["request", "answer"]),
  nth: Nth,
  /** How late it, or its second copy, is. Not used by `drop`. */
  millis: Millis
})

/** Nothing passes from one to the other, or neither way. `stall`: delivered after healing, as TCP does. */
const Cut = Schema.Struct({
  kind: Schema.Literal("cut"),
  from: NodeName,
  to: NodeName,
  both: Schema.Boolean,
  how: Schema.Literals(["drop", "stall"]),
  atMillis: Millis,
  millis: Millis
})

export const Fault = Schema.Union([Pause, Kill, ClockStep, ClockError, Message, Cut])
export type Fault = typeof Fault.Type

export const FaultPlan = Schema.Array(Fault)
export type FaultPlan = typeof FaultPlan.Type

/** What became of a plan. */
export interface Applied {
  /** How often each fault of the plan has happened. A plan whose faults never happen proves nothing. */
  readonly hits: ReadonlyArray<number>
}

const micros = (millis: number): number => Math.round(millis * 1000)

/** Plants a plan in a world. Before the run, or at least before what it names. */
export const apply = (plan: FaultPlan, network: SimNetwork): Applied => {
  const hits = plan.map(() => 0)
  const nodes = new Map(network.world.nodes.map((node) => [node.name, node]))
  const find = (name: string): Node => {
    const node = nodes.get(name)
    if (node === undefined) throw new Error(`the plan names a node that does not exist: ${name}`)
    return node
  }
  plan.forEach((fault, index) => {
    const hit = (): void => {
      hits[index] = (hits[index] ?? 0) + 1
    }
    // every planted action asks whether the fault phase is still on, whatever triggers it
    const inPhase = (action: () => void) => (): void => {
      if (!network.healed) action()
    }
    plant(fault, network, find, hit, inPhase)
  })
  return { hits }
}

const plant = (
  fault: Fault,
  network: SimNetwork,
  find: (name: string) => Node,
  hit: () => void,
  inPhase: (action: () => void) => () => void
): void => {
  const { world } = network
  switch (fault.kind) {
    case "pause": {
      const node = find(fault.node)
      return arm(
        node,
        fault.when,
        inPhase(() => {
          const until = fault.until === undefined ? undefined : node.markedAt(fault.until)
          const length = (until === undefined ? 0 : until - world.now) + micros(fault.millis)
          if (node.process === undefined || length <= 0) return
          hit()
          node.pause(length)
        })
      )
    }
    case "kill": {
      const node = find(fault.node)
      return arm(
        node,
        fault.when,
        inPhase(() => {
          if (node.process === undefined) return
          hit()
          node.kill(fault.how)
          if (fault.downMillis === null) return
          world.after(micros(fault.downMillis), () => {
            // somebody else may have restarted it, and it may even have come to its end since
            if (node.killed) node.start()
          })
        })
      )
    }
    case "clockStep": {
      const node = find(fault.node)
      return arm(
        node,
        fault.when,
        inPhase(() => {
          hit()
          node.stepWall(fault.stepMillis)
        })
      )
    }
    case "clockError": {
      const node = find(fault.node)
      hit()
      node.wallOffsetMicros += micros(fault.offsetMillis)
      node.wallRate = 1 + fault.wallDriftPpm * 1e-6
      node.monotonicRate = 1 + fault.monotonicDriftPpm * 1e-6
      return
    }
    case "cut": {
      const links = [network.link(find(fault.from), find(fault.to))]
      if (fault.both) links.push(network.link(find(fault.to), find(fault.from)))
      const cut = (): void => {
        hit()
        for (const link of links) link.cut(fault.how)
        const mend = (): void => links.forEach((link) => link.heal(fault.how))
        world.after(micros(fault.millis), inPhase(mend))
      }
      world.at(micros(fault.atMillis), inPhase(cut))
      return
    }
    case "drop":
    case "delay":
    case "duplicate": {
      const [from, to] = fault.leg === "request" ? [fault.from, fault.to] : [fault.to, fault.from]
      const planted: MessageFault =
        fault.kind === "drop" ? { do: "drop" } : { do: fault.kind, micros: micros(fault.millis) }
      return network.link(find(from), find(to)).channel(fault.label, fault.leg).plant(fault.nth, planted, hit)
    }
  }
}

const arm = (node: Node, when: When, action: () => void): void => {
  switch (when.at) {
    case "point":
      return node.onPoint(when.name, when.nth, action)
    case "visible":
      return node.onVisible(when.nth, action)
    case "op":
      return node.onOp(when.nth, action)
    case "time":
      node.world.at(micros(when.millis), action)
      return
    case "mark":
      return node.onMark(when.name, when.nth, micros(when.plusMillis), action)
  }
}

/**
 * The end of the fault phase, after which progress may be demanded: links healed, messages neither lost nor late, pauses
 * over, the dead restarted, and nothing planted happens any more. Clocks stay as wrong as they are.
 */
export const heal = (network: SimNetwork): void => {
  network.healed = true
  const { jitterMicros, latencyMicros } = network.conditions
  network.setConditions({ ...calm, latencyMicros, jitterMicros })
  for (const link of network.allLinks) {
    link.healAll()
    for (const channel of [...link.requests.values(), ...link.answers.values()]) channel.faults = undefined
  }
  for (const node of network.world.nodes) {
    node.resume()
    if (node.killed) node.start()
  }
}
