/** Participants that only some scenarios have: programs like the workers', on nodes of their own. */
import { Context, Effect, Random } from "effect"
import { AcquireId, OwnerId } from "../core/lock/Lock.ts"
import { LockApi } from "../core/lock/LockApi.ts"
import * as LockClient from "../services/lock-client/LockClient.ts"
import { Operator } from "../services/operator/Locks.ts"
import * as Payouts from "../services/operator/Payouts.ts"
import { type Cluster, lockKey, payoutIdOf } from "./Cluster.ts"
import * as Observed from "./Observed.ts"

/** Three who want the lock for a moment and wait in the server's line, within a bound. */
export const visitors = ({ recorder, settings, world, wire }: Cluster): void => {
  for (const name of ["v1", "v2", "v3"]) {
    world
      .node(name, {
        program: (process) =>
          Effect.scoped(
            Effect.gen(function* () {
              const client = yield* Effect.provideService(
                LockClient.make({
                  ownerId: OwnerId.make(name),
                  settings: settings.client,
                  sessionTtlMillis: settings.lock.sessionTtlMillis,
                  lockTtlMillis: settings.lock.defaultTtlMillis
                }),
                LockApi,
                Observed.lockApi(wire.locks(process), process, recorder)
              )
              const locks = Observed.lockClient(client, process, recorder)
              for (let visit = 0; visit < 3; visit++) {
                const waitMillis = yield* Random.nextIntBetween(0, 900)
                const stayMillis = yield* Random.nextIntBetween(0, 400)
                yield* locks
                  .withLock(lockKey(1), { waitMillis })((lock) =>
                    Effect.andThen(Effect.sleep(stayMillis), lock.checkStillHeld)
                  )
                  .pipe(
                    Effect.tap(() => Effect.sync(() => recorder.marks.hit("a visitor was let in"))),
                    Effect.catchTags({
                      ContentionExceeded: () => Effect.sync(() => recorder.marks.hit("a visitor gave up")),
                      LockUnavailable: () => Effect.sync(() => recorder.marks.hit("a visitor found no service")),
                      LockLost: () => Effect.sync(() => recorder.marks.hit("a visitor lost the lock"))
                    })
                  )
              }
            })
          )
      })
      .start()
  }
}

/** Cancels the last payout, with the very operation behind `payout cancel`, and tries again while it could not. */
export const cancellingOperator = ({ clients, spec, world }: Cluster): void => {
  world
    .node("operator", {
      program: (process) =>
        Effect.scoped(
          Effect.gen(function* () {
            const context = yield* clients(process)
            const operator = { name: "operator", actor: OwnerId.make(process.node.name) }
            const cancel = Payouts.cancel(payoutIdOf(spec.payouts), "the customer has thought better of it").pipe(
              Effect.provideContext(Context.add(context, Operator, operator)),
              Effect.matchEffect({
                // Somebody else holds the account, or somebody does not answer.
                onFailure: ({ _tag }) => Effect.succeed(_tag === "IllegalTransition" || _tag === "EvidenceMissing"),
                onSuccess: () => Effect.succeed(true)
              })
            )
            for (let attempt = 1; attempt <= 10; attempt++) {
              yield* Effect.sleep(yield* Random.nextIntBetween(1, 400))
              if (yield* cancel) return
            }
          })
        )
    })
    .start()
}

/** Looks who holds the lock and, after a while, takes it away. */
export const revokingOperator = ({ recorder, wire, world }: Cluster): void => {
  world
    .node("operator", {
      program: (process) =>
        Effect.gen(function* () {
          const api = Observed.lockApi(wire.locks(process), process, recorder)
          const key = lockKey(1)
          for (let look = 1; look <= 40; look++) {
            yield* Effect.sleep(yield* Random.nextIntBetween(1, 200))
            const held = yield* Effect.match(api.inspect(key), {
              onSuccess: (info) => info.held,
              onFailure: () => false
            })
            if (!held) continue
            yield* Effect.sleep(yield* Random.nextIntBetween(0, 300))
            const revoked = yield* api
              .revoke({
                key,
                operator: "operator",
                reason: "its holder does not answer",
                revocationId: AcquireId.make(`revoke-${look}`)
              })
              .pipe(
                Effect.as(true),
                Effect.catchTags({
                  LockNotFound: () => Effect.succeed(false),
                  FencedOut: () => Effect.succeed(false),
                  NotLeader: () => Effect.succeed(false),
                  BackendUnavailable: () => Effect.succeed(false)
                })
              )
            if (revoked) return
          }
        })
    })
    .start()
}
