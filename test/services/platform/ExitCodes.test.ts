/** Failure to exit code, as documented; a failure that nobody thought of is 1. */
import { assert, describe, it } from "@effect/vitest"
import { Cause } from "effect"
import { wireErrors } from "../../../src/services/api/ApiError.ts"
import { Exited, exitCodeOf } from "../../../src/services/platform/ExitCodes.ts"

const codeOf = (failure: unknown) => exitCodeOf(Cause.fail(failure))

describe("exit codes", () => {
  it("tell not found, refused, unavailable and unknown apart", () => {
    const expected: Readonly<Record<string, number>> = {
      LockNotFound: 3,
      PayoutNotFound: 3,
      LockContended: 4,
      FencedOut: 4,
      IllegalTransition: 4,
      BackendUnavailable: 6,
      NotLeader: 6,
      SqlError: 6,
      RailAmbiguous: 7,
      ConfigProblem: 2,
      Internal: 1,
      SomethingNew: 1
    }
    for (const [_tag, code] of Object.entries(expected)) assert.strictEqual(codeOf({ _tag }), code, _tag)
  })

  it("are 1 only for those failures of the wire that are nobody's ordinary outcome", () => {
    const unexpected = Object.keys(wireErrors).filter((_tag) => codeOf({ _tag }) === 1)
    assert.deepStrictEqual(unexpected, [
      "RouteNotFound",
      "MethodNotAllowed",
      "PayloadTooLarge",
      "UnsupportedMediaType",
      "MalformedRequest",
      "RequestTimeout",
      "HeadersTooLarge",
      "Internal"
    ])
  })

  it("are what a command says, 130 when interrupted, and 1 for a defect", () => {
    assert.strictEqual(codeOf(new Exited({ code: 5 })), 5)
    assert.strictEqual(exitCodeOf(Cause.interrupt(1)), 130)
    assert.strictEqual(exitCodeOf(Cause.die(new Error("a bug"))), 1)
    assert.strictEqual(codeOf("a text"), 1)
    assert.strictEqual(codeOf({ _tag: "MigrationError", reason: "unavailable" }), 6)
    assert.strictEqual(codeOf({ _tag: "MigrationError", reason: "changed" }), 1)
  })
})
