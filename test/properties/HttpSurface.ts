/**
 * What every surface owes to every client, whatever he sends: an answer, in time, that the surface documents.
 *
 * Requests are made from the surface's own description, half right and half wrong, so that they reach behind the
 * decoding as often as they fail in it. An answer counts when its status and body decode with a schema which the endpoint
 * declares; a failure wears the six-field envelope; 500 is never right.
 */
import { Effect, Schema, SchemaAST } from "effect"
import { HttpApi, type HttpApiGroup } from "effect/http-api"
import * as fc from "fast-check"
import * as Http from "node:http"
import { wire, type WireTag } from "../../src/services/api/ApiError.ts"
import { pathTable, routesOf } from "../../src/services/api/Envelope.ts"

export interface SurfaceOptions<Id extends string, Groups extends HttpApiGroup.Constraint> {
  readonly api: HttpApi.HttpApi<Id, Groups>
  readonly baseUrl: string
  /** Values that mean something to the surface: existing ids, live tokens, states. They appear in every position. */
  readonly vocabulary?: ReadonlyArray<string | number>
  /** Requests that are right as they are. They are sent as such, and with a header or a field changed. */
  readonly examples?: ReadonlyArray<Example>
  /** Each example is sent once, unchanged and in order, before anything else. */
  readonly examplesFirst?: boolean
  /**
   * What a refusal (400, 404, 405, 413, 415) must leave as it is. Asked after each refusal, and before it when the
   * answer is not known from the refusal before; the two must be equal.
   */
  readonly state?: Effect.Effect<string>
  /** Request headers beyond the common ones. */
  readonly headers?: ReadonlyArray<string>
  /** Paths (as in the description) that are left out, such as one that is made to fail. */
  readonly except?: ReadonlyArray<string>
  readonly runs?: number
  readonly seed?: number
  /** Longer than the longest wait that a request can ask for. */
  readonly answerMillis?: number
}

export interface Example {
  readonly method: string
  readonly path: string
  readonly headers?: Readonly<Record<string, string | undefined>>
  readonly body?: Readonly<Record<string, unknown>>
}

const sentOf = ({ body, headers, method, path }: Example): Sent => ({
  method,
  path,
  headers: Object.entries({
    ...(body === undefined ? {} : { "content-type": "application/json" }),
    ...headers
  }).flatMap(([name, value]) => (value === undefined ? [] : [[name, value] as const])),
  body: body === undefined ? undefined : JSON.stringify(body)
})

/** Nothing may have changed after an answer with one of these. */
const refusals: ReadonlySet<number> = new Set([400, 404, 405, 413, 415])

interface Endpoint {
  readonly method: string
  readonly path: string
  readonly fields: ReadonlyArray<string>
  readonly query: ReadonlyArray<string>
  readonly answers: ReadonlyMap<number, ReadonlyArray<Schema.Top>>
}

interface Sent {
  readonly method: string
  readonly path: string
  readonly headers: ReadonlyArray<readonly [string, string]>
  readonly body: string | undefined
}

interface Answer {
  readonly status: number
  readonly contentType: string | undefined
  readonly body: string
}

/** The names of an object schema's fields. An endpoint's schemas are derived ones, without the `fields` of a struct. */
export const fieldsOf = (schema: Schema.Top | undefined): ReadonlyArray<string> =>
  schema !== undefined && SchemaAST.isObjects(schema.ast)
    ? schema.ast.propertySignatures.map(({ name }) => String(name))
    : []

/** Every endpoint with what it documents. */
const endpointsOf = <Id extends string, Groups extends HttpApiGroup.Constraint>(
  api: HttpApi.HttpApi<Id, Groups>
): ReadonlyArray<Endpoint> => {
  const endpoints: Array<Endpoint> = []
  HttpApi.reflect(api, {
    onGroup() {},
    onEndpoint({ endpoint, errors, successes }) {
      endpoints.push({
        method: endpoint.method,
        path: endpoint.path,
        fields: [...endpoint.payload.values()].flatMap(({ schemas }) => schemas.flatMap(fieldsOf)),
        query: fieldsOf(endpoint.query),
        answers: new Map<number, ReadonlyArray<Schema.Top>>([...errors, ...successes])
      })
    }
  })
  return endpoints
}

const common: ReadonlyArray<string | number> = [
  "",
  " ",
  "0",
  "1",
  "-1",
  "007",
  "1e3",
  "5",
  "9223372036854775807",
  "9223372036854775808",
  "payout:acct-1",
  "acct-1",
  "..",
  "a/b",
  "%",
  "null",
  "true",
  "EUR",
  "w1",
  "2026-01-01T00:00:00.000Z",
  "00000000-0000-4000-8000-000000000001",
  "\u0000",
  "\ud800",
  "ä",
  "'; DROP TABLE x; --",
  0,
  1,
  -1,
  1_000,
  2_000,
  1e21,
  0.5
]

const requests = (
  endpoints: ReadonlyArray<Endpoint>,
  options: {
    readonly vocabulary: ReadonlyArray<string | number>
    readonly examples: ReadonlyArray<Example>
    readonly headers: ReadonlyArray<string>
  }
): fc.Arbitrary<Sent> => {
  const word = fc.oneof(
    { weight: options.vocabulary.length === 0 ? 0 : 4, arbitrary: fc.constantFrom(...options.vocabulary, "") },
    { weight: 2, arbitrary: fc.constantFrom(...common) },
    { weight: 1, arbitrary: fc.string({ maxLength: 300, unit: "binary" }) }
  )
  const headerValue = word.map((value) =>
    // What Node refuses to send at all is not the surface's business.
    String(value)
      .replace(/[^\t\x20-\x7e\x80-\xff]/g, "?")
      .slice(0, 400)
  )
  const headerName = fc.constantFrom(
    "x-owner-id",
    "x-fencing-token",
    "x-idempotency-key",
    "traceparent",
    "accept",
    ...options.headers
  )
  const someHeaders = fc.array(fc.tuple(headerName, headerValue), { maxLength: 6 })
  const proper: ReadonlyArray<readonly [string, string]> = [
    ["x-owner-id", "w1"],
    ["x-fencing-token", "5"]
  ]
  // Right, right with one of them wrong or too many, or anything.
  const headerList: fc.Arbitrary<ReadonlyArray<readonly [string, string]>> = fc.oneof(
    { weight: 4, arbitrary: fc.constant(proper) },
    {
      weight: 2,
      arbitrary: fc
        .tuple(fc.subarray([...proper]), headerName, headerValue)
        .map(([kept, name, value]) => [...kept, [name, value] as const])
    },
    { weight: 1, arbitrary: someHeaders }
  )
  const contentType = fc.oneof(
    { weight: 6, arbitrary: fc.constant("application/json") },
    {
      weight: 1,
      arbitrary: fc.constantFrom(
        "application/json; charset=utf-8",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        ""
      )
    }
  )
  const body = (endpoint: Endpoint | undefined) => {
    const names = endpoint === undefined || endpoint.fields.length === 0 ? ["x"] : endpoint.fields
    return fc.oneof(
      {
        weight: 6,
        arbitrary: fc
          .dictionary(
            fc.constantFrom(...names),
            fc.oneof({ weight: 4, arbitrary: word }, { weight: 1, arbitrary: fc.jsonValue() })
          )
          .map((value) => JSON.stringify(value))
      },
      { weight: 3, arbitrary: fc.constant(undefined) },
      { weight: 1, arbitrary: fc.json() },
      { weight: 1, arbitrary: fc.string({ maxLength: 100, unit: "binary" }) },
      { weight: 1, arbitrary: fc.constantFrom("[".repeat(5_000), '{"a":'.repeat(2_000), `"${"x".repeat(70_000)}"`) }
    )
  }
  const known = fc.constantFrom(...endpoints).chain((endpoint) =>
    fc
      .record({
        method: fc.oneof(
          { weight: 8, arbitrary: fc.constant(endpoint.method) },
          { weight: 1, arbitrary: fc.constantFrom("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PURGE") }
        ),
        params: fc.array(word, { minLength: 4, maxLength: 4 }),
        query: fc.array(fc.tuple(fc.constantFrom(...endpoint.query, "unknown"), word), { maxLength: 3 }),
        headers: headerList,
        contentType,
        body: body(endpoint)
      })
      .map(({ body, contentType, headers, method, params, query }): Sent => {
        let next = 0
        const path = endpoint.path.replace(/:[A-Za-z]+/g, () => encode(String(params[next++] ?? "")))
        const search = query.map(([name, value]) => `${name}=${encode(String(value))}`).join("&")
        return {
          method,
          path: search === "" ? path : `${path}?${search}`,
          headers: [
            ...headers,
            ...(body === undefined || contentType === "" ? [] : [["content-type", contentType] as const])
          ],
          body
        }
      })
  )
  const anywhere = fc.record({
    method: fc.constantFrom("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PURGE"),
    path: fc
      .array(word, { maxLength: 5 })
      .map((segments) => `/${segments.map((one) => encode(String(one))).join("/")}`),
    headers: someHeaders,
    body: body(undefined)
  })
  const varied = (example: Example) =>
    fc
      .record({
        header: fc.option(fc.tuple(headerName, fc.option(headerValue, { nil: undefined })), {
          nil: undefined,
          freq: 2
        }),
        field: fc.option(
          fc.tuple(
            fc.constantFrom(...Object.keys(example.body ?? {}), "x"),
            fc.option(fc.oneof(word, fc.jsonValue()), { nil: undefined })
          ),
          { nil: undefined, freq: 2 }
        )
      })
      .map(({ field, header }) =>
        sentOf({
          ...example,
          ...(header === undefined ? {} : { headers: { ...example.headers, [header[0]]: header[1] } }),
          ...(field === undefined ? {} : { body: { ...example.body, [field[0]]: field[1] } })
        })
      )
  return fc.oneof(
    { weight: 6, arbitrary: known },
    ...(options.examples.length === 0
      ? []
      : [{ weight: 5, arbitrary: fc.constantFrom(...options.examples).chain(varied) }]),
    { weight: 1, arbitrary: anywhere }
  )
}

/** As a client encodes a path segment; a lone surrogate can not be encoded at all. */
const encode = (text: string) => encodeURIComponent(text.toWellFormed())

const send = (baseUrl: string, { body, headers, method, path }: Sent, answerMillis: number) =>
  Effect.callback<Answer, Error>((resume) => {
    const request = Http.request(`${baseUrl}${path}`, { method, agent: false }, (response) => {
      let text = ""
      response.setEncoding("utf8").on("data", (part: string) => (text += part))
      response.on("end", () =>
        resume(
          Effect.succeed({
            status: response.statusCode ?? 0,
            contentType: response.headers["content-type"],
            body: text
          })
        )
      )
      response.on("error", (error) => resume(Effect.fail(error)))
    })
    for (const [name, value] of headers) request.appendHeader(name, value)
    // By itself Node announces no body for GET and HEAD, and it would arrive as a request of its own.
    if (body !== undefined) request.setHeader("content-length", Buffer.byteLength(body))
    request.setTimeout(answerMillis, () => request.destroy(new Error(`no answer within ${answerMillis} ms`)))
    request.on("error", (error) => resume(Effect.fail(error)))
    request.end(body)
    return Effect.sync(() => request.destroy())
  })

/** What any request may be answered with, also without an endpoint. */
const platform: ReadonlyArray<WireTag> = [
  "RouteNotFound",
  "MethodNotAllowed",
  "PayloadTooLarge",
  "UnsupportedMediaType",
  "MalformedRequest",
  "HeadersTooLarge"
]

const envelopeFields = ["code", "message", "retrySafe", "retryAfterMillis", "details", "traceId"].join()

const decodes = (schema: Schema.Top, value: unknown): boolean =>
  // Decoding a wire schema needs no service: it is data in, data out.
  Schema.decodeUnknownExit(Schema.toCodecJson(schema) as unknown as Schema.Codec<unknown>)(value)._tag === "Success"

/** What is wrong with an answer, in words; undefined when it is one that the surface documents. */
export const problemOf = (
  sent: { readonly method: string; readonly endpoint: Endpoint | undefined },
  answer: Answer
): string | undefined => {
  const { body, contentType, status } = answer
  if (status === 500) return "an internal error"
  const documented = sent.endpoint?.answers.get(status) ?? []
  if (sent.method === "HEAD") return body === "" ? undefined : "a body in answer to HEAD"
  if (body === "") return status === 204 || status === 205 ? undefined : `an empty ${status}`
  if (contentType !== "application/json; charset=utf-8") return `content type ${contentType}`
  let value: unknown
  try {
    value = JSON.parse(body)
  } catch {
    return "a body that is no JSON"
  }
  if (status < 400) return documented.some((schema) => decodes(schema, value)) ? undefined : `an undocumented ${status}`
  const names = typeof value === "object" && value !== null ? Object.keys(value).join() : ""
  if (names !== envelopeFields) return `an envelope of other fields: ${names}`
  return [...documented, ...platform.map((tag) => wire(tag))].some((schema) => decodes(schema, value))
    ? undefined
    : `a failure that ${sent.endpoint?.path ?? "no endpoint"} does not document`
}

/**
 * Dies with the smallest request that is not answered as it should be. Succeeds with how often each status came, so that
 * a test can tell whether the requests got anywhere.
 */
export const check = <Id extends string, Groups extends HttpApiGroup.Constraint>(
  options: SurfaceOptions<Id, Groups>
): Effect.Effect<ReadonlyMap<number, number>> => {
  const statuses = new Map<number, number>()
  const state = options.state ?? Effect.succeed("")
  let known: string | undefined
  const all = endpointsOf(options.api)
  const endpoints = all.filter(({ path }) => options.except?.includes(path) !== true)
  const pathOf = pathTable(routesOf(options.api))
  /** The endpoint that a request reaches, which need not be the one that it was made for. */
  const reached = ({ method, path }: Sent) => {
    const known = pathOf(path)?.path
    return all.find((one) => one.path === known && one.method === (method === "HEAD" ? "GET" : method))
  }
  const property = fc.asyncProperty(
    requests(endpoints, {
      vocabulary: options.vocabulary ?? [],
      examples: options.examples ?? [],
      headers: options.headers ?? []
    }),
    (sent) =>
      Effect.runPromise(
        Effect.gen(function* () {
          const before = known ?? (yield* state)
          const answer = yield* send(options.baseUrl, sent, options.answerMillis ?? 5_000)
          statuses.set(answer.status, (statuses.get(answer.status) ?? 0) + 1)
          const refused = refusals.has(answer.status)
          known = refused ? before : undefined
          const problem =
            problemOf({ method: sent.method, endpoint: reached(sent) }, answer) ??
            (refused && (yield* state) !== before ? `a ${answer.status} that changed something` : undefined)
          if (problem !== undefined) {
            throw new Error(
              `${problem}\n${sent.method} ${sent.path} ${JSON.stringify(sent.headers)} ${sent.body?.slice(0, 500)}\n` +
                `${answer.status} ${answer.body.slice(0, 500)}`
            )
          }
        })
      )
  )
  const parameters = {
    numRuns: options.runs ?? 300,
    includeErrorInReport: true,
    ...(options.examplesFirst === true
      ? { examples: (options.examples ?? []).map((example): [Sent] => [sentOf(example)]) }
      : {}),
    ...(options.seed === undefined ? {} : { seed: options.seed })
  }
  return Effect.as(
    Effect.promise(() => fc.assert(property, parameters)),
    statuses
  )
}
