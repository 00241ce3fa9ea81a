/**
 * Random numbers of a simulated run.
 *
 * Every draw is *keyed*: it is a function of the run's seed, of what it is drawn for and of who draws it the how many-eth
 * time, never of how many draws others made before. Taking one fault out of a plan therefore leaves every other message,
 * timer and choice as it was, which is what lets a shrinker walk from eight faults to one. With one common stream the
 * same counterexamples stopped shrinking at 32 to 115 faults instead of 1 to 4.
 */

/** What a draw is for. Two purposes never share a stream. */
export const Purpose = {
  slice: 1,
  quantum: 2,
  cost: 3,
  node: 4,
  tie: 5,
  priority: 6,
  change: 7,
  clockOrigin: 8,
  timer: 9,
  random: 10,
  secureRandom: 11,
  latency: 12,
  loss: 13,
  duplicate: 14,
  late: 15,
  span: 16
} as const

/** The same seed and keys give the same 32 bits, whatever else happened (murmur3's finaliser over a chain of xors). */
export const mix = (seed: number, a: number, b = 0, c = 0): number => {
  let h = seed | 0
  h = Math.imul(h ^ a, 0x85ebca6b)
  h ^= h >>> 15
  h = Math.imul(h ^ b, 0xc2b2ae35)
  h ^= h >>> 13
  h = Math.imul(h ^ c, 0x27d4eb2f)
  h ^= h >>> 16
  h = Math.imul(h, 0x85ebca6b)
  h ^= h >>> 13
  h = Math.imul(h, 0xc2b2ae35)
  h ^= h >>> 16
  return h >>> 0
}

/** FNV-1a, so that a key depends on the name of a node, link or point and not on the order in which they were made. */
export const hashText = (text: string): number => {
  const known = hashes.get(text)
  if (known !== undefined) return known
  let h = 0x811c9dc5
  for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 0x01000193)
  hashes.set(text, h >>> 0)
  return h >>> 0
}

/** The names are a closed set: a few hundred, in every world the same. */
const hashes = new Map<string, number>()

/** Something with a stable name whose hash has been taken once. */
export interface Named {
  readonly name: string
  readonly key: number
}

export const named = (name: string): Named => ({ name, key: hashText(name) })

/**
 * Names made of two parts, each put together once for all worlds: a string that is made anew is hashed anew wherever it is
 * looked up.
 */
export const namesOf = (
  make: (first: string, second: string) => string
): ((first: string, second: string) => string) => {
  const known = new Map<string, Map<string, string>>()
  return (first, second) => {
    let row = known.get(first)
    if (row === undefined) known.set(first, (row = new Map()))
    let name = row.get(second)
    if (name === undefined) row.set(second, (name = make(first, second)))
    return name
  }
}

/** `pay.claim`, `pay.claim.before`. */
export const dotted = namesOf((first, second) => `${first}.${second}`)

/** A sequential stream (sfc32) for one owner and one purpose: what the program under test draws from. */
export class Rng {
  private a: number
  private b: number
  private c: number
  private d = 1

  constructor(seed: number) {
    this.a = mix(seed, 1) | 0
    this.b = mix(seed, 2) | 0
    this.c = mix(seed, 3) | 0
    for (let i = 0; i < 4; i++) this.next()
  }

  /** The next 32 bits. */
  next(): number {
    const t = (((this.a + this.b) | 0) + this.d) | 0
    this.d = (this.d + 1) | 0
    this.a = this.b ^ (this.b >>> 9)
    this.b = (this.c + (this.c << 3)) | 0
    this.c = (((this.c << 21) | (this.c >>> 11)) + t) | 0
    return t >>> 0
  }

  /** In [0, 1), 32 bits of it. */
  unit(): number {
    return this.next() / 0x1_0000_0000
  }

  /** A safe integer of either sign, as Effect's `Random` asks for. */
  integer(): number {
    return this.next() * 0x20_0000 + (this.next() >>> 11) - 0x10_0000_0000_0000
  }

  bytes(size: number): Uint8Array {
    const out = new Uint8Array(size)
    for (let i = 0; i < size; i++) out[i] = this.next()
    return out
  }

  hex(digits: number): string {
    let out = ""
    while (out.length < digits) out += this.next().toString(16).padStart(8, "0")
    return out.slice(0, digits)
  }
}
