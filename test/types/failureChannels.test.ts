/**
 * Every failure channel that others build on, written out: a method that fails with more, or with less, shows up here.
 * Checked by `tsc`; at run time there is nothing to see.
 */
import { describe, expectTypeOf, it } from "vitest"
import { Effect, type Layer, type Scope } from "effect"
import type { LockApi } from "../../src/core/lock/LockApi.ts"
import type {
  BackendUnavailable,
  ContentionExceeded,
  FencedOut,
  LockContended,
  LockLost,
  LockNotFound,
  LockUnavailable,
  NotLeader,
  SessionExpired,
  SessionUnknown
} from "../../src/core/lock/LockErrors.ts"
import type { LockStore } from "../../src/core/lock/LockStore.ts"
import type {
  AccountBusy,
  AccountNotFound,
  DuplicateSubmission,
  EvidenceMissing,
  IllegalTransition,
  InsufficientFunds,
  PayoutNotFound,
  RailAmbiguous,
  RailDeclined,
  TokenAlreadyUsed
} from "../../src/core/payment/PaymentErrors.ts"
import type { PaymentResource } from "../../src/core/payment/PaymentResource.ts"
import type { Rail, RailNoAnswer } from "../../src/core/rail/Rail.ts"
import type { RailProxy } from "../../src/core/rail/RailProxy.ts"
import type { ValidationFailed } from "../../src/core/RequestFailures.ts"
import type * as HttpLockApi from "../../src/services/api/HttpLockApi.ts"
import { type HeldLock, LockClient } from "../../src/services/lock-client/LockClient.ts"

type Fails<F> = F extends (...args: never) => infer R
  ? R extends Effect.Effect<infer _A, infer E, infer _R>
    ? E
    : never
  : never
type Backend = NotLeader | BackendUnavailable
type Session = SessionUnknown | SessionExpired

class Own {
  readonly _tag = "Own"
}
class Needed {
  readonly needed = true
}

describe("the failure channel of", () => {
  it("withLock is the body's own, a loss, or no grant", () => {
    const program = Effect.flatMap(LockClient, (locks) =>
      locks.withLock("k" as never)((_lock) => Effect.fail(new Own()) as Effect.Effect<number, Own, Needed>)
    )
    expectTypeOf<Effect.Error<typeof program>>().toEqualTypeOf<Own | LockLost | ContentionExceeded | LockUnavailable>()
    expectTypeOf<Effect.Services<typeof program>>().toEqualTypeOf<Needed | LockClient>()
    expectTypeOf<Effect.Success<typeof program>>().toEqualTypeOf<number>()
  })

  it("acquire is no grant; of what it gives, a loss", () => {
    type Acquired = ReturnType<LockClient["Service"]["acquire"]>
    expectTypeOf<Acquired>().toEqualTypeOf<Effect.Effect<HeldLock, ContentionExceeded | LockUnavailable, Scope.Scope>>()
    expectTypeOf<Effect.Error<HeldLock["checkStillHeld"]>>().toEqualTypeOf<LockLost>()
    // not a boolean, which could be forgotten
    expectTypeOf<Effect.Success<HeldLock["checkStillHeld"]>>().toEqualTypeOf<void>()
    expectTypeOf<HeldLock["lost"]>().toEqualTypeOf<Effect.Effect<LockLost>>()
    expectTypeOf<Effect.Error<HeldLock["renew"]>>().toEqualTypeOf<LockLost | LockUnavailable>()
  })

  it("each operation of LockApi is", () => {
    type Api = LockApi["Service"]
    expectTypeOf<Fails<Api["openSession"]>>().toEqualTypeOf<Backend>()
    expectTypeOf<Fails<Api["heartbeat"]>>().toEqualTypeOf<Session | Backend>()
    expectTypeOf<Fails<Api["closeSession"]>>().toEqualTypeOf<Session | Backend>()
    expectTypeOf<Fails<Api["acquire"]>>().toEqualTypeOf<
      LockContended | ContentionExceeded | LockLost | Session | Backend
    >()
    expectTypeOf<Fails<Api["renew"]>>().toEqualTypeOf<LockLost | Backend>()
    expectTypeOf<Fails<Api["release"]>>().toEqualTypeOf<LockLost | Backend>()
    expectTypeOf<Fails<Api["inspect"]>>().toEqualTypeOf<LockNotFound | Backend>()
    expectTypeOf<Fails<Api["revoke"]>>().toEqualTypeOf<LockNotFound | FencedOut | Backend>()
    // an HTTP client that leaks what HTTP can fail with would not be a LockApi
    expectTypeOf<Layer.Error<ReturnType<typeof HttpLockApi.layer>>>().toEqualTypeOf<never>()
  })

  it("each operation of LockStore is", () => {
    type Store = LockStore["Service"]
    expectTypeOf<Fails<Store["openSession"]>>().toEqualTypeOf<Backend>()
    expectTypeOf<Fails<Store["heartbeat"]>>().toEqualTypeOf<Session | Backend>()
    expectTypeOf<Fails<Store["closeSession"]>>().toEqualTypeOf<Session | Backend>()
    // a store does not wait, so it never gives up waiting
    expectTypeOf<Fails<Store["tryAcquire"]>>().toEqualTypeOf<LockContended | LockLost | Session | Backend>()
    expectTypeOf<Fails<Store["renew"]>>().toEqualTypeOf<LockLost | Backend>()
    expectTypeOf<Fails<Store["release"]>>().toEqualTypeOf<LockLost | Backend>()
    expectTypeOf<Fails<Store["inspect"]>>().toEqualTypeOf<LockNotFound | Backend>()
    expectTypeOf<Fails<Store["revoke"]>>().toEqualTypeOf<LockNotFound | FencedOut | Backend>()
  })

  it("each operation of PaymentResource is, FencedOut in every protected one", () => {
    type Payments = PaymentResource["Service"]
    type Settled = FencedOut | IllegalTransition | EvidenceMissing | PayoutNotFound | BackendUnavailable
    expectTypeOf<Fails<Payments["listPayouts"]>>().toEqualTypeOf<BackendUnavailable>()
    expectTypeOf<Fails<Payments["readPayout"]>>().toEqualTypeOf<PayoutNotFound | BackendUnavailable>()
    expectTypeOf<Fails<Payments["createPayout"]>>().toEqualTypeOf<
      AccountNotFound | ValidationFailed | BackendUnavailable
    >()
    expectTypeOf<Fails<Payments["claim"]>>().toEqualTypeOf<
      Settled | TokenAlreadyUsed | AccountBusy | InsufficientFunds
    >()
    expectTypeOf<Fails<Payments["post"]>>().toEqualTypeOf<Settled>()
    expectTypeOf<Fails<Payments["fail"]>>().toEqualTypeOf<Settled>()
    expectTypeOf<Fails<Payments["ambiguous"]>>().toEqualTypeOf<Settled>()
    expectTypeOf<Fails<Payments["resolve"]>>().toEqualTypeOf<Settled>()
    expectTypeOf<Fails<Payments["readAccount"]>>().toEqualTypeOf<AccountNotFound | BackendUnavailable>()
    expectTypeOf<Fails<Payments["readLedger"]>>().toEqualTypeOf<AccountNotFound | BackendUnavailable>()
    expectTypeOf<Fails<Payments["createAccount"]>>().toEqualTypeOf<ValidationFailed | BackendUnavailable>()
    expectTypeOf<Fails<Payments["readHistory"]>>().toEqualTypeOf<PayoutNotFound | BackendUnavailable>()
  })

  it("each operation of RailProxy and Rail is, an unknown outcome never among the retry-safe", () => {
    type Proxy = RailProxy["Service"]
    expectTypeOf<Fails<Proxy["submit"]>>().toEqualTypeOf<
      | FencedOut
      | TokenAlreadyUsed
      | DuplicateSubmission
      | RailAmbiguous
      | RailDeclined
      | PayoutNotFound
      | ValidationFailed
      | BackendUnavailable
    >()
    expectTypeOf<Fails<Proxy["readSubmission"]>>().toEqualTypeOf<PayoutNotFound | BackendUnavailable>()
    expectTypeOf<Fails<Proxy["lookup"]>>().toEqualTypeOf<PayoutNotFound | BackendUnavailable>()
    expectTypeOf<Fails<Proxy["seal"]>>().toEqualTypeOf<
      FencedOut | TokenAlreadyUsed | DuplicateSubmission | PayoutNotFound | BackendUnavailable
    >()
    expectTypeOf<Fails<Proxy["evidence"]>>().toEqualTypeOf<
      FencedOut | TokenAlreadyUsed | PayoutNotFound | BackendUnavailable
    >()
    expectTypeOf<Fails<Rail["Service"]["submit"]>>().toEqualTypeOf<RailNoAnswer>()
    expectTypeOf<Fails<Rail["Service"]["lookup"]>>().toEqualTypeOf<RailNoAnswer>()
  })
})
