/**
 * The soak's own rules: what a stop past the lease is and what is not one, what counts as a fault that took, that every fault
 * is undone in time whatever becomes of it, and what the tries add up to.
 *
 * Interrupted and killed on real processes: DLOCK_INTERRUPTS=3 npx vitest run test/e2e/Soak.test.ts
 */
import { assert, describe, it } from "@effect/vitest"
import { Cause, Effect, Exit, Fiber, Scope } from "effect"
import { TestClock } from "effect/testing"
import { fencingOn } from "../../src/core/Fencing.ts"
import { HarnessError, type LogRecord, type ServiceProcess } from "../../src/harness/Processes.ts"
import { observedOf, read } from "../../src/harness/SavedRun.ts"
import { draw, HELD, makeFaults, makeLedger } from "../../src/harness/SoakFaults.ts"
import { makeFleet, makeRoster } from "../../src/harness/SoakFleet.ts"
import { concluded, isDecided, openOf, stopsPastLease } from "../../src/harness/SoakProof.ts"
import type { StartOptions } from "../../src/harness/World.ts"
import { Marks } from "../../src/sim/Marks.ts"

const recorded = Effect.map(read("test/harness/runs/uc-03-on.json"), (found) => {
  if (found.kind === "history") throw new Error("the recorded run is no run")
  return observedOf(found.run)
})

describe("a stop past the lease", () => {
  it.effect("is seen in the recorded paused worker, with the successor that overtook it", () =>
    Effect.gen(function* () {
      const [only, ...more] = stopsPastLease(yield* recorded)
      assert.deepStrictEqual(more, [])
      assert.strictEqual(only?.worker, "w1")
      assert.strictEqual(only?.token, 1n)
      assert.isTrue(only?.overtaken)
      assert.isAbove(only?.pastMillis ?? 0, 0)
      assert.isAbove(only?.stoppedMillis ?? 0, only?.pastMillis ?? 0)
    })
  )

  const planted: ReadonlyArray<readonly [what: string, edit: (record: LogRecord) => ReadonlyArray<LogRecord>]> = [
    ["it never went on", (record) => (record["event"] === "fault_point_resumed" ? [] : [record])],
    ["it never stopped", (record) => (record["action"] === "stop" ? [] : [record])],
    ["it stopped elsewhere", (record) => [{ ...record, name: "post.before" }]],
    [
      "it went on under another token",
      (record) => [record["event"] === "fault_point_resumed" ? { ...record, fencingToken: "2" } : record]
    ],
    [
      "it went on in time",
      (record) => [
        record["event"] === "fault_point_resumed" ? { ...record, timestamp: "2026-11-30T14:11:48.000Z" } : record
      ]
    ],
    [
      "it stopped when its lease was over",
      (record) => [record["action"] === "stop" ? { ...record, timestamp: "2026-11-30T14:11:52.000Z" } : record]
    ]
  ]
  for (const [what, edit] of planted) {
    it.effect(`is none when ${what}`, () =>
      Effect.map(recorded, ({ calls, logs }) =>
        assert.deepStrictEqual(stopsPastLease({ calls, logs: { w1: (logs["w1"] ?? []).flatMap(edit) } }), [])
      )
    )
  }

  it.effect("is none when the lease was renewed until it went on, or is that of another key with the same token", () =>
    Effect.map(recorded, ({ calls, logs }) => {
      const [first] = calls.filter(({ granted, label }) => label === "lock.acquire" && granted === 1n)
      assert.isDefined(first)
      const renewed = { ...first, label: "lock.renew", expiresAt: (first.expiresAt ?? 0) + 60_000 }
      assert.deepStrictEqual(stopsPastLease({ calls: [...calls, renewed], logs }), [])
      assert.lengthOf(stopsPastLease({ calls: [...calls, { ...renewed, key: "payout:other" }], logs }), 1)
    })
  )
})

describe("the faults of a seed", () => {
  it("are the same each time, of every kind, and within their bounds", () => {
    const all = Array.from({ length: 500 }, (_, n) => draw(7, n))
    assert.deepStrictEqual(
      all,
      Array.from({ length: 500 }, (_, n) => draw(7, n))
    )
    assert.notDeepEqual(
      all,
      Array.from({ length: 500 }, (_, n) => draw(8, n))
    )
    assert.lengthOf(new Set(all.map(({ what }) => what)), 10)
    assert.lengthOf(new Set(all.map(({ cut }) => `${cut.to} ${cut.direction} ${cut.how}`)), 18)
    for (const { lastsMillis, pauseMillis, what, worker } of all) {
      assert.isAtMost(lastsMillis, what === "proxy stopped" ? 2_500 : 6_000)
      assert.isAtLeast(pauseMillis, 800)
      assert.isTrue(worker >= 0 && worker < 1)
    }
  })
})

const quiet = () => Effect.void
const failing = new HarnessError({ step: "stop it", message: "it is gone" })

describe("a fault", () => {
  const ledgerOf = Effect.gen(function* () {
    const marks = new Marks()
    const said: Array<string> = []
    const say = (text: string) => Effect.sync(() => void said.push(text))
    return { ledger: yield* makeLedger({ marks, say, bound: "1 minute" }), marks, said }
  })

  it.effect("counts when it was seen to take, and else is told and leaves no mark", () =>
    Effect.gen(function* () {
      const { ledger, marks, said } = yield* ledgerOf
      yield* ledger.befall("w1", "stopped", Effect.succeed("state T"))
      yield* ledger.befall("w2", "stopped", Effect.fail(failing))
      yield* ledger.befall("w3", "cut off", Effect.as(Effect.void, undefined))
      yield* ledger.idle
      assert.deepStrictEqual([...ledger.took], [["stopped", 1]])
      assert.deepStrictEqual(
        [...ledger.missed],
        [
          ["stopped", 1],
          ["cut off", 1]
        ]
      )
      assert.deepStrictEqual(marks.toRecord(), { stopped: 1 })
      assert.deepStrictEqual(said, [
        "stopped (w2) did not take: stop it: it is gone",
        "cut off (w3) did not take: nobody noticed"
      ])
    })
  )

  it.effect("that does not end is given up at its bound, and is undone", () =>
    Effect.gen(function* () {
      const { ledger, said } = yield* ledgerOf
      let undone = false
      yield* ledger.befall(
        "w1",
        "stopped",
        Effect.ensuring(
          Effect.never,
          Effect.sync(() => (undone = true))
        )
      )
      yield* ledger.befall("w1", "killed", Effect.succeed("two at a time"))
      assert.deepStrictEqual([...ledger.busy], ["w1"])
      yield* TestClock.adjust("61 seconds")
      yield* ledger.idle
      assert.isTrue(undone)
      assert.deepStrictEqual([...ledger.busy], [])
      assert.deepStrictEqual([...ledger.took], [])
      assert.deepStrictEqual(said, ["stopped (w1) did not take: stopped (w1): not done within 1m"])
    })
  )

  it.effect("with a bug of its own is not taken for one that did not take", () =>
    Effect.gen(function* () {
      const { ledger } = yield* ledgerOf
      yield* ledger.befall("w1", "stopped", Effect.die("a bug"))
      const exit = yield* Effect.exit(ledger.idle)
      assert.isTrue(Exit.isFailure(exit) && Cause.hasDies(exit.cause))
    })
  )
})

// -----------------------------------------------------------------------------
// a fleet without processes
// -----------------------------------------------------------------------------

const usual = (name: string): StartOptions => (name === "w1" ? { points: "usual" } : {})

/** Starts are noted; a name in `stuck` never listens. */
const fake = Effect.gen(function* () {
  const done: Array<string> = []
  const running = new Map<string, string>()
  const stuck = new Set<string>()
  let pids = 0
  const roster = makeRoster({
    scratch: "",
    start: (name) =>
      Effect.sync(() => {
        const pid = ++pids
        const tell = (what: string) => Effect.sync(() => void done.push(`${what} ${name}-${pid}`))
        return {
          name,
          pid,
          log: [],
          kill: tell("kill"),
          resume: tell("resume"),
          awaitRecord: (description: string) =>
            Effect.delay(Effect.fail(new HarnessError({ step: description, message: "not seen" })), "45 seconds")
        } as unknown as ServiceProcess
      })
  })
  const start = (name: string, options: StartOptions = {}) =>
    Effect.gen(function* () {
      running.delete(name)
      yield* Effect.scoped(roster.processes.start(name, [], {}))
      if (stuck.has(name)) return yield* Effect.never
      running.set(name, options.points ?? "")
      done.push(`start ${name} ${options.points ?? ""}`)
    })
  const world = {
    running: () => running,
    start,
    revive: (name: string, options?: StartOptions) => Effect.as(start(name, options), `${name} runs again`),
    kill: (name: string) => Effect.sync(() => `${running.delete(name)}`)
  }
  const fleet = yield* makeFleet({ world, roster, names: ["lock-server", "w1"], usual })
  for (const name of ["lock-server", "w1"]) yield* fleet.start(name, usual(name))
  done.length = 0
  return { done, fleet, running, stuck, world }
})

describe("the fleet of a soak", () => {
  it.effect("ends the process of a start that was given up: nobody else would", () =>
    Effect.gen(function* () {
      const { done, fleet, stuck } = yield* fake
      stuck.add("w1")
      const starting = yield* Effect.forkChild(Effect.exit(fleet.start("w1", { points: "stale" })))
      yield* TestClock.adjust("91 seconds")
      assert.isTrue(Exit.isFailure(yield* Fiber.join(starting)))
      assert.include(done, "kill w1-3")
    })
  )

  it.effect("heals: who is not as usual is started so, all go on, none runs beside them", () =>
    Effect.gen(function* () {
      const { done, fleet, running } = yield* fake
      yield* fleet.start("w1", { points: "stale" })
      yield* fleet.kill("lockdb")
      yield* fleet.kill("lock-server")
      done.length = 0
      const told = yield* fleet.heal
      assert.deepStrictEqual(told.toSorted(), ["lock-server runs again", "lockdb runs again", "w1 runs again"])
      assert.deepStrictEqual(running.get("w1"), "usual")
      assert.includeMembers(done, ["resume w1-6", "kill w1-3", "kill w1-2"])
      assert.notInclude(done, "kill w1-6")
      assert.deepStrictEqual(yield* fleet.heal, [])
    })
  )

  it.effect("does not wait for ever for who does not come back, and says who", () =>
    Effect.gen(function* () {
      const { fleet, running, stuck } = yield* fake
      stuck.add("w1")
      running.delete("w1")
      const healing = yield* Effect.forkChild(Effect.flip(fleet.heal))
      yield* TestClock.adjust("5 minutes")
      assert.include((yield* Fiber.join(healing)).message, "not done within")
    })
  )

  it.effect("starts nobody when it has ended", () =>
    Effect.gen(function* () {
      const { done, fleet } = yield* fake
      yield* fleet.end
      assert.deepStrictEqual(done.toSorted(), ["kill lock-server-1", "kill w1-2"])
      assert.strictEqual((yield* Effect.flip(fleet.start("w1", {}))).message, "the soak is over")
    })
  )

  it.effect("has a worker back as usual that was to stop in its section and did not come there", () =>
    Effect.gen(function* () {
      const { fleet, running, world } = yield* fake
      const scope = yield* Scope.make()
      const unused = () => Effect.die("not in this test")
      const faults = yield* Scope.provide(
        makeFaults({
          world: { ...world, calls: [], cut: unused, pause: unused, pausedAtPoint: unused },
          fleet,
          workers: ["w1"],
          stale: { points: "stale" },
          seed: 1,
          marks: new Marks(),
          say: quiet
        }),
        scope
      )
      let fed = 0
      yield* faults.hold(
        "w1",
        Effect.sync(() => ++fed)
      )
      assert.strictEqual(running.get("w1"), "stale")
      yield* TestClock.adjust("46 seconds")
      yield* faults.ledger.idle
      assert.strictEqual(running.get("w1"), "usual")
      assert.strictEqual(fed, 12)
      assert.deepStrictEqual([...faults.ledger.missed], [[HELD, 1]])
      // When the faults are over nobody waits for it.
      yield* faults.hold("w1", Effect.void)
      yield* faults.over
      yield* faults.ledger.idle
      assert.strictEqual(running.get("w1"), "usual")
      yield* Scope.close(scope, Exit.void)
    })
  )
})

describe("what the tries of a soak add up to", () => {
  const off = { payment: false, rail: false }
  const stop = { worker: "w1", key: "payout:a", token: 1n, stoppedMillis: 5_000, pastMillis: 2_000, overtaken: true }
  const verdict = (check: string) => ({ check, subject: "a", detail: "" })
  const twice = { verdicts: [verdict("ONE-POSTING"), verdict("INV-02")], stops: [stop] }
  const nothing = { verdicts: [], stops: [stop] }
  const outcome = (...of: Parameters<typeof concluded>) => concluded(...of).outcome

  it("with the fences on: held, unless anything was violated or nobody was stopped in the section", () => {
    assert.strictEqual(outcome([nothing], fencingOn), "held")
    assert.strictEqual(outcome([{ verdicts: [], stops: [] }], fencingOn), "unproven")
    assert.strictEqual(outcome([twice], fencingOn), "violated")
    assert.strictEqual(outcome([{ ...nothing, verdicts: [verdict("LIVE-01")] }], fencingOn), "violated")
  })

  it("with both off: one of three tries has to corrupt, each with such a stop, and nothing else may be violated", () => {
    assert.strictEqual(outcome([nothing, nothing, twice], off), "corrupted")
    assert.strictEqual(outcome([nothing, nothing, nothing], off), "violated")
    assert.strictEqual(outcome([{ verdicts: [], stops: [] }, twice], off), "unproven")
    assert.strictEqual(outcome([{ ...nothing, verdicts: [verdict("INV-02")] }], off), "violated")
    assert.strictEqual(outcome([{ ...twice, verdicts: [...twice.verdicts, verdict("LIVE-01")] }], off), "violated")
  })

  it("goes on until the harm is done, or a harm that is not the fences'", () => {
    assert.isFalse(isDecided(nothing, off))
    assert.isTrue(isDecided(twice, off))
    assert.isTrue(isDecided({ ...nothing, verdicts: [verdict("LIVE-01")] }, off))
    assert.isTrue(isDecided(nothing, fencingOn))
  })

  it("names payouts that are open, and the states of all of them", () => {
    const payout = (payoutId: string, state: string) => ({ accountId: "a", payoutId, state })
    assert.deepStrictEqual(openOf([payout("1", "POSTED"), payout("2", "FAILED")]), { count: 0, text: "none" })
    assert.deepStrictEqual(
      openOf([payout("1", "CLAIMED"), payout("2", "PENDING"), payout("3", "CLAIMED"), payout("4", "POSTED")], 2),
      { count: 3, text: "2 CLAIMED, 1 PENDING: 1 of a CLAIMED; 2 of a PENDING; and 1 more" }
    )
  })
})
