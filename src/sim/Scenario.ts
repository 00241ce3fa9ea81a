/**
 * The use cases as data: what the world consists of, which faults befall it, what is expected of it, and which situations a
 * batch of runs must have met at least once. Nothing here is about the simulation alone: a harness of real processes can
 * read the same values.
 */
import type { Cluster } from "./Cluster.ts"
import type { Verdict } from "./Judge.ts"
import { revokingOperator, visitors } from "./Actors.ts"
import { type RunSpec, simplest } from "./RunSpec.ts"

/** Families of faults. A run draws from some of a scenario's families and leaves the others out. */
export type Family =
  /** Stops at the named points of the workers' turn, and aimed at the end of a lease. */
  | "hold"
  | "leaseEnd"
  /** Both workers stopped, so that they overtake each other. */
  | "leapfrog"
  /** Stops behind any visible operation of any node. */
  | "pause"
  /** Stops at the named points of the servers, and of the databases after a commit. */
  | "serverHold"
  | "kill"
  | "crashPoint"
  /** Stops, for longer than a lease, where the crash points have a variant in which nobody dies. */
  | "stopPoint"
  | "message"
  | "cut"
  | "clock"
  | "lockdbDown"
  | "lockServerDown"
  | "proxyStop"

export interface Scenario {
  readonly id: string
  readonly title: string
  /** What the run must show, in a sentence. */
  readonly expectation: string
  readonly base: RunSpec
  /** Families and how often each is part of a run, in percent. */
  readonly faults: Readonly<Partial<Record<Family, number>>>
  /** How often the network has moods of its own (loss, duplicates, late messages), in percent. */
  readonly moods: number
  /** How often the rail misbehaves, in percent. */
  readonly rail: number
  /** How often w1 ignores that it lost its lock, in percent. */
  readonly stale?: number
  /** How often there is less money than was ordered to be paid, in percent. */
  readonly poor?: number
  /** How often an operator cancels a payout, and how often there are two reconcilers, in percent. */
  readonly cancelled?: number
  readonly reconcilers?: number
  readonly workers: readonly [min: number, max: number]
  readonly payouts: readonly [min: number, max: number]
  readonly lockServers: readonly [min: number, max: number]
  /** Marks that a batch must have hit. */
  readonly promises: ReadonlyArray<string>
  /** Further participants. */
  readonly prepare?: (cluster: Cluster) => void
  /** Besides all payouts being settled. */
  readonly goal?: (cluster: Cluster) => boolean
  /** What this scenario, and it alone, may show. */
  readonly pardons?: (verdict: Verdict, cluster: Cluster) => boolean
}

const base = (scenario: string, fields: Partial<RunSpec> = {}): RunSpec => ({ ...simplest, scenario, ...fields })

/** A payout that FAILED and was paid later, and that the reconciler has found out about. */
const foundLate = (verdict: Verdict, { paydb, spec }: Cluster): boolean =>
  ((verdict.check === "INV-06" && verdict.detail.startsWith("FAILED")) || verdict.check === "paydb INV-06") &&
  // only a stop behind the last look at the clock can do that
  spec.faults.some(
    (fault) => fault.kind === "pause" && fault.when.at === "point" && fault.when.name === "rail.send.before"
  ) &&
  paydb.lookups.some(({ result }) => result === "EXECUTED")

const unfoundLate = (cluster: Cluster): boolean =>
  [...cluster.paydb.payouts.values()].some(
    ({ clientReference, payoutId, state }) =>
      state === "FAILED" &&
      cluster.recorder.arrivals.some((one) => one.clientReference === clientReference) &&
      !cluster.paydb.lookups.some((look) => look.payoutId === payoutId && look.result === "EXECUTED")
  )

/** The steps of a turn, each of which a worker can be stopped or die at. */
export const workerPoints: ReadonlyArray<string> = [
  "submit.before",
  "claim.before",
  "post.before",
  "acquire.after",
  "claim.after",
  "submit.after",
  "post.after",
  "release.before",
  "lock.acquire.before",
  "lock.acquire.after",
  "lock.renew.after",
  "lock.heartbeat.after",
  "ambiguous.before",
  "fail.before"
]

export const serverPoints: ReadonlyArray<readonly [node: string, point: string]> = [
  ["payment-resource", "payment.claim.before"],
  ["payment-resource", "payment.claim.after"],
  ["payment-resource", "payment.post.before"],
  ["payment-resource", "payment.post.after"],
  ["rail-proxy", "rail.intent.before"],
  ["rail-proxy", "rail.intent.after"],
  ["rail-proxy", "rail.send.before"],
  ["rail-proxy", "rail.send.after"],
  ["rail-proxy", "rail.outcome.before"],
  ["rail-proxy", "rail.outcome.after"],
  ["lock-server", "lockdb.tryAcquire.before"],
  ["lock-server", "lockdb.tryAcquire.after"],
  ["lock-server", "lockdb.release.after"],
  ["lock-server", "lock.acquire.served"],
  ["lockdb", "lockdb.tryAcquire.serving"],
  ["lockdb", "lockdb.tryAcquire.served"],
  ["lockdb", "lockdb.renew.serving"],
  ["lockdb", "lockdb.heartbeat.served"],
  ["lockdb", "lockdb.release.served"],
  ["paydb", "paydb.claim.serving"],
  ["paydb", "paydb.claim.served"],
  ["paydb", "paydb.post.served"],
  ["paydb", "paydb.recordIntent.serving"],
  ["paydb", "paydb.recordIntent.served"],
  ["paydb", "paydb.recordOutcome.served"],
  ["reconciler", "reconcile.acquire.after"],
  ["reconciler", "lookup.after"],
  ["reconciler", "resolve.before"]
]

/** The crash points of a payout, by number; who dies where. */
export const crashPoints: ReadonlyArray<readonly [number: string, node: string, point: string]> = [
  ["1", "w1", "acquire.after"],
  ["2", "w1", "pay.claim.before"],
  ["2", "paydb", "paydb.claim.served"],
  ["2", "payment-resource", "payment.claim.after"],
  ["3", "w1", "submit.before"],
  ["4", "rail-proxy", "rail.intent.after"],
  ["5", "w1", "rail.submit.after"],
  ["6", "rail-proxy", "rail.send.after"],
  ["7", "paydb", "paydb.recordOutcome.served"],
  ["7", "rail-proxy", "rail.outcome.after"],
  ["8", "paydb", "paydb.recordIntent.served"],
  ["9", "w1", "post.before"],
  ["10", "w1", "fail.before"],
  ["11", "paydb", "paydb.post.served"],
  ["11", "payment-resource", "payment.post.after"],
  ["12", "w1", "ambiguous.before"],
  ["13", "reconciler", "resolve.before"],
  ["16", "operator", "rail.seal.after"],
  ["17", "w1", "release.before"]
]

/**
 * Where somebody is stopped and comes back: a crash point of its own, or (null) the way into one of the races 14 and 15, which
 * the recorder sees, as 3b and 9b.
 */
export const stopPoints: ReadonlyArray<readonly [number: string | null, node: string, point: string]> = [
  ["4b", "rail-proxy", "rail.intent.after"],
  [null, "reconciler", "resolve.before"],
  [null, "operator", "rail.seal.before"],
  [null, "operator", "pay.fail.before"]
]

export const scenarios: ReadonlyArray<Scenario> = [
  {
    id: "uc-01",
    title: "Happy-path payout",
    expectation: "one payout goes from PENDING to POSTED, paid once, both entries written, the lock free afterwards",
    base: base("uc-01"),
    faults: {},
    moods: 0,
    rail: 0,
    workers: [1, 2],
    payouts: [1, 3],
    lockServers: [1, 2],
    promises: ["posted"]
  },
  {
    id: "uc-02",
    title: "Contended acquire, bounded wait",
    expectation: "contenders wait their turn or give up within their bound; nobody gets in while another holds the key",
    base: base("uc-02"),
    faults: { hold: 40, message: 30, pause: 20 },
    moods: 20,
    rail: 0,
    workers: [2, 3],
    payouts: [1, 2],
    lockServers: [1, 2],
    promises: ["posted", "lock contended", "a visitor was let in", "a visitor gave up"],
    prepare: visitors
  },
  {
    id: "uc-03",
    title: "The paused worker",
    expectation:
      "a holder that is stopped past its lease does no harm: the fences refuse what it still sends; without them it pays or posts twice",
    base: base("uc-03"),
    faults: {
      hold: 60,
      leaseEnd: 30,
      leapfrog: 10,
      pause: 30,
      serverHold: 25,
      kill: 20,
      message: 35,
      cut: 15,
      clock: 20
    },
    moods: 25,
    rail: 12,
    stale: 15,
    poor: 10,
    workers: [2, 2],
    payouts: [1, 2],
    lockServers: [1, 2],
    promises: [
      "posted",
      "failed",
      "lock contended",
      "lease taken over",
      "session expired",
      "told LOCK_LOST",
      "told FENCED_OUT",
      "fenced out at resource",
      "fenced out at rail",
      "recovered a claimed payout",
      "became ambiguous",
      "resolved by the reconciler",
      "the rail declined",
      "failed for want of money",
      "the rail was silent",
      "a payment arrived late",
      "fault pause",
      "fault kill",
      "fault drop",
      "fault delay",
      "fault duplicate",
      "fault cut",
      "fault clockError",
      "fault clockStep"
    ]
  },
  {
    id: "uc-03b",
    title: "The paused proxy",
    expectation:
      "stopped before its last look at the clock the proxy sends nothing; stopped after it, for longer than the finality window, it pays what is FAILED, which is found as a late execution",
    // one of two: with a single proxy nobody could settle what it has in hand
    base: base("uc-03b", { proxies: 2 }),
    faults: { proxyStop: 100, message: 10 },
    moods: 0,
    rail: 0,
    workers: [2, 2],
    payouts: [1, 1],
    lockServers: [1, 1],
    promises: ["failed", "a late execution was found", "became ambiguous"],
    goal: (cluster) => !unfoundLate(cluster),
    pardons: foundLate
  },
  {
    id: "uc-04",
    title: "Worker crash mid-payout",
    expectation: "whoever dies wherever, the successor finishes by state and record: paid once, the same amount",
    base: base("uc-04"),
    faults: { crashPoint: 100, stopPoint: 30, leapfrog: 20, kill: 20, message: 15 },
    moods: 10,
    rail: 40,
    poor: 20,
    cancelled: 25,
    reconcilers: 20,
    workers: [2, 2],
    payouts: [1, 2],
    lockServers: [1, 1],
    promises: [
      "posted",
      "recovered a claimed payout",
      "failed for want of money",
      ...["3b", "4b", "9b", "14", "15"].map((number) => `crash point ${number}`),
      ...new Set(crashPoints.map(([number]) => `crash point ${number}`))
    ]
  },
  {
    id: "uc-05",
    title: "Ambiguous rail outcome",
    expectation: "no answer of the rail: the payout is ambiguous, is never submitted again, and is settled by evidence",
    base: base("uc-05"),
    faults: { hold: 20, kill: 20, message: 20, serverHold: 20 },
    moods: 10,
    rail: 100,
    workers: [2, 2],
    payouts: [1, 2],
    lockServers: [1, 1],
    promises: ["became ambiguous", "resolved by the reconciler", "the rail was silent", "posted", "failed"]
  },
  {
    id: "uc-06",
    title: "Operator force-revoke",
    expectation: "the revoked holder is fenced from the next claim on; tokens go on rising",
    base: base("uc-06"),
    faults: { hold: 60, message: 20, pause: 20, kill: 10 },
    moods: 10,
    rail: 10,
    workers: [2, 2],
    payouts: [1, 2],
    lockServers: [1, 2],
    promises: ["lock revoked", "posted", "told LOCK_LOST"],
    prepare: revokingOperator
  },
  {
    id: "uc-07",
    title: "Lock backend failover in the critical section",
    expectation: "no token is used twice and no acknowledged grant is forgotten; the outage ends and the work goes on",
    base: base("uc-07"),
    faults: { lockdbDown: 100, hold: 30, message: 20 },
    moods: 10,
    rail: 0,
    workers: [2, 2],
    payouts: [1, 3],
    lockServers: [1, 2],
    promises: ["posted", "fault kill", "lock backend was down while a lock was held"]
  },
  {
    id: "uc-08",
    title: "Lock service unavailable",
    expectation: "no grant, no side effect: payouts queue while the service is away and are all done once it is back",
    base: base("uc-08"),
    faults: { lockServerDown: 100, kill: 10, message: 10 },
    moods: 10,
    rail: 0,
    workers: [2, 3],
    payouts: [2, 3],
    lockServers: [1, 2],
    promises: ["posted", "fault kill", "no grant while the service was away"]
  }
]

export const scenarioOf = (id: string): Scenario => {
  const found = scenarios.find((scenario) => scenario.id === id)
  if (found === undefined) throw new Error(`no scenario ${id}; there are ${scenarios.map((one) => one.id).join(", ")}`)
  return found
}
