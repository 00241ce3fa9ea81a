/**
 * The error graph as a page: one self-contained file that opens from disk and can be searched. What is shown is in the file
 * itself, so it can also be read (and found by a text search) without the script.
 */
import type { ErrorGraph, Handler } from "./ErrorGraph.ts"

const escape = (text: string): string =>
  text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c] ?? c)

const style = `
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --tag: #0a66c2; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1rem; }
header { position: sticky; top: 0; background: Canvas; padding: .5rem 0; border-bottom: 1px solid var(--line); }
input { font: inherit; width: 100%; box-sizing: border-box; padding: .5rem .7rem; border: 1px solid var(--line); border-radius: .4rem; }
article { border: 1px solid var(--line); border-radius: .5rem; margin: .8rem 0; padding: .2rem .9rem .6rem; }
h2 { font-size: 1.05rem; margin: .5rem 0; } h3 { font-size: .85rem; margin: .6rem 0 .1rem; color: GrayText; font-weight: 600; }
ul { margin: 0; padding-left: 1.1rem; } li { overflow-wrap: anywhere; }
code { font-family: ui-monospace, monospace; font-size: .9em; } .wire { color: GrayText; font-weight: 400; }
a { color: var(--tag); text-decoration: none; } a:hover { text-decoration: underline; }
details > summary { cursor: pointer; color: GrayText; } mark { background: #fd06; color: inherit; }
`

/** Every word that was typed must be in the entry. */
const script = `
const box = document.querySelector("input"), entries = [...document.querySelectorAll("article")]
const count = document.querySelector("output")
const look = () => {
  const words = box.value.toLowerCase().split(/\\s+/).filter(Boolean)
  let shown = 0
  for (const entry of entries) {
    const text = entry.textContent.toLowerCase()
    const fits = words.every((word) => text.includes(word))
    entry.hidden = !fits
    if (fits) shown++
  }
  count.textContent = shown + " of " + entries.length
}
box.addEventListener("input", () => { location.hash = ""; look() })
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-find]")
  if (link === null) return
  event.preventDefault()
  box.value = link.dataset.find
  look()
  scrollTo(0, 0)
})
look()
`

const find = (text: string): string => `<a href="#" data-find="${escape(text)}"><code>${escape(text)}</code></a>`
const list = (items: ReadonlyArray<string>): string => `<ul>${items.map((item) => `<li>${item}</li>`).join("")}</ul>`
const section = (title: string, items: ReadonlyArray<string>): string =>
  items.length === 0 ? "" : `<h3>${title}</h3>${list(items)}`

const handlerText = ({ from, into, kind, place, via }: Handler, failure: string): string => {
  const others = from.filter((one) => one !== failure)
  const became =
    kind === "turned" ? ` becomes ${into.map(find).join(" | ")}` : kind === "value" ? " read as a value" : ""
  const along = others.length === 0 ? "" : ` <span class="wire">(with ${others.map(escape).join(", ")})</span>`
  return `<code>${escape(place)}</code> by <code>${escape(via)}</code>${became}${along}`
}

const failureArticle = (graph: ErrorGraph, failure: string): string => {
  const row = graph.wire.find((entry) => entry.failure === failure)
  const wire = row === undefined ? "never on the wire" : `${row.status} ${row.code}, retry ${row.retrySafe}`
  const operations = graph.operations.filter(({ failures }) => failures.includes(failure))
  const handlers = graph.handlers.filter(({ from }) => from.includes(failure))
  return [
    `<article id="${escape(failure)}"><h2>${escape(failure)} <span class="wire">${escape(wire)}</span></h2>`,
    section(
      "operations that can fail with it",
      operations.map(({ file, name }) => `${find(name)} <span class="wire">${escape(file)}</span>`)
    ),
    section(
      "made by",
      graph.raised.filter((raise) => raise.failure === failure).map(({ place }) => `<code>${escape(place)}</code>`)
    ),
    section(
      "turned into another",
      handlers.filter(({ kind }) => kind === "turned").map((handler) => handlerText(handler, failure))
    ),
    section(
      "handled",
      handlers.filter(({ kind }) => kind === "handled").map((handler) => handlerText(handler, failure))
    ),
    section(
      "read as a value, and decided upon there",
      handlers.filter(({ kind }) => kind === "value").map((handler) => handlerText(handler, failure))
    ),
    section(
      "answered by",
      (row?.routes ?? []).map((route) => `<code>${escape(route)}</code>`)
    ),
    "</article>"
  ].join("")
}

export const errorGraphPage = (graph: ErrorGraph): string => {
  const failures = [
    ...new Set([
      ...graph.operations.flatMap((operation) => operation.failures),
      ...graph.raised.map(({ failure }) => failure),
      ...graph.wire.map(({ failure }) => failure)
    ])
  ].toSorted()
  const operations = graph.operations.map(
    ({ failures: own, file, kind, name }) =>
      `<article><h2><code>${escape(name)}</code> <span class="wire">${kind}, ${escape(file)}</span></h2>${
        own.length === 0 ? '<span class="wire">can not fail</span>' : list(own.map(find))
      }</article>`
  )
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>dlock: what can fail, and how</title><style>${style}</style></head>
<body><header><h1>What can fail, and how</h1>
<input type="search" placeholder="FencedOut, LockStore.renew, catchTag, 409, rail-proxy ..." aria-label="search" autofocus>
<p><output></output> entries. Each word must occur in an entry. From the TypeScript checker: <code>errors graph</code>.</p></header>
<main>${failures.map((failure) => failureArticle(graph, failure)).join("\n")}
${operations.join("\n")}
</main><script>${script}</script></body></html>
`
}
