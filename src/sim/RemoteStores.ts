/**
 * The fake stores as a service finds them: on another machine. Each operation is one transaction that commits when its
 * request is its turn there; the answer may be late, lost, or never come, and the commit stands all the same.
 *
 * Every commit is told to the recorder in commit order.
 */
import { Context, Effect, Exit, Scheduler, Stream } from "effect"
import type { LockStore } from "../core/lock/LockStore.ts"
import { type BackendUnavailable, backendUnavailable } from "../core/lock/LockErrors.ts"
import { RailAmbiguous } from "../core/payment/PaymentErrors.ts"
import type { ProtectedWrite } from "../core/payment/PaymentResource.ts"
import type { PaymentStore } from "../core/payment/PaymentStore.ts"
import type { SubmissionStore } from "../core/rail/SubmissionStore.ts"
import { TraceId } from "../core/TraceId.ts"
import { dotted } from "./Draw.ts"
import type { Node, Process } from "./Node.ts"
import type { LockCommit } from "./Oracle.ts"
import type { Recorder } from "./Recorder.ts"
import type { CallFailed, SimNetwork } from "./SimNetwork.ts"

/** A process's connection to a database. */
export interface Connection {
  readonly network: SimNetwork
  readonly process: Process
  readonly database: Node
  readonly timeoutMillis: number
}

/**
 * What a store finds around itself while it commits. It draws nothing and no request has a trace, so that the same commit
 * has the same effect in every run.
 */
const inStore: Context.Context<never> = Context.make(TraceId, "0".repeat(32)).pipe(
  // One for all commits, so that their fibers share what they look up in the context.
  Context.add(Scheduler.Scheduler, {
    executionMode: "sync",
    shouldYield: () => false,
    makeDispatcher: () => {
      throw new Error("a commit waits")
    }
  })
)

const runInStore = Effect.runForkWith(inStore)

export const commitNow = <A, E>(effect: Effect.Effect<A, E>): Exit.Exit<A, E> =>
  runInStore(effect).pollUnsafe() ?? Exit.die("a commit waits")

const transact = <A, E, F>(
  { database, network, process, timeoutMillis }: Connection,
  operation: string,
  commit: () => Exit.Exit<A, E>,
  unanswered: (reason: CallFailed["reason"]) => F
): Effect.Effect<A, E | F> =>
  network.transact(process, database, dotted(database.name, operation), commit, { timeoutMillis, unanswered })

const ask = <A, E>(
  connection: Connection,
  operation: string,
  commit: () => Exit.Exit<A, E>
): Effect.Effect<A, E | BackendUnavailable> =>
  transact(connection, operation, commit, (reason) => backendUnavailable(operation, reason))

export const lockStoreAt = (
  connection: Connection,
  store: LockStore["Service"],
  recorder: Recorder
): LockStore["Service"] => {
  const commit =
    <A, E>(what: LockCommit, effect: Effect.Effect<A, E>) =>
    (): Exit.Exit<A, E> => {
      const now = recorder.lockTime()
      const answer = commitNow(effect)
      recorder.lockCommit(what, answer, now)
      return answer
    }
  const read = <A, E>(operation: string, effect: Effect.Effect<A, E>) =>
    ask(connection, operation, () => commitNow(effect))
  return {
    openSession: (request) =>
      ask(connection, "openSession", commit({ op: "openSession", request }, store.openSession(request))),
    heartbeat: (sessionId, ownerId) =>
      ask(
        connection,
        "heartbeat",
        commit({ op: "heartbeat", sessionId, ownerId }, store.heartbeat(sessionId, ownerId))
      ),
    closeSession: (sessionId, ownerId) =>
      ask(
        connection,
        "closeSession",
        commit({ op: "closeSession", sessionId, ownerId }, store.closeSession(sessionId, ownerId))
      ),
    tryAcquire: (request) =>
      ask(connection, "tryAcquire", commit({ op: "tryAcquire", request }, store.tryAcquire(request))),
    renew: (key, ownerId, token, ttlMillis) =>
      ask(
        connection,
        "renew",
        commit({ op: "renew", key, ownerId, token, ttlMillis }, store.renew(key, ownerId, token, ttlMillis))
      ),
    release: (key, ownerId, token) =>
      ask(
        connection,
        "release",
        commit({ op: "release", key, ownerId, token, ttlMillis: 0 }, store.release(key, ownerId, token))
      ),
    revoke: (request) => ask(connection, "revoke", commit({ op: "revoke", request }, store.revoke(request))),
    inspect: (key) => read("inspect", store.inspect(key)),
    record: (key) => read("record", store.record(key)),
    records: (page) => read("records", store.records(page)),
    sessions: (page) => read("sessions", store.sessions(page)),
    sweep: read("sweep", store.sweep),
    // A hint that may be missing; and a stream must not be shared by two nodes.
    changes: Stream.never,
    ping: read("ping", store.ping)
  }
}

export const paymentStoreAt = (
  connection: Connection,
  store: PaymentStore["Service"],
  recorder: Recorder
): PaymentStore["Service"] => {
  const read = <A, E>(operation: string, effect: Effect.Effect<A, E>) =>
    ask(connection, operation, () => commitNow(effect))
  const write =
    <Request extends ProtectedWrite, A, E>(operation: string, run: (request: Request) => Effect.Effect<A, E>) =>
    (request: Request) =>
      ask(connection, operation, () => fencedCommit(recorder, "resource", operation, request, run(request)))
  return {
    listPayouts: (query) => read("listPayouts", store.listPayouts(query)),
    readPayout: (payoutId) => read("readPayout", store.readPayout(payoutId)),
    createPayout: (order) => read("createPayout", store.createPayout(order)),
    claim: write("claim", store.claim),
    post: write("post", store.post),
    fail: write("fail", store.fail),
    ambiguous: write("ambiguous", store.ambiguous),
    resolve: write("resolve", store.resolve),
    readAccount: (accountId) => read("readAccount", store.readAccount(accountId)),
    readLedger: (query) => read("readLedger", store.readLedger(query)),
    createAccount: (request) => read("createAccount", store.createAccount(request)),
    readHistory: (payoutId) => read("readHistory", store.readHistory(payoutId)),
    backlog: read("backlog", store.backlog),
    ping: read("ping", store.ping),
    guards: read("guards", store.guards)
  }
}

export const submissionStoreAt = (
  connection: Connection,
  store: SubmissionStore["Service"],
  recorder: Recorder
): SubmissionStore["Service"] => {
  const read = <A, E>(operation: string, effect: Effect.Effect<A, E>) =>
    ask(connection, operation, () => commitNow(effect))
  return {
    recordIntent: (request) =>
      transact(
        connection,
        "recordIntent",
        () => fencedCommit(recorder, "rail", "submit", request, store.recordIntent(request)),
        // Refused, it was never asked; else the intent may be, or become, committed.
        (reason) =>
          reason === "refused"
            ? backendUnavailable("submit", reason)
            : new RailAmbiguous({ payoutId: request.payoutId, outcome: "INTENT" })
      ),
    recordOutcome: (submissionId, outcome, detail) =>
      read("recordOutcome", store.recordOutcome(submissionId, outcome, detail)),
    read: (payoutId) => read("readSubmission", store.read(payoutId)),
    seal: (request) =>
      ask(connection, "seal", () => fencedCommit(recorder, "rail", "void", request, store.seal(request))),
    beginLookup: (payoutId) => read("beginLookup", store.beginLookup(payoutId)),
    recordLookup: (finding) => read("recordLookup", store.recordLookup(finding)),
    recordEvidence: (request) =>
      ask(connection, "recordEvidence", () =>
        fencedCommit(recorder, "rail", "evidence", request, store.recordEvidence(request))
      ),
    ping: read("ping", store.ping),
    guards: read("guards", store.guards)
  }
}

const fencedCommit = <A, E>(
  recorder: Recorder,
  point: "resource" | "rail",
  op: string,
  request: ProtectedWrite,
  effect: Effect.Effect<A, E>
): Exit.Exit<A, E> => {
  const account = recorder.paydb?.payouts.get(request.payoutId)?.accountId
  const before = { rows: recorder.rows(), highest: account === undefined ? 0n : recorder.fenceOf(point, account) }
  const answer = commitNow(effect)
  recorder.fenced(point, op, request, answer, before)
  return answer
}
