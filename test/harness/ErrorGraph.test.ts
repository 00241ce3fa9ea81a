// @effect-diagnostics nodeBuiltinImport:off
/**
 * A failure channel that widens, and a handler that is taken away, are seen by `errors graph --check` as the edges that
 * changed and no others. On a copy of a part of the sources, which is changed.
 */
import { assert, describe, it } from "@effect/vitest"
import { Console, Effect, Exit } from "effect"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { differenceOf, differenceText, type ErrorGraph, toJson, toMermaid } from "../../src/harness/ErrorGraph.ts"
import { errorGraphPage } from "../../src/harness/ErrorGraphPage.ts"
import { run, staleness } from "../../src/harness/ErrorGraphRun.ts"

/** `LockService` and the executor's turn, with what they need: a third of the program, read in a third of the time. */
const part = ["src/core", "src/services/lock-client", "src/services/lock-server", "src/services/payout-executor"]
const roots = ["src/services/lock-server/LockService.ts", "src/services/payout-executor/PayoutExecutor.ts"]

const copy = Effect.acquireRelease(
  Effect.sync(() => {
    const root = fs.mkdtempSync(path.join(os.tmpdir(), "dlock-errors-"))
    for (const each of part) fs.cpSync(each, path.join(root, each), { recursive: true })
    fs.symlinkSync(path.resolve("node_modules"), path.join(root, "node_modules"))
    fs.writeFileSync(path.join(root, "package.json"), '{ "type": "module" }')
    const options = fs.readFileSync("tsconfig.json", "utf8").replace(/"include":\s*\[[^\]]*\]/, '"include": []')
    fs.writeFileSync(
      path.join(root, "tsconfig.json"),
      options.replace('"include": []', `"files": ${JSON.stringify(roots)}`)
    )
    return root
  }),
  (root) => Effect.sync(() => fs.rmSync(root, { recursive: true, force: true }))
)

/** What the command prints, and how it ends. */
const check = Effect.fnUntraced(function* (root: string) {
  const lines: Array<string> = []
  const console = { ...globalThis.console, log: (line: string) => void lines.push(line), error: () => {} }
  const exit = yield* run({ root, format: "json", check: true, write: false }).pipe(
    Effect.provideService(Console.Console, console),
    Effect.exit
  )
  return { passed: Exit.isSuccess(exit), lines }
})

const change = (root: string, file: string, from: string, to: string) =>
  Effect.sync(() => {
    const at = path.join(root, file)
    const text = fs.readFileSync(at, "utf8")
    assert.include(text, from, `${file} has changed: choose another place to change`)
    fs.writeFileSync(at, text.replace(from, to))
  })

describe("errors graph --check", () => {
  it.live(
    "shows exactly the edge of a service function that fails with one more error, and of a handler taken away",
    () =>
      Effect.gen(function* () {
        const root = yield* copy
        yield* Effect.provideService(run({ root, format: "json", check: false, write: true }), Console.Console, {
          ...globalThis.console,
          log: () => {}
        })

        yield* change(
          root,
          "src/services/lock-server/LockService.ts",
          'call(instance, "inspect", store.inspect(key))',
          'call(instance, "inspect", store.inspect(key)).pipe(Effect.tap(() => new LockLost({ key, token: null, reason: "expired" })))'
        )
        yield* change(
          root,
          "src/services/payout-executor/PayoutTurn.ts",
          'FencedOut: () => Effect.succeed<TurnOutcome>("FENCED_OUT"),',
          ""
        )
        assert.deepStrictEqual(yield* check(root), {
          passed: false,
          lines: [
            "- handled  FencedOut  by src/services/payout-executor/PayoutTurn.ts settleOne (catchTags)",
            "+ fails    LockService: LockApi.inspect() -> LockLost  (src/services/lock-server/LockService.ts)",
            "+ raised   LockLost <- src/services/lock-server/LockService.ts make.api.inspect",
            // And where it ends up that nobody handles any more: in the fiber of a turn.
            "+ value    FencedOut  by src/services/payout-executor/PayoutExecutor.ts poll (run)"
          ]
        })
      }).pipe(Effect.scoped),
    180_000
  )
})

const graph: ErrorGraph = {
  operations: [{ name: "LockApi.renew()", file: "src/core/lock/LockApi.ts", kind: "port", failures: ["LockLost"] }],
  raised: [{ failure: "LockLost", place: "src/x.ts renew" }],
  handlers: [{ place: "src/y.ts turn", via: "catchTag", kind: "turned", from: ["LockLost"], into: ["Exited"] }],
  wire: [{ failure: "LockLost", code: "LOCK_LOST", status: 409, retrySafe: "no", routes: ["POST /v1/x"] }]
}

describe("an error graph", () => {
  it("differs from another in edges, each of them told once", () => {
    const other = {
      ...graph,
      operations: [{ ...graph.operations[0]!, failures: [] }],
      wire: [{ ...graph.wire[0]!, status: 503 }]
    }
    assert.deepStrictEqual(differenceText(differenceOf(graph, other)), [
      "- fails    LockApi.renew() -> LockLost  (src/core/lock/LockApi.ts)",
      "- wire     LockLost = 409 LOCK_LOST, retry no",
      "+ wire     LockLost = 503 LOCK_LOST, retry no"
    ])
    assert.deepStrictEqual(differenceText(differenceOf(graph, graph)), [])
  })

  it("is a picture of the ports and a page in which everything can be found", () => {
    assert.include(toMermaid(graph), 'failure_LockLost(["LockLost<br/>409 LOCK_LOST"])')
    assert.include(toMermaid(graph), "LockApi_renew__ --> failure_LockLost")
    const page = errorGraphPage(graph)
    for (const word of [
      "LockApi.renew()",
      "src/x.ts renew",
      "src/y.ts turn",
      "409 LOCK_LOST",
      "POST /v1/x",
      "Exited"
    ]) {
      assert.include(page, word)
    }
  })

  it("tells a committed page that is not what the graph gives, also when no edge differs", () => {
    const directory = fs.mkdtempSync(path.join(os.tmpdir(), "dlock-errors-"))
    fs.writeFileSync(path.join(directory, "graph.json"), toJson(graph))
    fs.writeFileSync(path.join(directory, "graph.mmd"), toMermaid(graph))
    fs.writeFileSync(path.join(directory, "graph.html"), `${errorGraphPage(graph)} `)
    assert.deepStrictEqual(staleness(graph, directory), ["docs/errors/graph.html is not what the graph gives"])
    fs.rmSync(directory, { recursive: true })
  })
})
