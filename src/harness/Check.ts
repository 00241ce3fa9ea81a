// @effect-diagnostics nodeBuiltinImport:off
/**
 * `check`: INV-01 to INV-08 again, on a saved run or history, or on the paydb, rail and lock backend that are running now.
 * Exit 5 when one is violated.
 */
import * as NodeHttpClient from "@effect/platform-node/NodeHttpClient"
import { Console, Effect } from "effect"
import { type History } from "../core/History.ts"
import { judge } from "../core/Invariants.ts"
import type { Verdict } from "../sim/Judge.ts"
import { Exited, exitCodes } from "../services/platform/ExitCodes.ts"
import * as ServiceConfig from "../services/platform/ServiceConfig.ts"
import { collect } from "./Evidence.ts"
import { pgEvents } from "./LockBackends.ts"
import { judgeRun } from "./RunJudge.ts"
import { observedOf, read } from "./SavedRun.ts"

export interface CheckOptions {
  readonly file: string | undefined
  /** Settings of a running system. */
  readonly config: string | undefined
  readonly json: boolean
}

interface Judged {
  readonly what: string
  readonly history: History
  readonly verdicts: ReadonlyArray<Verdict>
}

const ofHistory = (what: string, history: History): Judged => ({
  what,
  history,
  verdicts: judge(history).map(({ detail, invariant, subject }) => ({ check: invariant, subject, detail }))
})

const saved = (file: string) =>
  Effect.map(read(file), (found): Judged => {
    if (found.kind === "history") return ofHistory(file, found.history)
    const { run } = found
    const observed = observedOf(run)
    const { settled } = run.history
    return {
      what: `${run.name} on ${run.backend}, ${file}`,
      history: run.history,
      verdicts: judgeRun({ ...observed, spec: run.spec, paysLate: run.paysLate, settled, bound: run.boundMillis })
    }
  })

/**
 * What is running now, as its own tables and the rail's book show it. Payouts may be under way, so what holds only in the end
 * is not asked; the lock audit is read where it is in PostgreSQL.
 */
const running = Effect.fnUntraced(function* (file: string | undefined) {
  const config = yield* ServiceConfig.load("payment-resource", { file })
  const { lock, payment, rail } = config
  if (payment.pg.url === undefined) {
    return yield* ServiceConfig.configProblem(
      payment.pg.setting,
      "not set",
      "the URL of a role that may read all of paydb"
    )
  }
  const lockdb = lock.pg.url
  const history = yield* collect({
    paydb: payment.pg.url,
    railUrl: rail.url,
    settled: false,
    acceptedAtRail: true,
    ...(lockdb === undefined ? {} : { lock: (keys) => pgEvents(lockdb, keys) })
  })
  return ofHistory(
    lockdb === undefined ? "paydb and the rail, without a lock audit" : "lockdb, paydb and the rail",
    history
  )
})

export const run = Effect.fnUntraced(
  function* (options: CheckOptions) {
    const { history, verdicts, what } = yield* options.file === undefined
      ? running(options.config)
      : saved(options.file)
    const counts = {
      payouts: history.payouts.length,
      transitions: history.transitions.length,
      submissions: history.submissions.length,
      payments: history.rail.length,
      journals: history.journals.length,
      lockEvents: history.lock.length
    }
    if (options.json) yield* Console.log(JSON.stringify({ what, ...counts, violations: verdicts }))
    else {
      yield* Console.log(
        `${what}: ${Object.entries(counts)
          .map(([name, count]) => `${count} ${name}`)
          .join(", ")}`
      )
      for (const { check, detail, subject } of verdicts) yield* Console.log(`VIOLATION ${check} ${subject}: ${detail}`)
      if (verdicts.length === 0) yield* Console.log("no violation")
    }
    if (verdicts.length > 0) return yield* new Exited({ code: exitCodes.findings })
  },
  // @effect-diagnostics-next-line strictEffectProvide:off (this is the entry point of the command)
  Effect.provide(NodeHttpClient.layerUndici)
)
