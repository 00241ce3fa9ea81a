/**
 * Runs drawn by fast-check, and shrunk by it: the only place that knows it. What is drawn first of each choice is the
 * simplest, for that is what shrinking walks towards.
 *
 * - A family of faults is part of a run or not (swarm testing): runs in which some kind of fault is absent reach states that
 *   runs with a little of everything do not. One run in four has all of them.
 * - Lengths are relative to the lease. Around it is where the bugs are; log-uniform lengths found half as many.
 * - The seed is never shrunk: a smaller seed is not a simpler run.
 */
import fc from "fast-check"
import type { Fault, FaultPlan, When } from "./FaultPlan.ts"
import type { RunSpec } from "./RunSpec.ts"
import { settingsOf } from "./RunSpec.ts"
import { crashPoints, type Family, type Scenario, serverPoints, stopPoints, workerPoints } from "./Scenario.ts"

/** 1..max, shrunk by trying every smaller value, smallest first: positions are not ordered by simplicity, halving gets stuck. */
class Position extends fc.Arbitrary<number> {
  readonly max: number

  constructor(max: number) {
    super()
    this.max = max
  }

  generate(random: fc.Random): fc.Value<number> {
    return new fc.Value(random.nextInt(1, this.max), undefined)
  }

  canShrinkWithoutContext(value: unknown): value is number {
    return typeof value === "number" && value >= 1 && value <= this.max
  }

  shrink(value: number): fc.Stream<fc.Value<number>> {
    return fc.stream(
      (function* () {
        for (let smaller = 1; smaller < value; smaller++) yield new fc.Value(smaller, undefined)
      })()
    )
  }
}

const position = (max: number): fc.Arbitrary<number> => new Position(max)

/** What a family draws: a fault, or some that mean something only together. */
type Drawn = Fault | FaultPlan
type Arbitraries = Readonly<Record<Family, fc.Arbitrary<Drawn>>>

const servers = ["lock-server", "payment-resource", "rail-proxy", "lockdb", "paydb", "reconciler"] as const

/** Calls by their two ends: what a message fault can name. */
const routes: ReadonlyArray<readonly [from: string, to: string, labels: ReadonlyArray<string>]> = [
  ["w", "lock-server", ["lock.acquire", "lock.renew", "lock.release", "lock.heartbeat", "lock.openSession"]],
  [
    "w",
    "payment-resource",
    ["pay.claim", "pay.post", "pay.ambiguous", "pay.fail", "pay.listPayouts", "pay.readPayout"]
  ],
  ["w", "rail-proxy", ["rail.submit", "rail.readSubmission"]],
  ["lock-server", "lockdb", ["lockdb.tryAcquire", "lockdb.renew", "lockdb.release", "lockdb.heartbeat"]],
  ["payment-resource", "paydb", ["paydb.claim", "paydb.post", "paydb.ambiguous"]],
  ["rail-proxy", "paydb", ["paydb.recordIntent", "paydb.recordOutcome"]],
  ["rail-proxy", "rail", ["rail.pay", "rail.ask"]],
  ["reconciler", "payment-resource", ["pay.resolve", "pay.readPayout"]],
  ["reconciler", "rail-proxy", ["rail.lookup"]],
  ["reconciler", "lock-server", ["lock.acquire", "lock.release"]]
]

const arbitrariesOf = (scenario: Scenario): Arbitraries => {
  const { lock, client } = settingsOf(scenario.base)
  const lease = lock.defaultTtlMillis
  const margin = client.safetyMarginMillis
  const times = (...factors: ReadonlyArray<number>) => fc.constantFrom(...factors.map((one) => Math.round(one * lease)))
  /** From barely noticeable to far past the lease. */
  const length = times(2.5, 1.1, 1.75, 3.5, 0.9, 0.5, 0.2, 0.02)
  const worker = fc.constantFrom("w1", "w2")
  const nth = position(3)
  const at = (name: fc.Arbitrary<string>, which = nth): fc.Arbitrary<When> =>
    fc.record({ at: fc.constant("point" as const), name, nth: which })
  const behind = (max: number): fc.Arbitrary<When> =>
    fc.record({ at: fc.constant("visible" as const), nth: position(max) })
  const early = (max: number): fc.Arbitrary<When> =>
    fc.record({ at: fc.constant("time" as const), millis: fc.integer({ min: 1, max }) })
  const pause = (node: fc.Arbitrary<string>, when: fc.Arbitrary<When>, millis = length): fc.Arbitrary<Fault> =>
    fc.record({ kind: fc.constant("pause" as const), node, when, millis })
  const kill = (
    node: fc.Arbitrary<string>,
    when: fc.Arbitrary<When>,
    down = times(0.1, 0.5, 1.1, 2.5)
  ): fc.Arbitrary<Fault> =>
    fc.record({
      kind: fc.constant("kill" as const),
      node,
      when,
      how: fc.constantFrom("process" as const, "machine" as const),
      downMillis: down
    })
  const aLittle = fc.integer({ min: -40, max: 40 })
  const leaseEnd: fc.Arbitrary<Fault> = fc.oneof(
    // stopped shortly before or after the end, as the client or the store sees it
    pause(
      worker,
      fc.record({
        at: fc.constant("mark" as const),
        name: fc.constant("lease"),
        nth,
        plusMillis: fc.oneof(
          aLittle,
          aLittle.map((little) => little - margin)
        )
      })
    ),
    // stopped at a step until shortly before or after it
    fc.record({
      kind: fc.constant("pause" as const),
      node: worker,
      when: at(fc.constantFrom(...workerPoints)),
      millis: fc.oneof(
        aLittle,
        aLittle.map((little) => little - margin)
      ),
      until: fc.constant("lease")
    })
  )
  const message: fc.Arbitrary<Fault> = fc
    .record({
      kind: fc.constantFrom("drop" as const, "delay" as const, "duplicate" as const),
      route: fc.constantFrom(...routes),
      label: fc.nat({ max: 5 }),
      worker,
      leg: fc.constantFrom("answer" as const, "request" as const),
      nth: position(6),
      millis: length
    })
    .map(({ kind, label, leg, millis, nth: number, route: [from, to, labels], worker: who }) => ({
      kind,
      from: from === "w" ? who : from,
      to,
      label: labels[label % labels.length]!,
      leg,
      nth: number,
      // long enough for the reconciler to be told twice that the rail knows of nothing
      millis: to === "rail" ? millis * 3 : millis
    }))
  const cut: fc.Arbitrary<Fault> = fc
    .record({
      route: fc.constantFrom(...routes),
      worker,
      backwards: fc.boolean(),
      both: fc.boolean(),
      how: fc.constantFrom("drop" as const, "stall" as const),
      atMillis: fc.integer({ min: 1, max: lease }),
      millis: length
    })
    .map(({ atMillis, backwards, both, how, millis, route: [from, to], worker: who }) => {
      const client = from === "w" ? who : from
      return {
        kind: "cut" as const,
        from: backwards ? to : client,
        to: backwards ? client : to,
        both,
        how,
        atMillis,
        millis
      }
    })
  const clock: fc.Arbitrary<Fault> = fc.oneof(
    fc.record({
      kind: fc.constant("clockError" as const),
      node: fc.constantFrom("w1", "w2", "lock-server", "payment-resource", "rail-proxy", "reconciler"),
      offsetMillis: fc.constantFrom(0, 60_000, -60_000, 3_600_000),
      wallDriftPpm: fc.constantFrom(0, 10_000, -10_000),
      monotonicDriftPpm: fc.constantFrom(0, 200, -200, 10_000, -10_000)
    }),
    // A store may be off and a little fast or slow. That its clock jumps by more than the margin is out of the model.
    fc.record({
      kind: fc.constant("clockError" as const),
      node: fc.constantFrom("lockdb", "paydb"),
      offsetMillis: fc.constantFrom(0, 60_000, -60_000),
      wallDriftPpm: fc.constantFrom(0, 200, -200, 10_000, -10_000),
      monotonicDriftPpm: fc.constant(0)
    }),
    fc.record({
      kind: fc.constant("clockStep" as const),
      node: fc.constantFrom("w1", "w2", "lock-server", "rail-proxy", "payment-resource"),
      when: fc.oneof(early(lease), at(fc.constantFrom(...workerPoints))),
      stepMillis: fc.constantFrom(-5_000, 5_000, -60_000, 60_000)
    })
  )
  return {
    hold: pause(worker, at(fc.constantFrom(...workerPoints))),
    leaseEnd,
    // both stopped, so that the first comes back while the second is between its reading and its claim, or its claim and
    // its submit: two stops at random places seldom meet
    leapfrog: fc
      .record({
        swap: fc.boolean(),
        first: fc.constantFrom("submit.before", "claim.before", "post.before"),
        second: fc.constantFrom("claim.before", "submit.before", "acquire.after"),
        firstMillis: times(2.5, 1.75, 3.5),
        secondMillis: times(2.5, 1.1, 1.75, 3.5)
      })
      .map(({ first, firstMillis, second, secondMillis, swap }): FaultPlan => {
        const stop = (node: string, name: string, millis: number): Fault => ({
          kind: "pause",
          node,
          when: { at: "point", name, nth: 1 },
          millis
        })
        const [one, two] = swap ? ["w2", "w1"] : ["w1", "w2"]
        return [stop(one, first, firstMillis), stop(two, second, secondMillis)]
      }),
    pause: pause(fc.constantFrom("w1", "w2", ...servers), behind(40)),
    serverHold: fc
      .record({ where: fc.constantFrom(...serverPoints), nth, millis: length })
      .map(({ millis, nth: number, where: [node, name] }) => ({
        kind: "pause" as const,
        node,
        when: { at: "point" as const, name, nth: number },
        millis
      })),
    kill: kill(fc.constantFrom("w1", "w2", ...servers), fc.oneof(behind(40), early(lease))),
    crashPoint: fc
      .record({ where: fc.constantFrom(...crashPoints), nth: position(2), down: times(0.1, 0.5, 1.1, 2.5) })
      .map(({ down, nth: number, where: [, node, name] }) => ({
        kind: "kill" as const,
        node,
        when: { at: "point" as const, name, nth: number },
        how: "process" as const,
        downMillis: down
      })),
    stopPoint: fc
      .record({ where: fc.constantFrom(...stopPoints), nth: position(1), millis: times(3.5, 2.5, 7) })
      .map(({ millis, nth: number, where: [, node, name] }) => ({
        kind: "pause" as const,
        node,
        when: { at: "point" as const, name, nth: number },
        millis
      })),
    message,
    cut,
    clock,
    lockdbDown: kill(
      fc.constant("lockdb"),
      fc.oneof(
        at(
          fc.constantFrom(
            "lockdb.tryAcquire.served",
            "lockdb.renew.serving",
            "lockdb.heartbeat.served",
            "lockdb.release.served"
          )
        ),
        behind(30),
        early(lease)
      ),
      times(0.1, 0.3, 0.8, 1.5, 3)
    ),
    lockServerDown: fc.oneof(
      kill(fc.constant("lock-server"), fc.oneof(early(60), behind(30)), times(1.5, 3, 5)),
      kill(fc.constant("lockdb"), fc.oneof(early(60), behind(30)), times(1.5, 3, 5))
    ),
    proxyStop: pause(
      fc.constant("rail-proxy"),
      at(fc.constantFrom("rail.intent.after", "rail.send.before"), fc.constant(1)),
      fc.constantFrom(50, 300, 1_500, 7_000, 10_000)
    )
  }
}

/** With empty first, so that a whole family goes away at once. */
const family = (percent: number, fault: fc.Arbitrary<Drawn>, maxLength: number): fc.Arbitrary<ReadonlyArray<Drawn>> =>
  percent >= 100
    ? fc.array(fault, { minLength: 1, maxLength })
    : fc.oneof(
        { withCrossShrink: true },
        { weight: 100 - percent, arbitrary: fc.constant([]) },
        { weight: percent, arbitrary: fc.array(fault, { minLength: 1, maxLength }) }
      )

const plan = (scenario: Scenario, everything: boolean): fc.Arbitrary<FaultPlan> => {
  const arbitraries = arbitrariesOf(scenario)
  const families = (Object.keys(scenario.faults) as ReadonlyArray<Family>).map((name) =>
    family(everything ? 80 : (scenario.faults[name] ?? 0), arbitraries[name], everything ? 2 : 3)
  )
  return fc.tuple(...families).map((plans) => plans.flat(2))
}

const sometimes = (percent: number, first: number, ...others: ReadonlyArray<number>) =>
  percent === 0
    ? fc.constant(first)
    : fc.oneof(
        { withCrossShrink: true },
        { weight: 100 - percent, arbitrary: fc.constant(first) },
        { weight: percent, arbitrary: fc.constantFrom(...others) }
      )

/** Fields that the command line decides. */
export type Fixed = Partial<RunSpec>

export const specOf = (scenario: Scenario, fixed: Fixed = {}): fc.Arbitrary<RunSpec> => {
  /** The least in seven runs of ten. */
  const mostlyLeast = ([min, max]: readonly [number, number]) =>
    min === max
      ? fc.constant(min)
      : fc.oneof(
          { withCrossShrink: true },
          { weight: 7, arbitrary: fc.constant(min) },
          { weight: 3, arbitrary: fc.integer({ min: min + 1, max }) }
        )
  const between = ([min, max]: readonly [number, number]) => fc.integer({ min, max })
  const railFault = fc.record({
    kind: fc.constantFrom(
      "decline" as const,
      "timeoutPaid" as const,
      "timeoutUnpaid" as const,
      "http5xx" as const,
      "reset" as const,
      "unknownStatus" as const,
      "htmlBody" as const
    ),
    paid: fc.boolean()
  })
  return fc
    .record({
      seed: fc.noShrink(fc.integer({ min: 0, max: 0x7fffffff })),
      policy: fc.constantFrom("fifo" as const, "random" as const, "pct" as const, "fifo" as const, "random" as const),
      // small ones find races within a process, and cost two to four times as much
      quantum: fc.constantFrom(0, 30, 4, 1, 0, 0, 0, 0, 0, 30, 4, 30, 0, 0, 30, 30),
      sliceMicrosMax: fc.constantFrom(0, 20, 500),
      jitterMicros: fc.constantFrom(0, 2_000, 30_000),
      scale: longLease(scenario.moods > 0 ? 8 : 0),
      lossPerMille: sometimes(scenario.moods, 0, 5, 20, 60),
      duplicatePerMille: sometimes(scenario.moods, 0, 5, 20, 60),
      latePerMille: sometimes(scenario.moods, 0, 5, 20, 60),
      workers: between(scenario.workers),
      payouts: mostlyLeast(scenario.payouts),
      accounts: fc.integer({ min: 1, max: 2 }),
      funds: sometimes(scenario.poor ?? 0, 4, 1, 0),
      lockServers: mostlyLeast(scenario.lockServers),
      rail: railFaults(scenario.rail, railFault),
      staleHolder: maybe(scenario.stale ?? 0),
      canceller: maybe(scenario.cancelled ?? 0),
      reconcilers: sometimes(scenario.reconcilers ?? 0, 1, 2),
      railLatencyMillis: sometimes(scenario.rail > 0 ? 30 : 0, 0, 100, 400, 750),
      railBlindMillis: sometimes(scenario.rail, 0, 200, 1_500),
      // swarm in three runs of four
      faults: fc.oneof(
        { withCrossShrink: true },
        { weight: 3, arbitrary: plan(scenario, false) },
        { weight: scenario.moods > 0 ? 1 : 0, arbitrary: plan(scenario, true) }
      )
    })
    .map((drawn) => consistent({ ...scenario.base, ...drawn, ...fixed }))
}

const longLease = (percent: number): fc.Arbitrary<RunSpec["scale"]> =>
  fc.oneof(
    { withCrossShrink: true },
    { weight: 100 - percent, arbitrary: fc.constant("short" as const) },
    { weight: percent, arbitrary: fc.constant("longLease" as const) }
  )

const maybe = (percent: number): fc.Arbitrary<boolean> =>
  percent === 0
    ? fc.constant(false)
    : fc.oneof(
        { withCrossShrink: true },
        { weight: 100 - percent, arbitrary: fc.constant(false) },
        { weight: percent, arbitrary: fc.constant(true) }
      )

const railFaults = (percent: number, fault: fc.Arbitrary<RunSpec["rail"][number]>) =>
  percent >= 100
    ? fc.array(fault, { minLength: 1, maxLength: 3 })
    : fc.oneof(
        { withCrossShrink: true },
        { weight: 100 - percent, arbitrary: fc.constant([]) },
        { weight: percent, arbitrary: fc.array(fault, { minLength: 1, maxLength: 2 }) }
      )

const stopsReconciler = (fault: Fault): boolean =>
  fault.kind === "pause" && fault.when.at === "point" && fault.when.name === "resolve.before"

/**
 * What a decline says is true, and what the stub's faults are named for; nothing befalls who is not there; and while a
 * reconciler is stopped there is another.
 */
export const consistent = (spec: RunSpec): RunSpec => ({
  ...spec,
  reconcilers: spec.faults.some(stopsReconciler) ? 2 : spec.reconcilers,
  faults: spec.canceller ? spec.faults : spec.faults.filter((fault) => !("node" in fault) || fault.node !== "operator"),
  rail: spec.rail.map((fault) =>
    fault.kind === "decline" || fault.kind === "timeoutUnpaid"
      ? { ...fault, paid: false }
      : fault.kind === "timeoutPaid"
        ? { ...fault, paid: true }
        : fault
  )
})

export interface Checked {
  /** Until the failure, it included. */
  readonly numRuns: number
  readonly numShrinks: number
  /** The shrunk run, if one failed. */
  readonly failed: RunSpec | undefined
}

/** So many runs of a scenario, drawn from the seed; the first that fails is shrunk. */
export const check = (
  scenario: Scenario,
  fixed: Fixed,
  seed: number,
  runs: number,
  fails: (spec: RunSpec) => boolean
): Checked => {
  const { counterexample, numRuns, numShrinks } = fc.check(
    fc.property(specOf(scenario, fixed), (spec) => !fails(spec)),
    { seed, numRuns: runs, verbose: 0 }
  )
  return { numRuns, numShrinks, failed: counterexample?.[0] }
}
