/** A simulated run as a timeline page (`TimelinePage.ts`). */
import type { Ran } from "../sim/Run.ts"
import { toLine } from "../sim/RunSpec.ts"
import { phrases, tell } from "../sim/Story.ts"
import { type Arrow, type Bar, type TimelineRun, timelinePage } from "./TimelinePage.ts"

/** What a reader follows; the chatter of polls and heartbeats is left out. */
const shown = /^(lock\.(acquire|release)|pay\.(claim|post|fail|ambiguous|resolve)|rail\.(submit|pay|ask|lookup))$/

const pageOf = (ran: Ran): TimelineRun => {
  const { cluster, outcome } = ran
  const { recorder, world } = cluster
  const events = (world.trace.events ?? []).filter(({ at }) => at <= recorder.endedAt)
  const end = Math.min(recorder.endedAt, world.now)
  const bars: Array<Bar> = []
  const leases = new Map<string, { from: number; to: number; lane: string }>()
  for (const { at, kind, node, token, until } of recorder.notes ?? []) {
    const name = String(token)
    if (kind === "grant") leases.set(name, { from: at, to: until ?? at, lane: node })
    const lease = leases.get(name)
    if (lease === undefined) continue
    if (kind === "renew") lease.to = until ?? lease.to
    if (kind === "end") lease.to = Math.min(lease.to, at)
  }
  for (const [token, { from, lane, to }] of leases) {
    bars.push({ from, to: Math.min(to, end), lane, kind: "lease", token, text: `lease of token ${token}` })
  }
  const downSince = new Map<string, number>()
  const sent = new Map<
    string,
    { readonly at: number; readonly label: string; readonly from: string; readonly to: string }
  >()
  const arrows: Array<Arrow> = []
  for (const { at, node, subject, value, what } of events) {
    if (what === "pause") {
      const to = Math.min(at + value, end)
      bars.push({
        from: at,
        to,
        lane: node,
        kind: "pause",
        token: null,
        text: `stopped for ${value / 1e6} s`,
        label: `stopped ${(value / 1e6).toFixed(1)} s`
      })
    }
    if (what === "kill") downSince.set(node, at)
    if (what === "start" && downSince.has(node)) {
      bars.push({ from: downSince.get(node) ?? at, to: at, lane: node, kind: "down", token: null, text: "dead" })
      downSince.delete(node)
    }
    if (what !== "send" && what !== "arrive" && what !== "lost") continue
    const [route = "", label = ""] = subject.split(" ")
    if (!shown.test(label) || subject.endsWith(" answer")) continue
    const [from = "", to = ""] = route.split(">")
    const name = `${subject} ${value}`
    if (what === "send") sent.set(name, { at, label, from, to })
    const message = sent.get(name)
    if (what === "send" || message === undefined) continue
    arrows.push({
      at: message.at,
      to: at,
      fromLane: message.from,
      toLane: message.to,
      text: `${message.label} to ${message.to}${what === "lost" ? ", lost" : ""}`,
      token: null,
      fate: what === "lost" ? "lost" : "ok"
    })
  }
  for (const [lane, from] of downSince) bars.push({ from, to: end, lane, kind: "down", token: null, text: "dead" })
  const marks = (recorder.notes ?? [])
    .filter(({ kind }) => kind !== "renew")
    .map(({ at, kind, node, text, token }) => ({
      at,
      lane: node,
      kind,
      token: token === null ? null : String(token),
      text,
      ...(kind === "refused" || kind === "pay" || kind === "wrong" ? { label: text } : {})
    }))
  const used = new Set([
    ...marks.map(({ lane }) => lane),
    ...bars.map(({ lane }) => lane),
    ...arrows.flatMap((a) => [a.fromLane, a.toLane])
  ])
  const lanes = world.nodes.map(({ name }) => name).filter((name) => used.has(name))
  const { paymentFencing, railFencing } = outcome.spec
  return {
    title: `fences: resource ${paymentFencing ? "on" : "OFF"}, rail ${railFencing ? "on" : "OFF"}`,
    facts: [
      ["scenario", outcome.spec.scenario],
      ["seed", String(outcome.spec.seed)],
      ["trace hash", outcome.hash]
    ],
    replay: [`node dist/main.js sim replay '${toLine(outcome.spec).replaceAll("'", `'\\''`)}'`],
    faults: phrases(outcome.spec.faults),
    verdicts: outcome.verdicts.map(({ check, detail, subject }) => `${check} ${subject}: ${detail}`),
    end: outcome.end,
    lanes: lanes.toSorted((a, b) => rankOf(a) - rankOf(b)),
    marks,
    bars,
    arrows,
    fences: marks.flatMap(({ at, kind, lane, token }) =>
      kind === "fence" && token !== null ? [{ at, lane, token }] : []
    ),
    brokenAt: recorder.findings[0]?.at ?? secondPay(marks),
    story: tell(ran).filter((sentence) => sentence.trim() !== ""),
    scale: 250,
    gap: 60_000
  }
}

/** Paid twice. */
const secondPay = (marks: ReadonlyArray<{ readonly at: number; readonly text: string }>): number | null =>
  marks.find(({ text }) => text.startsWith("is asked to pay the same payout"))?.at ?? null

/** Workers above, then the way of the money. */
const order = [
  "w",
  "v",
  "operator",
  "reconciler",
  "lock-server",
  "lockdb",
  "payment-resource",
  "paydb",
  "rail-proxy",
  "rail"
]
const rankOf = (lane: string): number => {
  // The longest name that fits: "rail-proxy-2" is no rail.
  const at = order.reduce(
    (best, prefix, i) => (lane.startsWith(prefix) && prefix.length > (order[best]?.length ?? 0) ? i : best),
    -1
  )
  return at < 0 ? order.length : at
}

/** One self-contained page; the first run is shown first. */
export const timeline = (runs: ReadonlyArray<Ran>): string =>
  timelinePage(
    "One simulated run, microsecond by microsecond",
    "The production programs in virtual time. The same line of JSON gives the same run on any machine.",
    runs.map(pageOf)
  )
