/** A run told in sentences, for who has to understand a failure and did not write the simulation. */
import type { Fault, FaultPlan, When } from "./FaultPlan.ts"
import type { Ran } from "./Run.ts"
import type { TraceEvent } from "./Trace.ts"

const seconds = (micros: number): string => (micros / 1e6).toFixed(3).padStart(8)
const short = (millis: number): string => (Math.abs(millis) >= 1000 ? `${millis / 1000} s` : `${millis} ms`)

const ordinal = (n: number): string =>
  `${n}${n % 10 === 1 && n % 100 !== 11 ? "st" : n % 10 === 2 && n % 100 !== 12 ? "nd" : n % 10 === 3 && n % 100 !== 13 ? "rd" : "th"}`

/** `submit.before`, 1 -> "before its 1st submit". */
const place = (when: When): string => {
  switch (when.at) {
    case "point": {
      const dot = when.name.lastIndexOf(".")
      const step = when.name.slice(0, dot)
      switch (when.name.slice(dot + 1)) {
        case "before":
          return `before its ${ordinal(when.nth)} ${step}`
        case "after":
          return `after its ${ordinal(when.nth)} ${step}`
        case "serving":
          return `at its ${ordinal(when.nth)} ${step}, not done yet`
        default:
          return `after its ${ordinal(when.nth)} ${step} was done, before the answer left`
      }
    }
    case "visible":
      return `behind its ${ordinal(when.nth)} visible operation`
    case "op":
      return `before its ${ordinal(when.nth)} operation`
    case "time":
      return `at ${short(when.millis)}`
    case "mark":
      return `${short(Math.abs(when.plusMillis))} ${when.plusMillis < 0 ? "before" : "after"} the end of its ${ordinal(when.nth)} ${when.name}`
  }
}

/** A fault of a plan as a phrase. */
export const phrase = (fault: Fault): string => {
  switch (fault.kind) {
    case "pause":
      if (fault.until === "overtaken" || fault.until === "passed") {
        return `hold ${fault.node} ${place(fault.when)} until it is ${fault.until}`
      }
      return fault.until === undefined
        ? `hold ${fault.node} ${place(fault.when)} for ${short(fault.millis)}`
        : `hold ${fault.node} ${place(fault.when)} until ${short(Math.abs(fault.millis))} ${fault.millis < 0 ? "before" : "after"} the end of its ${fault.until}`
    case "kill":
      return `kill ${fault.node}${fault.how === "machine" ? " and its machine" : ""} ${place(fault.when)}${fault.downMillis === null ? " for good" : `, back after ${short(fault.downMillis)}`}`
    case "clockStep":
      return `set the wall clock of ${fault.node} by ${short(fault.stepMillis)} ${place(fault.when)}`
    case "clockError":
      return `the clocks of ${fault.node} are off by ${short(fault.offsetMillis)} and drift ${fault.wallDriftPpm} (wall) and ${fault.monotonicDriftPpm} (monotonic) ppm`
    case "cut":
      return `cut ${fault.from} ${fault.both ? "and" : "to"} ${fault.to} (${fault.how}) at ${short(fault.atMillis)} for ${short(fault.millis)}`
    case "drop":
      return `lose ${message(fault)}`
    case "delay":
      return `deliver ${message(fault)} late by ${short(fault.millis)}`
    case "duplicate":
      return `deliver ${message(fault)} twice, the second time after ${short(fault.millis)}`
  }
}

const message = (fault: Extract<Fault, { readonly leg: string }>): string =>
  fault.leg === "request"
    ? `the ${ordinal(fault.nth)} ${fault.label} of ${fault.from} to ${fault.to}`
    : `the answer to the ${ordinal(fault.nth)} ${fault.label} of ${fault.from}`

export const phrases = (plan: FaultPlan): ReadonlyArray<string> =>
  plan.length === 0 ? ["no fault at all"] : plan.map(phrase)

/** The kernel's own events that a reader wants to hear of. */
const told = (event: TraceEvent): string | undefined => {
  switch (event.what) {
    case "pause":
      return `is STOPPED for ${short(event.value / 1000)}`
    case "resume":
      return "goes on"
    case "kill":
      return event.value === 1 ? "loses power" : "is KILLED"
    case "start":
      return event.value > 1 ? `is started again (boot ${event.value})` : undefined
    case "lost":
      return `a message is lost: ${event.subject} #${event.value}`
    case "duplicate":
      return `a message comes twice: ${event.subject} #${event.value}`
    case "delay":
      return `a message is late: ${event.subject} #${event.value}`
    case "cut":
      return `the link ${event.subject} is cut`
    case "heal":
      return `the link ${event.subject} is healed`
    case "timeout":
      return `gives up waiting for ${event.subject} #${event.value}`
    case "clock step":
      return `has its wall clock set by ${short(event.value)}`
    default:
      return undefined
  }
}

/** The run in sentences, in the order of virtual time. Needs a run that has kept its trace. */
export const tell = ({ cluster, outcome }: Ran): ReadonlyArray<string> => {
  const { recorder, world } = cluster
  const lines: Array<{ readonly at: number; readonly order: number; readonly text: string }> = []
  let order = 0
  const say = (at: number, node: string, text: string) =>
    lines.push({ at, order: order++, text: `${seconds(at)} s  ${node.padEnd(16)} ${text}` })
  for (const event of world.trace.events ?? []) {
    const text = told(event)
    if (text !== undefined && event.at < recorder.endedAt) say(event.at, event.node, text)
    // a pause ends by itself: say so where it does
    if (event.what === "pause") say(event.at + event.value, event.node, "wakes up")
  }
  for (const { at, kind, node, text } of recorder.notes ?? []) if (kind !== "renew") say(at, node, text)
  lines.sort((a, b) => a.at - b.at || a.order - b.order)
  const head = [
    ...phrases(outcome.spec.faults).map((text, index) =>
      outcome.hits[index] === 0 ? `planned: ${text} (it never came to that)` : `planned: ${text}`
    ),
    ""
  ]
  return [...head, ...lines.map(({ text }) => text), "", `in the end: ${outcome.end}`]
}
