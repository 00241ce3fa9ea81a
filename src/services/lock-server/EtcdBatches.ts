/**
 * Transactions that are asked for at the same time travel as one, each nested in it: one call, one Raft entry, one fsync.
 *
 * They must not notice. All their comparisons are made before the first of them writes, so transactions of which one
 * writes what another compares, reads or writes do not travel together (`independent`); for the others it is as if they
 * had come one after the other.
 *
 * All of one call have its revision, and so two keys can be granted under the same token. That is in order: a token is
 * compared with others of its own key only, one key is in a call once, and the next call has a greater revision.
 *
 * When the lease that one of them names is gone, etcd refuses all and changes nothing; each is then tried alone.
 */
import { Effect, Exit, type Scope } from "effect"
import type { IRequestOp, ITxnRequest, ITxnResponse } from "etcd3"
import * as Batching from "./Batching.ts"
import { type Answer, type Budget, type EtcdClient, EtcdOutage, type LeaseGone } from "./EtcdClient.ts"

/**
 * etcd takes 128 operations (`--max-txn-ops`), counted as the nested ones plus those of the longest of them. Two calls at
 * a time: with four they are half as large, and 64 clients get an eighth less.
 */
export const SIZES = { workers: 2, batch: 100, queue: 5_000, alone: 16 }
const LONGEST = 20

interface Call {
  readonly request: ITxnRequest
  readonly budget: Budget
}

type Failure = EtcdOutage | LeaseGone

export const over = Effect.fnUntraced(function* (client: EtcdClient): Effect.fn.Return<EtcdClient, never, Scope.Scope> {
  const one = ({ budget, request }: Call) => client.txn(request, budget)
  const { submit } = yield* Batching.make<Call, Answer<ITxnResponse>, Failure>({
    ...SIZES,
    admission: independent,
    one,
    many: (calls) => {
      const [first] = calls
      if (calls.length === 1 && first !== undefined) return Effect.map(Effect.exit(one(first)), (exit) => [exit])
      const success = calls.map(({ request }): IRequestOp => ({ request_txn: request }))
      const endsAt = calls.reduce((latest, { budget }) => (budget.endsAt > latest ? budget.endsAt : latest), 0n)
      return Effect.map(Effect.exit(client.txn({ success }, { endsAt })), (exit) => {
        if (Exit.isSuccess(exit)) return calls.map((_, i) => Exit.succeed(nested(exit.value, i)))
        const failure = Exit.findErrorOption(exit)
        const isGone = failure._tag === "Some" && failure.value._tag === "LeaseGone"
        return calls.map(() => (isGone ? undefined : Exit.failCause(exit.cause)))
      })
    },
    refuse: (why) =>
      new EtcdOutage({
        effect: "none",
        noLeader: false,
        message: why === "full" ? `${SIZES.queue} requests wait already` : "the store is closed"
      })
  })
  return {
    ...client,
    // The wait in the queue ends with the calls before it, and each of those with its budget.
    txn: (request, budget) => (isPlain(request) ? submit({ request, budget }) : client.txn(request, budget))
  }
})

const nested = ({ repeated, value }: Answer<ITxnResponse>, index: number): Answer<ITxnResponse> => {
  const inner = value.responses[index]?.response_txn
  return {
    repeated,
    // Its own header is empty.
    value: { succeeded: inner?.succeeded ?? false, responses: inner?.responses ?? [], header: value.header }
  }
}

const operations = ({ failure, success }: ITxnRequest): ReadonlyArray<IRequestOp> => [
  ...(success ?? []),
  ...(failure ?? [])
]

/** Of single keys, and not too long. */
const isPlain = (request: ITxnRequest): boolean => {
  const all = operations(request)
  return (
    all.length <= LONGEST &&
    (request.compare?.length ?? 0) <= LONGEST &&
    all.every(
      (operation) =>
        operation.request_txn === undefined &&
        operation.request_range?.range_end === undefined &&
        operation.request_delete_range?.range_end === undefined
    )
  )
}

type Key = ITxnRequest["compare"] extends ReadonlyArray<infer C> | undefined
  ? C extends { key?: infer K }
    ? K
    : never
  : never

const independent = () => {
  const seen = new Set<string>()
  const written = new Set<string>()
  return ({ request }: Call) => {
    const reads: Array<string> = []
    const writes: Array<string> = []
    const add = (list: Array<string>, key: Key | undefined) => {
      if (key !== undefined) list.push(key.toString())
    }
    for (const { key } of request.compare ?? []) add(reads, key)
    for (const operation of operations(request)) {
      add(reads, operation.request_range?.key)
      add(writes, operation.request_put?.key)
      add(writes, operation.request_delete_range?.key)
    }
    if (writes.some((key) => seen.has(key)) || reads.some((key) => written.has(key))) return false
    for (const key of reads) seen.add(key)
    for (const key of writes) {
      seen.add(key)
      written.add(key)
    }
    return true
  }
}
