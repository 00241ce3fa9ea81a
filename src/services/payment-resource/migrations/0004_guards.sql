-- What holds whatever the services do: even if the lock service grants everyone, even if a service forgets a check.
--
-- SQLSTATE  meaning
-- DL001     fenced out at the resource: a stale token
-- DL002     the state machine has no such move
-- DL003     the evidence does not prove what the move claims
-- DL004     immutable: this never changes, or only through a trigger
-- DL005     the journal is not what it must be
-- DL006     fenced out at the rail: the token was not spent on this payout there
-- DL007     the token is not the payout's current claim (c2)
SET LOCAL ROLE dlock_owner;

-- ---------------------------------------------------------------- append-only, and never deleted
CREATE FUNCTION pay.forbid_mutation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% on %.% is forbidden', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'DL004';
END $$;

-- ENABLE ALWAYS: they hold under `session_replication_role = replica` too. All other triggers stay ORIGIN, else logical
-- replication (a major upgrade) would apply every balance twice.
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['journal', 'ledger_entry', 'payout_transition', 'rail_lookup',
                           'account', 'payout', 'rail_high_water', 'rail_submission'] LOOP
    EXECUTE format('CREATE TRIGGER zz_immutable BEFORE %s ON pay.%I FOR EACH ROW EXECUTE FUNCTION pay.forbid_mutation()',
      CASE WHEN t IN ('journal', 'ledger_entry', 'payout_transition', 'rail_lookup') THEN 'UPDATE OR DELETE' ELSE 'DELETE' END, t);
    EXECUTE format('CREATE TRIGGER zz_no_truncate BEFORE TRUNCATE ON pay.%I FOR EACH STATEMENT EXECUTE FUNCTION pay.forbid_mutation()', t);
    EXECUTE format('ALTER TABLE pay.%I ENABLE ALWAYS TRIGGER zz_immutable, ENABLE ALWAYS TRIGGER zz_no_truncate', t);
  END LOOP;
END $$;

-- ---------------------------------------------------------------- account
CREATE FUNCTION pay.account_birth() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.balance_minor <> 0 OR NEW.reserved_minor <> 0 OR NEW.fence <> 0 THEN
    RAISE EXCEPTION 'an account is born empty and unfenced' USING ERRCODE = 'DL004';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER aa_birth BEFORE INSERT ON pay.account FOR EACH ROW EXECUTE FUNCTION pay.account_birth();

CREATE FUNCTION pay.account_guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pay, pg_temp AS $$
BEGIN
  IF (NEW.account_id, NEW.kind, NEW.currency, NEW.created_at)
     IS DISTINCT FROM (OLD.account_id, OLD.kind, OLD.currency, OLD.created_at) THEN
    RAISE EXCEPTION 'the identity of an account is immutable' USING ERRCODE = 'DL004';
  END IF;
  -- Depth 1 is an UPDATE of somebody's own; the triggers of ledger_entry and payout write at depth 2.
  IF (NEW.balance_minor, NEW.reserved_minor) IS DISTINCT FROM (OLD.balance_minor, OLD.reserved_minor)
     AND pg_trigger_depth() < 2 THEN
    RAISE EXCEPTION 'balance and reserve of % are derived' , OLD.account_id USING ERRCODE = 'DL004';
  END IF;
  IF NEW.fence < OLD.fence AND fencing_on('resource') THEN
    RAISE EXCEPTION 'the fence of % may not go back from % to %', OLD.account_id, OLD.fence, NEW.fence USING ERRCODE = 'DL001';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER aa_guard BEFORE UPDATE ON pay.account FOR EACH ROW EXECUTE FUNCTION pay.account_guard();

-- ---------------------------------------------------------------- payout: moves, tokens, evidence
CREATE FUNCTION pay.payout_birth() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pay, pg_temp AS $$
BEGIN
  IF NEW.state <> 'PENDING' OR NEW.last_token IS NOT NULL THEN
    RAISE EXCEPTION 'a payout is born PENDING and without a token' USING ERRCODE = 'DL002';
  END IF;
  IF (SELECT kind FROM account WHERE account_id = NEW.account_id) <> 'CUSTOMER' THEN
    RAISE EXCEPTION 'payouts are made from CUSTOMER accounts only' USING ERRCODE = 'DL002';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER aa_birth BEFORE INSERT ON pay.payout FOR EACH ROW EXECUTE FUNCTION pay.payout_birth();

CREATE FUNCTION pay.payout_guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pay, pg_temp AS $$
DECLARE
  fence_now bigint;
  verdict text;
  move text := OLD.state || '>' || NEW.state;
  proven boolean;
BEGIN
  IF (NEW.payout_id, NEW.account_id, NEW.currency, NEW.amount_minor, NEW.beneficiary_ref, NEW.client_ref,
      NEW.idempotency_key, NEW.request_hash, NEW.created_at)
     IS DISTINCT FROM
     (OLD.payout_id, OLD.account_id, OLD.currency, OLD.amount_minor, OLD.beneficiary_ref, OLD.client_ref,
      OLD.idempotency_key, OLD.request_hash, OLD.created_at) THEN
    RAISE EXCEPTION 'what was ordered is immutable' USING ERRCODE = 'DL004';
  END IF;
  verdict := rail_verdict(NEW.payout_id);

  -- The experiment: token and state predicates stand aside. What the rail did is still not up for debate.
  IF NOT fencing_on('resource') THEN
    IF NOT (CASE NEW.state WHEN 'POSTED' THEN verdict = 'EXECUTED'
                          WHEN 'FAILED' THEN verdict = 'NOT_EXECUTED'
                          WHEN 'RAIL_AMBIGUOUS' THEN verdict IN ('UNKNOWN', 'CONFLICT')
                          ELSE true END) THEN
      RAISE EXCEPTION '% refused: the rail verdict is %', move, verdict USING ERRCODE = 'DL003';
    END IF;
    RETURN NEW;
  END IF;

  -- Under the account's row lock, so that no claim can advance the fence between this look and the commit.
  SELECT fence INTO fence_now FROM account WHERE account_id = NEW.account_id FOR NO KEY UPDATE;
  IF NEW.last_token IS DISTINCT FROM fence_now THEN
    RAISE EXCEPTION 'token % is not the fence % of %', NEW.last_token, fence_now, NEW.account_id USING ERRCODE = 'DL001';
  END IF;
  IF move NOT IN ('PENDING>CLAIMED', 'PENDING>FAILED', 'CLAIMED>CLAIMED', 'CLAIMED>POSTED', 'CLAIMED>FAILED',
                  'CLAIMED>RAIL_AMBIGUOUS', 'RAIL_AMBIGUOUS>POSTED', 'RAIL_AMBIGUOUS>FAILED') THEN
    RAISE EXCEPTION 'there is no move %', move USING ERRCODE = 'DL002';
  END IF;
  -- Whose token: a claim takes the acting one, later moves of a claimed payout need the very token that claimed it.
  IF NOT (CASE
       WHEN move = 'PENDING>FAILED' THEN NEW.claim_token IS NULL
       WHEN move = 'PENDING>CLAIMED' THEN NEW.claim_token = NEW.last_token
       WHEN move = 'CLAIMED>CLAIMED' THEN NEW.claim_token = NEW.last_token AND NEW.claim_token > OLD.claim_token
       WHEN OLD.state = 'CLAIMED' THEN NEW.claim_token = NEW.last_token AND NEW.claim_token = OLD.claim_token
       WHEN move = 'RAIL_AMBIGUOUS>POSTED' THEN NEW.claim_token = NEW.last_token AND NEW.claim_token >= OLD.claim_token
       ELSE NEW.claim_token >= OLD.claim_token END) THEN
    RAISE EXCEPTION '% refused: acting token %, claim token % to %', move, NEW.last_token, OLD.claim_token, NEW.claim_token
      USING ERRCODE = 'DL001';
  END IF;
  proven := CASE move
    WHEN 'PENDING>CLAIMED' THEN verdict = 'NONE'
    WHEN 'CLAIMED>CLAIMED' THEN true
    WHEN 'CLAIMED>RAIL_AMBIGUOUS' THEN verdict IN ('UNKNOWN', 'CONFLICT')
    ELSE CASE NEW.state WHEN 'POSTED' THEN verdict = 'EXECUTED' ELSE verdict = 'NOT_EXECUTED' END END;
  IF NOT proven THEN
    RAISE EXCEPTION '% refused: the rail verdict is %', move, verdict USING ERRCODE = 'DL003';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER aa_guard BEFORE UPDATE ON pay.payout FOR EACH ROW EXECUTE FUNCTION pay.payout_guard();

-- Reserve at claim, release at the end; and the audit row. A reserve makes sure that an acknowledged payout finds its
-- funds when it is posted.
CREATE FUNCTION pay.payout_effects() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pay, pg_temp AS $$
DECLARE
  held_before boolean := TG_OP = 'UPDATE' AND OLD.state IN ('CLAIMED', 'RAIL_AMBIGUOUS');
  held_after boolean := NEW.state IN ('CLAIMED', 'RAIL_AMBIGUOUS');
  fence_now bigint;
BEGIN
  IF held_before <> held_after THEN
    UPDATE account SET reserved_minor = reserved_minor + CASE WHEN held_after THEN NEW.amount_minor ELSE -NEW.amount_minor END
     WHERE account_id = NEW.account_id;
  END IF;
  SELECT fence INTO fence_now FROM account WHERE account_id = NEW.account_id;
  INSERT INTO payout_transition (payout_id, from_state, to_state, actor, token, fence_seen, reason, evidence, db_role, trace_id)
  VALUES (NEW.payout_id, CASE WHEN TG_OP = 'UPDATE' THEN OLD.state END, NEW.state, NEW.last_actor, NEW.last_token, fence_now,
          NEW.fail_reason, rail_verdict(NEW.payout_id),
          CASE current_setting('role') WHEN 'none' THEN session_user::text ELSE current_setting('role') END, NEW.trace_id);
  RETURN NULL;
END $$;
CREATE TRIGGER zz_effects AFTER INSERT OR UPDATE ON pay.payout FOR EACH ROW EXECUTE FUNCTION pay.payout_effects();

-- ---------------------------------------------------------------- rail
CREATE FUNCTION pay.high_water_guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pay, pg_temp AS $$
BEGIN
  IF NEW.account_id <> OLD.account_id THEN
    RAISE EXCEPTION 'the account of a high-water mark is immutable' USING ERRCODE = 'DL004';
  END IF;
  IF NEW.highest_token <= OLD.highest_token AND fencing_on('rail') THEN
    RAISE EXCEPTION 'the rail high-water mark of % is %, refused %', OLD.account_id, OLD.highest_token, NEW.highest_token
      USING ERRCODE = 'DL006';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER aa_guard BEFORE UPDATE ON pay.rail_high_water FOR EACH ROW EXECUTE FUNCTION pay.high_water_guard();

CREATE FUNCTION pay.submission_birth() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pay, pg_temp AS $$
DECLARE
  mark rail_high_water;
  ordered payout;
BEGIN
  IF NEW.outcome IS NOT NULL AND NEW.outcome <> 'VOIDED' THEN
    RAISE EXCEPTION 'the intent is recorded before the outcome' USING ERRCODE = 'DL002';
  END IF;
  NEW.fenced := fencing_on('rail');
  IF NOT NEW.fenced THEN RETURN NEW; END IF;  -- the experiment

  -- (c): this token is the high-water mark and was spent on this payout.
  SELECT * INTO mark FROM rail_high_water WHERE account_id = NEW.account_id;
  IF mark.highest_token IS DISTINCT FROM NEW.token OR mark.payout_id IS DISTINCT FROM NEW.payout_id THEN
    RAISE EXCEPTION 'token % was not spent on payout % at the rail (high-water mark % for %)',
      NEW.token, NEW.payout_id, mark.highest_token, mark.payout_id USING ERRCODE = 'DL006';
  END IF;
  -- (c2), independent of (c): only the current claimant submits, and only what was not sent is voided. FOR SHARE: a
  -- claim that commits after this look would make it untrue.
  SELECT * INTO ordered FROM payout WHERE payout_id = NEW.payout_id FOR SHARE;
  -- IS NOT TRUE: of an intent the outcome is NULL, and NOT (false OR NULL) would refuse nothing.
  IF (ordered.state = 'CLAIMED' AND ordered.claim_token = NEW.token
      OR NEW.outcome = 'VOIDED' AND ordered.state = 'PENDING') IS NOT TRUE THEN
    RAISE EXCEPTION '% refused: payout % is % under claim token %, presented %',
      CASE NEW.outcome WHEN 'VOIDED' THEN 'void' ELSE 'submit' END, NEW.payout_id, ordered.state, ordered.claim_token, NEW.token
      USING ERRCODE = 'DL007';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER aa_birth BEFORE INSERT ON pay.rail_submission FOR EACH ROW EXECUTE FUNCTION pay.submission_birth();

CREATE FUNCTION pay.submission_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  written text[] := ARRAY['outcome', 'outcome_at', 'rail_ref', 'rail_code'];
BEGIN
  IF OLD.outcome IS NOT NULL OR NEW.outcome IS NULL OR NEW.outcome = 'VOIDED'
     OR to_jsonb(NEW) - written <> to_jsonb(OLD) - written THEN
    RAISE EXCEPTION 'the outcome of a submission is written once, and nothing else ever' USING ERRCODE = 'DL004';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER aa_guard BEFORE UPDATE ON pay.rail_submission FOR EACH ROW EXECUTE FUNCTION pay.submission_guard();

-- ---------------------------------------------------------------- ledger
CREATE FUNCTION pay.journal_birth() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pay, pg_temp AS $$
BEGIN
  NEW.created_xid := pg_current_xact_id();
  NEW.fenced := fencing_on('resource');
  RETURN NEW;
END $$;
CREATE TRIGGER aa_birth BEFORE INSERT ON pay.journal FOR EACH ROW EXECUTE FUNCTION pay.journal_birth();

CREATE FUNCTION pay.entry_apply() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pay, pg_temp AS $$
BEGIN
  -- A closed journal does not grow, not even by entries that balance.
  IF (SELECT created_xid FROM journal WHERE journal_id = NEW.journal_id) IS DISTINCT FROM pg_current_xact_id() THEN
    RAISE EXCEPTION 'journal % is closed', NEW.journal_id USING ERRCODE = 'DL004';
  END IF;
  UPDATE account SET balance_minor = balance_minor + NEW.amount_minor WHERE account_id = NEW.account_id;
  RETURN NEW;
END $$;
CREATE TRIGGER aa_apply BEFORE INSERT ON pay.ledger_entry FOR EACH ROW EXECUTE FUNCTION pay.entry_apply();

-- At commit. On the journal (it has entries at all) and on every entry (one added after SET CONSTRAINTS IMMEDIATE).
CREATE FUNCTION pay.journal_balanced() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pay, pg_temp AS $$
DECLARE
  j journal;
  ordered payout;
  entries int; currencies int; total numeric;
  kinds text[];
BEGIN
  SELECT * INTO j FROM journal WHERE journal_id = NEW.journal_id;
  SELECT count(*), count(DISTINCT e.currency), sum(e.amount_minor), array_agg(DISTINCT a.kind ORDER BY a.kind)
    INTO entries, currencies, total, kinds
    FROM ledger_entry e JOIN account a USING (account_id) WHERE e.journal_id = j.journal_id;
  IF entries < 2 OR currencies <> 1 OR total <> 0 THEN
    RAISE EXCEPTION 'journal % does not balance: % entries, % currencies, sum %', j.journal_id, entries, currencies, total
      USING ERRCODE = 'DL005';
  END IF;
  IF j.kind = 'FUNDING' AND kinds <> ARRAY['CUSTOMER', 'FUNDING'] OR j.kind = 'ADJUSTMENT' AND NOT 'SUSPENSE' = ANY (kinds) THEN
    RAISE EXCEPTION 'journal % of kind % moves money between %', j.journal_id, j.kind, kinds USING ERRCODE = 'DL005';
  END IF;
  IF j.kind = 'PAYOUT' THEN
    SELECT * INTO ordered FROM payout WHERE payout_id = j.payout_id;
    -- In the experiment a second posting of the same payout passes; it still moves what was ordered.
    IF j.fenced AND (ordered.state <> 'POSTED' OR ordered.last_token IS DISTINCT FROM j.token)
       OR entries <> 2
       OR NOT EXISTS (SELECT FROM ledger_entry WHERE journal_id = j.journal_id
                       AND account_id = ordered.account_id AND amount_minor = -ordered.amount_minor)
       OR NOT EXISTS (SELECT FROM ledger_entry e JOIN account a USING (account_id) WHERE e.journal_id = j.journal_id
                       AND a.kind = 'CLEARING' AND e.amount_minor = ordered.amount_minor) THEN
      RAISE EXCEPTION 'journal % is not the posting of payout %', j.journal_id, j.payout_id USING ERRCODE = 'DL005';
    END IF;
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER zz_balanced AFTER INSERT ON pay.journal
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pay.journal_balanced();
CREATE CONSTRAINT TRIGGER zz_balanced AFTER INSERT ON pay.ledger_entry
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pay.journal_balanced();

-- POSTED if and only if there is exactly one posting.
CREATE FUNCTION pay.posted_has_journal() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pay, pg_temp AS $$
DECLARE postings int;
BEGIN
  SELECT count(*) INTO postings FROM journal WHERE payout_id = NEW.payout_id AND kind = 'PAYOUT';
  IF fencing_on('resource') AND postings <> (CASE NEW.state WHEN 'POSTED' THEN 1 ELSE 0 END) THEN
    RAISE EXCEPTION 'payout % is % with % postings', NEW.payout_id, NEW.state, postings USING ERRCODE = 'DL005';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER zz_posted AFTER UPDATE ON pay.payout
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.state IN ('POSTED', 'FAILED')) EXECUTE FUNCTION pay.posted_has_journal();

RESET ROLE;
