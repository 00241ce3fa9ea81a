/**
 * The demo's page: one self-contained file that opens from disk, with the matrix and, for each row, every hop as a
 * sequence diagram. No script, no font, no request.
 */
import { AMOUNT_MINOR, type Hop, OPENING_MINOR, type RowReport } from "./Experiment.ts"

const escape = (text: string): string =>
  text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c] ?? c)

/** Lanes of the sequence diagram, left to right. */
const lanes = ["W1", "W2", "lock-server", "payment-resource (a)", "rail-proxy (c)", "the rail"] as const
const laneX = (index: number) => 70 + index * 150
const targetOf: Readonly<Record<Hop["op"], number | undefined>> = {
  acquire: 2,
  release: 2,
  claim: 3,
  post: 3,
  submit: 4,
  stopped: undefined,
  resumed: undefined,
  "lock lost": undefined
}

/** The first two tokens of a row get the two colours; on every hop a token has the same. */
const colourOf = (tokens: ReadonlyArray<string>, token: string | null) =>
  token === null ? "muted" : tokens.indexOf(token) === 0 ? "t1" : "t2"

const diagram = (report: RowReport): string => {
  const { hops } = report
  const tokens = [...new Set(hops.flatMap((hop) => (hop.token === null ? [] : [hop.token])))]
  const step = 34
  const top = 56
  const height = top + hops.length * step + 24
  const width = laneX(lanes.length - 1) + 110
  const y = (index: number) => top + index * step
  const parts: Array<string> = []
  lanes.forEach((lane, i) => {
    parts.push(`<text class="lane" x="${laneX(i)}" y="22" text-anchor="middle">${escape(lane)}</text>`)
    parts.push(`<line class="life" x1="${laneX(i)}" y1="32" x2="${laneX(i)}" y2="${height - 8}"/>`)
  })
  const stopped = hops.findIndex((hop) => hop.op === "stopped")
  const resumed = hops.findIndex((hop) => hop.op === "resumed")
  if (stopped >= 0 && resumed > stopped) {
    const x = laneX(0) - 9
    parts.push(
      `<rect class="pause" x="${x}" y="${y(stopped)}" width="18" height="${y(resumed) - y(stopped)}"/>`,
      // Two short lines, so that they end before the lane of W2.
      `<text class="note" x="${x + 24}" y="${y(stopped) + 18}">stopped ${seconds(hops[resumed]!.at - hops[stopped]!.at)},</text>`,
      `<text class="note" x="${x + 24}" y="${y(stopped) + 34}">past its lease</text>`
    )
  }
  hops.forEach((hop, i) => {
    const from = laneX(hop.worker === "W1" ? 0 : 1)
    const target = targetOf[hop.op]
    const tone = colourOf(tokens, hop.token)
    const refused = hop.outcome === "FENCED_OUT" || hop.outcome === "LOCK_LOST"
    if (target === undefined) {
      parts.push(
        `<circle class="${tone}" cx="${from}" cy="${y(i)}" r="5"/>`,
        hop.op === "stopped"
          ? ""
          : `<text class="note" x="${from + 12}" y="${y(i) + 4}">${escape(`${seconds(hop.at)}  ${hop.op} ${hop.outcome}`)}</text>`
      )
      return
    }
    const to = laneX(target)
    const label = `${seconds(hop.at)}  ${hop.op}${hop.token === null ? "" : ` under token ${hop.token}`}`
    parts.push(
      `<line class="hop ${tone}${hop.stale ? " stale" : ""}" x1="${from}" y1="${y(i)}" x2="${to - 9}" y2="${y(i)}"/>`,
      `<text class="label" x="${(from + to) / 2}" y="${y(i) - 5}" text-anchor="middle">${escape(label)}</text>`,
      refused
        ? `<circle class="refused" cx="${to}" cy="${y(i)}" r="7"/>`
        : `<circle class="${tone}" cx="${to}" cy="${y(i)}" r="7"/>`,
      `<text class="${refused ? "no" : "yes"}" x="${to + 12}" y="${y(i) + 4}">${escape(hop.outcome)}</text>`
    )
    if (hop.op === "submit" && hop.outcome === "ACKED") {
      const rail = laneX(5)
      parts.push(
        `<line class="hop ${tone}${hop.stale ? " stale" : ""}" x1="${to + 62}" y1="${y(i)}" x2="${rail - 9}" y2="${y(i)}"/>`,
        `<circle class="${hop.stale ? "harm" : tone}" cx="${rail}" cy="${y(i)}" r="7"/>`,
        `<text class="${hop.stale ? "no" : "yes"}" x="${rail + 12}" y="${y(i) + 4}">${hop.stale ? "PAID AGAIN" : "PAID"}</text>`
      )
    }
  })
  return `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="every hop in order">${parts.join("")}</svg>`
}

const seconds = (millis: number) => `${(millis / 1000).toFixed(2)} s`
const onOff = (on: boolean) => (on ? "on" : '<b class="off">OFF</b>')
const mark = (text: string) => `<td class="${text === "FENCED_OUT" ? "yes" : "no"}">${escape(text)}</td>`

const tableRow = ({ row }: RowReport, index: number) => `<tr>
<td><a href="#row-${index + 1}">${index + 1}</a></td><td>${onOff(row.paymentFencing)}</td><td>${onOff(row.railFencing)}</td>
${mark(row.staleClaim)}${mark(row.staleSubmit)}${mark(row.stalePost)}
<td class="${row.railExecutions === 1 ? "yes" : "no"}">${row.railExecutions}</td>
<td class="${row.postings === 1 ? "yes" : "no"}">${row.postings}</td>
<td class="${row.balanceMinor === OPENING_MINOR - AMOUNT_MINOR ? "yes" : "no"}">${row.balanceMinor}</td>
<td class="${row.violations.length === 0 ? "yes" : "no"}">${row.violations.length === 0 ? "none" : escape(row.violations.join(", "))}</td></tr>`

const story = ({ row }: RowReport): string => {
  const both = row.paymentFencing && row.railFencing
  const neither = !row.paymentFencing && !row.railFencing
  if (both) return "Both fences are on: everything the stale worker sends is refused, and nothing changes."
  if (neither) {
    return "Both fences are off: the stale worker is believed at every hop. The rail pays twice and the ledger posts twice. Note that the books still balance and agree with the rail: summing to zero proves nothing about duplicates."
  }
  return row.railFencing
    ? "Only the ledger's fence is off: the rail refuses the stale worker, but the ledger posts the payout a second time."
    : "Only the rail's fence is off: the ledger refuses the stale worker, but the rail has already paid a second time."
}

export const demoPage = (reports: ReadonlyArray<RowReport>, startedAt: string): string => `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>The paused worker: what a fencing token is for</title>
<style>
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--muted:#5a6370;--line:#d5dae1;--t1:#b45309;--t2:#1d4ed8;--yes:#15703a;--no:#b91c1c;--hatch:#f3b0a8}
@media(prefers-color-scheme:dark){:root{--bg:#14171c;--fg:#e8ebef;--muted:#9aa4b2;--line:#343b46;--t1:#f59e0b;--t2:#7aa5ff;--yes:#4ade80;--no:#ff7b72;--hatch:#7f3430}}
body{background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:1040px;padding:1.5rem}
h1{font-size:1.6rem;margin:.2em 0}h2{font-size:1.15rem;margin:2em 0 .3em}p{max-width:72ch}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.9rem}th,td{border-bottom:1px solid var(--line);padding:.4rem .6rem;text-align:left;vertical-align:bottom}
th{color:var(--muted);font-weight:600}.yes{color:var(--yes)}.no,.off{color:var(--no);font-weight:600}a{color:inherit}
svg{display:block;min-width:820px;width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:var(--fg)}svg .lane{font-weight:600}
svg .life{stroke:var(--line)}svg .hop{stroke-width:2}svg .stale{stroke-dasharray:6 4}svg line.t1{stroke:var(--t1)}svg line.t2{stroke:var(--t2)}svg line.muted{stroke:var(--muted)}
svg circle.t1{fill:var(--t1)}svg circle.t2{fill:var(--t2)}svg circle.muted{fill:var(--muted)}svg .refused{fill:var(--bg);stroke:var(--no);stroke-width:3}svg .harm{fill:var(--no)}
svg text.yes{fill:var(--yes)}svg text.no{fill:var(--no);font-weight:600}svg .note{fill:var(--muted)}svg .pause{fill:var(--hatch);stroke:var(--no);stroke-dasharray:3 3}
svg .label{paint-order:stroke;stroke:var(--bg);stroke-width:4px}
</style></head><body>
<h1>The paused worker</h1>
<p>Worker W1 takes the lock, claims a payout of ${AMOUNT_MINOR} from an account of ${OPENING_MINOR}, and is stopped (SIGSTOP) just before it pays, for longer than its lease. W2 takes over under a higher fencing token, pays and posts. Then W1 wakes and goes on as if nothing had happened. Real processes, real PostgreSQL, ${escape(startedAt)}.</p>
<div class="scroll"><table><thead><tr><th></th><th>ledger fence (a)</th><th>rail fence (c)</th><th>W1's late claim</th><th>late submit</th><th>late post</th><th>rail paid</th><th>postings</th><th>balance (right: ${OPENING_MINOR - AMOUNT_MINOR})</th><th>invariants violated</th></tr></thead>
<tbody>${reports.map(tableRow).join("\n")}</tbody></table></div>
<p>Solid disc: accepted. Red ring: refused. Dashed: sent by a worker that had lost its lock. One colour per token, the same on every hop.</p>
${reports
  .map(
    (
      report,
      i
    ) => `<section id="row-${i + 1}"><h2>${i + 1}. Ledger fence ${report.row.paymentFencing ? "on" : "off"}, rail fence ${report.row.railFencing ? "on" : "off"}</h2>
<p>${story(report)}</p>${report.differences.length === 0 ? "" : `<p class="no">Not as expected: ${escape(report.differences.join("; "))}</p>`}
<div class="scroll">${diagram(report)}</div></section>`
  )
  .join("\n")}
</body></html>
`
