// @effect-diagnostics nodeBuiltinImport:off
/**
 * A temporary directory, and the processes at work in it, that do not outlive this process, whatever ends it.
 *
 * A shell reads process ids from a pipe and, when the pipe closes for whatever reason, kills them all and removes the
 * directory. (The shell of an embedded server removes its data too, but not while the server is down: they are to be there for
 * a restart, and that shell is gone.)
 */
import { Deferred, Effect, type Scope } from "effect"
import { spawn } from "node:child_process"

/** One that is being ended may be in the middle of a write: what it makes meanwhile is removed again. */
const script = `
trap '' INT TERM HUP
pids=
while read -r pid; do pids="$pids $pid"; done
for pid in $pids; do kill -KILL "$pid" 2>/dev/null; done
tries=0
until rm -rf -- "$1" && [ ! -e "$1" ]; do
  tries=$((tries + 1))
  [ "$tries" -ge 100 ] && break
  sleep 0.1
done
`

export interface DirectoryGuard {
  /** The process is killed too, even one that is stopped. */
  readonly alsoEnds: (pid: number) => void
}

/** The directory is removed when the scope closes or this process is gone; by its owner, who may be another user. */
export const guard = (
  directory: string,
  owner: { readonly uid?: number; readonly gid?: number } = {}
): Effect.Effect<DirectoryGuard, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const shell = spawn("/bin/sh", ["-c", script, "sh", directory], {
        ...owner,
        cwd: "/",
        detached: true,
        stdio: ["pipe", "ignore", "ignore"]
      })
      const ended = Deferred.makeUnsafe<void>()
      const finish = () => Deferred.doneUnsafe(ended, Effect.void)
      // Without a shell the directory is removed by the scope alone.
      shell.on("error", finish)
      shell.stdin.on("error", () => {})
      shell.once("exit", finish)
      return { shell, ended }
    }),
    ({ ended, shell }) =>
      Effect.andThen(
        Effect.sync(() => shell.stdin.end()),
        Deferred.await(ended)
      )
  ).pipe(Effect.map(({ shell }) => ({ alsoEnds: (pid) => void shell.stdin.write(`${pid}\n`) })))
