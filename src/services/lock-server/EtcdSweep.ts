/**
 * What ended by itself: found by what is there without its leased twin, and told by whoever removes it.
 *
 * One read of one revision compares the two sides. It costs some 300 bytes for each live grant and session; nothing is
 * written while nothing has ended.
 */
import { Effect } from "effect"
import type { IKeyValue, IRequestOp, ITxnRequest } from "etcd3"
import type { LockKey } from "../../core/lock/Lock.ts"
import type { ExpiredGrant, SweepResult } from "../../core/lock/LockStore.ts"
import { type Budget, type EtcdOutage, type LeaseGone, rangeEnd } from "./EtcdClient.ts"
import { put, readSession, readStored, remove, revisionIs, type Stored } from "./EtcdLayout.ts"
import { heldMillis, type State } from "./EtcdState.ts"

/** Etcd takes 128 operations in a transaction; an ending has four, and its own transaction around them. */
const PER_TRANSACTION = 24

export const sweep = Effect.fnUntraced(function* (
  state: State,
  budget: Budget
): Effect.fn.Return<SweepResult, EtcdOutage | LeaseGone> {
  const { at, client } = state
  const { value } = yield* client.txn(
    {
      success: [all(at.held(""), false), all(at.lock(""), true), all(at.session(""), true), all(at.opened(""), false)]
    },
    budget
  )
  const [held = [], locks = [], sessions = [], opened = []] = value.responses.map((one) => one.response_range.kvs)
  const living = new Set(sessions.map((kv) => nameOf(kv, at.session(""))))
  const leased = new Map(locks.map((kv) => [nameOf(kv, at.lock("")), kv]))
  // The same grants as a second ago, most of them: only the new ones are read.
  const stored = new Map<string, Stored>()
  for (const kv of held) {
    const key = nameOf(kv, at.held(""))
    const before = state.swept.get(key)
    const grant = before?.revision === kv.mod_revision ? before : readStored(kv)
    if (grant !== undefined) stored.set(key, grant)
  }
  state.swept = stored

  const ended = [...stored].flatMap(([name, grant]): ReadonlyArray<Ended> => {
    const key = name as LockKey
    if (leased.get(name)?.mod_revision !== grant.revision) return [{ key, grant, end: "expired" }]
    return living.has(grant.grant.sessionId) ? [] : [{ key, grant, end: "session" }]
  })
  const gone = opened.filter((kv) => !living.has(nameOf(kv, at.opened(""))))

  const told = yield* tellAll(state, ended, endGrant, budget)
  yield* Effect.forEach(told, ({ end, key }) => {
    // `held` does not know its lease, the lock does.
    const lock = end === "session" ? leased.get(key) : undefined
    return lock === undefined ? Effect.void : state.leases.finish(lock.lease)
  })
  const expired = yield* tellAll(state, gone, endSession, budget)
  const expiredGrants = [...state.untold.splice(0), ...told.map((one) => toldOf(state, one))]
  return {
    expiredGrants,
    expiredSessions: expired.length,
    liveSessions: living.size,
    liveGrants: stored.size - ended.length
  }
})

interface Ended {
  readonly key: LockKey
  readonly grant: Stored
  readonly end: "expired" | "session"
}

const toldOf = (state: State, { end, grant, key }: Ended): ExpiredGrant => ({
  key,
  token: grant.token,
  ownerId: grant.grant.ownerId,
  heldMillis: heldMillis(state, key, grant, end),
  end
})

/** Those that this call removed; the others were ended or told by somebody else. */
const tellAll = Effect.fnUntraced(function* <A>(
  state: State,
  items: ReadonlyArray<A>,
  transaction: (state: State, item: A, memory: string, shortMemory: string) => ITxnRequest,
  budget: Budget
): Effect.fn.Return<ReadonlyArray<A>, EtcdOutage | LeaseGone> {
  const mine: Array<A> = []
  for (let from = 0; from < items.length; from += PER_TRANSACTION) {
    const some = items.slice(from, from + PER_TRANSACTION)
    const memory = yield* state.memory.lease(some.length, budget)
    const shortMemory = yield* state.shortMemory.lease(some.length, budget)
    const { value } = yield* state.client.txn(
      { success: some.map((item) => ({ request_txn: transaction(state, item, memory, shortMemory) })) },
      budget
    )
    mine.push(...some.filter((_, i) => value.responses[i]?.response_txn.succeeded === true))
  }
  return mine
})

/** A session that is gone does not come back, so only the grant has to be compared. */
const endGrant = ({ at, callName }: State, { end, grant, key }: Ended, memory: string, shortMemory: string) => ({
  compare: [
    revisionIs(at.held(key), grant.revision),
    ...(end === "session" ? [revisionIs(at.lock(key), grant.revision)] : [])
  ],
  success: [
    remove(at.held(key)),
    ...(end === "session" ? [remove(at.lock(key))] : []),
    put(at.seen(key), { ...grant.grant, token: String(grant.token) }, memory),
    put(at.ended(key, grant.token), { ownerId: grant.grant.ownerId, end, by: callName() }, shortMemory)
  ]
})

const endSession = ({ at }: State, kv: IKeyValue, memory: string) => {
  const id = nameOf(kv, at.opened(""))
  return {
    compare: [revisionIs(at.opened(id), kv.mod_revision)],
    success: [remove(at.opened(id)), put(at.expired(id), readSession(kv) ?? {}, memory)]
  }
}

const all = (prefix: string, keysOnly: boolean): IRequestOp => ({
  request_range: { key: Buffer.from(prefix), range_end: rangeEnd(prefix), keys_only: keysOnly }
})

const nameOf = (kv: IKeyValue, prefix: string) => kv.key.toString().slice(prefix.length)
