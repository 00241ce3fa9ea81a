import { describe, it } from "@effect/vitest"
import { Context, Effect, Layer, Redacted } from "effect"
import { LockStore } from "../../../src/core/lock/LockStore.ts"
import * as TcpFaults from "../../../src/harness/TcpFaults.ts"
import * as PgLockStore from "../../../src/services/lock-server/PgLockStore.ts"
import * as Migrations from "../../../src/services/platform/Migrations.ts"
import { loseEach, type LossyWorld, orphanEnds, writes } from "../../support/lostAnswers.ts"
import { TestDatabase } from "../../support/pg.ts"

const database = TestDatabase.layer("lockdb", (url) => Migrations.migrate({ url, directory: PgLockStore.MIGRATIONS }))

const storeOn = (url: Redacted.Redacted, timeoutMillis: number) =>
  Effect.map(Layer.build(PgLockStore.layer({ url, timeoutMillis })), (context) => Context.get(context, LockStore))

const world = Effect.fnUntraced(function* (timeoutMillis: number) {
  const { url } = yield* TestDatabase
  const target = new URL(Redacted.value(url))
  const faults = yield* TcpFaults.start({ target: { port: Number(target.port) }, answers: "postgres" })
  target.port = String(faults.port)
  const made: LossyWorld = {
    faults,
    lossy: yield* storeOn(Redacted.make(target.href), timeoutMillis),
    sound: yield* storeOn(url, 10_000),
    lateMillis: timeoutMillis + 300
  }
  return made
})

describe("PgLockStore when answers are lost", () => {
  it.layer(database, { excludeTestServices: true, timeout: "60 seconds" })((it) => {
    it.effect(
      "every write ends with the truth or as unknown, and its repeat gives the first answer",
      () =>
        Effect.gen(function* () {
          const lost = yield* Effect.forEach(
            Object.entries(writes),
            ([name, write]) =>
              world(700).pipe(
                Effect.flatMap((lossy) => loseEach(lossy, name, write)),
                Effect.scoped,
                Effect.map((result) => `${name} ${result.lost}, of which unknown ${result.unknown}`)
              ),
            { concurrency: 7 }
          )
          yield* Effect.logInfo(`answers lost: ${lost.join("; ")}`)
        }),
      90_000
    )

    it.effect("a grant that nobody was told of ends with its lease", () =>
      Effect.flatMap(world(2_000), (lossy) => orphanEnds(lossy, 2_000, 1_500)).pipe(Effect.scoped)
    )
  })
})
