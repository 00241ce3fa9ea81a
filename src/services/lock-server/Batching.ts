/**
 * Natural batching: while a call is on its way, requests queue up, and the next call takes all of them.
 *
 * - Who is alone is not kept waiting: he goes at once.
 * - A call that is under way belongs to nobody. It runs to its end whoever gives up, so its outcome is known to the others.
 *   A request whose caller gives up in the queue is never sent.
 * - What a call for many leaves out is tried alone, beside the batches and never more than `alone` at a time: a request
 *   that has to wait (for a row) keeps no other waiting.
 * - When the queue is full the answer is a failure, at once: a backend that does not keep up is not helped by more.
 */
import { type Context, Deferred, Effect, Exit, type Scope, Semaphore } from "effect"

export interface BatchingOptions<Request, A, E> {
  /** Calls for many that are under way at most. */
  readonly workers: number
  /** Requests in a call at most. */
  readonly batch: number
  /** Requests that wait at most. */
  readonly queue: number
  /** Calls for one that are under way at most, besides those of the workers. */
  readonly alone: number
  /** For each call anew: whether a request may join those that were let in before. Otherwise it waits for the next. */
  readonly admission?: () => (request: Request) => boolean
  /** Requests of one name are the same: in one call they are one, with one answer for all. */
  readonly same?: (request: Request) => string
  /** Beside the workers; it may take its time. */
  readonly one: (request: Request) => Effect.Effect<A, E>
  /** The answers in the order of the requests (one or more); undefined: left out, and to be tried alone. */
  readonly many: (requests: ReadonlyArray<Request>) => Effect.Effect<ReadonlyArray<Exit.Exit<A, E> | undefined>>
  readonly refuse: (why: "full" | "closed") => E
}

export interface Batching<in Request, out A, out E> {
  readonly submit: (request: Request) => Effect.Effect<A, E>
  /** How many wait. */
  readonly waiting: () => number
}

interface Job<Request, A, E> {
  readonly request: Request
  readonly answer: Deferred.Deferred<A, E>
  /** Of the caller: the span above all. */
  readonly context: Context.Context<never>
}

/** What travels as one request, for one caller or several. */
type Jobs<Request, A, E> = [Job<Request, A, E>, ...Array<Job<Request, A, E>>]

export const make = Effect.fnUntraced(function* <Request, A, E>(
  options: BatchingOptions<Request, A, E>
): Effect.fn.Return<Batching<Request, A, E>, never, Scope.Scope> {
  type Group = Jobs<Request, A, E>
  const { admission, same } = options
  const queue = new Set<Job<Request, A, E>>()
  const idle = Deferred.makeUnsafe<void>()
  const places = Semaphore.makeUnsafe(options.alone)
  let working = 0
  let besides = 0
  let closed = false

  const left = () => {
    if (closed && working === 0 && besides === 0) Deferred.doneUnsafe(idle, Effect.void)
  }
  const answer = (jobs: Group, exit: Exit.Exit<A, E>) => {
    for (const job of jobs) Deferred.doneUnsafe(job.answer, exit)
  }

  /** The next call, oldest first. */
  const take = (): Array<Group> => {
    const taken: Array<Group> = []
    const admits = admission?.()
    const groups = new Map<string, Group>()
    for (const job of queue) {
      const id = same?.(job.request)
      const group = id === undefined ? undefined : groups.get(id)
      if (group !== undefined) {
        queue.delete(job)
        group.push(job)
        continue
      }
      if (taken.length === options.batch) break
      if (admits?.(job.request) === false) continue
      queue.delete(job)
      const begun: Group = [job]
      taken.push(begun)
      if (id !== undefined) groups.set(id, begun)
    }
    return taken
  }

  const alone = (jobs: Group) =>
    Effect.suspend(() => options.one(jobs[0].request)).pipe(
      inContext(jobs[0].context),
      Effect.exit,
      Effect.map((exit) => answer(jobs, exit))
    )

  const together = (groups: ReadonlyArray<Group>, context: Context.Context<never>) =>
    Effect.suspend(() => options.many(groups.map(([{ request }]) => request))).pipe(
      inContext(context),
      Effect.exit,
      Effect.flatMap((exit) => {
        const leftOut: Array<Group> = []
        for (const [i, jobs] of groups.entries()) {
          if (Exit.isFailure(exit)) {
            answer(jobs, Exit.failCause(exit.cause))
            continue
          }
          const own = exit.value[i]
          if (own === undefined) leftOut.push(jobs)
          else answer(jobs, own)
        }
        besides += leftOut.length
        return Effect.forEach(
          leftOut,
          (jobs) =>
            Effect.forkDetach(
              Effect.ensuring(
                places.withPermit(alone(jobs)),
                Effect.sync(() => {
                  besides--
                  left()
                })
              )
            ),
          { discard: true }
        )
      })
    )

  const work = Effect.whileLoop({
    while: () => {
      if (queue.size > 0) return true
      working--
      left()
      return false
    },
    body: () => {
      const groups = take()
      const [first] = groups
      return first === undefined ? Effect.void : together(groups, first[0].context)
    },
    step: () => {}
  })

  yield* Effect.addFinalizer(() =>
    Effect.suspend(() => {
      closed = true
      for (const job of queue) Deferred.doneUnsafe(job.answer, Effect.fail(options.refuse("closed")))
      queue.clear()
      left()
      return Deferred.await(idle)
    })
  )

  return {
    waiting: () => queue.size,
    submit: (request) =>
      Effect.contextWith<never, A, E, never>((context) => {
        if (closed) return Effect.fail(options.refuse("closed"))
        if (queue.size >= options.queue) return Effect.fail(options.refuse("full"))
        const job: Job<Request, A, E> = { request, answer: Deferred.makeUnsafe(), context }
        return Effect.uninterruptibleMask((restore) => {
          queue.add(job)
          const answered = Effect.onInterrupt(restore(Deferred.await(job.answer)), () =>
            Effect.sync(() => queue.delete(job))
          )
          if (working >= options.workers) return answered
          working++
          // Not started immediately: whoever is ready in this very moment comes along. (Started at once, 64 clients get 1,350
          // pairs a second of PostgreSQL and not 7,000.)
          return Effect.andThen(Effect.forkDetach(work), answered)
        })
      })
  }
})

/** The worker was started by somebody else. */
const inContext =
  (context: Context.Context<never>) =>
  <A, E>(self: Effect.Effect<A, E>): Effect.Effect<A, E> =>
    Effect.updateContext<A, E, never, never>(self, () => context)

/** Requests of one name are never in one call. */
export const distinct =
  <Request>(name: (request: Request) => string) =>
  () => {
    const names = new Set<string>()
    return (request: Request) => {
      const before = names.size
      return names.add(name(request)).size > before
    }
  }
