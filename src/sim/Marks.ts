/**
 * Situations that a batch of runs promises to reach. A check that was never put to the test passes for nothing, so a batch
 * in which a promised mark was never hit has failed.
 */
import type { History } from "../core/History.ts"

export class Marks {
  private readonly counts = new Map<string, number>()

  hit(name: string, times = 1): void {
    this.counts.set(name, (this.counts.get(name) ?? 0) + times)
  }

  count(name: string): number {
    return this.counts.get(name) ?? 0
  }

  add(other: Marks | Readonly<Record<string, number>>): void {
    for (const [name, times] of other instanceof Marks ? other.counts : Object.entries(other)) this.hit(name, times)
  }

  /** What became of the payouts, simulated or real. */
  ofPayouts({ payouts, submissions, transitions }: History): void {
    for (const { state } of payouts) {
      if (state === "POSTED") this.hit("posted")
      if (state === "FAILED") this.hit("failed")
    }
    for (const { from, reason, to } of transitions) {
      if (reason === "INSUFFICIENT_FUNDS") this.hit("failed for want of money")
      if (from === "CLAIMED" && to === "CLAIMED") this.hit("recovered a claimed payout")
      if (to === "RAIL_AMBIGUOUS") this.hit("became ambiguous")
      if (from === "RAIL_AMBIGUOUS") this.hit("resolved by the reconciler")
    }
    for (const { outcome } of submissions) {
      if (outcome === "DECLINED") this.hit("the rail declined")
      if (outcome === "TIMEOUT") this.hit("the rail was silent")
    }
  }

  missing(promised: ReadonlyArray<string>): ReadonlyArray<string> {
    return promised.filter((name) => this.count(name) === 0)
  }

  /** By name, sorted. */
  toRecord(): Readonly<Record<string, number>> {
    return Object.fromEntries([...this.counts].sort(([a], [b]) => (a < b ? -1 : 1)))
  }
}
