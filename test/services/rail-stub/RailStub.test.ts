import { assert, describe, it } from "@effect/vitest"
import { Effect, Fiber, Schema } from "effect"
import { TestClock } from "effect/testing"
import { Control, type PaymentOrder, type SubmitFault } from "../../../src/services/api/RailStubHttpApi.ts"
import * as RailStub from "../../../src/services/rail-stub/RailStub.ts"

const order = (clientReference: string): PaymentOrder => ({
  clientReference,
  amountMinor: 2_500n,
  currency: "EUR",
  beneficiary: "DE02120300000000202051"
})

const behave = (control: typeof Control.Encoded) => Schema.decodeSync(Control)(control)

/** Every kind, with what it pays when nobody says so. */
const kinds: ReadonlyArray<readonly [SubmitFault, boolean, RailStub.SubmitFate["_tag"]]> = [
  ["timeoutPaid", true, "Silence"],
  ["timeoutUnpaid", false, "Silence"],
  ["decline", false, "Rejected"],
  ["http5xx", true, "ServerError"],
  ["htmlBody", true, "Html"],
  ["reset", true, "Reset"],
  ["unknownStatus", true, "UnknownStatus"]
]

describe("RailStub", () => {
  it.effect("pays every time it is called, and every payment has a reference of its own", () =>
    Effect.gen(function* () {
      const rail = yield* RailStub.make
      const fates = yield* Effect.all([rail.submit(order("P-1")), rail.submit(order("P-1"))])
      assert.deepStrictEqual(
        fates.map(({ _tag }) => _tag),
        ["Acknowledged", "Acknowledged"]
      )
      const { payments } = yield* rail.payments
      assert.strictEqual(payments.length, 2)
      assert.notStrictEqual(payments[0]?.railReference, payments[1]?.railReference)
      const found = yield* rail.lookup("P-1")
      assert.deepStrictEqual(found._tag === "Answered" ? [found.answer.status, found.answer.executedCount] : [], [
        "ACSC",
        2
      ])
    })
  )

  for (const [kind, paidByDefault, tag] of kinds) {
    for (const paid of [undefined, true, false]) {
      it.effect(`meets ${kind} once, ${(paid ?? paidByDefault) ? "paid" : "not paid"} (paid: ${String(paid)})`, () =>
        Effect.gen(function* () {
          const rail = yield* RailStub.make
          yield* rail.replaceControl(behave({ faults: [{ kind, ...(paid === undefined ? {} : { paid }) }] }))
          assert.strictEqual((yield* rail.submit(order("P-1")))._tag, tag)
          const book = yield* rail.payments
          assert.strictEqual(book.payments.length, (paid ?? paidByDefault) ? 1 : 0)
          assert.deepStrictEqual(
            book.submits.map(({ clientReference, fault }) => [clientReference, fault]),
            [["P-1", kind]]
          )
          assert.strictEqual((yield* rail.submit(order("P-2")))._tag, "Acknowledged")
          assert.deepStrictEqual((yield* rail.control).faults, [])
        })
      )
    }
  }

  it.effect("acknowledges one payment twice: the second payout gets the first one's reference and is not paid", () =>
    Effect.gen(function* () {
      const rail = yield* RailStub.make
      yield* rail.replaceControl(behave({ faults: [{ kind: "duplicateAck", times: 2 }] }))
      const [first, second] = yield* Effect.all([rail.submit(order("P-1")), rail.submit(order("P-2"))])
      assert.strictEqual(first._tag, "Acknowledged")
      assert.deepStrictEqual(second, first)
      assert.deepStrictEqual(
        (yield* rail.payments).payments.map(({ clientReference }) => clientReference),
        ["P-1"]
      )
    })
  )

  it.effect("meets the same fates in the same order under the same seed, and others under another", () =>
    Effect.gen(function* () {
      const fatesOf = Effect.fnUntraced(function* (seed: number) {
        const rail = yield* RailStub.make
        yield* rail.replaceControl(
          behave({ seed, rates: { timeoutPaid: 0.2, timeoutUnpaid: 0.2, decline: 0.2, http5xx: 0.2, reset: 0.1 } })
        )
        const fates = yield* Effect.forEach(
          Array.from({ length: 200 }, (_, i) => order(`P-${i}`)),
          rail.submit
        )
        return [fates.map(({ _tag }) => _tag), (yield* rail.payments).payments.length] as const
      })
      const [fates, paid] = yield* fatesOf(7)
      assert.deepStrictEqual(yield* fatesOf(7), [fates, paid])
      assert.notDeepEqual((yield* fatesOf(8))[0], fates)
      const share = (tag: string) => fates.filter((each) => each === tag).length / fates.length
      assert.approximately(share("Silence"), 0.4, 0.1)
      assert.approximately(share("Rejected"), 0.2, 0.08)
      assert.approximately(share("Acknowledged"), 0.1, 0.07)
    })
  )

  it.effect("pays on receipt and answers after the latency; a caller that goes away undoes nothing", () =>
    Effect.gen(function* () {
      const rail = yield* RailStub.make
      yield* rail.replaceControl(behave({ latency: { fixedMillis: 500 } }))
      const caller = yield* Effect.forkChild(rail.submit(order("P-1")), { startImmediately: true })
      yield* TestClock.adjust("499 millis")
      assert.isUndefined(caller.pollUnsafe())
      yield* Fiber.interrupt(caller)
      assert.strictEqual((yield* rail.payments).payments.length, 1)
    })
  )

  it.effect("does not find a payment before it is visible, and misleads the next lookups as told", () =>
    Effect.gen(function* () {
      const rail = yield* RailStub.make
      const statusOf = Effect.map(rail.lookup("P-1"), (fate) =>
        fate._tag === "Answered" ? fate.answer.status : fate._tag
      )
      yield* rail.replaceControl(
        behave({ lookup: { visibilityDelayMillis: 1_000, faults: [{ kind: "pending" }, { kind: "unavailable" }] } })
      )
      yield* rail.submit(order("P-1"))
      const early = yield* Effect.all([statusOf, statusOf, statusOf])
      assert.deepStrictEqual(early, ["PDNG", "Unavailable", "NOT_FOUND"])
      yield* TestClock.adjust("1 second")
      assert.strictEqual(yield* statusOf, "ACSC")
      yield* rail.replaceControl(behave({ lookup: { faults: [{ kind: "notFound" }] } }))
      assert.deepStrictEqual(yield* Effect.all([statusOf, statusOf]), ["NOT_FOUND", "ACSC"])
    })
  )

  it.effect("finds a refusal", () =>
    Effect.gen(function* () {
      const rail = yield* RailStub.make
      yield* rail.replaceControl(behave({ faults: [{ kind: "decline", code: "AM04" }] }))
      assert.deepStrictEqual(yield* rail.submit(order("P-1")), { _tag: "Rejected", code: "AM04" })
      const found = yield* rail.lookup("P-1")
      assert.strictEqual(found._tag === "Answered" ? found.answer.status : found._tag, "RJCT")
    })
  )

  it("takes no rates that add up to more than 1", () => {
    assert.throws(() => behave({ rates: { decline: 0.6, reset: 0.6 } }))
    assert.throws(() => behave({ rates: { decline: -0.1 } }))
  })
})
