// @effect-diagnostics nodeBuiltinImport:off
/**
 * Reads the error graph of a project from the TypeScript checker: what the compiler has inferred, and nothing that somebody
 * has written about it.
 *
 * A handler is found by its effect, not by its name: an expression that takes an Effect and answers one, and whose failure
 * channel lacks what went in, has handled it (or turned it into what came out instead). So a function of ours that catches
 * is seen like `Effect.catchTag`.
 */
import * as path from "node:path"
import { API, type Checker, SignatureKind, type Symbol, SymbolFlags, type Type } from "typescript/unstable/sync"
import { type CallExpression, type Node, SyntaxKind } from "typescript/unstable/ast"
import type { ErrorGraph, Handler, Operation, Raise, WireEntry } from "./ErrorGraph.ts"

export interface ReadOptions {
  /** Where `tsconfig.json` and `src` are. */
  readonly root: string
  /** What the failures look like on the wire; the table is a value, so it is read as one. */
  readonly wire: ReadonlyArray<WireEntry>
}

/** Where operations are. What simulates or tests them changes for other reasons. */
const observed = /^src\/(?:core|services)\//

/** Carriers of a failure channel: the name of the type, and which of its arguments the channel is. */
const carriers: Readonly<Record<string, number>> = { Effect: 1, Layer: 1, Stream: 1 }
/** Read now, decided upon later, or left to a fiber: no handler. */
const asValue = /^(?:result|exit|option|either|fork\w*|run)$/
/** Steps of a pipe that say how something was handled. */
const handling = /catch|match|mapError|tapError|orDie|orElse|result|exit|ignore|option|retry|filter|die/i

export const readErrorGraph = ({ root, wire }: ReadOptions): ErrorGraph => {
  const api = new API({ cwd: root })
  try {
    const config = path.join(root, "tsconfig.json")
    const project = api.updateSnapshot({ openProjects: [config] }).getProject(config)
    if (project === undefined) throw new Error(`no project ${config}`)
    return new Reader(project.checker, root).read(
      project.program.getSourceFileNames().flatMap((name) => {
        const file = path.relative(root, name).replaceAll(path.sep, "/")
        if (!observed.test(file) || name.endsWith(".d.ts")) return []
        const source = project.program.getSourceFile(name)
        return source === undefined ? [] : [{ file, source }]
      }),
      wire
    )
  } finally {
    api.close()
  }
}

interface Source {
  readonly file: string
  readonly source: Node
}

class Reader {
  private readonly checker: Checker
  private readonly root: string
  private readonly channels = new Map<number, ReadonlyArray<string> | undefined>()
  private readonly tagSets = new Map<number, ReadonlyArray<string>>()

  constructor(checker: Checker, root: string) {
    this.checker = checker
    this.root = root
  }

  read(sources: ReadonlyArray<Source>, wire: ReadonlyArray<WireEntry>): ErrorGraph {
    const operations = sources.flatMap((source) => [...this.operationsOf(source), ...this.implementationsOf(source)])
    const raised: Array<Raise> = []
    const handlers: Array<Handler> = []
    for (const source of sources) {
      const found = this.flowOf(source)
      raised.push(...found.raised)
      handlers.push(...found.handlers)
    }
    const byText = <A>(items: ReadonlyArray<A>, text: (item: A) => string): ReadonlyArray<A> => {
      const seen = new Map(items.map((item) => [text(item), item]))
      return [...seen].toSorted(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)).map(([, item]) => item)
    }
    return {
      operations: byText(operations, ({ file, name }) => `${file} ${name}`),
      raised: byText(raised, ({ failure, place }) => `${failure} ${place}`),
      handlers: byText(handlers, ({ from, into, kind, place, via }) =>
        [place, via, kind, from.join("|"), into.join("|")].join(" ")
      ),
      wire
    }
  }

  // ---------------------------------------------------------------------------
  // types
  // ---------------------------------------------------------------------------

  /** Asked in one go; where the checker's interface gives up on one of them, one by one. */
  private typesAt(nodes: ReadonlyArray<Node>): ReadonlyArray<Type | undefined> {
    if (nodes.length === 0) return []
    try {
      return this.checker.getTypeAtLocation(nodes)
    } catch {
      if (nodes.length === 1) return [undefined]
      const half = nodes.length >> 1
      return [...this.typesAt(nodes.slice(0, half)), ...this.typesAt(nodes.slice(half))]
    }
  }

  /** The failures of an Effect, Layer or Stream; undefined for anything else. */
  private channelOf(type: Type | undefined): ReadonlyArray<string> | undefined {
    if (type === undefined) return undefined
    if (this.channels.has(type.id)) return this.channels.get(type.id)
    const found = this.readChannel(type)
    this.channels.set(type.id, found)
    return found
  }

  private readChannel(type: Type): ReadonlyArray<string> | undefined {
    if (type.isUnionType()) {
      const all = type.getTypes().map((one) => this.channelOf(one))
      return all.every((one) => one !== undefined) ? [...new Set(all.flat())].toSorted() : undefined
    }
    const name = type.getSymbol()?.name
    const at = name === undefined ? undefined : carriers[name]
    if (at === undefined || !type.isTypeReference()) return undefined
    const failure = this.checker.getTypeArguments(type)[at]
    return failure === undefined ? undefined : this.tagsOf(failure)
  }

  private propertyOf(type: Type, name: string): Type | undefined {
    const property = this.checker.getPropertyOfType(type, name)
    return property === undefined ? undefined : this.checker.getTypeOfSymbol(property)
  }

  /** The tags of a failure type; what has no tag by its name, what is not known yet (a type parameter) not at all. */
  private tagsOf(type: Type): ReadonlyArray<string> {
    const known = this.tagSets.get(type.id)
    if (known !== undefined) return known
    const members = type.isUnionType() ? type.getTypes() : [type]
    const tags = members.flatMap((member) => {
      if (member.isTypeParameter() || member.isConditionalType() || member.isIndexedAccessType()) return []
      if (member.isIntrinsicType()) {
        const text = this.checker.typeToString(member)
        return text === "never" || text === "any" ? [] : [text]
      }
      const tag = this.propertyOf(member, "_tag")
      const literals = tag === undefined ? [] : tag.isUnionType() ? tag.getTypes() : [tag]
      const named = literals.flatMap((one) => (one.isStringLiteralType() ? [one.value] : []))
      return named.length > 0 ? named : [this.nameOf(member)]
    })
    const found = [...new Set(tags)].toSorted()
    this.tagSets.set(type.id, found)
    return found
  }

  private nameOf(type: Type): string {
    const text = this.checker.typeToString(type).replaceAll(this.root, "")
    return text.length > 60 ? `${text.slice(0, 57)}...` : text
  }

  // ---------------------------------------------------------------------------
  // operations
  // ---------------------------------------------------------------------------

  private operationsOf({ file, source }: Source): ReadonlyArray<Operation> {
    const module = this.checker.getSymbolAtLocation(source)
    if (module === undefined) return []
    const out: Array<Operation> = []
    for (const exported of this.checker.getExportsOfModule(module)) {
      const symbol = (exported.flags & SymbolFlags.Alias) === 0 ? exported : this.checker.getAliasedSymbol(exported)
      if ((symbol.flags & SymbolFlags.Value) === 0) continue
      const type = this.checker.getTypeOfSymbol(symbol)
      if (type === undefined) continue
      const service = this.checker.getPropertyOfType(type, "key") && this.propertyOf(type, "Service")
      if (service === undefined) out.push(...this.operationOf(file, moduleName(file, exported.name), type, undefined))
      else {
        for (const member of this.checker.getPropertiesOfType(service)) {
          out.push(...this.memberOf(file, exported.name, member, true))
        }
        for (const member of this.checker.getPropertiesOfType(type)) {
          if (member.name.startsWith("layer")) out.push(...this.memberOf(file, exported.name, member, false))
        }
      }
    }
    return out
  }

  private memberOf(file: string, owner: string, member: Symbol, port: boolean): ReadonlyArray<Operation> {
    const type = this.checker.getTypeOfSymbol(member)
    return type === undefined ? [] : this.operationOf(file, `${owner}.${member.name}`, type, port ? "port" : undefined)
  }

  private operationOf(
    file: string,
    name: string,
    type: Type,
    port: "port" | "implementation" | undefined
  ): ReadonlyArray<Operation> {
    const kindOf = (carrier: Type, call: boolean): Operation["kind"] =>
      typeof port === "string" ? port : carrier.getSymbol()?.name === "Layer" ? "layer" : call ? "function" : "value"
    const own = this.channelOf(type)
    if (own !== undefined) return [{ name, file, kind: kindOf(type, false), failures: own }]
    const failures = new Set<string>()
    let kind: Operation["kind"] | undefined
    for (const signature of this.checker.getSignaturesOfType(type, SignatureKind.Call)) {
      const answer = this.answerOf(this.checker.getReturnTypeOfSignature(signature))
      const channel = this.channelOf(answer)
      if (answer === undefined || channel === undefined) continue
      kind = kindOf(answer, true)
      for (const failure of channel) failures.add(failure)
    }
    return kind === undefined ? [] : [{ name: `${name}()`, file, kind, failures: [...failures].toSorted() }]
  }

  /** What implements a port (`LockApi.of({ .. })`), as the compiler infers it: often less than the port allows. */
  private implementationsOf({ file, source }: Source): ReadonlyArray<Operation> {
    const found: Array<{ readonly name: string; readonly value: Node }> = []
    const visit = (node: Node): void => {
      for (const { name, value } of implemented(node)) {
        found.push({ name: `${path.posix.basename(file, ".ts")}: ${name}`, value })
      }
      node.forEachChild(visit)
    }
    source.forEachChild(visit)
    const types = this.typesAt(found.map(({ value }) => value))
    return found.flatMap(({ name }, index) => {
      const type = types[index]
      return type === undefined ? [] : this.operationOf(file, name, type, "implementation")
    })
  }

  /** `withLock(key)(use)`: what a function that answers a function answers in the end. */
  private answerOf(type: Type | undefined): Type | undefined {
    if (type === undefined || this.channelOf(type) !== undefined) return type
    const [signature] = this.checker.getSignaturesOfType(type, SignatureKind.Call)
    return signature === undefined ? undefined : this.checker.getReturnTypeOfSignature(signature)
  }

  // ---------------------------------------------------------------------------
  // raised, handled, turned
  // ---------------------------------------------------------------------------

  private flowOf({ file, source }: Source): {
    readonly raised: ReadonlyArray<Raise>
    readonly handlers: ReadonlyArray<Handler>
  } {
    const calls: Array<Node> = []
    const visit = (node: Node): void => {
      if (node.kind === SyntaxKind.CallExpression || node.kind === SyntaxKind.NewExpression) calls.push(node)
      node.forEachChild(visit)
    }
    source.forEachChild(visit)
    const wanted = new Set<Node>()
    for (const call of calls) {
      wanted.add(call)
      for (const input of [...inputsOf(call), ...stepsOf(call)]) wanted.add(input)
    }
    const nodes = [...wanted]
    const types = new Map(this.typesAt(nodes).map((type, index) => [nodes[index], type]))
    const raised: Array<Raise> = []
    const handlers: Array<Handler> = []
    for (const call of calls) {
      const type = types.get(call)
      const raise = this.failureMade(type)
      if (raise !== undefined) raised.push({ failure: raise, place: placeOf(file, call) })
      const out = this.channelOf(type)
      if (out === undefined || call.kind === SyntaxKind.NewExpression) continue
      const inputs = inputsOf(call).flatMap((input) => this.channelOf(types.get(input)) ?? [])
      const from = [...new Set(inputs)].filter((failure) => !out.includes(failure)).toSorted()
      if (from.length === 0) continue
      // What came out instead: what is new, and what a step makes of what it catches although it was possible before.
      const made = stepsOf(call).flatMap((step) => this.madeBy(types.get(step)))
      const into = out.filter((failure) => !inputs.includes(failure) || made.includes(failure))
      const via = viaOf(call as CallExpression)
      const kind = via.split("+").some((step) => asValue.test(step)) ? "value" : into.length > 0 ? "turned" : "handled"
      handlers.push({ place: placeOf(file, call), via, kind, from, into: kind === "turned" ? into : [] })
    }
    return { raised, handlers }
  }

  /** The failures that a function fails with by itself: what it is given has no tags while it is not known. */
  private madeBy(type: Type | undefined): ReadonlyArray<string> {
    if (type === undefined) return []
    const [signature] = this.checker.getSignaturesOfType(type, SignatureKind.Call)
    return (signature && this.channelOf(this.checker.getReturnTypeOfSignature(signature))) ?? []
  }

  /** The tag of a failure that this expression makes: an instance of an error class, and no Effect of one. */
  private failureMade(type: Type | undefined): string | undefined {
    if (type === undefined || !type.isObjectType() || type.getSymbol() === undefined) return undefined
    const cached = this.made.get(type.id)
    if (cached !== undefined) return cached === "" ? undefined : cached
    const isError =
      this.checker.getPropertyOfType(type, "_tag") !== undefined &&
      this.checker.getPropertyOfType(type, "stack") !== undefined &&
      this.checker.getPropertyOfType(type, "message") !== undefined
    const [tag] = isError ? this.tagsOf(type) : []
    this.made.set(type.id, tag ?? "")
    return tag
  }
  private readonly made = new Map<number, string>()
}

// -----------------------------------------------------------------------------
// syntax
// -----------------------------------------------------------------------------

/** An exported function is known by its module: `EmbeddedEtcd.start`. */
const moduleName = (file: string, name: string): string => {
  const module = path.posix.basename(file, ".ts")
  return name === module ? name : `${module}.${name}`
}

/** What can not be an Effect need not be asked about; and of a tuple the checker's interface can not tell. */
const neverAnEffect: ReadonlySet<SyntaxKind> = new Set([
  SyntaxKind.StringLiteral,
  SyntaxKind.NumericLiteral,
  SyntaxKind.BigIntLiteral,
  SyntaxKind.NoSubstitutionTemplateLiteral,
  SyntaxKind.TemplateExpression,
  SyntaxKind.ObjectLiteralExpression,
  SyntaxKind.ArrayLiteralExpression,
  SyntaxKind.ArrowFunction,
  SyntaxKind.FunctionExpression,
  SyntaxKind.SpreadElement,
  SyntaxKind.TrueKeyword,
  SyntaxKind.FalseKeyword,
  SyntaxKind.NullKeyword,
  SyntaxKind.AsExpression
])

/** The expressions that may be Effects and go into a call: its arguments, and the object of a `pipe`. */
const inputsOf = (node: Node): ReadonlyArray<Node> => {
  if (node.kind !== SyntaxKind.CallExpression) return []
  const call = node as CallExpression
  const object = pipedObject(call)
  return [...(object === undefined ? call.arguments : [object])].filter((input) => !neverAnEffect.has(input.kind))
}

/**
 * What can make a failure of another: the functions that a handling step is given, and a step that is a function of ours. Of
 * Effect's own steps the result is what went in as well, which says nothing.
 */
const stepsOf = (node: Node): ReadonlyArray<Node> => {
  if (node.kind !== SyntaxKind.CallExpression) return []
  const call = node as CallExpression
  const steps = pipedObject(call) === undefined ? [call as Node] : [...call.arguments]
  return steps.flatMap((step) => {
    const own = accessOf(calleeOf(step)) === undefined
    if (own) return step === node ? [] : [step]
    if (step.kind !== SyntaxKind.CallExpression || !handling.test(calleeName(step))) return []
    return [...(step as CallExpression).arguments].flatMap(functionsIn)
  })
}

/** A function, or the functions of an object (`catchTags`, `matchEffect`). */
const functionsIn = (node: Node): ReadonlyArray<Node> => {
  if (node.kind !== SyntaxKind.ObjectLiteralExpression) return neverAFunction.has(node.kind) ? [] : [node]
  const found: Array<Node> = []
  node.forEachChild((property) => {
    // The kind says that it has an initializer.
    if (property.kind === SyntaxKind.PropertyAssignment) {
      found.push((property as unknown as { readonly initializer: Node }).initializer)
    }
  })
  return found
}

const neverAFunction: ReadonlySet<SyntaxKind> = new Set([
  SyntaxKind.StringLiteral,
  SyntaxKind.NumericLiteral,
  SyntaxKind.ArrayLiteralExpression,
  SyntaxKind.SpreadElement
])

interface Access {
  readonly expression: Node
  readonly name: { readonly text: string }
}

const accessOf = (node: Node): Access | undefined =>
  // The kind says that it has these two.
  node.kind === SyntaxKind.PropertyAccessExpression ? (node as unknown as Access) : undefined

const pipedObject = (call: CallExpression): Node | undefined => {
  const access = accessOf(call.expression)
  return access?.name.text === "pipe" ? access.expression : undefined
}

const calleeName = (node: Node): string => {
  if (node.kind === SyntaxKind.CallExpression) return calleeName((node as CallExpression).expression)
  const access = accessOf(node)
  if (access !== undefined) return access.name.text
  // The kind says that it has a text.
  return node.kind === SyntaxKind.Identifier ? (node as unknown as { readonly text: string }).text : "function"
}

/** The steps of a pipe that can have done it, or the function that was called. */
const viaOf = (call: CallExpression): string => {
  if (pipedObject(call) === undefined) return calleeName(call)
  const steps = call.arguments.map((step) => ({ name: calleeName(step), own: accessOf(calleeOf(step)) === undefined }))
  const able = steps.filter(({ name, own }) => own || handling.test(name)).map(({ name }) => name)
  return [...new Set(able.length > 0 ? able : steps.map(({ name }) => name))].join("+")
}

const calleeOf = (node: Node): Node =>
  node.kind === SyntaxKind.CallExpression ? calleeOf((node as CallExpression).expression) : node

/** The operations of `Port.of({ .. })` with the expressions behind them. */
const implemented = (node: Node): ReadonlyArray<{ readonly name: string; readonly value: Node }> => {
  if (node.kind !== SyntaxKind.CallExpression) return []
  const { arguments: given, expression } = node as CallExpression
  const access = accessOf(expression)
  const [object] = given
  if (access?.name.text !== "of" || object?.kind !== SyntaxKind.ObjectLiteralExpression) return []
  const port = calleeName(access.expression)
  const found: Array<{ readonly name: string; readonly value: Node }> = []
  object.forEachChild((property) => {
    // Both kinds have a name, and one has its value apart.
    const { initializer, name } = property as unknown as {
      readonly name?: Node & { readonly text?: string }
      initializer?: Node
    }
    const value = initializer ?? name
    if (name?.text !== undefined && value !== undefined) found.push({ name: `${port}.${name.text}`, value })
  })
  return found
}

const naming: ReadonlySet<SyntaxKind> = new Set([
  SyntaxKind.FunctionDeclaration,
  SyntaxKind.VariableDeclaration,
  SyntaxKind.PropertyAssignment,
  SyntaxKind.MethodDeclaration,
  SyntaxKind.PropertyDeclaration,
  SyntaxKind.ClassDeclaration,
  SyntaxKind.GetAccessor
])

/** `src/services/x/Y.ts make.renew`: the file and the named declarations around, at most three. */
const placeOf = (file: string, node: Node): string => {
  const names: Array<string> = []
  for (let at: Node | undefined = node.parent; at !== undefined; at = at.parent) {
    if (!naming.has(at.kind)) continue
    const { name } = at as unknown as { readonly name?: { readonly text?: string } }
    if (name?.text !== undefined) names.unshift(name.text)
  }
  return `${file} ${names.slice(0, 3).join(".")}`.trimEnd()
}
