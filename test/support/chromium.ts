// @effect-diagnostics nodeBuiltinImport:off
/** A headless Chromium that is spoken to through pipes (the DevTools protocol), as far as a test of a page needs it. */
import { Effect, type Scope } from "effect"
import { type ChildProcess, spawn } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import type { Readable, Writable } from "node:stream"
import { waitUntil } from "./waitUntil.ts"

/** Where a browser usually is; undefined: there is none, and the test has to say so. */
export const chromium: string | undefined = [
  "/usr/bin/chromium",
  "/usr/bin/chromium-browser",
  "/usr/bin/google-chrome",
  "/usr/bin/google-chrome-stable"
].find((file) => fs.existsSync(file))

export interface Page {
  /** The value of an expression in the page. */
  readonly evaluate: (expression: string) => Effect.Effect<unknown>
  /** A key, pressed and let go. */
  readonly press: (key: string) => Effect.Effect<void>
  /** What the page has said to its console, thrown, or been refused. */
  readonly complaints: () => ReadonlyArray<string>
  /** Everything that it has asked the network for. */
  readonly requests: () => ReadonlyArray<string>
}

interface Message {
  readonly id?: number
  readonly method?: string
  readonly params?: Readonly<Record<string, unknown>>
  readonly result?: Readonly<Record<string, unknown>>
}

const profile = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "dlock-chromium-"))),
  (directory) =>
    Effect.sync(() => fs.rmSync(directory, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 }))
)

/** Opens a file. The browser ends with the scope. */
export const open = Effect.fnUntraced(function* (
  browser: string,
  file: string
): Effect.fn.Return<Page, unknown, Scope.Scope> {
  const directory = yield* profile
  const child = yield* Effect.acquireRelease(
    Effect.sync((): ChildProcess =>
      spawn(
        browser,
        [
          "--headless",
          "--no-sandbox",
          "--disable-gpu",
          "--disable-dev-shm-usage",
          "--no-first-run",
          "--disable-background-networking",
          "--disable-component-update",
          `--user-data-dir=${directory}`,
          "--window-size=1400,900",
          "--remote-debugging-pipe",
          "about:blank"
        ],
        { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] }
      )
    ),
    (process_) =>
      Effect.callback<void>((resume) => {
        if (process_.exitCode !== null || process_.signalCode !== null) return resume(Effect.void)
        process_.once("exit", () => resume(Effect.void))
        process_.kill("SIGKILL")
      })
  )
  // As asked for in `stdio`.
  const [, , , to, from] = child.stdio as unknown as [unknown, unknown, unknown, Writable, Readable]
  const answers = new Map<number, (result: Readonly<Record<string, unknown>>) => void>()
  const events: Array<Message> = []
  let rest = ""
  from.setEncoding("utf8").on("data", (text: string) => {
    const parts = (rest + text).split("\0")
    rest = parts.pop() ?? ""
    for (const part of parts) {
      const message = JSON.parse(part) as Message
      if (message.id === undefined) events.push(message)
      else answers.get(message.id)?.(message.result ?? {})
    }
  })
  to.on("error", () => {})
  let calls = 0
  let sessionId: string | undefined
  const ask = (method: string, params: object = {}) =>
    Effect.callback<Readonly<Record<string, unknown>>>((resume) => {
      const id = ++calls
      answers.set(id, (result) => resume(Effect.succeed(result)))
      to.write(`${JSON.stringify({ id, method, params, ...(sessionId === undefined ? {} : { sessionId }) })}\0`)
    }).pipe(Effect.timeout("20 seconds"), Effect.orDie)

  const { targetInfos } = yield* ask("Target.getTargets")
  const [target] = (targetInfos as ReadonlyArray<{ readonly targetId: string; readonly type: string }>).filter(
    ({ type }) => type === "page"
  )
  const attached = yield* ask("Target.attachToTarget", { targetId: target?.targetId, flatten: true })
  sessionId = String(attached["sessionId"])
  for (const domain of ["Page", "Runtime", "Network", "Log"]) yield* ask(`${domain}.enable`)
  yield* ask("Page.navigate", { url: `file://${path.resolve(file)}` })
  yield* waitUntil(
    "the page is loaded",
    Effect.sync(() => events.some(({ method }) => method === "Page.loadEventFired")),
    "20 seconds"
  )
  return {
    evaluate: (expression) =>
      Effect.map(ask("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true }), (answer) => {
        if (answer["exceptionDetails"] !== undefined) throw new Error(JSON.stringify(answer["exceptionDetails"]))
        return (answer["result"] as { readonly value?: unknown }).value
      }),
    press: (key) =>
      Effect.andThen(
        ask("Input.dispatchKeyEvent", { type: "keyDown", key, text: key }),
        Effect.asVoid(ask("Input.dispatchKeyEvent", { type: "keyUp", key }))
      ),
    complaints: () =>
      events
        .filter(({ method }) =>
          ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"].includes(method ?? "")
        )
        .map(({ params }) => JSON.stringify(params)),
    requests: () =>
      events
        .filter(({ method }) => method === "Network.requestWillBeSent")
        .map(({ params }) => JSON.stringify(params?.["request"]))
  }
})
