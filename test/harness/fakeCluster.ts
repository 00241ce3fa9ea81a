// @effect-diagnostics nodeBuiltinImport:off
/**
 * As much of a Kubernetes API server and of a kubelet as the harness asks for through the real kubectl: a pod is a process of
 * this machine with an address of its own, made from what was posted; its log, exec (WebSocket, v5.channel.k8s.io), deletion
 * with and without grace.
 *
 * The rule of the kernel that a process 1 can not be stopped from inside its namespace is in it: in a pod that does not share
 * its process namespace the program is told to be process 1, `kill -STOP 1` ends with 0, and nothing happens. What is not in
 * it: who may do what, admission, scheduling, policies that are enforced. It shows that we speak kubectl's language, and that
 * a real process really stops. It shows nothing of a real cluster.
 */
import { type ChildProcess, spawn } from "node:child_process"
import * as crypto from "node:crypto"
import * as http from "node:http"
import type { AddressInfo, Socket } from "node:net"

interface PodObject {
  readonly metadata: { name: string; labels?: Record<string, string>; [field: string]: unknown }
  readonly spec: {
    readonly shareProcessNamespace?: boolean
    readonly containers: ReadonlyArray<{
      readonly name: string
      readonly args?: ReadonlyArray<string>
      readonly env?: ReadonlyArray<{ readonly name: string; readonly value?: string }>
    }>
  }
  status?: unknown
}
interface Running {
  readonly object: PodObject
  readonly child: ChildProcess
  readonly log: Array<string>
  readonly readers: Set<(line: string | undefined) => void>
  /** What the program and everybody in the pod know it by. */
  readonly pid: number
}

export interface FakeCluster {
  readonly port: number
  /** Every exec, as it was asked for. */
  readonly commands: ReadonlyArray<string>
  readonly pods: ReadonlyMap<string, Running>
  readonly stop: () => Promise<void>
}

const status = (code: number, reason: string, message: string) => ({
  kind: "Status",
  apiVersion: "v1",
  status: code < 300 ? "Success" : "Failure",
  reason,
  message,
  code
})
const resource = (name: string, kind: string, verbs: ReadonlyArray<string>) => ({
  name,
  singularName: name.replace(/s$/, ""),
  namespaced: true,
  kind,
  verbs
})

/** @param deployments by name, as the manifests have them */
export const startFakeCluster = async (
  deployments: ReadonlyMap<string, unknown>,
  program: ReadonlyArray<string>
): Promise<FakeCluster> => {
  const pods = new Map<string, Running>()
  const commands: Array<string> = []
  const watchers = new Set<{ readonly name: string | undefined; readonly response: http.ServerResponse }>()
  let version = 1
  let address = 1

  const tell = (type: string, object: PodObject) => {
    for (const { name, response } of watchers) {
      if (name === undefined || name === object.metadata.name) response.write(`${JSON.stringify({ type, object })}\n`)
    }
  }

  const run = (object: PodObject): PodObject => {
    const [container] = object.spec.containers
    const ip = `127.0.77.${++address}`
    const env = Object.fromEntries((container?.env ?? []).map(({ name, value = "" }) => [name, value]))
    const child = spawn(process.execPath, [...program, ...(container?.args ?? [])], {
      stdio: ["ignore", "pipe", "inherit"],
      // A pod has an address of its own, and everybody on it.
      env: { ...env, HTTP_HOST: ip, PATH: process.env["PATH"] }
    })
    const shares = object.spec.shareProcessNamespace === true
    const running: Running = { object, child, log: [], readers: new Set(), pid: shares ? (child.pid ?? 0) : 1 }
    let rest = ""
    child.stdout?.setEncoding("utf8").on("data", (text: string) => {
      const lines = (rest + text).split("\n")
      rest = lines.pop() ?? ""
      for (const line of lines) {
        // In a namespace of its own a program sees itself as process 1.
        const seen = shares ? line : line.replace(/"pid":\d+/, '"pid":1')
        running.log.push(seen)
        for (const read of running.readers) read(seen)
      }
    })
    child.once("exit", () => {
      for (const read of running.readers) read(undefined)
    })
    object.metadata["namespace"] = "dlock"
    object.metadata["resourceVersion"] = String(++version)
    object.metadata["uid"] = crypto.randomUUID()
    object.status = {
      phase: "Running",
      podIP: ip,
      conditions: [{ type: "Ready", status: "True" }],
      containerStatuses: [{ name: container?.name, ready: true, state: { running: {} } }]
    }
    pods.set(object.metadata.name, running)
    tell("ADDED", object)
    return object
  }
  const remove = (name: string, signal: NodeJS.Signals): PodObject | undefined => {
    const running = pods.get(name)
    if (running === undefined) return undefined
    running.child.kill(signal)
    if (signal === "SIGTERM" && kernelState(running) === "T") running.child.kill("SIGKILL")
    const gone = () => {
      pods.delete(name)
      tell("DELETED", running.object)
    }
    if (running.child.exitCode !== null || running.child.signalCode !== null) gone()
    else running.child.once("exit", gone)
    return running.object
  }

  const selected = (query: URLSearchParams) => {
    const name = /metadata\.name=([^,]+)/.exec(query.get("fieldSelector") ?? "")?.[1]
    const wanted = (query.get("labelSelector") ?? "").split(",").filter((one) => one !== "")
    return [...pods.values()].flatMap(({ object }) =>
      (name === undefined || object.metadata.name === name) &&
      wanted.every((one) => object.metadata.labels?.[one.split("=")[0] ?? ""] === one.split("=")[1])
        ? [object]
        : []
    )
  }

  const answer = (request: http.IncomingMessage, response: http.ServerResponse, body: string) => {
    const send = (code: number, value: unknown) => {
      response.writeHead(code, { "content-type": "application/json" })
      response.end(JSON.stringify(value))
    }
    const { pathname, searchParams } = new URL(request.url ?? "/", "http://cluster")
    const base = "/api/v1/namespaces/dlock/pods"
    switch (pathname) {
      case "/version":
        return send(200, { major: "1", minor: "32", gitVersion: "v1.32.0" })
      case "/api":
        return send(200, { kind: "APIVersions", versions: ["v1"] })
      case "/apis": {
        const apps = { groupVersion: "apps/v1", version: "v1" }
        return send(200, {
          kind: "APIGroupList",
          apiVersion: "v1",
          groups: [{ name: "apps", versions: [apps], preferredVersion: apps }]
        })
      }
      case "/api/v1":
        return send(200, {
          kind: "APIResourceList",
          groupVersion: "v1",
          resources: [
            resource("pods", "Pod", ["get", "list", "watch", "create", "delete", "patch"]),
            resource("pods/log", "Pod", ["get"]),
            resource("pods/exec", "PodExecOptions", ["get", "create"])
          ]
        })
      case "/apis/apps/v1":
        return send(200, {
          kind: "APIResourceList",
          apiVersion: "v1",
          groupVersion: "apps/v1",
          resources: [resource("deployments", "Deployment", ["get", "list"])]
        })
      case base: {
        if (request.method === "POST") return send(201, run(JSON.parse(body) as PodObject))
        const found = selected(searchParams)
        if (searchParams.has("watch")) {
          response.writeHead(200, { "content-type": "application/json" })
          const name = /metadata\.name=([^,]+)/.exec(searchParams.get("fieldSelector") ?? "")?.[1]
          const watcher = { name, response }
          watchers.add(watcher)
          response.once("close", () => watchers.delete(watcher))
          for (const object of found) response.write(`${JSON.stringify({ type: "ADDED", object })}\n`)
          return
        }
        return send(200, {
          kind: "PodList",
          apiVersion: "v1",
          metadata: { resourceVersion: `${version}` },
          items: found
        })
      }
    }
    const deployment = /^\/apis\/apps\/v1\/namespaces\/dlock\/deployments\/([^/]+)$/.exec(pathname)?.[1]
    if (deployment !== undefined) {
      const found = deployments.get(deployment)
      return found === undefined
        ? send(404, status(404, "NotFound", `deployments "${deployment}" not found`))
        : send(200, found)
    }
    const [, name = "", part] = new RegExp(`^${base}/([^/]+)(?:/(\\w+))?$`).exec(pathname) ?? []
    const running = pods.get(name)
    if (running === undefined) return send(404, status(404, "NotFound", `pods "${name}" not found`))
    if (part === "log") {
      response.writeHead(200, { "content-type": "text/plain" })
      for (const line of running.log) response.write(`${line}\n`)
      if (searchParams.get("follow") !== "true" || running.child.exitCode !== null) return void response.end()
      const read = (line: string | undefined) => (line === undefined ? response.end() : response.write(`${line}\n`))
      running.readers.add(read)
      response.once("close", () => running.readers.delete(read))
      return
    }
    switch (request.method) {
      case "GET":
        return send(200, running.object)
      case "PATCH": {
        const patch = JSON.parse(body) as { readonly metadata?: { readonly labels?: Record<string, string> } }
        running.object.metadata.labels = { ...running.object.metadata.labels, ...patch.metadata?.labels }
        return send(200, running.object)
      }
      case "DELETE": {
        const { gracePeriodSeconds } = JSON.parse(body === "" ? "{}" : body) as { readonly gracePeriodSeconds?: number }
        return send(200, remove(name, gracePeriodSeconds === 0 ? "SIGKILL" : "SIGTERM"))
      }
      default:
        return send(405, status(405, "MethodNotAllowed", request.method ?? ""))
    }
  }

  const server = http.createServer((request, response) => {
    let body = ""
    request.setEncoding("utf8").on("data", (text: string) => {
      body += text
    })
    request.on("end", () => answer(request, response, body))
  })
  const sockets = new Set<Socket>()
  server.on("connection", (socket) => {
    sockets.add(socket)
    socket.once("close", () => sockets.delete(socket))
  })

  server.on("upgrade", (request, stream) => {
    const { pathname, searchParams } = new URL(request.url ?? "/", "http://cluster")
    const running = pods.get(/\/pods\/([^/]+)\/exec$/.exec(pathname)?.[1] ?? "")
    const accept = crypto
      .createHash("sha1")
      .update(`${request.headers["sec-websocket-key"]}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`)
      .digest("base64")
    if (running === undefined) return void stream.end("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
    stream.on("error", () => {})
    stream.write(
      `HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: ${accept}\r\n` +
        "sec-websocket-protocol: v5.channel.k8s.io\r\n\r\n"
    )
    const frame = (opcode: number, data: Buffer) => {
      const length =
        data.length < 126 ? Buffer.from([data.length]) : Buffer.from([126, data.length >> 8, data.length & 255])
      stream.write(Buffer.concat([Buffer.from([0x80 | opcode]), length, data]))
    }
    const say = (channel: number, text: string) => frame(2, Buffer.concat([Buffer.from([channel]), Buffer.from(text)]))
    const command = searchParams.getAll("command")
    commands.push(command.join(" "))
    // Inside the pod its program has the number that the pod knows it by.
    const real = command.map((part) =>
      running.pid === 1
        ? part.replace("/proc/1/", `/proc/${running.child.pid}/`).replace(/^kill -\w+ 1$/, "true")
        : part
    )
    const child = spawn(real[0] ?? "false", real.slice(1))
    child.stdout.on("data", (text: Buffer) => say(1, text.toString()))
    child.stderr.on("data", (text: Buffer) => say(2, text.toString()))
    child.once("close", (code) => {
      say(
        3,
        JSON.stringify(
          code === 0
            ? { metadata: {}, status: "Success" }
            : {
                metadata: {},
                status: "Failure",
                reason: "NonZeroExitCode",
                message: `command terminated with exit code ${code}`,
                details: { causes: [{ reason: "ExitCode", message: `${code}` }] }
              }
        )
      )
      frame(8, Buffer.from([0x03, 0xe8]))
      stream.end()
    })
  })

  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", () => resolve()))
  return {
    port: (server.address() as AddressInfo).port,
    commands,
    pods,
    stop: async () => {
      for (const { child } of pods.values()) child.kill("SIGKILL")
      for (const socket of sockets) socket.destroy()
      await new Promise<void>((resolve) => server.close(() => resolve()))
    }
  }
}

const kernelState = ({ child }: Running): string => {
  try {
    const stat = process.getBuiltinModule("node:fs").readFileSync(`/proc/${child.pid}/stat`, "utf8")
    return stat.slice(stat.lastIndexOf(")") + 2, stat.lastIndexOf(")") + 3)
  } catch {
    return "gone"
  }
}
