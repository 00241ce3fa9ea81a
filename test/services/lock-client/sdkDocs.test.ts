// @effect-diagnostics nodeBuiltinImport:off
/** What docs/sdk.md shows is run as it stands there, and prints what it says. */
import { assert, describe, it } from "@effect/vitest"
import { spawn } from "node:child_process"
import * as fs from "node:fs"
import { fileURLToPath } from "node:url"
import { start } from "./lockHttpServer.ts"

const root = fileURLToPath(new URL("../../../", import.meta.url))
const text = fs.readFileSync(`${root}docs/sdk.md`, "utf8")
const { exports } = JSON.parse(fs.readFileSync(`${root}package.json`, "utf8")) as {
  exports: Record<string, { readonly default: string }>
}

/** As the package's `exports` say, but without the build. */
const fromSource = (code: string): string =>
  code.replaceAll(/from "dlock\/([a-z-]+)"/gu, (_, name: string) => {
    const target = exports[`./${name}`]?.default
    assert.isDefined(target, `package.json exports ./${name}`)
    return `from ${JSON.stringify(String(target).replace("./dist/", `${root}src/`).replace(/\.js$/u, ".ts"))}`
  })

const run = (code: string): Promise<string> =>
  new Promise((resolve, reject) => {
    const child = spawn(process.execPath, ["--no-warnings", "--input-type=module-typescript", "-"], { cwd: root })
    let output = ""
    child.stdout.on("data", (chunk) => (output += String(chunk)))
    child.stderr.on("data", (chunk) => (output += String(chunk)))
    child.on("error", reject)
    child.on("exit", (status) => (status === 0 ? resolve(output) : reject(new Error(output))))
    child.stdin.end(code)
  })

describe("docs/sdk.md", () => {
  const snippets = [...text.matchAll(/```ts\n([\s\S]*?)```\s+prints `([^`]+)`/gu)]

  it("has a snippet for each face, and none that is not run", () => {
    assert.strictEqual(snippets.length, 2)
    assert.strictEqual(text.split("```ts").length - 1, snippets.length)
  })

  for (const [, code = "", printed = ""] of snippets) {
    it(`prints: ${printed}`, async () => {
      const server = await start()
      try {
        assert.strictEqual(
          (await run(fromSource(code.replaceAll("http://127.0.0.1:8080", server.url)))).trim(),
          printed
        )
        assert.isTrue(
          server.requests.some((line) => line.startsWith("DELETE /v1/sessions/")),
          "the session is closed"
        )
      } finally {
        await server.stop()
      }
    })
  }
})
