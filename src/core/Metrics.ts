/**
 * Every metric of the system, under the name that Prometheus sees: times in seconds, counters ending in `_total`.
 *
 * A tag has a closed set of values, fixed here. No key, owner, payout, account or token is ever one: those are unbounded
 * and belong to logs and spans.
 *
 * A metric that was never updated is not exported, so an alert on `increase(x_total[10m]) > 0` would miss the first
 * event of a process: the series appears with 1 and never moved. `register` therefore touches every series at start.
 */
import { Clock, Effect, Exit, Metric } from "effect"

type Counter = Metric.Counter<number>
type Gauge = Metric.Gauge<number>
type Histogram = Metric.Histogram<number>

/** One metric per value of its tag. */
export type Family<Value extends string, M> = { readonly [K in Value]: M }

/** 1 ms to 10 s: calls. */
const callSeconds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10]
/** 100 ms to 1 h: how long something lasted. 600 is the lead time objective. */
const spanSeconds = [0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600]

type Tags = Readonly<Record<string, string>>

/**
 * A metric by its tags. Each series is a metric of its own, for one that `Metric.withAttributes` shares among several makes
 * its key anew, from all names and values, whenever another of them was updated before.
 */
type Tagged<M> = (tags: Tags) => M

const counters =
  (name: string, description: string): Tagged<Counter> =>
  (attributes) =>
    Metric.counter(name, { description, incremental: true, attributes })
const gauges =
  (name: string, description: string): Tagged<Gauge> =>
  (attributes) =>
    Metric.gauge(name, { description, attributes })
const histograms =
  (name: string, description: string, boundaries: ReadonlyArray<number> = callSeconds): Tagged<Histogram> =>
  (attributes) =>
    Metric.histogram(name, { description, boundaries, attributes })

const counter = (name: string, description: string): Counter => counters(name, description)({})
const gauge = (name: string, description: string): Gauge => gauges(name, description)({})
const histogram = (name: string, description: string, boundaries?: ReadonlyArray<number>): Histogram =>
  histograms(name, description, boundaries)({})

const by = <const Values extends ReadonlyArray<string>, M>(
  metric: Tagged<M>,
  tag: string,
  values: Values,
  tags: Tags = {}
): Family<Values[number], M> =>
  Object.fromEntries(
    values.map((value) => [value, metric({ ...tags, [tag]: value })])
    // Object.fromEntries forgets the keys it was given.
  ) as Family<Values[number], M>

const byTwo = <const A extends ReadonlyArray<string>, const B extends ReadonlyArray<string>, M>(
  metric: Tagged<M>,
  [tagA, valuesA]: readonly [string, A],
  [tagB, valuesB]: readonly [string, B]
): Family<A[number], Family<B[number], M>> =>
  Object.fromEntries(valuesA.map((value) => [value, by(metric, tagB, valuesB, { [tagA]: value })])) as Family<
    A[number],
    Family<B[number], M>
  >

// -----------------------------------------------------------------------------
// lock-server
// -----------------------------------------------------------------------------

const callOutcomes = ["granted", "contended", "error"] as const

export const lock = {
  /** From the typed outcome, never from the HTTP status: a contended acquire is no error. */
  acquire: by(
    histograms("lock_acquire_seconds", "Time to answer an acquire, waiting included"),
    "outcome",
    callOutcomes
  ),
  /** Acquires that were willing to wait (`waitMillis` above 0). */
  wait: by(
    histograms("lock_wait_seconds", "Time an acquire waited for the holder before it", spanSeconds),
    "outcome",
    callOutcomes
  ),
  hold: by(histograms("lock_hold_seconds", "From grant to its end", spanSeconds), "end", [
    "released",
    "expired",
    "revoked",
    "session_closed"
  ]),
  renew: by(counters("lock_renew_total", "Renewals asked for"), "outcome", ["renewed", "lost", "error"]),
  release: by(counters("lock_release_total", "Releases asked for"), "outcome", ["released", "lost", "error"]),
  sessionsLive: gauge("lock_sessions_live", "Sessions alive by the store's clock, at the last sweep"),
  grantsLive: gauge("lock_grants_live", "Grants live by the store's clock, at the last sweep"),
  sessionExpired: counter("lock_session_expired_total", "Sessions that ended without being closed"),
  revoked: counter("lock_revoked_total", "Grants revoked by an operator; each is worth a look"),
  backendCall: byTwo(
    histograms("lock_backend_call_seconds", "Time of one call to the lock backend"),
    [
      "op",
      [
        "openSession",
        "heartbeat",
        "closeSession",
        "tryAcquire",
        "renew",
        "release",
        "inspect",
        "revoke",
        "sweep",
        "records",
        "record",
        "sessions",
        "ping"
      ]
    ],
    // refused: the backend answered, and the answer was a typed no
    ["outcome", ["ok", "refused", "unavailable"]]
  ),
  backendUnavailable: histogram(
    "lock_backend_unavailable_seconds",
    "Length of each outage of the lock backend, from the first failed call to the next answered one",
    spanSeconds
  ),
  tokenRegression: counter("lock_token_regression_total", "Tokens seen that were not above an earlier one; must be 0")
} as const

// -----------------------------------------------------------------------------
// lock-client (in every process that holds locks)
// -----------------------------------------------------------------------------

export const lockClient = {
  heartbeat: by(histograms("lock_client_heartbeat_seconds", "Time of one session heartbeat"), "outcome", [
    "ok",
    "lost",
    "error"
  ]),
  lost: by(counters("lock_client_lost_total", "Locks lost while the holder was at work"), "reason", [
    "deadline",
    "revoked",
    "session",
    "superseded"
  ])
} as const

// -----------------------------------------------------------------------------
// payment-resource
// -----------------------------------------------------------------------------

const payoutStates = ["PENDING", "CLAIMED", "POSTED", "FAILED", "RAIL_AMBIGUOUS"] as const
const fencedOutMetric = counters("lock_fenced_out_total", "Stale tokens refused by a fence; each is an incident")
const fencingEnabledMetric = gauges("fencing_enabled", "1 while the fence point compares tokens, 0 when switched off")
const fencingDatabaseMetric = gauges(
  "fencing_database_enabled",
  "1 while the database's half of the kill switch is on; a fence is off only when both halves are"
)

export const payment = {
  fencedOut: by(fencedOutMetric, "op", ["claim", "post", "fail", "ambiguous", "resolve"], { point: "resource" }),
  transition: by(counters("payout_transition_total", "Payouts that reached a state"), "to", payoutStates),
  backlog: by(gauges("payout_backlog", "Payouts in a state that is not final"), "state", [
    "PENDING",
    "CLAIMED",
    "RAIL_AMBIGUOUS"
  ]),
  /** The symptom that pages. A gauge freezes when its query fails, hence `backlogRefreshed`. */
  backlogAge: gauge("payout_backlog_age_seconds", "Age of the oldest PENDING payout"),
  backlogRefreshed: gauge("payout_backlog_refreshed_timestamp_seconds", "When the backlog was last computed"),
  claimedAge: gauge("payout_claimed_age_seconds", "Age of the oldest claim that is not finished"),
  ambiguousAge: gauge("payout_ambiguous_age_seconds", "Age of the oldest ambiguous payout"),
  leadTime: histogram("payout_lead_time_seconds", "From order to POSTED or FAILED", spanSeconds),
  invariantViolations: by(
    gauges("ledger_invariant_violations", "Rows that violate an invariant, at the last check"),
    "invariant",
    ["INV-02", "INV-03", "INV-05", "INV-06", "INV-08", "ONE-POSTING", "ONE-TOKEN-ONE-CLAIM"]
  ),
  verifyTimestamp: gauge("ledger_verify_timestamp_seconds", "When the invariants were last checked"),
  imbalance: gauge("ledger_imbalance", "Sum of all ledger entries, absolute, over the currencies; must be 0"),
  fencingEnabled: fencingEnabledMetric({ point: "resource" }),
  fencingDatabase: fencingDatabaseMetric({ point: "resource" })
} as const

// -----------------------------------------------------------------------------
// rail-proxy, reconciler
// -----------------------------------------------------------------------------

export const rail = {
  fencedOut: by(fencedOutMetric, "op", ["submit", "void", "evidence"], { point: "rail" }),
  submit: by(histograms("rail_submit_seconds", "Time of one submission to the rail", spanSeconds), "outcome", [
    "acked",
    "declined",
    "timeout"
  ]),
  duplicateAttempted: counter(
    "rail_duplicate_attempted_total",
    "Submissions of a payout that has one already, under another accepted token; must be 0"
  ),
  fencingEnabled: fencingEnabledMetric({ point: "rail" }),
  fencingDatabase: fencingDatabaseMetric({ point: "rail" })
} as const

/** What the rail's own book says, found by proxy and reconciler. Each one pages. */
export const railEvidence = {
  duplicateDetected: counter("rail_duplicate_detected_total", "Payouts that the rail executed more than once"),
  lateExecution: counter(
    "rail_late_execution_total",
    "Payouts executed after the rail had said it knows nothing of them"
  )
} as const

export const reconciler = {
  lastSuccess: gauge("reconcile_last_success_timestamp_seconds", "When a reconciliation run last finished")
} as const

// -----------------------------------------------------------------------------
// every process
// -----------------------------------------------------------------------------

const statusClasses = ["2xx", "3xx", "4xx", "5xx"] as const
export type StatusClass = (typeof statusClasses)[number]

const httpRequest = histograms("http_server_request_seconds", "Time from request to response by route template")
const httpSeries = new Map<string, Histogram>()

/** `route` is the template (`/v1/locks/:key/acquire`) or `unmatched`: a closed set, given by the surfaces. */
export const httpServerRequest = (method: string, route: string, status: StatusClass): Histogram => {
  const name = `${method} ${route} ${status}`
  let metric = httpSeries.get(name)
  if (metric === undefined) {
    metric = httpRequest({ method, route, status })
    httpSeries.set(name, metric)
  }
  return metric
}

export const process = {
  pause: gauge("process_pause_seconds", "Largest stall of the event loop since the last scrape"),
  eventLoopLag: gauge("process_event_loop_lag_seconds", "Mean delay of the event loop since the last scrape"),
  cpu: counter("process_cpu_seconds_total", "User and system CPU time"),
  resident: gauge("process_resident_memory_bytes", "Resident set size"),
  heap: gauge("process_heap_bytes", "Used heap of the JavaScript engine"),
  uptime: gauge("process_uptime_seconds", "Time since start"),
  startTime: gauge("process_start_time_seconds", "When the process started")
} as const

// -----------------------------------------------------------------------------
// recording
// -----------------------------------------------------------------------------

/** A metric, or a group of them, nested as above. */
export type Group = Metric.Metric<never, unknown> | { readonly [name: string]: Group }

const series = (group: Group): ReadonlyArray<Metric.Metric<never, unknown>> =>
  Metric.isMetric(group) ? [group] : Object.values(group).flatMap(series)

/**
 * Makes every series of the groups exist, with 0: reading a metric registers it. The two of the fences are left to who knows
 * the switches, for a 0 there is an alarm.
 */
export const register = (...groups: ReadonlyArray<Group>): Effect.Effect<void> =>
  Effect.withFiber((fiber) => {
    const registry = fiber.getRef(Metric.MetricRegistry)
    const done = registered.get(registry) ?? new Set()
    registered.set(registry, done)
    for (const group of groups) {
      if (done.has(group)) continue
      done.add(group)
      for (const metric of series(group)) {
        if (!switches.has(metric.id)) metric.valueUnsafe(fiber.context)
      }
    }
    return Effect.void
  })

const switches: ReadonlySet<string> = new Set([payment.fencingEnabled.id, payment.fencingDatabase.id])

/** A process registers once; thousands of simulated ones that share a registry do not each count all its series. */
const registered = new WeakMap<object, Set<Group>>()

export const increment = (metric: Counter): Effect.Effect<void> => record((set) => set(metric, 1))

/** Some values at once. */
export const record = (
  write: (set: <Input, State>(metric: Metric.Metric<Input, State>, value: Input) => void) => void
): Effect.Effect<void> =>
  Effect.withFiber((fiber) => {
    write((metric, value) => metric.updateUnsafe(value, fiber.context))
    return Effect.void
  })

/** Seconds since the Unix epoch, for gauges named `.._timestamp_seconds`. */
export const setToNow = (metric: Gauge): Effect.Effect<void> =>
  Effect.flatMap(Clock.currentTimeMillis, (now) => Metric.update(metric, now / 1_000))

/**
 * Times an effect into the series that `outcome` reads off its typed exit; `undefined` counts nowhere. An interrupted
 * call has no outcome (its caller went away) and counts nowhere either.
 */
export const timed =
  <A, E>(outcome: (exit: Exit.Exit<A, E>) => Histogram | undefined) =>
  <R>(self: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    // Around every call: few operations.
    Effect.withFiber((fiber) => {
      const clock = fiber.getRef(Clock.Clock)
      const start = clock.monotonicTimeNanosUnsafe()
      const note = (exit: Exit.Exit<A, E>): Exit.Exit<A, E> => {
        const metric = Exit.hasInterrupts(exit) ? undefined : outcome(exit)
        metric?.updateUnsafe(Number(clock.monotonicTimeNanosUnsafe() - start) / 1e9, fiber.context)
        return exit
      }
      return Effect.matchCauseEffect(self, {
        onSuccess: (value) => note(Exit.succeed(value)),
        onFailure: (cause) => note(Exit.failCause(cause))
      })
    })
