/** All deliberate bugs. */
import { lockMutants } from "./LockMutants.ts"
import { moneyMutants } from "./MoneyMutants.ts"
import type { Mutant } from "./Mutant.ts"
import { turnMutants } from "./TurnMutants.ts"

export const mutants: ReadonlyArray<Mutant> = [...lockMutants, ...moneyMutants, ...turnMutants]

export const mutantOf = (id: string): Mutant | undefined => mutants.find((one) => one.id === id)
