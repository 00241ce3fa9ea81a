// @effect-diagnostics nodeBuiltinImport:off
/** The lock service in memory behind its real surface, on a free port, for clients that speak HTTP. */
import { NodeHttpServer } from "@effect/platform-node"
import { Context, Effect, Exit, Layer, Scope } from "effect"
import { HttpRouter, HttpServer } from "effect/http"
import { HttpApiBuilder } from "effect/http-api"
import * as Http from "node:http"
import { LockApi } from "../../../src/core/lock/LockApi.ts"
import { LockHttpApi } from "../../../src/services/api/LockHttpApi.ts"
import * as RequestErrors from "../../../src/services/api/RequestErrors.ts"
import * as LockHandlers from "../../../src/services/lock-server/LockHandlers.ts"
import { server } from "./lockWorld.ts"

export interface Running {
  readonly url: string
  /** The same service without the wire, for looking and for holding the lock as somebody else. */
  readonly direct: LockApi["Service"]
  readonly requests: ReadonlyArray<string>
  /** From now on requests are taken in and never answered. */
  readonly fallSilent: () => void
  readonly stop: () => Promise<void>
}

export const start = (): Promise<Running> =>
  Effect.runPromise(
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      const requests: Array<string> = []
      let silent = false
      const node = Http.createServer()
      const emit = node.emit.bind(node)
      node.emit = (event: string, ...args: Array<unknown>) => {
        if (event === "request") {
          const [request] = args as [Http.IncomingMessage]
          requests.push(`${request.method} ${request.url}`)
          if (silent) return true
        }
        return emit(event, ...args)
      }
      const app = HttpRouter.serve(
        HttpApiBuilder.layer(LockHttpApi).pipe(Layer.provide(LockHandlers.layer), Layer.provide(RequestErrors.layer)),
        { disableLogger: true, disableListenLog: true }
      ).pipe(
        Layer.provideMerge(NodeHttpServer.layer(() => node, { port: 0, host: "127.0.0.1" })),
        Layer.provideMerge(server)
      )
      const context = yield* Layer.buildWithScope(app, scope)
      const { address } = Context.get(context, HttpServer.HttpServer)
      return {
        url: `http://127.0.0.1:${"port" in address ? address.port : 0}`,
        direct: Context.get(context, LockApi),
        requests,
        fallSilent: () => {
          silent = true
        },
        stop: () => {
          node.closeAllConnections()
          return Effect.runPromise(Scope.close(scope, Exit.void))
        }
      }
    })
  )
