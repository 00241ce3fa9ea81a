import { assert, describe, it } from "@effect/vitest"
import { Effect, type Scope } from "effect"
import * as net from "node:net"
import * as TcpFaults from "../../src/harness/TcpFaults.ts"
import { waitUntil } from "../support/waitUntil.ts"

/** Answers every byte with the same byte. */
const echo: Effect.Effect<number, never, Scope.Scope> = Effect.map(
  Effect.acquireRelease(
    Effect.callback<net.Server>((resume) => {
      const server = net.createServer((socket) => {
        socket.on("error", () => {})
        socket.pipe(socket)
      })
      server.listen(0, "127.0.0.1", () => resume(Effect.succeed(server)))
    }),
    (server) => Effect.sync(() => server.close())
  ),
  (server) => {
    const address = server.address()
    return typeof address === "object" && address !== null ? address.port : 0
  }
)

interface Client {
  readonly send: (text: string) => Effect.Effect<void>
  readonly received: () => string
  readonly state: () => "open" | "ended" | "reset"
}

const connect = (port: number): Effect.Effect<Client, never, Scope.Scope> =>
  Effect.map(
    Effect.acquireRelease(
      Effect.sync(() => net.connect({ host: "127.0.0.1", port, noDelay: true })),
      (socket) => Effect.sync(() => socket.destroy())
    ),
    (socket) => {
      let received = ""
      let state: "open" | "ended" | "reset" = "open"
      socket.on("data", (bytes) => (received += bytes.toString()))
      socket.on("error", () => (state = "reset"))
      socket.on("close", () => (state = state === "open" ? "ended" : state))
      return {
        send: (text) => Effect.sync(() => void socket.write(text)),
        received: () => received,
        state: () => state
      }
    }
  )

const until = (description: string, condition: () => boolean) => waitUntil(description, Effect.sync(condition))

const setup = Effect.gen(function* () {
  const faults = yield* TcpFaults.start({ target: { port: yield* echo } })
  return { faults, client: yield* connect(faults.port) }
})

/** Long enough for anything on loopback that is not held back. */
const aWhile = Effect.sleep("150 millis")

describe("TcpFaults", () => {
  it.live("passes everything in both directions and counts it", () =>
    Effect.gen(function* () {
      const { client, faults } = yield* setup
      yield* client.send("hello")
      yield* until("it is echoed", () => client.received() === "hello")
      const counts = yield* faults.counts
      assert.strictEqual(counts.connections, 1)
      assert.strictEqual(counts.bytesUp, 5)
      assert.strictEqual(counts.bytesDown, 5)
      assert.strictEqual(counts.droppedBytes, 0)
    })
  )

  for (const direction of ["up", "down"] as const) {
    it.live(`holds what goes ${direction} until it is healed, and delivers it in order`, () =>
      Effect.gen(function* () {
        const { client, faults } = yield* setup
        yield* faults.set({ [direction]: { flow: "hold" } })
        yield* client.send("one ")
        yield* aWhile
        yield* client.send("two")
        yield* aWhile
        assert.strictEqual(client.received(), "")
        assert.strictEqual((yield* faults.counts).bytesUp, direction === "up" ? 0 : 7)
        yield* faults.heal
        yield* until("both arrive", () => client.received() === "one two")
      })
    )

    it.live(`drops what goes ${direction}, and only while it is told to`, () =>
      Effect.gen(function* () {
        const { client, faults } = yield* setup
        yield* faults.set({ [direction]: { flow: "drop" } })
        yield* client.send("lost")
        yield* waitUntil(
          "it is dropped",
          Effect.map(faults.counts, ({ droppedBytes }) => droppedBytes === 4)
        )
        yield* faults.heal
        yield* client.send("kept")
        yield* until("the rest arrives", () => client.received() === "kept")
        assert.strictEqual((yield* faults.counts).bytesUp, direction === "up" ? 4 : 8)
      })
    )
  }

  it.live("delays each direction by its own", () =>
    Effect.gen(function* () {
      const { client, faults } = yield* setup
      yield* faults.set({ up: { delayMillis: 150 }, down: { delayMillis: 100 } })
      const startedAt = performance.now()
      yield* client.send("slow")
      yield* until("it arrives", () => client.received() === "slow")
      assert.isAtLeast(performance.now() - startedAt, 240)
    })
  )

  it.live("resets connections; cut also refuses new ones until it is healed", () =>
    Effect.gen(function* () {
      const { client, faults } = yield* setup
      yield* client.send("x")
      yield* until("it is open", () => client.received() === "x")
      yield* faults.reset
      yield* until("it is reset", () => client.state() === "reset")
      const second = yield* connect(faults.port)
      yield* second.send("y")
      yield* until("a new one works", () => second.received() === "y")
      yield* faults.cut
      yield* until("it is reset", () => second.state() === "reset")
      const third = yield* connect(faults.port)
      yield* until("it is refused", () => third.state() === "reset")
      assert.strictEqual((yield* faults.counts).refused, 1)
      yield* faults.heal
      const fourth = yield* connect(faults.port)
      yield* fourth.send("z")
      yield* until("it works again", () => fourth.received() === "z")
    })
  )

  it.live("loses the answer it is told to, and no other: in silence, by a reset, for a while, or with all others", () =>
    Effect.gen(function* () {
      const faults = yield* TcpFaults.start({ target: { port: yield* echo } })
      const ask = (client: Client, text: string) =>
        Effect.andThen(
          client.send(text),
          until("it is answered", () => client.received().endsWith(text))
        )
      const silent = yield* connect(faults.port)
      yield* faults.loseAnswer({ nth: 2, how: "silence" })
      yield* ask(silent, "1")
      yield* silent.send("2")
      yield* silent.send("3")
      yield* aWhile
      assert.strictEqual(silent.received(), "1")
      assert.strictEqual(silent.state(), "open")

      const reset = yield* connect(faults.port)
      yield* ask(reset, "1")
      yield* faults.loseAnswer({ nth: 1, how: "reset" })
      yield* reset.send("2")
      yield* until("it is reset", () => reset.state() === "reset")
      assert.strictEqual(reset.received(), "1")

      const late = yield* connect(faults.port)
      yield* faults.loseAnswer({ nth: 1, how: { lateMillis: 200 } })
      const startedAt = performance.now()
      yield* ask(late, "1")
      assert.isAtLeast(performance.now() - startedAt, 190)
      yield* faults.loseAnswer({ nth: 1, how: "silence", forGood: true })
      yield* late.send("2")
      const after = yield* connect(faults.port)
      yield* after.send("1")
      yield* aWhile
      assert.strictEqual(after.received(), "")
      yield* faults.heal
      yield* ask(after, "2")
      assert.strictEqual((yield* faults.counts).answersLost, 4)
    })
  )

  it.live("the end of a connection is passed on, and nothing is left with the scope", () =>
    Effect.gen(function* () {
      const port = yield* Effect.scoped(
        Effect.gen(function* () {
          const { client, faults } = yield* setup
          yield* client.send("x")
          yield* until("it is open", () => client.received() === "x")
          return faults.port
        })
      )
      const late = yield* connect(port)
      yield* until("nobody listens", () => late.state() === "reset")
    })
  )
})
