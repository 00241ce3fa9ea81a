// @effect-diagnostics nodeBuiltinImport:off
/**
 * A temporary directory that does not outlive this process, whatever ends it.
 *
 * The shell of a server removes its data too, but not while the server is down: they are to be there for a restart, and that
 * shell is gone. A process that is killed (SIGKILL) at such a moment removes nothing itself.
 */
import { Deferred, Effect, type Scope } from "effect"
import { spawn } from "node:child_process"

/** A server that is being ended may still write: what it makes meanwhile is removed again. */
const script = `
trap '' INT TERM HUP
cat >/dev/null
tries=0
until rm -rf -- "$1" && [ ! -e "$1" ]; do
  tries=$((tries + 1))
  [ "$tries" -ge 100 ] && break
  sleep 0.1
done
`

/** The directory is removed when the scope closes or this process is gone; by its owner, who may be another user. */
export const guard = (
  directory: string,
  owner: { readonly uid?: number; readonly gid?: number } = {}
): Effect.Effect<void, never, Scope.Scope> =>
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
  )
