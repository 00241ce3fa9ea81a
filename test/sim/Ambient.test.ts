/**
 * What a simulated process finds around itself comes from the seed and from its own clock, not from the machine.
 */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Metric, Random } from "effect"
import { SecureRandom } from "effect/crypto"
import { withTraps } from "../../src/sim/Leaks.ts"
import { VirtualWorld, type WorldOptions } from "../../src/sim/VirtualWorld.ts"
import type { Program } from "../../src/sim/Node.ts"

const run = (
  program: Program,
  options: Partial<WorldOptions> = {},
  names: ReadonlyArray<string> = ["a"]
): VirtualWorld => {
  const w = new VirtualWorld({ seed: 1, ...options })
  for (const name of names) w.node(name, { program, wallOffsetMillis: 1 }).start()
  withTraps(() => w.run())
  return w
}

describe("ambient services", () => {
  it("uuids come from the seed, and the time in one from the node's wall clock", () => {
    const ids: Array<string> = []
    const program: Program = () =>
      Effect.gen(function* () {
        const secure = yield* SecureRandom.SecureRandom
        ids.push(yield* secure.uuidV4(), yield* secure.uuidV7())
      })
    run(program)
    run(program)
    assert.deepStrictEqual(ids.slice(0, 2), ids.slice(2))
    assert.strictEqual(parseInt(ids[1]!.replaceAll("-", "").slice(0, 12), 16), Date.UTC(2026, 0, 1) + 1)
  })

  it("no two nodes and no two incarnations draw the same", () => {
    const drawn = new Set<number>()
    const w = run(() => Effect.map(Random.next, (x) => void drawn.add(x)), {}, ["a", "b"])
    w.nodes[0]!.start()
    w.run()
    assert.strictEqual(drawn.size, 3)
  })

  it("spans are off, and on request have ids from the seed", () => {
    const seen: Array<string> = []
    const program: Program = () =>
      Effect.gen(function* () {
        const outer = yield* Effect.currentSpan
        const inner = yield* Effect.currentSpan.pipe(Effect.withSpan("inner"))
        seen.push(outer.traceId, outer.spanId, inner.spanId)
        assert.strictEqual(inner.traceId, outer.traceId)
      }).pipe(Effect.withSpan("outer"), Effect.ignore)
    run(program, { tracing: true })
    run(program, { tracing: true })
    assert.lengthOf(seen, 6)
    assert.deepStrictEqual(seen.slice(0, 3), seen.slice(3))
    assert.match(seen[0]!, /^[0-9a-f]{32}$/)
    run(program)
    assert.match(seen[6]!, /^noop$/)
  })

  it("metrics of a process are its own when kept, and never those of the program around", () => {
    const counter = Metric.counter("ambient_test")
    const counts: Array<unknown> = []
    const program: Program = () =>
      Effect.gen(function* () {
        yield* Metric.update(counter, 1)
        counts.push((yield* Metric.value(counter)).count)
      })
    run(program, { keepMetrics: true }, ["a", "b"])
    assert.deepStrictEqual(counts, [1, 1])
    run(program)
    assert.strictEqual(Effect.runSync(Metric.value(counter)).count, 0)
  })
})
