/**
 * Deals the faults of a plan to a real world: at the named point, so long after the first grant, or before anybody works;
 * and tells of each how it was seen to have happened.
 */
import { Effect, type Scope } from "effect"
import type { Fault } from "../sim/FaultPlan.ts"
import type { Marks } from "../sim/Marks.ts"
import { stopPoints } from "../sim/Scenario.ts"
import { phrases } from "../sim/Story.ts"
import { crashPointsOf, type Drill } from "./Drills.ts"
import { tapTime } from "./HttpTap.ts"
import { HarnessError, waitUntil } from "./Processes.ts"
import type { World } from "./World.ts"

/** A fault of the plan, and how it was seen to have happened. */
export interface Dealt {
  readonly fault: string
  /** Undefined: it was not. */
  readonly proof: string | undefined
}

/** For what has to happen on a machine that may be busy. */
export const patience = 120_000
export const isWorker = (name: string) => /^w\d+$/.test(name)
/** Right before each of these a worker or reconciler has checked that it holds its lock. */
const checks = ["claim", "submit", "seal", "post", "fail", "ambiguous", "lookup", "resolve"].map(
  (op) => `${op}.before:note`
)

type Pointed = Extract<Fault, { readonly kind: "pause" | "kill" }>
const pointOf = (fault: Fault): { readonly name: string; readonly nth: number } | undefined =>
  (fault.kind === "pause" || fault.kind === "kill") && fault.when.at === "point" ? fault.when : undefined
export const nodeOf = (fault: Fault): string => ("node" in fault ? fault.node : fault.from)

export interface Dealer {
  /** Until it has happened and is over. */
  readonly deal: (fault: Fault) => Effect.Effect<void, HarnessError, Scope.Scope>
  readonly dealt: ReadonlyArray<Dealt>
  /** Those that wait at a named point nobody has come to yet. */
  readonly pending: ReadonlySet<Fault>
  /** As the setting of a participant that is started now. */
  readonly pointsOf: (name: string) => string
  readonly firstGrant: Effect.Effect<void, HarnessError>
}

export const makeDealer = (of: {
  readonly world: World
  readonly drill: Drill
  readonly marks: Marks
  readonly say: (text: string) => Effect.Effect<void>
  /** Whether every payout is settled. */
  readonly settled: Effect.Effect<boolean, HarnessError>
}): Dealer => {
  const { drill, marks, say, world } = of
  const { spec } = drill
  const pending = new Set(spec.faults.filter((fault) => pointOf(fault) !== undefined))
  const pointsOf = (name: string) =>
    [
      ...(isWorker(name) || name.startsWith("reconciler") ? checks : []),
      ...[...pending].flatMap((fault) => {
        const at = pointOf(fault)
        return at !== undefined && nodeOf(fault) === name
          ? [`${at.name}:${fault.kind === "kill" ? "kill" : "stop"}#${at.nth}`]
          : []
      })
    ].join(",")
  const dealt: Array<Dealt> = []
  const tell = (fault: Fault, proof: string | undefined) =>
    Effect.gen(function* () {
      const [phrase = fault.kind] = phrases([fault])
      dealt.push({ fault: phrase, proof })
      yield* say(`${phrase}: ${proof ?? "NOT SEEN"}`)
    })

  /** The grant that this participant holds, as far as it was told. */
  const grantOf = (node: string) => {
    const last = world.calls.findLast(
      ({ granted, label, owner }) => owner === node && granted !== null && /^lock\.(acquire|renew)$/.test(label)
    )
    if (last === undefined) return undefined
    const expiresAt = Math.max(
      ...world.calls.flatMap((call) =>
        call.granted === last.granted && call.expiresAt !== null ? [call.expiresAt] : [0]
      )
    )
    return { key: last.key, token: last.granted ?? 0n, expiresAt }
  }
  /** Somebody else was granted the key after this token and has finished what there was to do. */
  const succeeded = (key: string | null, token: bigint) =>
    world.calls.some(
      (grant) =>
        grant.label === "lock.acquire" &&
        grant.key === key &&
        grant.granted !== null &&
        grant.granted > token &&
        world.calls.some(
          (call) =>
            /^pay\.(post|fail|ambiguous|resolve)$/.test(call.label) &&
            call.token === grant.granted &&
            call.status === 200
        )
    )
  /** How fast it comes is not the experiment's business; if it never comes, what is promised is not seen. */
  const successor = (grant: ReturnType<typeof grantOf>, withinMillis: number) =>
    (spec.workers < 2 && spec.reconcilers < 2) || grant === undefined
      ? Effect.void
      : Effect.ignore(
          waitUntil(
            "a successor is done",
            Effect.sync(() => succeeded(grant.key, grant.token)),
            withinMillis
          )
        )

  /** How long a stop at a point lasts. */
  const lasts = (fault: Extract<Fault, { readonly kind: "pause" }>) =>
    Effect.gen(function* () {
      if (fault.until === "lease") {
        const grant = grantOf(fault.node)
        const end = grant?.expiresAt ?? tapTime()
        yield* waitUntil(
          "the lease has run out",
          Effect.sync(() => tapTime() > end + 50),
          "30 seconds"
        )
        if (drill.actors.includes("canceller")) {
          return yield* Effect.ignore(waitUntil("the payout is cancelled", of.settled, 5 * fault.millis))
        }
        return yield* successor(grant, 5 * fault.millis)
      }
      if (fault.until === "overtaken") {
        const isStopped = () =>
          world.spans.some(({ kind, lane, to }) => lane === "w2" && kind === "pause" && to > tapTime())
        return yield* waitUntil("its successor stands before its claim", Effect.sync(isStopped), patience)
      }
      if (fault.until === "passed") {
        const isSubmitted = () =>
          world.calls.some(({ label, owner, status }) => label === "rail.submit" && owner === "w1" && status !== null)
        return yield* waitUntil("w1 has submitted", Effect.sync(isSubmitted), "20 seconds")
      }
      if (drill.actors.includes("operator")) return yield* successor(grantOf(fault.node), 30_000)
      // A stopped proxy is let go when there is nobody left whom it could still surprise.
      if (fault.node.startsWith("rail-proxy")) {
        return yield* Effect.ignore(waitUntil("everything is settled", of.settled, 5 * fault.millis))
      }
      yield* Effect.sleep(fault.millis)
    })

  const firstGrant = waitUntil(
    "a worker is granted a lock",
    Effect.sync(() =>
      world.calls.some(
        ({ granted, label, owner }) => label === "lock.acquire" && granted !== null && isWorker(owner ?? "")
      )
    ),
    patience
  )
  const until = (millis: number) => (millis <= 0 ? Effect.void : Effect.andThen(firstGrant, Effect.sleep(millis)))

  const atPoint = Effect.fnUntraced(function* (fault: Pointed, name: string) {
    const { node } = fault
    yield* world.awaitPoint(node, name, patience)
    pending.delete(fault)
    if (fault.kind === "pause") {
      const from = tapTime()
      const proof = yield* Effect.scoped(
        Effect.tap(world.pausedAtPoint(node, name), (seen) => Effect.andThen(say(seen), lasts(fault)))
      )
      for (const [number, who, point] of stopPoints) {
        if (number !== null && who === node && point === name) marks.hit(`crash point ${number}`)
      }
      return yield* tell(fault, `${proof} for ${((tapTime() - from) / 1_000).toFixed(2)} s`)
    }
    const proof = yield* world.awaitGone(node)
    for (const number of crashPointsOf(node, name)) marks.hit(`crash point ${number}`)
    yield* tell(fault, proof)
    if (fault.downMillis === null) return
    yield* Effect.sleep(fault.downMillis)
    yield* world.revive(node, { points: pointsOf(node), settings: {} })
  })

  /** An outage need not last longer than whoever looks at it. */
  const seenEnough = drill.actors.includes("watcher")
    ? waitUntil(
        "the backlog grew older",
        Effect.sync(() => marks.count("the backlog grew older") > 0),
        "60 seconds"
      )
    : Effect.never

  const deal = (fault: Fault): Effect.Effect<void, HarnessError, Scope.Scope> => {
    const at = pointOf(fault)
    switch (fault.kind) {
      case "pause":
        if (at !== undefined) return atPoint(fault, at.name)
        return Effect.gen(function* () {
          yield* until(fault.when.at === "time" ? fault.when.millis : 1)
          const proof = yield* Effect.scoped(Effect.tap(world.pause(fault.node), () => Effect.sleep(fault.millis)))
          yield* tell(fault, proof)
        })
      case "kill":
        if (at !== undefined) return atPoint(fault, at.name)
        return Effect.gen(function* () {
          const when = fault.when.at === "time" ? fault.when.millis : 1
          yield* until(when)
          const inCall = Effect.sync(() =>
            world.calls.some(
              ({ from, label, returned }) => from === fault.node && label === "rail.submit" && returned === Infinity
            )
          )
          // A rail that takes its time is there to be died in.
          if (isWorker(fault.node) && spec.railLatencyMillis > 0) {
            yield* Effect.ignore(waitUntil(`${fault.node} is in the call`, inCall, "20 seconds"))
          }
          const open = yield* inCall
          const held = world.calls.some(({ expiresAt }) => expiresAt !== null && expiresAt > tapTime())
          const proof = yield* world.kill(fault.node)
          if (isWorker(fault.node) && open) marks.hit("crash point 5")
          if (fault.node === "lockdb" && held && when > 0) marks.hit("lock backend was down while a lock was held")
          if (fault.downMillis === null) return yield* tell(fault, proof)
          if (when <= 0) {
            // Who works from now on works without it.
            yield* Effect.forkScoped(
              Effect.timeoutOption(seenEnough, fault.downMillis).pipe(
                Effect.andThen(world.revive(fault.node)),
                Effect.flatMap((back) => tell(fault, `${proof}; ${back}`))
              )
            )
            return
          }
          yield* Effect.sleep(fault.downMillis)
          yield* tell(fault, `${proof}; ${yield* world.revive(fault.node, { points: pointsOf(fault.node) })}`)
        })
      case "cut":
        return Effect.gen(function* () {
          yield* until(fault.atMillis)
          const proof = yield* Effect.scoped(
            Effect.gen(function* () {
              const seen = yield* world.cut(fault.from, fault.to, {
                direction: fault.both ? "both" : "up",
                how: fault.how === "stall" ? "hold" : "drop"
              })
              yield* Effect.sleep(fault.millis)
              return yield* seen
            })
          )
          yield* tell(fault, proof)
        })
      case "drop":
      case "delay":
      case "duplicate":
        return Effect.gen(function* () {
          const { from, kind, label, leg, millis, nth, to } = fault
          const seen = yield* world.plant(from, to, { label, leg, nth, millis, how: kind })
          yield* waitUntil(
            `${kind} of ${label}`,
            Effect.map(seen, (proof) => proof !== undefined),
            patience
          )
          // What is late has yet to arrive.
          if (kind === "delay" && leg === "request") yield* Effect.sleep(millis + 300)
          yield* tell(fault, yield* seen)
        })
      case "clockError":
        return Effect.gen(function* () {
          yield* waitUntil(
            `${fault.node} has logged`,
            Effect.sync(() => world.logOf(fault.node).length > 0),
            patience
          )
          const [first] = world.logOf(fault.node)
          const off = Date.parse(first?.timestamp ?? "") - tapTime()
          yield* tell(
            fault,
            Math.abs(off - fault.offsetMillis) < 60_000 ? `its log is ${Math.round(off / 1_000)} s off` : undefined
          )
        })
      default:
        return Effect.fail(new HarnessError({ step: fault.kind, message: "can not be dealt to real processes" }))
    }
  }

  return { deal, dealt, pending, pointsOf, firstGrant }
}
