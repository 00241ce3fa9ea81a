/**
 * What becomes of a payout next and why, in words, from its state and its submission record: the same two facts by which
 * the next holder decides. Elapsed time is told and decides nothing.
 */
import type { NextStep } from "../../core/payment/Payout.ts"
import { span, time } from "./Printing.ts"
import type { Dossier } from "./Payouts.ts"

export interface Explanation {
  readonly headline: string
  readonly facts: ReadonlyArray<string>
  readonly nextStep: NextStep
  /** Who does it. */
  readonly who: string
  readonly why: string
  /** What is left for an operator; empty when it goes on by itself. */
  readonly todo: ReadonlyArray<string>
  readonly never: string
}

/** Fixed words of each step; `why` of those that depend on more is in `whyOf`. */
const steps: Readonly<Record<NextStep, { readonly who: string; readonly why: string; readonly never: string }>> = {
  CLAIM: {
    who: "the next payout-executor that gets the account's lock",
    why: "nothing was submitted and nobody has claimed it",
    never: "order it anew because it is slow: the two orders would both be paid"
  },
  SUBMIT: {
    who: "the next holder of the account's lock, after it has claimed the payout again under its own token",
    why: "it was claimed and nothing was submitted; the new claim first shuts the door behind the old holder",
    never: "submit it by hand: the slot is one per payout, and the executor's token is the one that counts"
  },
  AWAIT: {
    who: "the holder of the account's lock",
    why: "the intent is on record and no outcome: rail-proxy may still be in its one call, so it is waited for",
    never: "take silence for a no: until its deadline is over the call may still succeed"
  },
  POST: {
    who: "the next holder of the account's lock",
    why: "the rail paid, which is on record; what is missing is the posting",
    never: "pay it again: it is paid"
  },
  FAIL: {
    who: "the next holder of the account's lock",
    why: "the rail did not and can not pay, which is on record",
    never: "order a submission for it: its one slot is taken"
  },
  AMBIGUOUS: {
    who: "the next holder of the account's lock",
    why: "something was sent and the rail's answer is unknown; it is marked ambiguous and its reserve kept",
    never: "submit it again: money may have moved"
  },
  LOOKUP: {
    who: "the reconciler",
    why: "nobody knows whether the rail paid; the reconciler asks the rail's lookup until the answer is final",
    never: "submit it again, or let its age decide"
  },
  RESOLVE: {
    who: "the reconciler",
    why: "the evidence is in; the payout moves to what it says at the reconciler's next pass",
    never: "submit it again"
  },
  ESCALATE: {
    who: "you",
    why: "the evidence contradicts itself: the rail has said both that it paid and that it did not",
    never: "guess: get the rail's word in writing, by client reference"
  },
  NONE: { who: "nobody", why: "it is settled, and a settled payout never moves again", never: "reopen it" }
}

export const money = (amountMinor: bigint, currency: string): string => `${amountMinor} minor units ${currency}`

const whyOf = ({ payout, submission }: Dossier): string => {
  const { failReason, nextStep, state } = payout
  if (nextStep === "FAIL" && submission !== null) {
    const said =
      submission.outcome === "DECLINED"
        ? "the rail said no"
        : submission.outcome === "VOIDED"
          ? "the slot was sealed before anything was sent"
          : "the rail does not know it, and said so after its finality window"
    return `${said}, which is on record: it did not pay and can not any more`
  }
  if (state === "FAILED")
    return `it failed (${failReason ?? "no reason on record"}); nothing was taken from the account`
  if (state === "POSTED") return "the rail paid and both entries are posted"
  return steps[nextStep].why
}

const submissionFact = ({ submission }: Dossier): string => {
  if (submission === null) return "Nothing was submitted to the rail."
  const { intentAt, outcome, outcomeAt, railReference, sendBy, token } = submission
  switch (outcome) {
    case "VOIDED":
      return `Its submission slot was sealed under token ${token}: nothing was sent and nothing can be.`
    case "INTENT":
      return `Its submission was recorded at ${time(intentAt)} under token ${token}, to be sent by ${time(sendBy)}; no outcome is on record.`
    default: {
      const reference = railReference === null ? "" : `, rail reference ${railReference}`
      return `It was submitted at ${time(intentAt)} under token ${token}: ${outcome}${outcomeAt === null ? "" : ` at ${time(outcomeAt)}`}${reference}.`
    }
  }
}

const lockFact = ({ lock, payout }: Dossier): ReadonlyArray<string> => {
  if (lock === null) return []
  const revoked =
    lock.lastRevocation === null
      ? []
      : [
          `The lock was last revoked at ${time(lock.lastRevocation.at)} by ${lock.lastRevocation.operator}: ${lock.lastRevocation.reason}`
        ]
  const holder = lock.held
    ? `Its account's lock is held by ${lock.ownerId} under token ${lock.fencingToken} until ${time(lock.expiresAt)}${lock.waiters > 0 ? `; ${lock.waiters} wait` : ""}.`
    : `Its account's lock is free; the last token was ${lock.fencingToken}, of ${lock.ownerId}.`
  const behind =
    lock.held && payout.claimToken !== null && payout.state === "CLAIMED" && payout.claimToken < lock.fencingToken
      ? [`The claim is of an earlier holder (token ${payout.claimToken}); ${lock.ownerId} has not claimed it yet.`]
      : []
  return [holder, ...behind, ...revoked]
}

const todoOf = (dossier: Dossier, ageMillis: number, slaMillis: number): ReadonlyArray<string> => {
  const { lock, payout, submission } = dossier
  const { accountId, nextStep, payoutId } = payout
  const key = `payout:${accountId}`
  switch (nextStep) {
    case "ESCALATE":
      return [
        `Ask the rail about client reference ${payout.clientReference}, in writing.`,
        `reconcile resolve ${payoutId} --finding EXECUTED|REJECTED --rail-reference REF --reason '...'`
      ]
    case "LOOKUP":
      return ageMillis > slaMillis
        ? [
            `It is ambiguous for longer than the SLA of ${span(slaMillis)}: ask the rail about client reference ${payout.clientReference}.`,
            `reconcile resolve ${payoutId} --finding EXECUTED|REJECTED|NOT_FOUND --reason '...'`
          ]
        : [`Nothing. \`reconcile run --payout ${payoutId}\` asks the rail now instead of at the next pass.`]
    case "CLAIM":
    case "SUBMIT":
    case "AWAIT":
    case "POST":
    case "FAIL":
    case "AMBIGUOUS":
      if (lock?.held === true && payout.state === "CLAIMED") {
        return [
          `Nothing while ${lock.ownerId} works. If it is stuck: stop that process; if you can not reach it, \`locks revoke ${key} --reason '...'\`.`
        ]
      }
      return submission === null && nextStep === "CLAIM"
        ? [`Nothing while executors run. To take it back: \`payouts cancel ${payoutId} --reason '...'\`.`]
        : ["Nothing while executors run: the next holder finishes it by what is on record."]
    default:
      return []
  }
}

export const explain = (
  dossier: Dossier,
  { now, slaMillis }: { readonly now: number; readonly slaMillis: number }
): Explanation => {
  const { account, payout } = dossier
  const { accountId, amountMinor, beneficiary, claimToken, currency, nextStep, payoutId, state } = payout
  const { never, who } = steps[nextStep]
  const ageMillis = now - payout.updatedAt
  const under = claimToken === null ? "" : ` under token ${claimToken}`
  return {
    headline: `Payout ${payoutId} (${money(amountMinor, currency)} from ${accountId} to ${beneficiary}) is ${state}${under}, for ${span(ageMillis)}.`,
    facts: [
      submissionFact(dossier),
      ...lockFact(dossier),
      `The account's fence stands at ${account.fence}: every smaller token is refused. Balance ${account.balanceMinor}, reserved ${account.reservedMinor}.`,
      ...dossier.missing.map((who) => `Not asked, no answer: ${who}`)
    ],
    nextStep,
    who,
    why: whyOf(dossier),
    todo: todoOf(dossier, ageMillis, slaMillis),
    never
  }
}

export const explanationText = ({ facts, headline, never, nextStep, todo, who, why }: Explanation): string =>
  [
    headline,
    ...facts.map((fact) => `  ${fact}`),
    "",
    nextStep === "NONE" ? `Next step: none, for ${why}.` : `Next step: ${nextStep}, by ${who},`,
    ...(nextStep === "NONE" ? [] : [`  because ${why}.`]),
    ...(todo.length === 0 ? [] : ["", "For you:", ...todo.map((one) => `  ${one}`)]),
    "",
    `Never: ${never}.`
  ].join("\n")
