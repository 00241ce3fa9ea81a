/** stub */
import type { Fixed } from "../sim/Arbitrary.ts"
import type { Patch } from "./SimPool.ts"
export interface Mutant {
  readonly id: string
  readonly what: string
  readonly patch: Patch
  readonly under: ReadonlyArray<{
    readonly scenario: string
    readonly fixed?: Fixed
    readonly expected?: ReadonlyArray<string>
  }>
  readonly canary?: boolean
  readonly survives?: string
}
export const mutants: ReadonlyArray<Mutant> = []
export const mutantOf = (id: string): Mutant | undefined => mutants.find((one) => one.id === id)
