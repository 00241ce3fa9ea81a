/**
 * The typed error graph, as data: which public operation can fail with what, where each failure is made, where it is
 * handled, turned into another or read as a value, and what it looks like on the wire. Pure; `ErrorGraphTypes.ts` reads it
 * from the type checker.
 *
 * Places are a file and the names of the functions around, never a line: an edge changes when the program's failures do,
 * and not when a comment moves.
 */

export interface Operation {
  /**
   * `LockStore.renew()` of a port or service, `PgLockStore: LockStore.renew()` of what implements it, `EmbeddedEtcd.start()`
   * of a module.
   */
  readonly name: string
  readonly file: string
  readonly kind: "port" | "implementation" | "function" | "value" | "layer"
  readonly failures: ReadonlyArray<string>
}

/** A failure that is made here. */
export interface Raise {
  readonly failure: string
  readonly place: string
}

/** Failures that went into an expression and did not come out of it. */
export interface Handler {
  readonly place: string
  /** What did it: `catchTag`, `matchEffect`, a function of ours. */
  readonly via: string
  /** `value`: read by `result`, `exit` and the like, and decided upon later. */
  readonly kind: "handled" | "turned" | "value"
  readonly from: ReadonlyArray<string>
  /** What came out instead; only of `turned`. */
  readonly into: ReadonlyArray<string>
}

export interface WireEntry {
  readonly failure: string
  readonly code: string
  readonly status: number
  readonly retrySafe: string
  /** `POST /v1/locks/:key/acquire` */
  readonly routes: ReadonlyArray<string>
}

export interface ErrorGraph {
  readonly operations: ReadonlyArray<Operation>
  readonly raised: ReadonlyArray<Raise>
  readonly handlers: ReadonlyArray<Handler>
  readonly wire: ReadonlyArray<WireEntry>
}

// -----------------------------------------------------------------------------
// edges
// -----------------------------------------------------------------------------

/** Every fact of the graph as one line: what a review reads when it changes. */
export const edgesOf = (graph: ErrorGraph): ReadonlyArray<string> =>
  [
    ...graph.operations.flatMap(({ failures, file, name }) =>
      failures.map((failure) => `fails    ${name} -> ${failure}  (${file})`)
    ),
    ...graph.raised.map(({ failure, place }) => `raised   ${failure} <- ${place}`),
    ...graph.handlers.flatMap(({ from, into, kind, place, via }) =>
      from.map(
        (failure) =>
          `${kind.padEnd(8)} ${failure}${kind === "turned" ? ` => ${into.join(" | ")}` : ""}  by ${place} (${via})`
      )
    ),
    ...graph.wire.flatMap(({ code, failure, retrySafe, routes, status }) => [
      `wire     ${failure} = ${status} ${code}, retry ${retrySafe}`,
      ...routes.map((route) => `answers  ${route} -> ${failure}`)
    ])
  ].toSorted()

export interface Difference {
  readonly appeared: ReadonlyArray<string>
  readonly gone: ReadonlyArray<string>
}

/** Exactly what changed; the same edge twice counts twice. */
export const differenceOf = (before: ErrorGraph, after: ErrorGraph): Difference => {
  const count = (edges: ReadonlyArray<string>) => {
    const counts = new Map<string, number>()
    for (const edge of edges) counts.set(edge, (counts.get(edge) ?? 0) + 1)
    return counts
  }
  const old = count(edgesOf(before))
  const now = count(edgesOf(after))
  const beyond = (these: ReadonlyMap<string, number>, those: ReadonlyMap<string, number>) =>
    [...these].flatMap(([edge, times]) =>
      Array.from({ length: Math.max(0, times - (those.get(edge) ?? 0)) }, () => edge)
    )
  return { appeared: beyond(now, old), gone: beyond(old, now) }
}

export const differenceText = ({ appeared, gone }: Difference): ReadonlyArray<string> => [
  ...gone.map((edge) => `- ${edge}`),
  ...appeared.map((edge) => `+ ${edge}`)
]

// -----------------------------------------------------------------------------
// as text
// -----------------------------------------------------------------------------

/** One entry a line, so that a diff shows entries. */
export const toJson = ({ handlers, operations, raised, wire }: ErrorGraph): string => {
  const lines = (name: string, entries: ReadonlyArray<unknown>) =>
    `  ${JSON.stringify(name)}: [\n${entries.map((entry) => `    ${JSON.stringify(entry)}`).join(",\n")}\n  ]`
  return `{\n${[
    lines("operations", operations),
    lines("raised", raised),
    lines("handlers", handlers),
    lines("wire", wire)
  ].join(",\n")}\n}\n`
}

const boxOf = (file: string): string => /^src\/(?:services\/)?([^/]+)/.exec(file)?.[1] ?? file

/**
 * The ports and what they fail with, and what each failure is on the wire: the part that fits into a picture. Functions of
 * modules and the handlers are in the page.
 */
export const toMermaid = ({ operations, wire }: ErrorGraph): string => {
  const ports = operations.filter(({ failures, kind }) => kind === "port" && failures.length > 0)
  const owners = [...new Set(ports.map(({ name }) => name.split(".")[0] ?? name))]
  const id = (text: string) => text.replaceAll(/[^A-Za-z0-9]/g, "_")
  const failures = [...new Set(ports.flatMap((port) => port.failures))].toSorted()
  return [
    "flowchart LR",
    ...owners.flatMap((owner) => {
      const own = ports.filter(({ name }) => name.startsWith(`${owner}.`))
      return [
        `  subgraph ${id(owner)}["${owner} (${boxOf(own[0]?.file ?? "")})"]`,
        ...own.map(({ name }) => `    ${id(name)}["${name.slice(owner.length + 1)}"]`),
        "  end"
      ]
    }),
    ...failures.map((failure) => {
      const row = wire.find((entry) => entry.failure === failure)
      return `  ${id(`failure ${failure}`)}(["${failure}${row === undefined ? "" : `<br/>${row.status} ${row.code}`}"])`
    }),
    ...ports.flatMap((port) => port.failures.map((failure) => `  ${id(port.name)} --> ${id(`failure ${failure}`)}`)),
    ""
  ].join("\n")
}
