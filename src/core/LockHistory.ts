/**
 * What clients called and were answered, on one clock: the input of the two lock-history checkers (`TokenOrder.ts`,
 * `Linearizability.ts`). Intervals are closed; an operation whose answer never came returns at infinity.
 *
 * The oracle of the simulation sees commits and knows more; these two need nothing but calls and answers, and so judge
 * real backends as well.
 */
export type LockCall = "open" | "heartbeat" | "close" | "acquire" | "renew" | "release" | "revoke"

export interface LockOp {
  readonly call: LockCall
  /** Who asked. */
  readonly client: string
  /** Null for operations on a session. */
  readonly key: string | null
  readonly sessionId: string | null
  /** The token presented (renew, release) or expected (revoke). */
  readonly token: bigint | null
  /** The same for every repeat of one attempt. */
  readonly requestId: string | null
  /** Before it was sent, and after it was answered; milliseconds. */
  readonly called: number
  readonly returned: number
  /**
   * - `ok`: done; `granted` has the token of an acquire, a renew or a revoke
   * - `held`: contended
   * - `lost`: the lock or the session is not the caller's any more
   * - `unknown`: no answer, or BACKEND_UNAVAILABLE: it may or may not have been done
   */
  readonly answer: "ok" | "held" | "lost" | "unknown"
  readonly granted: bigint | null
  /** What the answer said the caller may count on (acquire, renew, open, heartbeat). */
  readonly ttlMillis: number
}

/** What can not have happened, and the operation that says so. */
export interface LockViolation {
  readonly key: string
  readonly op: LockOp
  readonly detail: string
}

/** Earliest instants at which a holder may have lost the lock without anybody being wrong. */
export interface Lapses {
  /** The end of the session's life that its answered opens and heartbeats guarantee, seen from `at`. */
  readonly sessionFloor: (sessionId: string, at: number) => number
  /** The earliest call that may have freed the grant, whatever it was answered. */
  readonly freeFrom: (key: string, sessionId: string, token: bigint) => number
}

/**
 * A release that was answered LOCK_LOST is no evidence that nothing happened: it may be the second copy of one that
 * did. So any call that can free a grant counts from when it was made.
 */
export const lapsesOf = (history: ReadonlyArray<LockOp>): Lapses => {
  const beats = new Map<string, Array<LockOp>>()
  const closes = new Map<string, number>()
  const releases = new Map<string, number>()
  const revokes = new Map<string, number>()
  const earliest = (map: Map<string, number>, key: string, at: number) =>
    map.set(key, Math.min(map.get(key) ?? Infinity, at))
  for (const op of history) {
    if ((op.call === "open" || op.call === "heartbeat") && op.answer === "ok" && op.sessionId !== null) {
      const list = beats.get(op.sessionId)
      if (list === undefined) beats.set(op.sessionId, [op])
      else list.push(op)
    } else if (op.call === "close" && op.sessionId !== null) earliest(closes, op.sessionId, op.called)
    else if (op.call === "release" && op.token !== null) earliest(releases, `${op.key} ${op.token}`, op.called)
    else if (op.call === "revoke" && op.answer === "unknown" && op.key !== null) earliest(revokes, op.key, op.called)
  }
  return {
    sessionFloor: (sessionId, at) => {
      const known = beats.get(sessionId)
      // A session of which no history exists is taken to live: the grant's own lease still bounds it.
      if (known === undefined) return Infinity
      return known.reduce(
        (floor, op) => (op.returned <= at ? Math.max(floor, op.called + op.ttlMillis) : floor),
        -Infinity
      )
    },
    freeFrom: (key, sessionId, token) =>
      Math.min(
        closes.get(sessionId) ?? Infinity,
        revokes.get(key) ?? Infinity,
        token === 0n ? Infinity : (releases.get(`${key} ${token}`) ?? Infinity)
      )
  }
}

/** The operations of each key, in the order of their calls. */
export const byKey = (history: ReadonlyArray<LockOp>): ReadonlyMap<string, ReadonlyArray<LockOp>> => {
  const keys = new Map<string, Array<LockOp>>()
  for (const op of history) {
    if (op.key === null) continue
    const list = keys.get(op.key)
    if (list === undefined) keys.set(op.key, [op])
    else list.push(op)
  }
  for (const list of keys.values()) list.sort((a, b) => a.called - b.called)
  return keys
}
