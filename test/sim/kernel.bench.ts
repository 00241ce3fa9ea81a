/**
 * What the virtual world itself costs: `node test/sim/kernel.bench.ts [rounds]`. CPU time, best and median of the rounds; on a
 * shared machine the same program varies by a third between processes.
 */
import { Effect, Exit } from "effect"
import { SimNetwork } from "../../src/sim/SimNetwork.ts"
import { VirtualWorld, type WorldOptions } from "../../src/sim/VirtualWorld.ts"

const cpuMicros = (): number => {
  const { system, user } = process.cpuUsage()
  return user + system
}

/** Eight machines, as the payout system has them, that start, serve and end. */
const idle = (): VirtualWorld => {
  const w = new VirtualWorld({ seed: 1 })
  new SimNetwork(w)
  for (let i = 0; i < 8; i++) w.node(`n${i}`, { program: () => Effect.void }).start()
  w.run()
  return w
}

/** A bare loop: `Effect.repeat` costs more than what is measured here. */
const repeat = <A, E>(times: number, effect: Effect.Effect<A, E>): Effect.Effect<void, E> =>
  Effect.gen(function* () {
    for (let i = 0; i < times; i++) yield* effect
  })

const sleeps = (n: number, options: Partial<WorldOptions> = {}): VirtualWorld => {
  const w = new VirtualWorld({ seed: 1, ...options })
  for (let i = 0; i < 4; i++) {
    w.node(`n${i}`, { program: () => repeat(n / 4, Effect.sleep("1 second")) }).start()
  }
  w.run()
  return w
}

const calls = (n: number, how: "call" | "deadline" | "timeout" | "transact", options: Partial<WorldOptions> = {}) => {
  const w = new VirtualWorld({ seed: 1, ...options })
  const net = new SimNetwork(w, { jitterMicros: 1000 })
  const server = w.node("server", { daemon: true })
  const endpoint = net.endpoint<{ readonly echo: (n: number) => Effect.Effect<number> }>(server)
  endpoint.listen(server.start(), { echo: (n) => Effect.succeed(n) })
  w.node("client", {
    program: (client) => {
      const deadline = how === "deadline" ? { timeoutMillis: 1000 } : undefined
      const one =
        how === "transact"
          ? net.transact(client, server, "echo", () => Exit.succeed(1))
          : net.call(client, endpoint, "echo", (service) => service.echo(1), deadline)
      const bounded = how === "timeout" ? Effect.timeout(one, "1 second") : one
      return Effect.orDie(repeat(n, bounded))
    }
  }).start()
  w.run()
  return w
}

const rounds = Number(process.argv[2] ?? 7)

const measure = (name: string, n: number, run: () => VirtualWorld): void => {
  run()
  const micros: Array<number> = []
  let w: VirtualWorld | undefined
  for (let i = 0; i < rounds; i++) {
    const from = cpuMicros()
    w = run()
    micros.push((cpuMicros() - from) / n)
  }
  micros.sort((a, b) => a - b)
  const ops = w!.nodes.reduce((sum, node) => sum + node.ops, 0)
  const [best, median] = [micros[0]!, micros[Math.floor(rounds / 2)]!]
  console.log(
    `${name.padEnd(34)} best ${best.toFixed(2).padStart(7)} us  median ${median.toFixed(2).padStart(7)} us` +
      `  per unit: ${(w!.happened / n).toFixed(1)} events ${(w!.steps / n).toFixed(1)} slices ${(ops / n).toFixed(1)} ops`
  )
}

const many = 20_000
const worlds = 2000
measure("idle world of 8 nodes", worlds, () => {
  for (let i = 1; i < worlds; i++) idle()
  return idle()
})
measure("sleep", many, () => sleeps(many))
measure("sleep, quantum 1, random", many, () => sleeps(many, { quantum: 1, policy: "random", sliceMicrosMax: 20 }))
measure("sleep, pct", many, () => sleeps(many, { quantum: 1, policy: "pct" }))
measure("typed call", many, () => calls(many, "call"))
measure("typed call, inline resume", many, () => calls(many, "call", { inlineResume: true }))
measure("typed call, transport deadline", many, () => calls(many, "deadline"))
measure("typed call, Effect.timeout", many, () => calls(many, "timeout"))
measure("transaction", many, () => calls(many, "transact"))
measure("typed call, random, quantum 4", many, () =>
  calls(many, "call", { quantum: 4, policy: "random", sliceMicrosMax: 20 })
)
