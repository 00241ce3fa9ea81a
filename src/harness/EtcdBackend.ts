/** etcd as the lock backend of an experiment: one member or three, its outages, and everything that was ever written to it. */
import { noop } from "cockatiel"
import { Effect, Scope } from "effect"
import { Etcd3 } from "etcd3"
import type { LockEvent } from "../core/History.ts"
import { layout, readEnded, readStored } from "../services/lock-server/EtcdLayout.ts"
import * as EmbeddedEtcd from "../services/platform/EmbeddedEtcd.ts"
import * as DataCopy from "./DataCopy.ts"
import * as EtcdCluster from "./EtcdCluster.ts"
import { tapTime } from "./HttpTap.ts"
import { concerning, gone, type LockBackend, wrong } from "./LockBackends.ts"
import { HarnessError, waitUntil } from "./Processes.ts"

/** Everything is kept: the harness reads the whole history. */
const flags = { "auto-compaction-retention": "0" }

export const start = (replicated: boolean) =>
  Effect.gen(function* () {
    const cluster = replicated
      ? yield* EtcdCluster.start({ flags })
      : yield* Effect.map(
          EmbeddedEtcd.start({ storage: { kind: "temporary" }, flags }),
          (one): EtcdCluster.EtcdCluster => {
            const member = { name: "etcd", ...one }
            return { endpoints: [one.endpoint], members: [member], leader: Effect.succeed(member) }
          }
        )
    const [only] = cluster.members
    const copy = replicated || only === undefined ? undefined : yield* DataCopy.of(only)
    const scope = yield* Effect.scope
    /** What was followed until its life was taken back, and what is followed now. */
    const lives = [yield* follow(cluster.endpoints)]
    const down = new Set<EtcdCluster.EtcdMember>()
    let before: string | undefined
    return {
      kind: "etcd",
      replicated,
      ports: Effect.succeed(cluster.members.map(({ ports }) => ports.client)),
      settings: (ports) => ({
        LOCK_BACKEND: "etcd",
        LOCK_ETCD_ENDPOINTS: ports.map((port) => `http://127.0.0.1:${port}`).join(",")
      }),
      kill: Effect.gen(function* () {
        const leader = yield* cluster.leader
        if (leader === undefined) return yield* new HarnessError({ step: "kill the leader", message: "there is none" })
        const pid = yield* leader.pid
        yield* leader.kill
        yield* gone(`etcd's leader ${leader.name}`, leader.pid)
        down.add(leader)
        before = leader.name
        return `etcd's leader ${leader.name} (${pid}) is gone`
      }).pipe(Effect.mapError(wrong("kill etcd"))),
      recover: Effect.gen(function* () {
        if (replicated) {
          let next: string | undefined
          yield* waitUntil(
            "etcd has another leader",
            Effect.map(cluster.leader, (leader) => {
              next = leader?.name
              return next !== undefined && next !== before
            }),
            "20 seconds"
          )
          for (const member of down) yield* member.restart
          down.clear()
          return `${next} leads now, and ${before} is back`
        }
        for (const member of down) yield* member.restart
        down.clear()
        return "etcd serves again"
      }).pipe(Effect.mapError(wrong("bring etcd back"))),
      events: (keys) =>
        Effect.map(
          Effect.forEach(lives, ({ events }) => events(keys)),
          (all) => all.flat()
        ),
      ...(copy === undefined
        ? {}
        : {
            backup: {
              take: Effect.as(copy.take, "etcd's data directory was copied while it was down").pipe(
                Effect.mapError(wrong("copy etcd's data"))
              ),
              putBack: Effect.gen(function* () {
                const pid = yield* copy.pid
                // Its client would go on behind the last revision that it has seen, which is yet to come again.
                yield* lives.at(-1)?.end ?? Effect.void
                yield* copy.putBack
                const next = yield* follow(cluster.endpoints, "now").pipe(Effect.provideService(Scope.Scope, scope))
                lives.push(next)
                return `etcd ${pid} was killed, ${yield* copy.pid} serves from the copy`
              }).pipe(Effect.mapError(wrong("put etcd back to its copy")))
            }
          })
    } satisfies LockBackend
  })

export const followEtcd = (endpoints: ReadonlyArray<string>) => Effect.map(follow(endpoints), ({ events }) => events)

/**
 * Every write to etcd from the first on, or from now on, in the order of revisions. etcd keeps no time, so an event has that of its arrival
 * here. What deleted a lock is told by another key, in the same transaction or, for what ended by itself, later.
 */
const follow = Effect.fnUntraced(function* (endpoints: ReadonlyArray<string>, from: "first" | "now" = "first") {
  const at = layout("/dlock/")
  const connect = Effect.acquireRelease(
    Effect.sync(() => new Etcd3({ hosts: [...endpoints], faultHandling: { global: noop, host: () => noop } })),
    (client) => Effect.sync(() => client.close())
  )
  const client = yield* connect
  const events: Array<{ -readonly [Name in keyof LockEvent]: LockEvent[Name] }> = []
  const live = new Map<string, { readonly token: bigint; readonly sessionId: string; readonly ownerId: string }>()
  let seen = 0n
  const add = (kind: LockEvent["kind"], fields: Partial<LockEvent>) =>
    events.push({
      kind,
      at: Math.floor(tapTime()),
      key: null,
      token: null,
      sessionId: null,
      ownerId: "",
      expiresAt: null,
      ...fields
    } as LockEvent)
  const after = (name: string, prefix: string) => (name.startsWith(prefix) ? name.slice(prefix.length) : undefined)
  const revisionNow = Effect.map(
    Effect.tryPromise({
      try: () => client.getAll().prefix("/dlock/").limit(1).exec(),
      catch: wrong("read etcd's revision")
    }),
    ({ header }) => BigInt(header.revision)
  )
  const start = from === "first" ? 1n : (yield* revisionNow) + 1n
  const watcher = yield* Effect.acquireRelease(
    Effect.tryPromise({
      try: () => client.watch().prefix("/dlock/").startRevision(String(start)).create(),
      catch: wrong("watch etcd")
    }),
    (one) => Effect.ignore(Effect.tryPromise(() => one.cancel()))
  )
  watcher.on("error", () => {})
  watcher.on("data", (response) => {
    for (const { kv, type } of response.events) {
      const name = kv.key.toString()
      const revision = BigInt(kv.mod_revision)
      if (revision > seen) seen = revision
      const key = after(name, at.lock(""))
      const ended = after(name, "/dlock/ended/")
      if (key !== undefined && type === "Put") {
        const stored = readStored(kv)
        if (stored === undefined) continue
        const { ownerId, sessionId } = stored.grant
        live.set(key, { token: stored.token, sessionId, ownerId })
        add("granted", { key, token: stored.token, sessionId, ownerId } as Partial<LockEvent>)
      } else if (key !== undefined) {
        const grant = live.get(key)
        live.delete(key)
        if (grant !== undefined) add("expired", { key, ...grant } as Partial<LockEvent>)
      } else if (ended !== undefined && type === "Put") {
        const told = readEnded(kv)
        const token = BigInt(ended.slice(ended.lastIndexOf("/") + 1))
        const event = events.findLast((one) => one.kind !== "granted" && one.token === token)
        if (told !== undefined && event !== undefined) event.kind = told.end
      }
      // Its leased twin is what counts: with it the session is over.
      const over = after(name, at.session(""))
      if (over !== undefined && type === "Delete") add("session_ended", { sessionId: over } as Partial<LockEvent>)
    }
  })
  const caughtUp = Effect.gen(function* () {
    // The newest revision may be of a key outside, or of none: what there is below it has then long arrived.
    const revision = yield* revisionNow
    yield* waitUntil(
      "the watch has caught up",
      Effect.sync(() => seen >= revision),
      "5 seconds"
    ).pipe(Effect.catchTag("HarnessError", () => Effect.void))
  })
  let ended = false
  return {
    events: (keys: ReadonlySet<string>): Effect.Effect<ReadonlyArray<LockEvent>, HarnessError> =>
      Effect.map(
        Effect.suspend(() => (ended ? Effect.void : caughtUp)),
        () => concerning(events, keys)
      ),
    /** Nothing more is followed; what was seen stays. */
    end: Effect.andThen(
      caughtUp,
      Effect.promise(() => {
        ended = true
        return watcher.cancel().catch(() => undefined)
      })
    )
  }
})
