/** What `payouts` and `reconcile` print. */
import { Clock, Console, Effect } from "effect"
import type { AcquireId } from "../../core/lock/Lock.ts"
import type { AccountId, Payout, PayoutId, PayoutState, PayoutTransition } from "../../core/payment/Payout.ts"
import { Exited, exitCodes } from "../platform/ExitCodes.ts"
import { ServiceConfig } from "../platform/ServiceConfig.ts"
import * as Explain from "./Explain.ts"
import type { CommonFlags } from "./Flags.ts"
import { confirm, operate, traceId } from "./Operate.ts"
import * as Payouts from "./Payouts.ts"
import { type Column, details, show as print, table, time } from "./Printing.ts"
import * as Reconcile from "./Reconcile.ts"

const payoutColumns: ReadonlyArray<Column<Payout>> = [
  { title: "PAYOUT", of: ({ payoutId }) => payoutId },
  { title: "ACCOUNT", of: ({ accountId }) => accountId },
  { title: "AMOUNT", of: ({ amountMinor, currency }) => `${amountMinor} ${currency}` },
  { title: "STATE", of: ({ state }) => state },
  { title: "TOKEN", of: ({ claimToken }) => (claimToken === null ? "" : String(claimToken)) },
  { title: "NEXT STEP", of: ({ nextStep }) => nextStep },
  { title: "UPDATED", of: ({ updatedAt }) => time(updatedAt) }
]

export const list = (
  flags: CommonFlags & {
    readonly state: PayoutState | undefined
    readonly accountId: AccountId | undefined
    readonly limit: number
  }
) =>
  Effect.gen(function* () {
    const items = yield* Payouts.list({ state: flags.state, accountId: flags.accountId, limit: flags.limit })
    yield* print(flags.json, { document: { items }, text: table(items, payoutColumns, "no payouts") })
  }).pipe(operate("payouts list", flags))

const payoutText = (payout: Payout): string =>
  details([
    ["payout", payout.payoutId],
    ["account", payout.accountId],
    ["amount", Explain.money(payout.amountMinor, payout.currency)],
    ["beneficiary", payout.beneficiary],
    ["client reference", payout.clientReference],
    ["state", payout.state],
    ["claim token", payout.claimToken === null ? undefined : String(payout.claimToken)],
    ["rail reference", payout.railReference ?? undefined],
    ["fail reason", payout.failReason ?? undefined],
    ["next step", payout.nextStep],
    ["created", time(payout.createdAt)],
    ["updated", time(payout.updatedAt)]
  ])

const dossierText = ({ account, lock, missing, payout, submission }: Payouts.Dossier): string =>
  [
    payoutText(payout),
    "",
    submission === null
      ? "submission  none"
      : details([
          ["submission", submission.outcome],
          ["its token", String(submission.token)],
          ["intent", time(submission.intentAt)],
          ["send by", time(submission.sendBy)],
          ["outcome", submission.outcomeAt === null ? undefined : time(submission.outcomeAt)],
          ["reference", submission.railReference ?? undefined]
        ]),
    "",
    details([
      ["account fence", String(account.fence)],
      ["balance", `${account.balanceMinor} ${account.currency}, ${account.reservedMinor} reserved`],
      [
        "account lock",
        lock === null ? "not known" : lock.held ? `held by ${lock.ownerId} under ${lock.fencingToken}` : "free"
      ]
    ]),
    ...missing.map((who) => `not asked, no answer: ${who}`)
  ].join("\n")

export const show = (flags: CommonFlags & { readonly payoutId: PayoutId }) =>
  Effect.gen(function* () {
    const dossier = yield* Payouts.dossier(flags.payoutId)
    yield* print(flags.json, { document: dossier, text: dossierText(dossier) })
  }).pipe(operate("payouts show", flags))

export const explain = (flags: CommonFlags & { readonly payoutId: PayoutId }) =>
  Effect.gen(function* () {
    const dossier = yield* Payouts.dossier(flags.payoutId)
    const { settings } = yield* ServiceConfig
    const now = yield* Clock.currentTimeMillis
    const explanation = Explain.explain(dossier, { now, slaMillis: settings.reconcile.slaMillis })
    yield* print(flags.json, { document: explanation, text: Explain.explanationText(explanation) })
  }).pipe(operate("payouts explain", flags))

const transitionColumns: ReadonlyArray<Column<PayoutTransition>> = [
  { title: "AT", of: ({ at }) => time(at) },
  { title: "FROM", of: ({ from }) => from ?? "" },
  { title: "TO", of: ({ to }) => to },
  { title: "TOKEN", of: ({ token }) => (token === null ? "" : String(token)) },
  { title: "EVIDENCE", of: ({ evidence }) => evidence ?? "" },
  { title: "REASON", of: ({ reason }) => reason ?? "" },
  { title: "ACTOR", of: ({ actor }) => actor },
  { title: "TRACE", of: ({ traceId: id }) => id ?? "" }
]

export const transitions = (flags: CommonFlags & { readonly payoutId: PayoutId }) =>
  Effect.gen(function* () {
    const items = yield* Payouts.transitions(flags.payoutId)
    yield* print(flags.json, { document: { items }, text: table(items, transitionColumns, "no transitions") })
  }).pipe(operate("payouts transitions", flags))

export const create = (
  flags: CommonFlags & {
    readonly operator: string | undefined
    readonly accountId: AccountId
    readonly amountMinor: bigint
    readonly currency: string
    readonly beneficiary: string
    readonly payoutId: PayoutId | undefined
    readonly idempotencyKey: AcquireId | undefined
  }
) =>
  Effect.gen(function* () {
    const { accountId, amountMinor, beneficiary, currency, payoutId } = flags
    const idempotencyKey = flags.idempotencyKey ?? (yield* Payouts.newOrderKey)
    const payout = yield* Payouts.create({
      idempotencyKey,
      payoutId,
      accountId,
      amountMinor,
      currency,
      beneficiary
    }).pipe(
      Effect.tapErrorTag("BackendUnavailable", () =>
        Console.error(`whether it was ordered is not known; repeat it with --key ${idempotencyKey}`)
      )
    )
    yield* print(flags.json, {
      document: { ...payout, idempotencyKey },
      text: `${payoutText(payout)}\norder key         ${idempotencyKey}`
    })
  }).pipe(operate("payouts create", flags))

export const cancel = (
  flags: CommonFlags & {
    readonly operator: string | undefined
    readonly yes: boolean
    readonly payoutId: PayoutId
    readonly reason: string
  }
) =>
  Effect.gen(function* () {
    const dossier = yield* Payouts.dossier(flags.payoutId)
    if (!flags.json) yield* Console.error(dossierText(dossier))
    yield* confirm("Cancel this payout for good?", flags)
    const payout = yield* Payouts.cancel(flags.payoutId, flags.reason)
    yield* print(flags.json, { document: { ...payout, traceId: yield* traceId }, text: payoutText(payout) })
  }).pipe(operate("payouts cancel", flags))

// -----------------------------------------------------------------------------
// reconcile
// -----------------------------------------------------------------------------

export const reconcile = (
  flags: CommonFlags & { readonly operator: string | undefined; readonly payoutId: PayoutId | undefined }
) =>
  Effect.gen(function* () {
    const { settings } = yield* ServiceConfig
    const outcomes = yield* Reconcile.run(flags.payoutId, settings.reconcile)
    const items = outcomes.map(([payoutId, outcome]) => ({ payoutId, outcome }))
    yield* print(flags.json, {
      document: { items, traceId: yield* traceId },
      text: table(
        items,
        [
          { title: "PAYOUT", of: ({ payoutId }) => payoutId },
          { title: "BECAME", of: ({ outcome }) => outcome }
        ],
        "no payout is ambiguous"
      )
    })
    if (items.some(({ outcome }) => outcome === "ESCALATED")) return yield* new Exited({ code: exitCodes.findings })
  }).pipe(operate("reconcile run", flags))

export const resolve = (
  flags: CommonFlags & {
    readonly operator: string | undefined
    readonly yes: boolean
    readonly payoutId: PayoutId
    readonly finding: "EXECUTED" | "REJECTED" | "NOT_FOUND"
    readonly railReference: string | undefined
    readonly reason: string
  }
) =>
  Effect.gen(function* () {
    const { finding, payoutId, railReference, reason } = flags
    const dossier = yield* Payouts.dossier(payoutId)
    if (!flags.json) yield* Console.error(dossierText(dossier))
    yield* confirm(`Put on record that the rail says ${finding}?`, flags)
    const payout = yield* Reconcile.resolve({ payoutId, finding, railReference, reason })
    yield* print(flags.json, { document: { ...payout, traceId: yield* traceId }, text: payoutText(payout) })
  }).pipe(operate("reconcile resolve", flags))
