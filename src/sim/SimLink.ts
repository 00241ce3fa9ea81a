/**
 * Directed links between machines: what happens to one message on its way.
 *
 * A message is named by link, label and number (`w1>rail submit#1`), its answer by the same number on the way back
 * (`rail>w1 submit#1`). Faults are planted under that name and all draws are keyed by it, so "lose the answer to w1's first
 * submit" means the same whatever else happens in the run.
 */
import { hashText, mix, namesOf, Purpose, type Named } from "./Draw.ts"
import type { Node } from "./Node.ts"
import type { Point } from "./Point.ts"
import { What } from "./Trace.ts"
import type { VirtualWorld } from "./VirtualWorld.ts"

export interface LinkConditions {
  /** Shortest time of a message on its way. Default 500. */
  readonly latencyMicros: number
  /** Most that is drawn on top per message: messages overtake each other. Default 0. */
  readonly jitterMicros: number
  /** How many in a thousand messages are lost, come twice, or come late. Default 0. */
  readonly lossPerMille: number
  readonly duplicatePerMille: number
  readonly latePerMille: number
  /** How late a late message or second copy is at most. Default 10 s. */
  readonly lateMicrosMax: number
}

export const calm: LinkConditions = {
  latencyMicros: 500,
  jitterMicros: 0,
  lossPerMille: 0,
  duplicatePerMille: 0,
  latePerMille: 0,
  lateMicrosMax: 10_000_000
}

/** What is planted on one message. */
export type MessageFault =
  | { readonly do: "drop" }
  | { readonly do: "delay"; readonly micros: number }
  | { readonly do: "duplicate"; readonly micros: number }

const linkName = namesOf((from, to) => `${from}>${to}`)
const requestName = namesOf((link, label) => `${link} ${label}`)
const answerName = namesOf((link, label) => `${link} ${label} answer`)

/** All messages of one label in one direction. */
export class Channel implements Named {
  readonly link: Link
  readonly label: string
  readonly leg: "request" | "answer"
  readonly name: string
  readonly key: number
  /** The highest number sent. */
  count = 0
  /** Made with the first: most channels have none. */
  faults: Map<number, Array<{ readonly fault: MessageFault; readonly onHit: () => void }>> | undefined

  constructor(link: Link, label: string, leg: "request" | "answer") {
    this.link = link
    this.label = label
    this.leg = leg
    this.name = leg === "request" ? requestName(link.name, label) : answerName(link.name, label)
    this.key = hashText(this.name)
  }

  plant(nth: number, fault: MessageFault, onHit: () => void): void {
    const faults = (this.faults ??= new Map())
    const planted = faults.get(nth)
    if (planted === undefined) faults.set(nth, [{ fault, onHit }])
    else planted.push({ fault, onHit })
  }
}

/** Everything one label needs between two nodes, looked up once per call. */
export interface Route {
  readonly request: Channel
  readonly answer: Channel
  /** On the caller: about to send; the answer is here but the program has not seen it. */
  readonly before: Point
  readonly after: Point
  /** On the server: about to handle; handled (committed) but not answered. */
  readonly serving: Point
  readonly served: Point
}

export class Link implements Named {
  readonly world: VirtualWorld
  readonly from: Node
  readonly to: Node
  readonly name: string
  readonly key: number
  conditions: LinkConditions
  /** False for a connection that cannot deliver a message twice, as that of a database client. */
  duplicates = true
  readonly requests = new Map<string, Channel>()
  readonly answers = new Map<string, Channel>()
  readonly routes = new Map<string, Route>()
  /** Cuts in force. They may overlap, hence counted. */
  private dropping = 0
  private stalling = 0
  /** What a stalling cut holds back, until it is healed. */
  private readonly held: Array<() => void> = []

  constructor(world: VirtualWorld, from: Node, to: Node, conditions: LinkConditions) {
    this.world = world
    this.from = from
    this.to = to
    this.name = linkName(from.name, to.name)
    this.key = hashText(this.name)
    this.conditions = conditions
  }

  channel(label: string, leg: "request" | "answer"): Channel {
    const channels = leg === "request" ? this.requests : this.answers
    let channel = channels.get(label)
    if (channel === undefined) {
      channel = new Channel(this, label, leg)
      channels.set(label, channel)
    }
    return channel
  }

  /** Whether messages pass. */
  get open(): boolean {
    return this.dropping === 0 && this.stalling === 0
  }

  /**
   * Nothing passes any more in this direction. `drop` loses what is sent or arrives meanwhile; `stall` delivers it after
   * healing, as TCP does: that is how a write comes back from the dead.
   */
  cut(how: "drop" | "stall"): void {
    this.world.record(this.from, What.cut, this, how === "stall" ? 1 : 0)
    if (how === "drop") this.dropping++
    else this.stalling++
  }

  /** Ends one cut. */
  heal(how: "drop" | "stall"): void {
    if (how === "drop" ? this.dropping === 0 : this.stalling === 0) return
    this.world.record(this.from, What.heal, this, how === "stall" ? 1 : 0)
    if (how === "drop") this.dropping--
    else this.stalling--
    this.release()
  }

  healAll(): void {
    while (this.dropping > 0) this.heal("drop")
    while (this.stalling > 0) this.heal("stall")
  }

  private release(): void {
    if (this.stalling > 0 || this.held.length === 0) return
    const { latencyMicros } = this.conditions
    for (const arrive of this.held.splice(0)) this.world.after(latencyMicros, arrive)
  }

  /**
   * One message, one way. `arrive` happens never, once or twice, at the machine at the other end, whether or not the sender
   * still lives: what has been sent is not called back.
   */
  send(channel: Channel, nth: number, arrive: () => void): void {
    const { world, conditions } = this
    world.record(this.from, What.send, channel, nth)
    let delay = conditions.latencyMicros
    if (conditions.jitterMicros > 0) {
      delay += mix(world.seed, Purpose.latency, channel.key, nth) % (conditions.jitterMicros + 1)
    }
    let second = -1
    if (channel.faults !== undefined) {
      for (const { fault, onHit } of channel.faults.get(nth) ?? []) {
        onHit()
        if (fault.do === "drop") {
          world.record(this.from, What.lost, channel, nth)
          return
        }
        if (fault.do === "delay") delay += fault.micros
        else if (this.duplicates) second = fault.micros
        world.record(this.from, fault.do === "delay" ? What.delay : What.duplicate, channel, nth)
      }
    }
    if (conditions.lossPerMille > 0 && this.drawn(Purpose.loss, channel, nth, conditions.lossPerMille)) {
      world.record(this.from, What.lost, channel, nth)
      return
    }
    if (conditions.latePerMille > 0 && this.drawn(Purpose.late, channel, nth, conditions.latePerMille)) {
      delay += this.lateness(channel, nth)
      world.record(this.from, What.delay, channel, nth)
    }
    if (
      this.duplicates &&
      conditions.duplicatePerMille > 0 &&
      this.drawn(Purpose.duplicate, channel, nth, conditions.duplicatePerMille)
    ) {
      second = this.lateness(channel, nth)
      world.record(this.from, What.duplicate, channel, nth)
    }
    if (this.dropping > 0) {
      world.record(this.from, What.lost, channel, nth)
      return
    }
    const arrived = (): void => this.arrived(channel, nth, arrive)
    world.after(delay, arrived, undefined, channel.key ^ nth)
    if (second >= 0) world.after(delay + second, arrived, undefined, channel.key ^ nth)
  }

  private drawn(purpose: number, channel: Channel, nth: number, perMille: number): boolean {
    return mix(this.world.seed, purpose, channel.key, nth) % 1000 < perMille
  }

  private lateness(channel: Channel, nth: number): number {
    return mix(this.world.seed, Purpose.late, channel.key ^ 1, nth) % (this.conditions.lateMicrosMax + 1)
  }

  /** At the end of its way a message still has to get through whatever cut began meanwhile. */
  private arrived(channel: Channel, nth: number, arrive: () => void): void {
    if (this.dropping > 0) {
      this.world.record(this.to, What.lost, channel, nth)
    } else if (this.stalling > 0) {
      this.held.push(() => this.arrived(channel, nth, arrive))
    } else {
      this.world.record(this.to, What.arrive, channel, nth)
      arrive()
    }
  }
}
