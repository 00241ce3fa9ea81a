// @effect-diagnostics nodeBuiltinImport:off
/** The data directory of a server of ours as it was at some time, and how it is put back: a backup and its restore. */
import { Effect, type Scope } from "effect"
import { execFile } from "node:child_process"
import { HarnessError } from "./Processes.ts"

/** What PostgreSQL's and etcd's server of ours have in common. */
export interface Server<E> {
  readonly data: string
  readonly pid: Effect.Effect<number | undefined>
  readonly stop: Effect.Effect<void, E>
  readonly kill: Effect.Effect<void, E>
  readonly restart: Effect.Effect<void, E>
}

export interface DataCopy<E> {
  readonly pid: Effect.Effect<number | undefined>
  /** Stops the server for as long as it takes. The copy before is replaced. */
  readonly take: Effect.Effect<void, E | HarnessError>
  /** SIGKILL, and what was written since the copy is gone. */
  readonly putBack: Effect.Effect<void, E | HarnessError>
}

export const of = <E>(server: Server<E>): Effect.Effect<DataCopy<E>, never, Scope.Scope> => {
  const kept = `${server.data}.copy`
  const copy = (from: string, to: string) => Effect.andThen(remove(to), command("cp", "-a", from, to))
  return Effect.as(
    Effect.addFinalizer(() => Effect.ignore(remove(kept))),
    {
      pid: server.pid,
      take: Effect.andThen(server.stop, Effect.andThen(copy(server.data, kept), server.restart)),
      putBack: Effect.andThen(server.kill, Effect.andThen(copy(kept, server.data), server.restart))
    }
  )
}

/** `cp -a` keeps the owner, which Node's own copy does not: PostgreSQL starts from nobody else's data. */
const command = (name: string, ...args: ReadonlyArray<string>) =>
  Effect.callback<void, HarnessError>((resume) => {
    const child = execFile(name, args, { timeout: 60_000 }, (error) =>
      resume(
        error === null
          ? Effect.void
          : Effect.fail(new HarnessError({ step: [name, ...args].join(" "), message: error.message }))
      )
    )
    return Effect.sync(() => child.kill())
  })

const remove = (directory: string) => command("rm", "-rf", "--", directory)
