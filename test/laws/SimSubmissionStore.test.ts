import { Layer } from "effect"
import { defaults } from "../../src/core/Settings.ts"
import * as SimPaydb from "../../src/sim/SimPaydb.ts"
import * as SimPaymentStore from "../../src/sim/SimPaymentStore.ts"
import * as SimSubmissionStore from "../../src/sim/SimSubmissionStore.ts"
import { describeSubmissionStore } from "./SubmissionStoreLaws.ts"

const stores = (setting: boolean, rail: boolean) =>
  Layer.merge(SimPaymentStore.layer, SimSubmissionStore.layer(defaults.rail, { fencingEnabled: setting })).pipe(
    Layer.provide(SimPaydb.layer({ switches: { resource: true, rail } }))
  )

describeSubmissionStore(
  "SimSubmissionStore",
  {
    fenced: stores(true, true),
    unfenced: stores(false, false),
    settingOnly: stores(false, true),
    switchOnly: stores(true, false)
  },
  { live: false }
)
