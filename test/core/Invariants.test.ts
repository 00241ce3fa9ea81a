/** Every check finds its planted violation, and none of them finds anything in a history in which all went well. */
import { assert, describe, it } from "@effect/vitest"
import { Schema } from "effect"
import { emptyHistory, History } from "../../src/core/History.ts"
import { everyPayoutTerminal, type InvariantName, judge } from "../../src/core/Invariants.ts"
import { FencingToken } from "../../src/core/lock/Lock.ts"

const t = (n: bigint) => FencingToken.make(n)

/** UC-03 with the fences on: W1 claims under 7, is stopped, W2 takes over under 8 and finishes, W1 is fenced out. */
const good: History = {
  ...emptyHistory,
  settled: true,
  lock: [
    { kind: "granted", at: 0, key: "payout:a", token: t(7n), sessionId: "s1", ownerId: "w1", expiresAt: 3_000 },
    { kind: "expired", at: 3_000, key: "payout:a", token: t(7n), sessionId: "s1", ownerId: "w1", expiresAt: null },
    { kind: "granted", at: 3_100, key: "payout:a", token: t(8n), sessionId: "s2", ownerId: "w2", expiresAt: 6_100 },
    { kind: "released", at: 3_400, key: "payout:a", token: t(8n), sessionId: "s2", ownerId: "w2", expiresAt: null }
  ],
  transitions: (
    [
      [null, "PENDING", null],
      ["PENDING", "CLAIMED", 7n],
      ["CLAIMED", "CLAIMED", 8n],
      ["CLAIMED", "POSTED", 8n]
    ] as const
  ).map(([from, to, token], at) => ({
    at,
    payoutId: "p1",
    accountId: "a",
    from,
    to,
    token: token === null ? null : t(token),
    fenceSeen: token,
    evidence: null,
    reason: null,
    actor: "w"
  })),
  submissions: [
    {
      payoutId: "p1",
      accountId: "a",
      clientReference: "ref-1",
      token: t(8n),
      outcome: "ACKED",
      intentAt: 1,
      fenced: true
    }
  ],
  rail: [{ at: 5, clientReference: "ref-1", amountMinor: 2_500n, railReference: "R1" }],
  journals: [
    {
      journalId: "1",
      kind: "FUNDING",
      payoutId: null,
      token: null,
      fenced: true,
      entries: [
        { accountId: "a", currency: "EUR", amountMinor: 10_000n },
        { accountId: "funding-eur", currency: "EUR", amountMinor: -10_000n }
      ]
    },
    {
      journalId: "2",
      kind: "PAYOUT",
      payoutId: "p1",
      token: t(8n),
      fenced: true,
      entries: [
        { accountId: "a", currency: "EUR", amountMinor: -2_500n },
        { accountId: "clearing-eur", currency: "EUR", amountMinor: 2_500n }
      ]
    }
  ],
  accounts: [
    { accountId: "a", balanceMinor: 7_500n, reservedMinor: 0n, fence: 8n, railHighWater: 8n },
    { accountId: "clearing-eur", balanceMinor: 2_500n, reservedMinor: 0n, fence: 0n, railHighWater: 0n }
  ],
  payouts: [
    {
      payoutId: "p1",
      accountId: "a",
      amountMinor: 2_500n,
      clientReference: "ref-1",
      state: "POSTED",
      claimToken: t(8n)
    }
  ],
  fences: [
    {
      point: "resource",
      op: "claim",
      resource: "a",
      payoutId: "p1",
      token: t(7n),
      accepted: true,
      rowsChanged: 2,
      highest: 0n
    },
    {
      point: "resource",
      op: "claim",
      resource: "a",
      payoutId: "p1",
      token: t(8n),
      accepted: true,
      rowsChanged: 2,
      highest: 7n
    },
    {
      point: "rail",
      op: "submit",
      resource: "a",
      payoutId: "p1",
      token: t(8n),
      accepted: true,
      rowsChanged: 2,
      highest: 0n
    },
    {
      point: "rail",
      op: "submit",
      resource: "a",
      payoutId: "p1",
      token: t(7n),
      accepted: false,
      rowsChanged: 0,
      highest: 8n
    }
  ]
}

const planted: ReadonlyArray<readonly [InvariantName, string, (history: History) => History]> = [
  ["INV-01", "a grant while another is live", (h) => ({ ...h, lock: h.lock.filter((e) => e.kind !== "expired") })],
  [
    "INV-01",
    "a lease that is called expired before its end",
    (h) => ({ ...h, lock: h.lock.map((e) => (e.kind === "expired" ? { ...e, at: 2_999 } : e)) })
  ],
  ["INV-02", "the rail paying twice", (h) => ({ ...h, rail: [...h.rail, { ...h.rail[0]!, railReference: "R2" }] })],
  [
    "INV-03",
    "a journal that does not sum to zero",
    (h) => ({ ...h, journals: h.journals.map((j) => ({ ...j, entries: j.entries.slice(0, 1) })) })
  ],
  [
    "INV-03",
    "a balance that is not the sum of its entries",
    (h) => ({ ...h, accounts: h.accounts.map((a) => ({ ...a, balanceMinor: a.balanceMinor + 1n })) })
  ],
  [
    "INV-04",
    "a token that is answered twice",
    (h) => ({ ...h, lock: h.lock.map((e) => (e.token === 8n ? { ...e, token: t(7n) } : e)) })
  ],
  [
    "INV-05",
    "a stale token that a fence accepts",
    (h) => ({ ...h, fences: h.fences.map((f) => (f.accepted ? f : { ...f, accepted: true })) })
  ],
  [
    "INV-05",
    "a refused write that changes rows",
    (h) => ({ ...h, fences: h.fences.map((f) => (f.accepted ? f : { ...f, rowsChanged: 1 })) })
  ],
  [
    "INV-05",
    "a payout moved under an older token",
    (h) => ({ ...h, transitions: h.transitions.map((m) => (m.to === "POSTED" ? { ...m, token: t(7n) } : m)) })
  ],
  ["INV-06", "a posted payout that the rail never paid", (h) => ({ ...h, rail: [] })],
  [
    "INV-06",
    "a failed payout that the rail paid",
    (h) => ({ ...h, payouts: h.payouts.map((p) => ({ ...p, state: "FAILED" as const })) })
  ],
  [
    "INV-08",
    "a payout that leaves a terminal state",
    (h) => ({ ...h, transitions: [...h.transitions, { ...h.transitions[1]!, from: "POSTED" as const }] })
  ],
  ["INV-08", "a second submission", (h) => ({ ...h, submissions: [...h.submissions, ...h.submissions] })],
  [
    "ONE-POSTING",
    "a payout that is posted twice",
    (h) => ({ ...h, journals: [...h.journals, { ...h.journals[1]!, journalId: "3" }] })
  ],
  [
    "ONE-TOKEN-ONE-CLAIM",
    "a token that claims two payouts",
    (h) => ({ ...h, transitions: [...h.transitions, { ...h.transitions[1]!, payoutId: "p2" }] })
  ],
  ["INTENT-FIRST", "a payment that no record knows", (h) => ({ ...h, submissions: [] })]
]

describe("Invariants", () => {
  it("find nothing in a history in which the fences did their work", () => assert.deepStrictEqual(judge(good), []))

  for (const [invariant, what, plant] of planted) {
    it(`${invariant} finds ${what}`, () =>
      assert.include(
        judge(plant(good)).map((violation) => violation.invariant),
        invariant
      ))
  }

  it("LIVE-01 finds a payout that is not terminal", () => {
    const stuck = { ...good, payouts: good.payouts.map((payout) => ({ ...payout, state: "CLAIMED" as const })) }
    assert.deepStrictEqual(
      everyPayoutTerminal(stuck).map((violation) => violation.subject),
      ["p1"]
    )
    assert.deepStrictEqual(everyPayoutTerminal(good), [])
  })

  it("judge a history that was saved as JSON as they judge the original", () => {
    const codec = Schema.toCodecJson(History)
    const saved = JSON.stringify(Schema.encodeSync(codec)(good))
    assert.deepStrictEqual(judge(Schema.decodeUnknownSync(codec)(JSON.parse(saved))), [])
  })
})
