/**
 * As much of Terraform's language as it takes to check ours: blocks, attributes, literal values, and what an expression
 * refers to. `terraform fmt` is the judge of the grammar; what is not understood here is an error with its line.
 */

export interface Expression {
  /** Of a literal without a template; undefined for anything else. */
  readonly literal: string | number | boolean | undefined
  /** `var.region`, `module.network.databases`, `google_sql_database_instance.server.name`. */
  readonly references: ReadonlyArray<string>
  readonly text: string
  readonly line: number
}
export interface Block {
  readonly type: string
  readonly labels: ReadonlyArray<string>
  readonly attributes: ReadonlyMap<string, Expression>
  readonly blocks: ReadonlyArray<Block>
  readonly line: number
}

interface Token {
  readonly kind: "name" | "number" | "string" | "sign" | "newline"
  readonly text: string
  readonly line: number
  /** Of a string: what is inside its `${}`. */
  readonly inner: ReadonlyArray<Token>
  readonly plain: boolean
}

export class HclError extends Error {}

// -----------------------------------------------------------------------------
// tokens
// -----------------------------------------------------------------------------

const tokensOf = (text: string, firstLine = 1): ReadonlyArray<Token> => {
  const tokens: Array<Token> = []
  let line = firstLine
  let at = 0
  const push = (kind: Token["kind"], part: string, inner: ReadonlyArray<Token> = [], plain = true) =>
    tokens.push({ kind, text: part, line, inner, plain })

  /** From behind `${` to its `}`, strings inside included. */
  const template = (from: number): number => {
    let depth = 1
    for (let i = from; i < text.length; i++) {
      if (text[i] === '"') i = closing(i + 1)
      else if (text[i] === "{") depth++
      else if (text[i] === "}" && --depth === 0) return i
    }
    throw new HclError(`line ${line}: a template that does not end`)
  }
  const closing = (from: number): number => {
    for (let i = from; i < text.length; i++) {
      if (text[i] === "\\") i++
      else if (text[i] === "$" && text[i + 1] === "{") i = template(i + 2)
      else if (text[i] === '"') return i
      else if (text[i] === "\n") break
    }
    throw new HclError(`line ${line}: a string that does not end`)
  }
  const quoted = (content: string): { readonly inner: ReadonlyArray<Token>; readonly plain: boolean } => {
    const inner: Array<Token> = []
    for (let i = content.indexOf("${"); i >= 0; i = content.indexOf("${", i + 2)) {
      if (content[i - 1] === "$") continue
      let depth = 1
      let end = i + 2
      while (end < content.length && depth > 0) {
        if (content[end] === "{") depth++
        if (content[end] === "}") depth--
        end++
      }
      inner.push(...tokensOf(content.slice(i + 2, end - 1), line))
    }
    return { inner, plain: !/(?<!\$)\$\{/.test(content) }
  }

  while (at < text.length) {
    const rest = text.slice(at)
    const [comment] = /^(?:#|\/\/)[^\n]*|^\/\*[\s\S]*?\*\//.exec(rest) ?? []
    if (comment !== undefined) {
      line += comment.split("\n").length - 1
      at += comment.length
      continue
    }
    const [, marker] = /^<<-?(\w+)\n/.exec(rest) ?? []
    if (marker !== undefined) {
      const end = new RegExp(`^\\s*${marker}$`, "m").exec(rest.slice(rest.indexOf("\n")))
      if (end === null) throw new HclError(`line ${line}: ${marker} does not end`)
      const whole = rest.slice(0, rest.indexOf("\n") + end.index + end[0].length)
      const { inner, plain } = quoted(whole)
      push("string", whole, inner, plain)
      line += whole.split("\n").length - 1
      at += whole.length
      continue
    }
    if (rest.startsWith('"')) {
      const end = closing(at + 1)
      const content = text.slice(at + 1, end)
      const { inner, plain } = quoted(content)
      push("string", content, inner, plain)
      at = end + 1
      continue
    }
    const [name] = /^[A-Za-z_][\w-]*/.exec(rest) ?? []
    const [number] = /^\d+(?:\.\d+)?/.exec(rest) ?? []
    const [sign] = /^(?:=>|==|!=|>=|<=|&&|\|\||\.\.\.|[=.,:;?(){}[\]<>!+\-*/%])/.exec(rest) ?? []
    if (rest.startsWith("\n")) {
      push("newline", "\n")
      line++
      at++
    } else if (/^[ \t\r]/.test(rest)) at++
    else if (name !== undefined) {
      push("name", name)
      at += name.length
    } else if (number !== undefined) {
      push("number", number)
      at += number.length
    } else if (sign !== undefined) {
      push("sign", sign)
      at += sign.length
    } else throw new HclError(`line ${line}: ${JSON.stringify(rest[0])} is not understood`)
  }
  return tokens
}

// -----------------------------------------------------------------------------
// expressions
// -----------------------------------------------------------------------------

const words = new Set(["true", "false", "null", "for", "in", "if", "else", "endif", "endfor"])

const referencesIn = (tokens: ReadonlyArray<Token>, bound: ReadonlySet<string> = new Set()): ReadonlyArray<string> => {
  const own = new Set(bound)
  // for NAME, NAME in ..
  tokens.forEach((token, i) => {
    if (token.text !== "for" || token.kind !== "name") return
    for (let j = i + 1; j < tokens.length && tokens[j]?.text !== "in"; j++) {
      if (tokens[j]?.kind === "name") own.add(tokens[j]?.text ?? "")
    }
  })
  const found: Array<string> = []
  for (let i = 0; i < tokens.length; i++) {
    const token = tokens[i]
    if (token === undefined) continue
    if (token.kind === "string") found.push(...referencesIn(token.inner, own))
    if (token.kind !== "name" || tokens[i - 1]?.text === ".") continue
    const next = tokens[i + 1]?.text
    // A function, the key of an object, a word of the language, or a name that the expression itself has given.
    if (next === "(" || next === "=" || words.has(token.text) || own.has(token.text)) continue
    let path = token.text
    while (tokens[i + 1]?.text === "." && tokens[i + 2]?.kind === "name") {
      path += `.${tokens[i + 2]?.text}`
      i += 2
    }
    found.push(path)
  }
  return found
}

const expressionOf = (tokens: ReadonlyArray<Token>, line: number): Expression => {
  const [only] = tokens
  const single = tokens.length === 1 && only !== undefined ? only : undefined
  return {
    literal:
      single?.kind === "string" && single.plain
        ? single.text
        : single?.kind === "number"
          ? Number(single.text)
          : single?.text === "true" || single?.text === "false"
            ? single.text === "true"
            : undefined,
    references: referencesIn(tokens),
    text: tokens.map(({ kind, text }) => (kind === "string" ? JSON.stringify(text) : text)).join(" "),
    line
  }
}

// -----------------------------------------------------------------------------
// bodies
// -----------------------------------------------------------------------------

export const parseHcl = (text: string): ReadonlyArray<Block> => {
  const tokens = tokensOf(text)
  let at = 0
  const peek = () => tokens[at]
  const fail = (): never => {
    throw new HclError(`line ${peek()?.line ?? "last"}: ${JSON.stringify(peek()?.text ?? "the end")} is not understood`)
  }
  const body = (closedBy: string | undefined): Pick<Block, "attributes" | "blocks"> => {
    const attributes = new Map<string, Expression>()
    const blocks: Array<Block> = []
    while (true) {
      while (peek()?.kind === "newline") at++
      const token = peek()
      if (token === undefined) {
        if (closedBy === undefined) return { attributes, blocks }
        fail()
      }
      if (token?.text === closedBy && token?.kind === "sign") {
        at++
        return { attributes, blocks }
      }
      if (token?.kind !== "name") return fail()
      at++
      if (peek()?.text === "=") {
        at++
        if (attributes.has(token.text)) throw new HclError(`line ${token.line}: ${token.text} twice`)
        attributes.set(token.text, expressionOf(value(), token.line))
        continue
      }
      const labels: Array<string> = []
      while (peek()?.kind === "string" || (peek()?.kind === "name" && closedBy === undefined)) {
        labels.push(peek()?.text ?? "")
        at++
      }
      if (peek()?.text !== "{") fail()
      at++
      blocks.push({ type: token.text, labels, line: token.line, ...body("}") })
    }
  }
  /** To the end of the line, of which brackets may make several. */
  const value = (): ReadonlyArray<Token> => {
    const taken: Array<Token> = []
    let depth = 0
    for (let token = peek(); token !== undefined; token = peek()) {
      if (token.kind === "newline" && depth === 0) break
      if (token.kind === "sign" && /^[([{]$/.test(token.text)) depth++
      if (token.kind === "sign" && /^[)\]}]$/.test(token.text)) {
        if (depth === 0) break
        depth--
      }
      at++
      if (token.kind !== "newline") taken.push(token)
    }
    if (taken.length === 0 || depth !== 0) fail()
    return taken
  }
  return body(undefined).blocks
}
