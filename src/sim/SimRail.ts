/**
 * The rail as rail-proxy sees it, over the book and the misbehaviours of `RailStub`: what each fate comes to for a caller
 * that has only `Rail`. The stub may be at the other end of a simulated network, whose failures say nothing about the
 * payment.
 */
import { Clock, Effect } from "effect"
import { reached } from "../core/FaultPoint.ts"
import { Rail, type RailAnswer, type RailFinding, RailNoAnswer } from "../core/rail/Rail.ts"
import type { LookupAnswer, PaymentOrder } from "../services/api/RailStubHttpApi.ts"
import type { LookupFate, SubmitFate } from "../services/rail-stub/RailStub.ts"

export interface RemoteRail<E> {
  readonly submit: (order: PaymentOrder) => Effect.Effect<SubmitFate, E>
  readonly lookup: (clientReference: string) => Effect.Effect<LookupFate, E>
}

export const make = <E>(remote: RemoteRail<E>): Rail["Service"] =>
  Rail.of({
    submit: (payment, sendNotAfterNanos) => submit(remote, payment, sendNotAfterNanos),
    lookup: (clientReference) => lookup(remote, clientReference),
    ping: Effect.void
  })

const submit = Effect.fnUntraced(function* <E>(
  remote: RemoteRail<E>,
  payment: PaymentOrder,
  sendNotAfterNanos: bigint
) {
  if ((yield* Clock.monotonicTimeNanos) > sendNotAfterNanos) {
    return yield* new RailNoAnswer({ cause: "the send window has passed", neverSent: true })
  }
  // Stopped here and woken later, the proxy pays late: see RailService.
  yield* reached("rail.send.before")
  return yield* answerOf(yield* Effect.mapError(remote.submit(payment), broken))
})

const lookup = Effect.fnUntraced(function* <E>(remote: RemoteRail<E>, clientReference: string) {
  const fate = yield* Effect.mapError(remote.lookup(clientReference), broken)
  return fate._tag === "Answered" ? findingOf(fate.answer) : yield* unclear("the lookup is out of order")
})

const unclear = (cause: string): RailNoAnswer => new RailNoAnswer({ cause, neverSent: false })
const broken = (): RailNoAnswer => unclear("the connection broke")

/** Refused as a duplication: then there is an original, and it is to be looked up. */
const duplication: ReadonlySet<string> = new Set(["AM05", "DUPL"])

const answerOf = (fate: SubmitFate): Effect.Effect<RailAnswer, RailNoAnswer> => {
  switch (fate._tag) {
    case "Acknowledged":
      return Effect.succeed(fate)
    case "Rejected":
      return duplication.has(fate.code)
        ? Effect.fail(unclear(`refused as a duplication: ${fate.code}`))
        : Effect.succeed({ _tag: "Declined", code: fate.code })
    case "Silence":
      return Effect.delay(Effect.fail(broken()), fate.holdMillis)
    default:
      return Effect.fail(unclear(fate._tag))
  }
}

const findingOf = ({ executedCount, railReferences, status }: LookupAnswer): RailFinding => {
  switch (status) {
    case "ACSC":
      return { _tag: "EXECUTED", count: executedCount, railReference: railReferences[0] ?? "" }
    case "RJCT":
      return { _tag: "REJECTED" }
    case "PDNG":
      return { _tag: "PENDING" }
    case "NOT_FOUND":
      return { _tag: "NOT_FOUND" }
  }
}
