import { assert, describe, it } from "@effect/vitest"
import { Clock, Deferred, Effect, Fiber } from "effect"
import type { IRequestOp, ITxnRequest, ITxnResponse } from "etcd3"
import * as EtcdBatches from "../../../src/services/lock-server/EtcdBatches.ts"
import { type Answer, type EtcdClient, LeaseGone } from "../../../src/services/lock-server/EtcdClient.ts"
import { waitUntil } from "../../support/waitUntil.ts"

const WORKERS = EtcdBatches.SIZES.workers

const range = (key: string): IRequestOp => ({ request_range: { key: Buffer.from(key) } })
const put = (key: string, lease = "1"): IRequestOp => ({
  request_put: { key: Buffer.from(key), value: Buffer.from("v"), lease }
})

/** Answers each transaction with its own number of operations; the first call waits for the gate, so that others queue. */
const scene = Effect.gen(function* () {
  const sent: Array<ITxnRequest> = []
  const gate = Deferred.makeUnsafe<void>()
  const answer = (request: ITxnRequest, revision: string): ITxnResponse =>
    ({
      succeeded: true,
      header: { revision, raft_term: "7" },
      responses: (request.success ?? []).map((one) =>
        one.request_txn === undefined ? {} : { response_txn: { ...answer(one.request_txn, "0") } }
      )
    }) as unknown as ITxnResponse
  const namesGone = (request: ITxnRequest): boolean =>
    (request.success ?? []).some(
      (one) => one.request_put?.lease === "gone" || (one.request_txn !== undefined && namesGone(one.request_txn))
    )
  // Only what the batches use of a client.
  const client = {
    txn: (request: ITxnRequest) =>
      Effect.suspend(() => {
        sent.push(request)
        const revision = String(100 + sent.length)
        const given: Effect.Effect<Answer<ITxnResponse>, LeaseGone> = namesGone(request)
          ? Effect.fail(new LeaseGone({}))
          : Effect.succeed({ value: answer(request, revision), repeated: false })
        return sent.length <= WORKERS ? Effect.andThen(Deferred.await(gate), given) : given
      })
  } as unknown as EtcdClient
  const batches = yield* EtcdBatches.over(client)
  // Before the batches close, which wait for what they have sent.
  yield* Effect.addFinalizer(() => Deferred.succeed(gate, undefined))
  const endsAt = (yield* Clock.monotonicTimeNanos) + 20_000_000_000n
  const start = (request: ITxnRequest) => Effect.forkChild(Effect.exit(batches.txn(request, { endsAt })))
  // All workers are busy with one each.
  const busy = yield* Effect.forEach(
    Array.from({ length: WORKERS }, (_, i) => i + 1),
    (i) =>
      Effect.tap(start({ success: [range(`/busy/${i}`)] }), () =>
        waitUntil(
          "it is sent",
          Effect.sync(() => sent.length === i)
        )
      )
  )
  const open = Effect.andThen(
    Deferred.succeed(gate, undefined),
    Effect.forEach(busy, (fiber) => Fiber.join(fiber))
  )
  const rest = () => sent.slice(WORKERS).map(({ success }) => (success ?? []).filter((one) => one.request_txn).length)
  return { start, open, rest, sent }
})

describe("EtcdBatches", () => {
  it.live("sends what is independent as one, and gives each its own answer under the revision of all", () =>
    Effect.gen(function* () {
      const { open, rest, start } = yield* scene
      const fibers = yield* Effect.forEach([1, 2, 3], (n) =>
        start({ success: Array.from({ length: n }, (_, i) => range(`/a/${n}/${i}`)) })
      )
      yield* open
      for (const [i, fiber] of fibers.entries()) {
        const exit = yield* Fiber.join(fiber)
        if (exit._tag !== "Success") return assert.fail(String(exit.cause))
        assert.strictEqual(exit.value.value.responses.length, i + 1)
        assert.strictEqual(exit.value.value.header.raft_term, "7")
        assert.strictEqual(exit.value.value.header.revision, String(101 + WORKERS))
      }
      assert.deepStrictEqual(rest(), [3])
    }).pipe(Effect.scoped)
  )

  it.live("does not let one travel with what it writes, and two that read the same do", () =>
    Effect.gen(function* () {
      const { open, rest, sent, start } = yield* scene
      const fibers = yield* Effect.forEach(
        [
          { success: [range("/k")] },
          { success: [range("/k")] },
          { success: [put("/k")] },
          { compare: [{ key: Buffer.from("/k") }], success: [range("/other")] }
        ],
        start
      )
      yield* open
      for (const fiber of fibers) assert.strictEqual((yield* Fiber.join(fiber))._tag, "Success")
      assert.strictEqual(Math.max(...rest()), 3)
      assert.isFalse(
        sent.some(
          ({ success }) =>
            success?.some((one) => one.request_txn?.success?.[0]?.request_put) &&
            success.some((one) => one.request_txn?.success?.[0]?.request_range)
        )
      )
    }).pipe(Effect.scoped)
  )

  it.live("sends a range of many keys by itself", () =>
    Effect.gen(function* () {
      const { open, sent, start } = yield* scene
      yield* start({ success: [{ request_range: { key: Buffer.from("/"), range_end: Buffer.from("0") } }] })
      // At once, although every worker is busy.
      yield* waitUntil(
        "all are sent",
        Effect.sync(() => sent.length === WORKERS + 1)
      )
      yield* open
    }).pipe(Effect.scoped)
  )

  it.live("tries each alone when the lease of one of them is gone", () =>
    Effect.gen(function* () {
      const { open, rest, start } = yield* scene
      const fibers = yield* Effect.forEach(["1", "gone", "3"], (lease, i) =>
        start({ success: [put(`/p/${i}`, lease)] })
      )
      yield* open
      const exits = yield* Effect.forEach(fibers, (fiber) => Fiber.join(fiber))
      const tags = exits.map(({ _tag }) => _tag)
      assert.deepStrictEqual(tags, ["Success", "Failure", "Success"])
      assert.deepStrictEqual(rest(), [3, 0, 0, 0])
    }).pipe(Effect.scoped)
  )
})
