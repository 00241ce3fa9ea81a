/** One thing that the doctor asked, what it found, and what to do about it. */
export interface Check {
  readonly name: string
  readonly status: "ok" | "warn" | "FAIL" | "skipped"
  readonly found: string
  /** What to do about it. */
  readonly advice?: string
}

export const ok = (name: string, found: string): Check => ({ name, status: "ok", found })
export const fail = (name: string, found: string, advice: string): Check => ({ name, status: "FAIL", found, advice })
export const warn = (name: string, found: string, advice: string): Check => ({ name, status: "warn", found, advice })
export const skipped = (name: string, found: string, advice: string): Check => ({
  name,
  status: "skipped",
  found,
  advice
})
