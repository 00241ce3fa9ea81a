/**
 * One run as plain data: everything that decides what happens. The same value gives the same trace, in another process and
 * on another machine; a failure is reported as its JSON, and shrunk by making the value simpler.
 */
import { Schema } from "effect"
import { defaults, type Settings } from "../core/Settings.ts"
import { SubmitFault } from "../services/api/RailStubHttpApi.ts"
import { type Fault, FaultPlan } from "./FaultPlan.ts"

export const RunSpec = Schema.Struct({
  scenario: Schema.String,
  /** What everything that is drawn is drawn from. */
  seed: Schema.Int,
  /** Calls between nodes as values, or through the production HTTP encoding. */
  wire: Schema.Literals(["typed", "http"]),
  policy: Schema.Literals(["fifo", "random", "pct"]),
  /** See `WorldOptions.quantum`. */
  quantum: Schema.Int,
  sliceMicrosMax: Schema.Int,
  /** Most that is drawn on top of a message's latency: above it messages overtake each other. */
  jitterMicros: Schema.Int,
  lossPerMille: Schema.Int,
  duplicatePerMille: Schema.Int,
  latePerMille: Schema.Int,
  /**
   * `short`: a lease of 1 s and all else to scale, which is cheaper by the same factor. `longLease`: so long that the
   * session can end before it. `production`: the defaults.
   */
  scale: Schema.Literals(["short", "longLease", "production"]),
  workers: Schema.Int,
  lockServers: Schema.Int,
  proxies: Schema.Int,
  reconcilers: Schema.Int,
  accounts: Schema.Int,
  payouts: Schema.Int,
  /** How many payouts the opening balance of an account pays: with less than are ordered, some fail for want of money. */
  funds: Schema.Int,
  /** What the rail does with the submits it gets, in order; well-behaved afterwards. */
  rail: Schema.Array(Schema.Struct({ kind: SubmitFault, paid: Schema.Boolean })),
  /** The rail thinks about each submit for up to so long: that makes a section as long as a lease. */
  railLatencyMillis: Schema.Int,
  /** For so long after a payment the rail's lookup does not find it. */
  railBlindMillis: Schema.Int,
  /** The kill switches of the fences. */
  paymentFencing: Schema.Boolean,
  railFencing: Schema.Boolean,
  /** False takes away what stands behind the rail's fence: (c2), the read of the record and the unique index. */
  guards: Schema.Boolean,
  /** w1 ignores that it lost its lock. */
  staleHolder: Schema.Boolean,
  /** An operator cancels the last payout, as `payout cancel` does. */
  canceller: Schema.Boolean,
  /** A deliberate bug by name; only `sim mutants` sets it. */
  mutant: Schema.NullOr(Schema.String),
  faults: FaultPlan
})
export type RunSpec = typeof RunSpec.Type

/** The simplest run: what a shrinker walks towards. */
export const simplest: RunSpec = {
  scenario: "uc-01",
  seed: 1,
  wire: "typed",
  policy: "fifo",
  quantum: 0,
  sliceMicrosMax: 0,
  jitterMicros: 0,
  lossPerMille: 0,
  duplicatePerMille: 0,
  latePerMille: 0,
  scale: "short",
  workers: 2,
  lockServers: 1,
  proxies: 1,
  reconcilers: 1,
  accounts: 1,
  payouts: 1,
  funds: 4,
  rail: [],
  railLatencyMillis: 0,
  railBlindMillis: 0,
  paymentFencing: true,
  railFencing: true,
  guards: true,
  staleHolder: false,
  canceller: false,
  mutant: null,
  faults: []
}

/** As one line. Fields that are as in `simplest` are left out, so that a shrunk failure is short. */
export const toLine = (spec: RunSpec): string =>
  JSON.stringify(
    Object.fromEntries(
      Object.entries(spec).filter(
        ([name, value]) =>
          name === "scenario" ||
          name === "seed" ||
          JSON.stringify(value) !== JSON.stringify(simplest[name as keyof RunSpec])
      )
    )
  )

const decode = Schema.decodeUnknownSync(RunSpec)

/** Throws on what is no run. */
export const fromLine = (line: string): RunSpec => {
  const parsed: unknown = JSON.parse(line)
  if (typeof parsed !== "object" || parsed === null) throw new Error("a run is a JSON object")
  return decode({ ...simplest, ...parsed })
}

/** The shortest leases that the service allows; the relations between the numbers are those of the defaults. */
const short: Settings = {
  lock: { defaultTtlMillis: 1_000, sessionTtlMillis: 3_000, backendTimeoutMillis: 250 },
  client: {
    safetyMarginMillis: 150,
    heartbeatIntervalMillis: null,
    retry: { baseMillis: 50, capMillis: 300, attempts: 3 },
    callTimeoutMillis: 300
  },
  rail: { readTimeoutMillis: 800, sendWindowMillis: 200 },
  executor: { railTimeoutMillis: 2_000, pollIntervalMillis: 1_000, concurrency: 4 },
  reconcile: { intervalMillis: 2_000, slaMillis: 4 * 60 * 60 * 1_000 }
}

const longLease: Settings = {
  ...short,
  lock: { ...short.lock, defaultTtlMillis: 2_500, sessionTtlMillis: 2_000 }
}

export const settingsOf = ({ scale }: RunSpec): Settings =>
  scale === "short" ? short : scale === "longLease" ? longLease : defaults

const railSide = new Set(["rail-proxy", "rail", "paydb"])

/** How long the plan can keep a payment on its way from the committed intent to the rail's book. */
const stallMillis = (fault: Fault): number => {
  switch (fault.kind) {
    case "pause":
      return railSide.has(fault.node) ? Math.max(0, fault.millis) + (fault.until === undefined ? 0 : 60_000) : 0
    case "delay":
    case "duplicate":
      return fault.to === "rail" ? fault.millis : 0
    case "cut":
      return fault.how === "stall" && (fault.to === "rail" || (fault.both && fault.from === "rail")) ? fault.millis : 0
    default:
      return 0
  }
}

/**
 * When "not found at the rail" is believed. The argument for it is that the window is longer than any stop of the proxy and
 * any delivery to the rail, so it is made longer than those of the plan. UC-03b alone breaks that, on purpose.
 */
export const finalityMillisOf = (spec: RunSpec): number => {
  const base = spec.scale === "production" ? 60_000 : 1_500
  if (spec.scenario === "uc-03b") return base
  const late = spec.latePerMille > 0 || spec.duplicatePerMille > 0 ? lateMillisMax(spec) : 0
  return spec.faults.reduce((sum, fault) => sum + stallMillis(fault), base + late + spec.railBlindMillis)
}

export const lateMillisMax = (spec: RunSpec): number => 3 * settingsOf(spec).lock.defaultTtlMillis

/** Faults happen within this; then everything is healed and progress is demanded. */
export const faultPhaseMillis = (spec: RunSpec): number => 8 * settingsOf(spec).lock.defaultTtlMillis

/** LIVE-01: from the end of the faults to the last payout's terminal state. */
export const boundMillis = (spec: RunSpec): number => {
  const { executor, lock, reconcile } = settingsOf(spec)
  // a dead holder's lease, the longest rest of an account, a rail that never answers; then the reconciler's proof
  const execution = 2 * lock.sessionTtlMillis + 24 * executor.pollIntervalMillis + 3 * executor.railTimeoutMillis
  return (execution + finalityMillisOf(spec) + 6 * reconcile.intervalMillis) * spec.payouts + 10_000
}
