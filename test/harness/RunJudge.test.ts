/**
 * The ruler for real runs: a run that was recorded is judged as it was, each promise that is broken in it by hand is found,
 * and by the check that is named for it.
 */
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import type { History } from "../../src/core/History.ts"
import { fencingOn } from "../../src/core/Fencing.ts"
import type { FencingToken } from "../../src/core/lock/Lock.ts"
import type { Call } from "../../src/harness/HttpTap.ts"
import { isHarmOf, type Judgeable, judgeRun } from "../../src/harness/RunJudge.ts"
import { observedOf, read } from "../../src/harness/SavedRun.ts"

const load = (name: "on" | "off") =>
  Effect.map(read(`test/harness/runs/uc-03-${name}.json`), (found): Judgeable => {
    if (found.kind === "history") throw new Error("the recorded run is no run")
    const { run } = found
    return { ...observedOf(run), spec: run.spec, paysLate: run.paysLate, settled: true, bound: run.boundMillis }
  })

const token = (value: bigint) => value as FencingToken

/** The parts of the recorded run that a violation is planted in. */
const first = <A>(items: ReadonlyArray<A>): A => {
  const [item] = items
  assert.isDefined(item)
  return item
}

interface Planted {
  readonly check: string
  readonly what: string
  readonly edit: (run: Judgeable) => Judgeable
}

const inHistory =
  (edit: (history: History) => Partial<History>) =>
  (run: Judgeable): Judgeable => ({ ...run, history: { ...run.history, ...edit(run.history) } })

const inCalls =
  (edit: (calls: ReadonlyArray<Call>) => ReadonlyArray<Call>) =>
  (run: Judgeable): Judgeable => ({ ...run, calls: edit(run.calls) })

const acquiresOf = (calls: ReadonlyArray<Call>) =>
  calls.filter(({ granted, label }) => label === "lock.acquire" && granted !== null)

const planted: ReadonlyArray<Planted> = [
  {
    check: "INV-01",
    what: "two live grants of a key",
    edit: inHistory(({ lock }) => ({ lock: lock.filter(({ kind }) => kind === "granted") }))
  },
  {
    check: "INV-02",
    what: "a payment that the rail made twice",
    edit: inHistory(({ rail }) => ({ rail: [...rail, { ...first(rail), railReference: "RAIL-again" }] }))
  },
  {
    check: "INV-03",
    what: "a balance that is not the sum of its entries",
    edit: inHistory(({ accounts }) => ({
      accounts: accounts.map((account) => ({ ...account, balanceMinor: account.balanceMinor + 1n }))
    }))
  },
  {
    check: "INV-04",
    what: "a token that went back",
    edit: inHistory(({ lock }) => ({ lock: [...lock, { ...first(lock), token: token(1n) }] }))
  },
  {
    check: "INV-05",
    what: "a stale write that the rail's fence let pass",
    edit: inHistory(({ fences }) => ({
      fences: [...fences, { ...first(fences), token: token(1n), accepted: true, rowsChanged: 2 }]
    }))
  },
  {
    check: "INV-05",
    what: "a refused write that changed a row",
    edit: inHistory(({ fences }) => ({
      fences: fences.map((fence) => (fence.accepted ? fence : { ...fence, rowsChanged: 1 }))
    }))
  },
  {
    check: "INV-06",
    what: "a payout that is POSTED and was never paid",
    edit: inHistory(() => ({ rail: [] }))
  },
  {
    check: "INV-08",
    what: "a payout that went from POSTED back to CLAIMED",
    edit: inHistory(({ transitions }) => {
      const claim = transitions.find(({ to }) => to === "CLAIMED")
      return { transitions: claim === undefined ? [] : [...transitions, { ...claim, from: "POSTED" as const }] }
    })
  },
  {
    check: "ONE-POSTING",
    what: "a payout that was posted twice",
    edit: inHistory(({ journals }) => ({
      journals: [...journals, ...journals.filter(({ kind }) => kind === "PAYOUT")]
    }))
  },
  {
    check: "INTENT-FIRST",
    what: "a payment without an intent",
    edit: inHistory(() => ({ submissions: [] }))
  },
  {
    check: "ONE-TOKEN-ONE-CLAIM",
    what: "one token that claimed two payouts",
    edit: inHistory(({ transitions }) => ({
      transitions: [
        ...transitions,
        ...transitions.filter(({ to }) => to === "CLAIMED").map((claim) => ({ ...claim, payoutId: "another" }))
      ]
    }))
  },
  {
    check: "LIVE-01",
    what: "a payout that was never settled",
    edit: (run) => ({
      ...run,
      settled: false,
      history: {
        ...run.history,
        payouts: run.history.payouts.map((one) => ({ ...one, state: "RAIL_AMBIGUOUS" as const }))
      }
    })
  },
  {
    check: "TOKEN-ORDER",
    what: "a lock that was granted again while its lease ran",
    edit: inCalls((calls) => {
      const [before, after] = acquiresOf(calls)
      return calls.map((call) =>
        call === after ? { ...call, called: (before?.returned ?? 0) + 1, returned: (before?.returned ?? 0) + 5 } : call
      )
    })
  },
  {
    check: "LINEARIZABLE",
    what: "a lock that was granted again while its lease ran",
    edit: inCalls((calls) => {
      const [before, after] = acquiresOf(calls)
      return calls.map((call) =>
        call === after ? { ...call, called: (before?.returned ?? 0) + 1, returned: (before?.returned ?? 0) + 5 } : call
      )
    })
  },
  {
    check: "BELIEF",
    what: "a check that went well after the lease had ended",
    edit: (run) => ({
      ...run,
      calls: run.calls.map((call) =>
        call.granted !== null && call.owner === "w2" ? { ...call, expiresAt: call.called } : call
      )
    })
  },
  {
    check: "FENCED-OUT-RETRIED",
    what: "a worker that went on after FENCED_OUT without being an experiment's",
    edit: (run) => ({
      ...run,
      spec: { ...run.spec, staleHolder: false },
      logs: Object.fromEntries(
        Object.entries(run.logs).map(([name, records]) => [
          name,
          records.filter((record) => record["event"] !== "lock_lost" && record["event"] !== "stale_hop")
        ])
      )
    })
  },
  {
    check: "DUPLICATE-ATTEMPTED",
    what: "a second submission that was tried",
    edit: (run) => ({
      ...run,
      logs: {
        ...run.logs,
        "rail-proxy": [
          {
            timestamp: "2026-01-01T00:00:00.000Z",
            level: "ERROR",
            message: "a second submission was tried",
            event: "rail_duplicate_attempted"
          }
        ]
      }
    })
  },
  {
    check: "DEFECT",
    what: "a program that met a bug of its own",
    edit: (run) => ({
      ...run,
      logs: {
        ...run.logs,
        w2: [{ timestamp: "2026-01-01T00:00:00.000Z", level: "ERROR", message: "a turn died", cause: "TypeError" }]
      }
    })
  }
]

describe("a recorded run of the paused worker", () => {
  it.effect("keeps every promise with both fences on", () =>
    Effect.map(load("on"), (run) => assert.deepStrictEqual(judgeRun(run), []))
  )

  it.effect("shows exactly the harm of its row of the matrix with both off", () =>
    Effect.map(load("off"), (run) => {
      const verdicts = judgeRun(run)
      assert.isTrue(isHarmOf(verdicts, { payment: false, rail: false }))
      assert.isFalse(isHarmOf(verdicts, fencingOn), "harm with the fences on is no harm that is expected")
      assert.isFalse(isHarmOf(verdicts, { payment: true, rail: false }), "nor is the ledger's with its fence on")
      assert.isFalse(isHarmOf([], { payment: false, rail: false }), "and no harm at all proves nothing")
    })
  )

  for (const { check, edit, what } of planted) {
    it.effect(`is found to break ${check} by ${what}`, () =>
      Effect.map(load("on"), (run) => {
        const checks = judgeRun(edit(run)).map((verdict) => verdict.check)
        assert.include(checks, check)
      })
    )
  }
})

/** The same grants once more, a minute later, by a backend that has forgotten them. */
const again = (run: Judgeable): Judgeable => {
  const { history } = run
  const later = 60_000
  const first = Math.min(...run.calls.map(({ called }) => called))
  const put = Math.max(...run.calls.map(({ called }) => called)) + 1_000
  const named = (id: string | null) => (id === null ? null : `${id}-again`)
  return {
    ...run,
    history: {
      ...history,
      lock: [
        ...history.lock,
        ...history.lock.map((event) => ({ ...event, at: event.at + later, sessionId: named(event.sessionId) }))
      ]
    },
    calls: [
      ...run.calls,
      ...run.calls
        .filter(({ label }) => label.startsWith("lock."))
        .map((call) => ({
          ...call,
          called: call.called + later,
          returned: call.returned + later,
          expiresAt: call.expiresAt === null ? null : call.expiresAt + later,
          sessionId: named(call.sessionId),
          requestId: named(call.requestId)
        }))
    ],
    spans: [
      ...run.spans,
      { lane: "lockdb", kind: "forgotten", from: first - 1_000, to: put, text: "put back to its copy" },
      { lane: "lockdb", kind: "rewound", from: put, to: Infinity, text: "put back to its copy" }
    ]
  }
}

const checksOf = (run: Judgeable) => new Set(judgeRun(run).map(({ check }) => check))

describe("a run whose lock backend was put back to a copy", () => {
  it.effect("has two lives, each of which is right in itself", () =>
    Effect.map(load("on"), (run) => {
      assert.deepStrictEqual(judgeRun(again(run)), [])
      const untold = { ...again(run), spans: run.spans }
      assert.includeMembers([...checksOf(untold)], ["INV-04", "TOKEN-ORDER", "LINEARIZABLE"])
    })
  )

  it.effect("is found to break INV-04 by a token that goes back within the second life", () =>
    Effect.map(load("on"), (run) => {
      const { history, ...rest } = again(run)
      const low = { ...first(history.lock), at: first(history.lock).at + 100_000, token: token(1n) }
      assert.include([...checksOf({ ...rest, history: { ...history, lock: [...history.lock, low] } })], "INV-04")
    })
  )

  it.effect("is found to break TOKEN-ORDER by a token of the first life that is granted when the floor is raised", () =>
    Effect.map(load("on"), (run) => {
      const { spans, ...rest } = again(run)
      const mended = spans.map((span) => (span.kind === "rewound" ? { ...span, to: span.from } : span))
      assert.deepStrictEqual([...checksOf({ ...rest, spans: mended })], ["TOKEN-ORDER"])
    })
  )

  it.effect("is found to break INV-05 by a fence that lets such a token pass", () =>
    Effect.map(load("on"), (run) => {
      const { history, ...rest } = again(run)
      const last = history.transitions.at(-1)
      assert.isDefined(last)
      const stale = { ...last, token: token(1n) }
      const transitions = [...history.transitions, stale]
      assert.include([...checksOf({ ...rest, history: { ...history, transitions } })], "INV-05")
    })
  )
})
