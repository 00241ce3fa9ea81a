/** What `locks`, `sessions` and `tokens` print. */
import { Cause, Clock, Console, Effect, Exit } from "effect"
import type { AcquireId, FencingToken, LockKey } from "../../core/lock/Lock.ts"
import { Exited, exitCodeOf, exitCodes } from "../platform/ExitCodes.ts"
import { money } from "./Explain.ts"
import type { CommonFlags } from "./Flags.ts"
import type { LockView, WatchedLock } from "./LockAdmin.ts"
import * as Locks from "./Locks.ts"
import { confirm, operate, traceId } from "./Operate.ts"
import { type Column, details, json, show, span, table, time, told, type Told } from "./Printing.ts"
import * as Tokens from "./Tokens.ts"

/** Times of the store, so that two clocks are never compared; ages are by this machine's clock and only for the eye. */
const lockColumns = (now: number): ReadonlyArray<Column<LockView>> => [
  { title: "KEY", of: ({ key }) => key },
  { title: "HELD", of: ({ held }) => (held ? "yes" : "no") },
  { title: "TOKEN", of: ({ fencingToken }) => String(fencingToken) },
  { title: "OWNER", of: ({ ownerId }) => ownerId },
  { title: "GRANTED", of: ({ grantedAt }) => time(grantedAt) },
  {
    title: "LEASE",
    of: ({ expiresAt, held }) =>
      held ? (expiresAt > now ? `ends in ${span(expiresAt - now)}` : "about to end") : "over"
  },
  { title: "REVOKED", of: ({ lastRevocation }) => (lastRevocation === null ? "" : time(lastRevocation.at)) }
]

export const list = (
  flags: CommonFlags & { readonly prefix: string; readonly held: boolean; readonly limit: number }
) =>
  Effect.gen(function* () {
    const items = yield* Locks.list({ prefix: flags.prefix, heldOnly: flags.held, limit: flags.limit })
    const now = yield* Clock.currentTimeMillis
    yield* show(flags.json, { document: { items }, text: table(items, lockColumns(now), "no locks") })
  }).pipe(operate("locks list", flags))

export const sessions = (flags: CommonFlags & { readonly limit: number }) =>
  Effect.gen(function* () {
    const items = yield* Locks.sessions({ limit: flags.limit })
    yield* show(flags.json, {
      document: { items },
      text: table(
        items,
        [
          { title: "SESSION", of: ({ sessionId }) => sessionId },
          { title: "OWNER", of: ({ ownerId }) => ownerId },
          { title: "TTL", of: ({ ttlMillis }) => span(ttlMillis) },
          { title: "EXPIRES", of: ({ expiresAt }) => time(expiresAt) }
        ],
        "no sessions"
      )
    })
  }).pipe(operate("sessions list", flags))

const beneathText = (beneath: Locks.Beneath): string => {
  switch (beneath._tag) {
    case "Payout": {
      const { payout, submission } = beneath
      const record = submission === null ? "nothing submitted" : `submission ${submission.outcome}`
      return `payout ${payout.payoutId}, ${money(payout.amountMinor, payout.currency)}, CLAIMED under ${payout.claimToken}; ${record}; next step ${payout.nextStep}`
    }
    case "Idle":
      return beneath.pending === null
        ? `nothing of ${beneath.accountId} is claimed or pending`
        : `nothing is claimed; ${beneath.pending} is pending and may be claimed at any moment`
    case "Other":
      return "no payout: what this key protects only its holders know"
    case "Unknown":
      return `not known: ${beneath.cause}`
  }
}

const reportText = ({ beneath, lock }: Locks.LockReport): string =>
  details([
    ["key", lock.key],
    ["held", lock.held ? "yes" : "no"],
    ["token", `${lock.fencingToken}${lock.held ? "" : " (the last one)"}`],
    ["owner", lock.ownerId],
    ["session", lock.sessionId],
    ["granted", time(lock.grantedAt)],
    ["expires", time(lock.expiresAt)],
    ["waiters", `${lock.waiters} (of the instance that was asked)`],
    [
      "revoked",
      lock.lastRevocation === null
        ? undefined
        : `${time(lock.lastRevocation.at)} by ${lock.lastRevocation.operator}: ${lock.lastRevocation.reason}`
    ],
    ["beneath", beneathText(beneath)]
  ])

export const get = (flags: CommonFlags & { readonly key: LockKey }) =>
  Effect.gen(function* () {
    const report = yield* Locks.get(flags.key)
    yield* show(flags.json, { document: report, text: reportText(report) })
  }).pipe(operate("locks get", flags))

const holderText = (lock: WatchedLock) => `token ${lock.fencingToken}, ${lock.ownerId}, until ${time(lock.expiresAt)}`

const eventText = ({ at, cause, event, lock }: Locks.LockEvent): string => {
  const what =
    event === "granted" && lock !== null
      ? holderText(lock)
      : event === "revoked" && lock?.lastRevocation != null
        ? `by ${lock.lastRevocation.operator}: ${lock.lastRevocation.reason}`
        : event === "waiters" && lock !== null
          ? `${lock.waiters} wait`
          : event === "free" && lock !== null
            ? `last token ${lock.fencingToken}`
            : (cause ?? "")
  return `${time(at)}  ${event.padEnd(9)}  ${what}`.trimEnd()
}

export const watch = (
  flags: CommonFlags & {
    readonly key: LockKey
    readonly interval: number
    readonly until: "held" | "free" | undefined
  }
) =>
  Locks.watch({ key: flags.key, intervalMillis: flags.interval, until: flags.until }, (event) =>
    Console.log(flags.json ? json(event) : eventText(event))
  ).pipe(operate("locks watch", flags))

export const revoke = (
  flags: CommonFlags & {
    readonly key: LockKey
    readonly reason: string
    readonly operator: string | undefined
    readonly yes: boolean
    readonly fence: boolean
    readonly expectedToken: FencingToken | undefined
    readonly revocationId: AcquireId | undefined
  }
) =>
  Effect.gen(function* () {
    const { key, reason } = flags
    // A repeat is answered what the first one did, by then perhaps about a lock that is held by another or by nobody.
    const before = flags.revocationId === undefined ? yield* Locks.held(key) : undefined
    if (before !== undefined && !flags.json) yield* Console.error(reportText(before))
    yield* confirm(`Revoke ${key}? What its holder has begun can still land until the next claim.`, flags)
    const revocationId = flags.revocationId ?? (yield* Locks.newRevocationId)
    const revocation = yield* Locks.revoke({
      key,
      reason,
      revocationId,
      expectedToken: flags.expectedToken ?? before?.lock.fencingToken
    }).pipe(
      Effect.tapErrorTag(["BackendUnavailable", "NotLeader"], () =>
        Console.error(`whether it was revoked is not known; repeat it with --revocation-id ${revocationId}`)
      )
    )
    // The lock is revoked whatever becomes of the claim, and that is told in any case.
    const claim = flags.fence ? yield* Effect.exit(Locks.fenceNow(revocation)) : undefined
    if (claim !== undefined && Exit.isFailure(claim) && Cause.hasInterruptsOnly(claim.cause))
      return yield* Effect.interrupt
    const failure = claim !== undefined && Exit.isFailure(claim) ? told(Cause.squash(claim.cause)) : undefined
    const fenced = claim !== undefined && Exit.isSuccess(claim) ? claim.value : undefined
    const trace = yield* traceId
    yield* show(flags.json, {
      document: {
        ...revocation,
        beneath: before?.beneath ?? null,
        fenced: fenced ?? null,
        notFenced: failure ?? null,
        traceId: trace ?? null
      },
      text: [
        details([
          ["revoked token", String(revocation.revokedToken)],
          ["new token floor", `${revocation.newTokenFloor}: every later token is greater`],
          ["revocation id", revocation.revocationId],
          ["trace", trace],
          ["fenced", fencedText(fenced, failure)]
        ]),
        ...(fenced == null
          ? ["", "Writes under the revoked token can still land until the next claim; --fence claims at once."]
          : [])
      ].join("\n")
    })
    if (claim !== undefined && Exit.isFailure(claim)) return yield* new Exited({ code: exitCodeOf(claim.cause) })
  }).pipe(operate("locks revoke", flags))

const fencedText = (fenced: Locks.Fenced | null | undefined, failure: Told | undefined): string | undefined =>
  failure !== undefined
    ? `NO: ${failure.message} (${failure.code})`
    : fenced === undefined
      ? undefined
      : fenced === null
        ? "there is nothing to claim, so the next claim fences"
        : `payout ${fenced.payoutId} claimed under ${fenced.token}; the account's fence stands at ${fenced.fence}`

const floorText = ({ backend, floor: known, foreign, minted, raised, safe }: Tokens.TokenReport): string =>
  [
    details([
      ["floor", `${known}, the greatest token that a fence of paydb has accepted`],
      ["backend", `${backend}; the next token is above ${minted}${foreign ? ", of another history" : ""}`],
      ["raised", raised ? "yes" : undefined]
    ]),
    "",
    safe
      ? "Tokens are above the floor."
      : "TOKENS ARE BELOW THE FLOOR: no claim is accepted until they are raised. Stop every lock-server, then --raise."
  ].join("\n")

export const floor = (flags: CommonFlags & { readonly raise: boolean; readonly yes: boolean }) =>
  Effect.gen(function* () {
    if (flags.raise) yield* confirm("Raise the tokens of the lock backend above the floor?", flags)
    const report = yield* Tokens.floor(flags.raise)
    yield* show(flags.json, { document: report, text: floorText(report) })
    if (!report.safe) return yield* new Exited({ code: exitCodes.findings })
  }).pipe(operate("tokens floor", flags))
