/**
 * What an experiment may do to a running system, whatever the system runs on: processes of this machine
 * (`ProcessWorld.ts`), later containers.
 *
 * Participants have the names that the simulation gives them (w1, lock-server, lockdb, rail-proxy-2, rail, ..), so one fault
 * plan means the same in both. Each fault is scoped: it answers when it has been seen to take (the kernel says that a
 * process is stopped, a proxy counts what it swallows), and it is undone when its scope closes, for whatever reason.
 */
import type { Effect, Scope } from "effect"
import type { History } from "../core/History.ts"
import type { Call, CallFault } from "./HttpTap.ts"
import type { HarnessError, LogRecord } from "./Processes.ts"

/** Something that was done to a participant, for as long as it lasted. */
export interface Span {
  readonly lane: string
  /**
   * `forgotten`: what was written to lockdb meanwhile was gone afterwards, it was put back to its copy. `rewound`: from then
   * on until somebody saw to it, its tokens were not above those that had been spent.
   */
  readonly kind: "pause" | "down" | "cut" | "delay" | "skew" | "forgotten" | "rewound"
  /** Milliseconds since 1970. */
  readonly from: number
  /** Infinity while it lasts. */
  to: number
  readonly text: string
  /** Of a cut or a delay: the other end. */
  readonly peer?: string
}

/** How a fault was seen to have taken; undefined: not yet. */
export type Proof = Effect.Effect<string | undefined>

export interface StartOptions {
  /** As in `dlock.fault-point`. */
  readonly points?: string
  /** The program's wall clock is off by so much. */
  readonly skewMillis?: number
  readonly settings?: Readonly<Record<string, string>>
}

export interface Cut {
  /** `up`: what `from` sends; `down`: what it is answered. */
  readonly direction: "up" | "down" | "both"
  /** Lost, or kept until it heals, as TCP does. */
  readonly how: "drop" | "hold"
}

export interface World {
  /** Every HTTP call between participants so far, in the order in which they were passed on. */
  readonly calls: ReadonlyArray<Call>
  readonly spans: ReadonlyArray<Span>
  /** What a participant has logged, in all its lives. */
  readonly logOf: (name: string) => ReadonlyArray<LogRecord>
  /** Starts it, or replaces the process that runs under this name. */
  readonly start: (name: string, options?: StartOptions) => Effect.Effect<void, HarnessError>
  /** In order (SIGTERM); nothing when it does not run. */
  readonly stop: (name: string) => Effect.Effect<void>
  readonly pause: (name: string) => Effect.Effect<string, HarnessError, Scope.Scope>
  /** A stop or an end that the participant brings about itself, at a named point. */
  readonly awaitPoint: (name: string, point: string, timeoutMillis: number) => Effect.Effect<void, HarnessError>
  /** It has stopped itself: continues it when the scope closes. */
  readonly pausedAtPoint: (name: string, point: string) => Effect.Effect<string, HarnessError, Scope.Scope>
  /** SIGKILL, or what it takes to make a backend lose its leader. */
  readonly kill: (name: string) => Effect.Effect<string, HarnessError>
  readonly awaitGone: (name: string) => Effect.Effect<string, HarnessError>
  /** Brings back what was killed. */
  readonly revive: (name: string, options?: StartOptions) => Effect.Effect<string, HarnessError>
  readonly cut: (from: string, to: string, cut: Cut) => Effect.Effect<Proof, HarnessError, Scope.Scope>
  readonly delay: (from: string, to: string, millis: number) => Effect.Effect<Proof, HarnessError, Scope.Scope>
  /** Befalls one call, picked by name and number from now on. */
  readonly plant: (from: string, to: string, fault: CallFault) => Effect.Effect<Proof, HarnessError>
  /** What truly happened to these accounts, and to the locks of these keys. */
  readonly collect: (scope: {
    readonly accounts: ReadonlySet<string>
    readonly keys: ReadonlySet<string>
    readonly settled: boolean
  }) => Effect.Effect<History, HarnessError>
}
