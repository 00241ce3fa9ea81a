/** All deliberate bugs. */
import { lockMutants } from "./LockMutants.ts"
import { moneyMutants } from "./MoneyMutants.ts"
import type { Mutant } from "./Mutant.ts"

export const mutants: ReadonlyArray<Mutant> = [...lockMutants, ...moneyMutants]

export const mutantOf = (id: string): Mutant | undefined => mutants.find((one) => one.id === id)
