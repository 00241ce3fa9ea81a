import { Effect, Exit, Redacted, Scope } from "effect"
import type { TestProject } from "vitest/node"
import * as EmbeddedPostgres from "../../src/services/platform/EmbeddedPostgres.ts"

declare module "vitest" {
  export interface ProvidedContext {
    /** The superuser's URL of the server that all test files of this run share. */
    readonly pgAdminUrl: string
  }
}

/** One throw-away PostgreSQL for the whole run; every test file makes its own database in it (`pg.ts`). */
export default (project: TestProject) => {
  const scope = Scope.makeUnsafe()
  const server = EmbeddedPostgres.start({
    storage: { kind: "temporary" },
    fast: true,
    // Test files run side by side, each with a few pools.
    settings: { max_connections: "300" }
  }).pipe(
    Scope.provide(scope),
    Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
  )
  return Effect.runPromise(
    Effect.map(server, ({ url }) => {
      project.provide("pgAdminUrl", Redacted.value(url("postgres")))
      return () => Effect.runPromise(Scope.close(scope, Exit.void))
    })
  )
}
