/**
 * Every single fault that can befall a run, read off the same run without faults: each message lost, late or doubled; a pause
 * or a kill right behind each visible operation. Running them all, and all pairs of them, needs no luck, and its
 * counterexamples are minimal by construction.
 *
 * Right behind each visible operation is enough: what a node does between two of them nobody else can notice, so a pause
 * anywhere in between is the same run. That replaces hundreds of operations, or infinitely many times, by a few dozen places.
 */
import type { Fault } from "./FaultPlan.ts"
import type { Node } from "./Node.ts"
import type { Channel } from "./SimLink.ts"
import type { SimNetwork } from "./SimNetwork.ts"

export interface CatalogueOptions {
  /** Pauses to try at each place: around the lease, or they show nothing. */
  readonly pauseMillis: ReadonlyArray<number>
  readonly delayMillis: ReadonlyArray<number>
  readonly duplicateMillis: ReadonlyArray<number>
  /** How long a killed node stays down; null is for ever. */
  readonly downMillis: ReadonlyArray<number | null>
  /** Which nodes are stopped and killed. Default: all. */
  readonly node?: (node: Node) => boolean
  /** Which messages are touched. Default: all. */
  readonly message?: (channel: Channel) => boolean
  /** Most visible operations per node, and messages per channel, that are considered. Default: all. */
  readonly visibleMax?: number
  readonly messagesMax?: number
}

/** The faults of a finished run without faults. */
export const catalogue = (network: SimNetwork, options: CatalogueOptions): ReadonlyArray<Fault> => {
  const faults: Array<Fault> = []
  for (const node of network.world.nodes) {
    if (options.node?.(node) === false) continue
    const last = Math.min(node.visible, options.visibleMax ?? Infinity)
    for (let nth = 1; nth <= last; nth++) {
      const when = { at: "visible", nth } as const
      for (const millis of options.pauseMillis) faults.push({ kind: "pause", node: node.name, when, millis })
      for (const downMillis of options.downMillis) {
        faults.push({ kind: "kill", node: node.name, when, how: "process", downMillis })
      }
    }
  }
  for (const link of network.allLinks) {
    for (const channel of [...link.requests.values(), ...link.answers.values()]) {
      if (options.message?.(channel) === false) continue
      const last = Math.min(channel.count, options.messagesMax ?? Infinity)
      for (let nth = 1; nth <= last; nth++) faults.push(...onMessage(channel, nth, options))
    }
  }
  return faults
}

const onMessage = (channel: Channel, nth: number, options: CatalogueOptions): ReadonlyArray<Fault> => {
  const { label, leg, link } = channel
  // a plan names the call, so its sender is that of the request on both legs
  const [from, to] = leg === "request" ? [link.from.name, link.to.name] : [link.to.name, link.from.name]
  const message = { from, to, label, leg, nth }
  const faults: Array<Fault> = [{ kind: "drop", ...message, millis: 0 }]
  for (const millis of options.delayMillis) faults.push({ kind: "delay", ...message, millis })
  if (link.duplicates)
    for (const millis of options.duplicateMillis) faults.push({ kind: "duplicate", ...message, millis })
  return faults
}
