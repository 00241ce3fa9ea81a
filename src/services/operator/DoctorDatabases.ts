/**
 * The settings of the two PostgreSQL servers on which the argument rests, asked of the servers themselves: a grant or a
 * fence that an acknowledged commit can lose is what all of this is against.
 */
import { Clock, Effect, type Redacted } from "effect"
import type { SqlError } from "effect/sql"
import { boundedBy } from "../../core/Bound.ts"
import { backendUnavailable, type BackendUnavailable } from "../../core/lock/LockErrors.ts"
import * as Database from "../platform/Database.ts"
import * as Pg from "../platform/Pg.ts"
import { ServiceConfig } from "../platform/ServiceConfig.ts"
import { type Check, fail, ok, skipped, warn } from "./Check.ts"

export interface ServerSettings {
  readonly fsync: string
  readonly full_page_writes: string
  readonly synchronous_commit: string
  readonly synchronous_standby_names: string
  readonly default_transaction_isolation: string
  readonly server_version_num: string
  readonly standby: boolean
}

/** What the server's settings mean; pure, so that each unsafe one is tried in a test. */
export const settingChecks = (name: string, found: ServerSettings): ReadonlyArray<Check> => {
  const wanted = (setting: keyof ServerSettings, good: ReadonlyArray<string>, why: string): Check => {
    const value = String(found[setting])
    return good.includes(value)
      ? ok(`${name} ${setting}`, value)
      : fail(`${name} ${setting}`, value, `set it to ${good.join(" or ")}: ${why}`)
  }
  return [
    wanted("fsync", ["on"], "without it a crash of the machine takes back what was acknowledged"),
    wanted("full_page_writes", ["on"], "without it a crash can leave half a page"),
    wanted(
      "synchronous_commit",
      ["on", "remote_apply"],
      "with anything less an acknowledged grant or fence may be forgotten"
    ),
    wanted(
      "default_transaction_isolation",
      ["read committed"],
      "the statements look again after they waited for a row"
    ),
    found.standby
      ? fail(`${name} role`, "a standby", "point the setting at the primary")
      : ok(`${name} role`, "the primary"),
    Number(found.server_version_num) >= 160_000
      ? ok(`${name} version`, found.server_version_num)
      : fail(`${name} version`, found.server_version_num, "PostgreSQL 16 or newer"),
    found.synchronous_standby_names.trim() === ""
      ? warn(
          `${name} standby`,
          "no synchronous one",
          "with a standby, make it synchronous: a failover must not forget a grant or a fence"
        )
      : ok(`${name} standby`, found.synchronous_standby_names)
  ]
}

interface Sequence {
  readonly cache: bigint
  readonly cycles: boolean
  readonly increment: bigint
}

export const sequenceCheck = (found: Sequence | undefined): Check => {
  const name = "lockdb token sequence"
  if (found === undefined) return fail(name, "not there", "run `migrate lockdb`")
  return found.cache !== 1n || found.cycles || found.increment !== 1n
    ? fail(
        name,
        `cache ${found.cache}, increment ${found.increment}${found.cycles ? ", cycles" : ""}`,
        "ALTER SEQUENCE lock.lock_token_seq CACHE 1 INCREMENT 1 NO CYCLE: with a cache a later grant can get a smaller token"
      )
    : ok(name, "cache 1, never cycles")
}

const empty = (name: string, rows: ReadonlyArray<string>, advice: string): Check =>
  rows.length === 0 ? ok(name, "all in place") : fail(name, rows.slice(0, 5).join("; "), advice)

const inspect = (name: "lockdb" | "paydb", url: Redacted.Redacted) =>
  Effect.gen(function* () {
    const sql = yield* Pg.make({ url, applicationName: "dlock-doctor", maxConnections: 1 })
    const sent = yield* Clock.currentTimeMillis
    const [row] = yield* sql<ServerSettings & { readonly now: number }>`
      SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
             current_setting('synchronous_commit') AS synchronous_commit,
             current_setting('synchronous_standby_names') AS synchronous_standby_names,
             current_setting('default_transaction_isolation') AS default_transaction_isolation,
             current_setting('server_version_num') AS server_version_num, pg_is_in_recovery() AS standby,
             (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now`
    const received = yield* Clock.currentTimeMillis
    if (row === undefined) return []
    const ahead = row.now - (sent + received) / 2
    const [schema] = yield* sql<{ there: boolean }>`
      SELECT to_regclass(${name === "lockdb" ? "lock.lock_grant" : "pay.payout"}::text) IS NOT NULL AS there`
    const checks: Array<Check> = [
      ...settingChecks(name, row),
      Math.abs(ahead) > 1_000
        ? warn(
            `${name} clock`,
            `${(Math.abs(ahead) / 1_000).toFixed(1)} s ${ahead > 0 ? "ahead of" : "behind"} this machine`,
            "let both follow NTP"
          )
        : ok(`${name} clock`, `${Math.round(ahead)} ms from this machine's`),
      schema?.there === true
        ? ok(`${name} schema`, "there")
        : fail(`${name} schema`, "missing", `run \`migrate ${name}\` as a role that may create it`)
    ]
    if (schema?.there !== true) return checks
    if (name === "lockdb") {
      const [sequence] = yield* sql<Sequence>`
        SELECT seqcache AS cache, seqcycle AS cycles, seqincrement AS increment FROM pg_sequence
         WHERE seqrelid = to_regclass('lock.lock_token_seq')`
      const guards = yield* sql<{ guard: string }>`SELECT guard FROM lock.guard_missing`
      return [
        ...checks,
        sequenceCheck(sequence),
        empty(
          "lockdb guards",
          guards.map(({ guard }) => guard),
          "restore them; until then lock-server is not ready"
        )
      ]
    }
    const guards = yield* sql<{ missing: string }>`SELECT missing FROM pay.guard_missing`
    const violations = yield* sql<{ invariant: string; subject: string }>`
      SELECT invariant, subject FROM pay.invariant_violation LIMIT 5`
    return [
      ...checks,
      empty(
        "paydb guards",
        guards.map(({ missing }) => missing),
        "restore them; until then its services are not ready"
      ),
      empty(
        "paydb invariants",
        violations.map(({ invariant, subject }) => `${invariant} ${subject}`),
        "docs/runbooks/ledger-invariant.md"
      )
    ]
  }).pipe(
    Effect.catchTag("SqlError", (error: SqlError.SqlError): Effect.Effect<never, BackendUnavailable> =>
      Effect.fail(backendUnavailable(name, Pg.classify(error).message))
    ),
    boundedBy(5_000, () => backendUnavailable(name, "no answer in 5 s")),
    Effect.scoped,
    Effect.catchTag("BackendUnavailable", ({ cause }) =>
      Effect.succeed([
        fail(name, cause, "the doctor looks as who may read settings and sequences: give it the URL of such a role")
      ])
    )
  )

export const databaseChecks = Effect.fnUntraced(function* (withLockdb: boolean) {
  const { lock, payment } = yield* ServiceConfig
  const each = (name: "lockdb" | "paydb", endpoint: typeof lock.pg) =>
    Effect.flatMap(Database.existing(name, endpoint), (url) =>
      url === undefined
        ? Effect.succeed([
            skipped(
              name,
              `${endpoint.setting} is not set`,
              "set it, as a role that may read settings, to have the server checked"
            )
          ])
        : inspect(name, url)
    )
  const both = yield* Effect.all(
    [withLockdb ? each("lockdb", lock.pg) : Effect.succeed([]), each("paydb", payment.pg)],
    {
      concurrency: "unbounded"
    }
  )
  return both.flat()
})
