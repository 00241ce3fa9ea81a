import { Layer } from "effect"
import { TestClock } from "effect/testing"
import { defaults } from "../../src/core/Settings.ts"
import * as SimPaydb from "../../src/sim/SimPaydb.ts"
import * as SimPaymentStore from "../../src/sim/SimPaymentStore.ts"
import * as SimSubmissionStore from "../../src/sim/SimSubmissionStore.ts"
import { describePaymentStore } from "./PaymentStoreLaws.ts"

const policy: SimPaydb.RailPolicy = { finalityWindowMillis: 0, minNotFound: 2, minSpacingMillis: 1 }

const stores = (resource: boolean) =>
  Layer.merge(SimPaymentStore.layer, SimSubmissionStore.layer(defaults.rail)).pipe(
    Layer.provide(SimPaydb.layer({ policy, switches: { resource, rail: true } }))
  )

describePaymentStore(
  "SimPaymentStore",
  { fenced: stores(true), unfenced: stores(false) },
  {
    live: false,
    elapse: (millis) => TestClock.adjust(millis + 1),
    sendWindowMillis: defaults.rail.sendWindowMillis
  }
)
