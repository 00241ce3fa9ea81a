/**
 * The outside world: a payment rail that is not idempotent, and misbehaves as told. It is the environment, not part of
 * the system, and imports nothing of it.
 *
 * - A submit pays when it is received, whatever becomes of the answer or of the caller.
 * - The book is in memory and there is one of it: a restarted rail has forgotten every payment. Its references begin
 *   with a boot id, so that it never hands out one again that an earlier run handed out.
 * - Every draw is a function of the seed and the ordinal of the submit since the seed was set: two runs with the same
 *   control and the same order of submits meet the same fates.
 */
import { Clock, Context, DateTime, Effect, Layer, Random, Schema } from "effect"
import {
  type ArrivedSubmit,
  type BookedPayment,
  Control,
  type LookupAnswer,
  type PaymentOrder,
  type SubmitFault
} from "../api/RailStubHttpApi.ts"

/** What the caller of a submit gets to see. */
export type SubmitFate =
  | { readonly _tag: "Acknowledged"; readonly railReference: string }
  | { readonly _tag: "Rejected"; readonly code: string }
  /** Nothing for so long, then the connection is destroyed. */
  | { readonly _tag: "Silence"; readonly holdMillis: number }
  /** 503 of a gateway. */
  | { readonly _tag: "ServerError" }
  /** 200 with a page for humans. */
  | { readonly _tag: "Html" }
  | { readonly _tag: "Reset" }
  /** Well-formed, with a status that nobody has heard of. */
  | { readonly _tag: "UnknownStatus" }

export type LookupFate = { readonly _tag: "Answered"; readonly answer: LookupAnswer } | { readonly _tag: "Unavailable" }

export class RailStub extends Context.Service<
  RailStub,
  {
    /** Takes as long as the latency says; interrupting it does not undo the payment. */
    readonly submit: (order: PaymentOrder) => Effect.Effect<SubmitFate>
    readonly lookup: (clientReference: string) => Effect.Effect<LookupFate>
    readonly payments: Effect.Effect<{
      readonly payments: ReadonlyArray<BookedPayment>
      readonly submits: ReadonlyArray<ArrivedSubmit>
    }>
    readonly control: Effect.Effect<Control>
    /** Answers the control now in force. */
    readonly replaceControl: (control: Control) => Effect.Effect<Control>
  }
>()("dlock/services/rail-stub/RailStub") {}

/** Behaves well. */
export const wellBehaved: Control = Schema.decodeSync(Control)({})

interface Plan {
  readonly fault: SubmitFault | null
  readonly paid: boolean
  readonly code: string
}

/** Whether a fault pays when nobody says so. */
const paysByDefault: { readonly [K in SubmitFault]: boolean } = {
  timeoutPaid: true,
  timeoutUnpaid: false,
  decline: false,
  duplicateAck: false,
  http5xx: true,
  htmlBody: true,
  reset: true,
  unknownStatus: true
}
/** Those whose name does not tell: by rate, a coin does. */
const eitherWay: ReadonlySet<SubmitFault> = new Set<SubmitFault>(["http5xx", "htmlBody", "reset", "unknownStatus"])

const closedAccount = "AC04"

const isoOf = (millis: number): string => DateTime.formatIso(DateTime.makeUnsafe(millis))

interface Booked {
  readonly atMillis: number
  readonly payment: BookedPayment
}

export const make = Effect.gen(function* () {
  const boot = (yield* Random.nextIntBetween(0, 0x1_0000_0000)).toString(16).padStart(8, "0")
  const book: Array<Booked> = []
  const byReference = new Map<string, Array<Booked>>()
  const refusedAt = new Map<string, number>()
  const submits: Array<ArrivedSubmit> = []
  let control = wellBehaved
  let drawn = 0

  /** Takes the first entry once; what is left of it stays first. */
  const takeFirst = <F extends { readonly times: number }>(
    faults: ReadonlyArray<F>
  ): readonly [F | undefined, ReadonlyArray<F>] => {
    const [first, ...rest] = faults
    if (first === undefined) return [undefined, faults]
    return [first, first.times > 1 ? [{ ...first, times: first.times - 1 }, ...rest] : rest]
  }

  const plan = (uniform: number, coin: number): Plan => {
    const [next, rest] = takeFirst(control.faults)
    if (next !== undefined) {
      control = { ...control, faults: rest }
      return { fault: next.kind, paid: next.paid ?? paysByDefault[next.kind], code: next.code ?? closedAccount }
    }
    let left = uniform
    for (const [kind, rate] of Object.entries(control.rates) as ReadonlyArray<[SubmitFault, number]>) {
      if (left < rate) {
        return { fault: kind, paid: eitherWay.has(kind) ? coin < 0.5 : paysByDefault[kind], code: closedAccount }
      }
      left -= rate
    }
    return { fault: null, paid: true, code: closedAccount }
  }

  const pay = (order: PaymentOrder, atMillis: number): string => {
    const railReference = `RAIL-${boot}-${String(book.length + 1).padStart(6, "0")}`
    const booked = { atMillis, payment: { railReference, at: isoOf(atMillis), ...order } }
    book.push(booked)
    const under = byReference.get(order.clientReference)
    if (under === undefined) byReference.set(order.clientReference, [booked])
    else under.push(booked)
    return railReference
  }

  const fateOf = ({ code, fault }: Plan, railReference: string | undefined, before: string | undefined): SubmitFate => {
    switch (fault) {
      case "timeoutPaid":
      case "timeoutUnpaid":
        return { _tag: "Silence", holdMillis: control.holdMillis }
      case "decline":
        return { _tag: "Rejected", code }
      case "http5xx":
        return { _tag: "ServerError" }
      case "htmlBody":
        return { _tag: "Html" }
      case "reset":
        return { _tag: "Reset" }
      case "unknownStatus":
        return { _tag: "UnknownStatus" }
      case "duplicateAck":
      case null:
        return { _tag: "Acknowledged", railReference: (fault === null ? railReference : before) ?? "" }
    }
  }

  /** One synchronous step: what it pays is paid, and no caller can get between. */
  const receive = (order: PaymentOrder, atMillis: number, uniform: number, coin: number): SubmitFate => {
    const before = book.at(-1)?.payment.railReference
    const planned = plan(uniform, coin)
    const nothingToRepeat = planned.fault === "duplicateAck" && before === undefined
    const met: Plan = nothingToRepeat ? { ...planned, fault: null, paid: true } : planned
    const railReference = met.paid ? pay(order, atMillis) : undefined
    if (met.fault === "decline") refusedAt.set(order.clientReference, atMillis)
    submits.push({
      at: isoOf(atMillis),
      clientReference: order.clientReference,
      fault: met.fault,
      railReference: railReference ?? null
    })
    return fateOf(met, railReference, before)
  }

  const draws = Effect.suspend(() =>
    Effect.all([Random.next, Random.next, Random.next]).pipe(Random.withSeed(`${control.seed}/${++drawn}`))
  )

  const latencyMillis = (jitter: number): number => {
    const { fixedMillis, jitterMillis } = control.latency
    return fixedMillis + Math.floor(jitter * (jitterMillis + 1))
  }

  const submit = (order: PaymentOrder) =>
    submitting(draws, (atMillis, uniform, coin) => receive(order, atMillis, uniform, coin), latencyMillis)

  const answerTo = (clientReference: string, nowMillis: number): LookupAnswer => {
    const visibleUntil = nowMillis - control.lookup.visibilityDelayMillis
    const found = (byReference.get(clientReference) ?? []).filter(({ atMillis }) => atMillis <= visibleUntil)
    const refused = refusedAt.get(clientReference)
    return {
      clientReference,
      status:
        found.length > 0 ? "ACSC" : refused !== undefined && refused <= visibleUntil ? "RJCT" : ("NOT_FOUND" as const),
      executedCount: found.length,
      railReferences: found.map(({ payment }) => payment.railReference)
    }
  }

  const lookup = (clientReference: string): Effect.Effect<LookupFate> =>
    Effect.map(Clock.currentTimeMillis, (nowMillis): LookupFate => {
      const [next, rest] = takeFirst(control.lookup.faults)
      control = { ...control, lookup: { ...control.lookup, faults: rest } }
      const blind = { clientReference, executedCount: 0, railReferences: [] }
      switch (next?.kind) {
        case "unavailable":
          return { _tag: "Unavailable" }
        case "pending":
          return { _tag: "Answered", answer: { ...blind, status: "PDNG" } }
        case "notFound":
          return { _tag: "Answered", answer: { ...blind, status: "NOT_FOUND" } }
        case undefined:
          return { _tag: "Answered", answer: answerTo(clientReference, nowMillis) }
      }
    })

  return RailStub.of({
    submit,
    lookup,
    payments: Effect.sync(() => ({ payments: book.map(({ payment }) => payment), submits: [...submits] })),
    control: Effect.sync(() => control),
    replaceControl: (next) =>
      Effect.sync(() => {
        control = next
        drawn = 0
        return control
      })
  })
})

const submitting = Effect.fnUntraced(function* (
  draws: Effect.Effect<[uniform: number, coin: number, jitter: number]>,
  receive: (atMillis: number, uniform: number, coin: number) => SubmitFate,
  latencyMillis: (jitter: number) => number
) {
  const [uniform, coin, jitter] = yield* draws
  const atMillis = yield* Clock.currentTimeMillis
  const fate = receive(atMillis, uniform, coin)
  const millis = latencyMillis(jitter)
  if (millis > 0) yield* Effect.sleep(millis)
  return fate
})

export const layer: Layer.Layer<RailStub> = Layer.effect(RailStub, make)
