/**
 * Situations that a batch of runs promises to reach. A check that was never put to the test passes for nothing, so a batch
 * in which a promised mark was never hit has failed.
 */
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

  missing(promised: ReadonlyArray<string>): ReadonlyArray<string> {
    return promised.filter((name) => this.count(name) === 0)
  }

  /** By name, sorted. */
  toRecord(): Readonly<Record<string, number>> {
    return Object.fromEntries([...this.counts].sort(([a], [b]) => (a < b ? -1 : 1)))
  }
}
