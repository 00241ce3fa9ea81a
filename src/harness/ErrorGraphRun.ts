// @effect-diagnostics nodeBuiltinImport:off
/** `errors graph`: prints the graph, writes it to docs/errors, or says what is different there. */
import { Console, Effect } from "effect"
import * as fs from "node:fs"
import * as path from "node:path"
import { Exited, exitCodes } from "../services/platform/ExitCodes.ts"
import { differenceOf, differenceText, type ErrorGraph, toJson, toMermaid } from "./ErrorGraph.ts"
import { errorGraphPage } from "./ErrorGraphPage.ts"
import { wireEntries } from "./ErrorGraphWire.ts"

export interface RunOptions {
  readonly format: "json" | "mermaid" | "html"
  readonly check: boolean
  readonly write: boolean
  /** Of the project; default: the working directory. */
  readonly root?: string
}

const texts = { json: toJson, mermaid: toMermaid, html: errorGraphPage } as const
/** In this order: the page and the picture follow from the graph. */
const files = { "graph.json": toJson, "graph.mmd": toMermaid, "graph.html": errorGraphPage } as const

const DIRECTORY = "docs/errors"

const refuse = (message: string) =>
  Effect.andThen(Console.error(message), Effect.fail(new Exited({ code: exitCodes.usage })))

const readGraph = Effect.fnUntraced(function* (root: string) {
  if (!fs.existsSync(path.join(root, "tsconfig.json")) || !fs.existsSync(path.join(root, "src"))) {
    return yield* refuse(`${root} has no tsconfig.json and src: run it in a checkout of this repository`)
  }
  if (!isInstalled("typescript/unstable/sync")) {
    return yield* refuse("the type checker is not installed: npm install with development packages")
  }
  const types = yield* Effect.promise(() => import("./ErrorGraphTypes.ts"))
  return types.readErrorGraph({ root, wire: wireEntries() })
})

const isInstalled = (module: string): boolean => {
  try {
    return import.meta.resolve(module) !== ""
  } catch {
    return false
  }
}

/** What a committed file has, or nothing. */
const committed = (file: string): string => {
  try {
    return fs.readFileSync(file, "utf8")
  } catch {
    return ""
  }
}

const nothing: ErrorGraph = { operations: [], raised: [], handlers: [], wire: [] }

/** The edges that differ, or, when none does, the files that are not what the graph gives. */
export const staleness = (graph: ErrorGraph, directory: string): ReadonlyArray<string> => {
  const text = committed(path.join(directory, "graph.json"))
  // Written by `toJson`; a file of another shape differs in every edge.
  const before = text === "" ? nothing : { ...nothing, ...(JSON.parse(text) as Partial<ErrorGraph>) }
  const edges = differenceText(differenceOf(before, graph))
  if (edges.length > 0) return edges
  return Object.entries(files).flatMap(([name, toText]) =>
    committed(path.join(directory, name)) === toText(graph) ? [] : [`${DIRECTORY}/${name} is not what the graph gives`]
  )
}

export const run = Effect.fnUntraced(function* (options: RunOptions) {
  const root = options.root ?? process.cwd()
  const directory = path.join(root, DIRECTORY)
  const graph = yield* readGraph(root)
  if (options.write) {
    fs.mkdirSync(directory, { recursive: true })
    for (const [name, toText] of Object.entries(files)) fs.writeFileSync(path.join(directory, name), toText(graph))
    return yield* Console.log(`${DIRECTORY} is up to date: ${graph.operations.length} operations`)
  }
  if (!options.check) return yield* Console.log(texts[options.format](graph).trimEnd())
  const stale = staleness(graph, directory)
  if (stale.length === 0) return yield* Console.log(`${DIRECTORY} is up to date`)
  for (const line of stale) yield* Console.log(line)
  yield* Console.error(
    `${DIRECTORY} is not what the code says. If the change is meant: node dist/main.js errors graph --write`
  )
  return yield* new Exited({ code: exitCodes.findings })
})
