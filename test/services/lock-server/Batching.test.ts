import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Exit, Fiber, References } from "effect"
import * as Batching from "../../../src/services/lock-server/Batching.ts"
import { waitUntil } from "../../support/waitUntil.ts"

interface Request {
  readonly id: string
  readonly key: string
}

/** A backend that answers a call when it is told to. */
const scene = Effect.fnUntraced(function* (
  options: Partial<
    Pick<Batching.BatchingOptions<Request, string, string>, "workers" | "batch" | "queue" | "alone">
  > = {}
) {
  const calls: Array<{ readonly ids: ReadonlyArray<string>; readonly gate: Deferred.Deferred<void> }> = []
  const leftOut = new Set<string>()
  const refused = new Set<string>()
  const alone: Array<string> = []
  const aloneGate = Deferred.makeUnsafe<void>()
  const answer = (id: string): Exit.Exit<string, string> =>
    refused.has(id) ? Exit.fail(`no ${id}`) : Exit.succeed(`yes ${id}`)
  const batching = yield* Batching.make<Request, string, string>({
    workers: 1,
    batch: 10,
    queue: 10,
    alone: 2,
    ...options,
    admission: Batching.distinct(({ key }) => key),
    same: ({ id, key }) => `${key}/${id}`,
    one: ({ id }) =>
      Effect.andThen(
        Effect.sync(() => alone.push(id)),
        Effect.flatMap(Deferred.await(aloneGate), () => answer(id))
      ),
    many: (requests) => {
      const gate = Deferred.makeUnsafe<void>()
      calls.push({ ids: requests.map(({ id }) => id), gate })
      return Effect.map(Deferred.await(gate), () =>
        requests.map(({ id }) => (leftOut.has(id) ? undefined : answer(id)))
      )
    },
    refuse: (why) => why
  })
  const submit = (id: string, key = id) => Effect.forkChild(Effect.exit(batching.submit({ id, key })))
  const called = (n: number) =>
    waitUntil(
      `call ${n}`,
      Effect.sync(() => calls.length >= n)
    )
  const let_ = (n: number) =>
    Effect.andThen(
      called(n),
      Effect.sync(() => Deferred.doneUnsafe(calls[n - 1]!.gate, Effect.void))
    )
  return { batching, calls, called, submit, answer: let_, leftOut, refused, alone, aloneGate }
})

const ids = (calls: ReadonlyArray<{ readonly ids: ReadonlyArray<string> }>) => calls.map((call) => call.ids.join(" "))

describe("Batching", () => {
  it.live("sends who is alone at once, and whatever queued up meanwhile together", () =>
    Effect.gen(function* () {
      const s = yield* scene()
      const first = yield* s.submit("a")
      yield* s.called(1)
      const others = yield* Effect.forEach(["b", "c", "d"], (id) => s.submit(id))
      yield* waitUntil(
        "they wait",
        Effect.sync(() => s.batching.waiting() === 3)
      )
      yield* s.answer(1)
      assert.deepStrictEqual(yield* Fiber.join(first), Exit.succeed("yes a"))
      yield* s.answer(2)
      assert.deepStrictEqual(
        yield* Effect.forEach(others, (fiber) => Fiber.join(fiber)),
        ["b", "c", "d"].map((id): Exit.Exit<string, string> => Exit.succeed(`yes ${id}`))
      )
      assert.deepStrictEqual(ids(s.calls), ["a", "b c d"])
    }).pipe(Effect.scoped)
  )

  it.live("lets nobody share another's failure", () =>
    Effect.gen(function* () {
      const s = yield* scene()
      s.refused.add("b")
      const fibers = yield* Effect.forEach(["a", "b", "c"], (id) => s.submit(id))
      yield* s.answer(1)
      assert.deepStrictEqual(yield* Effect.forEach(fibers, (fiber) => Fiber.join(fiber)), [
        Exit.succeed("yes a"),
        Exit.fail("no b"),
        Exit.succeed("yes c")
      ])
    }).pipe(Effect.scoped)
  )

  it.live("takes a key once, and the same request twice as one", () =>
    Effect.gen(function* () {
      const s = yield* scene()
      const fibers = yield* Effect.forEach(
        [
          ["a", "k"],
          ["a", "k"],
          ["b", "k"],
          ["c", "l"]
        ] as const,
        ([id, key]) => s.submit(id, key)
      )
      yield* s.answer(1)
      yield* s.answer(2)
      assert.deepStrictEqual(
        yield* Effect.forEach(fibers, (fiber) => Fiber.join(fiber)),
        ["a", "a", "b", "c"].map((id): Exit.Exit<string, string> => Exit.succeed(`yes ${id}`))
      )
      assert.deepStrictEqual(ids(s.calls), ["a c", "b"])
    }).pipe(Effect.scoped)
  )

  it.live("finishes a call whose caller has gone, and does not send who gave up in the queue", () =>
    Effect.gen(function* () {
      const s = yield* scene()
      const [gone, stays] = [yield* s.submit("gone"), yield* s.submit("stays")]
      yield* s.called(1)
      const [waits, leaves] = [yield* s.submit("waits"), yield* s.submit("leaves")]
      yield* waitUntil(
        "they wait",
        Effect.sync(() => s.batching.waiting() === 2)
      )
      yield* Fiber.interrupt(gone)
      yield* Fiber.interrupt(leaves)
      assert.strictEqual(s.batching.waiting(), 1)
      yield* s.answer(1)
      yield* s.answer(2)
      assert.deepStrictEqual(yield* Fiber.join(stays), Exit.succeed("yes stays"))
      assert.deepStrictEqual(yield* Fiber.join(waits), Exit.succeed("yes waits"))
      assert.deepStrictEqual(ids(s.calls), ["gone stays", "waits"])
    }).pipe(Effect.scoped)
  )

  it.live("tries alone what was left out, and lets nobody wait for that", () =>
    Effect.gen(function* () {
      const s = yield* scene()
      for (const id of ["b", "c", "d"]) s.leftOut.add(id)
      const [a, b, c, d] = yield* Effect.forEach(["a", "b", "c", "d"], (id) => s.submit(id))
      yield* s.answer(1)
      assert.deepStrictEqual(yield* Fiber.join(a!), Exit.succeed("yes a"))
      yield* waitUntil(
        "two of them are on their way",
        Effect.sync(() => s.alone.length === 2)
      )
      const next = yield* s.submit("next")
      yield* s.answer(2)
      assert.deepStrictEqual(yield* Fiber.join(next), Exit.succeed("yes next"))
      assert.deepStrictEqual(s.alone, ["b", "c"], "no more at a time than there are places")
      Deferred.doneUnsafe(s.aloneGate, Effect.void)
      for (const fiber of [b!, c!, d!]) assert.isTrue(Exit.isSuccess(yield* Fiber.join(fiber)))
    }).pipe(Effect.scoped)
  )

  it.live("refuses at once when the queue is full, and takes again when it is not", () =>
    Effect.gen(function* () {
      const s = yield* scene({ queue: 2 })
      const first = yield* s.submit("a")
      yield* s.called(1)
      const waiting = yield* Effect.forEach(["b", "c"], (id) => s.submit(id))
      yield* waitUntil(
        "they wait",
        Effect.sync(() => s.batching.waiting() === 2)
      )
      assert.strictEqual(yield* Effect.flip(s.batching.submit({ id: "d", key: "d" })), "full")
      yield* s.answer(1)
      yield* s.called(2)
      const later = yield* s.submit("e")
      yield* s.answer(2)
      yield* s.answer(3)
      for (const fiber of [first, ...waiting, later]) assert.isTrue(Exit.isSuccess(yield* Fiber.join(fiber)))
    }).pipe(Effect.scoped)
  )

  it.live("ends a defect with its own call", () =>
    Effect.gen(function* () {
      let calls = 0
      const { submit } = yield* Batching.make<string, string, string>({
        workers: 1,
        batch: 10,
        queue: 10,
        alone: 1,
        one: Effect.succeed,
        many: (requests) => {
          if (++calls === 1) throw new Error("broken")
          return Effect.succeed(requests.map((one) => Exit.succeed(one)))
        },
        refuse: (why) => why
      })
      assert.isTrue(Exit.hasDies(yield* Effect.exit(submit("a"))))
      assert.strictEqual(yield* submit("b"), "b")
    }).pipe(Effect.scoped)
  )

  it.live("closes when what is under way has ended, and answers who waits", () =>
    Effect.gen(function* () {
      const scope = yield* Effect.scope
      const s = yield* scene()
      const first = yield* s.submit("a")
      yield* s.called(1)
      const waits = yield* s.submit("b")
      yield* waitUntil(
        "it waits",
        Effect.sync(() => s.batching.waiting() === 1)
      )
      yield* Effect.forkDetach(Effect.delay(s.answer(1), 20))
      return { first, waits, s, scope }
    }).pipe(
      Effect.scoped,
      Effect.flatMap(({ first, s, waits }) =>
        Effect.gen(function* () {
          assert.deepStrictEqual(yield* Fiber.join(first), Exit.succeed("yes a"))
          assert.deepStrictEqual(yield* Fiber.join(waits), Exit.fail("closed"))
          assert.strictEqual(yield* Effect.flip(s.batching.submit({ id: "c", key: "c" })), "closed")
        })
      )
    )
  )

  it.live("runs a call in the context of its first caller", () =>
    Effect.gen(function* () {
      const seen: Array<unknown> = []
      const gates = [Deferred.makeUnsafe<void>(), Deferred.makeUnsafe<void>()]
      let calls = 0
      const { submit } = yield* Batching.make<string, string, string>({
        workers: 1,
        batch: 10,
        queue: 10,
        alone: 1,
        one: Effect.succeed,
        many: (requests) =>
          Effect.gen(function* () {
            seen.push((yield* References.CurrentLogAnnotations)["caller"])
            yield* Deferred.await(gates[calls++]!)
            return requests.map((one) => Exit.succeed(one))
          }),
        refuse: (why) => why
      })
      const named = (name: string) => Effect.forkChild(Effect.annotateLogs(submit(name), { caller: name }))
      const first = yield* named("first")
      yield* waitUntil(
        "it is on its way",
        Effect.sync(() => seen.length === 1)
      )
      const second = yield* named("second")
      for (const gate of gates) Deferred.doneUnsafe(gate, Effect.void)
      yield* Fiber.join(first)
      yield* Fiber.join(second)
      assert.deepStrictEqual(seen, ["first", "second"])
    }).pipe(Effect.scoped)
  )
})
