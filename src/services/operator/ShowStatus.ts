/** What `fencing status` and `doctor` print. Both end with 5 when something is not as it should be. */
import { Effect } from "effect"
import { TerminalCapabilities } from "effect/cli"
import { Exited, exitCodes } from "../platform/ExitCodes.ts"
import { ServiceConfig } from "../platform/ServiceConfig.ts"
import type { Check } from "./Check.ts"
import { examine } from "./Doctor.ts"
import * as Fencing from "./Fencing.ts"
import type { CommonFlags } from "./Flags.ts"
import { operate } from "./Operate.ts"
import { show, table } from "./Printing.ts"

export const fencing = (flags: CommonFlags) =>
  Effect.gen(function* () {
    const { payment, rail } = yield* ServiceConfig
    const points = yield* Fencing.status({ payment: payment.url, rail: rail.proxyUrl })
    yield* show(flags.json, {
      document: { points },
      text: table(
        points,
        [
          { title: "POINT", of: ({ point }) => point },
          { title: "FENCE", of: ({ verdict }) => verdict },
          { title: "SETTING", of: ({ setting }) => setting },
          { title: "DATABASE", of: ({ database }) => database },
          {
            title: "UNFENCED ROWS",
            of: ({ unfencedRows }) => (unfencedRows === null ? "unknown" : unfencedRows ? "YES" : "none")
          },
          { title: "SERVICE", of: ({ cause, service }) => (cause === null ? service : `${service}: ${cause}`) }
        ],
        ""
      )
    })
    // Nobody could be asked: that is no finding about the fences.
    if (points.every(({ verdict }) => verdict === "unknown")) return yield* new Exited({ code: exitCodes.unavailable })
    if (points.some(({ verdict }) => verdict !== "on")) return yield* new Exited({ code: exitCodes.findings })
  }).pipe(operate("fencing status", flags))

const colours = { ok: "\u001b[32m", warn: "\u001b[33m", FAIL: "\u001b[31m", skipped: "\u001b[2m" } as const

const checkText = (check: Check, color: boolean, width: number): string => {
  const status = check.status.padEnd(7)
  const head = `${color ? `${colours[check.status]}${status}\u001b[0m` : status}  ${check.name.padEnd(width)}  ${check.found}`
  return check.advice === undefined ? head : `${head}\n${" ".repeat(width + 11)}${check.advice}`
}

export const doctor = (flags: CommonFlags) =>
  Effect.gen(function* () {
    const checks = yield* examine
    const { canColor } = yield* TerminalCapabilities.TerminalCapabilities
    const width = Math.max(...checks.map(({ name }) => name.length))
    const failed = checks.filter(({ status }) => status === "FAIL").length
    const skipped = checks.filter(({ status }) => status === "skipped").length
    const verdict =
      failed > 0 ? `${failed} of ${checks.length} checks FAILED` : `${checks.length - skipped} checks, none failed`
    yield* show(flags.json, {
      document: { checks, healthy: failed === 0 },
      text: [
        ...checks.map((check) => checkText(check, canColor, width)),
        "",
        skipped > 0 ? `${verdict}; ${skipped} could not be made` : verdict
      ].join("\n")
    })
    if (failed > 0) return yield* new Exited({ code: exitCodes.findings })
  }).pipe(operate("doctor", flags))
