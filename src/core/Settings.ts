/**
 * The tunable numbers of the system: what each means, its default, and the relations between them that must hold for
 * the arguments of docs/architecture.md to hold. Pure; where they are read from is `services/platform/ServiceConfig.ts`.
 *
 * All durations are integer milliseconds.
 */

export const limits = {
  /** L1: below is rejected, above is clamped down. */
  sessionTtlMillis: { min: 2_000, max: 300_000 },
  /** L4, L5 */
  lockTtlMillis: { min: 1_000, max: 300_000 },
  /** L4 */
  waitMillis: { min: 0, max: 30_000 },
  reasonLengthMin: 8,
  bodyBytes: 64 * 1024,
  pageLimit: 500
} as const

export interface LockSettings {
  /** Lease of a grant when L4 and L5 name none. */
  readonly defaultTtlMillis: number
  /** Lease of a session when L1 names none. */
  readonly sessionTtlMillis: number
  /** Every backend call of the lock service ends within this, one way or the other. */
  readonly backendTimeoutMillis: number
}

export interface RetrySettings {
  /** Full jitter: the n-th pause is drawn from 0 .. min(cap, base * 2^n). */
  readonly baseMillis: number
  readonly capMillis: number
  /** Tries in all, the first included. */
  readonly attempts: number
}

export interface ClientSettings {
  /** What the client gives up early, so that it stops before the server can grant the key to anyone else. */
  readonly safetyMarginMillis: number
  /** Null: a third of the session's ttl. */
  readonly heartbeatIntervalMillis: number | null
  readonly retry: RetrySettings
  /** Bound of one call to the lock service. */
  readonly callTimeoutMillis: number
}

export interface RailSettings {
  /** One budget for the whole call, on the proxy's monotonic clock, counted from before the intent is recorded. */
  readonly readTimeoutMillis: number
  /** The send starts within this of the budget's start or not at all. */
  readonly sendWindowMillis: number
}

export interface ExecutorSettings {
  /** Bound of a submit as the executor sees it; longer than the proxy's, so that the proxy sees an ambiguity first. */
  readonly railTimeoutMillis: number
  readonly pollIntervalMillis: number
  /** Payouts worked on at once, each of another account. */
  readonly concurrency: number
}

export interface ReconcileSettings {
  readonly intervalMillis: number
  /** An ambiguous payout older than this escalates; it stays ambiguous. */
  readonly slaMillis: number
}

export interface Settings {
  readonly lock: LockSettings
  readonly client: ClientSettings
  readonly rail: RailSettings
  readonly executor: ExecutorSettings
  readonly reconcile: ReconcileSettings
}

export const defaults: Settings = {
  lock: { defaultTtlMillis: 15_000, sessionTtlMillis: 15_000, backendTimeoutMillis: 2_000 },
  client: {
    safetyMarginMillis: 2_000,
    heartbeatIntervalMillis: null,
    retry: { baseMillis: 50, capMillis: 1_000, attempts: 5 },
    callTimeoutMillis: 3_000
  },
  rail: { readTimeoutMillis: 8_000, sendWindowMillis: 2_000 },
  executor: { railTimeoutMillis: 10_000, pollIntervalMillis: 500, concurrency: 4 },
  reconcile: { intervalMillis: 30_000, slaMillis: 4 * 60 * 60 * 1_000 }
}

/** A relation that does not hold: the setting to change, its value, and what is allowed. */
export interface SettingProblem {
  readonly setting: string
  readonly value: number
  readonly allowed: string
}

export const heartbeatIntervalOf = (client: ClientSettings, sessionTtlMillis: number): number =>
  client.heartbeatIntervalMillis ?? Math.floor(sessionTtlMillis / 3)

/** Every relation that does not hold, with the argument why it must. Empty when the settings may be used. */
export const problems = (settings: Settings): ReadonlyArray<SettingProblem> => {
  const found: Array<SettingProblem> = []
  const demand = (holds: boolean, setting: string, value: number, allowed: string) => {
    if (!holds) found.push({ setting, value, allowed })
  }
  const { client, executor, lock, rail, reconcile } = settings
  const within = (setting: string, value: number, range: { readonly min: number; readonly max: number }) =>
    demand(value >= range.min && value <= range.max, setting, value, `${range.min}..${range.max} ms`)
  within("lock.default.ttl", lock.defaultTtlMillis, limits.lockTtlMillis)
  within("lock.session.ttl", lock.sessionTtlMillis, limits.sessionTtlMillis)
  // A margin as long as the lease leaves nothing to work in: every lock would be lost on arrival.
  const shortest = Math.min(lock.defaultTtlMillis, lock.sessionTtlMillis)
  demand(
    client.safetyMarginMillis >= 0 && client.safetyMarginMillis < shortest,
    "lock.client.safety-margin",
    client.safetyMarginMillis,
    `0 to below the shorter of lock.default.ttl and lock.session.ttl (${shortest} ms)`
  )
  // Two heartbeats may be lost and the third still arrives in time.
  const heartbeat = heartbeatIntervalOf(client, lock.sessionTtlMillis)
  demand(
    heartbeat > 0 && heartbeat <= lock.sessionTtlMillis / 3,
    "lock.client.heartbeat-interval",
    heartbeat,
    `1 ms to a third of lock.session.ttl (${Math.floor(lock.sessionTtlMillis / 3)} ms)`
  )
  demand(client.retry.baseMillis > 0, "lock.client.retry.base", client.retry.baseMillis, "above 0 ms")
  demand(
    client.retry.capMillis >= client.retry.baseMillis,
    "lock.client.retry.cap",
    client.retry.capMillis,
    `at least lock.client.retry.base (${client.retry.baseMillis} ms)`
  )
  demand(client.retry.attempts >= 1, "lock.client.retry.attempts", client.retry.attempts, "at least 1")
  // The server answers BACKEND_UNAVAILABLE before its caller gives up, so the caller learns that the fate is unknown.
  demand(
    lock.backendTimeoutMillis > 0 && lock.backendTimeoutMillis < client.callTimeoutMillis,
    "lock.backend.timeout",
    lock.backendTimeoutMillis,
    `above 0 and below the client's call timeout (${client.callTimeoutMillis} ms)`
  )
  // The proxy, not its caller, sees the ambiguity first and records it.
  demand(
    rail.readTimeoutMillis < executor.railTimeoutMillis,
    "payout.executor.rail-timeout",
    executor.railTimeoutMillis,
    `above rail.read-timeout (${rail.readTimeoutMillis} ms)`
  )
  demand(
    rail.sendWindowMillis > 0 && rail.sendWindowMillis < rail.readTimeoutMillis,
    "rail.read-timeout",
    rail.readTimeoutMillis,
    `above the send window (${rail.sendWindowMillis} ms)`
  )
  demand(executor.pollIntervalMillis > 0, "payout.executor.poll-interval", executor.pollIntervalMillis, "above 0 ms")
  demand(
    executor.concurrency >= 1 && executor.concurrency <= 64,
    "payout.executor.concurrency",
    executor.concurrency,
    "1..64"
  )
  demand(reconcile.intervalMillis > 0, "reconcile.interval", reconcile.intervalMillis, "above 0 ms")
  demand(reconcile.slaMillis > 0, "reconcile.sla", reconcile.slaMillis, "above 0 ms")
  return found
}
