// @effect-diagnostics nodeBuiltinImport:off
/**
 * Runbooks and docs/operations.md are about this program: the metrics, events, settings, routes, tables and commands that
 * they name exist, their links lead somewhere, and every SQL statement in them runs, as the role that would run it.
 */
import { assert, describe, it, layer } from "@effect/vitest"
import { ConfigProvider, Effect } from "effect"
import { parse } from "effect/encoding/Yaml"
import * as fs from "node:fs"
import * as path from "node:path"
import { errorTable } from "../../src/services/api/ApiError.ts"
import { routesOf } from "../../src/services/api/Envelope.ts"
import { LockHttpApi } from "../../src/services/api/LockHttpApi.ts"
import { PaymentHttpApi } from "../../src/services/api/PaymentHttpApi.ts"
import { RailHttpApi } from "../../src/services/api/RailHttpApi.ts"
import { RailStubHttpApi } from "../../src/services/api/RailStubHttpApi.ts"
import { routes as adminRoutes } from "../../src/services/lock-server/AdminHandlers.ts"
import * as PgLockStore from "../../src/services/lock-server/PgLockStore.ts"
import * as PgPaydb from "../../src/services/payment-resource/PgPaydb.ts"
import { actuatorRoutes } from "../../src/services/platform/Management.ts"
import * as Migrations from "../../src/services/platform/Migrations.ts"
import * as Pg from "../../src/services/platform/Pg.ts"
import { envName, load, services } from "../../src/services/platform/ServiceConfig.ts"
import { run as runOperator } from "../support/operator.ts"
import { TestDatabase } from "../support/pg.ts"
import { exported, foreign, scrapeLabels } from "./promql.ts"

// -----------------------------------------------------------------------------
// what there is
// -----------------------------------------------------------------------------

const sourcesIn = (directory: string): ReadonlyArray<string> =>
  fs
    .readdirSync(directory, { recursive: true, encoding: "utf8" })
    .filter((file) => /\.(?:ts|sql)$/.test(file))
    .map((file) => fs.readFileSync(path.join(directory, file), "utf8"))
const sources = [
  ...sourcesIn("src/core"),
  ...sourcesIn("src/services"),
  ...sourcesIn("src/harness"),
  fs.readFileSync("src/main.ts", "utf8")
].join("\n")
/** Texts and names of the program: events, codes, outcomes, columns. */
const named = new Set(sources.match(/[A-Za-z][\w-]*/g))
const tables = new Set(
  [...sources.matchAll(/CREATE (?:TABLE|VIEW|FUNCTION|SEQUENCE) ((?:pay|lock)\.\w+)/g)].map(([, name]) => name)
)
const routes = new Set(
  [
    ...routesOf(LockHttpApi),
    ...routesOf(PaymentHttpApi),
    ...routesOf(RailHttpApi),
    ...routesOf(RailStubHttpApi),
    ...actuatorRoutes,
    ...adminRoutes
  ].map(([method, route]) => `${method} ${route}`)
)
const series = exported()
const metrics = new Set([
  ...Object.keys(foreign),
  ...[...series.keys()].flatMap((name) => [name, name.replace(/_(?:bucket|sum|count)$/, "")])
])
const settings = Effect.runSync(
  Effect.map(
    Effect.provideService(load("lock-server"), ConfigProvider.ConfigProvider, ConfigProvider.fromEnvRecord({})),
    ({ effective }) => new Set(Object.keys(effective))
  )
)
const environment = new Set([
  ...[...settings].map(envName),
  "LOG_FORMAT",
  "LOG_LEVEL",
  "NO_COLOR",
  "OTEL_EXPORTER_OTLP_ENDPOINT",
  "DLOCK_PROMTOOL",
  "DLOCK_PROMETHEUS"
])
/** Of others, and shown as theirs. */
const ofOthers = new Set([
  "etcd_disk_wal_fsync_duration_seconds",
  "heartbeat-interval",
  "election-timeout",
  "synchronous_commit",
  "pg_advisory_lock",
  // Of a test's environment, and a property of a lock in a program.
  "MONEY_SEED",
  "lock.lost"
])

/** What a text names and nobody has, in words. */
const problemsOf = (file: string, text: string): ReadonlyArray<string> => {
  const found: Array<string> = []
  const prose = text.replaceAll(/^ *```[\s\S]*?^ *```$/gm, "")
  for (const [, span = ""] of prose.matchAll(/`([^`\n]+)`/g)) {
    const first = span.replace(/\{.*/, "").trim()
    if (ofOthers.has(span)) continue
    if (/^(?:GET|POST|PUT|DELETE) /.test(span)) {
      if (!routes.has(span)) found.push(`no route ${span}`)
    } else if (/^(?:lock|payment|rail|payout|reconcile|dlock|http|management)\.[a-z]+(?:[.-][a-z]+)*$/.test(span)) {
      if (!settings.has(span)) found.push(`no setting ${span}`)
    } else if (/^(?:pay|lock)\.\w+$/.test(span)) {
      if (!tables.has(span)) found.push(`no table or view ${span}`)
    } else if (/^[A-Z]+(?:_[A-Z]+)+$/.test(span)) {
      const code = Object.values(errorTable).some((row) => row.code === span)
      if (!code && !environment.has(span) && !named.has(span)) found.push(`nothing is called ${span}`)
    } else if (/_(?:total|seconds|bucket|count|sum)$/.test(first)) {
      if (!metrics.has(first)) found.push(`nobody exports ${first}`)
    } else if (/^[a-z]+(?:_[a-z]+)+$/.test(first)) {
      if (!metrics.has(first) && !named.has(first)) found.push(`nothing is called ${first}`)
    } else if (/^[a-z]+[A-Z]\w+$/.test(first)) {
      if (!named.has(first)) found.push(`nothing is called ${first}`)
    }
  }
  for (const [, command = ""] of text.matchAll(/node dist\/main\.js ([a-z][a-z-]*)/g)) {
    if (!Object.hasOwn(services, command) && !new RegExp(`Command\\.make\\(\\s*"${command}"`).test(sources)) {
      found.push(`no command ${command}`)
    }
  }
  for (const [, target = ""] of text.matchAll(/\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)/g)) {
    if (!fs.existsSync(path.join(path.dirname(file), target))) found.push(`a link to nothing: ${target}`)
  }
  return found
}

const directory = "docs/runbooks"
const files = [...fs.readdirSync(directory).map((file) => `${directory}/${file}`), "docs/operations.md"]
/** The others, which have no SQL. */
const pages = [
  "README.md",
  "CONTRIBUTING.md",
  "docs/architecture.md",
  "docs/decisions.md",
  "docs/errors/README.md",
  "docs/guarantees.md",
  "docs/invariants.md",
  "docs/sdk.md",
  "docs/security.md",
  "docs/store.md"
]
const read = (file: string) => fs.readFileSync(file, "utf8")

describe("a document", () => {
  const planted: ReadonlyArray<readonly [text: string, problem: string]> = [
    ["look at `lock_token_floor_margin`", "nothing is called lock_token_floor_margin"],
    ["look at `rail_duplicates_total`", "nobody exports rail_duplicates_total"],
    ["the event `lock_was_lost`", "nothing is called lock_was_lost"],
    ["set `lock.default.lease`", "no setting lock.default.lease"],
    ["`GET /admin/lock/:key`", "no route GET /admin/lock/:key"],
    ["see `pay.violations`", "no table or view pay.violations"],
    ["answers `FENCED_OFF`", "nothing is called FENCED_OFF"],
    ["the field `fencedToken`", "nothing is called fencedToken"],
    ["```\nnode dist/main.js payout retry\n```", "no command payout"],
    ["[there](nowhere.md)", "a link to nothing: nowhere.md"]
  ]
  for (const [text, problem] of planted) {
    it(`is refused: ${problem}`, () => assert.include(problemsOf("docs/x.md", text), problem))
  }

  for (const file of [...files, ...pages]) {
    it(`is about this program: ${file}`, () => assert.deepStrictEqual(problemsOf(file, read(file)), []))
  }
})

// -----------------------------------------------------------------------------
// commands
// -----------------------------------------------------------------------------

const operatorCommands = new Set(["locks", "sessions", "tokens", "payouts", "reconcile", "fencing", "doctor"])

/** The words of a command line as a shell has them; what follows a `#` is not among them. */
const wordsOf = (line: string) =>
  [...line.replace(/\s#.*$/, "").matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, bare]) => quoted ?? bare ?? "")

/** Every line `node dist/main.js ..` of an operator's command, in prose or in a block. */
const commandLines = [...files, ...pages].flatMap((file) =>
  [...read(file).matchAll(/node dist\/main\.js ([a-z]+ [^`\n]*|[a-z]+)/g)].flatMap(([, line = ""]) => {
    const words = wordsOf(line)
    return operatorCommands.has(words[0] ?? "") ? [{ file, words }] : []
  })
)

/** What is wrong with a command line, in words: each of its flags must be one that its own help knows. */
const problemsOfCommand = (words: ReadonlyArray<string>) =>
  Effect.gen(function* () {
    const path = words.slice(0, words.findIndex((word, at) => at > 0 && !/^[a-z]+$/.test(word)) >>> 0)
    const help = yield* runOperator([...path, "--help"], {})
    if (help.code !== 0 || help.stdout.includes("SUBCOMMANDS")) return [`no command ${path.join(" ")}`]
    return words
      .filter((word) => word.startsWith("--") && !new RegExp(`${word}\\b`).test(help.stdout))
      .map((flag) => `${path.join(" ")} has no ${flag}`)
  })

describe("a command line of an operator", () => {
  it.live("is refused when there is no such command or flag", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* problemsOfCommand(["payouts", "retry", "X"]), ["no command payouts retry"])
      assert.deepStrictEqual(yield* problemsOfCommand(["payouts"]), ["no command payouts"])
      assert.deepStrictEqual(yield* problemsOfCommand(["locks", "list", "--all"]), ["locks list has no --all"])
      assert.deepStrictEqual(yield* problemsOfCommand(["locks", "list", "--held"]), [])
    })
  )

  it.live("is one that the program takes, wherever it is written", () =>
    Effect.gen(function* () {
      assert.isAbove(commandLines.length, 10)
      for (const { file, words } of commandLines) {
        assert.deepStrictEqual(yield* problemsOfCommand(words), [], `${file}: ${words.join(" ")}`)
      }
    })
  )
})

// -----------------------------------------------------------------------------
// alerts and runbooks
// -----------------------------------------------------------------------------

interface Rules {
  readonly groups: ReadonlyArray<{
    readonly rules: ReadonlyArray<{ readonly alert: string; readonly annotations: { readonly runbook: string } }>
  }>
}

/** What is wrong between alerts (by the runbook that they name) and runbooks (by the alerts in their title). */
const mismatches = (alerts: ReadonlyMap<string, string>, titles: ReadonlyMap<string, ReadonlyArray<string>>) => [
  ...[...alerts].flatMap(([alert, file]) => {
    const title = titles.get(file)
    return title === undefined
      ? [`${alert} has no runbook ${file}`]
      : title.includes(alert)
        ? []
        : [`${file} is not about ${alert}`]
  }),
  ...[...titles].flatMap(([file, title]) =>
    title.filter((alert) => alerts.get(alert) !== file).map((alert) => `${file}: no alert ${alert} leads here`)
  )
]

describe("runbooks", () => {
  const rules = parse(read("infra/prometheus/rules/alerts.yaml")) as Rules
  const alerts = new Map(
    rules.groups.flatMap((group) => group.rules.map(({ alert, annotations }) => [alert, annotations.runbook] as const))
  )
  const runbooks = files.filter((file) => file.startsWith(directory))
  const titles = new Map(
    runbooks.map((file) => [file, (read(file).split("\n")[0] ?? "").replace(/^# /, "").split(", ")] as const)
  )

  it("are there for every alert, and only for alerts", () => assert.deepStrictEqual(mismatches(alerts, titles), []))

  it("would be missed, and those that nobody needs found", () => {
    const found = mismatches(
      new Map([
        ["A", "a.md"],
        ["B", "b.md"],
        ["C", "a.md"]
      ]),
      new Map([
        ["a.md", ["A", "D"]],
        ["e.md", ["E"]]
      ])
    )
    assert.deepStrictEqual(found, [
      "B has no runbook b.md",
      "a.md is not about C",
      "a.md: no alert D leads here",
      "e.md: no alert E leads here"
    ])
  })

  it("say what it means, what to look at, what to do and what never to do, on a page", () => {
    for (const file of runbooks) {
      const headings = read(file).match(/^## .*$/gm)
      assert.deepStrictEqual(headings, ["## What it means", "## Look first", "## Do", "## Never"], file)
      assert.isAtMost(read(file).split("\n").length, 60, file)
    }
  })

  it("name services as they are called in a scrape", () => {
    for (const file of files) {
      for (const [, job = ""] of read(file).matchAll(/job="([^"]+)"/g)) {
        assert.isTrue(scrapeLabels["job"]?.has(job), `${file}: ${job}`)
      }
    }
  })
})

// -----------------------------------------------------------------------------
// SQL
// -----------------------------------------------------------------------------

const payout = "3f2b8a52-6a0e-4f6c-9f0e-6f1f6f0d7a11"
const placeholders: Readonly<Record<string, string>> = {
  "<payout>": payout,
  "<your name>": "anna",
  "<reference>": "4711",
  "<floor>": "1000"
}
const filled = (statement: string) =>
  statement.replaceAll(/<[^<>=]+?>/g, (placeholder) => placeholders[placeholder] ?? placeholder)

/** `sql` runs on paydb as who may only read, `sql owner` there as its administrator, `sql lockdb` on lockdb. */
const blocks = files.flatMap((file) =>
  [...read(file).matchAll(/^ *```sql ?(owner|lockdb|)\n([\s\S]*?)^ *```$/gm)].map(([, where = "", text = ""]) => ({
    file,
    where,
    statements: text
      .split(/;\s*(?:\n|$)/)
      .map((one) => filled(one.trim()))
      .filter((one) => one !== "")
  }))
)

const paydb = TestDatabase.layer("paydb", PgPaydb.migrate)
const lockdb = TestDatabase.layer("lockdb", (url) => Migrations.migrate({ url, directory: PgLockStore.MIGRATIONS }))

/** On one connection, since a block may be a transaction. */
const run = (statements: ReadonlyArray<string>, role?: string) =>
  Effect.gen(function* () {
    const { pool } = yield* TestDatabase
    const sql = yield* pool({ maxConnections: 1, ...(role === undefined ? {} : { parameters: { role } }) })
    return yield* Effect.forEach(statements, (statement) => sql.unsafe(statement))
  }).pipe(Effect.scoped)

const of = (where: string) => blocks.filter((block) => block.where === where)

layer(paydb, { excludeTestServices: true })("SQL for paydb", (it) => {
  it.effect("is found", () => Effect.sync(() => assert.isAbove(of("").length, 10)))

  it.effect("runs as dlock_readonly, who can not change anything", () =>
    Effect.forEach(of(""), ({ file, statements }) =>
      Effect.mapError(run(statements, "dlock_readonly"), (error) => `${file}: ${Pg.classify(error).message}`)
    )
  )

  it.effect("is refused to dlock_readonly where it changes something", () =>
    Effect.forEach(of("owner"), ({ file, statements }) =>
      Effect.map(Effect.isFailure(run(statements, "dlock_readonly")), (failed) => assert.isTrue(failed, file))
    )
  )

  it.effect("adjusts the books after a late execution, and turns the fences on, as the owner", () =>
    Effect.gen(function* () {
      yield* run([
        "UPDATE pay.fencing_switch SET enabled = false",
        "INSERT INTO pay.account (account_id, currency) VALUES ('acct-1', 'EUR')",
        `INSERT INTO pay.payout (payout_id, account_id, currency, amount_minor, beneficiary_ref, client_ref, idempotency_key,
           request_hash, last_actor) VALUES ('${payout}', 'acct-1', 'EUR', 250, 'b', 'c', 'k', '\\x00', 'test')`
      ])
      for (const { file, statements } of of("owner")) {
        yield* Effect.mapError(run(statements), (error) => `${file}: ${Pg.classify(error).message}`)
      }
      const [switches, entries] = yield* run([
        "SELECT bool_and(enabled) AS enabled FROM pay.fencing_switch",
        `SELECT account_id, amount_minor::text AS amount FROM pay.ledger_entry JOIN pay.journal USING (journal_id)
           WHERE kind = 'ADJUSTMENT' AND payout_id = '${payout}' ORDER BY account_id`
      ])
      assert.deepStrictEqual(switches, [{ enabled: true }])
      assert.deepStrictEqual(entries, [
        { account_id: "clearing-eur", amount: "250" },
        { account_id: "suspense-eur", amount: "-250" }
      ])
    })
  )
})

layer(lockdb, { excludeTestServices: true })("SQL for lockdb", (it) => {
  it.effect("runs, and takes the tokens above the floor", () =>
    Effect.gen(function* () {
      assert.isAbove(of("lockdb").length, 3)
      for (const { file, statements } of of("lockdb")) {
        yield* Effect.mapError(run(statements), (error) => `${file}: ${Pg.classify(error).message}`)
      }
      const [next] = yield* run(["SELECT nextval('lock.lock_token_seq')::text AS token"])
      assert.deepStrictEqual(next, [{ token: "1000001001" }])
    })
  )
})

it("every placeholder of the SQL is known", () => {
  const unknown = blocks.flatMap(({ statements }) => statements.flatMap((one) => one.match(/<[a-z ]+>/g) ?? []))
  assert.deepStrictEqual(unknown, [])
})
