/**
 * The timeline of a run as one HTML file that opens from disk: lanes per participant, time to the right, leases coloured by
 * token, stops hatched, what a fence refused ringed in red. Two runs in one file are the same plan with and without fences.
 *
 * Long stretches in which nothing happens are cut out of the axis: a stop of seconds and a race of microseconds are to be
 * seen in one picture.
 */
import type { Ran } from "../sim/Run.ts"
import { toLine } from "../sim/RunSpec.ts"
import { phrases, tell } from "../sim/Story.ts"

interface Mark {
  readonly at: number
  readonly lane: string
  readonly kind: string
  readonly token: string | null
  readonly text: string
}
interface Bar {
  readonly from: number
  readonly to: number
  readonly lane: string
  readonly kind: "lease" | "pause" | "down"
  readonly token: string | null
  readonly text: string
}
interface Arrow {
  readonly at: number
  readonly to: number
  readonly fromLane: string
  readonly toLane: string
  readonly text: string
  readonly fate: "ok" | "lost"
}
interface Page {
  readonly title: string
  readonly line: string
  readonly hash: string
  readonly faults: ReadonlyArray<string>
  readonly verdicts: ReadonlyArray<string>
  readonly end: string
  readonly lanes: ReadonlyArray<string>
  readonly marks: ReadonlyArray<Mark>
  readonly bars: ReadonlyArray<Bar>
  readonly arrows: ReadonlyArray<Arrow>
  readonly story: ReadonlyArray<string>
}

/** What a reader follows; the chatter of polls and heartbeats is left out. */
const shown = /^(lock\.(acquire|release)|pay\.(claim|post|fail|ambiguous|resolve)|rail\.(submit|pay|ask|lookup))$/

const pageOf = (ran: Ran): Page => {
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
      bars.push({ from: at, to, lane: node, kind: "pause", token: null, text: `stopped for ${value / 1e6} s` })
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
      text: message.label,
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
      text
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
    line: toLine(outcome.spec),
    hash: outcome.hash,
    faults: phrases(outcome.spec.faults),
    verdicts: outcome.verdicts.map(({ check, detail, subject }) => `${check} ${subject}: ${detail}`),
    end: outcome.end,
    lanes: lanes.toSorted((a, b) => rankOf(a) - rankOf(b)),
    marks,
    bars,
    arrows,
    story: tell(ran)
  }
}

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
  const at = order.findLastIndex((prefix) => lane.startsWith(prefix))
  return at < 0 ? order.length : at
}

const script = `
const R = JSON.parse(document.getElementById("runs").textContent), S = "http://www.w3.org/2000/svg";
const el = (name, attributes, text) => { const e = document.createElementNS(S, name); for (const k in attributes) e.setAttribute(k, attributes[k]); if (text) e.textContent = text; return e };
const tip = (e, text) => { e.append(el("title", {}, text)); return e };
const hue = (token) => token === null ? "#666" : "hsl(" + (Number(token) * 137 % 360) + " 65% 45%)";
function show(i) {
  const r = R[i], svg = document.getElementById("picture"); svg.replaceChildren();
  const times = [...new Set([0, ...r.marks.map(m => m.at), ...r.bars.flatMap(b => [b.from, b.to]), ...r.arrows.flatMap(a => [a.at, a.to])])].sort((a, b) => a - b);
  const xs = new Map(); let x = 150, last = 0; const cuts = [];
  for (const t of times) { const gap = t - last; if (gap > 60000) { cuts.push([x + 20, gap]); x += 46 } else x += Math.max(gap > 0 ? 7 : 0, gap / 250); xs.set(t, x); last = t }
  const width = x + 80, row = 62, y = (lane) => 40 + r.lanes.indexOf(lane) * row, height = 60 + r.lanes.length * row;
  svg.setAttribute("viewBox", "0 0 " + width + " " + height); svg.setAttribute("width", width); svg.setAttribute("height", height);
  const defs = el("defs", {}); const p = el("pattern", { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  p.append(el("rect", { width: 3, height: 7, fill: "#d33" })); defs.append(p); svg.append(defs);
  for (const [at, gap] of cuts) { svg.append(el("line", { x1: at, x2: at, y1: 14, y2: height, stroke: "#bbb", "stroke-dasharray": "2 4" })); svg.append(el("text", { x: at, y: 11, "text-anchor": "middle", class: "small" }, "+" + (gap / 1e6).toFixed(2) + " s")) }
  for (const lane of r.lanes) { svg.append(el("line", { x1: 140, x2: width, y1: y(lane), y2: y(lane), stroke: "#ccc" })); svg.append(el("text", { x: 6, y: y(lane) + 4, class: "lane" }, lane)) }
  for (const b of r.bars) { const top = b.kind === "lease" ? y(b.lane) + 10 : y(b.lane) - 9;
    svg.append(tip(el("rect", { x: xs.get(b.from), y: top, width: Math.max(2, xs.get(b.to) - xs.get(b.from)), height: b.kind === "lease" ? 6 : 18, rx: 2, fill: b.kind === "lease" ? hue(b.token) : b.kind === "pause" ? "url(#hatch)" : "#333", opacity: b.kind === "lease" ? .9 : .45 }), b.text)) }
  for (const a of r.arrows) svg.append(tip(el("line", { x1: xs.get(a.at), y1: y(a.fromLane), x2: xs.get(a.to), y2: y(a.toLane), stroke: a.fate === "lost" ? "#d33" : "#7a8", "stroke-width": 1.4, "stroke-dasharray": a.fate === "lost" ? "3 3" : "" }), a.text + (a.fate === "lost" ? " (lost)" : "")));
  for (const m of r.marks) { if (!r.lanes.includes(m.lane)) continue; const bad = m.kind === "refused" || m.kind === "wrong" || m.kind === "told";
    svg.append(tip(el("circle", { cx: xs.get(m.at), cy: y(m.lane), r: 5.5, fill: bad ? "#fff" : hue(m.token), stroke: bad ? "#d33" : "#fff", "stroke-width": bad ? 2.5 : 1 }), (m.at / 1e6).toFixed(4) + " s: " + m.text));
    if (m.kind === "refused" || m.kind === "pay") svg.append(el("text", { x: xs.get(m.at) + 8, y: y(m.lane) - 10, class: "small " + (bad ? "bad" : "") }, m.text)) }
  document.getElementById("facts").textContent = [r.title, "", ...r.faults, "", "in the end: " + r.end, ...(r.verdicts.length ? r.verdicts.map(v => "VIOLATION " + v) : ["no violation"]), "", "trace hash " + r.hash, "sim replay '" + r.line + "'"].join("\\n");
  document.getElementById("story").textContent = r.story.join("\\n");
}
const bar = document.getElementById("which");
R.forEach((r, i) => { const label = document.createElement("label"), input = document.createElement("input"); input.type = "radio"; input.name = "run"; input.checked = i === 0; input.onchange = () => show(i); label.append(input, " " + r.title); bar.append(label) });
show(0);
`

const style = `body{font:14px system-ui,sans-serif;margin:16px;color:#222;background:#fff}h1{font-size:18px}pre{background:#f6f6f4;padding:10px;overflow:auto}
label{margin-right:18px;font-weight:600}.lane{font:12px ui-monospace,monospace}.small{font:10px system-ui,sans-serif;fill:#555}.bad{fill:#d33;font-weight:600}#scroll{overflow-x:auto;border:1px solid #ddd}`

/** One self-contained page; the first run is shown first. */
export const timeline = (runs: ReadonlyArray<Ran>): string => {
  const data = JSON.stringify(runs.map(pageOf)).replaceAll("<", "\\u003c")
  return `<!doctype html><html lang="en"><meta charset="utf-8"><title>dlock: a simulated run</title><style>${style}</style>
<h1>One simulated run, microsecond by microsecond</h1><p id="which"></p><div id="scroll"><svg id="picture"></svg></div>
<p>Bars under a lane are leases, coloured by token; hatched: stopped; black: dead; red ring: refused or told no. Hover for words.</p>
<pre id="facts"></pre><pre id="story"></pre><script type="application/json" id="runs">${data}</script><script>${script}</script></html>
`
}
