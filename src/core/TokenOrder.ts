/**
 * The quick checker of a lock history: tokens are versions, so the order of grants need not be searched for. Linear in
 * the history after sorting. It misses what only contended answers can tell; `Linearizability.ts` uses those too.
 */
import { byKey, type LockOp, type LockViolation, lapsesOf } from "./LockHistory.ts"

export const checkTokenOrder = (history: ReadonlyArray<LockOp>): ReadonlyArray<LockViolation> => {
  const lapses = lapsesOf(history)
  const found: Array<LockViolation> = []
  for (const [key, ops] of byKey(history)) {
    const violation = (op: LockOp, detail: string) => found.push({ key, op, detail })
    const grants = ops
      .filter((op) => op.call === "acquire" && op.answer === "ok" && op.granted !== null)
      .toSorted((a, b) => (tokenOf(a) < tokenOf(b) ? -1 : tokenOf(a) > tokenOf(b) ? 1 : a.called - b.called))
    // Repeats of one attempt answer the same grant: its first call and its earliest answer stand for it.
    const distinct: Array<LockOp> = []
    for (const grant of grants) {
      const last = distinct.at(-1)
      if (last === undefined || tokenOf(last) !== tokenOf(grant)) distinct.push(grant)
      else if (last.requestId !== grant.requestId || last.sessionId !== grant.sessionId) {
        violation(grant, `token ${grant.granted} was granted to two attempts`)
      }
    }
    const attempts = new Map<string, bigint>()
    for (const grant of distinct) {
      if (grant.requestId === null) continue
      const attempt = `${grant.sessionId} ${grant.requestId}`
      const before = attempts.get(attempt)
      if (before !== undefined) violation(grant, `one attempt was granted tokens ${before} and ${grant.granted}`)
      attempts.set(attempt, tokenOf(grant))
    }
    const renewals = ops.filter((op) => op.call === "renew" && op.answer === "ok" && op.token !== null)
    for (const renewal of renewals) {
      if (renewal.granted !== renewal.token) violation(renewal, `renew of ${renewal.token} answered ${renewal.granted}`)
    }
    for (let i = 1; i < distinct.length; i++) {
      const held = distinct[i - 1]!
      const next = distinct[i]!
      if (next.returned < held.called) {
        violation(held, `token ${held.granted} was asked for after the greater ${next.granted} had been answered`)
        continue
      }
      let lease = held.called + held.ttlMillis
      for (const renewal of renewals) {
        if (renewal.token !== held.granted) continue
        if (renewal.called > next.returned) {
          violation(renewal, `token ${held.granted} was renewed after ${next.granted} had been granted`)
        } else if (renewal.returned <= next.called) lease = Math.max(lease, renewal.called + renewal.ttlMillis)
      }
      const session = held.sessionId ?? ""
      const lapse = Math.min(
        lease,
        lapses.sessionFloor(session, next.called),
        lapses.freeFrom(key, session, tokenOf(held)),
        revokedAt(ops, tokenOf(held))
      )
      if (next.returned < lapse) {
        violation(
          next,
          `token ${next.granted} was granted ${Math.ceil(lapse - next.returned)} ms before ${held.granted} could have ended`
        )
      }
    }
  }
  return found
}

const tokenOf = (op: LockOp): bigint => op.granted ?? 0n

/** When the first revocation of this token was called. */
const revokedAt = (ops: ReadonlyArray<LockOp>, token: bigint): number =>
  ops.reduce(
    (first, op) =>
      op.call === "revoke" && op.answer === "ok" && op.granted === token ? Math.min(first, op.called) : first,
    Infinity
  )
