SET LOCAL ROLE dlock_owner;

-- Recovery by state and submission record (FR-24). There is no clock in it.
CREATE VIEW pay.payout_next_step AS
SELECT p.payout_id, p.account_id, p.state, p.claim_token, s.outcome_or_intent AS submission, v.verdict,
       pay.next_step(p.state, s.outcome_or_intent, v.verdict) AS next_step,
       coalesce(s.rail_ref, (SELECT l.rail_ref FROM pay.rail_lookup l
                              WHERE l.payout_id = p.payout_id AND l.result = 'EXECUTED' AND l.rail_ref IS NOT NULL
                              ORDER BY l.lookup_id DESC LIMIT 1)) AS rail_ref
  FROM pay.payout p
  -- Unfenced submissions count too: else a worker of the experiment would submit again and again.
  LEFT JOIN LATERAL (SELECT * FROM pay.rail_submission x WHERE x.payout_id = p.payout_id
                      ORDER BY x.fenced DESC, x.intent_at, x.submission_id LIMIT 1) r ON true
  LEFT JOIN LATERAL (SELECT coalesce(r.outcome, 'INTENT') AS outcome_or_intent, r.rail_ref WHERE r.submission_id IS NOT NULL) s ON true
  CROSS JOIN LATERAL (SELECT pay.rail_verdict(p.payout_id) AS verdict) v;

-- The names under which violations are counted: a closed set, so that a gauge shows 0 and not nothing.
CREATE VIEW pay.invariant (invariant) AS VALUES
  ('INV-02'), ('INV-03'), ('INV-05'), ('INV-06'), ('INV-08'), ('ONE-POSTING'), ('ONE-TOKEN-ONE-CLAIM');

-- Empty when all is well.
CREATE VIEW pay.invariant_violation AS
SELECT 'INV-02' AS invariant, payout_id::text AS subject, count(*) || ' submissions' AS detail
  FROM pay.rail_submission WHERE outcome IS DISTINCT FROM 'VOIDED' GROUP BY payout_id HAVING count(*) > 1
UNION ALL
SELECT 'INV-02', payout_id::text, 'the rail executed it ' || max(executed_count) || ' times'
  FROM pay.rail_lookup GROUP BY payout_id HAVING max(executed_count) > 1
UNION ALL
SELECT 'ONE-POSTING', payout_id::text, count(*) || ' postings'
  FROM pay.journal WHERE kind = 'PAYOUT' GROUP BY payout_id HAVING count(*) > 1
UNION ALL
SELECT 'INV-03', 'journal ' || journal_id, count(amount_minor) || ' entries, sum ' || coalesce(sum(amount_minor), 0)
  FROM pay.journal LEFT JOIN pay.ledger_entry USING (journal_id)
 GROUP BY journal_id HAVING coalesce(sum(amount_minor), 0) <> 0 OR count(amount_minor) < 2
UNION ALL
SELECT 'INV-03', a.account_id, 'balance and entries differ by ' || a.balance_minor - coalesce(sum(e.amount_minor), 0)
  FROM pay.account a LEFT JOIN pay.ledger_entry e USING (account_id)
 GROUP BY a.account_id HAVING a.balance_minor <> coalesce(sum(e.amount_minor), 0)
UNION ALL
SELECT 'INV-03', a.account_id, 'reserve and payouts in flight differ by ' || a.reserved_minor - coalesce(sum(p.amount_minor), 0)
  FROM pay.account a LEFT JOIN pay.payout p ON p.account_id = a.account_id AND p.state IN ('CLAIMED', 'RAIL_AMBIGUOUS')
 GROUP BY a.account_id HAVING a.reserved_minor <> coalesce(sum(p.amount_minor), 0)
UNION ALL  -- a token acted on an account after a greater one had
SELECT 'INV-05', payout_id::text, 'token ' || token || ' acted after ' || greatest_before
  FROM (SELECT t.payout_id, t.token,
               max(t.token) OVER (PARTITION BY p.account_id ORDER BY t.transition_id
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS greatest_before
          FROM pay.payout_transition t JOIN pay.payout p USING (payout_id)) acts
 WHERE token < greatest_before
UNION ALL  -- what was acknowledged, declined or voided needs no look at the lookups
SELECT 'INV-06', payout_id::text, 'POSTED, but the rail verdict is ' || pay.rail_verdict(payout_id)
  FROM (SELECT payout_id FROM pay.payout WHERE state = 'POSTED'
        EXCEPT SELECT payout_id FROM pay.rail_submission WHERE outcome = 'ACKED' OFFSET 0) doubtful
 WHERE pay.rail_verdict(payout_id) <> 'EXECUTED'
UNION ALL  -- a late execution; closed by the adjustment that says where the money went
SELECT 'INV-06', payout_id::text, 'FAILED, but the rail verdict is ' || pay.rail_verdict(payout_id)
  FROM (SELECT payout_id FROM pay.payout WHERE state = 'FAILED'
        EXCEPT SELECT payout_id FROM pay.rail_submission WHERE outcome IN ('DECLINED', 'VOIDED') AND fenced OFFSET 0) doubtful
 WHERE pay.rail_verdict(payout_id) <> 'NOT_EXECUTED'
   AND NOT EXISTS (SELECT FROM pay.journal j WHERE j.payout_id = doubtful.payout_id AND j.kind = 'ADJUSTMENT')
UNION ALL  -- the same for one that was declined or voided, and which the rail nevertheless knows
SELECT 'INV-06', s.payout_id::text, 'FAILED after ' || s.outcome || ', but the rail executed it'
  FROM pay.rail_submission s JOIN pay.payout p USING (payout_id)
 WHERE p.state = 'FAILED' AND s.outcome IN ('DECLINED', 'VOIDED')
   AND EXISTS (SELECT FROM pay.rail_lookup l WHERE l.payout_id = s.payout_id AND l.result = 'EXECUTED')
   AND NOT EXISTS (SELECT FROM pay.journal j WHERE j.payout_id = s.payout_id AND j.kind = 'ADJUSTMENT')
UNION ALL
SELECT 'INV-08', s.payout_id::text, 'submitted after it had become ambiguous'
  FROM pay.rail_submission s
 WHERE s.intent_at > (SELECT min(t.at) FROM pay.payout_transition t
                       WHERE t.payout_id = s.payout_id AND t.to_state = 'RAIL_AMBIGUOUS')
UNION ALL
SELECT 'ONE-TOKEN-ONE-CLAIM', p.account_id, 'token ' || t.token || ' claimed ' || count(DISTINCT t.payout_id) || ' payouts'
  FROM pay.payout_transition t JOIN pay.payout p USING (payout_id)
 WHERE t.to_state = 'CLAIMED' GROUP BY p.account_id, t.token HAVING count(DISTINCT t.payout_id) > 1;

-- What an experiment left behind. A database with any of these is never ready in production.
CREATE VIEW pay.unfenced_row AS
SELECT 'rail' AS point, submission_id::text AS row_id FROM pay.rail_submission WHERE NOT fenced
UNION ALL
SELECT 'resource', journal_id::text FROM pay.journal WHERE NOT fenced;
CREATE INDEX rail_submission_unfenced ON pay.rail_submission (submission_id) WHERE NOT fenced;
CREATE INDEX journal_unfenced ON pay.journal (journal_id) WHERE NOT fenced;

-- Below this no lock backend may ever mint again (a restored lockdb, a move from pg to etcd).
CREATE VIEW pay.token_floor AS
SELECT greatest((SELECT max(fence) FROM pay.account), (SELECT max(highest_token) FROM pay.rail_high_water)) AS floor;

RESET ROLE;
