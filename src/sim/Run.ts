/**
 * One run from its plain data to its verdict.
 *
 *     faults    the plan and the network's moods; ends early when everything is done
 *     healed    no faults any more: progress within the scenario's bound, or LIVE-01 is broken
 *     leaks     a key that is held although nobody is inside its section must come free
 *     stop      in one run of four the workers are told to stop and must come to an end
 *     zombies   only proxy, rail and paydb are left: whatever is still on its way arrives, and may still do harm
 */
import { cancellingOperator } from "./Actors.ts"
import type { LockOp } from "../core/LockHistory.ts"
import type { History } from "../core/History.ts"
import { build, type Cluster, type ClusterOptions } from "./Cluster.ts"
import { apply, heal } from "./FaultPlan.ts"
import { judge, type Judged, leakMillis, type Verdict } from "./Judge.ts"
import { crashPoints, scenarioOf, stopPoints } from "./Scenario.ts"
import { boundMillis, faultPhaseMillis, lateMillisMax, type RunSpec } from "./RunSpec.ts"

export interface Outcome {
  readonly spec: RunSpec
  readonly verdicts: ReadonlyArray<Verdict>
  readonly lockCheckers: Judged["lockCheckers"]
  /** What the participants could see of each other; equal for equal specs, whatever the machine. */
  readonly hash: string
  /** Also the order of everything inside the processes. */
  readonly scheduleHash: string
  /** How often each fault of the plan happened. */
  readonly hits: ReadonlyArray<number>
  readonly marks: Readonly<Record<string, number>>
  /** Virtual time, Effect slices and calls between nodes. */
  readonly micros: number
  readonly slices: number
  readonly calls: number
  /** Final states of the payouts and what the rail paid, in one line. */
  readonly end: string
}

export interface RunOptions extends ClusterOptions {
  /** Ask the two searching lock checkers too. Default: one run in eight, by its seed. */
  readonly lockHistory?: boolean
  /** Let the workers end in good order, and see that they do. Default: one run in four, by its seed. */
  readonly stop?: boolean
}

export interface Ran {
  readonly outcome: Outcome
  readonly cluster: Cluster
  readonly history: History
  readonly lockOps: ReadonlyArray<LockOp>
}

const checkEveryMicros = 50_000
const quietMicros = 300_000
/** Slices of one run; a busy loop would go on for ever. */
const slicesMax = 400_000
const micros = (millis: number): number => millis * 1000

export const run = (spec: RunSpec, options: RunOptions = {}): Ran => {
  const cluster = build(spec, options)
  const { network, recorder, servers, workers, world } = cluster
  for (const node of servers) node.start()
  for (const node of workers) if (!cluster.reconcilers.includes(node)) node.start()
  const scenario = scenarioOf(spec.scenario)
  if (spec.canceller) cancellingOperator(cluster)
  scenario.prepare?.(cluster)
  const visitors = world.nodes.filter((node) => !node.daemon && !workers.includes(node))
  const { hits } = apply(spec.faults, network)

  const terminal = (): boolean => {
    for (const { state } of cluster.paydb.payouts.values()) if (state !== "POSTED" && state !== "FAILED") return false
    return true
  }
  /** It would only look, and find nothing, before there is something to reconcile. A third of the idle calls are saved. */
  const startReconciler = (): void => {
    if (cluster.reconcilers[0]?.down !== "new") return
    for (const { state } of cluster.paydb.payouts.values()) {
      if (state !== "RAIL_AMBIGUOUS" && state !== "FAILED") continue
      for (const node of cluster.reconcilers) node.start()
      return
    }
  }
  let quietSince: number | undefined
  /** Terminal, and nobody is still about to do something: a stopped worker has yet to wake up. */
  const done = (): boolean => {
    const now =
      terminal() &&
      !recorder.busy &&
      world.nodes.every((node) => !node.paused) &&
      visitors.every((node) => !node.hanging) &&
      (scenario.goal?.(cluster) ?? true)
    quietSince = now ? (quietSince ?? world.now) : undefined
    // A goal may hang on a message that is on its way.
    return now && (scenario.goal === undefined || world.now - (quietSince ?? 0) >= quietMicros)
  }
  const runUntil = (time: number, condition: () => boolean): boolean => {
    if (condition()) return true
    let met = false
    const look = (): void => {
      if (met) return
      watchOutage(cluster)
      startReconciler()
      if (condition()) {
        met = true
        world.stop()
      } else if (world.now + checkEveryMicros <= time) world.after(checkEveryMicros, look)
    }
    world.after(checkEveryMicros, look)
    world.run(time, slicesMax)
    met = true
    return condition()
  }

  let finished = runUntil(micros(faultPhaseMillis(spec)), done)
  heal(network)
  if (!finished) finished = runUntil(world.now + micros(boundMillis(spec)), done)
  const isTerminal = terminal()

  // A leak is what is held for longer than a lease and a session can last after its section was left.
  const doneAt = world.now
  const free = (): boolean => recorder.oracle.held(recorder.lockTime()).length === 0
  if (!runUntil(world.now + micros(leakMillis(cluster) + 1_000), free)) {
    for (const [key, { token }] of recorder.oracle.held(recorder.lockTime())) {
      const since = recorder.idleSince(key)
      if (since !== undefined && world.now - since > micros(leakMillis(cluster))) {
        recorder.find(
          "LEAK",
          key,
          `token ${token} is still held ${(world.now - since) / 1e6} s after its section was left`
        )
      }
    }
  }

  const calm = spec.faults.length === 0 && spec.lossPerMille + spec.duplicatePerMille + spec.latePerMille === 0
  if (calm && world.now - doneAt > 1_000_000) {
    recorder.find("NOT-RELEASED", "lock", `free only ${(world.now - doneAt) / 1e6} s after the work was done`)
  }

  // Stopping costs a tenth of a run: three runs in four end as a power cut does.
  if (options.stop ?? (spec.seed >>> 3) % 4 === 0) {
    for (const node of workers) node.stop()
    runUntil(world.now + micros(60_000), () => workers.every((node) => !node.hanging))
  } else for (const node of workers) node.retire()
  for (const node of visitors) node.retire()
  recorder.endedAt = world.now
  for (const node of servers) if (!node.name.startsWith("rail-proxy")) node.retire()
  const late = Math.max(
    spec.latePerMille + spec.duplicatePerMille > 0 ? lateMillisMax(spec) : 0,
    ...spec.faults.map((fault) => ("millis" in fault ? fault.millis : 0))
  )
  if (late > 0) world.run(world.now + micros(late) + 1_000_000, slicesMax)

  const history = cluster.history(isTerminal)
  const lockHistory = options.lockHistory ?? (spec.seed & 7) === 0
  const { lockCheckers, verdicts } = judge(cluster, history, { terminal: isTerminal, lockHistory })
  markFaults(cluster, hits)
  markHistory(cluster, history)
  return {
    cluster,
    history,
    lockOps: recorder.lockOps,
    outcome: {
      spec,
      verdicts: verdicts.filter((verdict) => scenario.pardons?.(verdict, cluster) !== true),
      lockCheckers,
      hash: world.trace.hash,
      scheduleHash: world.trace.scheduleHash,
      hits,
      marks: recorder.marks.toRecord(),
      micros: world.now,
      slices: world.steps,
      calls: network.calls,
      end: [...cluster.paydb.payouts.values()]
        .map(({ clientReference, state }) => {
          const paid = history.rail.filter((payment) => payment.clientReference === clientReference).length
          return `${state} paid ${paid}x`
        })
        .join(", ")
    }
  }
}

const watchOutage = ({ recorder }: Cluster): void => {
  if (recorder.lockdb?.process === undefined && recorder.oracle.held(recorder.lockTime()).length > 0) {
    recorder.marks.hit("lock backend was down while a lock was held")
  }
}

const markFaults = ({ recorder, spec }: Cluster, hits: ReadonlyArray<number>): void => {
  spec.faults.forEach((fault, index) => {
    const times = hits[index] ?? 0
    if (times === 0) return
    recorder.marks.hit(`fault ${fault.kind}`, times)
    if ((fault.kind !== "kill" && fault.kind !== "pause") || fault.when.at !== "point") return
    const { name } = fault.when
    for (const [number, node, point] of fault.kind === "kill" ? crashPoints : stopPoints) {
      if (number !== null && fault.node === node && name === point) recorder.marks.hit(`crash point ${number}`)
    }
  })
}

const markHistory = ({ paydb, recorder: { marks } }: Cluster, history: History): void => {
  marks.ofPayouts(history)
  for (const { payoutId, result } of paydb.lookups) {
    if (result === "EXECUTED" && paydb.payouts.get(payoutId)?.state === "FAILED")
      marks.hit("a late execution was found")
  }
}
