/**
 * What a service does to be safe, as a library: a fence in a PostgreSQL table, one statement inside the transaction that
 * does the protected write.
 *
 *     const fence = PgFence.make(sql, { point: "resource", table: "my_fence", resource: "name", highest: "token" })
 *
 *     Effect.gen(function* () {
 *       yield* fence.claim("claim", "invoice-7", token)          // fails with FencedOut, and the transaction rolls back
 *       yield* sql`UPDATE invoice SET .. WHERE name = 'invoice-7'`
 *     }).pipe(sql.withTransaction)
 *
 * **The predicate must sit on a row that this transaction changes or locks.** A joined predicate is no fence. Under READ
 * COMMITTED the row it joins may be changed by another transaction that commits before this one:
 *
 *     W1   UPDATE invoice .. FROM fence WHERE fence.token = 7      sees 7, waits for the row of invoice
 *     W2   claims 8 and commits
 *     W1   gets the row of invoice and writes it, under 7
 *
 * Here W1 holds the row of the fence from its first statement on, so W2 waits for W1 to commit, or W1 is refused. The
 * fence comes first in every transaction: rows are then locked in one order, and nobody deadlocks. FOR NO KEY UPDATE, not
 * FOR UPDATE: the latter waits for the KEY SHARE locks that every foreign key to the row takes, and deadlocks with them.
 */
import type { PgClient } from "@effect/sql-pg"
import { Effect } from "effect"
import type { SqlError, Statement } from "effect/sql"
import type { FencingToken } from "../../core/lock/Lock.ts"
import { FencedOut } from "../../core/lock/LockErrors.ts"

export interface PgFenceOptions {
  /** For the failure: which fence point refused. */
  readonly point: FencedOut["point"]
  /** Such as `pay.account`. */
  readonly table: string
  /** The column that names what is protected; unique. */
  readonly resource: string
  /** The int8 column with the greatest token seen. */
  readonly highest: string
  /**
   * `exist`: the table has a row for every resource already. `inserted` (default): the first claim makes it; what else
   * the row has comes in `also`.
   */
  readonly rows?: "exist" | "inserted"
  /** False in an experiment only: the same statements without their predicate. */
  readonly enabled?: boolean
}

type Op = FencedOut["op"]
/** Columns to write in the row of the fence with the token, such as what it was spent on. */
type Also = Readonly<Record<string, Statement.Fragment>>

export interface PgFence {
  /** Takes the fence to `token`, if it is greater than every token seen. One token claims once. */
  readonly claim: (
    op: Op,
    resource: string,
    token: FencingToken,
    also?: Also
  ) => Effect.Effect<void, FencedOut | SqlError.SqlError>
  /** The same, but a holder may do it again under the token that the fence stands at. */
  readonly adopt: (
    op: Op,
    resource: string,
    token: FencingToken,
    also?: Also
  ) => Effect.Effect<void, FencedOut | SqlError.SqlError>
  /** Locks the row, if the fence stands at exactly `token`. `highest` below `presented`: it was never claimed. */
  readonly hold: (op: Op, resource: string, token: FencingToken) => Effect.Effect<void, FencedOut | SqlError.SqlError>
}

export const make = (sql: PgClient.PgClient, options: PgFenceOptions): PgFence => {
  const { enabled = true, point, rows = "inserted" } = options
  const table = sql(options.table)
  const name = sql(options.resource)
  const highest = sql(options.highest)

  const advance = (bound: "<" | "<=") => {
    const predicate = (seen: Statement.Fragment | Statement.Identifier, token: unknown) =>
      enabled ? sql`${seen} ${sql.literal(bound)} ${token}` : sql`true`
    return (op: Op, resource: string, token: FencingToken, also: Also = {}) => {
      const columns = Object.entries(also)
      const statement =
        rows === "exist"
          ? sql`UPDATE ${table} SET ${sql.csv([
              sql`${highest} = ${token}`,
              ...columns.map(([column, value]) => sql`${sql(column)} = ${value}`)
            ])} WHERE ${name} = ${resource} AND ${predicate(highest, token)} RETURNING ${name}`
          : sql`INSERT INTO ${table} AS seen
              (${sql.csv([options.resource, options.highest, ...Object.keys(also)].map((column) => sql`${sql(column)}`))})
              VALUES (${sql.csv([sql`${resource}`, sql`${token}`, ...Object.values(also)])})
              ON CONFLICT (${name}) DO UPDATE SET ${sql.csv(
                [options.highest, ...Object.keys(also)].map(
                  (column) => sql`${sql(column)} = ${sql(`excluded.${column}`)}`
                )
              )} WHERE ${predicate(sql(`seen.${options.highest}`), token)} RETURNING ${sql(`seen.${options.resource}`)}`
      return passes(op, resource, token, statement)
    }
  }

  const passes = <A extends object>(op: Op, resource: string, token: FencingToken, statement: Statement.Statement<A>) =>
    Effect.gen(function* () {
      if ((yield* statement).length > 0) return
      const [row] = yield* sql<{
        highest: bigint
      }>`SELECT ${highest} AS highest FROM ${table} WHERE ${name} = ${resource}`
      return yield* new FencedOut({ point, op, resource, presented: token, highest: row?.highest ?? 0n })
    })

  return {
    claim: advance("<"),
    adopt: advance("<="),
    hold: (op, resource, token) =>
      passes(
        op,
        resource,
        token,
        sql`SELECT ${name} FROM ${table} WHERE ${name} = ${resource} AND ${enabled ? sql`${highest} = ${token}` : sql`true`}
            FOR NO KEY UPDATE`
      )
  }
}

/**
 * The table that a fence of its own needs, for a service's migrations. The trigger holds also against statements that
 * do not come from here.
 */
export const migration = (options: Pick<PgFenceOptions, "table" | "resource" | "highest">): string => {
  const { highest, resource, table } = options
  return `
CREATE TABLE ${table} (
  ${resource} text PRIMARY KEY,
  ${highest} bigint NOT NULL CHECK (${highest} > 0)
);
CREATE FUNCTION ${table}_monotonic() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR NEW.${highest} < OLD.${highest} OR NEW.${resource} <> OLD.${resource} THEN
    RAISE EXCEPTION 'the fence of % only rises', OLD.${resource} USING ERRCODE = 'DL001';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER monotonic BEFORE UPDATE OR DELETE ON ${table} FOR EACH ROW EXECUTE FUNCTION ${table}_monotonic();
`
}
