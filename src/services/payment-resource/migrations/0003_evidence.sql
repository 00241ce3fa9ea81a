-- What the record proves about the rail, and what that means for whoever holds the account's lock.
SET LOCAL ROLE dlock_owner;

CREATE FUNCTION pay.fencing_on(at_point text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pay, pg_temp
AS $$ SELECT enabled FROM fencing_switch WHERE point = at_point $$;

-- The submission that counts: the fenced one if there is one, else (in the experiment) the first.
CREATE VIEW pay.payout_submission AS
SELECT DISTINCT ON (payout_id) *, coalesce(outcome, 'INTENT') AS outcome_or_intent
  FROM pay.rail_submission ORDER BY payout_id, fenced DESC, intent_at, submission_id;

-- The only input of a terminal transition: NONE, EXECUTED, NOT_EXECUTED, CONFLICT or UNKNOWN. Asks no clock.
CREATE FUNCTION pay.rail_verdict(of_payout uuid) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pay, pg_temp AS $$
DECLARE
  sent payout_submission;
  policy rail_policy;
  executed int; rejected int; not_found int; spread interval;
BEGIN
  SELECT * INTO sent FROM payout_submission WHERE payout_id = of_payout;
  IF NOT FOUND THEN RETURN 'NONE'; END IF;  -- nothing can have left through the proxy
  IF sent.outcome IN ('DECLINED', 'VOIDED') THEN RETURN 'NOT_EXECUTED'; END IF;
  IF sent.outcome = 'ACKED' THEN RETURN 'EXECUTED'; END IF;

  SELECT * INTO policy FROM rail_policy;
  -- "Not found" proves nothing until the send can not happen any more and the rail has had time to show it.
  SELECT count(*) FILTER (WHERE result = 'EXECUTED'),
         count(*) FILTER (WHERE result = 'REJECTED'),
         count(*) FILTER (WHERE result = 'NOT_FOUND' AND asked_at >= sent.send_by + policy.finality_window),
         max(asked_at) FILTER (WHERE result = 'NOT_FOUND' AND asked_at >= sent.send_by + policy.finality_window)
       - min(asked_at) FILTER (WHERE result = 'NOT_FOUND' AND asked_at >= sent.send_by + policy.finality_window)
    INTO executed, rejected, not_found, spread
    FROM rail_lookup WHERE payout_id = of_payout;

  IF executed > 0 AND rejected > 0 THEN  -- a human decides, and his newest word counts
    RETURN coalesce(
      (SELECT CASE result WHEN 'EXECUTED' THEN 'EXECUTED' ELSE 'NOT_EXECUTED' END FROM rail_lookup
        WHERE payout_id = of_payout AND source = 'OPERATOR' AND result IN ('EXECUTED', 'REJECTED')
        ORDER BY lookup_id DESC LIMIT 1),
      'CONFLICT');
  END IF;
  IF executed > 0 THEN RETURN 'EXECUTED'; END IF;
  IF rejected > 0 THEN RETURN 'NOT_EXECUTED'; END IF;
  IF not_found >= policy.min_not_found AND spread >= policy.min_spacing * (policy.min_not_found - 1) THEN
    RETURN 'NOT_EXECUTED';
  END IF;
  RETURN 'UNKNOWN';
END $$;

-- The same table as nextStep() of core/payment/Payout.ts. `submission` is NULL when nothing was submitted.
CREATE FUNCTION pay.next_step(state text, submission text, verdict text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN state IN ('POSTED', 'FAILED') THEN 'NONE'
    WHEN state = 'PENDING' AND submission IS NULL THEN 'CLAIM'
    WHEN state = 'PENDING' THEN 'FAIL'
    WHEN state = 'CLAIMED' AND submission IS NULL THEN 'SUBMIT'
    WHEN state = 'CLAIMED' AND verdict = 'EXECUTED' THEN 'POST'
    WHEN state = 'CLAIMED' AND verdict = 'NOT_EXECUTED' THEN 'FAIL'
    WHEN state = 'CLAIMED' AND submission = 'INTENT' THEN 'AWAIT'
    WHEN state = 'CLAIMED' THEN 'AMBIGUOUS'
    WHEN verdict IN ('EXECUTED', 'NOT_EXECUTED') THEN 'RESOLVE'
    WHEN verdict = 'CONFLICT' THEN 'ESCALATE'
    ELSE 'LOOKUP' END
$$;

RESET ROLE;
