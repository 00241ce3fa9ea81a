/**
 * A small world in which everything moves: four nodes, calls, transactions, races, loss, late messages, a pause, a kill and
 * a restart. What it did, as one hash. A file of its own so that a worker thread can run it too.
 */
import { Clock, Effect, Exit, Random, Schedule } from "effect"
import { SimNetwork } from "../../src/sim/SimNetwork.ts"
import { VirtualWorld, type Policy } from "../../src/sim/VirtualWorld.ts"

export const busy = (seed: number, policy: Policy): string => {
  const w = new VirtualWorld({
    seed,
    policy,
    quantum: 4,
    sliceMicrosMax: 200,
    timerEarlyMicrosMax: 500,
    timerLateMicrosMax: 500
  })
  const net = new SimNetwork(w, {
    jitterMicros: 3000,
    lossPerMille: 50,
    duplicatePerMille: 50,
    latePerMille: 50,
    lateMicrosMax: 300_000
  })
  const rows: Array<number> = []
  const db = w.node("db", { daemon: true })
  db.start()
  const server = w.node("server", {
    daemon: true,
    program: (process) => {
      endpoint.listen(process, {
        put: (n) => net.transact(process, db, "insert", () => Exit.succeed(rows.push(n)), { timeoutMillis: 50 })
      })
      return Effect.never
    }
  })
  const endpoint = net.endpoint<{
    put: (n: number) => ReturnType<typeof net.transact<number, never>>
  }>(server)
  server.start()
  for (const name of ["w1", "w2"]) {
    w.node(name, {
      wallDriftPpm: 50,
      program: (process) =>
        Effect.gen(function* () {
          for (let i = 0; i < 4; i++) {
            const n = yield* Random.nextIntBetween(0, 1000)
            yield* net
              .call(process, endpoint, "put", (service) => service.put(n), { timeoutMillis: 100 })
              .pipe(Effect.retry({ times: 5, schedule: Schedule.jittered(Schedule.exponential(10)) }), Effect.ignore)
            rows.push((yield* Clock.currentTimeMillis) % 1000)
          }
        })
    }).start()
  }
  w.at(40_000, () => w.nodes[2]!.pause(200_000))
  w.at(60_000, () => server.kill())
  w.at(90_000, () => server.start())
  const reason = w.run(60_000_000)
  return [reason, w.trace.scheduleHash, w.steps, w.now, ...w.nodes.map((node) => node.ops), ...rows].join(" ")
}
