import { assert, describe, it } from "@effect/vitest"
import { junit } from "../../src/harness/JUnit.ts"

describe("results in JUnit's XML", () => {
  it("tell what failed from what could not be run, and quote what XML would misread", () => {
    const xml = junit("scenarios-pg", [
      { suite: "pg.uc-01", name: "uc-01", seconds: 1.5 },
      { suite: "pg.uc-03", name: "uc-03 <stale>", seconds: 2, failure: 'INV-02 "p" & more\n\u0000second line' },
      { suite: "pg", name: "uc-04", seconds: 0, error: "PostgreSQL did not start" }
    ])
    assert.match(xml, /^<\?xml version="1\.0"/)
    assert.include(xml, '<testsuites name="scenarios-pg" tests="3" failures="1" errors="1" time="3.500">')
    assert.include(xml, '<testcase classname="pg.uc-01" name="uc-01" time="1.500"/>')
    assert.include(xml, 'name="uc-03 &lt;stale&gt;"')
    assert.include(xml, '<failure message="INV-02 &quot;p&quot; &amp; more">')
    assert.include(xml, '<error message="PostgreSQL did not start">')
    assert.notInclude(xml, "\u0000")
  })
})
