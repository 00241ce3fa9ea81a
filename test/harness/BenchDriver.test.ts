import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { drive, percentiles, processorTimes, spent, spread } from "../../src/harness/BenchDriver.ts"
import { type BenchDocument, table } from "../../src/harness/BenchReport.ts"

describe("BenchDriver", () => {
  it("knows ranks: of a hundred values the 99th is the p99", () => {
    const values = Array.from({ length: 100 }, (_, i) => 100 - i)
    assert.deepStrictEqual(percentiles(values), { p50: 50, p95: 95, p99: 99 })
    assert.deepStrictEqual(spread([3, 1, 2]), { median: 2, min: 1, max: 3 })
  })

  it.live("drives every client until the time is up, times what went well and counts what did not", () =>
    Effect.gen(function* () {
      const slice = yield* drive(4, 0.2, (client) =>
        client === 3 ? Effect.fail({ _tag: "Broken" }) : Effect.sleep(10)
      )
      assert.isTrue(slice.latencies.length >= 3 && slice.latencies.length <= 3 * 20, String(slice.latencies.length))
      assert.isTrue(slice.latencies.every((millis) => millis >= 9))
      assert.isTrue((slice.failures["Broken"] ?? 0) >= 1)
      assert.isTrue(slice.seconds >= 0.2)
    })
  )

  it("counts the processor time of a process and its children, new ones included", () => {
    const own = processorTimes([process.pid])
    assert.isTrue(own === null || own.has(process.pid))
    assert.strictEqual(
      spent(
        new Map([[1, 10]]),
        new Map([
          [1, 30],
          [2, 5]
        ])
      ),
      25
    )
    assert.isNull(spent(null, new Map()))
  })

  it("shows what it measured and what failed", () => {
    const figure = { p50: 1, p95: 2, p99: 3 }
    const document: BenchDocument = {
      backend: "pg",
      machine: { cores: 2, node: "v24", load: [1, 2] },
      seconds: 5,
      rounds: 5,
      rows: [
        {
          clients: 64,
          subject: "store",
          pairsPerSecond: { median: 1_000, min: 900, max: 1_100 },
          latencyMillis: figure,
          throughputRatio: { median: 5, min: 4, max: 6 },
          leasedRatio: null,
          latencyRatio: { median: 0.25, min: 0.2, max: 0.3 },
          cpuMicros: { service: 0, backend: 137, driver: null },
          failures: { BackendUnavailable: 2 }
        }
      ],
      service: {
        handOverMillis: figure,
        deadHolderMillis: figure,
        renewMillis: { alone: figure, storm: figure },
        failed: 1
      }
    }
    assert.notInclude(table(document), "to leased")
    const [row] = document.rows
    assert.isDefined(row)
    const etcd = { ...document, rows: [{ ...row, leasedRatio: { median: 1.7, min: 1.6, max: 1.8 } }] }
    assert.include(table(etcd), "1.70 (1.60..1.80)")
    const text = table(document)
    for (const part of ["1000 (900..1100)", "5.00 (4.00..6.00)", "0 + 137 + ?", "2 BackendUnavailable", "1 of these"]) {
      assert.include(text, part)
    }
  })
})
