/**
 * The verdict on a real run: the invariants on what the databases and the rail know, the two checkers on what the lock
 * service was asked and answered, and belief within truth on what the workers thought.
 */
import type { FencingSwitches } from "../core/Fencing.ts"
import { emptyHistory } from "../core/History.ts"
import { everyPayoutTerminal, judge } from "../core/Invariants.ts"
import { checkLinearizable } from "../core/Linearizability.ts"
import type { LockCall, LockOp } from "../core/LockHistory.ts"
import { checkTokenOrder } from "../core/TokenOrder.ts"
import { harmName, harmOf, type Verdict } from "../sim/Judge.ts"
import type { RunSpec } from "../sim/RunSpec.ts"
import type { Observed } from "./DrillRun.ts"
import type { Call } from "./HttpTap.ts"
import { lab } from "./ProcessWorld.ts"

export interface Judgeable extends Observed {
  readonly spec: RunSpec
  readonly paysLate: boolean
  readonly settled: boolean
  readonly bound: number
}

export const judgeRun = (run: Judgeable): ReadonlyArray<Verdict> => {
  const { history } = run
  const ops = lockOps(run.calls)
  const lives = livesOf(run)
  const linearizable = lives.map((isOf) => checkLinearizable(ops.filter(({ called }) => isOf(called))))
  return [
    ...[
      ...judge({ ...history, lock: [] }),
      ...lives.flatMap((isOf) => judge({ ...emptyHistory, lock: history.lock.filter(({ at }) => isOf(at)) }))
    ]
      .map(({ detail, invariant, subject }): Verdict => ({ check: invariant, subject, detail }))
      .filter((verdict) => !(run.paysLate && foundLate(run, verdict))),
    ...(run.settled
      ? []
      : everyPayoutTerminal(history).map(({ detail, subject }): Verdict => ({
          check: "LIVE-01",
          subject,
          detail: `${detail} ${run.bound / 1_000} s after the last fault`
        }))),
    ...lives
      .flatMap((isOf) => checkTokenOrder(ops.filter(({ called }) => isOf(called))))
      .map(({ detail, key }): Verdict => ({ check: "TOKEN-ORDER", subject: key, detail })),
    ...grantedTwice(run, ops),
    ...linearizable
      .flatMap(({ violations }) => violations)
      .map(({ detail, key }): Verdict => ({ check: "LINEARIZABLE", subject: key, detail })),
    ...(linearizable.some(({ verdict }) => verdict === "unknown")
      ? [{ check: "LINEARIZABLE", subject: "lock", detail: "the search was given up: nothing is known" }]
      : []),
    ...beliefs(run),
    ...usedAfterLoss(run),
    ...defects(run)
  ]
}

/** What a run with a fence off must show, and nothing else: exactly the harm of its row of the matrix. */
export const isHarmOf = (verdicts: ReadonlyArray<Verdict>, switches: FencingSwitches): boolean => {
  const { may, must } = harmOf(switches)
  const names = verdicts.map(harmName)
  return must.every((name) => names.includes(name)) && names.every((name) => may.includes(name))
}

/** The one hole: known to the reconciler, which has paged somebody. */
const foundLate = ({ history, logs }: Judgeable, { check, detail, subject }: Verdict): boolean =>
  check === "INV-06" &&
  detail.startsWith("FAILED") &&
  (logs["reconciler"] ?? []).some((record) => record["event"] === "late_execution" && record["payoutId"] === subject) &&
  history.rail.length <= history.payouts.length

// -----------------------------------------------------------------------------
// the lock history
// -----------------------------------------------------------------------------

/**
 * A backend that was put back to a copy has two lives, and each is a history of its own that must be right in itself:
 *
 *     copy ───────── a ───────── put back          the first:  all up to "put back"
 *       └─────────── b ──────────────────────>     the second: all up to "copy", and b
 *
 * That a token of b is not above one of a, and that a key is granted in b whose lease of a still runs, is what was done to
 * the backend: nothing else is excused, and what the fences make of it is judged over the whole run. No lock service runs
 * while the backend is put back, so no call belongs to both.
 */
const livesOf = ({ spans }: Judgeable): ReadonlyArray<(at: number) => boolean> => {
  const taken = spans.find(({ kind }) => kind === "forgotten")
  if (taken === undefined) return [() => true]
  const { from, to } = taken
  return [(at) => at < to, (at) => at < from || at >= to]
}

/** Once somebody has seen to it, every token is above those of the first life, too. */
const grantedTwice = ({ spans }: Judgeable, ops: ReadonlyArray<LockOp>): ReadonlyArray<Verdict> => {
  const rewound = spans.find(({ kind }) => kind === "rewound")
  if (rewound === undefined) return []
  const highest = new Map<string, bigint>()
  const grants = ops.filter(({ call, granted }) => call === "acquire" && granted !== null)
  for (const { called, granted, key } of grants) {
    const before = highest.get(key ?? "") ?? 0n
    if (called < rewound.from && granted !== null && granted > before) highest.set(key ?? "", granted)
  }
  return grants.flatMap(({ called, granted, key }): ReadonlyArray<Verdict> => {
    const before = highest.get(key ?? "")
    return called < rewound.to || granted === null || before === undefined || granted > before
      ? []
      : [
          {
            check: "TOKEN-ORDER",
            subject: key ?? "",
            detail: `token ${granted} was granted after ${before}, although the floor had been raised`
          }
        ]
  })
}

const callOf: Readonly<Record<string, LockCall>> = {
  "lock.openSession": "open",
  "lock.heartbeat": "heartbeat",
  "lock.closeSession": "close",
  "lock.acquire": "acquire",
  "lock.renew": "renew",
  "lock.release": "release",
  "lock.revoke": "revoke"
}

const answerOf = ({ code, status }: Call): LockOp["answer"] | undefined => {
  if (status === null) return "unknown"
  if (status < 300) return "ok"
  switch (code) {
    case "LOCK_CONTENDED":
    case "CONTENTION_EXCEEDED":
      return "held"
    case "LOCK_LOST":
    case "SESSION_EXPIRED":
    case "SESSION_UNKNOWN":
      return "lost"
    // Refused by what it says, before anything was asked of the backend.
    case "VALIDATION_FAILED":
    case "INVALID_TOKEN":
    case "LOCK_NOT_FOUND":
    case "FENCED_OUT":
      return undefined
    default:
      return "unknown"
  }
}

/** The calls at the lock service's door as the checkers read them. */
export const lockOps = (calls: ReadonlyArray<Call>): ReadonlyArray<LockOp> => {
  const waitedFor = new Set(calls.flatMap(({ key, waitMillis }) => (waitMillis > 0 && key !== null ? [key] : [])))
  return calls.flatMap((one): ReadonlyArray<LockOp> => {
    const call = callOf[one.label]
    const answer = answerOf(one)
    if (call === undefined || answer === undefined) return []
    // Who does not wait may not overtake those who do: "held" then says nothing of a holder.
    if (answer === "held" && waitedFor.has(one.key ?? "")) return []
    return [
      {
        call,
        client: one.owner ?? one.from,
        key: one.key,
        sessionId: one.sessionId,
        token: one.token,
        requestId: one.requestId,
        called: one.called,
        returned: answer === "unknown" ? Infinity : one.returned,
        answer,
        granted: one.granted,
        // The backend counts whole milliseconds, and what was asked for when nothing was answered.
        ttlMillis: Math.max(0, (one.ttlMillis === 0 ? lab.ttlMillis : one.ttlMillis) - 2)
      }
    ]
  })
}

// -----------------------------------------------------------------------------
// belief within truth
// -----------------------------------------------------------------------------

/** An answer that was lost may have extended what nobody was told of. */
const reach = (call: Call): number =>
  call.expiresAt ??
  (call.status === null || (call.status >= 500 && call.code !== null) ? call.called + 4_000 + lab.ttlMillis : 0)

/**
 * Whenever a worker's check let it go on, by the backend's clock neither its lease nor its session had ended. All clocks
 * here are one machine's; a clock that a fault has set wrong is put right.
 *
 * A stop from outside may come between the check and the line that tells of it; so a line right behind such a stop counts
 * as if it had been written at its beginning. A stop at a fault point is behind the line.
 */
const beliefs = (run: Judgeable): ReadonlyArray<Verdict> => {
  const { calls, logs, spans, spec } = run
  const leases = new Map<string, number>()
  const sessionOf = new Map<string, string>()
  const sessions = new Map<string, number>()
  const later = (map: Map<string, number>, name: string, until: number) =>
    map.set(name, Math.max(map.get(name) ?? 0, until))
  for (const call of calls) {
    const token = call.granted ?? call.token
    if (/^lock\.(acquire|renew)$/.test(call.label) && token !== null) {
      later(leases, String(token), reach(call))
      if (call.label === "lock.acquire" && call.sessionId !== null) sessionOf.set(String(token), call.sessionId)
    }
    if (/^lock\.(openSession|heartbeat)$/.test(call.label) && call.sessionId !== null) {
      later(sessions, call.sessionId, reach(call))
    }
  }
  const stale = staleTokens(run)
  const found: Array<Verdict> = []
  for (const [name, records] of Object.entries(logs)) {
    if (!/^(w\d+|reconciler)/.test(name)) continue
    const skew = spec.faults.reduce(
      (sum, fault) => (fault.kind === "clockError" && fault.node === name ? sum + fault.offsetMillis : sum),
      0
    )
    const stops = spans.filter(({ kind, lane, text }) => lane === name && kind === "pause" && !text.includes(" at "))
    for (const record of records) {
      const token = record["fencingToken"]
      if (record["event"] !== "fault_point" || typeof token !== "string" || stale.has(`${name} ${token}`)) continue
      if (!/^(claim|submit|seal|post|fail|ambiguous|lookup|resolve)\.before$/.test(String(record["name"]))) continue
      const written = Date.parse(record.timestamp) - skew
      const behind = stops.find(({ from, to }) => written >= from && written <= to + 50)
      const at = behind === undefined ? written : Math.min(written, behind.from)
      const lease = leases.get(token)
      const session = sessions.get(sessionOf.get(token) ?? "")
      const truth = Math.min(lease ?? 0, session ?? Infinity)
      if (at > truth) {
        found.push({
          check: "BELIEF",
          subject: name,
          detail: `its check before ${String(record["name"]).replace(".before", "")} went well under token ${token} ${Math.round(at - truth)} ms after the end of its ${lease === truth ? "lease" : "session"}`
        })
      }
    }
  }
  return found
}

/**
 * Under which tokens an experiment's worker went on although it knew better, by `worker token`. A worker says so when it
 * starts; one that was taken its lock by an operator does not even know that it is lost.
 */
const staleTokens = ({ logs, spec }: Judgeable): ReadonlySet<string> => {
  const found = new Set<string>()
  for (const [name, records] of Object.entries(logs)) {
    let announced = false
    let stale = spec.staleHolder && name === "w1"
    for (const record of records) {
      if (record["event"] === "experiment" && record["setting"] === "payout.executor.stale-holder") announced = true
      if (record["event"] === "listening" && !(spec.staleHolder && name === "w1")) {
        stale = announced
        announced = false
      }
      const token = record["fencingToken"] ?? record["token"]
      const ignored = (record["event"] === "lock_lost" && record["ignored"] === true) || record["event"] === "stale_hop"
      if ((stale || ignored) && typeof token === "string") found.add(`${name} ${token}`)
    }
  }
  return found
}

/** Who was told that it is fenced out sends nothing more under that token. */
const usedAfterLoss = (run: Judgeable): ReadonlyArray<Verdict> => {
  const { calls } = run
  const stale = staleTokens(run)
  const told = new Map<string, number>()
  const found: Array<Verdict> = []
  for (const { code, from, returned, token } of calls) {
    if (code === "FENCED_OUT" && token !== null && !stale.has(`${from} ${token}`)) {
      const name = `${from} ${token}`
      told.set(name, Math.min(told.get(name) ?? Infinity, returned))
    }
  }
  for (const { called, from, label, token } of calls) {
    const since = told.get(`${from} ${token}`)
    if (since === undefined || called <= since || !/^(pay|rail)\./.test(label)) continue
    found.push({
      check: "FENCED-OUT-RETRIED",
      subject: from,
      detail: `sends ${label} under ${token} after it was told FENCED_OUT`
    })
  }
  return found
}

/** What no run may show, whatever befalls it: a second submission was tried, or a program met a bug of its own. */
const defects = ({ logs, spec }: Judgeable): ReadonlyArray<Verdict> =>
  Object.entries(logs).flatMap(([name, records]) =>
    records.flatMap((record): ReadonlyArray<Verdict> => {
      if (record["event"] === "rail_duplicate_attempted" && spec.railFencing && spec.paymentFencing) {
        return [{ check: "DUPLICATE-ATTEMPTED", subject: String(record["payoutId"]), detail: record.message }]
      }
      return record.level === "FATAL" || (record.level === "ERROR" && / died$| failed$/.test(record.message))
        ? [
            {
              check: "DEFECT",
              subject: name,
              detail: `${record.message} ${String(record["cause"] ?? "").slice(0, 300)}`
            }
          ]
        : []
    })
  )
