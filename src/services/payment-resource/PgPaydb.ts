/**
 * paydb as a database: its migrations, and what only an experiment may change in it. Everything here needs a URL of a
 * role that may migrate; the services themselves connect as `dlock_payment` and `dlock_rail`.
 */
import { Effect, type Redacted } from "effect"
import type { SqlError } from "effect/sql"
import * as Migrations from "../platform/Migrations.ts"
import * as Pg from "../platform/Pg.ts"
import { type ConfigProblem, configProblem, type ServiceConfigValues } from "../platform/ServiceConfig.ts"

export const migrate = (url: Redacted.Redacted) =>
  Migrations.migrate({ url, directory: new URL("./migrations/", import.meta.url) })

/** Gives `dlock_lab` its rights. Never in production: there the role exists and may do nothing. */
export const migrateLab = (url: Redacted.Redacted) =>
  Migrations.migrate({ url, directory: new URL("./lab-migrations/", import.meta.url), table: "schema_migration_lab" })

/** When "not found at the rail" may be believed: `WINDOW,COUNT,SPACING`, durations in milliseconds. */
export interface LabPolicy {
  readonly finalityWindowMillis: number
  readonly minNotFound: number
  readonly minSpacingMillis: number
}

export const parseLabPolicy = (
  env: ServiceConfigValues["env"],
  text: string
): Effect.Effect<LabPolicy, ConfigProblem> => {
  if (env === "production") return Effect.fail(configProblem("--lab-policy", text, "nothing in production"))
  const [window, count, spacing] = (/^(\d{1,9}),([1-9]\d{0,2}),(\d{1,9})$/.exec(text) ?? []).slice(1).map(Number)
  return window === undefined || count === undefined || spacing === undefined
    ? Effect.fail(configProblem("--lab-policy", text, "WINDOW,COUNT,SPACING, the durations in milliseconds"))
    : Effect.succeed({ finalityWindowMillis: window, minNotFound: count, minSpacingMillis: spacing })
}

/** `migrate paydb --lab-policy WINDOW,COUNT,SPACING` */
export const applyLabPolicy = Effect.fnUntraced(function* (
  env: ServiceConfigValues["env"],
  url: Redacted.Redacted,
  text: string
) {
  const policy = yield* parseLabPolicy(env, text)
  yield* migrateLab(url)
  yield* setLabPolicy(url, policy)
})

export const setLabPolicy = (url: Redacted.Redacted, policy: LabPolicy): Effect.Effect<void, SqlError.SqlError> =>
  withOwner(
    url,
    (sql) => sql`UPDATE pay.rail_policy SET
      finality_window = ${policy.finalityWindowMillis}::float8 * interval '1 millisecond',
      min_not_found = ${policy.minNotFound}::int4,
      min_spacing = ${policy.minSpacingMillis}::float8 * interval '1 millisecond'`
  )

/** The database's half of the kill switches. The other half is the services' settings; both must agree. */
export const setSwitches = (
  url: Redacted.Redacted,
  enabled: { readonly resource: boolean; readonly rail: boolean }
): Effect.Effect<void, SqlError.SqlError> =>
  withOwner(
    url,
    (sql) => sql`UPDATE pay.fencing_switch
      SET enabled = CASE point WHEN 'resource' THEN ${enabled.resource}::boolean ELSE ${enabled.rail}::boolean END`
  )

const withOwner = (
  url: Redacted.Redacted,
  use: (sql: Effect.Success<ReturnType<typeof Pg.make>>) => Effect.Effect<unknown, SqlError.SqlError>
) =>
  Pg.make({ url, applicationName: "dlock-lab", maxConnections: 1 }).pipe(
    Effect.flatMap(use),
    Effect.asVoid,
    Effect.scoped
  )
