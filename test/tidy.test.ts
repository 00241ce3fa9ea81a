/**
 * Who may import whom, and what does not belong into the repository. Each rule is a function of a file's name and text,
 * shown to catch a planted violation before it is run on every file.
 *
 * The table is the rule and its documentation: the first row that matches a file names everything it may import. It is
 * checked here rather than in a linter's configuration so that it is read, and changed, like other code.
 */
import { assert, describe, it } from "@effect/vitest"
import { execFileSync } from "node:child_process"
import { readFileSync } from "node:fs"
import { dirname, matchesGlob, normalize } from "node:path"

const effectOnly = ["effect", "src/core/**"]
const wire = [...effectOnly, "effect/*", "src/services/api/*"]
const outside = [
  ...wire,
  "node:*",
  "node:*/*",
  "@effect/**",
  "@opentelemetry/*",
  "etcd3",
  "cockatiel",
  "src/services/platform/*"
]
const client = ["src/services/lock-client/*"]
const boxes = [
  "lock-server",
  "lock-client",
  "payout-executor",
  "payment-resource",
  "rail-proxy",
  "rail-stub",
  "reconciler"
]
/** What of a box has no Node, no driver and no wiring in it. */
const pureOf = (box: string) => [`src/services/${box}/!(Pg*|Etcd*|HttpRail|PromiseClient|*Server|*Process).ts`]

interface Row {
  readonly file: string
  /** Besides the files of its own folder. */
  readonly may: ReadonlyArray<string>
  /** Only through `import()`, so that it is loaded when it is needed. */
  readonly lazily?: ReadonlyArray<string>
}

const table: ReadonlyArray<Row> = [
  { file: "src/core/**", may: effectOnly },
  { file: "src/services/api/RailStub*", may: ["effect", "effect/*"] },
  { file: "src/services/api/*", may: wire },
  { file: "src/services/platform/*", may: outside },
  // The outside world knows nothing of ours.
  { file: "src/services/rail-stub/*Server.ts", may: outside.filter((pattern) => !pattern.startsWith("src/core")) },
  { file: "src/services/rail-stub/*", may: ["effect", "effect/*", "src/services/api/RailStubHttpApi.ts"] },
  { file: "src/services/payout-executor/*Process.ts", may: [...outside, ...client] },
  { file: "src/services/reconciler/*Process.ts", may: [...outside, ...client] },
  // What is typed, and nothing of what it does: main.ts loads it for every command.
  { file: "src/services/operator/{Flags,*Commands}.ts", may: ["effect", "effect/cli", "src/core/**"] },
  // `reconcile run` is the reconciler's own program, run once.
  { file: "src/services/operator/*", may: [...outside, ...client, "src/services/reconciler/Reconciler.ts"] },
  // The whole client, wired for programs that do not use Effect.
  { file: "src/services/lock-client/PromiseClient.ts", may: outside },
  // A payment that is sent at most once needs the socket itself.
  { file: "src/services/rail-proxy/HttpRail.ts", may: outside },
  { file: "src/services/*/{Pg,Etcd}*.ts", may: outside },
  { file: "src/services/*/*{Server,Process}.ts", may: outside },
  { file: "src/services/*/{*Handlers,Http*}.ts", may: wire },
  // The logic of a box: the same program runs in the simulation.
  { file: "src/services/payout-executor/*", may: [...effectOnly, ...client] },
  { file: "src/services/reconciler/*", may: [...effectOnly, ...client] },
  { file: "src/services/*/*", may: effectOnly },
  { file: "src/sim/Arbitrary.ts", may: ["effect", "effect/*", "fast-check", "src/core/**"] },
  // Who cancels a payout there does what an operator does.
  { file: "src/sim/Actors.ts", may: [...wire, ...boxes.flatMap(pureOf), "src/services/operator/{Locks,Payouts}.ts"] },
  { file: "src/sim/*", may: [...wire, ...boxes.flatMap(pureOf)] },
  { file: "src/harness/*", may: [...outside, "testcontainers", "typescript/**", "src/services/**", "src/sim/*"] },
  {
    file: "src/main.ts",
    may: [
      "effect",
      "effect/*",
      "@effect/**",
      "src/services/platform/*",
      "src/services/operator/*Commands.ts",
      "src/harness/*Command.ts"
    ],
    lazily: ["src/services/**", "src/harness/*", "src/sim/*"]
  },
  { file: "test/**", may: ["**"] }
]

const matches = (pattern: string, path: string) =>
  pattern === "**" || pattern === path || (!path.includes("*") && matchesGlob(path, pattern))

const imports = (text: string) => [
  ...[...text.matchAll(/^(?:import|export)\s+(?:[\w\s{},*$]+\bfrom\s+)?"([^"]+)"/gm)].map(([, target = ""]) => ({
    target,
    lazy: false
  })),
  ...[...text.matchAll(/\bimport\(\s*"([^"]+)"\s*\)/g)].map(([, target = ""]) => ({ target, lazy: true }))
]

/** What is wrong with the imports of a file, in words. */
const importProblems = (file: string, text: string): ReadonlyArray<string> => {
  const row = table.find((one) => matches(one.file, file))
  if (row === undefined) return ["no row of the table is for this file"]
  return imports(text).flatMap(({ lazy, target }) => {
    const path = target.startsWith(".") ? normalize(`${dirname(file)}/${target}`) : target
    const allowed = [`${dirname(file)}/*`, ...row.may, ...(lazy ? (row.lazily ?? []) : [])]
    return row.file !== "src/main.ts" && matches(`${dirname(file)}/*`, path)
      ? []
      : allowed.some((pattern) => matches(pattern, path))
        ? []
        : [`${row.file} may not import ${path}`]
  })
}

// Put together from parts, so that this file does not contain what it looks for.
const homes = new RegExp(`(?<![\\w.}\\])/])/(?:${["wo" + "rk", "ro" + "ot", "ho" + "me"].join("|")})/\\w`)
const debris = new RegExp(`\\b(?:${["TO" + "DO", "FIX" + "ME", "X" + "XX"].join("|")})\\b`)
const focused = new RegExp(`\\b(?:it|describe|test)(?:\\.\\w+)*\\.${"on" + "ly"}\\b`)
const hosts =
  /\bhttps?:\/\/(?!(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\]|[\w.-]*\.?example(?:\.\w+)?|[\w.-]+\.(?:invalid|test|local)|github\.com|www\.apache\.org|json-schema\.org|www\.w3\.org|effect\.website|raw\.githubusercontent\.com|registry\.npmjs\.org|[a-z-]+|\$)(?=[:/"'`\s)]|$))([\w-]+(?:\.[\w-]+)+)/

/** What is wrong with the text of a file, wherever it is. */
const textProblems = (file: string, text: string): ReadonlyArray<string> => {
  const found: Array<string> = []
  const look = (pattern: RegExp, what: string) => {
    const match = pattern.exec(text)
    if (match !== null) found.push(`${what}: ${match[0]}`)
  }
  look(homes, "a path of somebody's machine")
  look(debris, "unfinished work")
  look(focused, "a test that keeps the others from running")
  look(hosts, "a host that the world can not be expected to reach")
  const lines = text.split("\n").length
  const limit = longer[file] ?? 500
  if (file.startsWith("src/") && file.endsWith(".ts") && lines > limit) found.push(`${lines} lines, at most ${limit}`)
  if (/(?:^|\/)(?:index|utils?|shared|common|helpers?|types|constants)\.ts$/.test(file)) {
    found.push("a name that says nothing of what is inside")
  }
  return found
}

/** Allowed to be longer than 500 lines, and why. */
const longer: Readonly<Record<string, number>> = {}

describe("the rules", () => {
  const planted: ReadonlyArray<readonly [file: string, text: string, problem: string]> = [
    ["src/core/lock/Lock.ts", 'import { SqlClient } from "effect/sql"', "may not import effect/sql"],
    ["src/core/Settings.ts", 'import * as fs from "node:fs"', "may not import node:fs"],
    ["src/core/Settings.ts", 'export * from "../services/api/Wire.ts"', "may not import src/services/api/Wire.ts"],
    ["src/services/api/Wire.ts", 'import "../platform/Pg.ts"', "may not import src/services/platform/Pg.ts"],
    ["src/services/api/RailStubHttpApi.ts", 'import "../../core/lock/Lock.ts"', "may not import src/core/lock/Lock.ts"],
    ["src/services/rail-stub/RailStubServer.ts", 'import "../../core/rail/Rail.ts"', "may not import src/core/rail"],
    ["src/services/lock-server/LockService.ts", 'import "effect/http"', "may not import effect/http"],
    ["src/services/lock-server/LockService.ts", 'import "../platform/Pg.ts"', "may not import src/services/platform"],
    ["src/services/lock-server/LockHandlers.ts", 'await import("node:fs")', "may not import node:fs"],
    [
      "src/services/rail-proxy/PgSubmissionStore.ts",
      'import "../payment-resource/PgCall.ts"',
      "may not import src/serv"
    ],
    [
      "src/services/rail-proxy/RailService.ts",
      'import "../lock-client/LockClient.ts"',
      "may not import src/services/lock"
    ],
    ["src/sim/Node.ts", 'import { it } from "fast-check"', "may not import fast-check"],
    ["src/sim/Node.ts", 'import "../services/lock-server/PgLockStore.ts"', "may not import src/services/lock-server"],
    ["src/sim/Node.ts", 'import "../services/rail-proxy/HttpRail.ts"', "may not import src/services/rail-proxy"],
    [
      "src/sim/Node.ts",
      'import {\n  type A,\n  b\n} from "../services/platform/HttpServer.ts"',
      "may not import src/services/platform"
    ],
    [
      "src/main.ts",
      'import { layer } from "./services/lock-server/LockServer.ts"',
      "may not import src/services/lock-"
    ],
    ["src/tools/Anything.ts", "", "no row of the table"],
    ["src/sim/Node.ts", `see /${"ho" + "me"}/anna/notes`, "somebody's machine"],
    ["README.md", `cd /${"wo" + "rk"}/main`, "somebody's machine"],
    ["src/sim/Node.ts", `// ${"TO" + "DO"} later`, "unfinished work"],
    ["test/x.test.ts", `it.effect.${"on" + "ly"}("x", () => {})`, "keeps the others from running"],
    [".npmrc", `registry=https://npm.${"corp"}.internal/`, "can not be expected to reach"],
    ["src/core/utils.ts", "", "says nothing"],
    ["src/core/index.ts", "", "says nothing"],
    ["src/core/Lock.ts", "\n".repeat(501), "502 lines"]
  ]
  for (const [file, text, problem] of planted) {
    it(`find: ${problem} (${file})`, () => {
      const found = [...(file.endsWith(".ts") ? importProblems(file, text) : []), ...textProblems(file, text)]
      assert.isTrue(
        found.some((one) => one.includes(problem)),
        `found only: ${found.join("; ")}`
      )
    })
  }

  it("let through what is meant to be", () => {
    const fine: ReadonlyArray<readonly [string, string]> = [
      ["src/core/lock/LockApi.ts", 'import { Context } from "effect"\nimport "./Lock.ts"\nimport "../Settings.ts"'],
      ["src/services/payout-executor/PayoutExecutor.ts", 'import "../lock-client/LockClient.ts"'],
      [
        "src/services/lock-server/LockServer.ts",
        'import "node:fs"\nimport "./PgLockStore.ts"\nimport "@effect/sql-pg"'
      ],
      ["src/sim/SimLockStore.ts", 'import "../services/lock-server/LockService.ts"\nimport "../services/api/Wire.ts"'],
      ["src/main.ts", 'const box = await import("./services/lock-server/LockServer.ts")']
    ]
    for (const [file, text] of fine) {
      assert.deepStrictEqual([...importProblems(file, text), ...textProblems(file, text)], [], file)
    }
  })
})

/** Also files that are not committed yet, so that a rule speaks before the commit. */
const files = execFileSync("git", ["ls-files", "--cached", "--others", "--exclude-standard"], { encoding: "utf8" })
  .split("\n")
  .filter((file) => file !== "" && file !== "package-lock.json")

describe("every file", () => {
  const read = (file: string) => {
    try {
      return readFileSync(file, "utf8")
    } catch {
      // Removed, and that is not committed yet.
      return ""
    }
  }

  it("imports only what its row of the table allows", () => {
    const found = files
      .filter((file) => file.endsWith(".ts") && /^(?:src|test)\//.test(file))
      .flatMap((file) => importProblems(file, read(file)).map((problem) => `${file}: ${problem}`))
    assert.deepStrictEqual(found, [])
  })

  it("is finished, named for what is inside, and of nobody's machine", () => {
    const found = files
      .filter((file) => file !== "test/tidy.test.ts" && !/\.(?:png|woff2?|ico|gz)$/.test(file))
      .flatMap((file) => textProblems(file, read(file)).map((problem) => `${file}: ${problem}`))
    assert.deepStrictEqual(found, [])
  })
})
