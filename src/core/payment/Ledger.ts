/**
 * Double entry: a journal is a set of entries of one currency that sums to zero, written at once and never changed; a
 * balance is the sum of an account's entries and nothing else. Credits are positive, debits negative.
 *
 * Sum-zero proves nothing about duplicates: a payout posted twice balances perfectly. Only "one payout, one posting"
 * does (`journal_one_per_payout`).
 */
import { Schema } from "effect"
import type { FencingToken, Instant, OwnerId } from "../lock/Lock.ts"
import type { PayoutId } from "./Payout.ts"

export const JournalKind = Schema.Literals(["FUNDING", "PAYOUT", "ADJUSTMENT"])
export type JournalKind = typeof JournalKind.Type

export interface LedgerEntry {
  readonly accountId: string
  readonly currency: string
  readonly amountMinor: bigint
}

export interface Journal {
  readonly journalId: bigint
  readonly kind: JournalKind
  readonly payoutId: PayoutId | null
  readonly actor: OwnerId
  readonly token: FencingToken | null
  readonly at: Instant
  readonly entries: ReadonlyArray<LedgerEntry>
}

/** 0..10^15: an opening balance plus every payout ever ordered stays below the int64 limit. */
export const OPENING_BALANCE_MAX = 1_000_000_000_000_000n

/** The two entries of a payout: out of the customer's account, into the clearing account of the currency. */
export const payoutEntries = (
  accountId: string,
  clearingAccountId: string,
  currency: string,
  amountMinor: bigint
): readonly [LedgerEntry, LedgerEntry] => [
  { accountId, currency, amountMinor: -amountMinor },
  { accountId: clearingAccountId, currency, amountMinor }
]

export const clearingAccountOf = (currency: string): string => `clearing-${currency.toLowerCase()}`
export const fundingAccountOf = (currency: string): string => `funding-${currency.toLowerCase()}`
export const suspenseAccountOf = (currency: string): string => `suspense-${currency.toLowerCase()}`

/** What is wrong with a set of entries, in words; empty when it may be written. */
export const imbalance = (entries: ReadonlyArray<LedgerEntry>): ReadonlyArray<string> => {
  const problems: Array<string> = []
  if (entries.length < 2) problems.push(`a journal has at least two entries, this has ${entries.length}`)
  const currencies = new Set(entries.map((entry) => entry.currency))
  if (currencies.size > 1) problems.push(`a journal has one currency, this has ${[...currencies].join(", ")}`)
  const sum = entries.reduce((total, entry) => total + entry.amountMinor, 0n)
  if (sum !== 0n) problems.push(`a journal sums to zero, this sums to ${sum}`)
  return problems
}
