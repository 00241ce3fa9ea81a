import { Effect, type Scope } from "effect"
import type { Ground } from "./Ground.ts"
import type { BackendKind } from "./LockBackends.ts"
import { HarnessError } from "./Processes.ts"

export const start = (kind: BackendKind): Effect.Effect<Ground, HarnessError, Scope.Scope> =>
  Effect.fail(new HarnessError({ step: "kubernetes", message: `not for ${kind} yet` }))
