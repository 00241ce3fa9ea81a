// @effect-diagnostics nodeBuiltinImport:off
/** The version in `package.json`: three folders up from `src/services/platform` and from `dist/services/platform`. */
import { readFileSync } from "node:fs"

const { version } = JSON.parse(readFileSync(new URL("../../../package.json", import.meta.url), "utf8")) as {
  readonly version: string
}
export { version }
