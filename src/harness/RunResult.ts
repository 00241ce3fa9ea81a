/** What came of a run: as expected, or not, or nothing. */
import type { FencingSwitches } from "../core/Fencing.ts"
import type { DrillReport } from "./DrillRun.ts"
import type { Drill } from "./Drills.ts"
import type { HarnessError } from "./Processes.ts"
import { isHarmOf } from "./RunJudge.ts"

/** What came of one run. `not run`: the experiment itself failed, which says nothing of the system. */
export type Result =
  | { readonly outcome: "held" | "corrupted"; readonly ok: true; readonly report: DrillReport; readonly round: number }
  | {
      readonly outcome: "violated" | "unproven"
      readonly ok: false
      readonly report: DrillReport
      readonly round: number
    }
  | {
      readonly outcome: "not run"
      readonly ok: false
      readonly drill: Drill
      readonly error: HarnessError
      readonly round: number
    }

/** With every fence on nothing may be violated; with one off exactly its harm must be done. */
export const resultOf = (report: DrillReport, switches: FencingSwitches, round: number): Result => {
  const unproven = report.missing.length > 0 || report.dealt.some(({ proof }) => proof === undefined)
  const on = switches.payment && switches.rail
  if (on ? report.verdicts.length > 0 : !isHarmOf(report.verdicts, switches)) {
    return { outcome: "violated", ok: false, report, round }
  }
  // What a fence refuses is not promised where it is off.
  if (on && unproven) return { outcome: "unproven", ok: false, report, round }
  return { outcome: on ? "held" : "corrupted", ok: true, report, round }
}

export const nameOf = (result: Result): string =>
  result.outcome === "not run" ? result.drill.name : result.report.drill.name
