/**
 * What a `ProcessWorld` stands on: where its participants run, and the servers that they share. Processes of this machine,
 * containers of compose.yaml (`ComposeWorld.ts`) or pods (`KubeWorld.ts`): the links between participants, and so every
 * fault of the network and every call that is noted, are in this process with each of them.
 */
import { Effect, type Scope } from "effect"
import * as EmbeddedPostgres from "../services/platform/EmbeddedPostgres.ts"
import { type BackendKind, type LockBackend, start as startBackend, wrong } from "./LockBackends.ts"
import { type HarnessError, make as makeProcesses, type Processes } from "./Processes.ts"
import type { PayServer } from "./ProcessWorld.ts"

export type Target = "processes" | "compose" | "kubernetes"

export interface Ground {
  readonly processes: Processes
  readonly payServer: PayServer
  /** `replicated`: with somebody to take over. */
  readonly backend: (replicated: boolean) => Effect.Effect<LockBackend, HarnessError, Scope.Scope>
  /** This machine, as the participants reach it. */
  readonly host: string
  /** Whether there can be several backends, and one with somebody to take over: then runs may overlap. */
  readonly manyBackends: boolean
  /** Tells what this run makes from what others have made on the same ground; empty where there are no others. */
  readonly run: string
}

export const start = (target: Target, kind: BackendKind): Effect.Effect<Ground, HarnessError, Scope.Scope> => {
  switch (target) {
    case "processes":
      return onThisMachine(kind)
    case "compose":
      return Effect.flatMap(
        Effect.promise(() => import("./ComposeWorld.ts")),
        (compose) => compose.start(kind)
      )
    case "kubernetes":
      return Effect.flatMap(
        Effect.promise(() => import("./KubeWorld.ts")),
        (kube) => kube.start(kind)
      )
  }
}

const onThisMachine = Effect.fnUntraced(function* (kind: BackendKind) {
  const processes = yield* makeProcesses
  const payServer = yield* EmbeddedPostgres.start({
    storage: { kind: "temporary" },
    // Nobody kills it.
    fast: true,
    settings: { max_connections: "200" }
  }).pipe(Effect.mapError(wrong("start PostgreSQL")))
  return {
    processes,
    payServer,
    backend: (replicated) => startBackend(kind, replicated),
    host: "127.0.0.1",
    manyBackends: true,
    run: ""
  } satisfies Ground
})
