/**
 * The thorough checker of a lock history: is there an order of the operations of each key, within their intervals, that
 * a correct lock service could have answered like this? (Wing and Gong's search with Lowe's cache, keys apart.)
 *
 * The model. A key has the greatest token granted so far, and a holder or none. A holder vanishes by itself at any time
 * from `lapse` on, never before: an untimed "may expire whenever" would accept every double grant, a hard deadline
 * would raise false alarms. `point` is the earliest instant at which the operations so far can have happened in this
 * order; taking the earliest is exact, because all bounds are lower ones.
 *
 * An unknown acquire has two futures: nothing happened, or a grant under a token nobody was told (0 stands for it). A
 * search that uses up its budget answers `unknown`, never `ok`.
 */
import { byKey, type LockOp, type LockViolation, type Lapses, lapsesOf } from "./LockHistory.ts"

export interface LinearizabilityResult {
  readonly verdict: "ok" | "violated" | "unknown"
  readonly violations: ReadonlyArray<LockViolation>
  /** Steps of the search, over all keys. */
  readonly steps: number
}

interface Holder {
  readonly session: string
  /** 0 when the grant was not answered. */
  readonly token: bigint
  readonly lease: number
}

interface State {
  readonly last: bigint
  readonly holder: Holder | null
  readonly point: number
}

export const checkLinearizable = (history: ReadonlyArray<LockOp>, budget = 200_000): LinearizabilityResult => {
  const lapses = lapsesOf(history)
  let steps = 0
  let verdict: LinearizabilityResult["verdict"] = "ok"
  const violations: Array<LockViolation> = []
  for (const [key, ops] of byKey(history)) {
    const relevant = ops.filter(isEvidence)
    const result = search(key, relevant, lapses, budget)
    steps += result.steps
    if (result.stuck !== undefined) {
      verdict = "violated"
      violations.push({ key, op: result.stuck, detail: `no order explains ${describe(result.stuck)}` })
    } else if (result.outOfBudget && verdict === "ok") verdict = "unknown"
  }
  return { verdict, violations, steps }
}

/** What a release or renew was refused, or never answered, only bounds when the holder may vanish (`lapsesOf`). */
const isEvidence = (op: LockOp): boolean => {
  switch (op.call) {
    case "acquire":
      return op.answer !== "lost"
    case "renew":
    case "release":
    case "revoke":
      return op.answer === "ok"
    default:
      return false
  }
}

const describe = (op: LockOp): string =>
  `${op.call} by ${op.client}${op.token === null ? "" : ` under token ${op.token}`}, answered ${op.answer}${op.granted === null ? "" : ` ${op.granted}`}, called at ${op.called}`

/** The states that can follow; none when the operation can not come next. */
const next = (state: State, op: LockOp, key: string, lapses: Lapses): ReadonlyArray<State> => {
  const { holder, last } = state
  const point = Math.max(state.point, op.called)
  if (point > op.returned) return []
  const session = op.sessionId ?? ""
  /** When a grant is possible at the earliest, or undefined. */
  const grantPoint = (): number | undefined => {
    if (holder === null) return point
    const lapse = Math.min(
      holder.lease,
      lapses.sessionFloor(holder.session, op.returned),
      lapses.freeFrom(key, holder.session, holder.token)
    )
    const at = Math.max(point, lapse)
    return at <= op.returned ? at : undefined
  }
  switch (op.call) {
    case "acquire": {
      if (op.answer === "held") return holder === null ? [] : [{ ...state, point }]
      const at = grantPoint()
      if (op.answer === "unknown") {
        const nothing = { ...state, point }
        return at === undefined
          ? [nothing]
          : [nothing, { last, holder: { session, token: 0n, lease: at + op.ttlMillis }, point: at }]
      }
      const token = op.granted ?? 0n
      // A repeat of the attempt that holds it is answered the same grant.
      if (holder !== null && holder.token === token && holder.session === session) return [{ ...state, point }]
      // The repeat of an attempt whose first answer was lost: now its token is known.
      const known =
        holder !== null && holder.token === 0n && holder.session === session && token > last
          ? [{ last: token, holder: { session, token, lease: Math.min(holder.lease, point + op.ttlMillis) }, point }]
          : []
      if (at === undefined || token <= last) return known
      return [...known, { last: token, holder: { session, token, lease: at + op.ttlMillis }, point: at }]
    }
    case "renew":
      return holder !== null && holder.token === op.token && op.granted === op.token
        ? [{ last, holder: { ...holder, lease: Math.max(holder.lease, point + op.ttlMillis) }, point }]
        : []
    case "release":
      return holder !== null && holder.token === op.token ? [{ last, holder: null, point }] : []
    case "revoke": {
      const revoked = op.granted ?? 0n
      if (holder === null) return []
      const isTheirs = holder.token === revoked || (holder.token === 0n && revoked > last)
      return isTheirs ? [{ last: revoked > last ? revoked : last, holder: null, point }] : []
    }
    default:
      return [state]
  }
}

interface SearchResult {
  readonly steps: number
  readonly outOfBudget: boolean
  /** The operation at which the longest explanation ends. */
  readonly stuck: LockOp | undefined
}

/**
 * Depth first over "which pending operation came next". An operation may come next when no other unplaced one returned
 * before it was called.
 */
const search = (key: string, ops: ReadonlyArray<LockOp>, lapses: Lapses, budget: number): SearchResult => {
  const placed = new Uint8Array(ops.length)
  const seen = new Set<string>()
  let steps = 0
  let longest = -1
  let stuck: LockOp | undefined

  /** Everything before is placed. */
  let first = 0

  const candidates = (): Array<number> => {
    const list: Array<number> = []
    let earliestReturn = Infinity
    // Sorted by call, and nothing returns before it is called: whatever is called later can not change the bound.
    for (let i = first; i < ops.length && ops[i]!.called <= earliestReturn; i++) {
      if (placed[i] === 1) continue
      list.push(i)
      earliestReturn = Math.min(earliestReturn, ops[i]!.returned)
    }
    // At equal times calls come before returns.
    return list.filter((i) => ops[i]!.called <= earliestReturn)
  }

  const name = (state: State, count: number): string => {
    let set = ""
    for (let i = first, left = count - first; left > 0; i++) {
      set += placed[i]
      left -= placed[i]!
    }
    const holder = state.holder === null ? "-" : `${state.holder.session} ${state.holder.token} ${state.holder.lease}`
    return `${first} ${set} ${state.last} ${holder} ${state.point}`
  }

  // An explicit stack: a history of thousands of operations is deeper than the call stack should be.
  const stack: Array<{
    readonly op: number
    readonly state: State
    readonly options: Array<readonly [number, State]>
  }> = []
  const optionsOf = (state: State): Array<readonly [number, State]> =>
    candidates().flatMap((i) => next(state, ops[i]!, key, lapses).map((after) => [i, after] as const))

  let count = 0
  let current: { readonly op: number; readonly state: State; readonly options: Array<readonly [number, State]> } = {
    op: -1,
    state: { last: 0n, holder: null, point: -Infinity },
    options: []
  }
  current.options.push(...optionsOf(current.state))
  for (;;) {
    if (count === ops.length) return { steps, outOfBudget: false, stuck: undefined }
    const option = current.options.shift()
    if (option === undefined) {
      if (count > longest) {
        longest = count
        stuck = ops[candidates()[0] ?? 0]
      }
      const back = stack.pop()
      if (back === undefined) return { steps, outOfBudget: false, stuck }
      placed[current.op] = 0
      first = Math.min(first, current.op)
      count--
      current = back
      continue
    }
    if (++steps > budget) return { steps, outOfBudget: true, stuck: undefined }
    const [op, state] = option
    const before = first
    placed[op] = 1
    while (placed[first] === 1) first++
    const memo = name(state, count + 1)
    if (seen.has(memo)) {
      placed[op] = 0
      first = before
      continue
    }
    seen.add(memo)
    count++
    stack.push(current)
    current = { op, state, options: optionsOf(state) }
  }
}
