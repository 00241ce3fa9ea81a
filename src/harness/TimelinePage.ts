/**
 * The timeline of one or more runs as one HTML file that opens from disk: no font, no request, nothing but itself. Lanes per
 * participant, time to the right; leases and beliefs as bars, one colour per token on every hop, stops hatched, what a fence
 * refused ringed in red. Runs in one file are the same plan with other fences, switched by a button.
 *
 * Long stretches in which nothing happens are cut out of the axis: a stop of seconds and a race of microseconds are to be
 * seen in one picture. The simulation and the real runs write the same page.
 */

export interface Mark {
  /** Microseconds since the beginning, as all times here. */
  readonly at: number
  readonly lane: string
  /** `refused`, `wrong` and `told` are bad news; `pay` moves money. */
  readonly kind: string
  readonly token: string | null
  /** A sentence without its subject. */
  readonly text: string
  /** Written into the picture. */
  readonly label?: string
}

export interface Bar {
  readonly from: number
  readonly to: number
  readonly lane: string
  /** `belief`: how long a worker takes itself for the holder; `hazard`: and is wrong. */
  readonly kind: "lease" | "belief" | "hazard" | "pause" | "down" | "cut"
  readonly token: string | null
  readonly text: string
  readonly label?: string
}

export interface Arrow {
  readonly at: number
  readonly to: number
  readonly fromLane: string
  readonly toLane: string
  readonly text: string
  readonly token: string | null
  readonly fate: "ok" | "refused" | "lost"
  readonly label?: string
}

export interface TimelineRun {
  readonly title: string
  /** What identifies the run: name and value. */
  readonly facts: ReadonlyArray<readonly [name: string, value: string]>
  readonly faults: ReadonlyArray<string>
  readonly verdicts: ReadonlyArray<string>
  /** In one line. */
  readonly end: string
  /** Commands that have it again. */
  readonly replay: ReadonlyArray<string>
  readonly lanes: ReadonlyArray<string>
  readonly marks: ReadonlyArray<Mark>
  readonly bars: ReadonlyArray<Bar>
  readonly arrows: ReadonlyArray<Arrow>
  /** Steps of a fence: from then on its mark is this token. */
  readonly fences: ReadonlyArray<{ readonly at: number; readonly lane: string; readonly token: string }>
  /** When the first promise was broken. */
  readonly brokenAt: number | null
  readonly story: ReadonlyArray<string>
  /** Microseconds per pixel where much happens, and the gap from which the axis is cut. */
  readonly scale: number
  readonly gap: number
}

/** Runs in the page; it uses nothing but the data and the document. */
const script = `
"use strict";
const R = JSON.parse(document.getElementById("runs").textContent), S = "http://www.w3.org/2000/svg", $ = (id) => document.getElementById(id);
const el = (name, attributes, text) => { const e = document.createElementNS(S, name); for (const k in attributes) e.setAttribute(k, attributes[k]); if (text !== undefined) e.textContent = text; return e };
const tip = (e, text) => { e.append(el("title", {}, text)); return e };
const hue = (token) => token === null ? "var(--muted)" : "hsl(" + (Number(BigInt(token) * 137n % 360n) + 25) % 360 + " 70% var(--l))";
const sec = (t) => (t / 1e6).toFixed(3) + " s";
let run = 0, chosen = -1, events = [], X;
function axis(r) {
  const starts = new Set([...r.arrows.filter(a => a.label).map(a => a.at), ...r.marks.filter(m => m.label).map(m => m.at), ...r.bars.filter(b => b.label).map(b => b.from)]);
  const times = [...new Set([0, ...r.marks.map(m => m.at), ...r.bars.flatMap(b => [b.from, b.to]), ...r.arrows.flatMap(a => [a.at, a.to]), ...r.fences.map(f => f.at)])].sort((a, b) => a - b);
  const xs = new Map(); let x = 150, last = times[0] || 0; const cuts = [];
  for (const t of times) { const gap = t - last; if (gap > r.gap) { cuts.push([x + 24, gap]); x += 48 } else x += gap > 0 ? Math.max(starts.has(t) ? 26 : 5, gap / r.scale) : 0; xs.set(t, x); last = t }
  return { xs, cuts, base: x + 60 };
}
function show(i) {
  run = i; chosen = -1; const r = R[i], svg = $("picture"); svg.replaceChildren();
  const { base, cuts, xs } = axis(r); X = xs;
  // Every text gets a row of its lane in which nothing else is.
  const rows = new Map(r.lanes.map(l => [l, []])), texts = [];
  const write = (lane, x, text, cls, up) => { const list = rows.get(lane); if (!list || !text) return; const w = text.length * (/bad|pay/.test(cls) ? 6.9 : 6.1) + 8; let n = 0; while ((list[n] || []).some(([a, b]) => x < b && x + w > a)) n++; (list[n] ||= []).push([x, x + w]); texts.push({ lane, n, x, text, cls }) };
  for (const b of r.bars) if (b.label && (b.kind === "pause" || b.kind === "down" || b.kind === "cut")) write(b.lane, xs.get(b.from) + 2, b.label, "small bad");
  for (const m of r.marks) if (m.label) write(m.lane, xs.get(m.at) + 9, m.label, "small " + (/^(refused|wrong|told)$/.test(m.kind) ? "bad" : m.kind === "pay" ? "pay" : ""));
  for (const a of r.arrows) if (a.label) write(a.fromLane, xs.get(a.at) + 3, a.label, "small");
  const depth = new Map(); let y0 = 26; const Y = new Map();
  for (const lane of r.lanes) { const up = rows.get(lane).length * 13 + 14, bars = r.bars.filter(b => b.lane === lane && (b.kind === "lease" || b.kind === "belief" || b.kind === "hazard")); const tracks = []; for (const b of bars) { if (b.kind === "hazard") continue; let n = 0; while (tracks[n] !== undefined && tracks[n] > b.from) n++; tracks[n] = b.to; depth.set(b, n) } y0 += up; Y.set(lane, y0); y0 += 22 + Math.max(1, Math.min(tracks.length, 6)) * 9 }
  const height = y0 + 6, width = Math.max(base, ...texts.map(t => t.x + t.text.length * 6.9 + 12));
  svg.setAttribute("viewBox", "0 0 " + width + " " + height); svg.setAttribute("width", width); svg.setAttribute("height", height);
  const defs = el("defs", {}), p = el("pattern", { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  p.append(el("rect", { width: 3, height: 7, class: "hatch" })); defs.append(p); svg.append(defs);
  for (const [at, gap] of cuts) { svg.append(el("line", { x1: at, x2: at, y1: 20, y2: height, class: "cutline" })); svg.append(el("text", { x: at, y: 13, "text-anchor": "middle", class: "small muted" }, "+" + (gap / 1e6).toFixed(gap < 1e6 ? 2 : 1) + " s")) }
  for (const lane of r.lanes) { svg.append(el("line", { x1: 136, x2: width, y1: Y.get(lane), y2: Y.get(lane), class: "life" })); svg.append(el("text", { x: 6, y: Y.get(lane) + 4, class: "lane" }, lane)) }
  if (r.brokenAt !== null) { const x = xs.get(r.brokenAt); svg.append(tip(el("line", { x1: x, x2: x, y1: 18, y2: height, class: "broken", id: "broken" }), "the first promise is broken")) }
  for (const lane of new Set(r.fences.map(f => f.lane))) { const steps = r.fences.filter(f => f.lane === lane); let d = "", y = Y.get(lane) + 19; steps.forEach((f, n) => { const x = xs.get(f.at), e = n + 1 < steps.length ? xs.get(steps[n + 1].at) : width - 4; svg.append(tip(el("line", { x1: x, x2: e, y1: y, y2: y, class: "fence", stroke: hue(f.token) }), "the fence stands at " + f.token)); svg.append(el("text", { x: x + 2, y: y + 11, class: "small muted" }, "fence " + f.token)) }) }
  for (const b of r.bars) { const thin = b.kind === "lease" || b.kind === "belief" || b.kind === "hazard", x = xs.get(b.from), y = Y.get(b.lane); if (y === undefined) continue;
    const n = b.kind === "hazard" ? Math.min(5, depth.get(r.bars.find(o => o.kind === "belief" && o.lane === b.lane && o.token === b.token)) || 0) : Math.min(5, depth.get(b) || 0);
    svg.append(tip(el("rect", { x, y: thin ? y + 11 + n * 9 : y - 10, width: Math.max(3, xs.get(b.to) - x), height: thin ? 6 : 20, rx: 2, class: "bar " + b.kind, "data-bar": b.kind, fill: b.kind === "lease" ? hue(b.token) : b.kind === "belief" ? "none" : b.kind === "pause" ? "url(#hatch)" : "", stroke: b.kind === "belief" ? hue(b.token) : "" }), sec(b.from) + " to " + sec(b.to) + ": " + b.text)) }
  for (const a of r.arrows) { const x1 = xs.get(a.at), x2 = xs.get(a.to), y1 = Y.get(a.fromLane), y2 = Y.get(a.toLane); if (y1 === undefined || y2 === undefined) continue;
    svg.append(tip(el("line", { x1, y1, x2, y2, class: "arrow " + a.fate, stroke: hue(a.token), "data-arrow": a.fate }), sec(a.at) + ": " + a.fromLane + " " + a.text)) }
  events = r.marks.map((m, n) => ({ ...m, n })).filter(m => Y.has(m.lane)).sort((a, b) => a.at - b.at);
  events.forEach((m, n) => { const bad = /^(refused|wrong|told)$/.test(m.kind), x = xs.get(m.at), y = Y.get(m.lane), pay = m.kind === "pay";
    const c = pay ? el("rect", { x: x - 6, y: y - 6, width: 12, height: 12, transform: "rotate(45 " + x + " " + y + ")" }) : el("circle", { cx: x, cy: y, r: 6 });
    c.setAttribute("class", "mark " + m.kind + (bad ? " bad" : "")); if (!bad) c.setAttribute("fill", hue(m.token)); c.setAttribute("data-token", m.token || ""); c.id = "m" + n; c.addEventListener("click", () => choose(n)); svg.append(tip(c, sec(m.at) + ": " + m.lane + " " + m.text)) });
  for (const t of texts) svg.append(el("text", { x: t.x, y: Y.get(t.lane) - 11 - t.n * 13, class: t.cls }, t.text));
  const facts = $("facts"); facts.replaceChildren();
  for (const [name, value] of r.facts) { const dt = document.createElement("dt"), dd = document.createElement("dd"); dt.textContent = name; dd.textContent = value; facts.append(dt, dd) }
  const fill = (id, items, none) => { $(id).replaceChildren(...(items.length ? items : [none]).map(text => { const li = document.createElement("li"); li.textContent = text; return li })) };
  fill("faults", r.faults, "none"); fill("verdicts", r.verdicts, "none: every promise was kept"); $("verdicts").className = r.verdicts.length ? "bad" : "good";
  $("end").textContent = r.end; $("replay").textContent = r.replay.join("\\n"); fill("story", r.story, ""); $("now").textContent = "";
  $("picture").setAttribute("aria-label", "Timeline, " + r.title + ". " + events.length + " events; the same is told in words below. Keys: n and p step, e goes to the first broken promise.");
  document.querySelectorAll("input[name=run]").forEach((input, n) => { input.checked = n === i });
  const box = $("scroll"); box.scrollLeft = r.brokenAt === null ? 0 : Math.max(0, xs.get(r.brokenAt) - box.clientWidth / 2);
}
function choose(n) {
  if (events.length === 0) return; const before = $("m" + chosen); if (before) before.classList.remove("chosen");
  chosen = Math.max(0, Math.min(events.length - 1, n)); const m = events[chosen]; $("m" + chosen).classList.add("chosen");
  $("now").textContent = (chosen + 1) + " of " + events.length + ": " + sec(m.at) + " " + m.lane + " " + m.text; const box = $("scroll"); box.scrollLeft = Math.max(0, X.get(m.at) - box.clientWidth / 2);
}
document.addEventListener("keydown", (k) => { if (k.ctrlKey || k.metaKey || k.altKey) return;
  if (k.key === "n") choose(chosen + 1); else if (k.key === "p") choose(chosen <= 0 ? 0 : chosen - 1); else if (k.key === "f") { if (R.length > 1) show((run + 1) % R.length) }
  else if (k.key === "e") { const r = R[run]; const at = r.brokenAt === null ? events.findIndex(m => m.kind === "refused") : events.findIndex(m => m.at >= r.brokenAt); if (at >= 0) choose(at) } else return; k.preventDefault() });
R.forEach((r, i) => { const label = document.createElement("label"), input = document.createElement("input"); input.type = "radio"; input.name = "run"; input.addEventListener("change", () => show(i)); label.append(input, " " + r.title); $("which").append(label) });
if (R.length < 2) $("which").hidden = true;
$("next").addEventListener("click", () => choose(chosen + 1)); $("previous").addEventListener("click", () => choose(chosen <= 0 ? 0 : chosen - 1));
show(0);
`

const style = `
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--muted:#5f6875;--line:#d5dae1;--panel:#f5f6f8;--bad:#b91c1c;--good:#15703a;--hatch:#e0837b;--l:40%}
@media(prefers-color-scheme:dark){:root{--bg:#14171c;--fg:#e8ebef;--muted:#9aa4b2;--line:#343b46;--panel:#1c2128;--bad:#ff7b72;--good:#4ade80;--hatch:#a8453d;--l:66%}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:1600px;padding:1.2rem}
h1{font-size:1.4rem;margin:.2em 0}h2{font-size:1.05rem;margin:1.2em 0 .3em}p{max-width:80ch;margin:.4em 0}
fieldset[hidden]{display:none}fieldset{border:1px solid var(--line);border-radius:6px;padding:.3rem .8rem;margin:.6rem 0;display:flex;flex-wrap:wrap;gap:.2rem 1.4rem}legend{color:var(--muted)}label{font-weight:600}
#scroll{overflow-x:auto;border:1px solid var(--line);border-radius:6px}#scroll:focus-visible,button:focus-visible,input:focus-visible{outline:3px solid #5b8def;outline-offset:1px}
svg{display:block}svg text{font:12px system-ui,sans-serif;fill:var(--fg)}svg .lane{font-weight:600}svg .small{font-size:11px;paint-order:stroke;stroke:var(--bg);stroke-width:3px}svg text.muted{fill:var(--muted)}svg text.bad{fill:var(--bad);font-weight:600}svg text.pay{font-weight:600}
.life{stroke:var(--line)}.cutline{stroke:var(--line);stroke-dasharray:2 4}.broken{stroke:var(--bad);stroke-width:2.5}.fence{stroke-width:3}
.bar.belief{stroke-width:1.5}.bar.hazard{fill:var(--bad);opacity:.85}.bar.pause{stroke:var(--bad);stroke-dasharray:3 3}.bar.down{fill:var(--fg);opacity:.35}.bar.cut{fill:var(--muted);opacity:.3}.hatch{fill:var(--hatch)}
.arrow{stroke-width:1.7}.arrow.refused{stroke:var(--bad)}.arrow.lost{stroke:var(--bad);stroke-dasharray:3 3}
.mark{stroke:var(--bg);stroke-width:1.5;cursor:pointer}.mark.bad{fill:var(--bg);stroke:var(--bad);stroke-width:3}.mark.wrong{fill:var(--bad)}.mark.chosen{stroke:#5b8def;stroke-width:4}
.bad{color:var(--bad)}.good{color:var(--good)}#now{min-height:1.6em;font-weight:600}.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:0 2rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem .8rem;margin:.3em 0}dt{color:var(--muted)}dd{margin:0;overflow-wrap:anywhere}ul,ol{margin:.3em 0;padding-left:1.4rem}
pre{background:var(--panel);padding:.6rem;border-radius:6px;white-space:pre-wrap;overflow-wrap:anywhere;font:12.5px ui-monospace,monospace}ol li{font-variant-numeric:tabular-nums}
button{font:inherit;padding:.15rem .7rem;border:1px solid var(--line);border-radius:6px;background:var(--panel);color:var(--fg)}kbd{border:1px solid var(--line);border-radius:4px;padding:0 .3em;font:12px ui-monospace,monospace}`

const escape = (text: string): string =>
  text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c] ?? c)

/** One self-contained page; the first run is shown first. */
export const timelinePage = (title: string, lead: string, runs: ReadonlyArray<TimelineRun>): string => {
  const data = JSON.stringify(runs).replaceAll("<", "\\u003c")
  return `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>${escape(title)}</title><style>${style}</style></head><body>
<h1>${escape(title)}</h1><p>${escape(lead)}</p>
<fieldset id="which"><legend>The same with other fences (key <kbd>f</kbd>)</legend></fieldset>
<p><button id="previous" type="button">previous</button> <button id="next" type="button">next</button> <span class="muted">keys <kbd>p</kbd> <kbd>n</kbd> step, <kbd>e</kbd> goes to the first broken promise or refusal</span></p>
<p id="now" aria-live="polite"></p>
<div id="scroll" tabindex="0" role="region" aria-label="the timeline, scrolls to the right"><svg id="picture" role="img"></svg></div>
<p>One colour per token, the same on every hop. Disc: accepted. Red ring: refused, or told no. Diamond: money moves. Under a worker the frame is how long it takes itself for the holder, red where it is wrong; under the lock service the bar is the lease. Hatched: stopped; grey: dead or cut off; dashed: no answer. The line under a fence is the token at which it stands.</p>
<div class="columns"><section><h2>Violations</h2><ul id="verdicts"></ul><h2>In the end</h2><p id="end"></p><h2>Faults</h2><ul id="faults"></ul><h2>This run</h2><dl id="facts"></dl><h2>Again</h2><pre id="replay"></pre></section>
<section><h2>What happened</h2><ol id="story"></ol></section></div>
<script type="application/json" id="runs">${data}</script><script>${script}</script></body></html>
`
}
