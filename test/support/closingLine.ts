/** Closes a run with one plain line that any CI can read: how many tests passed, failed and were skipped. */
import type { Reporter, TestModule } from "vitest/node"

export default class ClosingLine implements Reporter {
  onTestRunEnd(modules: ReadonlyArray<TestModule>): void {
    const count = { passed: 0, failed: 0, skipped: 0 }
    for (const module of modules) {
      for (const test of module.children.allTests()) {
        const { state } = test.result()
        if (state === "passed" || state === "failed" || state === "skipped") count[state]++
      }
      // A file that could not even be loaded has no tests.
      if (module.errors().length > 0) count.failed++
    }
    process.stdout.write(`${count.passed} passed, ${count.failed} failed, ${count.skipped} skipped\n`)
  }
}
