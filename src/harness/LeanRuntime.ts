// @effect-diagnostics nodeBuiltinImport:off globalErrorInEffectFailure:off
/**
 * Makes Effect cheaper in a thread that does nothing but simulate. To be imported before Effect is: each suspended fiber
 * would get an AsyncResource, so that AsyncLocalStorage finds its way; nobody here uses it.
 */
import { setFlagsFromString } from "node:v8"

// Hardly a call site sees one shape only, so that what is inlined is compiled at length and gains nothing; and where every
// core simulates, threads that help with a scavenge take what they give. Both together are 5 to 10 % of a batch.
setFlagsFromString("--max-inlined-bytecode-size-cumulative=300")
setFlagsFromString("--no-parallel-scavenge")

const getBuiltin = process.getBuiltinModule.bind(process)
const lean = (id: string): unknown => (id === "node:async_hooks" ? undefined : getBuiltin(id))
Reflect.set(process, "getBuiltinModule", lean)

/**
 * Once everything is loaded (Effect looks how stacks are written as it is): each failure would take a stack trace that
 * nobody reads. A run is repeated from its line, not debugged from a stack.
 */
export const withoutStacks = (): void => {
  Error.stackTraceLimit = 0
}
