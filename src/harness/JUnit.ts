/** Results in the XML that build servers read. */

export interface Case {
  readonly suite: string
  readonly name: string
  readonly seconds: number
  /** What is wrong with the system. */
  readonly failure?: string | undefined
  /** What is wrong with the experiment. */
  readonly error?: string | undefined
}

const escape = (text: string): string =>
  text
    // What XML has no way to say.
    .replace(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd]/gu, "?")
    .replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c] ?? c)

export const junit = (name: string, cases: ReadonlyArray<Case>): string => {
  const count = (of: (one: Case) => unknown) => cases.filter((one) => of(one) !== undefined).length
  const seconds = cases.reduce((sum, one) => sum + one.seconds, 0)
  const body = cases.map((one) => {
    const head = `    <testcase classname="${escape(one.suite)}" name="${escape(one.name)}" time="${one.seconds.toFixed(3)}"`
    const wrong = one.failure === undefined ? one.error : one.failure
    if (wrong === undefined) return `${head}/>`
    const tag = one.failure === undefined ? "error" : "failure"
    return `${head}>\n      <${tag} message="${escape(wrong.split("\n")[0] ?? "")}">${escape(wrong)}</${tag}>\n    </testcase>`
  })
  return `<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="${escape(name)}" tests="${cases.length}" failures="${count((one) => one.failure)}" errors="${count((one) => one.error)}" time="${seconds.toFixed(3)}">
  <testsuite name="${escape(name)}" tests="${cases.length}" failures="${count((one) => one.failure)}" errors="${count((one) => one.error)}" time="${seconds.toFixed(3)}">
${body.join("\n")}
  </testsuite>
</testsuites>
`
}
