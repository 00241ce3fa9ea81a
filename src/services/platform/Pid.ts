/** Other processes of this machine, by their process id: whether one runs, and a signal for it. */

/** A process of another user counts: it runs, even if it can't be signalled from here. */
export const isAlive = (pid: number): boolean => {
  try {
    return process.kill(pid, 0)
  } catch (cause) {
    return cause instanceof Error && "code" in cause && cause.code === "EPERM"
  }
}

/** Nothing happens when the process is gone: it may end between any look at it and the signal. */
export const send = (pid: number, signal: NodeJS.Signals): void => {
  try {
    process.kill(pid, signal)
  } catch (cause) {
    if (!(cause instanceof Error && "code" in cause && cause.code === "ESRCH")) throw cause
  }
}
