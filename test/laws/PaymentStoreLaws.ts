/**
 * What every payment store has to do, whatever it is made of: one test a law, beside the submission store over the same
 * paydb, which says what the rail did.
 *
 * The laws of one suite share a database, so each has accounts of its own; a token is compared within its account only.
 */
import { describe, it } from "@effect/vitest"
import type { Layer } from "effect"
import { claims, resolutions, settlements, unfencedLaws } from "./PaymentMoveLaws.ts"
import { accounts, orders, reading } from "./PaymentOrderLaws.ts"
import type { Law, LawWorld, Needs } from "./paymentLawScenes.ts"

export const laws: ReadonlyArray<Law> = [...orders, ...accounts, ...claims, ...settlements, ...resolutions, ...reading]

export interface PaymentStores<E> {
  readonly fenced: Layer.Layer<Needs, E>
  /** Setting and switch of the resource both off. */
  readonly unfenced: Layer.Layer<Needs, E>
}

/** `live`: on the real clock; else on the test clock. */
export const describePaymentStore = <E>(
  name: string,
  stores: PaymentStores<E>,
  world: LawWorld & { readonly live: boolean }
) =>
  describe(name, () => {
    it.layer(stores.fenced, { excludeTestServices: world.live, timeout: "60 seconds" })((it) => {
      for (const { holds, name } of laws) it.effect(name, () => holds(world), 30_000)
    })
    it.layer(stores.unfenced, { excludeTestServices: world.live, timeout: "60 seconds" })(
      "with the fence off",
      (it) => {
        for (const { holds, name } of unfencedLaws) it.effect(name, () => holds(world), 30_000)
      }
    )
  })
