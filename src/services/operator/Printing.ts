/**
 * How a command says what it found: one JSON document with `--json` (one a line for a stream), else text for people. What
 * is found is no matter of this file.
 */
import { Console, DateTime, type Effect } from "effect"
import { errorTable, isWireError } from "../api/ApiError.ts"

/** What a command found: `document` for machines, `text` for people. */
export interface Shown {
  readonly document: unknown
  readonly text: string
}

/** Tokens and money are bigint: decimal digits, as on every wire. */
export const json = (value: unknown): string =>
  JSON.stringify(value, (_key, part: unknown) => (typeof part === "bigint" ? part.toString() : part)) ?? "null"

export const show = (asJson: boolean, { document, text }: Shown): Effect.Effect<void> =>
  Console.log(asJson ? json(document) : text)

export const time = (millis: number): string => DateTime.formatIso(DateTime.makeUnsafe(millis))

export interface Column<Row> {
  readonly title: string
  readonly of: (row: Row) => string
}

/** Columns as wide as their longest cell; `none` when there is nothing to show. */
export const table = <Row>(rows: ReadonlyArray<Row>, columns: ReadonlyArray<Column<Row>>, none: string): string => {
  if (rows.length === 0) return none
  const cells = [columns.map(({ title }) => title), ...rows.map((row) => columns.map(({ of }) => of(row)))]
  const widths = columns.map((_, column) => Math.max(...cells.map((line) => line[column]?.length ?? 0)))
  return cells
    .map((line) =>
      line
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join("  ")
        .trimEnd()
    )
    .join("\n")
}

/** `name  value`, one a line; what is undefined is left out. */
export const details = (pairs: ReadonlyArray<readonly [name: string, value: string | undefined]>): string => {
  const shown = pairs.flatMap(([name, value]) => (value === undefined ? [] : [[name, value] as const]))
  const width = Math.max(0, ...shown.map(([name]) => name.length))
  return shown.map(([name, value]) => `${name.padEnd(width)}  ${value}`).join("\n")
}

/** `3 s`, `5 min`, `2 h` */
export const span = (millis: number): string => {
  const seconds = Math.round(Math.abs(millis) / 1_000)
  return seconds < 120
    ? `${seconds} s`
    : seconds < 7_200
      ? `${Math.round(seconds / 60)} min`
      : `${Math.round(seconds / 3_600)} h`
}

/** The client's words for a port on which nobody listens. */
const unreachable = (cause: string): string =>
  cause.replace(/(?:HttpClientError: )?Transport error \((?:\w+ )?([^)]*)\)/, "nobody answers at $1")

export interface Told {
  readonly code: string
  readonly message: string
}

/** A failure in the words of its row on the wire; of one that has no answer, where it was looked for. */
export const told = (failure: unknown): Told => {
  if (isWireError(failure)) {
    const { code } = errorTable[failure._tag]
    if (failure._tag === "BackendUnavailable") {
      return { code, message: `${failure.operation}: ${unreachable(failure.cause)}` }
    }
    if (failure._tag === "ValidationFailed") {
      return { code, message: failure.fields.map(({ path, reason }) => `${path}: ${reason}`).join("; ") }
    }
    // The row belongs to this very failure; a union of rows can not say so.
    const { message } = errorTable[failure._tag] as { readonly message: (of: typeof failure) => string }
    return { code, message: message(failure) }
  }
  if (typeof failure === "object" && failure !== null && "_tag" in failure && failure._tag === "LockUnavailable") {
    return { code: "LOCK_UNAVAILABLE", message: "cause" in failure ? String(failure.cause) : "no definite answer" }
  }
  return {
    code: typeof failure === "object" && failure !== null && "_tag" in failure ? String(failure._tag) : "UNEXPECTED",
    message: failure instanceof Error ? failure.message : String(failure)
  }
}
