/**
 * How real time, real randomness and asynchrony are kept out of a run: three nets, each of which catches what the others
 * let through.
 *
 * - `withTraps` replaces the globals for the duration of a call. A run is synchronous, so nobody else is served meanwhile.
 *   Names every `Date.now`, `Math.random`, `setTimeout`, promise; cannot see an `await` of an async function (which uses no
 *   global) nor a `node:` import (which the layering forbids).
 * - `requireEnded`: a program that waits for a promise or a real timer never comes to an end in virtual time. Two runs of
 *   it hang alike, so comparing hashes does not find it.
 * - Running the same seed twice and comparing `scheduleHash` finds whatever else differs between two runs.
 *
 * A fourth, the shared `Deferred`, is found by the scheduler itself (see `Node.ts`).
 */
import { Cause, Effect } from "effect"
import type { VirtualWorld } from "./VirtualWorld.ts"

export class LeakError extends Error {
  override readonly name = "LeakError"
  readonly what: string

  constructor(what: string) {
    super(`simulation leak: ${what}`)
    this.what = what
  }
}

type AnyFunction = (...args: ReadonlyArray<unknown>) => unknown

/** What must not be called, by the object that has it. Looked up by name: the diagnostics forbid to even mention some. */
const forbidden: ReadonlyArray<readonly [owner: object, ownerName: string, members: ReadonlyArray<string>]> = [
  [
    globalThis,
    "",
    ["setTimeout", "setInterval", "setImmediate", "queueMicrotask", "fetch", "MessageChannel", "BroadcastChannel"]
  ],
  [Date, "Date.", ["now"]],
  [Math, "Math.", ["random"]],
  [performance, "performance.", ["now"]],
  [process, "process.", ["nextTick", "uptime", "cpuUsage"]],
  [process.hrtime, "process.hrtime.", ["bigint"]],
  [Promise.prototype, "Promise.", ["then"]],
  [Promise, "Promise.", ["resolve", "reject", "all", "race"]],
  [AbortSignal, "AbortSignal.", ["timeout"]],
  [Atomics, "Atomics.", ["wait", "waitAsync"]],
  [crypto, "crypto.", ["randomUUID", "getRandomValues"]]
]

type Undo = () => void

const replace = (owner: object, member: string, value: unknown): Undo => {
  const own = Object.getOwnPropertyDescriptor(owner, member)
  Object.defineProperty(owner, member, {
    configurable: true,
    writable: true,
    enumerable: own?.enumerable ?? false,
    value
  })
  return () => {
    if (own === undefined) Reflect.deleteProperty(owner, member)
    else Object.defineProperty(owner, member, own)
  }
}

/** `new Date()` and `Date()` read the clock; `new Date(millis)` does not. */
const trapDate = (onLeak: (what: string) => void): Undo => {
  const original = Date
  const proxy = new Proxy(original, {
    construct: (target, args, newTarget) => {
      if (args.length === 0) onLeak("new Date()")
      return Reflect.construct(target, args, newTarget)
    },
    apply: () => onLeak("Date()")
  })
  return replace(globalThis, "Date", proxy)
}

/** `process.hrtime()` is a function with a member: both read the clock. */
const trapHrtime = (onLeak: (what: string) => void): Undo =>
  replace(process, "hrtime", new Proxy(process.hrtime, { apply: () => onLeak("process.hrtime") }))

/**
 * A fiber's id counts the fibers of the whole operating system's process, so it is another one in the second run. Effect
 * reads it itself (for interruption causes), hence only the readings of the program are leaks: through `Effect.fiberId`,
 * or as a property from a file that is not Effect's.
 */
const trapFiberId = (onLeak: (what: string) => void): ReadonlyArray<Undo> => {
  const undo: Array<Undo> = []
  const evaluate = "~effect/Effect/evaluate"
  const original: unknown = Reflect.get(Effect.fiberId, evaluate)
  if (typeof original === "function") {
    undo.push(
      replace(Effect.fiberId, evaluate, function (this: unknown, ...args: ReadonlyArray<unknown>): unknown {
        onLeak("Effect.fiberId")
        return Reflect.apply(original, this, args)
      })
    )
  }
  const ids = new WeakMap<object, unknown>()
  const prototype: unknown = Object.getPrototypeOf(Effect.runFork(Effect.void))
  if (typeof prototype === "object" && prototype !== null) {
    Object.defineProperty(prototype, "id", {
      configurable: true,
      set(this: object, id: unknown) {
        ids.set(this, id)
      },
      get(this: object) {
        if (!readByEffect()) onLeak("fiber.id")
        return ids.get(this)
      }
    })
    undo.push(() => Reflect.deleteProperty(prototype, "id"))
  }
  return undo
}

/** Whether the caller of the caller is a file of the effect package. */
const readByEffect = (): boolean => {
  const limit = Error.stackTraceLimit
  Error.stackTraceLimit = 4
  const stack = new Error("who reads").stack ?? ""
  Error.stackTraceLimit = limit
  const reader = stack.split("\n")[3]
  return reader === undefined || /[\\/]effect[\\/](dist|src)[\\/]/.test(reader)
}

/**
 * Runs something synchronous with all traps set. A leak is thrown at the place where it happens, so that its stack names
 * the culprit; since a program can catch a defect, the first one is thrown once more at the end.
 *
 * Setting the traps makes the JavaScript engine forget what it knew about these globals: put a whole batch of runs inside
 * rather than each run.
 */
export const withTraps = <A>(run: () => A): A => {
  const undo: Array<Undo> = []
  let first: LeakError | undefined
  const onLeak = (what: string): never => {
    const error = new LeakError(what)
    first ??= error
    throw error
  }
  try {
    undo.push(...trapFiberId(onLeak), trapHrtime(onLeak), trapDate(onLeak))
    for (const [owner, ownerName, members] of forbidden) {
      for (const member of members) {
        const original: AnyFunction | undefined = Reflect.get(owner, member)
        // not every Node has every one of them
        if (original !== undefined) undo.push(replace(owner, member, () => onLeak(`${ownerName}${member}`)))
      }
    }
    const result = run()
    if (first !== undefined) throw first
    return result
  } catch (error) {
    throw first ?? error
  } finally {
    for (const restore of undo.reverse()) restore()
  }
}

/** What is wrong with the end of a run, each in words; empty if every program came to an end that is not a defect. */
export const unsound = (world: VirtualWorld): ReadonlyArray<string> => {
  const problems: Array<string> = []
  for (const node of world.nodes) {
    if (node.hanging) {
      problems.push(
        `${node.name} never came to an end: it waits for something outside virtual time, or for a dead peer`
      )
    }
    for (const exit of node.exits) {
      if (exit._tag === "Failure" && Cause.hasDies(exit.cause)) {
        problems.push(`${node.name} died: ${Cause.pretty(exit.cause).split("\n")[0]}`)
      }
    }
  }
  for (const defect of world.defects) problems.push(defect)
  return problems
}

/** Throws unless every program that should end has ended, and none with a defect. */
export const requireEnded = (world: VirtualWorld): void => {
  const problems = unsound(world)
  if (problems.length > 0) throw new LeakError(problems.join("; "))
}
