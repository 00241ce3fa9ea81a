/** What a benchmark found, as data, and its table. */
import type { Percentiles, Spread } from "./BenchDriver.ts"

/** One subject with so many clients; a pair is an acquire and its release. */
export interface BenchRow {
  readonly clients: number
  /** `sdk`, `store`, `bare`, or a peer. */
  readonly subject: string
  readonly pairsPerSecond: Spread
  /** Of the pair, over all rounds. */
  readonly latencyMillis: Percentiles
  /** To `bare` of the same round; null for `bare` itself. */
  readonly throughputRatio: Spread | null
  /** To `leased` of the same round; null for itself, and where there is none. */
  readonly leasedRatio: Spread | null
  /** Of the medians, to `bare` of the same round. */
  readonly latencyRatio: Spread | null
  /** Processor time of a pair, in microseconds; null where it can not be known. */
  readonly cpuMicros: {
    readonly service: number | null
    readonly backend: number | null
    /** This process: the driver and, except for `sdk`, the store. */
    readonly driver: number | null
  }
  /** Pairs that failed, by tag. */
  readonly failures: Readonly<Record<string, number>>
}

export interface BenchDocument {
  readonly backend: "pg" | "etcd"
  readonly machine: {
    readonly cores: number
    readonly node: string
    /** Load averages of the last minute, before and after. */
    readonly load: readonly [number, number]
  }
  /** Of a measurement: every subject gets them with every number of clients, in `rounds` turns. */
  readonly seconds: number
  readonly rounds: number
  readonly rows: ReadonlyArray<BenchRow>
  /** Null with `--raw`. */
  readonly service: {
    /** From the release being sent to the waiter being told. */
    readonly handOverMillis: Percentiles
    /** From the end of a dead holder's lease to the waiter being told. */
    readonly deadHolderMillis: Percentiles
    /** Round trip of a renewal: nobody else about, and with 64 clients that contend for its key. */
    readonly renewMillis: { readonly alone: Percentiles; readonly storm: Percentiles }
    /** Samples of these that got no answer. */
    readonly failed: number
  } | null
}

const number = (value: number) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2))

const ratio = (spread: Spread | null) =>
  spread === null ? "1" : `${number(spread.median)} (${number(spread.min)}..${number(spread.max)})`

const micros = (value: number | null) => (value === null ? "?" : value.toFixed(0))

export const table = ({ backend, machine, rounds, rows, seconds, service }: BenchDocument): string => {
  const isLeased = rows.some(({ leasedRatio }) => leasedRatio !== null)
  const leased = (cell: string) => (isLeased ? [cell] : [])
  const heads = [
    "clients",
    "subject",
    "pairs/s",
    "to bare",
    ...leased("to leased"),
    "p50 ms",
    "p95",
    "p99",
    "p50 to bare",
    "CPU us",
    "failed"
  ]
  const cells = rows.map((row) => [
    String(row.clients),
    row.subject,
    `${number(row.pairsPerSecond.median)} (${number(row.pairsPerSecond.min)}..${number(row.pairsPerSecond.max)})`,
    ratio(row.throughputRatio),
    ...leased(ratio(row.leasedRatio)),
    number(row.latencyMillis.p50),
    number(row.latencyMillis.p95),
    number(row.latencyMillis.p99),
    ratio(row.latencyRatio),
    `${micros(row.cpuMicros.service)} + ${micros(row.cpuMicros.backend)} + ${micros(row.cpuMicros.driver)}`,
    Object.entries(row.failures)
      .map(([tag, count]) => `${count} ${tag}`)
      .join(", ") || "-"
  ])
  const widths = heads.map((head, i) => Math.max(head.length, ...cells.map((row) => row[i]?.length ?? 0)))
  const line = (row: ReadonlyArray<string>) =>
    row
      .map((cell, i) => cell.padEnd(widths[i] ?? 0))
      .join("  ")
      .trimEnd()
  const told = ({ p50, p95, p99 }: Percentiles) => `${number(p50)} / ${number(p95)} / ${number(p99)} ms`
  return [
    `${backend}: ${seconds} s each in ${rounds} interleaved rounds; ${machine.cores} cores, load ${machine.load.join(" to ")}, Node ${machine.node}`,
    "median (min..max) of the rounds; CPU: service + backend + driver, a pair",
    "",
    line(heads),
    ...cells.map(line),
    ...(service === null
      ? []
      : [
          "",
          `p50 / p95 / p99 of a hand-over after a release   ${told(service.handOverMillis)}`,
          `                  after a dead holder's lease    ${told(service.deadHolderMillis)}`,
          `                  of a renewal, alone            ${told(service.renewMillis.alone)}`,
          `                  with 64 who contend            ${told(service.renewMillis.storm)}`,
          ...(service.failed === 0 ? [] : [`${service.failed} of these samples got no answer`])
        ])
  ].join("\n")
}
