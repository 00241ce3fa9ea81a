// @effect-diagnostics nodeBuiltinImport:off
/** TCP ports of 127.0.0.1. */
import { Effect, Option, Random } from "effect"
import * as net from "node:net"

export const isFree = (port: number): Effect.Effect<boolean> =>
  Effect.callback((resume) => {
    const server = net.createServer()
    server.once("error", () => resume(Effect.succeed(false)))
    server.listen(port, "127.0.0.1", () => server.close(() => resume(Effect.succeed(true))))
  })

/**
 * A free port below the ephemeral range. Inside it an outgoing connection can take the port while its server is down,
 * or even connect to itself, and the restart would find its port in use. None after a hundred tries: the range is full.
 */
export const freePort: Effect.Effect<Option.Option<number>> = Effect.gen(function* () {
  for (let attempts = 0; attempts < 100; attempts++) {
    const port = yield* Random.nextIntBetween(20_000, 32_000)
    if (yield* isFree(port)) return Option.some(port)
  }
  return Option.none()
})
