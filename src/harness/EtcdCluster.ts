/**
 * Three etcd members on loopback, each of which can be killed, paused and brought back.
 *
 * Durable (fsync on) unless `fast`; elections within a second, as the members of `EmbeddedEtcd` are set.
 */
import { noop } from "cockatiel"
import { Effect, Random, type Scope } from "effect"
import { Etcd3 } from "etcd3"
import * as EmbeddedEtcd from "../services/platform/EmbeddedEtcd.ts"

export interface EtcdMember extends EmbeddedEtcd.EmbeddedEtcd {
  readonly name: string
}

export interface EtcdCluster {
  readonly endpoints: ReadonlyArray<string>
  readonly members: ReadonlyArray<EtcdMember>
  /** The member that leads, by the word of one that follows it or is it; undefined while there is none. */
  readonly leader: Effect.Effect<EtcdMember | undefined>
}

export interface EtcdClusterOptions {
  /** Default: 3. */
  readonly size?: number
  /** No fsync: for tests that never kill a member. */
  readonly fast?: boolean
  readonly flags?: Readonly<Record<string, string>>
}

export const start = Effect.fnUntraced(function* (
  options: EtcdClusterOptions = {}
): Effect.fn.Return<EtcdCluster, EmbeddedEtcd.EmbeddedEtcdError, Scope.Scope> {
  const names = Array.from({ length: options.size ?? 3 }, (_, i) => `etcd-${i + 1}`)
  yield* EmbeddedEtcd.install
  const ports = yield* Effect.forEach(names, () => EmbeddedEtcd.freePorts).pipe(
    // Each was free, but two may have drawn the same one.
    Effect.repeat({ until: (all) => new Set(all.flatMap((one) => Object.values(one))).size === 3 * all.length })
  )
  const token = yield* Random.nextIntBetween(0, Number.MAX_SAFE_INTEGER)
  const cluster = names.map((name, i) => `${name}=http://127.0.0.1:${ports[i]?.peer}`).join(",")
  const members = yield* Effect.forEach(
    names,
    (name, i) =>
      Effect.map(
        EmbeddedEtcd.start({
          storage: { kind: "temporary" },
          ...(ports[i] === undefined ? {} : { ports: ports[i] }),
          ...(options.fast === undefined ? {} : { fast: options.fast }),
          flags: { name, "initial-cluster": cluster, "initial-cluster-token": `dlock-${token}`, ...options.flags }
        }),
        (member): EtcdMember => ({ name, ...member })
      ),
    // None is ready before a majority is.
    { concurrency: "unbounded" }
  )
  const clients = yield* Effect.forEach(members, ({ endpoint }) =>
    Effect.acquireRelease(
      Effect.sync(() => new Etcd3({ hosts: endpoint, faultHandling: { global: noop, host: () => noop } })),
      (client) => Effect.sync(() => client.close())
    )
  )
  // A member that is cut off or paused answers old news or nothing; the highest term is that of the last election.
  const leader = Effect.map(
    Effect.forEach(
      clients,
      (client) =>
        Effect.tryPromise(() => client.maintenance.status()).pipe(Effect.timeoutOption("500 millis"), Effect.option),
      { concurrency: "unbounded" }
    ),
    (statuses) => {
      const answers = statuses.map((status) =>
        status._tag === "Some" && status.value._tag === "Some" ? status.value.value : undefined
      )
      const terms = answers.flatMap((answer) => (answer === undefined ? [] : [BigInt(answer.header.raft_term)]))
      const last = terms.reduce((greatest, term) => (term > greatest ? term : greatest), 0n)
      const index = answers.findIndex(
        (answer) =>
          answer !== undefined &&
          BigInt(answer.header.raft_term) === last &&
          answer.leader !== "0" &&
          answer.leader === answer.header.member_id
      )
      return members[index]
    }
  )
  return { endpoints: members.map(({ endpoint }) => endpoint), members, leader }
})
