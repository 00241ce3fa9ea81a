/**
 * The readiness component `payDb`: paydb answers, its guards are in place, and the two keys of the kill switch agree.
 * A database that an experiment wrote to is never ready in production.
 */
import { Effect, Metric, Schedule, Schema, type Scope } from "effect"
import type { BackendUnavailable } from "../../core/lock/LockErrors.ts"
import type { ReadinessCheck } from "./Management.ts"
import { ServiceConfig } from "./ServiceConfig.ts"

/** An error that occurs when triggers, indexes or privileges of paydb are not as they must be. */
export class GuardsMissing extends Schema.TaggedError<GuardsMissing>()("GuardsMissing", {
  missing: Schema.Array(Schema.String)
}) {
  override get message(): string {
    return this.missing.join("; ")
  }
}

/** An error that occurs when one key of a kill switch is turned and the other is not. */
export class FencingDisagrees extends Schema.TaggedError<FencingDisagrees>()("FencingDisagrees", {
  setting: Schema.Boolean,
  database: Schema.Boolean
}) {
  override get message(): string {
    return `the setting says ${this.setting}, pay.fencing_switch says ${this.database}`
  }
}

/** An error that occurs in production when rows were written while a fence was off. */
export class UnfencedRows extends Schema.TaggedError<UnfencedRows>()("UnfencedRows", {}) {
  override get message(): string {
    return "an experiment has written to this database: see the view pay.unfenced_row"
  }
}

type Guards = Effect.Effect<
  { readonly missing: ReadonlyArray<string>; readonly switchOn: boolean; readonly unfencedRows: boolean },
  BackendUnavailable
>

/**
 * `guards` of `PaymentStore` or `SubmissionStore`; `fencingEnabled` is the setting of the fence point behind it; `shown` is
 * the gauge of the database's half of its switch, kept up to date while the scope is open.
 */
export const check = (
  guards: Guards,
  fencingEnabled: boolean,
  shown: Metric.Gauge<number>
): Effect.Effect<ReadinessCheck, never, ServiceConfig | Scope.Scope> =>
  Effect.map(Effect.andThen(watch(guards, shown), ServiceConfig), ({ env }) => ({
    name: "payDb",
    run: Effect.gen(function* () {
      const { missing, switchOn, unfencedRows } = yield* guards
      if (missing.length > 0) return yield* new GuardsMissing({ missing })
      if (switchOn !== fencingEnabled) {
        return yield* new FencingDisagrees({ setting: fencingEnabled, database: switchOn })
      }
      if (unfencedRows && env === "production") return yield* new UnfencedRows()
      return { fencing: switchOn ? "on" : "OFF", unfencedRows }
    })
  }))

/** Nobody may ask for readiness, and a switch that is turned must show all the same. While paydb is away the gauge stays. */
const watch = (guards: Guards, shown: Metric.Gauge<number>): Effect.Effect<void, never, Scope.Scope> =>
  guards.pipe(
    Effect.flatMap(({ switchOn }) => Metric.update(shown, switchOn ? 1 : 0)),
    Effect.ignore,
    Effect.repeat(Schedule.spaced("10 seconds")),
    Effect.forkScoped,
    Effect.asVoid
  )
