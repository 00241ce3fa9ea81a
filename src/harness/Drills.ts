/**
 * The nine use cases as they are run on real processes: for each a few runs as plain data, in the simulation's own words
 * (`sim/RunSpec.ts`), so that the same value can be run in virtual time. What a use case is and what it expects is said by
 * `sim/Scenario.ts`; what is here is which faults are dealt to real processes.
 *
 * Real time is not virtual, so two things are read more freely there. A `time` counts from the first grant (0: before anybody
 * works). A stop `until: "lease"` lasts until the lease has run out and a successor is done, at most so long after its end.
 */
import { type RunSpec, simplest } from "../sim/RunSpec.ts"
import { type Scenario, scenarioOf, scenarios } from "../sim/Scenario.ts"
import type { Fault, When } from "../sim/FaultPlan.ts"

/** Participants that only some runs have. */
export type Actor =
  /** One who stays in, one who gives up, one who waits in line. */
  | "visitors"
  /** Takes the lock away from a holder that is stopped (L8). */
  | "operator"
  /** Cancels a payout that a stopped holder is about to submit. */
  | "canceller"
  /** Asks for locks of its own all the time, and holds one: what an outage costs. */
  | "prober"
  /** Looks at the backlog while nothing can be done. */
  | "watcher"
  /** Puts lockdb back to an old copy, and then does what the manual says (`Restorer.ts`). */
  | "restorer"

export interface Drill {
  /** `uc-04 proxy` */
  readonly name: string
  readonly scenario: Scenario
  readonly shows: string
  readonly spec: RunSpec
  /** Situations that must have come about (`Marks`), or the run has proven nothing. */
  readonly promises: ReadonlyArray<string>
  readonly actors: ReadonlyArray<Actor>
  /** On the backend that has somebody to take over. */
  readonly replicated: boolean
  /** The negative control: also run with a fence off, and must then do harm. */
  readonly control: boolean
  /** A payout that FAILED is paid late, which no fence can prevent, and that is found. */
  readonly paysLate: boolean
  /** Most from the end of the last fault until every payout is settled (LIVE-01). */
  readonly boundMillis: number
  /** Of whom the faults befall; undefined: as everybody's. */
  readonly leaseMillis: number | undefined
}

type Fields = Partial<Pick<Drill, "leaseMillis" | "actors" | "replicated" | "control" | "paysLate" | "boundMillis">>

const drill = (
  id: string,
  name: string,
  shows: string,
  spec: Partial<RunSpec>,
  promises: ReadonlyArray<string>,
  fields: Fields = {}
): Drill => ({
  name: name === "" ? id : `${id} ${name}`,
  scenario: scenarioOf(id),
  shows,
  spec: { ...simplest, scenario: id, ...spec },
  promises,
  actors: [],
  replicated: false,
  control: false,
  paysLate: false,
  boundMillis: 120_000,
  leaseMillis: undefined,
  ...fields
})

const point = (name: string, nth = 1): When => ({ at: "point", name, nth })
const time = (millis: number): When => ({ at: "time", millis })
/** Past the lease, and past whoever took over. */
const stop = (node: string, when: When): Fault => ({ kind: "pause", node, when, millis: 6_000, until: "lease" })
/**
 * w1 is stopped past its lease and comes back while w2, which has the lock by then, is stopped too: until w1 has submitted.
 * In virtual time both are lengths.
 */
const overtaken: ReadonlyArray<Fault> = [
  { kind: "pause", node: "w1", when: point("submit.before"), millis: 1_900, until: "overtaken" },
  { kind: "pause", node: "w2", when: point("claim.before"), millis: 900, until: "passed" }
]
const die = (node: string, name: string, downMillis = 300): Fault => ({
  kind: "kill",
  node,
  when: point(name),
  how: "process",
  downMillis
})

/** Who dies where, by the number of the crash point. */
export const crashPoints: ReadonlyArray<readonly [number: string, node: RegExp, point: string]> = [
  ["1", /^w\d/, "acquire.after"],
  ["2", /^w\d/, "claim.before"],
  ["2", /^payment-resource/, "payment.claim.after"],
  ["3", /^w\d/, "claim.after"],
  ["3", /^w\d/, "submit.before"],
  ["4", /^rail-proxy/, "rail.intent.after"],
  ["6", /^rail-proxy/, "rail.send.after"],
  ["7", /^rail-proxy/, "rail.outcome.after"],
  ["8", /^rail-proxy/, "rail.intent.before"],
  ["9", /^w\d/, "submit.after"],
  ["9", /^w\d/, "post.before"],
  ["10", /^w\d/, "fail.before"],
  ["11", /^w\d/, "post.after"],
  ["11", /^payment-resource/, "payment.post.after"],
  ["12", /^w\d/, "ambiguous.before"],
  ["13", /^reconciler/, "resolve.before"],
  ["16", /^w\d/, "seal.after"],
  ["17", /^w\d/, "release.before"]
]

export const crashPointsOf = (node: string, name: string): ReadonlyArray<string> =>
  crashPoints.flatMap(([number, who, where]) => (where === name && who.test(node) ? [number] : []))

export const drills: ReadonlyArray<Drill> = [
  drill("uc-01", "", "a payout goes its way: one token at every hop", { workers: 1, accounts: 2, payouts: 2 }, [
    "posted",
    "lock released"
  ]),
  drill(
    "uc-02",
    "",
    "one stays in, one gives up within its bound, one waits in line and is let in under a higher token",
    { workers: 2, payouts: 1 },
    ["posted", "lock contended", "a visitor was let in", "a visitor gave up"],
    { actors: ["visitors"] }
  ),
  drill(
    "uc-03",
    "stale",
    "W1 is stopped past its lease just before it pays; W2 takes over; W1 wakes and, ignoring that it lost its lock, goes on",
    { staleHolder: true, faults: [stop("w1", point("submit.before"))] },
    ["posted", "lease taken over", "fenced out at resource", "fenced out at rail", "told FENCED_OUT"],
    { control: true }
  ),
  drill(
    "uc-03",
    "before claim",
    "stopped between its check and its claim: the claim is refused",
    { staleHolder: true, faults: [stop("w1", point("claim.before"))] },
    ["posted", "lease taken over", "fenced out at resource", "told FENCED_OUT"]
  ),
  drill(
    "uc-03",
    "before post",
    "stopped between its check and its post: W2 posts what W1 paid, and W1's post is refused",
    { staleHolder: true, faults: [stop("w1", point("post.before"))] },
    [
      "posted",
      "lease taken over",
      "recovered a claimed payout",
      "fenced out at resource",
      "told FENCED_OUT",
      "crash point 9b"
    ]
  ),
  drill(
    "uc-03",
    "told",
    "stopped before its check: the check tells it that its lock is lost, and it sends nothing more",
    { faults: [stop("w1", point("acquire.after"))] },
    ["posted", "lease taken over", "told LOCK_LOST"]
  ),
  drill(
    "uc-03b",
    "short",
    "the proxy is stopped before its last look at the clock: it sends nothing more",
    {
      proxies: 2,
      faults: [{ kind: "pause", node: "rail-proxy", when: point("rail.intent.after"), millis: 12_000 }]
    },
    ["became ambiguous", "resolved by the reconciler", "failed", "nothing was sent", "crash point 4b"]
  ),
  drill(
    "uc-03b",
    "long",
    "the proxy is stopped behind its last look at the clock: it pays what has FAILED meanwhile, which is found and paged",
    {
      proxies: 2,
      faults: [{ kind: "pause", node: "rail-proxy", when: point("rail.send.before"), millis: 12_000 }]
    },
    ["became ambiguous", "failed", "a late execution was found"],
    { paysLate: true }
  ),
  drill(
    "uc-04",
    "workers",
    "workers die at each step of a payout: their sessions free the locks, whoever comes finishes by state and record",
    {
      workers: 4,
      accounts: 8,
      payouts: 8,
      faults: [
        "acquire.after",
        "claim.before",
        "claim.after",
        "submit.before",
        "submit.after",
        "post.before",
        "post.after",
        "release.before"
      ].map((name, i) => die(`w${(i % 4) + 1}`, name))
    },
    ["posted", "recovered a claimed payout", ...["1", "2", "3", "9", "11", "17"].map((n) => `crash point ${n}`)]
  ),
  drill(
    "uc-04",
    "bad news",
    "a worker dies before it has said that the rail declined, and before it has said that the rail was silent",
    {
      workers: 2,
      accounts: 2,
      payouts: 2,
      rail: [
        { kind: "decline", paid: false },
        { kind: "timeoutPaid", paid: true }
      ],
      faults: [die("w1", "fail.before"), die("w1", "ambiguous.before")]
    },
    ["failed", "the rail declined", "the rail was silent", "crash point 10", "crash point 12"]
  ),
  drill(
    "uc-04",
    "in the call",
    "a worker dies while the rail is paying: the successor waits for the record and posts it",
    {
      railLatencyMillis: 2_000,
      faults: [{ kind: "kill", node: "w1", when: time(700), how: "process", downMillis: null }]
    },
    ["posted", "recovered a claimed payout", "crash point 5"]
  ),
  drill(
    "uc-04",
    "proxy",
    "the proxy dies before its commit is known, before it sends, after the rail has paid, and after it has recorded that",
    {
      workers: 1,
      accounts: 4,
      payouts: 4,
      faults: ["rail.intent.before", "rail.intent.after", "rail.send.after", "rail.outcome.after"].map((name) =>
        die("rail-proxy", name)
      )
    },
    ["became ambiguous", "resolved by the reconciler", ...["4", "6", "7", "8"].map((n) => `crash point ${n}`)]
  ),
  drill(
    "uc-04",
    "resource",
    "payment-resource dies after the commit of a claim and of a post, before anybody has heard of it",
    {
      workers: 1,
      accounts: 2,
      payouts: 2,
      faults: [die("payment-resource", "payment.claim.after"), die("payment-resource", "payment.post.after")]
    },
    ["posted", "crash point 2", "crash point 11"]
  ),
  drill(
    "uc-04",
    "reconciler",
    "the reconciler dies between the evidence and the resolution",
    {
      workers: 1,
      rail: [{ kind: "timeoutPaid", paid: true }],
      faults: [die("reconciler", "resolve.before")]
    },
    ["became ambiguous", "resolved by the reconciler", "posted", "crash point 13"]
  ),
  drill(
    "uc-04",
    "overtaken",
    "a worker comes back and submits after its successor got the lock and before that one's claim: the successor posts what it finds",
    { staleHolder: true, faults: overtaken },
    ["posted", "lease taken over", "recovered a claimed payout", "crash point 3b"]
  ),
  drill(
    "uc-04",
    "no money",
    "a worker dies after it has sealed a payout that nobody can pay: its successor fails it",
    { funds: 0, faults: [die("w1", "seal.after")] },
    ["failed", "crash point 16"]
  ),
  drill(
    "uc-04",
    "cancelled",
    "an operator cancels a payout whose worker is stopped before its submit: the seal wins, the submit is refused",
    { workers: 1, staleHolder: true, canceller: true, faults: [stop("w1", point("submit.before"))] },
    ["failed", "fenced out at rail", "told FENCED_OUT", "crash point 15"],
    { actors: ["canceller"] }
  ),
  drill(
    "uc-04",
    "two reconcilers",
    "a resolution arrives late, when another reconciler has resolved under a newer token: it is refused",
    {
      workers: 1,
      reconcilers: 2,
      rail: [{ kind: "timeoutPaid", paid: true }],
      faults: [
        {
          kind: "delay",
          from: "reconciler",
          to: "payment-resource",
          label: "pay.resolve",
          leg: "request",
          nth: 1,
          millis: 6_000
        }
      ]
    },
    ["became ambiguous", "resolved by the reconciler", "posted", "crash point 14"]
  ),
  drill(
    "uc-05",
    "",
    "the rail does not answer, once having paid and once not: nobody submits again, and the rail's book decides",
    {
      accounts: 2,
      payouts: 2,
      rail: [
        { kind: "timeoutPaid", paid: true },
        { kind: "timeoutUnpaid", paid: false }
      ]
    },
    ["became ambiguous", "resolved by the reconciler", "the rail was silent", "posted", "failed"]
  ),
  drill(
    "uc-06",
    "",
    "an operator takes the lock from a stuck holder: its successor gets in at once, and what the holder still sends is refused",
    { staleHolder: true, faults: [{ kind: "pause", node: "w1", when: point("submit.before"), millis: 4_000 }] },
    ["posted", "lock revoked", "fenced out at rail", "told FENCED_OUT", "taken over before its lease had ended"],
    { actors: ["operator"], leaseMillis: 30_000 }
  ),
  drill(
    "uc-07",
    "",
    "the lock backend loses its leader while locks are held: nothing that was granted is forgotten, no token comes twice",
    {
      accounts: 2,
      payouts: 4,
      railLatencyMillis: 1_500,
      faults: [{ kind: "kill", node: "lockdb", when: time(400), how: "machine", downMillis: 0 }]
    },
    ["posted", "lock backend was down while a lock was held", "an acknowledged grant outlived the failover"],
    { actors: ["prober"], replicated: true }
  ),
  drill(
    "uc-08",
    "",
    "the lock backend is away: no grant, nothing is done, the backlog grows older; when it is back everything is done",
    {
      accounts: 3,
      payouts: 3,
      faults: [{ kind: "kill", node: "lockdb", when: time(0), how: "machine", downMillis: 30_000 }]
    },
    ["posted", "no grant while the service was away", "the backlog grew older"],
    { actors: ["watcher"] }
  )
]

/** Further rows of the failure catalogue. */
export const variants: ReadonlyArray<Drill> = [
  drill(
    "uc-03",
    "cut off",
    "a worker can not reach the lock service: its own deadline tells it, and its successor takes over",
    {
      railLatencyMillis: 3_500,
      faults: [{ kind: "cut", from: "w1", to: "lock-server", both: true, how: "stall", atMillis: 100, millis: 6_000 }]
    },
    ["posted", "told LOCK_LOST", "lease taken over"]
  ),
  drill(
    "uc-03",
    "clocks",
    "the workers' clocks are an hour apart: nothing depends on them",
    {
      accounts: 2,
      payouts: 2,
      staleHolder: true,
      faults: [
        { kind: "clockError", node: "w1", offsetMillis: -3_600_000, wallDriftPpm: 0, monotonicDriftPpm: 0 },
        { kind: "clockError", node: "w2", offsetMillis: 3_600_000, wallDriftPpm: 0, monotonicDriftPpm: 0 },
        stop("w1", point("post.before"))
      ]
    },
    ["posted", "lease taken over", "fenced out at resource"]
  ),
  drill(
    "uc-05",
    "duplicate ack",
    "the rail acknowledges with the reference of another payment: that is no acknowledgement",
    {
      accounts: 2,
      payouts: 2,
      workers: 1,
      rail: [
        { kind: "duplicateAck", paid: false },
        { kind: "duplicateAck", paid: true }
      ]
    },
    ["became ambiguous", "resolved by the reconciler"]
  ),
  drill(
    "uc-03",
    "throttled",
    "a worker gets a quarter of its time: late, and no more than that",
    {
      accounts: 2,
      payouts: 2,
      railLatencyMillis: 600,
      faults: Array.from({ length: 20 }, (_, i): Fault => ({
        kind: "pause",
        node: "w1",
        when: time(1 + i * 160),
        millis: 120
      }))
    },
    ["posted"]
  ),
  drill(
    "uc-05",
    "lost answer",
    "the answer to a submit is lost on the way back: it is not sent again, the record is read",
    {
      faults: [{ kind: "drop", from: "w1", to: "rail-proxy", label: "rail.submit", leg: "answer", nth: 1, millis: 0 }],
      workers: 1
    },
    ["posted"]
  ),
  drill(
    "uc-08",
    "service",
    "the lock service itself is killed while a lock is held, and comes back",
    {
      railLatencyMillis: 1_000,
      accounts: 2,
      payouts: 2,
      faults: [{ kind: "kill", node: "lock-server", when: time(300), how: "process", downMillis: 2_000 }]
    },
    ["posted"]
  ),
  drill(
    "uc-08",
    "restored",
    "what comes back is the lock backend of an old copy: its tokens were spent before, so nothing is done until they are raised",
    { accounts: 2, payouts: 2 },
    [
      "tokens went back",
      "told FENCED_OUT",
      "told token regression",
      "payouts waited",
      "the floor was raised",
      "posted"
    ],
    { actors: ["restorer"] }
  )
]

/** What `soak` runs: its faults are drawn. */
export const soakDrill: Drill = drill(
  "uc-03",
  "soak",
  "many workers and payouts, and faults all the time; then everything heals and is settled",
  {},
  []
)

const nonEmpty = <A>(items: ReadonlyArray<A>) => (items.length === 0 ? undefined : items)

export const drillsOf = (id: string): ReadonlyArray<Drill> | undefined =>
  id === "all"
    ? drills
    : id === "variants"
      ? variants
      : scenarios.some((scenario) => scenario.id === id)
        ? drills.filter(({ scenario }) => scenario.id === id)
        : // One of them by its own name.
          nonEmpty([...drills, ...variants].filter(({ name }) => name === id))
