// @effect-diagnostics nodeBuiltinImport:off
/**
 * What every operator command has in common: the clients of the services, one trace for all it asks, and how
 * it ends. A failure is one line on stderr, with `--json` one JSON object, and an exit code that says what kind it was.
 */
import * as NodeHttpClient from "@effect/platform-node/NodeHttpClient"
import { Cause, Console, Effect, Layer, Random, References, type Scope } from "effect"
import { Prompt, TerminalCapabilities } from "effect/cli"
import type { HttpClient } from "effect/http"
import { userInfo } from "node:os"
import { OwnerId } from "../../core/lock/Lock.ts"
import type { LockApi } from "../../core/lock/LockApi.ts"
import type { PaymentResource } from "../../core/payment/PaymentResource.ts"
import type { RailProxy } from "../../core/rail/RailProxy.ts"
import { activeSpan, beginsTrace } from "../../core/Span.ts"
import { TraceId } from "../../core/TraceId.ts"
import * as LockClient from "../lock-client/LockClient.ts"
import { Exited, exitCodeOf, exitCodes } from "../platform/ExitCodes.ts"
import type { Readiness } from "../platform/Management.ts"
import * as RemoteServices from "../platform/RemoteServices.ts"
import * as ServiceConfig from "../platform/ServiceConfig.ts"
import * as Telemetry from "../platform/Telemetry.ts"
import * as Actuator from "./Actuator.ts"
import * as LockAdmin from "./LockAdmin.ts"
import type { CommonFlags } from "./Flags.ts"
import { Operator } from "./Locks.ts"
import { json, told } from "./Printing.ts"

/** Everything that a command may ask. */
export type Services =
  | LockApi
  | PaymentResource
  | RailProxy
  | Readiness
  | LockClient.LockClient
  | LockAdmin.LockAdmin
  | Actuator.Actuator
  | Operator
  | HttpClient.HttpClient
  | ServiceConfig.ServiceConfig

/** The name of who sits at the keyboard; what the audit records unless `--operator` says another. */
const loginName: Effect.Effect<string> = Effect.orElseSucceed(
  Effect.try(() => userInfo().username),
  () => "operator"
)

const anyHex = Effect.map(Random.nextIntBetween(0, 0xffff_ffff), (n) => n.toString(16).padStart(8, "0"))

const operatorLayer = (named: string | undefined): Layer.Layer<Operator> =>
  Layer.effect(
    Operator,
    Effect.gen(function* () {
      const name = named ?? (yield* loginName)
      // An owner id of its own for each run: two commands of one person are two owners.
      const owner = `operator:${name.replaceAll(/[^A-Za-z0-9._@-]/gu, "_").slice(0, 40)}:${yield* anyHex}`
      return { name, actor: OwnerId.make(owner) }
    })
  )

/** No session is opened until a lock is asked for. */
const lockClient = Layer.unwrap(
  Effect.gen(function* () {
    const { settings } = yield* ServiceConfig.ServiceConfig
    const { actor } = yield* Operator
    return LockClient.layer({
      ownerId: actor,
      settings: settings.client,
      sessionTtlMillis: settings.lock.sessionTtlMillis,
      lockTtlMillis: settings.lock.defaultTtlMillis
    })
  })
)

const clients = (named: string | undefined) =>
  Layer.unwrap(
    Effect.map(ServiceConfig.ServiceConfig, ({ lock, settings }) =>
      lockClient.pipe(
        Layer.provideMerge(
          Layer.mergeAll(
            RemoteServices.layer,
            LockAdmin.layer({ url: lock.managementUrl, callTimeoutMillis: settings.client.callTimeoutMillis }),
            Actuator.layer(settings.client.callTimeoutMillis),
            operatorLayer(named)
          )
        ),
        Layer.provideMerge(NodeHttpClient.layerUndici)
      )
    )
  )

/** Said once, on stderr, and turned into the exit code. */
const conclude = (asJson: boolean) => (cause: Cause.Cause<unknown>) => {
  if (Cause.hasInterruptsOnly(cause)) return Effect.interrupt
  const failure: unknown = Cause.squash(cause)
  if (failure instanceof Exited) return Effect.fail(failure)
  const code = exitCodeOf(cause)
  const { code: name, message } = told(failure)
  return Effect.andThen(
    Console.error(asJson ? json({ code: name, message, exitCode: code }) : `${message} (${name})`),
    Effect.andThen(
      // A bug is worth its stack.
      code === exitCodes.unexpected ? Effect.logError("the command died", cause) : Effect.void,
      Effect.fail(new Exited({ code }))
    )
  )
}

/** Commands say what they found; their log lines are for when that is not enough. */
const quieter = Effect.fnUntraced(function* <A, E, R>(self: Effect.Effect<A, E, R>) {
  const level = yield* References.MinimumLogLevel
  return yield* level === "Info" ? Effect.provideService(self, References.MinimumLogLevel, "Warn") : self
})

/** Runs a command with everything that it may ask. */
export const operate =
  (name: string, flags: CommonFlags & { readonly operator?: string | undefined }) =>
  <A, E>(
    work: Effect.Effect<A, E, Services | Scope.Scope | Prompt.Environment>
  ): Effect.Effect<A, Exited, Prompt.Environment> =>
    Effect.gen(function* () {
      const config = yield* ServiceConfig.load("reconciler", { file: flags.configFile })
      return yield* work.pipe(
        beginsTrace(`dlock ${name}`),
        // @effect-diagnostics-next-line strictEffectProvide:off (the entry point of one command)
        Effect.provide(clients(flags.operator)),
        Effect.provideService(ServiceConfig.ServiceConfig, config)
      )
    }).pipe(
      Effect.scoped,
      Effect.catchCause(conclude(flags.json)),
      quieter,
      // @effect-diagnostics-next-line strictEffectProvide:off (the entry point of one command)
      Effect.provide(Telemetry.layer({ service: "dlock", to: "stderr" })),
      Effect.catchTag("ConfigProblem", (problem) =>
        Effect.andThen(Console.error(problem.message), Effect.fail(new Exited({ code: exitCodes.usage })))
      )
    )

/** The id under which all requests of this command are found in the logs of the services. */
export const traceId: Effect.Effect<string | undefined> = Effect.withFiber((fiber) =>
  Effect.succeed(activeSpan(fiber)?.traceId ?? fiber.getRef(TraceId))
)

/**
 * Asks before something that can not be taken back. Without a terminal nothing is asked and nothing is done: a script says
 * `--yes`.
 */
export const confirm = Effect.fnUntraced(function* (
  question: string,
  options: { readonly yes: boolean; readonly json: boolean }
) {
  if (options.yes) return
  const { canPrompt } = yield* TerminalCapabilities.TerminalCapabilities
  if (!canPrompt || options.json) {
    yield* Console.error("this asks first: run it on a terminal, or say --yes")
    return yield* new Exited({ code: exitCodes.usage })
  }
  const agreed = yield* Prompt.run(Prompt.Confirm({ message: question, initial: false })).pipe(
    Effect.catchTag("QuitError", () => Effect.interrupt)
  )
  if (!agreed) {
    yield* Console.error("nothing was done")
    return yield* new Exited({ code: exitCodes.refused })
  }
})
