// @effect-diagnostics nodeBuiltinImport:off
/** The timeline of the paused worker, as it was recorded on real processes with the fences on and off, in a real browser. */
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { runPage } from "../../src/harness/RunPage.ts"
import { judgeRun } from "../../src/harness/RunJudge.ts"
import { observedOf, read } from "../../src/harness/SavedRun.ts"
import { timelinePage } from "../../src/harness/TimelinePage.ts"
import { chromium, open } from "../support/chromium.ts"

const recorded = (name: "on" | "off") =>
  Effect.map(read(`test/harness/runs/uc-03-${name}.json`), (found) => {
    if (found.kind === "history") throw new Error("the recorded run is no run")
    const { run } = found
    const observed = observedOf(run)
    const { boundMillis: bound, paysLate, spec } = run
    return runPage({
      ...observed,
      name: run.name,
      backend: run.backend,
      spec,
      verdicts: judgeRun({ ...observed, spec, paysLate, settled: true, bound }),
      faults: run.faults,
      end: "POSTED",
      replay: ["node dist/main.js scenario run 'uc-03 stale'"],
      facts: []
    })
  })

const page = Effect.map(Effect.all([recorded("on"), recorded("off")]), (runs) =>
  timelinePage("The paused worker", "Real processes.", runs)
)

describe("the timeline page", () => {
  it.effect("is one file that needs nothing but itself", () =>
    Effect.map(page, (html) => {
      assert.notMatch(html.replaceAll("http://www.w3.org/2000/svg", ""), /https?:\/\/|<link|@import|url\((?!#)|\bsrc=/i)
      assert.notInclude(timelinePage("<script>alert(1)</script>", "", []), "<script>alert")
    })
  )

  it.effect("says what happened in sentences, and where the belief of the stopped worker was wrong", () =>
    Effect.map(recorded("on"), ({ bars, brokenAt, fences, marks, story }) => {
      const told = story.join("\n")
      assert.match(told, /grants payout:\S+ to w1 with token 1/)
      assert.match(told, /w1 is stopped \(SIGSTOP\) at submit\.before/)
      assert.match(told, /rail-proxy refuses submit under token 1 of w1: FENCED_OUT, the fence stands at 2/)
      assert.deepStrictEqual(
        bars.filter(({ kind }) => kind === "hazard").map(({ lane, token }) => [lane, token]),
        [["w1", "1"]]
      )
      const stop = bars.find(({ kind }) => kind === "pause")
      const hazard = bars.find(({ kind }) => kind === "hazard")
      assert.isTrue(stop !== undefined && hazard !== undefined && hazard.from > stop.from && hazard.to <= stop.to + 1)
      assert.deepStrictEqual(
        fences.map(({ lane, token }) => `${lane} ${token}`),
        ["payment-resource 1", "payment-resource 2", "rail-proxy 2"]
      )
      assert.strictEqual(marks.filter(({ kind }) => kind === "refused").length, 3)
      assert.isNull(brokenAt)
    })
  )

  it.effect("marks where the first promise is broken when the fences are off", () =>
    Effect.map(recorded("off"), ({ brokenAt, marks }) => {
      const wrong = marks.filter(({ kind }) => kind === "wrong")
      assert.deepStrictEqual(
        wrong.map(({ label, lane }) => `${lane} ${label}`),
        ["rail PAID AGAIN", "payment-resource POSTED AGAIN"]
      )
      assert.strictEqual(brokenAt, wrong[0]?.at)
    })
  )
})

if (chromium === undefined) {
  console.warn("no Chromium on this machine: the timeline page is not opened in a browser")
}

describe.skipIf(chromium === undefined)("the timeline page in a browser", () => {
  it.live(
    "shows the refused writes, both tokens and the stop; its switch and its keys work; it asks nobody for anything",
    () =>
      Effect.gen(function* () {
        const directory = yield* Effect.acquireRelease(
          Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "dlock-page-"))),
          (made) => Effect.sync(() => fs.rmSync(made, { recursive: true, force: true }))
        )
        const file = path.join(directory, "page.html")
        fs.writeFileSync(file, yield* page)
        const { complaints, evaluate, press, requests } = yield* open(chromium ?? "", file)
        const picture = evaluate("document.getElementById('picture').textContent")
        const text = (id: string) => evaluate(`document.getElementById('${id}').textContent`)
        const count = (selector: string) => evaluate(`document.querySelectorAll(${JSON.stringify(selector)}).length`)

        const shown = String(yield* picture)
        for (const part of ["T1 to w1", "T2 to w2", "stopped", "FENCED OUT: 1 presented, fence 2", "fence 2"]) {
          assert.include(shown, part)
        }
        assert.strictEqual(yield* count("#picture .mark.refused"), 3)
        assert.strictEqual(yield* count("#picture rect.pause"), 1)
        assert.strictEqual(yield* count("#picture rect.hazard"), 1)
        assert.strictEqual(yield* count("#picture .broken"), 0)
        const colours = yield* evaluate(
          "[...new Set([...document.querySelectorAll('#picture .mark[data-token=\"2\"]')].map(e => e.getAttribute('fill')))].length"
        )
        assert.strictEqual(colours, 1, "one colour per token")
        assert.include(String(yield* text("verdicts")), "every promise was kept")

        // the switch
        yield* evaluate("document.querySelectorAll('input[name=run]')[1].click()")
        assert.include(String(yield* picture), "PAID AGAIN")
        assert.strictEqual(yield* count("#picture .broken"), 1)
        assert.match(String(yield* text("verdicts")), /INV-02.*the rail paid 2 times/)

        // the keys
        yield* press("e")
        assert.match(String(yield* text("now")), /rail pays the same payout AGAIN/)
        const broken = Number.parseInt(String(yield* text("now")))
        yield* press("p")
        assert.strictEqual(Number.parseInt(String(yield* text("now"))), broken - 1)
        yield* press("n")
        assert.strictEqual(Number.parseInt(String(yield* text("now"))), broken)
        yield* press("f")
        assert.strictEqual(yield* count("#picture .broken"), 0)
        yield* evaluate("document.getElementById('next').click()")
        assert.match(String(yield* text("now")), /^1 of \d+: /)

        // who does not see
        assert.match(
          String(yield* evaluate("document.getElementById('picture').getAttribute('aria-label')")),
          /ledger fence on.*events/
        )
        assert.strictEqual(yield* evaluate("document.getElementById('now').getAttribute('aria-live')"), "polite")
        assert.isAbove(Number(yield* count("#story li")), 10)
        assert.strictEqual(yield* evaluate("document.documentElement.lang"), "en")

        assert.deepStrictEqual(complaints(), [])
        assert.deepStrictEqual(
          requests().filter((request) => !request.includes('"url":"file://')),
          []
        )
      }).pipe(Effect.scoped),
    60_000
  )
})
