/**
 * Until when the client may believe: FR-11.
 *
 *     client   send .......................... answer
 *     server        receive, grant for ttl
 *     others                                            may be granted from receive + ttl
 *
 * The client does not know when its request was received, only that it was not before it was sent. So it counts from the
 * send, on its monotonic clock, and stops a margin early. A slow answer makes the time left shorter, never too long; the
 * same holds for the answer of an older request that arrives after that of a newer one.
 */
export const millisToNanos = (millis: number): bigint => BigInt(Math.trunc(millis)) * 1_000_000n

/** Monotonic nanoseconds at which something that the server keeps for `coveredMillis` from `sentAt` ends here. */
export const deadlineOf = (sentAt: bigint, coveredMillis: number): bigint => sentAt + millisToNanos(coveredMillis)

/**
 * How long after its last extension something is extended again: at a third of its ttl, so that one extension may be lost;
 * and not later than half of what the margin leaves, where that is less.
 */
export const extensionMillis = (ttlMillis: number, marginMillis: number): number =>
  Math.max(1, Math.floor(Math.min(ttlMillis / 3, (ttlMillis - marginMillis) / 2)))
