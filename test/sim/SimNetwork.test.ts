/**
 * The network between nodes, and what a caller can learn from it.
 */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Exit } from "effect"
import type { Process } from "../../src/sim/Node.ts"
import { requireEnded } from "../../src/sim/Leaks.ts"
import {
  type CallFailed,
  SimNetwork,
  type CallOptions,
  type Endpoint,
  type NetworkOptions
} from "../../src/sim/SimNetwork.ts"
import { VirtualWorld, type WorldOptions } from "../../src/sim/VirtualWorld.ts"

const milli = 1000
const second = 1_000_000

interface Echo {
  readonly echo: (text: string) => Effect.Effect<string, "no">
}

/** A client and an echo server that keeps a book of what it was asked and when it answered. */
const setting = (options: { readonly network?: NetworkOptions; readonly world?: Partial<WorldOptions> } = {}) => {
  const w = new VirtualWorld({ seed: 1, ...options.world })
  const net = new SimNetwork(w, options.network)
  const book: Array<string> = []
  const answers: Array<string> = []
  const server = w.node("server", {
    daemon: true,
    program: (process) =>
      Effect.suspend(() => {
        echo.listen(process, {
          echo: (text) =>
            Effect.gen(function* () {
              book.push(text)
              yield* Effect.sleep("10 millis")
              if (text === "no") return yield* Effect.fail("no" as const)
              book.push(`${text} done`)
              return text.toUpperCase()
            }).pipe(Effect.onInterrupt(() => Effect.sync(() => void book.push(`${text} interrupted`))))
        })
        return Effect.never
      })
  })
  const echo: Endpoint<Echo> = net.endpoint<Echo>(server)
  server.start()
  const call = (process: Process, text: string, callOptions?: CallOptions): Effect.Effect<void> =>
    net
      .call(process, echo, "echo", (service) => service.echo(text), callOptions)
      .pipe(
        Effect.catch((error: "no" | CallFailed) => Effect.succeed(error === "no" ? "said no" : error.reason)),
        Effect.map((answer) => void answers.push(`${answer} @${Math.round(w.now / milli)}`))
      )
  const client = w.node("client", { program: (process) => call(process, "hello", { timeoutMillis: 1000 }) })
  return { w, net, book, answers, server, client, call, echo }
}

const request = { there: (s: ReturnType<typeof setting>) => s.net.link(s.client, s.server).channel("echo", "request") }
const answer = { back: (s: ReturnType<typeof setting>) => s.net.link(s.server, s.client).channel("echo", "answer") }
const noHit = () => {}

describe("a call", () => {
  it("runs on the server's CPU and brings back success and typed failure", () => {
    const s = setting()
    s.client.start((process) => Effect.andThen(s.call(process, "hello"), s.call(process, "no")))
    assert.strictEqual(s.w.run(), "quiescent")
    requireEnded(s.w)
    assert.deepStrictEqual(s.answers, ["HELLO @11", "said no @22"])
  })

  it("waits while the server is paused, and the caller's deadline does not", () => {
    const s = setting()
    s.client.start()
    s.w.at(5 * milli, () => s.server.pause(3 * second))
    s.w.run()
    assert.deepStrictEqual(s.answers, ["timeout @1000"])
  })

  it("reports a handler's defect as such, and the run as unsound", () => {
    const s = setting()
    s.client.start((process) =>
      s.net
        .call(process, s.echo, "echo", () => Effect.die(new Error("bug")))
        .pipe(Effect.catch((error) => Effect.sync(() => s.answers.push(error.reason))))
    )
    s.w.run()
    assert.deepStrictEqual(s.answers, ["defect"])
    assert.throws(() => requireEnded(s.w), /server died in echo: Error: bug/)
  })

  it("is refused by a dead process, and not even that by a dead machine", () => {
    for (const [how, expected] of [
      ["process", "refused @1"],
      ["machine", "timeout @1000"]
    ] as const) {
      const s = setting()
      s.server.kill(how)
      s.client.start()
      s.w.run()
      assert.deepStrictEqual(s.answers, [expected])
    }
  })

  it("is reset when the process dies during the call", () => {
    for (const [how, expected] of [
      ["process", "reset @6"],
      ["machine", "timeout @1000"]
    ] as const) {
      const s = setting()
      s.client.start()
      s.w.at(5 * milli, () => s.server.kill(how))
      s.w.run()
      assert.deepStrictEqual(s.answers, [expected])
      assert.deepStrictEqual(s.book, ["hello"])
    }
  })

  it("given up by the caller is interrupted at the server, unless the network does not do that", () => {
    for (const abort of [true, false]) {
      const s = setting({ network: { abort } })
      s.client.start((process) => s.call(process, "hello", { timeoutMillis: 5 }))
      s.w.run()
      assert.deepStrictEqual(s.answers, ["timeout @5"])
      assert.deepStrictEqual(s.book, ["hello", abort ? "hello interrupted" : "hello done"])
    }
  })

  it("of a caller that dies is interrupted too, unless the news of it cannot get through", () => {
    for (const [cut, expected] of [
      [false, "hello interrupted"],
      [true, "hello done"]
    ] as const) {
      const s = setting()
      s.client.start()
      s.w.at(3 * milli, () => {
        if (cut) s.net.link(s.client, s.server).cut("drop")
        s.client.kill()
      })
      s.w.run()
      assert.deepStrictEqual(s.book, ["hello", expected])
    }
  })

  it("can be interrupted", () => {
    const s = setting()
    s.client.start((process) => Effect.asVoid(Effect.timeoutOption(s.call(process, "hello"), "3 millis")))
    s.w.run()
    requireEnded(s.w)
    assert.deepStrictEqual(s.book, ["hello", "hello interrupted"])
  })
})

describe("messages", () => {
  it("a lost request was never seen; after a lost answer the work is done and the caller cannot tell", () => {
    const lostRequest = setting()
    request.there(lostRequest).plant(1, { do: "drop" }, noHit)
    lostRequest.client.start()
    lostRequest.w.run()
    assert.deepStrictEqual([lostRequest.answers, lostRequest.book], [["timeout @1000"], []])
    const lostAnswer = setting()
    answer.back(lostAnswer).plant(1, { do: "drop" }, noHit)
    lostAnswer.client.start()
    lostAnswer.w.run()
    assert.deepStrictEqual([lostAnswer.answers, lostAnswer.book], [["timeout @1000"], ["hello", "hello done"]])
  })

  it("a duplicated request is handled twice and answered once", () => {
    const s = setting()
    request.there(s).plant(1, { do: "duplicate", micros: 3 * second }, noHit)
    s.client.start()
    s.w.run()
    assert.deepStrictEqual(s.answers, ["HELLO @11"])
    assert.deepStrictEqual(s.book, ["hello", "hello done", "hello", "hello done"])
    assert.isAbove(s.w.now, 3 * second)
  })

  it("a caller that gives up interrupts the handler of its call, not what a dead predecessor began", () => {
    const s = setting()
    request.there(s).plant(1, { do: "duplicate", micros: 50 * milli }, noHit)
    s.client.start((process) => s.call(process, "hello", { timeoutMillis: 53 }))
    s.w.at(5 * milli, () => s.server.pause(20 * milli))
    s.w.at(10 * milli, () => s.server.kill("machine"))
    s.w.at(20 * milli, () => s.server.start())
    s.w.run()
    assert.deepStrictEqual([s.answers, s.book], [["timeout @53"], ["hello", "hello", "hello interrupted"]])
  })

  it("a link can be unable to duplicate, as a database connection is", () => {
    const s = setting()
    s.net.link(s.client, s.server).duplicates = false
    request.there(s).plant(1, { do: "duplicate", micros: second }, noHit)
    s.client.start()
    s.w.run()
    assert.deepStrictEqual(s.book, ["hello", "hello done"])
  })

  it("a zombie: what a killed sender has sent still arrives, at whoever listens there then", () => {
    const s = setting()
    request.there(s).plant(1, { do: "delay", micros: 30 * second }, noHit)
    s.client.start()
    s.w.at(milli, () => s.client.kill())
    s.w.at(10 * second, () => s.server.start())
    s.w.run()
    assert.deepStrictEqual([s.answers, s.book], [[], ["hello", "hello done"]])
    assert.isAbove(s.w.now, 30 * second)
    assert.strictEqual(s.server.boots, 2)
  })

  it("jitter lets messages overtake each other, without it they keep their order", () => {
    const orders = (jitterMicros: number): number => {
      const seen = new Set<string>()
      for (let seed = 0; seed < 50; seed++) {
        const s = setting({ network: { jitterMicros }, world: { seed } })
        s.client.start((process) =>
          Effect.all([s.call(process, "a"), s.call(process, "b"), s.call(process, "c")], { concurrency: 3 })
        )
        s.w.run()
        seen.add(s.book.slice(0, 3).join())
      }
      return seen.size
    }
    assert.strictEqual(orders(0), 1)
    assert.strictEqual(orders(5000), 6)
  })

  it("drawn losses, duplicates and delays come as often as asked, and each message has its own draw", () => {
    const s = setting({ network: { lossPerMille: 100, duplicatePerMille: 100, latePerMille: 100 } })
    let answered = 0
    s.client.start((process) =>
      Effect.repeat(
        Effect.andThen(
          s.call(process, "x", { timeoutMillis: 100 }),
          Effect.sync(() => {
            if (s.answers.at(-1)!.startsWith("X")) answered++
          })
        ),
        { times: 999 }
      )
    )
    s.w.run()
    requireEnded(s.w)
    // neither lost nor late, in both directions: 0.81 * 0.81, and a few which were only slightly late
    assert.isAtLeast(answered, 600)
    assert.isAtMost(answered, 720)
    assert.isAbove(s.book.filter((line) => line === "x").length, 940)
  })
})

describe("keyed draws", () => {
  it("a fault on one client's messages leaves the fate of another's as it was", () => {
    const traceOf = (planted: boolean): ReadonlyArray<string> => {
      const s = setting({
        network: { jitterMicros: 5000, lossPerMille: 200, duplicatePerMille: 200, latePerMille: 200, abort: false },
        world: { policy: "random", seed: 9, keepTrace: true }
      })
      const other = s.w.node("other", {
        program: (process) => Effect.forEach(texts, (text) => s.call(process, text, { timeoutMillis: 40 }))
      })
      other.start()
      s.client.start((process) => Effect.forEach(texts, (text) => s.call(process, text, { timeoutMillis: 40 })))
      if (planted) for (const nth of [1, 3, 4]) request.there(s).plant(nth, { do: "drop" }, noHit)
      s.w.run()
      return s.w.trace.lines().filter((line) => line.includes("other"))
    }
    const texts = ["a", "b", "c", "d", "e", "f", "g", "h"]
    const lines = traceOf(false)
    assert.isAbove(lines.length, 20)
    assert.deepStrictEqual(traceOf(true), lines)
  })
})

describe("cuts", () => {
  it("one way: requests pass and are carried out, answers do not", () => {
    const s = setting()
    s.net.link(s.server, s.client).cut("drop")
    s.client.start()
    s.w.run()
    assert.deepStrictEqual([s.answers, s.book], [["timeout @1000"], ["hello", "hello done"]])
    const other = setting()
    other.net.link(other.client, other.server).cut("drop")
    other.client.start()
    other.w.run()
    assert.deepStrictEqual([other.answers, other.book], [["timeout @1000"], []])
  })

  it("catches what is on its way, and lets the rest through once it is healed", () => {
    const s = setting({ network: { latencyMicros: 10 * milli } })
    const link = s.net.link(s.client, s.server)
    s.client.start((process) =>
      Effect.andThen(s.call(process, "one", { timeoutMillis: 100 }), s.call(process, "two", { timeoutMillis: 100 }))
    )
    s.w.at(5 * milli, () => link.cut("drop"))
    s.w.at(50 * milli, () => link.heal("drop"))
    s.w.run()
    assert.deepStrictEqual(
      [s.answers, s.book],
      [
        ["timeout @100", "TWO @130"],
        ["two", "two done"]
      ]
    )
  })

  it("that stalls delivers after healing: a write comes back from the dead", () => {
    const s = setting({ network: { abort: false } })
    const link = s.net.link(s.client, s.server)
    link.cut("stall")
    s.client.start()
    s.w.at(60 * second, () => link.heal("stall"))
    s.w.run()
    assert.deepStrictEqual([s.answers, s.book], [["timeout @1000"], ["hello", "hello done"]])
  })

  it("may overlap: the link is open when the last of them is healed", () => {
    const s = setting()
    const link = s.net.link(s.client, s.server)
    link.cut("drop")
    link.cut("drop")
    link.heal("drop")
    assert.isFalse(link.open)
    link.heal("drop")
    link.heal("drop")
    assert.isTrue(link.open)
  })
})

describe("a transaction", () => {
  /** Two workers add rows to one store. */
  const store = (plant: (w: VirtualWorld, net: SimNetwork) => void) => {
    const w = new VirtualWorld({ seed: 1, keepTrace: true })
    const net = new SimNetwork(w)
    const rows: Array<string> = []
    const told: Array<string> = []
    const db = w.node("db", { daemon: true })
    db.start()
    const insert = (process: Process, row: string) =>
      net
        .transact(process, db, "insert", () => Exit.succeed(rows.push(row)), { timeoutMillis: 100 })
        .pipe(
          Effect.map((n) => `${row} is ${n}`),
          Effect.catch((error) => Effect.succeed(`${row}: ${error.reason}`)),
          Effect.map((text) => void told.push(text))
        )
    for (const name of ["w1", "w2"]) w.node(name, { program: (process) => insert(process, name) }).start()
    plant(w, net)
    w.run()
    requireEnded(w)
    // whatever befell them, each call got one answer sent: a process that dies does not answer and reset
    const answers = w.trace.lines().filter((line) => line.includes("send db>"))
    assert.lengthOf(answers, 2)
    return { rows, told, boots: db.boots }
  }

  it("commits in the order in which requests have their turn at the store", () => {
    assert.deepStrictEqual(
      store(() => {}),
      { rows: ["w1", "w2"], told: ["w1 is 1", "w2 is 2"], boots: 1 }
    )
  })

  it("survives the store's crash between commit and answer: the row is there and the caller does not know", () => {
    const crash = (w: VirtualWorld) => {
      const db = w.nodes[0]!
      db.onPoint("insert.served", 1, () => db.kill())
      w.at(50 * milli, () => db.start())
    }
    assert.deepStrictEqual(store(crash), { rows: ["w1"], told: ["w1: reset", "w2: reset"], boots: 2 })
  })

  it("waits while the store is paused, before the commit or between commit and answer", () => {
    const before = store((w) => w.nodes[0]!.onPoint("insert.serving", 1, () => w.nodes[0]!.pause(50 * milli)))
    assert.deepStrictEqual(before.rows, ["w2", "w1"])
    const after = store((w) => w.nodes[0]!.onPoint("insert.served", 1, () => w.nodes[0]!.pause(500 * milli)))
    assert.deepStrictEqual(after, { rows: ["w1", "w2"], told: ["w1: timeout", "w2: timeout"], boots: 1 })
  })
})

describe("points around a call", () => {
  const outcome = (point: string, act: "pause" | "kill") => {
    const s = setting()
    const node = point.endsWith(".before") || point.endsWith(".after") ? s.client : s.server
    node.onPoint(point, 1, () => (act === "kill" ? node.kill() : node.pause(5 * second)))
    s.client.start((process) => s.call(process, "hello"))
    s.w.run()
    return [s.book, s.answers]
  }

  it("before: paused, nothing has left yet; killed, it never does", () => {
    assert.deepStrictEqual(outcome("echo.before", "pause"), [["hello", "hello done"], ["HELLO @5011"]])
    assert.deepStrictEqual(outcome("echo.before", "kill"), [[], []])
  })

  it("after: the answer is at the machine, the program sees it late or never", () => {
    assert.deepStrictEqual(outcome("echo.after", "pause"), [["hello", "hello done"], ["HELLO @5011"]])
    assert.deepStrictEqual(outcome("echo.after", "kill"), [["hello", "hello done"], []])
  })

  it("serving and served: the same at the server", () => {
    assert.deepStrictEqual(outcome("echo.serving", "pause"), [["hello", "hello done"], ["HELLO @5011"]])
    assert.deepStrictEqual(outcome("echo.serving", "kill"), [[], ["reset @1"]])
    assert.deepStrictEqual(outcome("echo.served", "pause"), [["hello", "hello done"], ["HELLO @5011"]])
    assert.deepStrictEqual(outcome("echo.served", "kill"), [["hello", "hello done"], ["reset @11"]])
  })
})
