/** What a soak asks of the system: payouts, of a rail that misbehaves, and in the end that every one of them is settled. */
import { Effect } from "effect"
import { AMOUNT_MINOR } from "./Experiment.ts"
import { tapTime } from "./HttpTap.ts"
import type { HarnessError } from "./Processes.ts"
import * as ProcessWorld from "./ProcessWorld.ts"
import { within } from "./SoakFleet.ts"
import { openOf } from "./SoakProof.ts"

export const ACCOUNTS = 40
/** From the end of healing on. */
export const BOUND_MILLIS = 180_000
const TELL_MILLIS = 10_000

export type Say = (text: string) => Effect.Effect<void>

/** It answers late, refuses, breaks off, and is silent whether it has paid or not. */
export const misbehavingRail = Effect.fnUntraced(function* (world: ProcessWorld.ProcessWorld, seed: number) {
  const { url } = yield* world.at("rail")
  yield* world.ask("PUT", `${url}/control`, {
    latency: { fixedMillis: 20, jitterMillis: 300 },
    holdMillis: ProcessWorld.lab.readTimeoutMillis * 2,
    seed: seed & 0xffff,
    rates: { timeoutPaid: 0.02, timeoutUnpaid: 0.02, decline: 0.03, http5xx: 0.01, reset: 0.01 }
  })
})

/** Accounts with money for all of it, and what is asked of the resource wherever it runs at the moment. */
export const makeOrders = Effect.fnUntraced(function* (world: ProcessWorld.ProcessWorld, payouts: number) {
  const accounts = new Set(Array.from({ length: ACCOUNTS }, (_, i) => `soak-${i + 1}`))
  const post = (path: string, body: object, key?: string) =>
    Effect.flatMap(world.at("payment-resource"), ({ url }) => world.ask("POST", `${url}${path}`, body, key))
  for (const accountId of accounts) {
    yield* post("/v1/accounts", {
      accountId,
      currency: "EUR",
      openingBalanceMinor: String(AMOUNT_MINOR * payouts)
    })
  }
  return {
    accounts,
    /** May be repeated: the order has a key of its own. */
    order: (n: number) =>
      post(
        "/v1/payouts",
        {
          accountId: `soak-${(n % ACCOUNTS) + 1}`,
          amountMinor: String(AMOUNT_MINOR),
          currency: "EUR",
          beneficiary: "NL00TEST0000000001"
        },
        `soak-order-${n}`
      ),
    states: within("10 seconds", "read the states of the payouts")(world.states(accounts))
  }
})

/** Waits until all are settled, and tells meanwhile which are not. False: not within the bound. */
export const settle = Effect.fnUntraced(function* (of: {
  readonly states: Effect.Effect<ReadonlyArray<ProcessWorld.PayoutNow>, HarnessError>
  readonly atLeast: number
  readonly since: number
  readonly say: Say
}) {
  let toldAt = of.since
  for (;;) {
    const all = yield* Effect.retry(of.states, { times: 3 })
    const { count, text } = openOf(all)
    if (all.length >= of.atLeast && count === 0) return true
    const now = tapTime()
    if (now - of.since > BOUND_MILLIS) {
      yield* of.say(`NOT SETTLED within ${BOUND_MILLIS / 1_000} s: ${openOf(all, 50).text}`)
      return false
    }
    if (now - toldAt >= TELL_MILLIS) {
      toldAt = now
      yield* of.say(`still open of ${all.length} payouts: ${text}`)
    }
    yield* Effect.sleep("500 millis")
  }
})
