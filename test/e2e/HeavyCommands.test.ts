// @effect-diagnostics nodeBuiltinImport:off
/** The heavy commands of CONTRIBUTING.md do what they say: their files exist and read the variables that they set. */
import { assert, describe, it } from "@effect/vitest"
import * as fs from "node:fs"
import * as path from "node:path"

const isTest = (file: string) => /\.(?:test|bench)\.ts$/.test(file)

const filesUnder = (place: string): ReadonlyArray<string> =>
  fs.statSync(place).isDirectory()
    ? fs.readdirSync(place, { recursive: true, encoding: "utf8" }).map((file) => path.join(place, file))
    : [place]

/** A test file with what it imports of the test folder: counts may be read in a support file. */
const withImports = (file: string, seen: Set<string> = new Set()): ReadonlySet<string> => {
  if (seen.has(file)) return seen
  seen.add(file)
  for (const [, target = ""] of fs.readFileSync(file, "utf8").matchAll(/from "(\.[^"]+\.ts)"/g)) {
    const imported = path.join(path.dirname(file), target)
    if (imported.startsWith("test/")) withImports(imported, seen)
  }
  return seen
}

/** Variables that a test reads of its environment to do more, or to be stricter. */
const variablesOf = (file: string) =>
  [
    ...fs.readFileSync(file, "utf8").matchAll(/(?:process\.env\[|Config\.\w+\(|count\()"((?:DLOCK|MONEY)_[A-Z_]+)"/g)
  ].map(([, name = ""]) => name)

interface Command {
  readonly line: string
  readonly variables: ReadonlyArray<string>
  readonly places: ReadonlyArray<string>
}

/** The lines of the section's code blocks that run tests. */
const commandsOf = (text: string): ReadonlyArray<Command> => {
  const section = /^## Heavy commands$([\s\S]*?)(?=^## |$(?![\s\S]))/m.exec(text)?.[1] ?? ""
  return [...section.matchAll(/^(?:[A-Z_]+=\S+ )*npx vitest run .*$/gm)].map(([line]) => {
    const [settings = "", rest = ""] = line.split("npx vitest run ")
    return {
      line,
      variables: [...settings.matchAll(/([A-Z_]+)=/g)].map(([, name = ""]) => name),
      places: rest.split("#")[0]!.trim().split(/\s+/)
    }
  })
}

const problemsOf = (commands: ReadonlyArray<Command>): ReadonlyArray<string> =>
  commands.flatMap(({ line, places, variables }) => {
    const missing = places.filter((place) => !fs.existsSync(place))
    if (missing.length > 0) return missing.map((place) => `${place} does not exist`)
    const files = places.flatMap(filesUnder).filter(isTest)
    if (files.length === 0) return [`${line} runs no test`]
    const known = new Set(files.flatMap((file) => [...withImports(file)]).flatMap(variablesOf))
    return variables.filter((name) => !known.has(name)).map((name) => `${places.join(" ")} does not read ${name}`)
  })

const documented = commandsOf(fs.readFileSync("CONTRIBUTING.md", "utf8"))

describe("a heavy command", () => {
  it("exists as documented", () => {
    assert.isAbove(documented.length, 4)
    assert.deepStrictEqual(problemsOf(documented), [])
  })

  it("is documented, whatever a test reads to do more", () => {
    const told = new Set(documented.flatMap(({ variables }) => variables))
    const read = filesUnder("test")
      .filter((file) => file.endsWith(".ts"))
      .flatMap(variablesOf)
    assert.deepStrictEqual(
      [...new Set(read)].filter((name) => !told.has(name)),
      []
    )
  })

  const planted: ReadonlyArray<readonly [line: string, problem: string]> = [
    ["npx vitest run test/nothing.test.ts", "test/nothing.test.ts does not exist"],
    ["npx vitest run test/support", "npx vitest run test/support runs no test"],
    ["DLOCK_TIMES=9 npx vitest run test/money", "test/money does not read DLOCK_TIMES"]
  ]
  for (const [line, problem] of planted) {
    it(`is not believed: ${problem}`, () => {
      assert.deepStrictEqual(problemsOf(commandsOf(`## Heavy commands\n\n\`\`\`\n${line}\n\`\`\`\n`)), [problem])
    })
  }
})
