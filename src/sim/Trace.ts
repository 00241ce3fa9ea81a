/**
 * What happened in a run: a rolling hash always, the events themselves only when somebody wants to read them.
 *
 * Two hashes, because they answer different questions. `hash` covers what the participants could see of each other
 * (messages, faults, starts and ends): two wires, or two machines, agree on it. `scheduleHash` also covers every slice of
 * every node: it differs as soon as anything inside a process ran in another order, so it is the stricter determinism test.
 * Neither contains a fiber id (a counter of the operating system's process, not of the run) nor an object's identity.
 */
import { named, type Named } from "./Draw.ts"

export interface TraceEvent {
  /** Virtual microseconds. */
  readonly at: number
  readonly node: string
  readonly what: string
  readonly subject: string
  readonly value: number
}

/** The kinds of event, hashed once. */
export const What = {
  start: named("start"),
  end: named("end"),
  kill: named("kill"),
  pause: named("pause"),
  resume: named("resume"),
  clockStep: named("clock step"),
  point: named("point"),
  send: named("send"),
  arrive: named("arrive"),
  lost: named("lost"),
  duplicate: named("duplicate"),
  delay: named("delay"),
  cut: named("cut"),
  heal: named("heal"),
  refused: named("refused"),
  reset: named("reset"),
  timeout: named("timeout"),
  note: named("note")
} as const

export const nothing: Named = named("")

const step = (h: number, x: number): number => {
  const k = Math.imul(x, 0xcc9e2d51)
  const r = h ^ Math.imul((k << 15) | (k >>> 17), 0x1b873593)
  return (Math.imul((r << 13) | (r >>> 19), 5) + 0xe6546b64) | 0
}

const hex = (x: number): string => (x >>> 0).toString(16).padStart(8, "0")

export class Trace {
  /** Undefined unless the run keeps its events. */
  readonly events: Array<TraceEvent> | undefined
  /** Events recorded, kept or not. */
  count = 0
  private a = 0x2545f491
  private b = 0x6c078965
  private schedule = 0x5bd1e995

  constructor(keep: boolean) {
    this.events = keep ? [] : undefined
  }

  record(at: number, node: Named, what: Named, subject: Named, value: number): void {
    this.count++
    const who = node.key ^ what.key
    // time is a safe integer of up to 53 bits: both halves count
    const when = (at | 0) ^ Math.imul((at / 0x1_0000_0000) | 0, 0x9e3779b1)
    this.a = step(step(this.a, who), when)
    this.b = step(step(this.b, subject.key ^ this.a), value | 0)
    if (this.events !== undefined) {
      this.events.push({ at, node: node.name, what: what.name, subject: subject.name, value })
    }
  }

  /** One slice of a node: only the stricter hash sees it. */
  slice(at: number, node: Named): void {
    this.schedule = step(step(this.schedule, node.key), at | 0)
  }

  get hash(): string {
    return hex(this.a) + hex(this.b)
  }

  get scheduleHash(): string {
    return hex(this.schedule) + this.hash
  }

  /** The kept events as text, one line each. */
  lines(): ReadonlyArray<string> {
    return (this.events ?? []).map((e) =>
      `${(e.at / 1000).toFixed(3).padStart(12)} ms  ${e.node.padEnd(12)} ${e.what} ${e.subject}${e.value === 0 ? "" : ` ${e.value}`}`.trimEnd()
    )
  }
}
