// @effect-diagnostics nodeBuiltinImport:off
/** docs/openapi is what the code says, valid by the specification's own schema, and complete. */
import { assert, describe, it } from "@effect/vitest"
import { Validator } from "@seriousme/openapi-schema-validator"
import { spawnSync } from "node:child_process"
import * as fs from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { routesOf } from "../../src/services/api/Envelope.ts"
import { LockHttpApi } from "../../src/services/api/LockHttpApi.ts"
import { PaymentHttpApi } from "../../src/services/api/PaymentHttpApi.ts"
import { RailHttpApi } from "../../src/services/api/RailHttpApi.ts"
import { RailStubHttpApi } from "../../src/services/api/RailStubHttpApi.ts"

interface Document {
  readonly openapi: string
  readonly paths: Readonly<Record<string, Readonly<Record<string, { readonly summary?: string }>>>>
}

type Broken = Document & { readonly paths: Record<string, Record<string, { responses?: object }>> }

const directory = "docs/openapi"
const read = (name: string) => JSON.parse(fs.readFileSync(`${directory}/${name}.json`, "utf8")) as Document
const routes = {
  lock: routesOf(LockHttpApi),
  payment: routesOf(PaymentHttpApi),
  rail: routesOf(RailHttpApi),
  "rail-stub": routesOf(RailStubHttpApi)
}

const generate = (...args: ReadonlyArray<string>) =>
  spawnSync(process.execPath, ["--no-warnings", "scripts/openapi.mjs", ...args], { encoding: "utf8" })

/** The document is not kept: `Record` is what the validator asks for, and it is JSON. */
const validate = (document: Document) => new Validator().validate(structuredClone(document) as never)

describe("docs/openapi", () => {
  it("is what the code says", () => {
    const { status, stderr } = generate("--check")
    assert.strictEqual(status, 0, stderr)
  })

  it("is found stale when one word of it is another", () => {
    const copy = fs.mkdtempSync(path.join(tmpdir(), "dlock-openapi-"))
    try {
      fs.cpSync(directory, copy, { recursive: true })
      const file = path.join(copy, "lock.json")
      fs.writeFileSync(file, fs.readFileSync(file, "utf8").replace("L4 acquire a lock", "L4 take a lock"))
      fs.rmSync(path.join(copy, "rail.json"))
      const { status, stderr } = generate("--check", "--out", copy)
      assert.strictEqual(status, 5)
      assert.match(stderr, /^lock\.json of/m)
      assert.match(stderr, /^rail\.json of/m)
      assert.notMatch(stderr, /payment\.json/)
    } finally {
      fs.rmSync(copy, { recursive: true })
    }
  })

  for (const [name, expected] of Object.entries(routes)) {
    it(`${name}.json is valid OpenAPI 3.1 and has every route, with a summary`, async () => {
      const document = read(name)
      assert.strictEqual(document.openapi, "3.1.0")
      assert.deepStrictEqual(await validate(document), { valid: true })
      const found = Object.entries(document.paths).flatMap(([route, item]) =>
        Object.entries(item).map(([method, { summary }]) => {
          assert.isString(summary, `${method} ${route}`)
          return `${method.toUpperCase()} ${route.replaceAll(/\{(\w+)\}/g, ":$1")}`
        })
      )
      assert.deepStrictEqual(
        found.toSorted(),
        expected
          .filter(([method]) => method !== "HEAD")
          .map(([method, route]) => `${method} ${route}`)
          .toSorted()
      )
    })
  }

  it("would not be valid with an answer that says nothing", async () => {
    const document = structuredClone(read("lock")) as Broken
    const open = document.paths["/v1/sessions"]?.["post"]
    assert.isDefined(open)
    if (open !== undefined) open.responses = { "201": {} }
    const { valid } = await validate(document)
    assert.isFalse(valid)
  })
})
