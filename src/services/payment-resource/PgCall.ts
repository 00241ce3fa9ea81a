/**
 * How payment-resource talks to PostgreSQL: every call bounded, every failure either an outage or a bug, and a
 * transaction that lost against another is run again, itself and nothing else.
 */
import type { PgClient } from "@effect/sql-pg"
import { Effect, Schedule } from "effect"
import { SqlError } from "effect/sql"
import { boundedBy } from "../../core/Bound.ts"
import { type BackendUnavailable, backendUnavailable } from "../../core/lock/LockErrors.ts"
import * as Pg from "../platform/Pg.ts"

/** What cannot be (a constraint we never violate, a statement that is wrong) dies; the rest may work later. */
const outage =
  (operation: string) =>
  (error: SqlError.SqlError): Effect.Effect<never, BackendUnavailable> => {
    const failure = Pg.classify(error)
    return failure._tag === "Outage"
      ? Effect.fail(backendUnavailable(operation, failure.code ?? failure.message))
      : Effect.die(error)
  }

/** A deadlock or serialization failure: certainly not applied. */
const lostARace = (error: SqlError.SqlError): boolean => {
  const { code } = Pg.classify(error)
  return code === "40001" || code === "40P01"
}

/**
 * The database refused what the transaction had found to be in order: between its look and its write the rail's answer
 * was recorded (DL003), or another transaction got there first. A second look says what is true now.
 */
const wasOutrun = (error: SqlError.SqlError): boolean => {
  const failure = Pg.classify(error)
  return failure._tag === "Sqlstate" && /^DL00[123]$|^23505$|^23514$/.test(failure.code)
}

const retries = { schedule: Schedule.jittered(Schedule.exponential("5 millis")), times: 4 }

const isSqlError = (error: unknown): error is SqlError.SqlError => SqlError.isSqlError(error)

export const make = (sql: PgClient.PgClient, timeoutMillis: number) => {
  /** The bound covers the wait for a connection and every repeat; a write that missed it may have been applied. */
  const bounded = <A, E, R>(
    operation: string,
    self: Effect.Effect<A, E, R>
  ): Effect.Effect<A, Exclude<E, SqlError.SqlError> | BackendUnavailable, R> =>
    Effect.catch(self, (error): Effect.Effect<never, Exclude<E, SqlError.SqlError> | BackendUnavailable> =>
      // The test does not narrow a type parameter.
      isSqlError(error) ? outage(operation)(error) : Effect.fail(error as Exclude<E, SqlError.SqlError>)
    ).pipe(boundedBy(timeoutMillis, () => backendUnavailable(operation, `no answer within ${timeoutMillis} ms`)))

  return {
    /** One statement, or several that need no common snapshot. */
    read: bounded,

    transaction: <A, E, R>(operation: string, self: Effect.Effect<A, E, R>) =>
      bounded(
        operation,
        // A connection that breaks in a transaction breaks its ROLLBACK too, and `withTransaction` makes a defect of
        // that. It is none: the server rolls back what nobody can commit any more.
        Effect.catchDefect(sql.withTransaction(self), (defect): Effect.Effect<never, SqlError.SqlError> =>
          isSqlError(defect) ? Effect.fail(defect) : Effect.die(defect)
        ).pipe(
          Effect.retry({ ...retries, while: (error) => isSqlError(error) && (lostARace(error) || wasOutrun(error)) })
        )
      )
  }
}
