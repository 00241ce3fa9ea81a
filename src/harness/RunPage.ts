/** A real run as a timeline (`TimelinePage.ts`): what passed between the participants, and what their logs say of it. */
import type { Verdict } from "../sim/Judge.ts"
import type { RunSpec } from "../sim/RunSpec.ts"
import type { Observed } from "./DrillRun.ts"
import type { Call } from "./HttpTap.ts"
import { lab } from "./ProcessWorld.ts"
import type { Arrow, Bar, Mark, TimelineRun } from "./TimelinePage.ts"

export interface Shown extends Observed {
  readonly name: string
  readonly backend: string
  readonly spec: RunSpec
  readonly verdicts: ReadonlyArray<Verdict>
  readonly faults: ReadonlyArray<string>
  readonly end: string
  readonly replay: ReadonlyArray<string>
  readonly facts: ReadonlyArray<readonly [name: string, value: string]>
}

/** What a reader follows; polls, reads and heartbeats are left out. */
const told =
  /^(lock\.(acquire|release|revoke)|pay\.(claim|post|fail|ambiguous|resolve)|rail\.(submit|seal|pay|lookup))$/
const verb = (label: string) => label.slice(label.indexOf(".") + 1)
const isRefusal = (code: string | null) => code === "FENCED_OUT" || code === "LOCK_LOST"
/** A page of thousands of hops is no picture. */
const MOST_CALLS = 500

const order = [
  /^w\d/,
  /^v\d/,
  /^(operator|prober)/,
  /^reconciler/,
  /^lock-server/,
  /^lockdb/,
  /^payment/,
  /^rail-proxy/,
  /^rail$/
]
const rankOf = (lane: string) => order.findIndex((pattern) => pattern.test(lane))

export const runPage = (run: Shown): TimelineRun => {
  const { history, logs, spans, spec } = run
  const interesting = run.calls.filter(
    ({ code, label }) => told.test(label) && !(label === "lock.acquire" && code === "LOCK_CONTENDED")
  )
  const calls = interesting.slice(0, MOST_CALLS)
  const start = Math.min(...calls.map(({ called }) => called), ...spans.map(({ from }) => from)) - 20
  const lastAt = Math.max(
    start,
    ...calls.flatMap(({ called, returned }) => (returned === Infinity ? [called] : [called, returned]))
  )
  const at = (millis: number) => Math.round((Math.min(millis, lastAt + 300) - start) * 1_000)

  const payoutOf = new Map(history.payouts.map(({ clientReference, payoutId }) => [clientReference, payoutId]))
  /** The rail takes no token: it is that of the submission which the proxy was busy with. */
  const tokenOf = (call: Call): string | null => {
    if (call.token !== null || call.granted !== null) return String(call.token ?? call.granted)
    if (call.label !== "rail.pay") return null
    const payoutId = payoutOf.get(call.reference ?? "")
    const submit = run.calls.findLast(
      (one) =>
        one.label === "rail.submit" && one.to === call.from && one.payoutId === payoutId && one.called <= call.called
    )
    return submit?.token === undefined || submit.token === null ? null : String(submit.token)
  }

  const { arrows, brokenAt, fences, marks } = hops(calls, tokenOf, at)
  const bars: Array<Bar> = [...leases(run, at), ...beliefs(run, at)]
  for (const { from, kind, lane, peer, text, to } of spans) {
    if (kind !== "pause" && kind !== "down" && kind !== "cut") continue
    const what = kind === "pause" ? "stopped" : kind === "down" ? "down" : `cut off from ${peer}`
    bars.push({
      from: at(from),
      to: at(to),
      lane,
      kind,
      token: null,
      text: peer === undefined ? text : `${text}, to ${peer}`,
      label: `${what} ${((Math.min(to, lastAt) - from) / 1_000).toFixed(1)} s`
    })
  }
  for (const [name, records] of Object.entries(logs)) {
    const seen = new Set<string>()
    for (const record of records) {
      const token = typeof record["fencingToken"] === "string" ? record["fencingToken"] : null
      if (record["event"] === "lock_lost" && /^w\d/.test(name) && !seen.has(String(token))) {
        seen.add(String(token))
        marks.push({
          at: at(Date.parse(record.timestamp) - skewOf(spec, name)),
          lane: name,
          kind: "told",
          token,
          text: `finds that it has lost its lock${record["ignored"] === true ? ", and goes on all the same" : ""}`,
          label: record["ignored"] === true ? "lock lost, ignored" : "lock lost"
        })
      }
      if (record["event"] === "late_execution") {
        marks.push({
          at: at(Date.parse(record.timestamp)),
          lane: name,
          kind: "wrong",
          token: null,
          text: "finds that the rail has paid what had failed: somebody is paged",
          label: "late execution found"
        })
      }
    }
  }
  for (const { from, kind, lane, text, to } of spans) {
    if (kind === "pause") {
      marks.push({ at: at(from), lane, kind: "stop", token: null, text: `is ${text}` })
      if (to < Infinity) {
        marks.push({
          at: at(to),
          lane,
          kind: "stop",
          token: null,
          text: `goes on after ${((to - from) / 1_000).toFixed(2)} s`
        })
      }
    }
    if (kind === "down") marks.push({ at: at(from), lane, kind: "stop", token: null, text: `is gone: ${text}` })
    if (kind === "rewound") {
      marks.push({ at: at(from), lane, kind: "stop", token: null, text: `is ${text}: its tokens go back` })
      marks.push({ at: at(to), lane, kind: "stop", token: null, text: "has tokens above the floor again" })
    }
  }
  const lanes = [
    ...new Set([
      ...marks.map(({ lane }) => lane),
      ...bars.map(({ lane }) => lane),
      ...arrows.flatMap(({ fromLane, toLane }) => [fromLane, toLane])
    ])
  ].toSorted((a, b) => rankOf(a) - rankOf(b) || (a < b ? -1 : 1))
  marks.sort((a, b) => a.at - b.at)
  const left = interesting.length - calls.length
  return {
    title: `ledger fence ${spec.paymentFencing ? "on" : "OFF"}, rail fence ${spec.railFencing ? "on" : "OFF"}`,
    facts: [["run", run.name], ["backend", run.backend], ...run.facts],
    faults: run.faults,
    verdicts: run.verdicts.map(({ check, detail, subject }) => `${check} ${subject}: ${detail}`),
    end: run.end,
    replay: run.replay,
    lanes,
    marks,
    bars,
    arrows,
    fences,
    brokenAt,
    story: [
      ...marks.map(({ at: when, lane, text }) => `${(when / 1e6).toFixed(3)} s  ${lane} ${text}`),
      ...(left > 0 ? [`.. and ${left} calls more`] : [])
    ],
    scale: 8_000,
    gap: 350_000
  }
}

const skewOf = (spec: RunSpec, name: string) =>
  spec.faults.reduce(
    (sum, fault) => (fault.kind === "clockError" && fault.node === name ? sum + fault.offsetMillis : sum),
    0
  )

/** The calls as arrows, and what they did where they arrived. */
const hops = (calls: ReadonlyArray<Call>, tokenOf: (call: Call) => string | null, at: (millis: number) => number) => {
  const arrows: Array<Arrow> = []
  const marks: Array<Mark> = []
  const fences: Array<{ readonly at: number; readonly lane: string; readonly token: string }> = []
  const paid = new Set<string>()
  const posted = new Set<string>()
  let brokenAt: number | null = null
  for (const call of calls) {
    const { called, code, from, label, returned, status, to } = call
    const token = tokenOf(call)
    const under = token === null ? "" : ` under token ${token}`
    const op = verb(label)
    const answered = status !== null
    const refused = isRefusal(code)
    const ok = answered && status < 300
    // A submit is decided long before it is answered: its mark stands where it arrives.
    const arrival =
      label === "rail.submit" || label === "rail.pay" ? Math.min(called + 3, returned) : Math.min(returned, called + 40)
    arrows.push({
      at: at(called),
      to: at(arrival),
      fromLane: from,
      toLane: to,
      text: `${op}${under} at ${to}: ${answered ? (ok ? "done" : (code ?? String(status))) : "no answer"}`,
      token,
      fate: !answered ? "lost" : refused ? "refused" : "ok",
      label: label === "rail.pay" ? "pay" : `${op}${token === null ? "" : ` ${token}`}`
    })
    const mark = (kind: string, text: string, words?: string, when = arrival) =>
      marks.push({ at: at(when), lane: to, kind, token, text, ...(words === undefined ? {} : { label: words }) })
    if (label === "lock.acquire" && ok)
      mark("grant", `grants ${call.key} to ${from} with token ${token}`, `T${token} to ${from}`)
    else if (label === "lock.release" && ok) mark("end", `is told by ${from} that token ${token} is free`)
    else if (label === "lock.revoke" && ok)
      mark("told", `takes the lock from token ${call.granted} for an operator`, "revoked")
    else if (refused) {
      const fence = fences.findLast(({ lane }) => lane === to)?.token
      mark(
        "refused",
        `refuses ${op}${under} of ${from}: ${code}${fence === undefined ? "" : `, the fence stands at ${fence}`}`,
        `${code === "FENCED_OUT" ? "FENCED OUT" : "LOCK LOST"}: ${token} presented${fence === undefined || code !== "FENCED_OUT" ? "" : `, fence ${fence}`}`
      )
    } else if (label === "rail.pay") {
      const again = paid.has(call.reference ?? "")
      paid.add(call.reference ?? "")
      if (again) brokenAt ??= at(arrival)
      mark(again ? "wrong" : "pay", again ? "pays the same payout AGAIN" : "pays", again ? "PAID AGAIN" : "paid")
    } else if (ok && (label === "pay.claim" || label === "pay.resolve" || label === "rail.submit")) {
      if (token !== null && fences.findLast(({ lane }) => lane === to)?.token !== token) {
        fences.push({ at: at(arrival), lane: to, token })
      }
      mark("fence", `accepts ${op}${under} of ${from}`)
    } else if (ok && label.startsWith("pay.")) {
      const again =
        label === "pay.post" &&
        posted.has(call.payoutId ?? "") &&
        !marks.some((one) => one.token === token && one.text.startsWith("accepts post"))
      if (label === "pay.post") posted.add(call.payoutId ?? "")
      if (again) brokenAt ??= at(arrival)
      mark(
        again ? "wrong" : "fence",
        `${again ? "posts the same payout AGAIN: accepts" : "accepts"} ${op}${under} of ${from}`,
        again ? "POSTED AGAIN" : op === "post" ? "posted" : op
      )
    } else if (answered && !ok && label !== "lock.acquire" && label !== "lock.release") {
      mark("told", `answers ${op}${under} of ${from}: ${code ?? status}`, code ?? String(status))
    }
  }
  return { arrows, marks, fences, brokenAt }
}

/** From each grant to its end. */
const leases = ({ calls, history }: Shown, at: (millis: number) => number): ReadonlyArray<Bar> =>
  grantsOf(calls).map(({ expiresAt, from, token, key }) => {
    const ended = calls.find(
      ({ code, granted, label, returned, token: presented }) =>
        code === null &&
        returned < Infinity &&
        ((label === "lock.release" && presented === token) || (label === "lock.revoke" && granted === token))
    )
    const audit = history.lock.find((event) => event.kind !== "granted" && event.token === token)
    const to = Math.min(expiresAt, ended?.returned ?? Infinity, audit?.kind === "revoked" ? audit.at : Infinity)
    return {
      from: at(from.returned),
      to: at(to),
      lane: "lock-server",
      kind: "lease",
      token: String(token),
      text: `lease of ${key} under token ${token}, ${ended === undefined ? "runs out" : ended.label === "lock.revoke" ? "revoked" : "released"}`
    } satisfies Bar
  })

const grantsOf = (calls: ReadonlyArray<Call>) => {
  const grants = new Map<
    bigint,
    { readonly from: Call; readonly token: bigint; readonly key: string | null; expiresAt: number; deadline: number }
  >()
  for (const call of calls) {
    const { called, expiresAt, granted, key, label, ttlMillis } = call
    if (granted === null || expiresAt === null || !/^lock\.(acquire|renew)$/.test(label)) continue
    const deadline = called + ttlMillis - lab.marginMillis
    const known = grants.get(granted)
    if (known === undefined) grants.set(granted, { from: call, token: granted, key, expiresAt, deadline })
    else {
      known.expiresAt = Math.max(known.expiresAt, expiresAt)
      known.deadline = Math.max(known.deadline, deadline)
    }
  }
  return [...grants.values()]
}

/**
 * How long each holder took itself for one: until its own deadline, or until it was told, if that was earlier. While it is
 * stopped it can not look at its clock, so a deadline in a stop is noticed when it goes on: what is then past the lease is
 * the hazard that the fences are for.
 */
const beliefs = ({ calls, logs, spans, spec }: Shown, at: (millis: number) => number): ReadonlyArray<Bar> =>
  grantsOf(calls).flatMap(({ deadline, expiresAt, from, token }): ReadonlyArray<Bar> => {
    const lane = from.from
    const records = logs[lane] ?? []
    const lost = records.find((record) => record["event"] === "lock_lost" && record["fencingToken"] === String(token))
    const over = calls.find((one) => one.label === "lock.release" && one.token === token)
    const dead = spans.find((span) => span.lane === lane && span.kind === "down" && span.from >= from.called)
    const within = spans.find(
      (span) => span.lane === lane && span.kind === "pause" && span.from <= deadline && span.to > deadline
    )
    const to = Math.min(
      within?.to ?? deadline,
      over?.called ?? Infinity,
      dead?.from ?? Infinity,
      within === undefined && lost !== undefined ? Date.parse(lost.timestamp) - skewOf(spec, lane) : Infinity
    )
    const revoked = calls.find((one) => one.label === "lock.revoke" && one.granted === token)?.returned ?? Infinity
    const truth = Math.min(expiresAt, revoked)
    return [
      {
        from: at(from.returned),
        to: at(to),
        lane,
        kind: "belief",
        token: String(token),
        text: `takes itself for the holder under token ${token}`
      },
      ...(to > truth + 1
        ? [
            {
              from: at(truth),
              to: at(to),
              lane,
              kind: "hazard",
              token: String(token),
              text: `takes itself for the holder under token ${token} and is wrong`
            } satisfies Bar
          ]
        : [])
    ]
  })
