/**
 * The rail as outsiders see it: four routes of a payment rail that takes no token and no key, and two that make it
 * misbehave. This surface belongs to the environment, so it says what it means by itself and imports nothing of core.
 *
 * Status codes are those of ISO 20022: ACSC paid, RJCT refused, PDNG not decided yet.
 */
import { Effect, Schema, SchemaTransformation } from "effect"
import { HttpApi, HttpApiEndpoint, HttpApiGroup, OpenApi } from "effect/http-api"
import { RequestErrors } from "./RequestErrors.ts"

const ClientReference = Schema.String.check(
  Schema.isPattern(/^[\x21-\x7e]{1,35}$/u, { expected: "1..35 printable ASCII characters" })
)

const AmountMinor = Schema.String.check(
  Schema.isPattern(/^[1-9][0-9]{0,17}$/u, { expected: "decimal digits, 1..10^18 - 1" })
).pipe(Schema.decodeTo(Schema.BigInt, SchemaTransformation.bigintFromString))

const paymentFields = {
  clientReference: ClientReference,
  amountMinor: AmountMinor,
  currency: Schema.String.check(Schema.isPattern(/^[A-Z]{3}$/u, { expected: "an ISO 4217 code" })),
  beneficiary: Schema.String.check(
    Schema.isPattern(/^[^\p{Cc}\p{Cs}]{1,140}$/u, { expected: "1..140 characters without control characters" })
  )
}
const Time = Schema.String.check(Schema.isPattern(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/u))

/** An order to pay. The same `clientReference` twice pays twice. */
export const PaymentOrder = Schema.Struct(paymentFields).annotate({ identifier: "PaymentOrder" })
export type PaymentOrder = typeof PaymentOrder.Type

/** ACSC with a rail reference, or RJCT with a reason code. */
export const SubmitAnswer = Schema.Struct({
  clientReference: ClientReference,
  status: Schema.Literals(["ACSC", "RJCT"]),
  railReference: Schema.NullOr(Schema.String),
  code: Schema.NullOr(Schema.String)
}).annotate({ identifier: "SubmitAnswer" })

export const LookupAnswer = Schema.Struct({
  clientReference: ClientReference,
  status: Schema.Literals(["ACSC", "RJCT", "PDNG", "NOT_FOUND"]),
  /** Payments made under this reference, as far as they are visible yet. */
  executedCount: Schema.Int,
  railReferences: Schema.Array(Schema.String)
}).annotate({ identifier: "LookupAnswer" })
export type LookupAnswer = typeof LookupAnswer.Type

/** One payment in the rail's book. */
export const BookedPayment = Schema.Struct({ railReference: Schema.String, at: Time, ...paymentFields }).annotate({
  identifier: "BookedPayment"
})
export type BookedPayment = typeof BookedPayment.Type

/**
 * How one submit is answered when it is not answered well. Paid or not:
 * - `timeoutPaid`, `timeoutUnpaid`: no answer; the connection is held open, then destroyed
 * - `http5xx`, `htmlBody`, `reset`, `unknownStatus`: paid unless `paid` is false (by rate: half of them)
 * - `decline`: RJCT, not paid unless `paid` is true (a rail that lies)
 * - `duplicateAck`: acknowledged with the reference of the payment before, not paid unless `paid` is true. With an
 *   empty book there is nothing to repeat and the answer is the usual one.
 */
export const SubmitFault = Schema.Literals([
  "timeoutPaid",
  "timeoutUnpaid",
  "decline",
  "duplicateAck",
  "http5xx",
  "htmlBody",
  "reset",
  "unknownStatus"
])
export type SubmitFault = typeof SubmitFault.Type

/** What happened to every submit that arrived, in order: also those that paid nothing. */
export const ArrivedSubmit = Schema.Struct({
  at: Time,
  clientReference: ClientReference,
  fault: Schema.NullOr(SubmitFault),
  railReference: Schema.NullOr(Schema.String)
}).annotate({ identifier: "ArrivedSubmit" })
export type ArrivedSubmit = typeof ArrivedSubmit.Type

export const Book = Schema.Struct({
  payments: Schema.Array(BookedPayment),
  submits: Schema.Array(ArrivedSubmit)
}).annotate({ identifier: "Book" })

const orElse = <S extends Schema.Top>(schema: S, value: S["Encoded"]) =>
  schema.pipe(Schema.withDecodingDefaultKey(Effect.succeed(value)))

const millis = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 3_600_000 }))
const rate = Schema.Finite.check(Schema.isBetween({ minimum: 0, maximum: 1 }))
const times = Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 1_000_000 }))

const Rates = Schema.Struct({
  timeoutPaid: orElse(rate, 0),
  timeoutUnpaid: orElse(rate, 0),
  decline: orElse(rate, 0),
  duplicateAck: orElse(rate, 0),
  http5xx: orElse(rate, 0),
  htmlBody: orElse(rate, 0),
  reset: orElse(rate, 0),
  unknownStatus: orElse(rate, 0)
}).check(
  Schema.makeFilter((rates) =>
    Object.values(rates).reduce((sum, each) => sum + each, 0) <= 1 ? undefined : "the rates add up to 1 at most"
  )
)

/** How the rail behaves. What is left out of a PUT is back to its default, so `{}` heals everything. */
export const Control = Schema.Struct({
  /** Between receipt (when it pays) and answer: fixed, and up to so much more, drawn. */
  latency: orElse(Schema.Struct({ fixedMillis: orElse(millis, 0), jitterMillis: orElse(millis, 0) }), {}),
  /** Share of submits that meet a fault. */
  rates: orElse(Rates, {}),
  /** Of all draws. The nth submit after it was set meets the same fate every time. */
  seed: orElse(Schema.Int, 1),
  /** For the next submits, in this order, before any rate. What is still to come is what GET shows. */
  faults: orElse(
    Schema.Array(
      Schema.Struct({
        kind: SubmitFault,
        times: orElse(times, 1),
        paid: Schema.optionalKey(Schema.Boolean),
        /** Reason code of a decline; default AC04, a closed account. */
        code: Schema.optionalKey(Schema.String.check(Schema.isPattern(/^[A-Z0-9]{1,8}$/u)))
      })
    ),
    []
  ),
  /** A connection whose caller waits in vain is destroyed after this. */
  holdMillis: orElse(millis, 60_000),
  lookup: orElse(
    Schema.Struct({
      /** For so long after a payment or refusal a lookup does not find it. */
      visibilityDelayMillis: orElse(millis, 0),
      /** For the next lookups: not decided, out of order, or blind. */
      faults: orElse(
        Schema.Array(
          Schema.Struct({ kind: Schema.Literals(["pending", "unavailable", "notFound"]), times: orElse(times, 1) })
        ),
        []
      )
    }),
    {}
  )
}).annotate({ identifier: "Control" })
export type Control = typeof Control.Type

class RailGroup extends HttpApiGroup.make("rail").add(
  HttpApiEndpoint.post("submit", "/submit", { payload: PaymentOrder, success: SubmitAnswer })
    .annotate(OpenApi.Summary, "pay")
    .annotate(OpenApi.Description, "Pays every time it is called. No token, no key, not idempotent."),
  HttpApiEndpoint.get("lookup", "/lookup", {
    query: { clientReference: ClientReference },
    success: LookupAnswer
  }).annotate(OpenApi.Summary, "what became of a client reference (read-only)"),
  HttpApiEndpoint.get("payments", "/payments", { success: Book }).annotate(OpenApi.Summary, "the whole book")
) {}

class ControlGroup extends HttpApiGroup.make("control").add(
  HttpApiEndpoint.get("read", "/control", { success: Control }).annotate(OpenApi.Summary, "how the rail behaves"),
  HttpApiEndpoint.put("replace", "/control", { payload: Control, success: Control }).annotate(
    OpenApi.Summary,
    "make the rail (mis)behave"
  )
) {}

export class RailStubHttpApi extends HttpApi.make("rail-stub")
  .add(RailGroup)
  .add(ControlGroup)
  .middleware(RequestErrors)
  .annotate(HttpApi.ParseOptions, { errors: "all", onExcessProperty: "error" })
  .annotate(HttpApi.HeadersParseOptions, { errors: "all" })
  .annotateMerge(OpenApi.annotations({ title: "dlock rail-stub", version: "1.0.0" })) {}
