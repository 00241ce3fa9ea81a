// @effect-diagnostics nodeBuiltinImport:off
/**
 * The whole system as processes of this machine, with a fault proxy between any two of them.
 *
 *     w1 ──> [TcpFaults] ──> [HttpTap] ──> lock-server ──> [TcpFaults] ──> lockdb
 *
 * Bytes are lost, kept and delayed by `TcpFaults`; calls are named and noted by the tap behind it. A link is made when it is
 * first needed, and follows a service to its new port when that is restarted.
 */
import { Effect, Redacted, References, Schedule, Scope, Semaphore } from "effect"
import { HttpClient, HttpClientRequest } from "effect/http"
import type { FencingSwitches } from "../core/Fencing.ts"
import * as Paydb from "../services/payment-resource/PgPaydb.ts"
import type { EmbeddedServer } from "../services/platform/EmbeddedPostgres.ts"
import * as Migrations from "../services/platform/Migrations.ts"
import * as Pg from "../services/platform/Pg.ts"
import { collect } from "./Evidence.ts"
import * as HttpTap from "./HttpTap.ts"
import type { LockBackend } from "./LockBackends.ts"
import { HarnessError, isEvent, type LogRecord, type Processes, type ServiceProcess, waitUntil } from "./Processes.ts"
import { skewed } from "./SkewedClock.ts"
import * as TcpFaults from "./TcpFaults.ts"
import type { Cut, Proof, Span, StartOptions, World } from "./World.ts"

/** A short lease, and every other bound in proportion. */
export const lab = {
  ttlMillis: 3_000,
  marginMillis: 500,
  pollMillis: 300,
  readTimeoutMillis: 4_000,
  railTimeoutMillis: 5_000,
  reconcileMillis: 500,
  policy: { finalityWindowMillis: 1_500, minNotFound: 2, minSpacingMillis: 300 }
} as const

const labSettings = {
  HTTP_PORT: "0",
  MANAGEMENT_PORT: "0",
  DLOCK_MIGRATE: "false",
  LOCK_DEFAULT_TTL: `${lab.ttlMillis}`,
  LOCK_SESSION_TTL: `${lab.ttlMillis}`,
  LOCK_CLIENT_SAFETY_MARGIN: `${lab.marginMillis}`,
  LOCK_BACKEND_TIMEOUT: "1000",
  LOCK_CLIENT_CALL_TIMEOUT: "1500",
  RAIL_READ_TIMEOUT: `${lab.readTimeoutMillis}`,
  RAIL_SEND_WINDOW: "1000",
  PAYOUT_EXECUTOR_RAIL_TIMEOUT: `${lab.railTimeoutMillis}`,
  PAYOUT_EXECUTOR_POLL_INTERVAL: `${lab.pollMillis}`,
  RECONCILE_INTERVAL: `${lab.reconcileMillis}`
}

/** Where paydb is kept; on this machine unless it says otherwise. */
export type PayServer = Pick<EmbeddedServer, "port" | "url"> & { readonly host?: string }

export interface ProcessWorldOptions {
  readonly processes: Processes
  readonly backend: LockBackend
  readonly payServer: PayServer
  /** Of its own: nothing else may work off what is ordered there. */
  readonly database: string
  readonly switches: FencingSwitches
  /** When "not found at the rail" is believed. Default: the lab's. */
  readonly policy?: Paydb.LabPolicy
  /** This machine, as the participants reach it. Default: 127.0.0.1, they are processes of it. */
  readonly host?: string | undefined
}

export interface ProcessWorld extends World {
  readonly backend: LockBackend
  readonly processes: Processes
  /** What was done to a participant by somebody else than this world. */
  readonly note: (span: Span) => void
  /** Where something that runs in this process reaches a service, through a link of its own. */
  readonly url: (from: string, to: string) => Effect.Effect<string, HarnessError>
  /** Straight, without a link: for what is no part of the experiment. */
  readonly at: (name: string) => Effect.Effect<{ readonly url: string; readonly managementUrl: string }, HarnessError>
  /** Forgets what was noted so far: another run begins, with so many proxies. */
  readonly begin: (proxies: number) => Effect.Effect<void>
  /** What runs, and with which fault points. */
  readonly running: () => ReadonlyMap<string, string>
  /** The states of the payouts of these accounts. */
  readonly states: (accounts: ReadonlySet<string>) => Effect.Effect<ReadonlyArray<PayoutNow>, HarnessError>
  /** paydb as the superuser. */
  readonly paydb: Redacted.Redacted
  /** One request that must be answered below 300; repeated while the service is away. */
  readonly ask: (
    method: "GET" | "POST" | "PUT",
    url: string,
    body?: object,
    key?: string
  ) => Effect.Effect<string, HarnessError>
}

export interface PayoutNow {
  readonly accountId: string
  readonly payoutId: string
  readonly state: string
}

interface Link {
  readonly tcp: ReadonlyArray<TcpFaults.TcpFaults>
  readonly tap: HttpTap.HttpTap | undefined
}

interface Life {
  readonly service: ServiceProcess
  readonly url: string
  readonly managementUrl: string
  readonly points: string
}

/** `w3` and `rail-proxy-2` run the command of their kind. */
const commandOf = (name: string): string =>
  /^w\d+$/.test(name) ? "payout-executor" : name === "rail" ? "rail-stub" : name.replace(/-\d+$/, "")

export const make = Effect.fnUntraced(function* (
  options: ProcessWorldOptions
): Effect.fn.Return<ProcessWorld, HarnessError, Scope.Scope | HttpClient.HttpClient> {
  const { backend, database, host = "127.0.0.1", payServer, processes, switches } = options
  const scope = yield* Effect.scope
  const client = yield* HttpClient.HttpClient
  const wrong = (step: string) => (cause: unknown) =>
    cause instanceof HarnessError
      ? cause
      : new HarnessError({ step, message: cause instanceof Error ? cause.message : String(cause) })

  yield* Effect.gen(function* () {
    yield* Migrations.ensureDatabase({ adminUrl: payServer.url("postgres"), database })
    yield* Effect.provideService(Paydb.migrate(payServer.url(database)), References.MinimumLogLevel, "Warn")
    yield* Paydb.setSwitches(payServer.url(database), { resource: switches.payment, rail: switches.rail })
    yield* Paydb.setLabPolicy(payServer.url(database), options.policy ?? lab.policy)
  }).pipe(Effect.mapError(wrong("prepare paydb")))

  const paydb = yield* Effect.mapError(
    Pg.make({ url: payServer.url(database), applicationName: "dlock-harness", maxConnections: 2 }),
    wrong("connect to paydb")
  )
  const calls: Array<HttpTap.Call> = []
  const spans: Array<Span> = []
  const lives = new Map<string, Life>()
  const logs = new Map<string, Array<{ readonly log: ReadonlyArray<LogRecord>; readonly from: number }>>()
  const links = new Map<string, Link>()
  const making = yield* Semaphore.make(1)
  let proxies = 1

  // ---- links

  const lifeOf = (name: string) =>
    Effect.suspend(() => {
      const life = lives.get(name)
      return life === undefined
        ? Effect.fail(new HarnessError({ step: name, message: "it does not run" }))
        : Effect.succeed(life)
    })
  const aim = (tap: HttpTap.HttpTap, url: string) => tap.retarget(Number(new URL(url).port), new URL(url).hostname)

  const link = Effect.fnUntraced(
    function* (from: string, to: string) {
      const name = `${from} ${to}`
      const known = links.get(name)
      if (known !== undefined) return known
      let made: Link
      if (to === "lockdb" || to === "paydb") {
        const ports = to === "paydb" ? [payServer.port] : yield* backend.ports
        const target = (to === "paydb" ? payServer.host : backend.host) ?? "127.0.0.1"
        const answers = to === "lockdb" && backend.kind === "etcd" ? "http2" : "postgres"
        made = {
          tcp: yield* Effect.forEach(ports, (port) =>
            TcpFaults.start({ target: { host: target, port }, answers, host })
          ),
          tap: undefined
        }
      } else {
        const tap = yield* HttpTap.start(from, to, (call) => {
          // Asked twice a second by everybody, and nobody's business.
          if (!/^pay\.(list|read)/.test(call.label)) calls.push(call)
        })
        const life = lives.get(to)
        if (life !== undefined) aim(tap, life.url)
        made = { tcp: [yield* TcpFaults.start({ target: { port: tap.port }, host })], tap }
      }
      links.set(name, made)
      return made
    },
    (effect, from, to) =>
      making
        .withPermit(effect)
        .pipe(Effect.mapError(wrong(`link ${from} to ${to}`)), Effect.provideService(Scope.Scope, scope))
  )
  const url = (from: string, to: string) => Effect.map(link(from, to), ({ tcp }) => `http://${host}:${tcp[0]?.port}`)

  /** Each client keeps to one proxy: the first worker to the first, everybody else to the last. */
  const proxyOf = (name: string) => (name !== "w1" && proxies > 1 ? "rail-proxy-2" : "rail-proxy")

  const settingsOf = Effect.fnUntraced(function* (name: string) {
    const fencing = {
      PAYMENT_FENCING_ENABLED: String(switches.payment),
      RAIL_FENCING_ENABLED: String(switches.rail)
    }
    const paydbAt = function* (user: string) {
      const address = new URL(Redacted.value(payServer.url(database, user)))
      address.hostname = host
      address.port = String((yield* link(name, "paydb")).tcp[0]?.port)
      return address.href
    }
    switch (commandOf(name)) {
      case "lock-server": {
        const { tcp } = yield* link(name, "lockdb")
        return { ...backend.settings(tcp.map(({ port }) => port)), DLOCK_MIGRATE: "true" }
      }
      case "payment-resource":
        return { ...fencing, PAYMENT_PG_URL: yield* paydbAt("dlock_payment") }
      case "rail-proxy":
        return { ...fencing, RAIL_PG_URL: yield* paydbAt("dlock_rail"), RAIL_URL: yield* url(name, "rail") }
      case "rail-stub":
        return {}
      default:
        return {
          LOCK_URL: yield* url(name, "lock-server"),
          PAYMENT_URL: yield* url(name, "payment-resource"),
          RAIL_PROXY_URL: yield* url(name, proxyOf(name))
        }
    }
  })

  // ---- lives

  const stop = (name: string) =>
    Effect.suspend(() => {
      const life = lives.get(name)
      lives.delete(name)
      return life === undefined ? Effect.void : Effect.asVoid(life.service.stop)
    })

  const start = Effect.fnUntraced(function* (name: string, wanted: StartOptions = {}) {
    yield* stop(name)
    const settings = yield* settingsOf(name)
    const { points = "", skewMillis = 0 } = wanted
    const service = yield* Effect.provideService(
      processes.start(name, [commandOf(name)], {
        ...labSettings,
        ...settings,
        ...wanted.settings,
        DLOCK_INSTANCE: name,
        ...(points === "" ? {} : { DLOCK_FAULT_POINT: points }),
        ...(skewMillis === 0 ? {} : { NODE_OPTIONS: skewed(skewMillis) })
      }),
      Scope.Scope,
      scope
    )
    logs.set(name, [...(logs.get(name) ?? []), { log: service.log, from: 0 }])
    const at = yield* service.listening
    lives.set(name, { service, points, ...at })
    for (const [route, { tap }] of links) {
      if (tap !== undefined && route.endsWith(` ${name}`)) aim(tap, at.url)
    }
    if (skewMillis !== 0) {
      const now = HttpTap.tapTime()
      spans.push({
        lane: name,
        kind: "skew",
        from: now,
        to: now,
        text: `its clock is ${skewMillis / 1_000} s off`
      })
    }
  })

  const during = <A, E>(
    span: Omit<Span, "from" | "to">,
    begin: Effect.Effect<A, E>,
    end: Effect.Effect<unknown, HarnessError>
  ) =>
    Effect.map(
      Effect.acquireRelease(
        Effect.map(begin, (value) => {
          const lasting: Span = { ...span, from: HttpTap.tapTime(), to: Infinity }
          spans.push(lasting)
          return { value, lasting }
        }),
        ({ lasting }) =>
          Effect.suspend(() => {
            lasting.to = HttpTap.tapTime()
            return Effect.ignore(end)
          })
      ),
      ({ value }) => value
    )

  const logOf = (name: string) => (logs.get(name) ?? []).flatMap(({ from, log }) => log.slice(from))

  const isPoint = (point: string) => (record: LogRecord) =>
    record["event"] === "fault_point" && record["name"] === point && record["action"] !== "note"

  const down = (name: string, text: string) => {
    const last = spans.findLast((span) => span.lane === name && span.kind === "down")
    if (last === undefined || last.to !== Infinity) {
      spans.push({ lane: name, kind: "down", from: HttpTap.tapTime(), to: Infinity, text })
    }
  }
  const up = (name: string) => {
    const last = spans.findLast((span) => span.lane === name && span.kind === "down")
    if (last !== undefined) last.to = Math.min(last.to, HttpTap.tapTime())
  }

  const kill = (name: string) =>
    name === "lockdb"
      ? Effect.tap(backend.kill, (proof) => Effect.sync(() => down(name, proof)))
      : Effect.gen(function* () {
          const { service } = yield* lifeOf(name)
          yield* service.kill
          lives.delete(name)
          down(name, "killed")
          return `process ${service.pid} is gone`
        })

  const revive = (name: string, wanted: StartOptions = {}) =>
    name === "lockdb"
      ? Effect.gen(function* () {
          const proof = yield* backend.recover
          const ports = yield* backend.ports
          for (const [route, { tcp }] of links) {
            if (!route.endsWith(" lockdb")) continue
            for (const [i, proxy] of tcp.entries()) yield* proxy.retarget(ports[i] ?? ports[0] ?? 0)
          }
          up(name)
          return proof
        })
      : Effect.andThen(
          start(name, wanted),
          Effect.sync(() => {
            up(name)
            return `${name} runs again`
          })
        )

  const swallowed = (tcp: ReadonlyArray<TcpFaults.TcpFaults>) =>
    Effect.map(
      Effect.forEach(tcp, ({ counts }) => counts),
      (all) => all.reduce((sum, { droppedBytes, heldBytes, refused }) => sum + droppedBytes + heldBytes + refused, 0)
    )

  const cut = Effect.fnUntraced(function* (from: string, to: string, { direction, how }: Cut) {
    const { tcp } = yield* link(from, to)
    const before = yield* swallowed(tcp)
    const rule = { flow: how } as const
    yield* during(
      {
        lane: from,
        peer: to,
        kind: "cut",
        text: `${direction === "both" ? "nothing passes" : `nothing passes ${direction}`}: ${how}`
      },
      Effect.forEach(tcp, (proxy) =>
        proxy.set({
          ...(direction === "down" ? {} : { up: rule }),
          ...(direction === "up" ? {} : { down: rule })
        })
      ),
      Effect.forEach(tcp, ({ heal }) => heal)
    )
    return Effect.map(swallowed(tcp), (now) =>
      now > before ? `${now - before} bytes did not get through from ${from} to ${to}` : undefined
    ) satisfies Proof
  })

  const delay = Effect.fnUntraced(function* (from: string, to: string, millis: number) {
    const { tcp } = yield* link(from, to)
    const total = Effect.map(
      Effect.forEach(tcp, ({ counts }) => counts),
      (all) => all.reduce((sum, { bytesDown, bytesUp }) => sum + bytesDown + bytesUp, 0)
    )
    const before = yield* total
    yield* during(
      { lane: from, peer: to, kind: "delay", text: `everything is ${millis} ms late` },
      Effect.forEach(tcp, (proxy) => proxy.set({ up: { delayMillis: millis }, down: { delayMillis: millis } })),
      Effect.forEach(tcp, (proxy) => proxy.set({ up: { delayMillis: 0 }, down: { delayMillis: 0 } }))
    )
    return Effect.map(total, (now) =>
      now > before ? `${now - before} bytes were ${millis} ms late` : undefined
    ) satisfies Proof
  })

  const ask: ProcessWorld["ask"] = (method, address, body, key) =>
    HttpClientRequest.make(method)(address).pipe(
      HttpClientRequest.setHeaders({
        "x-owner-id": "harness",
        ...(key === undefined ? {} : { "x-idempotency-key": key })
      }),
      (request) => (body === undefined ? Effect.succeed(request) : HttpClientRequest.bodyJson(request, body)),
      Effect.flatMap(client.execute),
      Effect.timeout("10 seconds"),
      Effect.flatMap((response) =>
        Effect.flatMap(response.text, (said) =>
          response.status < 300
            ? Effect.succeed(said)
            : Effect.fail(new HarnessError({ step: `${method} ${address}`, message: `${response.status}: ${said}` }))
        )
      ),
      Effect.mapError(wrong(`${method} ${address}`)),
      // Each of these may be repeated: what is ordered has a key or an id of its own.
      Effect.retry({
        times: 8,
        schedule: Schedule.spaced("500 millis"),
        while: ({ message }) => !/^4\d\d:/.test(message)
      })
    )

  return {
    backend,
    processes,
    note: (span) => void spans.push(span),
    paydb: payServer.url(database),
    calls,
    spans,
    logOf,
    url,
    at: lifeOf,
    begin: (count) =>
      Effect.sync(() => {
        proxies = count
        calls.length = 0
        spans.length = 0
        logs.clear()
        for (const [name, { service }] of lives) logs.set(name, [{ log: service.log, from: service.log.length }])
      }),
    running: () => new Map([...lives].map(([name, { points }]) => [name, points])),
    // Of those that are in the set when it runs: more may be ordered while somebody waits.
    states: (accounts) =>
      Effect.suspend(
        () => paydb<PayoutNow>`SELECT account_id AS "accountId", payout_id::text AS "payoutId", state FROM pay.payout
          WHERE account_id = ANY(${[...accounts]}::text[]) ORDER BY created_at`
      ).pipe(Effect.mapError(wrong("read states"))),
    ask,
    start: (name, wanted) => Effect.retry(start(name, wanted), { times: 1, schedule: Schedule.spaced("100 millis") }),
    stop,
    pause: (name) =>
      Effect.gen(function* () {
        const { service } = yield* lifeOf(name)
        yield* during({ lane: name, kind: "pause", text: "stopped (SIGSTOP)" }, service.pause, service.resume)
        return `process ${service.pid} was in state T`
      }),
    awaitPoint: (name, point, timeoutMillis) =>
      waitUntil(
        `${name} comes to ${point}`,
        Effect.sync(() => logOf(name).some(isPoint(point))),
        timeoutMillis
      ),
    pausedAtPoint: (name, point) =>
      Effect.gen(function* () {
        const { service } = yield* lifeOf(name)
        yield* during(
          { lane: name, kind: "pause", text: `stopped (SIGSTOP) at ${point}` },
          service.awaitStopped,
          Effect.andThen(service.resume, service.awaitRecord("goes on", isEvent("fault_point_resumed"), "5 seconds"))
        )
        return `process ${service.pid} was in state T at ${point}`
      }),
    kill,
    awaitGone: (name) =>
      Effect.gen(function* () {
        const { service } = yield* lifeOf(name)
        yield* service.awaitEnded
        lives.delete(name)
        down(name, "killed itself")
        return `process ${service.pid} is gone`
      }),
    revive,
    cut,
    delay,
    plant: (from, to, fault) =>
      Effect.gen(function* () {
        const { tap } = yield* link(from, to)
        if (tap === undefined)
          return yield* new HarnessError({ step: `${fault.how} ${fault.label}`, message: "no HTTP" })
        const { hits } = tap.plant(fault)
        return Effect.sync(() =>
          hits() > 0 ? `${fault.how} of ${fault.label} (${fault.leg}) number ${fault.nth}` : undefined
        )
      }),
    collect: ({ accounts, keys, settled }) =>
      Effect.gen(function* () {
        const { url: railUrl } = yield* lifeOf("rail")
        const points = [...logs.keys()].filter((name) => /^(payment-resource|rail-proxy)/.test(name))
        return yield* collect({
          paydb: payServer.url(database),
          lock: backend.events,
          railUrl,
          settled,
          accounts,
          keys,
          acceptedAtRail: true,
          logs: points.flatMap(logOf)
        })
      }).pipe(Effect.provideService(HttpClient.HttpClient, client))
  }
})
