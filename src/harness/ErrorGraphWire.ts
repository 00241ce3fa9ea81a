/** The rows of the wire table and the routes that answer each, from the values that serve them. */
import { type HttpApi, type HttpApiGroup, OpenApi } from "effect/http-api"
import { errorTable } from "../services/api/ApiError.ts"
import { LockHttpApi } from "../services/api/LockHttpApi.ts"
import { PaymentHttpApi } from "../services/api/PaymentHttpApi.ts"
import { RailHttpApi } from "../services/api/RailHttpApi.ts"
import { requestFailures } from "../services/api/RequestErrors.ts"
import type { WireEntry } from "./ErrorGraph.ts"

/** Route to the failures of its answers, as the OpenAPI document names them. */
const answersOf = <Id extends string, Groups extends HttpApiGroup.Constraint>(
  api: HttpApi.HttpApi<Id, Groups>
): ReadonlyArray<readonly [route: string, failure: string]> =>
  Object.entries(OpenApi.fromApi(api).paths).flatMap(([path, item]) =>
    Object.entries(item).flatMap(([method, operation]) => {
      const route = `${method.toUpperCase()} ${path.replaceAll(/\{([^}]+)\}/g, ":$1")}`
      const text = JSON.stringify((operation as { readonly responses?: unknown }).responses ?? {})
      return [...text.matchAll(/schemas\/(\w+)Envelope"/g)].map(([, failure = ""]) => [route, failure] as const)
    })
  )

/** What any route may answer before it looks at the request (RequestErrors) is said once, not for each route. */
const ofEveryRoute: ReadonlySet<string> = new Set(requestFailures)

export const wireEntries = (): ReadonlyArray<WireEntry> => {
  const answers = [...answersOf(LockHttpApi), ...answersOf(PaymentHttpApi), ...answersOf(RailHttpApi)]
  return Object.entries(errorTable)
    .map(([failure, { code, retrySafe, status }]) => ({
      failure,
      code,
      status,
      retrySafe,
      routes: ofEveryRoute.has(failure)
        ? ["every route"]
        : [...new Set(answers.flatMap(([route, answered]) => (answered === failure ? [route] : [])))].toSorted()
    }))
    .toSorted((a, b) => (a.failure < b.failure ? -1 : 1))
}
