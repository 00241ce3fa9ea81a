/** Participants that only some runs have. They live in the harness, and reach the services through links of their own. */
import { Clock, Context, Effect, Schedule, type Scope } from "effect"
import type { HttpClient } from "effect/http"
import { LockKey, OwnerId } from "../core/lock/Lock.ts"
import { LockApi } from "../core/lock/LockApi.ts"
import { defaults } from "../core/Settings.ts"
import type { Marks } from "../sim/Marks.ts"
import { PaymentResource } from "../core/payment/PaymentResource.ts"
import { PayoutId } from "../core/payment/Payout.ts"
import { RailProxy } from "../core/rail/RailProxy.ts"
import * as HttpLockApi from "../services/api/HttpLockApi.ts"
import * as HttpPaymentResource from "../services/api/HttpPaymentResource.ts"
import * as HttpRailProxy from "../services/api/HttpRailProxy.ts"
import { Operator } from "../services/operator/Locks.ts"
import * as Payouts from "../services/operator/Payouts.ts"
import * as LockClient from "../services/lock-client/LockClient.ts"
import { tapTime } from "./HttpTap.ts"
import { lab, type ProcessWorld } from "./ProcessWorld.ts"
import { HarnessError, waitUntil } from "./Processes.ts"

/** What an actor has to do with. */
export interface Stage {
  readonly world: ProcessWorld
  readonly marks: Marks
  /** Lock keys of the payouts' accounts. */
  readonly keys: ReadonlyArray<string>
  readonly accounts: ReadonlySet<string>
  readonly say: (text: string) => Effect.Effect<void>
  /** What is measured, by name. */
  readonly figures: Map<string, number>
}

/** A failure of ours in a few words; tokens are bigint, which JSON has no word for. */
const words = (cause: object): string =>
  JSON.stringify(cause, (_, value: unknown) => (typeof value === "bigint" ? String(value) : value))

type Act = Effect.Effect<void, HarnessError, Scope.Scope | HttpClient.HttpClient>

const client = Effect.fnUntraced(function* (
  { world }: Stage,
  name: string,
  attempts: number,
  ttlMillis: number = lab.ttlMillis
) {
  const url = yield* world.url(name, "lock-server")
  const api = yield* HttpLockApi.make({ url, callTimeoutMillis: 1_500 })
  return yield* LockClient.make({
    ownerId: OwnerId.make(name),
    settings: {
      ...defaults.client,
      safetyMarginMillis: lab.marginMillis,
      callTimeoutMillis: 1_500,
      retry: { baseMillis: 50, capMillis: 200, attempts }
    },
    sessionTtlMillis: ttlMillis,
    lockTtlMillis: ttlMillis
  }).pipe(Effect.provideService(LockApi, api))
})

const key = (name: string) => LockKey.make(name)

/** V1 is in before anybody works and stays a while; V2 gives up within its bound; V3 waits in the server's line. */
export const visitors = (stage: Stage, inside: Effect.Effect<void>): Act =>
  Effect.gen(function* () {
    const [wanted = ""] = stage.keys
    const [v1, v2, v3] = yield* Effect.all([
      client(stage, "v1", 5, 15_000),
      client(stage, "v2", 3),
      client(stage, "v3", 1, 15_000)
    ])
    const first = v1
      .withLock(key(wanted))((lock) =>
        Effect.gen(function* () {
          yield* inside
          yield* Effect.sleep("1800 millis")
          yield* lock.checkStillHeld
          return lock.token
        })
      )
      .pipe(Effect.tap(() => Effect.sync(() => stage.marks.hit("a visitor was let in"))))
    const second = Effect.sleep("300 millis").pipe(
      Effect.andThen(v2.withLock(key(wanted))(() => Effect.void)),
      Effect.catchTag("ContentionExceeded", () => Effect.sync(() => stage.marks.hit("a visitor gave up")))
    )
    const third = Effect.sleep("300 millis").pipe(
      Effect.andThen(v3.withLock(key(wanted), { waitMillis: 20_000 })((lock) => Effect.succeed(lock.token)))
    )
    const [before, , after] = yield* Effect.all([first, second, third], { concurrency: "unbounded" })
    if (after <= before) {
      return yield* new HarnessError({ step: "visitors", message: `V3 got ${after} after V1's ${before}` })
    }
    stage.marks.hit("a visitor was let in")
  }).pipe(Effect.mapError((cause) => new HarnessError({ step: "visitors", message: words(cause) })))

const firstStopped = (world: ProcessWorld) =>
  waitUntil(
    "w1 is stopped",
    Effect.sync(() => world.spans.some(({ kind, lane }) => lane === "w1" && kind === "pause")),
    "120 seconds"
  )

/** Sees that W1 is stopped and holds the lock, and takes it away. */
const operator = ({ keys, marks, say, world }: Stage): Act =>
  Effect.gen(function* () {
    yield* firstStopped(world)
    const [wanted = ""] = keys
    const url = `${yield* world.url("operator", "lock-server")}/v1/locks/${encodeURIComponent(wanted)}`
    const { managementUrl } = yield* world.at("lock-server")
    const answer = yield* world.ask(
      "POST",
      `${url}/revoke`,
      { operator: "operator", reason: "its holder does not answer" },
      `revoke-${Math.floor(tapTime())}`
    )
    yield* say(`the operator has taken the lock away: ${answer}`)
    const record = yield* world.ask("GET", `${managementUrl}/admin/locks/${encodeURIComponent(wanted)}`)
    if (!record.includes("its holder does not answer")) {
      return yield* new HarnessError({ step: "operator", message: `no trace of the revocation: ${record}` })
    }
    marks.hit("lock revoked")
  })

/** Sees that W1 is stopped, and cancels its payout as soon as the account's lock can be had. */
const canceller = (stage: Stage): Act =>
  Effect.gen(function* () {
    const { accounts, say, world } = stage
    const name = "canceller"
    yield* firstStopped(world)
    const [payout] = yield* world.states(accounts)
    const context = Context.make(LockClient.LockClient, yield* client(stage, name, 10)).pipe(
      Context.add(
        PaymentResource,
        yield* HttpPaymentResource.make({ url: yield* world.url(name, "payment-resource"), callTimeoutMillis: 1_500 })
      ),
      Context.add(
        RailProxy,
        yield* HttpRailProxy.make({
          url: yield* world.url(name, "rail-proxy"),
          callTimeoutMillis: 1_500,
          railTimeoutMillis: lab.railTimeoutMillis
        })
      ),
      Context.add(Operator, { name, actor: OwnerId.make(name) })
    )
    const { state } = yield* Payouts.cancel(
      PayoutId.make(payout?.payoutId ?? ""),
      "the customer has thought better of it"
    ).pipe(
      Effect.provideContext(context),
      Effect.retry({
        // Until the stopped holder's lease has run out.
        while: ({ _tag }) => _tag === "ContentionExceeded" || _tag === "LockUnavailable",
        schedule: Schedule.spaced("200 millis")
      }),
      Effect.timeout("60 seconds"),
      Effect.mapError((cause) => new HarnessError({ step: name, message: words(cause) }))
    )
    yield* say(`the operator has cancelled the payout: it is ${state}`)
  })

/** Holds one lock, and takes and frees another all the time, until it is interrupted. */
const prober = (stage: Stage): Act =>
  Effect.gen(function* () {
    // Longer than any failover: that it is forgotten is what would be wrong.
    const locks = yield* client(stage, "prober", 1, 15_000)
    const figures = stage.figures
    const probe = `probe:${stage.keys[0] ?? ""}`
    let lastAt = tapTime()
    const held = locks
      .withLock(key(`${probe}:held`))((lock) =>
        Effect.gen(function* () {
          yield* waitUntil(
            "the backend has failed over",
            Effect.sync(() =>
              stage.world.spans.some(({ kind, lane, to }) => lane === "lockdb" && kind === "down" && to < Infinity)
            ),
            "60 seconds"
          )
          yield* Effect.retry(lock.renew, {
            while: ({ _tag }) => _tag === "LockUnavailable",
            schedule: Schedule.spaced("50 millis")
          })
          stage.marks.hit("an acknowledged grant outlived the failover")
        })
      )
      .pipe(Effect.mapError((cause) => new HarnessError({ step: "the prober holds its lock", message: words(cause) })))
    const busy = locks
      .withLock(key(`${probe}:busy`), { timeoutMillis: 1_600 })(() =>
        Effect.sync(() => {
          const now = tapTime()
          figures.set("longest outage ms", Math.max(figures.get("longest outage ms") ?? 0, Math.round(now - lastAt)))
          lastAt = now
        })
      )
      .pipe(Effect.ignore, Effect.andThen(Effect.sleep("40 millis")), Effect.forever)
    yield* Effect.raceFirst(held, busy)
  })

const backlogAge = /^payout_backlog_age_seconds(?:\{[^}]*\})? ([0-9.e+-]+)/m

/** Looks at the backlog until it has seen it grow older by a second and a half. */
const watcher = ({ figures, marks, world }: Stage): Act =>
  Effect.gen(function* () {
    const { managementUrl } = yield* world.at("payment-resource")
    let least = Infinity
    const until = (yield* Clock.currentTimeMillis) + 60_000
    while ((yield* Clock.currentTimeMillis) < until) {
      const age = Number(backlogAge.exec(yield* world.ask("GET", `${managementUrl}/actuator/prometheus`))?.[1] ?? NaN)
      if (age > 0) least = Math.min(least, age)
      if (age - least >= 1.5) {
        figures.set("oldest backlog ms", Math.round(age * 1_000))
        marks.hit("the backlog grew older")
        return
      }
      yield* Effect.sleep("300 millis")
    }
  })

/** By the names that a plan has for them. */
export const actors = { operator, canceller, prober, watcher }
