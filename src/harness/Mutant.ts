/**
 * Deliberate bugs, each a change of one or two places of a source file, made while the file is loaded and nowhere else. A
 * simulation that does not find them proves nothing by finding nothing.
 *
 * A bug behind a second guard lives, so some are run with that guard away, and compared with what its absence alone does.
 * Every survivor has its reason here; one without a reason fails the command.
 */
import type { Fixed } from "../sim/Arbitrary.ts"
import type { Edit } from "./SimPool.ts"

export interface Mutant {
  readonly id: string
  readonly what: string
  readonly edits: ReadonlyArray<Edit>
  /** Where it is looked for, in this order. Default: UC-03, then UC-05. */
  readonly under?: ReadonlyArray<{
    readonly scenario: string
    readonly fixed?: Fixed
    /** Checks that fail there without the mutant too. */
    readonly expected?: ReadonlyArray<string>
  }>
  /** Must be found within three runs, or the harness itself is broken. */
  readonly canary?: boolean
  /** Why it can not be found. */
  readonly survives?: string
}

export const edit = (file: string, find: string, replace: string): Edit => ({ file, find, replace })
/**
 * The places that an edit is about, in the source and in what the compiler makes of it: lines may be broken differently, and
 * statements end with a semicolon there.
 */
export const patternOf = ({ find }: Edit): RegExp =>
  new RegExp(
    find
      .trim()
      .split(/\s+/)
      .map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"))
      .join(";?\\s+"),
    "g"
  )
/** The text with the change made. Throws when it has not the one place, or any, that the edit is about. */
export const apply = (text: string, edit: Edit): string => {
  const { all, file, find, replace } = edit
  const pattern = patternOf(edit)
  const places = [...text.matchAll(pattern)].length
  if (places !== 1 && !(all === true && places > 0)) {
    throw new Error(`the mutant no longer applies: ${places} places of ${file} say ${find}`)
  }
  return text.replaceAll(pattern, () => replace)
}
/** All places of a file. */
export const everywhere = (file: string, find: string, replace: string): Edit => ({ file, find, replace, all: true })
/** The same statement with something in front of it. */
export const before = (file: string, find: string, first: string): Edit => edit(file, find, `${first}${find}`)
