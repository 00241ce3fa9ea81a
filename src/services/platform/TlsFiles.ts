// @effect-diagnostics nodeBuiltinImport:off
/** Reads the PEM files that a setting names. */
import { Effect } from "effect"
import * as fs from "node:fs"
import { type ConfigProblem, configProblem, type TlsFiles } from "./ServiceConfig.ts"

interface Pem {
  readonly ca?: Buffer
  readonly cert?: Buffer
  readonly key?: Buffer
}

/** `setting` is the prefix that the message names, such as `lock.pg.tls`. */
export const readTls = (setting: string, { ca, cert, key }: TlsFiles): Effect.Effect<Pem, ConfigProblem> =>
  Effect.try({
    try: () => ({
      ...(ca === undefined ? {} : { ca: fs.readFileSync(ca) }),
      ...(cert === undefined ? {} : { cert: fs.readFileSync(cert) }),
      ...(key === undefined ? {} : { key: fs.readFileSync(key) })
    }),
    catch: (cause) => configProblem(setting, String(cause), "paths of readable PEM files")
  })
