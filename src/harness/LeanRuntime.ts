// @effect-diagnostics nodeBuiltinImport:off globalErrorInEffectFailure:off
/**
 * Makes Effect cheaper in a thread that does nothing but simulate. To be imported before Effect is.
 *
 * - Each suspended fiber would get an AsyncResource, so that AsyncLocalStorage finds its way; nobody here uses it.
 * - Each failure would take a stack trace that nobody reads: a run is repeated from its line, not debugged from a stack.
 */
const getBuiltin = process.getBuiltinModule.bind(process)
const lean = (id: string): unknown => (id === "node:async_hooks" ? undefined : getBuiltin(id))
Reflect.set(process, "getBuiltinModule", lean)
Error.stackTraceLimit = 0
export {}
