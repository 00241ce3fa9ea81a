/**
 * Runs after `npm ci`: gets the etcd that the tests and `lock.backend=etcd` on this machine use, unless one is there, so that
 * nothing has to be fetched later. Without one the installation is complete all the same; who needs it then is told how to get it.
 */
try {
  const { Effect } = await import("effect")
  const { install } = await import("../src/services/platform/EmbeddedEtcd.ts")
  await Effect.runPromise(Effect.timeout(install, "60 seconds"))
} catch (error) {
  process.stderr.write(`no etcd for now: ${error instanceof Error ? error.message : String(error)}\n`)
}
