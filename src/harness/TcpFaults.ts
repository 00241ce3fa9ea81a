// @effect-diagnostics nodeBuiltinImport:off
/**
 * A TCP proxy that misbehaves as told, for any two processes on this machine: it goes between them by being the address
 * that the one is given of the other. Bytes are never reordered or invented.
 *
 * Each fault has its opposite: `set` any rule and `heal`, `cut` and `heal`. `loseAnswer` picks one answer: the request
 * has been carried out, and whoever asked does not learn it.
 */
import { Clock, Effect, FiberSet, Latch, Queue, Schema, type Scope } from "effect"
import * as net from "node:net"

/** An error that occurs when the proxy has no port to listen on. */
export class TcpFaultsError extends Schema.TaggedError<TcpFaultsError>()("TcpFaultsError", {
  message: Schema.String
}) {}

export interface Rule {
  /** `drop`: the bytes vanish. `hold`: they wait until the rule changes. */
  readonly flow: "pass" | "drop" | "hold"
  readonly delayMillis: number
}

export interface Rules {
  /** From who connected. */
  readonly up: Rule
  readonly down: Rule
  /** New connections are reset. */
  readonly refuse: boolean
}

export interface LostAnswer {
  /** 1: the next one that begins. Counted over all connections. */
  readonly nth: number
  /**
   * `silence`: neither it nor anything after it arrives on that connection. `reset`: the connection is. `late`: it arrives
   * after so many ms, and what follows it after that.
   */
  readonly how: "silence" | "reset" | { readonly lateMillis: number }
  /** Nothing comes down on any connection after it, until `heal`. Default: false. */
  readonly forGood?: boolean
}

export interface Counts {
  readonly connections: number
  readonly refused: number
  readonly bytesUp: number
  readonly bytesDown: number
  readonly droppedBytes: number
  /** Had to wait for the rule to change. */
  readonly heldBytes: number
  readonly resets: number
  /** Answers that began to arrive, and how many of them were lost or delayed by `loseAnswer`. */
  readonly answers: number
  readonly answersLost: number
}

export interface TcpFaults {
  readonly port: number
  /** What is not named stays as it is. */
  readonly set: (rules: {
    readonly up?: Partial<Rule>
    readonly down?: Partial<Rule>
    readonly refuse?: boolean
  }) => Effect.Effect<void>
  /** Everything passes again at once; what was held is delivered, in order. */
  readonly heal: Effect.Effect<void>
  /** Every connection is reset. */
  readonly reset: Effect.Effect<void>
  /** Every connection is reset and new ones are refused, until `heal`. */
  readonly cut: Effect.Effect<void>
  /** Replaces what was asked for before; undone by `heal`. */
  readonly loseAnswer: (lost: LostAnswer) => Effect.Effect<void>
  /** Where new connections go to from now on, as when a name moves to another server. */
  readonly retarget: (port: number) => Effect.Effect<void>
  readonly counts: Effect.Effect<Counts>
}

export interface TcpFaultsOptions {
  readonly target: { readonly host?: string; readonly port: number }
  /** Where it listens. Default: 127.0.0.1. */
  readonly host?: string
  /**
   * What an answer is. `http2`: the response of a stream (gRPC). `postgres`: what ends in ReadyForQuery. Default:
   * `bytes`, the first ones that come down after some have gone up.
   */
  readonly answers?: "http2" | "postgres" | "bytes"
}

const passing: Rule = { flow: "pass", delayMillis: 0 }
const healthy: Rules = { up: passing, down: passing, refuse: false }

export const start = Effect.fnUntraced(function* (
  options: TcpFaultsOptions
): Effect.fn.Return<TcpFaults, TcpFaultsError, Scope.Scope> {
  const clock = yield* Clock.Clock
  const run = yield* FiberSet.makeRuntime<never, void>()
  const links = new Set<Link>()
  /** Opened whenever the rules change, for those who hold. */
  let changed = Latch.makeUnsafe()
  let rules = healthy
  let targetPort = options.target.port
  let lost: { readonly how: LostAnswer["how"]; readonly forGood: boolean; left: number } | undefined
  const counts = {
    connections: 0,
    refused: 0,
    bytesUp: 0,
    bytesDown: 0,
    droppedBytes: 0,
    heldBytes: 0,
    resets: 0,
    answers: 0,
    answersLost: 0
  }

  const change = (next: Rules) => {
    rules = next
    const before = changed
    changed = Latch.makeUnsafe()
    before.openUnsafe()
  }

  /** Carries the bytes of one direction, in order. */
  const pump = (link: Link, direction: "up" | "down", from: net.Socket, to: net.Socket) =>
    Effect.gen(function* () {
      const queue = yield* Queue.unbounded<Chunk>()
      const offer = (bytes: Buffer | undefined) =>
        Queue.offerUnsafe(queue, { bytes, at: clock.monotonicTimeNanosUnsafe() })
      from.on("data", offer)
      if (from.destroyed) offer(undefined)
      else from.on("close", () => offer(undefined))
      while (true) {
        const { at, bytes } = yield* Queue.take(queue)
        const waitMillis = rules[direction].delayMillis - Number(clock.monotonicTimeNanosUnsafe() - at) / 1e6
        if (waitMillis > 0) yield* Effect.sleep(waitMillis)
        if (rules[direction].flow === "hold") counts.heldBytes += bytes?.length ?? 0
        while (rules[direction].flow === "hold") yield* changed.await
        const { flow } = rules[direction]
        if (bytes === undefined) {
          // The end of a connection is something that arrives, too.
          if (flow === "pass" && !link.silent) to.destroy()
          return
        }
        if (flow === "drop" || (direction === "down" && link.silent)) {
          counts.droppedBytes += bytes.length
          continue
        }
        if (direction === "up") {
          counts.bytesUp += bytes.length
          link.answers.asked()
        } else {
          const begun = link.answers.read(bytes)
          counts.answers += begun
          const due = begun > 0 && lost !== undefined && (lost.left -= begun) <= 0 ? lost : undefined
          if (due !== undefined) {
            const loss = due.how
            lost = undefined
            counts.answersLost++
            if (due.forGood) change({ ...rules, down: { ...rules.down, flow: "drop" } })
            if (loss === "reset") {
              counts.resets++
              link.reset()
              return
            }
            if (loss === "silence") {
              link.silent = true
              counts.droppedBytes += bytes.length
              continue
            }
            yield* Effect.sleep(loss.lateMillis)
          }
          counts.bytesDown += bytes.length
        }
        if (!to.destroyed) to.write(bytes)
      }
    })

  const accept = (client: net.Socket) => {
    client.on("error", () => {})
    if (rules.refuse) {
      counts.refused++
      client.resetAndDestroy()
      return
    }
    counts.connections++
    const server = net.connect({ host: options.target.host ?? "127.0.0.1", port: targetPort })
    const link: Link = {
      answers: new Answers(options.answers ?? "bytes"),
      silent: false,
      reset: () => {
        client.resetAndDestroy()
        server.resetAndDestroy()
      }
    }
    links.add(link)
    server.on("error", () => client.resetAndDestroy())
    server.on("close", () => links.delete(link))
    client.setNoDelay(true)
    server.setNoDelay(true)
    run(pump(link, "up", client, server))
    run(pump(link, "down", server, client))
  }

  const resetAll = () => {
    counts.resets += links.size
    for (const link of links) link.reset()
    links.clear()
  }

  const listener = yield* Effect.acquireRelease(
    Effect.callback<net.Server, TcpFaultsError>((resume) => {
      const server = net.createServer(accept)
      server.once("error", (cause) => resume(Effect.fail(new TcpFaultsError({ message: cause.message }))))
      server.listen(0, options.host ?? "127.0.0.1", () => resume(Effect.succeed(server)))
    }),
    (server) =>
      Effect.callback<void>((resume) => {
        for (const link of links) link.reset()
        server.close(() => resume(Effect.void))
      })
  )
  const address = listener.address()

  return {
    port: typeof address === "object" && address !== null ? address.port : 0,
    set: ({ down, refuse, up }) =>
      Effect.sync(() =>
        change({ up: { ...rules.up, ...up }, down: { ...rules.down, ...down }, refuse: refuse ?? rules.refuse })
      ),
    heal: Effect.sync(() => {
      lost = undefined
      change(healthy)
    }),
    reset: Effect.sync(resetAll),
    cut: Effect.sync(() => {
      change({ ...rules, refuse: true })
      resetAll()
    }),
    loseAnswer: ({ forGood = false, how, nth }) => Effect.sync(() => (lost = { how, forGood, left: nth })),
    retarget: (port) => Effect.sync(() => (targetPort = port)),
    counts: Effect.sync(() => ({ ...counts }))
  }
})

interface Chunk {
  /** Undefined: the connection has ended. */
  readonly bytes: Buffer | undefined
  readonly at: bigint
}

interface Link {
  readonly answers: Answers
  /** An answer was lost here: nothing comes down any more. */
  silent: boolean
  readonly reset: () => void
}

/** Follows what comes down a connection and counts the answers in it. */
class Answers {
  readonly #kind: "http2" | "postgres" | "bytes"
  readonly #streams = new Set<number>()
  /** The head of a frame or message that is not complete yet, and how much of the body is still to come. */
  #head = Buffer.alloc(0)
  #body = 0
  #asked = false

  constructor(kind: "http2" | "postgres" | "bytes") {
    this.#kind = kind
  }

  asked(): void {
    this.#asked = true
  }

  /** How many answers begin (`postgres`: end) in these bytes. */
  read(bytes: Buffer): number {
    if (this.#kind === "bytes") {
      const begun = this.#asked ? 1 : 0
      this.#asked = false
      return begun
    }
    const headLength = this.#kind === "http2" ? 9 : 5
    let begun = 0
    for (let at = 0; at < bytes.length;) {
      if (this.#body > 0) {
        const skipped = Math.min(this.#body, bytes.length - at)
        this.#body -= skipped
        at += skipped
        continue
      }
      const taken = bytes.subarray(at, at + headLength - this.#head.length)
      this.#head = Buffer.concat([this.#head, taken])
      at += taken.length
      if (this.#head.length < headLength) break
      if (this.#begins(this.#head)) begun++
      this.#body = this.#kind === "http2" ? this.#head.readUIntBE(0, 3) : this.#head.readUInt32BE(1) - 4
      this.#head = Buffer.alloc(0)
    }
    return begun
  }

  #begins(head: Buffer): boolean {
    if (this.#kind === "postgres") return head[0] === 0x5a
    // HEADERS of a stream that had none: its trailers come as HEADERS, too.
    const stream = head.readUInt32BE(5) & 0x7fff_ffff
    if (head[3] !== 1 || this.#streams.has(stream)) return false
    this.#streams.add(stream)
    return true
  }
}
