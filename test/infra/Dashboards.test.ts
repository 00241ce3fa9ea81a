// @effect-diagnostics nodeBuiltinImport:off
/** The dashboards are what their source says, and ask only for what the services export. */
import { assert, describe, it } from "@effect/vitest"
import { parse } from "effect/encoding/Yaml"
import { execFileSync } from "node:child_process"
import * as fs from "node:fs"
import { asked, exported, problemsOf } from "./promql.ts"

interface Target {
  readonly expr: string
  readonly legendFormat: string
  readonly datasource: { readonly uid: string }
}
interface Panel {
  readonly id: number
  readonly title: string
  readonly gridPos: { readonly x: number; readonly y: number; readonly w: number; readonly h: number }
  readonly datasource: { readonly uid: string }
  readonly targets: ReadonlyArray<Target>
}
interface Dashboard {
  readonly uid: string
  readonly panels: ReadonlyArray<Panel>
  readonly annotations: { readonly list: ReadonlyArray<{ readonly expr: string }> }
}

const directory = "infra/grafana/dashboards"
const dashboards = fs
  .readdirSync(directory)
  .map((file) => [file, JSON.parse(fs.readFileSync(`${directory}/${file}`, "utf8")) as Dashboard] as const)
const rulesText = fs.readFileSync("infra/prometheus/rules/recording.yaml", "utf8")
const recorded = new Set(
  (parse(rulesText) as { groups: ReadonlyArray<{ rules: ReadonlyArray<{ record: string }> }> }).groups.flatMap(
    ({ rules }) => rules.map(({ record }) => record)
  )
)
const series = exported()

/** What is wrong with a panel, in words. */
const panelProblems = ({ datasource, targets }: Pick<Panel, "datasource" | "targets">): ReadonlyArray<string> =>
  targets.flatMap(({ datasource: own, expr, legendFormat }) => {
    const { groupings, selectors } = asked(expr)
    const labels = new Set([
      ...groupings,
      // Without an aggregation the series keep all labels.
      ...(groupings.length > 0 ? [] : ["job", "instance"]),
      ...selectors.flatMap(({ name }) => (groupings.length > 0 ? [] : [...(series.get(name)?.keys() ?? [])]))
    ])
    return [
      ...problemsOf(expr, series, recorded),
      ...[...legendFormat.matchAll(/\{\{(\w+)\}\}/g)].flatMap(([, label = ""]) =>
        labels.has(label) ? [] : [`the legend shows ${label}, which ${expr} has not`]
      ),
      ...(datasource.uid === "${datasource}" && own.uid === "${datasource}" ? [] : ["a data source of somebody's own"])
    ]
  })

describe("a panel", () => {
  const datasource = { uid: "${datasource}" }
  const planted: ReadonlyArray<readonly [target: Partial<Target>, problem: string]> = [
    [{ expr: "max(payout_backlog_seconds)" }, "nobody exports payout_backlog_seconds"],
    [{ expr: "max by (account) (payout_backlog)" }, "nothing here has the label account"],
    [{ expr: "sum by (op) (lock_fenced_out_total)", legendFormat: "{{point}}" }, "the legend shows point"],
    [{ expr: "max(payout_backlog)", datasource: { uid: "P1809F7CD0C75ACF3" } }, "a data source of somebody's own"]
  ]
  for (const [target, problem] of planted) {
    it(`is refused: ${problem}`, () => {
      const found = panelProblems({ datasource, targets: [{ expr: "", legendFormat: "", datasource, ...target }] })
      assert.isTrue(
        found.some((one) => one.startsWith(problem)),
        `found only: ${found.join("; ")}`
      )
    })
  }
})

describe("the dashboards", () => {
  it("are the four", () => {
    assert.deepStrictEqual(
      dashboards.map(([file, { uid }]) => [file, uid]),
      ["experiment", "locks", "money", "rail"].map((name) => [`${name}.json`, `dlock-${name}`])
    )
  })

  it("are what infra/grafana/dashboards.mjs says", () => {
    execFileSync(process.execPath, ["infra/grafana/dashboards.mjs", "--check"], { stdio: "pipe" })
  })

  for (const [file, { annotations, panels }] of dashboards) {
    it(`${file}: every panel can show something`, () => {
      assert.deepStrictEqual(
        panels.flatMap((panel) => panelProblems(panel).map((problem) => `${panel.title}: ${problem}`)),
        []
      )
      assert.deepStrictEqual(
        annotations.list.flatMap(({ expr }) => asked(expr).selectors.map(({ name }) => name)),
        ["ALERTS"]
      )
    })

    it(`${file}: no panel lies over another`, () => {
      const cells = panels.flatMap(({ gridPos: { h, w, x, y } }) => {
        assert.isAtMost(x + w, 24)
        return Array.from({ length: w * h }, (_, cell) => `${x + (cell % w)},${y + Math.floor(cell / w)}`)
      })
      assert.strictEqual(new Set(cells).size, cells.length)
      assert.strictEqual(new Set(panels.map(({ id }) => id)).size, panels.length)
    })
  }
})
