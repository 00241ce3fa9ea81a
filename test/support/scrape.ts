/**
 * Every tag of a scrape that is not of a closed set: keys, owners, payouts, accounts, tokens and ids have no place in a
 * metric. Run it on a scrape after a scenario.
 */
export const suspiciousTags = (prometheusText: string): ReadonlyArray<string> =>
  [...prometheusText.matchAll(/([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g)]
    .filter(([, name = "", value = ""]) => !isClosed(name, value))
    .map(([tag]) => tag)

/** Tag to what its values look like; a tag that is not here is one too many. */
const closed: Readonly<Record<string, RegExp>> = {
  outcome: /^[a-z_]{1,20}$/,
  end: /^[a-z_]{1,20}$/,
  reason: /^[a-z_]{1,20}$/,
  op: /^[a-zA-Z]{1,20}$/,
  point: /^(?:resource|rail)$/,
  to: /^(?:PENDING|CLAIMED|POSTED|FAILED|RAIL_AMBIGUOUS)$/,
  state: /^(?:PENDING|CLAIMED|POSTED|FAILED|RAIL_AMBIGUOUS)$/,
  invariant: /^(?:INV-0\d|ONE-POSTING|ONE-TOKEN-ONE-CLAIM)$/,
  method: /^(?:GET|HEAD|POST|PUT|DELETE|other)$/,
  route: /^(?:unmatched|(?:\/(?::[a-zA-Z]+|[a-z0-9.-]+))+)$/,
  status: /^[2-5]xx$/,
  le: /^(?:\+Inf|[0-9.]+)$/
}

const isClosed = (name: string, value: string): boolean => closed[name]?.test(value) === true
