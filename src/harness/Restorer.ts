/**
 * Takes lockdb back to an old copy while payouts are made, and then does what docs/operations.md tells an operator:
 *
 *     copy ── tokens 1..100 are spent ── payouts under 101, 102 ── killed, put back ── 1, 2, .. are granted again: FENCED_OUT
 *         ── every lock-server stopped ── tokens floor: exit code 5 ── tokens floor --raise ── payouts under 10^9 + ..
 *
 * Every grant of a worker that is refused spends a token, so tokens that are only a little too low mend themselves while
 * nobody looks; hence the 100.
 */
import { Effect, Redacted, type Scope } from "effect"
import type { HttpClient } from "effect/http"
import { LockKey, OwnerId } from "../core/lock/Lock.ts"
import * as HttpLockApi from "../services/api/HttpLockApi.ts"
import { exitCodes } from "../services/platform/ExitCodes.ts"
import type { Stage } from "./Actors.ts"
import type { Dealt } from "./Dealing.ts"
import { tapTime } from "./HttpTap.ts"
import { HarnessError, waitUntil } from "./Processes.ts"
import type { ProcessWorld } from "./ProcessWorld.ts"
import type { Span } from "./World.ts"

export interface RestorerStage extends Stage {
  /** One more payout of the nth account. */
  readonly order: (n: number) => Effect.Effect<void, HarnessError>
  /** What was done, and how it was seen to have taken. */
  readonly dealt: (fault: Dealt) => void
}

const SPENT = 100
/** For what has to happen on a machine that may be busy; what never happens is a promise that is not kept. */
const patience = "45 seconds"

export const restorer = (
  stage: RestorerStage,
  ready: Effect.Effect<void>
): Effect.Effect<void, HarnessError, Scope.Scope | HttpClient.HttpClient> =>
  Effect.gen(function* () {
    const { keys, marks, order, say, world } = stage
    const accounts = new Set(keys.map((key) => key.slice(key.indexOf(":") + 1)))
    const posted = Effect.map(world.states(accounts), (all) => all.filter(({ state }) => state === "POSTED").length)

    const backup = world.backend.backup
    if (backup === undefined) {
      return yield* new HarnessError({ step: "restorer", message: "the lock backend's data are not in our hands" })
    }
    yield* say(yield* backup.take)
    const copiedAt = tapTime()
    yield* spend(stage)
    yield* ready
    yield* waitUntil(
      "the first payouts are posted",
      Effect.map(posted, (count) => count >= accounts.size),
      "120 seconds"
    )
    yield* world.stop("lock-server")
    const diedAt = tapTime()
    const proof = yield* backup.putBack
    const since = tapTime()
    const text = "put back to its copy"
    const rewound: Span = { lane: "lockdb", kind: "rewound", from: since, to: Infinity, text }
    world.note({ lane: "lockdb", kind: "down", from: diedAt, to: since, text: `killed and ${text}` })
    world.note({ lane: "lockdb", kind: "forgotten", from: copiedAt, to: since, text })
    world.note(rewound)
    const highest = world.calls.reduce(
      (most, { label, status, token }) =>
        /^pay\.(claim|post)$/.test(label) && status === 200 && token !== null && token > most ? token : most,
      0n
    )
    yield* say(proof)
    yield* world.start("lock-server")
    yield* Effect.forEach(accounts, (_, n) => order(n + 1), { discard: true })

    const granted = () =>
      world.calls.find(
        ({ called, granted: token, key, label }) =>
          label === "lock.acquire" && called >= since && token !== null && key !== null && keys.includes(key)
      )
    yield* whether(
      "a worker is granted a lock again",
      Effect.sync(() => granted() !== undefined)
    )
    const token = granted()?.granted ?? null
    const seen = token !== null && token <= highest ? `${token} is granted, and ${highest} was spent` : undefined
    stage.dealt({ fault: "the lock backend is put back to an old copy", proof: seen })
    yield* say(`tokens went back: ${seen ?? "NOT SEEN"}`)
    if (seen !== undefined) marks.hit("tokens went back")
    if (yield* whether("a worker says that tokens went back", saidSo(stage))) marks.hit("told token regression")
    if ((yield* posted) === accounts.size) marks.hit("payouts waited")

    yield* world.stop("lock-server")
    const before = yield* operate(world, ["tokens", "floor", "--json"])
    const raise = yield* operate(world, ["tokens", "floor", "--raise", "--yes", "--json"])
    yield* say(`tokens floor ended with exit code ${before}, tokens floor --raise with ${raise}`)
    if (before === exitCodes.findings && raise === 0) {
      rewound.to = tapTime()
      marks.hit("the floor was raised")
    }
    yield* world.start("lock-server")
  })

/** An operator's command as a process, with the settings of who may migrate both databases; answers its exit code. */
const operate = Effect.fnUntraced(function* (
  { backend, paydb, processes }: ProcessWorld,
  command: ReadonlyArray<string>
) {
  const running = yield* processes.start(command.join(" "), command, {
    ...backend.settings(yield* backend.ports),
    PAYMENT_PG_URL: Redacted.value(paydb)
  })
  // Ten seconds each, on a machine that may be busy.
  yield* Effect.retry(running.awaitEnded, { times: 5 })
  return yield* running.stop
}, Effect.scoped)

/** What never comes is no failure of the experiment: the mark that depends on it is missing then. */
const whether = <E>(description: string, condition: Effect.Effect<boolean, E>) =>
  waitUntil(description, condition, patience).pipe(
    Effect.as(true),
    Effect.orElseSucceed(() => false)
  )

const counted = /^lock_token_regression_total(?:\{[^}]*\})? ([1-9][0-9]*)/m

/** In its log, and in the metric that somebody is paged for. */
const saidSo = ({ world }: Stage) =>
  Effect.gen(function* () {
    const name = [...world.running().keys()].find(
      (one) => /^w\d+$/.test(one) && world.logOf(one).some((record) => record["event"] === "token_regression")
    )
    if (name === undefined) return false
    const { managementUrl } = yield* world.at(name)
    return counted.test(yield* world.ask("GET", `${managementUrl}/actuator/prometheus`))
  })

/** Tokens that are granted after the copy. Straight to the service: what is spent here is no part of the run. */
const spend = Effect.fnUntraced(function* ({ keys, world }: Stage) {
  const { url } = yield* world.at("lock-server")
  const locks = yield* HttpLockApi.make({ url, callTimeoutMillis: 1_500 })
  const ownerId = OwnerId.make("restorer")
  const key = LockKey.make(`spent:${keys[0]}`)
  let first: bigint | undefined
  let last = 0n
  yield* Effect.gen(function* () {
    // The server has just been away: who comes first may be refused.
    const { sessionId } = yield* locks.openSession({ ownerId, ttlMillis: 60_000 })
    while (first === undefined || last < first + BigInt(SPENT)) {
      const { token } = yield* locks.acquire({ key, ownerId, sessionId, waitMillis: 5_000 })
      first ??= token
      last = token
      yield* locks.release({ key, ownerId, token })
    }
    yield* locks.closeSession(sessionId, ownerId)
  }).pipe(
    Effect.tapError(() => Effect.sleep("300 millis")),
    Effect.retry({ times: 20 }),
    Effect.mapError(({ _tag, message }) => new HarnessError({ step: "spend tokens", message: `${_tag} ${message}` }))
  )
})
