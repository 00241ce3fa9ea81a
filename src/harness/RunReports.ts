import { Effect } from "effect"
import type { FencingSwitches } from "../core/Fencing.ts"
import type { Result } from "./ScenarioRun.ts"
export const writeReports = (
  _directory: string,
  _results: ReadonlyArray<Result>,
  _of: { readonly switches: FencingSwitches; readonly seconds: number }
): Effect.Effect<ReadonlyArray<string>> => Effect.succeed([])
