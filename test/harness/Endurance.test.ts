import { assert, describe, it } from "@effect/vitest"
import { growth } from "../../src/harness/Endurance.ts"

const samples = (name: string, value: (i: number) => number) =>
  Array.from({ length: 25 }, (_, i) => ({ [name]: value(i) }))

describe("the endurance run", () => {
  it("finds what is larger at the end than at a fifth of the time", () => {
    const [leak] = growth(samples("leases", (i) => 100 + 20 * i))
    assert.isTrue(leak?.finding)
    const [steady] = growth(samples("leases", (i) => 100 + (i % 7)))
    assert.isFalse(steady?.finding)
    const [first] = growth(samples("lock_untold rows", (i) => (i > 20 ? 3 : 0)))
    assert.isTrue(first?.finding)
  })

  it("lets an audit grow, and does not mind one odd sample", () => {
    assert.isFalse(growth(samples("lock_event rows (audit)", (i) => 1_000 * i))[0]?.finding)
    assert.isFalse(growth(samples("memory MB", (i) => (i === 23 ? 900 : 200)))[0]?.finding)
  })
})
