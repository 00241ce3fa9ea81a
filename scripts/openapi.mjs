/**
 * The four surfaces as OpenAPI 3.1 documents and one page to read, made from the values that serve them.
 *
 *     node scripts/openapi.mjs [--check] [--out DIR]
 *
 * `--check` writes nothing and exits with 5 when a committed file is not what the code says. Needs Node 24 (it reads the
 * TypeScript sources as they are) and the installed packages.
 */
import { OpenApi } from "effect/http-api"
import { mkdirSync, readFileSync, writeFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { parseArgs } from "node:util"
import { LockHttpApi } from "../src/services/api/LockHttpApi.ts"
import { PaymentHttpApi } from "../src/services/api/PaymentHttpApi.ts"
import { RailHttpApi } from "../src/services/api/RailHttpApi.ts"
import { RailStubHttpApi } from "../src/services/api/RailStubHttpApi.ts"

const { values } = parseArgs({ options: { check: { type: "boolean" }, out: { type: "string" } } })
const directory = values.out ?? fileURLToPath(new URL("../docs/openapi/", import.meta.url))

/** File to the surface and what it is in one line. */
const surfaces = {
  lock: [LockHttpApi, "lock-server, port 8080: sessions, locks, fencing tokens (L1 to L8)"],
  payment: [PaymentHttpApi, "payment-resource, port 8081: payouts, accounts, the ledger (P1 to P12)"],
  rail: [RailHttpApi, "rail-proxy, port 8082: submissions to the rail and what is known of them (R1 to R5)"],
  "rail-stub": [
    RailStubHttpApi,
    "rail-stub, port 8083: a payment rail that takes no token and pays whenever it is asked"
  ]
}

const documents = Object.fromEntries(
  Object.entries(surfaces).map(([name, [api, summary]]) => [name, { summary, document: OpenApi.fromApi(api) }])
)

// -----------------------------------------------------------------------------
// the page
// -----------------------------------------------------------------------------

const methods = ["get", "put", "post", "delete"]

const operations = (document) =>
  Object.entries(document.paths).flatMap(([path, item]) =>
    methods.filter((method) => item[method] !== undefined).map((method) => ({ path, method, ...item[method] }))
  )

/** Names of the schemas of a body or answer. */
const schemasOf = (content = {}) =>
  Object.values(content).flatMap(({ schema }) =>
    (schema.anyOf ?? schema.oneOf ?? [schema]).map(({ $ref }) => $ref?.replace("#/components/schemas/", "") ?? "inline")
  )

/** With its fields, those that may be left out marked. */
const shape = (document, name) => {
  const { properties, required = [] } = document.components.schemas[name] ?? {}
  if (properties === undefined) return name
  const fields = Object.keys(properties).map((field) => `${field}${required.includes(field) ? "" : "?"}`)
  return `${name} \`{ ${fields.join(", ")} }\``
}

/** What every endpoint of a surface may answer is said once. */
const failuresOf = (document, operation) =>
  Object.entries(operation.responses).flatMap(([status, { content }]) =>
    schemasOf(content)
      .filter((name) => name.endsWith("Envelope"))
      .map((name) => `${status} ${document.components.schemas[name].properties.code.enum?.[0] ?? name}`)
  )

const describe = ({ document, summary }, name) => {
  const all = operations(document)
  const failures = all.map((operation) => failuresOf(document, operation))
  const common = failures[0].filter((one) => failures.every((each) => each.includes(one)))
  const out = [`## ${document.info.title} ([${name}.json](${name}.json))`, "", `${summary}.`, ""]
  out.push(`Every endpoint may also answer: ${common.join(", ")}.`, "")
  all.forEach((operation, index) => {
    out.push(`### ${operation.method.toUpperCase()} ${operation.path}`, "")
    out.push([operation.summary, operation.description].filter((one) => one !== undefined).join(". "), "")
    const parameters = (operation.parameters ?? []).map(
      ({ in: place, name: parameter, required }) =>
        `\`${parameter}\` (${place}${required === true ? "" : ", optional"})`
    )
    if (parameters.length > 0) out.push(`- takes: ${parameters.join(", ")}`)
    const body = schemasOf(operation.requestBody?.content)
    if (body.length > 0) out.push(`- body: ${body.map((one) => shape(document, one)).join(" or ")}`)
    for (const [status, { content }] of Object.entries(operation.responses)) {
      const answers = schemasOf(content)
        .filter((one) => !one.endsWith("Envelope"))
        .map((one) => shape(document, one))
      if (Number(status) < 400) out.push(`- ${status}: ${answers.join(" or ") || "no body"}`)
    }
    const own = failures[index].filter((one) => !common.includes(one))
    if (own.length > 0) out.push(`- fails with: ${own.join(", ")}`)
    out.push("")
  })
  return out.join("\n")
}

const page = `# HTTP reference

Made by \`npm run openapi\` from the values that serve the surfaces (\`src/services/api\`); do not edit. Each service also
answers its own document at \`/openapi.json\`.

Every failure has the same six fields: \`code\`, \`message\`, \`retrySafe\`, \`retryAfterMillis\`, \`details\`, \`traceId\`. May the
same request be repeated? \`retrySafe\` alone says so, never the status. Tokens and amounts are decimal strings.

${Object.entries(documents)
  .map(([name, one]) => describe(one, name))
  .join("\n")}`

// -----------------------------------------------------------------------------
// writing
// -----------------------------------------------------------------------------

const files = {
  ...Object.fromEntries(
    Object.entries(documents).map(([name, { document }]) => [`${name}.json`, `${JSON.stringify(document, null, 2)}\n`])
  ),
  "README.md": `${page.trimEnd()}\n`
}

const read = (file) => {
  try {
    return readFileSync(`${directory}/${file}`, "utf8")
  } catch {
    return undefined
  }
}

if (values.check !== true) mkdirSync(directory, { recursive: true })
for (const [file, text] of Object.entries(files)) {
  if (values.check !== true) writeFileSync(`${directory}/${file}`, text)
  else if (read(file) !== text) {
    process.stderr.write(`${file} of docs/openapi is not what the code says: npm run openapi\n`)
    process.exitCode = 5
  }
}
