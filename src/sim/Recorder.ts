/**
 * What a run leaves behind for its judges: the stores' commits in commit order, the clients' calls and answers, who was
 * inside a critical section, and what somebody believed against what was true. It watches from outside: at the ports of the
 * programs and at the stores, never inside a program.
 */
import { Clock, Context, Exit, Option } from "effect"
import type { FenceEvent } from "../core/History.ts"
import type { LockOp } from "../core/LockHistory.ts"
import { type AccountId, lockKeyOf, type PayoutId } from "../core/payment/Payout.ts"
import { Marks } from "./Marks.ts"
import type { Node, Process } from "./Node.ts"
import { NodeClock } from "./NodeClock.ts"
import { type LockCommit, Oracle } from "./Oracle.ts"
import type { SimPaydbState } from "./SimPaydb.ts"
import type { VirtualWorld } from "./VirtualWorld.ts"

/** Something that must never happen has happened, while the run goes on. */
export interface Finding {
  readonly check: string
  readonly subject: string
  readonly detail: string
  /** Virtual microseconds. */
  readonly at: number
}

/** Something worth telling a reader, on whose lane. Kept only when the run is to be read. */
export interface Note {
  /** Virtual microseconds. */
  readonly at: number
  readonly node: string
  readonly kind: "grant" | "end" | "renew" | "fence" | "refused" | "pay" | "outcome" | "told" | "section" | "wrong"
  readonly token: bigint | null
  readonly text: string
  /** Of a grant or a renewal: until when the lease lasts. */
  readonly until?: number
}

/** A payment that has arrived at the rail: money moves here, whatever is answered. */
export interface Arrival {
  readonly at: number
  readonly clientReference: string
}

interface Section {
  readonly process: Process
  readonly key: string
  readonly token: bigint
}

/** What one incarnation of a program was told about a token, after which it must not use it any more. */
interface Told {
  readonly process: Process
  readonly token: bigint
  readonly what: "FENCED_OUT" | "LOCK_LOST"
}

export class Recorder {
  readonly world: VirtualWorld
  readonly oracle = new Oracle()
  readonly marks = new Marks()
  readonly findings: Array<Finding> = []
  readonly fences: Array<FenceEvent> = []
  readonly lockOps: Array<LockOp> = []
  readonly arrivals: Array<Arrival> = []
  /** Undefined unless the run is to be read. */
  readonly notes: Array<Note> | undefined
  /** When the run was over and only what was on its way could still happen, in virtual microseconds. */
  endedAt = Infinity
  /** Set by the cluster. */
  lockdb: Node | undefined
  paydb: SimPaydbState | undefined
  /** By token: when its lease ends, in virtual microseconds. */
  readonly leaseEnds = new Map<bigint, number>()
  /** What the store has granted, whether or not anybody was told. */
  readonly grants: Array<{
    readonly sessionId: string
    readonly key: string
    readonly acquireId: string
    readonly ttlMillis: number
  }> = []
  /** Keys for which somebody has waited in line: others are then refused although the key may just be free. */
  readonly waitedFor = new Set<string>()
  /** Processes that go on by design after they were told to stop. */
  readonly stale = new Set<string>()
  private readonly sections = new Set<Section>()
  private told: Array<Told> = []
  /** When a key was last seen to be used by somebody inside a section, in virtual microseconds. */
  private readonly leftAt = new Map<string, number>()

  constructor(world: VirtualWorld) {
    this.world = world
    this.notes = world.trace.events === undefined ? undefined : []
  }

  find(check: string, subject: string, detail: string): void {
    this.findings.push({ check, subject, detail, at: this.world.now })
    this.note(subject, "wrong", null, `${check}: ${detail}`)
  }

  note(node: string, kind: Note["kind"], token: bigint | null, text: string, until?: number): void {
    this.notes?.push({ at: this.world.now, node, kind, token, text, ...(until === undefined ? {} : { until }) })
  }

  // ---------------------------------------------------------------------------
  // lockdb
  // ---------------------------------------------------------------------------

  /** A commit of the lock store, at `now` of its clock. */
  lockCommit(commit: LockCommit, answer: Exit.Exit<unknown, unknown>, now: number): void {
    const { events } = this.oracle
    const before = events.length
    const problem = this.oracle.step(commit, answer, now)
    if (problem !== undefined) {
      const key =
        "request" in commit && "key" in commit.request ? commit.request.key : "key" in commit ? commit.key : ""
      this.find("ORACLE", key, problem)
    }
    for (let i = before; i < events.length; i++) {
      const event = events[i]!
      if (commit.op === "tryAcquire" && event.kind !== "granted") this.marks.hit("lease taken over")
      if (event.kind === "revoked") this.marks.hit("lock revoked")
    }
    if (Exit.isFailure(answer)) {
      const tag = failureTag(answer)
      if (tag === "LockContended") this.marks.hit("lock contended")
      if (tag === "SessionExpired") this.marks.hit("session expired")
      if (tag === "LockLost") this.marks.hit(`lock lost at ${commit.op}`)
      return
    }
    if (commit.op === "tryAcquire" || commit.op === "renew") {
      const grant = answer.value as { readonly token: bigint; readonly expiresAt: number }
      const rate = this.lockdb?.wallRate ?? 1
      const end = this.world.now + Math.round(((grant.expiresAt - now) * 1000) / rate)
      this.leaseEnds.set(grant.token, end)
      if ("ownerId" in commit) this.note(commit.ownerId, "renew", grant.token, `keeps token ${grant.token}`, end)
      else if (commit.op === "tryAcquire") {
        const { key, ownerId } = commit.request
        this.grants.push(commit.request)
        this.note(ownerId, "grant", grant.token, `gets the lock ${key} with token ${grant.token}`, end)
      }
    }
    if (commit.op === "release") this.note(commit.ownerId, "end", commit.token, `releases token ${commit.token}`)
    if (commit.op === "revoke") this.note(commit.request.operator, "end", null, `revokes ${commit.request.key}`)
  }

  /** The lock store's clock now. */
  lockTime(): number {
    const node = this.lockdb
    return node === undefined ? 0 : Math.floor(node.wallMicros / 1000)
  }

  // ---------------------------------------------------------------------------
  // paydb
  // ---------------------------------------------------------------------------

  /** Rows of an account's world, before and after a write: what a fence let through. */
  rows(): number {
    const db = this.paydb!
    return db.transitions.length + db.journals.length + db.submissions.length + db.lookups.length
  }

  fenceOf(point: "resource" | "rail", accountId: AccountId): bigint {
    const db = this.paydb!
    return point === "resource" ? (db.accounts.get(accountId)?.fence ?? 0n) : (db.highWater.get(accountId)?.token ?? 0n)
  }

  /** A protected write has met its fence. Repeats that changed nothing did not. */
  fenced(
    point: "resource" | "rail",
    op: string,
    write: { readonly payoutId: PayoutId; readonly token: bigint; readonly actor: string },
    answer: Exit.Exit<unknown, unknown>,
    before: { readonly highest: bigint; readonly rows: number }
  ): void {
    const account = this.paydb!.payouts.get(write.payoutId)?.accountId
    if (account === undefined) return
    const rowsChanged = this.rows() - before.rows + (this.fenceOf(point, account) === before.highest ? 0 : 1)
    const failure = Exit.isFailure(answer) ? failureTag(answer) : undefined
    if (failure === "FencedOut") {
      const fence = point === "rail" ? "rail-proxy" : "payment-resource"
      this.note(fence, "refused", write.token, `FENCED OUT: ${op} under token ${write.token}, the fence is ahead`)
    } else if (failure === undefined && rowsChanged > 0) {
      const state = this.paydb!.payouts.get(write.payoutId)?.state ?? ""
      this.note(
        point === "rail" ? "rail-proxy" : "payment-resource",
        "fence",
        write.token,
        point === "rail"
          ? `the intent to pay is on record under token ${write.token} (${op})`
          : `${op} under token ${write.token}: the payout is ${state}`
      )
    }
    if (failure === "FencedOut") this.marks.hit(`fenced out at ${point}`)
    this.#race(op, write, account, failure)
    const said: unknown = Exit.isSuccess(answer) ? answer.value : undefined
    // Who goes on after a loss may come between two tokens, of which the later had nothing to submit.
    if (isSecondSubmission(said) && !this.stale.has(write.actor)) {
      this.find("DUPLICATE-ATTEMPTED", write.payoutId, `${op} under ${write.token} of what was submitted before`)
    }
    if (failure === undefined ? rowsChanged === 0 : failure !== "FencedOut" && rowsChanged === 0) return
    this.fences.push({
      point,
      op,
      resource: account,
      payoutId: write.payoutId,
      token: write.token as FenceEvent["token"],
      accepted: failure === undefined,
      rowsChanged,
      highest: before.highest
    })
  }

  /** The crash points of which none dies: two about the same payout, of whom the database lets one go first. */
  #race(
    op: string,
    write: { readonly payoutId: PayoutId; readonly token: bigint },
    account: AccountId,
    failure: string | undefined
  ): void {
    const successor = this.oracle.holderOf(lockKeyOf(account), this.lockTime())
    const isOvertaken = successor !== undefined && successor.token > write.token
    const submission = this.paydb!.submissions.findLast(({ payoutId }) => payoutId === write.payoutId)
    const isVoided = submission?.outcome === "VOIDED"
    // The successor has the lock, and not yet the account.
    if (op === "submit" && failure === undefined && isOvertaken) this.marks.hit("crash point 3b")
    if (op === "post" && (failure === "FencedOut" || (failure === undefined && isOvertaken))) {
      this.marks.hit("crash point 9b")
    }
    if (op === "resolve" && (failure === "FencedOut" || failure === "IllegalTransition")) {
      this.marks.hit("crash point 14")
    }
    const isLost = op === "void" ? submission !== undefined && !isVoided : op === "submit" && isVoided
    if (isLost && failure !== undefined) this.marks.hit("crash point 15")
  }

  /** The rail has received a payment. The intent must be on record by now. */
  railReceived(clientReference: string): void {
    this.arrivals.push({ at: this.world.now, clientReference })
    const times = this.arrivals.filter((one) => one.clientReference === clientReference).length
    this.note("rail", "pay", null, times === 1 ? "is asked to pay" : `is asked to pay the same payout, time ${times}`)
    const { payouts, submissions } = this.paydb!
    const known = submissions.find(
      (sent) => sent.outcome !== "VOIDED" && payouts.get(sent.payoutId)?.clientReference === clientReference
    )
    if (known !== undefined && known.outcome !== "INTENT") this.marks.hit("a payment arrived late")
    if (known === undefined)
      this.find("INTENT-FIRST", clientReference, "the rail was called before the intent was on record")
  }

  // ---------------------------------------------------------------------------
  // the workers
  // ---------------------------------------------------------------------------

  /** A grant is in the hands of a process: plans can aim at the end of its lease. */
  granted(process: Process, token: bigint): void {
    const end = this.leaseEnds.get(token)
    if (end !== undefined) process.node.mark("lease", end)
  }

  enter(process: Process, key: string, token: bigint): Section {
    const section = { process, key, token }
    this.sections.add(section)
    return section
  }

  leave(section: Section): void {
    this.sections.delete(section)
    this.leftAt.set(section.key, this.world.now)
  }

  /** Somebody alive is inside a critical section. */
  get busy(): boolean {
    for (const section of this.sections) {
      if (section.process.alive) return true
      this.leave(section)
    }
    return false
  }

  /** Since when nobody has been inside a section of the key, in virtual microseconds; undefined if somebody is. */
  idleSince(key: string): number | undefined {
    if (this.busy) for (const section of this.sections) if (section.key === key) return undefined
    return this.leftAt.get(key) ?? 0
  }

  /**
   * How long the holder believes to hold the lock yet, in microseconds.
   *
   * Belief within truth: whatever a holder's deadline is at any moment, by the store's clock neither its lease nor its
   * session ends before it. Its process may be stopped between a check and what comes next; its deadline is then still right.
   */
  believes(process: Process, key: string, token: bigint, deadlineNanos: bigint): number {
    const clock = Context.get(process.context, Clock.Clock)
    if (!(clock instanceof NodeClock) || this.lockdb === undefined) return 0
    const ends = this.oracle.endOf(token)
    const left = (Number(deadlineNanos / 1000n) - clock.monotonicMicros) / process.node.monotonicRate
    if (ends === undefined) return left
    const truly = (ends * 1000 - this.lockdb.wallMicros) / this.lockdb.wallRate
    if (left > truly && left > 0) {
      this.find(
        "BELIEF",
        key,
        `${process.node.name} believes to hold ${token} for another ${Math.round(left / 1000)} ms, the store for ${Math.round(truly / 1000)} ms`
      )
    }
    return left
  }

  /** A check went well although the holder's own deadline had passed before it was asked. */
  tooLate(process: Process, key: string, token: bigint): void {
    this.find("BELIEF", key, `${process.node.name} goes on under ${token} after its own deadline`)
  }

  tell(process: Process, token: bigint, what: Told["what"]): void {
    this.note(process.node.name, "told", token, `is told ${what} for token ${token}`)
    this.marks.hit(what === "FENCED_OUT" ? "told FENCED_OUT" : "told LOCK_LOST")
    if (!this.stale.has(process.node.name)) this.told.push({ process, token, what })
  }

  /** A request that carries a token leaves. */
  presented(process: Process, op: string, token: bigint): void {
    for (const { process: who, token: which, what } of this.told) {
      if (who !== process || which !== token) continue
      this.find(
        what === "FENCED_OUT" ? "FENCED-OUT-RETRIED" : "USED-AFTER-LOSS",
        process.node.name,
        `sends ${op} under ${token} after it was told ${what}`
      )
    }
  }
}

/** (c2) turns away who is not the claimant, and the claimant reads the record first: nobody gets as far as the slot. */
const isSecondSubmission = (intent: unknown): boolean =>
  typeof intent === "object" && intent !== null && "sameToken" in intent && intent.sameToken === false

export const failureTag = (exit: Exit.Exit<unknown, unknown>): string | undefined => {
  if (Exit.isSuccess(exit)) return undefined
  const failure: unknown = Option.getOrUndefined(Exit.findErrorOption(exit))
  return typeof failure === "object" && failure !== null && "_tag" in failure ? String(failure._tag) : undefined
}
