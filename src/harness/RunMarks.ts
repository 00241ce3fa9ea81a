/** Which situations a real run has come to, in the words of the simulation (`sim/Marks.ts`). */
import { type AccountId, lockKeyOf } from "../core/payment/Payout.ts"
import type { Marks } from "../sim/Marks.ts"
import type { Observed } from "./DrillRun.ts"
import type { LogRecord } from "./Processes.ts"

const isAway = (code: string | null, status: number | null) =>
  status === null || code === "BACKEND_UNAVAILABLE" || code === "NOT_LEADER"

export const markRun = (marks: Marks, { calls, history, logs, spans }: Observed): void => {
  const states = new Map(history.payouts.map(({ clientReference, state }) => [clientReference, state]))
  marks.ofPayouts(history)
  const paid = new Set(history.rail.map(({ clientReference }) => clientReference))
  const voided = new Set<unknown>()
  for (const { clientReference, outcome, payoutId } of history.submissions) {
    if (outcome === "VOIDED") voided.add(payoutId)
    if (states.get(clientReference) === "FAILED" && outcome !== "VOIDED" && !paid.has(clientReference)) {
      marks.hit("nothing was sent")
    }
  }
  for (const { accepted, point } of history.fences) if (!accepted) marks.hit(`fenced out at ${point}`)
  for (const { kind } of history.lock) {
    if (kind === "released") marks.hit("lock released")
    if (kind === "session_ended") marks.hit("session ended")
  }
  for (const { code, label } of calls) {
    if (label === "lock.acquire" && code === "LOCK_CONTENDED") marks.hit("lock contended")
    if (code === "SESSION_EXPIRED") marks.hit("session expired")
    if (label === "pay.resolve" && (code === "FENCED_OUT" || code === "ILLEGAL_TRANSITION")) marks.hit("crash point 14")
  }
  markTakeovers(marks, history.lock, calls)
  markOvertaking(marks, { calls, history })

  for (const [name, records] of Object.entries(logs)) {
    for (const record of records) {
      if (record["event"] === "lock_lost" && /^w\d/.test(name)) marks.hit("told LOCK_LOST")
      if (isHop(record) && record["outcome"] === "FENCED_OUT") {
        marks.hit("told FENCED_OUT")
        if (record["op"] === "post") marks.hit("crash point 9b")
        if (record["op"] === "submit" && voided.has(record["payoutId"])) marks.hit("crash point 15")
      }
      if (record["event"] === "late_execution" && name === "reconciler") marks.hit("a late execution was found")
    }
  }
  for (const { from, kind, lane, to } of spans) {
    if (kind !== "down" || (lane !== "lockdb" && lane !== "lock-server")) continue
    const within = calls.filter(({ called, label }) => label === "lock.acquire" && called > from && called < to - 100)
    const refused = within.some(({ code, status }) => isAway(code, status))
    // One that was on its way at either end may be answered well.
    const granted = within.some(({ granted: token, returned }) => token !== null && returned < to - 100)
    const opened = calls.some(
      ({ called, code, label, status }) =>
        label === "lock.openSession" && called > from && called < to && isAway(code, status)
    )
    if ((refused || opened) && !granted) marks.hit("no grant while the service was away")
  }
}

/** A key that was granted again without having been released. */
const markTakeovers = (marks: Marks, lock: Observed["history"]["lock"], calls: Observed["calls"]): void => {
  const last = new Map<string, { readonly token: bigint; readonly at: number; released: boolean }>()
  for (const { at, key, kind, token } of lock) {
    if (key === null || token === null) continue
    const before = last.get(key)
    if (kind === "released" && before?.token === token) before.released = true
    if (kind !== "granted") continue
    if (before !== undefined && !before.released) {
      marks.hit("lease taken over")
      const end = Math.max(0, ...calls.flatMap((call) => (call.granted === before.token ? [call.expiresAt ?? 0] : [])))
      if (at < end) marks.hit("taken over before its lease had ended")
    }
    last.set(key, { token, at, released: false })
  }
}

/** A submit that was accepted from a holder whose successor had been granted the lock and had not claimed yet. */
const markOvertaking = (marks: Marks, { calls, history }: Pick<Observed, "calls" | "history">): void => {
  for (const { accountId, token } of history.submissions) {
    const sent = calls.find((call) => call.label === "rail.submit" && call.token === token && call.status === 200)
    if (sent === undefined) continue
    const isLater = (call: Observed["calls"][number]) =>
      call.label === "lock.acquire" &&
      call.key === lockKeyOf(accountId as AccountId) &&
      (call.granted ?? 0n) > token &&
      call.returned < sent.called &&
      !calls.some(
        ({ called, label, token: of }) => label === "pay.claim" && of === call.granted && called < sent.returned
      )
    if (calls.some(isLater)) marks.hit("crash point 3b")
  }
}

const isHop = (record: LogRecord) => record["event"] === "payout_hop" || record["event"] === "stale_hop"
