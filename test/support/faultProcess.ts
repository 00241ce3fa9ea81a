/** A process with a fault point in its way: what it writes tells whether it ran on. */
import { Effect, Layer } from "effect"
import { reached } from "../../src/core/FaultPoint.ts"
import * as ProcessFaults from "../../src/services/platform/ProcessFaults.ts"
import * as ServiceConfig from "../../src/services/platform/ServiceConfig.ts"
import * as Telemetry from "../../src/services/platform/Telemetry.ts"

const program = Effect.gen(function* () {
  for (const round of [1, 2, 3]) {
    yield* Effect.logInfo("before").pipe(Effect.annotateLogs({ round }))
    yield* reached("submit.before")
    yield* Effect.logInfo("after").pipe(Effect.annotateLogs({ round }))
  }
})

Effect.runFork(
  program.pipe(
    Effect.provide(
      ProcessFaults.layer.pipe(
        Layer.provide(ServiceConfig.layer("payout-executor")),
        Layer.merge(Telemetry.layer({ service: "payout-executor", to: "stdout" }))
      )
    )
  )
)
