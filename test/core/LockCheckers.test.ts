/** The two lock-history checkers: no alarm on what a correct service can answer, and each planted wrong answer found. */
import { assert, describe, it } from "@effect/vitest"
import * as fc from "fast-check"
import { checkLinearizable } from "../../src/core/Linearizability.ts"
import type { LockOp } from "../../src/core/LockHistory.ts"
import { checkTokenOrder } from "../../src/core/TokenOrder.ts"

const op = (partial: Partial<LockOp> & Pick<LockOp, "call" | "called" | "returned">): LockOp => ({
  client: "c1",
  key: "k",
  sessionId: "s1",
  token: null,
  requestId: null,
  answer: "ok",
  granted: null,
  ttlMillis: 1_000,
  ...partial
})
const acquire = (client: string, called: number, returned: number, granted: bigint, extra: Partial<LockOp> = {}) =>
  op({ call: "acquire", client, sessionId: `s-${client}`, called, returned, granted, ...extra })
const release = (client: string, called: number, returned: number, token: bigint, extra: Partial<LockOp> = {}) =>
  op({ call: "release", client, sessionId: `s-${client}`, called, returned, token, ...extra })

const good: ReadonlyArray<readonly [string, ReadonlyArray<LockOp>]> = [
  ["a release between two grants", [acquire("a", 0, 1, 1n), release("a", 2, 3, 1n), acquire("b", 4, 5, 2n)]],
  [
    "a release that is still under way when the next is granted",
    [acquire("a", 0, 1, 1n), release("a", 2, 9, 1n), acquire("b", 4, 5, 2n)]
  ],
  ["a lease that ran out", [acquire("a", 0, 1, 1n), acquire("b", 1_001, 1_002, 2n)]],
  [
    "a release that was answered LOST because its first copy did it",
    [acquire("a", 0, 1, 1n), release("a", 2, 3, 1n, { answer: "lost" }), acquire("b", 4, 5, 2n)]
  ],
  [
    "an unknown acquire that was granted and blocks others for its lease",
    [
      acquire("a", 0, Infinity, 0n, { answer: "unknown", granted: null }),
      op({ call: "acquire", client: "b", called: 10, returned: 11, answer: "held" }),
      acquire("b", 1_100, 1_101, 7n)
    ]
  ],
  [
    "the repeat of an attempt that is answered the same grant",
    [
      acquire("a", 0, Infinity, 0n, { answer: "unknown", granted: null, requestId: "r" }),
      acquire("a", 5, 6, 1n, { requestId: "r" })
    ]
  ],
  [
    "the same with somebody contended in between",
    [
      acquire("a", 0, Infinity, 0n, { answer: "unknown", granted: null, requestId: "r" }),
      op({ call: "acquire", client: "b", called: 2, returned: 3, answer: "held" }),
      acquire("a", 5, 6, 1n, { requestId: "r" })
    ]
  ],
  [
    "a session that closed",
    [
      acquire("a", 0, 1, 1n),
      op({ call: "close", client: "a", key: null, sessionId: "s-a", called: 2, returned: 3 }),
      acquire("b", 4, 5, 2n)
    ]
  ],
  [
    "a revocation",
    [
      acquire("a", 0, 1, 1n),
      op({ call: "revoke", client: "op", sessionId: null, granted: 1n, called: 2, returned: 3 }),
      acquire("b", 4, 5, 2n)
    ]
  ]
]

const bad: ReadonlyArray<readonly [string, ReadonlyArray<LockOp>, { readonly tokenOrder: boolean }]> = [
  ["a double grant", [acquire("a", 0, 1, 1n), acquire("b", 2, 3, 2n)], { tokenOrder: true }],
  [
    "a token that is granted twice",
    [acquire("a", 0, 1, 1n), release("a", 2, 3, 1n), acquire("b", 4, 5, 1n)],
    { tokenOrder: true }
  ],
  [
    "a token that goes back",
    [acquire("a", 0, 1, 2n), release("a", 2, 3, 2n), acquire("b", 4, 5, 1n)],
    { tokenOrder: true }
  ],
  [
    "a lease that is renewed and then granted to another before its end",
    [
      acquire("a", 0, 1, 1n),
      op({ call: "renew", client: "a", sessionId: "s-a", token: 1n, granted: 1n, called: 900, returned: 901 }),
      acquire("b", 1_100, 1_101, 2n)
    ],
    { tokenOrder: true }
  ],
  [
    "a renew that mints a new token",
    [acquire("a", 0, 1, 1n), op({ call: "renew", client: "a", token: 1n, granted: 2n, called: 5, returned: 6 })],
    { tokenOrder: true }
  ],
  [
    "a renew that succeeds after the successor's grant",
    [
      acquire("a", 0, 1, 1n),
      acquire("b", 1_001, 1_002, 2n),
      op({ call: "renew", client: "a", token: 1n, granted: 1n, called: 1_003, returned: 1_004 })
    ],
    { tokenOrder: true }
  ],
  [
    "a contended answer although nobody holds it",
    [op({ call: "acquire", client: "b", called: 0, returned: 1, answer: "held" })],
    { tokenOrder: false }
  ],
  [
    "a release by somebody whose lock it is not any more",
    [acquire("a", 0, 1, 1n), release("a", 2, 3, 1n), acquire("b", 4, 5, 2n), release("a", 6, 7, 1n)],
    { tokenOrder: false }
  ],
  [
    "one attempt that is granted twice",
    [acquire("a", 0, 1, 1n, { requestId: "r" }), acquire("a", 1_500, 1_501, 2n, { requestId: "r" })],
    { tokenOrder: true }
  ]
]

/** What a correct service answers to clients whose calls overlap: each takes effect at a drawn instant within its interval. */
const correctHistory = fc
  .array(
    fc.record({
      client: fc.constantFrom("a", "b", "c"),
      call: fc.constantFrom("acquire" as const, "release" as const, "renew" as const),
      gap: fc.integer({ min: 1, max: 400 }),
      before: fc.integer({ min: 0, max: 60 }),
      after: fc.integer({ min: 0, max: 60 }),
      lostAnswer: fc.boolean()
    }),
    { maxLength: 25 }
  )
  .map((calls) => {
    const ttl = 300
    let now = 0
    let last = 0n
    let holder: { client: string; token: bigint; until: number } | null = null
    const tokens = new Map<string, bigint>()
    const busyUntil = new Map<string, number>()
    const ops: Array<LockOp> = []
    for (const { after, before, call, client, gap, lostAnswer } of calls) {
      now += gap
      if (holder !== null && holder.until <= now) holder = null
      // A client has one call under way at a time, as an SDK does.
      const called = Math.max(now - before, (busyUntil.get(client) ?? -1) + 1)
      if (called > now) continue
      const returned = now + after
      busyUntil.set(client, returned)
      const base = { client, sessionId: `s-${client}`, called, ttlMillis: ttl, call, key: "k" }
      const mine = tokens.get(client) ?? 0n
      if (call === "acquire") {
        if (holder !== null) ops.push(op({ ...base, returned, answer: lostAnswer ? "unknown" : "held" }))
        else {
          last++
          holder = { client, token: last, until: now + ttl }
          if (!lostAnswer) tokens.set(client, last)
          ops.push(
            op({
              ...base,
              returned: lostAnswer ? Infinity : returned,
              answer: lostAnswer ? "unknown" : "ok",
              granted: lostAnswer ? null : last
            })
          )
        }
      } else if (mine > 0n) {
        const holds: boolean = holder !== null && holder.token === mine
        const answer = lostAnswer ? "unknown" : holds ? "ok" : "lost"
        if (holds && call === "renew") holder = { client, token: mine, until: Math.max(holder!.until, now + ttl) }
        if (holds && call === "release") holder = null
        ops.push(
          op({
            ...base,
            returned: lostAnswer ? Infinity : returned,
            answer,
            token: mine,
            granted: answer === "ok" && call === "renew" ? mine : null
          })
        )
      }
    }
    return ops
  })

describe("Lock history checkers", () => {
  for (const [what, history] of good) {
    it(`raise no alarm for ${what}`, () => {
      assert.deepStrictEqual(checkTokenOrder(history), [])
      assert.strictEqual(checkLinearizable(history).verdict, "ok")
    })
  }

  for (const [what, history, { tokenOrder }] of bad) {
    it(`find ${what}`, () => {
      if (tokenOrder) assert.isNotEmpty(checkTokenOrder(history))
      // Two grants to one attempt are two attempts to a model that knows keys and tokens alone.
      if (what !== "one attempt that is granted twice") {
        assert.strictEqual(checkLinearizable(history).verdict, "violated")
      }
    })
  }

  it("raise no alarm on 2,000 drawn histories of a correct service", () => {
    fc.assert(
      fc.property(correctHistory, (history) => {
        assert.deepStrictEqual(checkTokenOrder(history), [])
        assert.strictEqual(checkLinearizable(history).verdict, "ok")
      }),
      { numRuns: 2_000, seed: 7 }
    )
  })

  it("find a grant that is moved before the end of the one before it, in drawn histories", () => {
    let planted = 0
    let missed = 0
    fc.assert(
      fc.property(correctHistory, (history) => {
        const grants = history.filter((each) => each.call === "acquire" && each.answer === "ok")
        const [held, next] = grants
        if (held === undefined || next === undefined || held.client === next.client) return
        const stolen = history
          .filter((each) => each === held || each === next)
          .map((each) => (each === next ? { ...next, called: held.returned + 1, returned: held.returned + 2 } : each))
        planted++
        if (checkTokenOrder(stolen).length === 0 || checkLinearizable(stolen).verdict !== "violated") missed++
      }),
      { numRuns: 2_000, seed: 7 }
    )
    assert.isAbove(planted, 50)
    assert.strictEqual(missed, 0)
  })

  it("say unknown, never ok, when the budget of the search is used up", () =>
    assert.strictEqual(checkLinearizable(good[0]![1], 1).verdict, "unknown"))
})
