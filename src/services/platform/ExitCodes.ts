/**
 * What the exit code of a command says (0 is done): a script can tell "refused" from "unavailable" from "unknown, do
 * not repeat" without reading a word.
 */
import { Cause, Schema } from "effect"

export const exitCodes = {
  unexpected: 1,
  usage: 2,
  notFound: 3,
  refused: 4,
  findings: 5,
  unavailable: 6,
  outcomeUnknown: 7,
  interrupted: 130
} as const
export type ExitCode = (typeof exitCodes)[keyof typeof exitCodes]

/** Ends the process with this code; whatever is to be said has been said already. */
export class Exited extends Schema.TaggedError<Exited>()("Exited", {
  code: Schema.Literals([1, 2, 3, 4, 5, 6, 7, 130])
}) {}

/** By tag of the failure, so that it covers failures of every layer, and nothing has to be imported for it. */
const byTag: Readonly<Record<string, ExitCode>> = {
  ConfigProblem: exitCodes.usage,
  LabPolicyRefused: exitCodes.usage,
  ValidationFailed: exitCodes.usage,
  InvalidToken: exitCodes.usage,

  LockNotFound: exitCodes.notFound,
  SessionUnknown: exitCodes.notFound,
  PayoutNotFound: exitCodes.notFound,
  AccountNotFound: exitCodes.notFound,

  LockContended: exitCodes.refused,
  ContentionExceeded: exitCodes.refused,
  LockLost: exitCodes.refused,
  FencedOut: exitCodes.refused,
  SessionExpired: exitCodes.refused,
  IllegalTransition: exitCodes.refused,
  TokenAlreadyUsed: exitCodes.refused,
  AccountBusy: exitCodes.refused,
  EvidenceMissing: exitCodes.refused,
  InsufficientFunds: exitCodes.refused,
  DuplicateSubmission: exitCodes.refused,
  RailDeclined: exitCodes.refused,

  BackendUnavailable: exitCodes.unavailable,
  NotLeader: exitCodes.unavailable,
  LockUnavailable: exitCodes.unavailable,
  RailNoAnswer: exitCodes.unavailable,
  SqlError: exitCodes.unavailable,
  HttpClientError: exitCodes.unavailable,
  EmbeddedPostgresError: exitCodes.unavailable,

  RailAmbiguous: exitCodes.outcomeUnknown
}

export const exitCodeOf = (cause: Cause.Cause<unknown>): ExitCode => {
  if (Cause.hasInterruptsOnly(cause)) return exitCodes.interrupted
  const failure: unknown = Cause.squash(cause)
  if (failure instanceof Exited) return failure.code
  if (typeof failure !== "object" || failure === null || !("_tag" in failure)) return exitCodes.unexpected
  // A schema that does not fit is somebody's bug; a database that is away is not.
  if (failure._tag === "MigrationError") {
    return "reason" in failure && failure.reason === "unavailable" ? exitCodes.unavailable : exitCodes.unexpected
  }
  return byTag[String(failure._tag)] ?? exitCodes.unexpected
}
