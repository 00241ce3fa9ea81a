/**
 * A line of the log with its fields, where it is written on every request: below the level that is asked for it is one
 * operation, and no context is made for the fields.
 */
import { Effect, LogLevel, References } from "effect"

type Fields = Readonly<Record<string, unknown>>

const line =
  (level: LogLevel.Severity) =>
  (message: string, fields: Fields): Effect.Effect<void> =>
    Effect.withFiber((fiber) =>
      LogLevel.isGreaterThan(fiber.getRef(References.MinimumLogLevel), level)
        ? Effect.void
        : Effect.annotateLogs(Effect.logWithLevel(level)(message), fields)
    )

export const logInfo = line("Info")
export const logError = line("Error")
