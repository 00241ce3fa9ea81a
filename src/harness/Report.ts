import type { Ran } from "../sim/Run.ts"
export const timeline = (_runs: ReadonlyArray<Ran>): string => ""
