// @effect-diagnostics nodeBuiltinImport:off
/** A run as JSON: enough to judge it again, to draw it again, and to have it again in the simulation. */
import { Effect, Schema } from "effect"
import { readFileSync } from "node:fs"
import { History } from "../core/History.ts"
import { fromLine, type RunSpec, toLine } from "../sim/RunSpec.ts"
import type { DrillReport } from "./DrillRun.ts"
import { HarnessError, type LogRecord } from "./Processes.ts"

/** JSON knows no infinity: null stands for it. */
const Time = Schema.NullOr(Schema.Finite)

const SavedCall = Schema.Struct({
  from: Schema.String,
  to: Schema.String,
  label: Schema.String,
  called: Schema.Finite,
  returned: Time,
  status: Schema.NullOr(Schema.Int),
  code: Schema.NullOr(Schema.String),
  owner: Schema.NullOr(Schema.String),
  key: Schema.NullOr(Schema.String),
  sessionId: Schema.NullOr(Schema.String),
  token: Schema.NullOr(Schema.BigInt),
  requestId: Schema.NullOr(Schema.String),
  payoutId: Schema.NullOr(Schema.String),
  reference: Schema.NullOr(Schema.String),
  waitMillis: Schema.Finite,
  granted: Schema.NullOr(Schema.BigInt),
  ttlMillis: Schema.Finite,
  expiresAt: Schema.NullOr(Schema.Finite),
  copy: Schema.Boolean
})

const SavedSpan = Schema.Struct({
  lane: Schema.String,
  kind: Schema.Literals(["pause", "down", "cut", "delay", "skew", "forgotten", "rewound"]),
  from: Schema.Finite,
  to: Time,
  text: Schema.String,
  peer: Schema.optionalKey(Schema.String)
})

const Saved = Schema.Struct({
  format: Schema.Literal("dlock-run-1"),
  name: Schema.String,
  backend: Schema.String,
  /** The plan as one line: what was added to plans since is as it was then. */
  line: Schema.String,
  paysLate: Schema.Boolean,
  boundMillis: Schema.Finite,
  faults: Schema.Array(Schema.String),
  history: History,
  calls: Schema.Array(SavedCall),
  spans: Schema.Array(SavedSpan),
  logs: Schema.Record(Schema.String, Schema.Array(Schema.Record(Schema.String, Schema.Unknown)))
})
export type SavedRun = typeof Saved.Type & { readonly spec: RunSpec }

const codec = Schema.fromJsonString(Schema.toCodecJson(Saved))
const encode = Schema.encodeEffect(codec)
const decode = Schema.decodeUnknownEffect(codec)
const decodeHistory = Schema.decodeUnknownEffect(Schema.fromJsonString(Schema.toCodecJson(History)))

const finite = (time: number) => (time === Infinity ? null : time)
const time = (saved: number | null) => saved ?? Infinity

/** Events with a name; what else is in the logs is for people. */
const named = (records: ReadonlyArray<LogRecord>) =>
  records.filter((record) => record["event"] !== undefined || record.level === "ERROR" || record.level === "FATAL")

const failed = (step: string) => (cause: unknown) => new HarnessError({ step, message: String(cause) })

export const toJson = (report: DrillReport): Effect.Effect<string, HarnessError> =>
  encode({
    format: "dlock-run-1",
    name: report.drill.name,
    backend: report.backend,
    line: toLine(report.spec),
    paysLate: report.drill.paysLate,
    boundMillis: report.drill.boundMillis,
    faults: report.dealt.map(({ fault, proof }) => `${fault}: ${proof ?? "not seen to take"}`),
    history: report.history,
    calls: report.calls.map((call) => ({ ...call, returned: finite(call.returned) })),
    spans: report.spans.map((span) => ({ ...span, to: finite(span.to) })),
    logs: Object.fromEntries(Object.entries(report.logs).map(([name, records]) => [name, named(records)]))
  }).pipe(Effect.mapError(failed("save the run")))

/** What was observed, as it was when the run was judged. */
export const observedOf = (saved: SavedRun) => ({
  history: saved.history,
  calls: saved.calls.map((call) => ({ ...call, returned: time(call.returned) })),
  spans: saved.spans.map((span) => ({ ...span, to: time(span.to) })),
  // Written by `named`, so they are log records.
  logs: saved.logs as unknown as Readonly<Record<string, ReadonlyArray<LogRecord>>>
})

const planned = (saved: typeof Saved.Type) =>
  Effect.try({ try: (): SavedRun => ({ ...saved, spec: fromLine(saved.line) }), catch: failed("read the plan") })

export type Read =
  | { readonly kind: "run"; readonly run: SavedRun }
  /** A bare history, as of a production ledger. */
  | { readonly kind: "history"; readonly history: History }

export const read = (file: string): Effect.Effect<Read, HarnessError> =>
  Effect.gen(function* () {
    const text = yield* Effect.try({ try: () => readFileSync(file, "utf8"), catch: failed(`read ${file}`) })
    return text.includes('"dlock-run-1"')
      ? { kind: "run" as const, run: yield* Effect.flatMap(decode(text), planned) }
      : { kind: "history" as const, history: yield* decodeHistory(text) }
  }).pipe(Effect.mapError((cause) => (cause instanceof HarnessError ? cause : failed(`read ${file}`)(cause))))
