-- Locks: sessions, grants, tokens, audit, and the operations on them, each one call and one transaction.
--
-- A function here is volatile plpgsql, so under READ COMMITTED each of its statements takes a new snapshot. The order is
-- always the same: the grant row, then the caller's own session row, then (never waiting for it) the holder's session.
-- Whoever holds a session row waits for nothing more, so there is no cycle. The session comes second because the grant
-- row is where one queues: a session row that is locked while its owner queues keeps his heartbeat waiting, and runs out
-- by the time that he is granted the key.
--
-- Time is clock_timestamp(), read after the locks: now() is the start of the transaction, and a statement that waited 3 s
-- for a row with a 2 s lease would otherwise answer a grant that is already over.

CREATE SCHEMA lock;

-- -----------------------------------------------------------------------------
-- tables
-- -----------------------------------------------------------------------------

CREATE TABLE lock.lock_session (
  session_id text COLLATE "C" PRIMARY KEY,
  owner_id text NOT NULL,
  ttl_ms integer NOT NULL CHECK (ttl_ms > 0),
  open_id text NOT NULL,
  opened_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  -- Once set, the session is dead for ever, and so is every grant of it.
  closed_at timestamptz,
  end_reason text CHECK (end_reason IN ('closed', 'expired')),
  CHECK ((closed_at IS NULL) = (end_reason IS NULL))
) WITH (fillfactor = 70);

CREATE UNIQUE INDEX lock_session_open_id ON lock.lock_session (owner_id, open_id) WHERE closed_at IS NULL;
CREATE INDEX lock_session_closed_at ON lock.lock_session (closed_at) WHERE closed_at IS NOT NULL;

-- One row a key, kept after its grant ended, so that "never seen" and "free" differ.
CREATE TABLE lock.lock_grant (
  lock_key text COLLATE "C" PRIMARY KEY,
  fencing_token bigint NOT NULL CHECK (fencing_token > 0),
  -- Every later token of the key is above it: the last token, or what a revocation raised it to.
  token_floor bigint NOT NULL CHECK (token_floor >= fencing_token),
  session_id text NOT NULL,
  owner_id text NOT NULL,
  acquire_id text NOT NULL,
  ttl_ms integer NOT NULL CHECK (ttl_ms > 0),
  granted_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  -- Null although the grant is over: it ended by itself (lease or session), and nobody has told of it yet.
  ended_at timestamptz,
  end_reason text CHECK (end_reason IN ('released', 'expired', 'revoked', 'session')),
  CHECK ((ended_at IS NULL) = (end_reason IS NULL))
) WITH (fillfactor = 70);

-- Not partial: a column in the predicate of an index makes every update of it touch all indexes, and this one changes
-- with each grant and each release.
CREATE INDEX lock_grant_session ON lock.lock_grant (session_id);

-- Who got and lost which key under which token, and why. Never changed.
CREATE TABLE lock.lock_event (
  event_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind text NOT NULL CHECK (kind IN ('granted', 'released', 'expired', 'revoked', 'session',
                                     'session_closed', 'session_expired')),
  lock_key text COLLATE "C",
  fencing_token bigint,
  session_id text NOT NULL,
  -- Who acted: the owner, or the operator of a revocation.
  actor text NOT NULL,
  acquire_id text,
  reason text,
  at timestamptz NOT NULL,
  CHECK ((lock_key IS NULL) = (kind IN ('session_closed', 'session_expired'))),
  CHECK ((fencing_token IS NULL) = (lock_key IS NULL)),
  CHECK ((acquire_id IS NOT NULL) = (kind = 'granted'))
);

-- An acquire id grants once, and no token is granted or ended twice, whatever the functions below think.
CREATE UNIQUE INDEX lock_event_acquire_id ON lock.lock_event (session_id, lock_key, acquire_id) WHERE kind = 'granted';
CREATE UNIQUE INDEX lock_event_granted ON lock.lock_event (fencing_token) WHERE kind = 'granted';
CREATE UNIQUE INDEX lock_event_ended ON lock.lock_event (fencing_token)
  WHERE kind IN ('released', 'expired', 'revoked', 'session');

CREATE TABLE lock.lock_revocation (
  lock_key text COLLATE "C" NOT NULL,
  revocation_id text NOT NULL,
  operator text NOT NULL CHECK (btrim(operator) <> ''),
  reason text NOT NULL CHECK (length(btrim(reason)) >= 8),
  revoked_token bigint NOT NULL,
  new_token_floor bigint NOT NULL CHECK (new_token_floor >= revoked_token),
  revoked_at timestamptz NOT NULL,
  -- A repeat is a write: see lock.revoke.
  repeats integer NOT NULL DEFAULT 0,
  PRIMARY KEY (lock_key, revocation_id)
);

CREATE INDEX lock_revocation_last ON lock.lock_revocation (lock_key, revoked_at DESC);

-- Grants and sessions that ended by themselves and whose end has to be logged and counted by one instance.
CREATE TABLE lock.lock_untold (
  untold_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  lock_key text COLLATE "C",
  fencing_token bigint,
  owner_id text NOT NULL,
  held_ms bigint,
  end_reason text NOT NULL CHECK (end_reason IN ('expired', 'session'))
);

-- CACHE 1 and logged: a cached, an unlogged or an asynchronously committed value is handed out twice after a crash.
-- Owned by no column and never reset.
CREATE SEQUENCE lock.lock_token_seq AS bigint START 1 INCREMENT 1 MINVALUE 1 NO CYCLE CACHE 1;

-- -----------------------------------------------------------------------------
-- guards
-- -----------------------------------------------------------------------------

CREATE FUNCTION lock.guard_grant() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  IF NEW.lock_key <> OLD.lock_key THEN
    RAISE EXCEPTION 'the key of a grant does not change' USING ERRCODE = 'DL001';
  END IF;
  IF NEW.token_floor < OLD.token_floor OR NEW.fencing_token < OLD.fencing_token THEN
    RAISE EXCEPTION 'tokens of % would go down: % to %, floor % to %',
      OLD.lock_key, OLD.fencing_token, NEW.fencing_token, OLD.token_floor, NEW.token_floor USING ERRCODE = 'DL001';
  END IF;
  IF NEW.fencing_token = OLD.fencing_token THEN
    -- The same grant: it is renewed or it ends. It does not change hands and does not come back.
    IF (NEW.session_id, NEW.owner_id, NEW.acquire_id, NEW.granted_at)
         IS DISTINCT FROM (OLD.session_id, OLD.owner_id, OLD.acquire_id, OLD.granted_at)
       OR NEW.expires_at < OLD.expires_at
       OR (OLD.ended_at IS NOT NULL AND NEW.ended_at IS DISTINCT FROM OLD.ended_at) THEN
      RAISE EXCEPTION 'a grant of % would change without a new token', OLD.lock_key USING ERRCODE = 'DL001';
    END IF;
  ELSIF NEW.fencing_token <= OLD.token_floor THEN
    RAISE EXCEPTION 'a grant of % under token % is not above %', OLD.lock_key, NEW.fencing_token, OLD.token_floor
      USING ERRCODE = 'DL001';
  ELSIF OLD.ended_at IS NULL AND OLD.expires_at > clock_timestamp()
        AND EXISTS (SELECT FROM lock.lock_session s WHERE s.session_id = OLD.session_id AND s.closed_at IS NULL) THEN
    RAISE EXCEPTION 'a grant of % while the one before lives', OLD.lock_key USING ERRCODE = 'DL001';
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER guard_grant BEFORE UPDATE ON lock.lock_grant FOR EACH ROW EXECUTE FUNCTION lock.guard_grant();

CREATE FUNCTION lock.guard_session() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  IF OLD.closed_at IS NOT NULL THEN
    RAISE EXCEPTION 'session % is dead and does not come back', OLD.session_id USING ERRCODE = 'DL001';
  END IF;
  IF NEW.session_id <> OLD.session_id OR NEW.owner_id <> OLD.owner_id THEN
    RAISE EXCEPTION 'a session does not change hands' USING ERRCODE = 'DL001';
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER guard_session BEFORE UPDATE ON lock.lock_session FOR EACH ROW EXECUTE FUNCTION lock.guard_session();

CREATE FUNCTION lock.guard_append_only() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'DL002';
END $$;

CREATE TRIGGER guard_event BEFORE UPDATE OR DELETE ON lock.lock_event
  FOR EACH ROW EXECUTE FUNCTION lock.guard_append_only();
CREATE TRIGGER guard_event_truncate BEFORE TRUNCATE ON lock.lock_event
  FOR EACH STATEMENT EXECUTE FUNCTION lock.guard_append_only();
CREATE TRIGGER guard_revocation BEFORE DELETE ON lock.lock_revocation
  FOR EACH ROW EXECUTE FUNCTION lock.guard_append_only();
CREATE TRIGGER guard_revocation_truncate BEFORE TRUNCATE ON lock.lock_revocation
  FOR EACH STATEMENT EXECUTE FUNCTION lock.guard_append_only();

-- What is missing of all that; empty when the service may grant.
CREATE VIEW lock.guard_missing AS
  SELECT 'trigger ' || wanted.name AS guard
    FROM (VALUES ('guard_grant', 'lock_grant'), ('guard_session', 'lock_session'), ('guard_event', 'lock_event'),
                 ('guard_event_truncate', 'lock_event'), ('guard_revocation', 'lock_revocation'),
                 ('guard_revocation_truncate', 'lock_revocation')) AS wanted (name, tab)
   WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t
                      WHERE t.tgrelid = pg_catalog.to_regclass('lock.' || wanted.tab)
                        AND t.tgname = wanted.name AND t.tgenabled IN ('O', 'A'))
  UNION ALL
  SELECT 'index ' || wanted.name
    FROM (VALUES ('lock_event_acquire_id'), ('lock_event_granted'), ('lock_event_ended'), ('lock_session_open_id'),
                 ('lock_grant_pkey')) AS wanted (name)
   WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_index i
                      WHERE i.indexrelid = pg_catalog.to_regclass('lock.' || wanted.name)
                        AND i.indisunique AND i.indisvalid)
  UNION ALL
  SELECT 'lock_token_seq: ' || fault
    FROM pg_catalog.pg_sequence s
    JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid
    CROSS JOIN LATERAL (VALUES
      (s.seqcache <> 1, 'cache ' || s.seqcache), (s.seqcycle, 'cycles'), (s.seqincrement <> 1, 'does not step by 1'),
      (c.relpersistence <> 'p', 'is not logged'), (s.seqtypid <> 'int8'::pg_catalog.regtype, 'is no bigint'))
      AS check_ (failed, fault)
   WHERE c.oid = pg_catalog.to_regclass('lock.lock_token_seq') AND failed
  UNION ALL
  SELECT 'lock_token_seq' WHERE pg_catalog.to_regclass('lock.lock_token_seq') IS NULL
  UNION ALL
  SELECT 'synchronous_commit is off' WHERE pg_catalog.current_setting('synchronous_commit') = 'off'
  UNION ALL
  SELECT 'transactions are not read committed'
   WHERE pg_catalog.current_setting('default_transaction_isolation') <> 'read committed'
  UNION ALL
  SELECT 'the server is a standby' WHERE pg_catalog.pg_is_in_recovery();

-- -----------------------------------------------------------------------------
-- parts
-- -----------------------------------------------------------------------------

CREATE FUNCTION lock.ms(t timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
  RETURN floor(extract(epoch FROM t) * 1000)::bigint;

CREATE FUNCTION lock.after_ms(t timestamptz, ms bigint) RETURNS timestamptz LANGUAGE sql STABLE
  RETURN t + ms * interval '1 millisecond';

-- The only place where tokens come from. Called with the grant row locked, so that a transaction which is slower can not
-- come later with a smaller one.
CREATE FUNCTION lock.mint(floor_ bigint) RETURNS bigint LANGUAGE plpgsql SET search_path = lock, pg_temp AS $$
DECLARE
  token bigint := nextval('lock_token_seq');
BEGIN
  IF token <= floor_ THEN
    RAISE EXCEPTION 'token % is not above %: the sequence went back', token, floor_ USING ERRCODE = 'DL003';
  END IF;
  RETURN token;
END $$;

-- Locks the caller's session and judges it: 'live', 'unknown' or 'expired'. A heartbeat that is under way is waited for,
-- so the verdict is final; a session found expired is closed, so it can not be contradicted later.
CREATE FUNCTION lock.own_session(p_session_id text, p_owner_id text) RETURNS text
LANGUAGE plpgsql SET search_path = lock, pg_temp AS $$
DECLARE
  s lock_session;
BEGIN
  SELECT * INTO s FROM lock_session WHERE session_id = p_session_id FOR SHARE;
  IF NOT FOUND OR s.owner_id <> p_owner_id OR s.end_reason = 'closed' THEN RETURN 'unknown'; END IF;
  IF s.end_reason = 'expired' THEN RETURN 'expired'; END IF;
  IF s.expires_at > clock_timestamp() THEN RETURN 'live'; END IF;
  PERFORM session_end(p_session_id);
  RETURN 'expired';
END $$;

-- When a session ended; null while it lives. One whose time is up is closed here, for ever. It never waits for another
-- transaction: one that has the row locked is a heartbeat, or an acquire that has just judged the session, so it is not
-- dead yet. (Two holders that acquire each other's keys at the end of their sessions would wait for each other.)
CREATE FUNCTION lock.session_end(p_session_id text) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = lock, pg_temp AS $$
DECLARE
  s lock_session;
BEGIN
  SELECT * INTO s FROM lock_session WHERE session_id = p_session_id;
  -- Collected, so it ended long ago.
  IF NOT FOUND THEN RETURN '-infinity'; END IF;
  IF s.closed_at IS NULL AND s.expires_at > clock_timestamp() THEN RETURN NULL; END IF;
  IF s.closed_at IS NULL THEN
    SELECT * INTO s FROM lock_session WHERE session_id = p_session_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND OR s.closed_at IS NULL AND s.expires_at > clock_timestamp() THEN RETURN NULL; END IF;
  END IF;
  IF s.closed_at IS NULL THEN
    UPDATE lock_session SET closed_at = clock_timestamp(), end_reason = 'expired' WHERE session_id = p_session_id;
    INSERT INTO lock_event (kind, session_id, actor, at)
      VALUES ('session_expired', p_session_id, s.owner_id, clock_timestamp());
    INSERT INTO lock_untold (owner_id, end_reason) VALUES (s.owner_id, 'session');
  END IF;
  RETURN CASE WHEN s.end_reason = 'closed' THEN s.closed_at ELSE s.expires_at END;
END $$;

-- Tells of the end of a grant whose row the caller has locked; answers when it ended.
CREATE FUNCTION lock.tell_end(g lock.lock_grant, p_reason text, p_actor text, p_note text) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = lock, pg_temp AS $$
DECLARE
  now_ timestamptz := clock_timestamp();
  ended timestamptz := CASE p_reason
    WHEN 'expired' THEN g.expires_at
    WHEN 'session' THEN greatest(g.granted_at, least(now_, session_end(g.session_id)))
    ELSE now_ END;
BEGIN
  INSERT INTO lock_event (kind, lock_key, fencing_token, session_id, actor, reason, at)
    VALUES (p_reason, g.lock_key, g.fencing_token, g.session_id, p_actor, p_note, now_);
  IF p_reason IN ('expired', 'session') THEN
    INSERT INTO lock_untold (lock_key, fencing_token, owner_id, held_ms, end_reason)
      VALUES (g.lock_key, g.fencing_token, g.owner_id, greatest(0, ms(ended) - ms(g.granted_at)), p_reason);
  END IF;
  RETURN ended;
END $$;

-- Ends a grant whose row the caller has locked, and answers how long it was held (ms).
CREATE FUNCTION lock.end_grant(g lock.lock_grant, p_reason text, p_actor text, p_note text) RETURNS bigint
LANGUAGE plpgsql SET search_path = lock, pg_temp AS $$
DECLARE
  ended timestamptz := tell_end(g, p_reason, p_actor, p_note);
BEGIN
  UPDATE lock_grant SET ended_at = ended, end_reason = p_reason WHERE lock_key = g.lock_key;
  RETURN greatest(0, ms(ended) - ms(g.granted_at));
END $$;

-- How a grant whose row the caller has locked is over ('expired', 'session', ..), or null while it lives. The holder's
-- session is not read through a join: it would be judged by the snapshot of a statement that may have waited for the
-- grant row, while its heartbeat was committed.
CREATE FUNCTION lock.over(g lock.lock_grant) RETURNS text LANGUAGE plpgsql SET search_path = lock, pg_temp AS $$
DECLARE
  dead timestamptz;
BEGIN
  IF g.end_reason IS NOT NULL THEN RETURN g.end_reason; END IF;
  dead := session_end(g.session_id);
  IF g.expires_at <= clock_timestamp() AND (dead IS NULL OR g.expires_at <= dead) THEN RETURN 'expired'; END IF;
  RETURN CASE WHEN dead IS NOT NULL THEN 'session' END;
END $$;

-- How the grant under a token that is not that of the live grant was lost.
CREATE FUNCTION lock.lost_reason(p_key text, p_owner_id text, p_token bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = lock, pg_temp AS $$
  SELECT coalesce(
    (SELECT e.kind FROM lock_event e
       JOIN lock_event g ON g.fencing_token = e.fencing_token AND g.kind = 'granted'
      WHERE e.fencing_token = p_token AND e.kind IN ('released', 'expired', 'revoked', 'session')
        AND e.lock_key = p_key AND g.actor = p_owner_id),
    'superseded')
$$;

-- -----------------------------------------------------------------------------
-- operations
-- -----------------------------------------------------------------------------

CREATE TYPE lock.session_answer AS (outcome text, session_id text, ttl_ms integer, expires_at bigint);
CREATE TYPE lock.grant_answer AS (
  outcome text,
  fencing_token bigint,
  owner_id text,
  session_id text,
  granted_at bigint,
  expires_at bigint,
  ttl_ms bigint,
  reason text,
  held_ms bigint
);

CREATE FUNCTION lock.granted(g lock.lock_grant, now_ timestamptz) RETURNS lock.grant_answer
LANGUAGE sql IMMUTABLE SET search_path = lock, pg_temp AS $$
  SELECT ROW('granted', g.fencing_token, g.owner_id, g.session_id, ms(g.granted_at), ms(g.expires_at),
             floor(extract(epoch FROM g.expires_at - now_) * 1000)::bigint, NULL, NULL)::grant_answer
$$;

CREATE FUNCTION lock.contended(p_owner_id text, p_expires_at timestamptz) RETURNS lock.grant_answer
LANGUAGE sql VOLATILE SET search_path = lock, pg_temp AS $$
  SELECT ROW('contended', NULL, p_owner_id, NULL, NULL, ms(p_expires_at),
             ms(p_expires_at) - ms(clock_timestamp()), NULL, NULL)::grant_answer
$$;

CREATE FUNCTION lock.refused(p_outcome text, p_token bigint DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS lock.grant_answer LANGUAGE sql IMMUTABLE SET search_path = lock, pg_temp AS $$
  SELECT ROW(p_outcome, p_token, NULL, NULL, NULL, NULL, NULL, p_reason, NULL)::grant_answer
$$;

CREATE FUNCTION lock.opened(s lock.lock_session) RETURNS lock.session_answer
LANGUAGE sql IMMUTABLE SET search_path = lock, pg_temp AS $$
  SELECT ROW('open', s.session_id, s.ttl_ms, ms(s.expires_at))::session_answer
$$;

CREATE FUNCTION lock.no_session(p_outcome text) RETURNS lock.session_answer
LANGUAGE sql IMMUTABLE SET search_path = lock, pg_temp AS $$
  SELECT ROW(p_outcome, NULL, NULL, NULL)::session_answer
$$;

CREATE FUNCTION lock.open_session(p_owner_id text, p_ttl_ms integer, p_open_id text) RETURNS lock.session_answer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = lock, pg_temp AS $$
DECLARE
  s lock_session;
BEGIN
  LOOP
    SELECT * INTO s FROM lock_session
     WHERE owner_id = p_owner_id AND open_id = p_open_id AND closed_at IS NULL FOR NO KEY UPDATE;
    IF FOUND AND s.expires_at > clock_timestamp() THEN
      -- Answered as durably as the first time, hence a write; and the repeat counts from its own sending.
      UPDATE lock_session SET expires_at = after_ms(clock_timestamp(), s.ttl_ms)
       WHERE session_id = s.session_id RETURNING * INTO s;
      RETURN opened(s);
    ELSIF FOUND THEN
      PERFORM session_end(s.session_id);
    END IF;
    INSERT INTO lock_session (session_id, owner_id, ttl_ms, open_id, opened_at, expires_at)
      SELECT gen_random_uuid()::text, p_owner_id, p_ttl_ms, p_open_id, now_, after_ms(now_, p_ttl_ms)
        FROM clock_timestamp() AS now_
      ON CONFLICT (owner_id, open_id) WHERE closed_at IS NULL DO NOTHING
      RETURNING * INTO s;
    IF FOUND THEN RETURN opened(s); END IF;
  END LOOP;
END $$;

CREATE FUNCTION lock.heartbeat(p_session_id text, p_owner_id text) RETURNS lock.session_answer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = lock, pg_temp AS $$
DECLARE
  s lock_session;
BEGIN
  SELECT * INTO s FROM lock_session WHERE session_id = p_session_id;
  IF NOT FOUND OR s.owner_id <> p_owner_id OR s.end_reason = 'closed' THEN RETURN no_session('unknown'); END IF;
  IF s.end_reason = 'expired' THEN RETURN no_session('expired'); END IF;
  SELECT * INTO s FROM lock_session WHERE session_id = p_session_id FOR NO KEY UPDATE;
  IF NOT FOUND OR s.end_reason = 'closed' THEN RETURN no_session('unknown'); END IF;
  IF s.end_reason = 'expired' OR s.expires_at <= clock_timestamp() THEN
    PERFORM session_end(p_session_id);
    RETURN no_session('expired');
  END IF;
  UPDATE lock_session SET expires_at = after_ms(clock_timestamp(), s.ttl_ms)
   WHERE session_id = p_session_id RETURNING * INTO s;
  RETURN opened(s);
END $$;

-- Writes the session's row only: its grants are free because it is dead. The keys are those that waiters may look at.
CREATE FUNCTION lock.close_session(p_session_id text, p_owner_id text, OUT outcome text, OUT keys text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = lock, pg_temp AS $$
DECLARE
  s lock_session;
BEGIN
  SELECT * INTO s FROM lock_session WHERE session_id = p_session_id;
  IF NOT FOUND OR s.owner_id <> p_owner_id OR s.end_reason = 'closed' THEN outcome := 'unknown'; RETURN; END IF;
  IF s.end_reason = 'expired' THEN outcome := 'expired'; RETURN; END IF;
  SELECT * INTO s FROM lock_session WHERE session_id = p_session_id FOR NO KEY UPDATE;
  IF NOT FOUND OR s.end_reason = 'closed' THEN outcome := 'unknown'; RETURN; END IF;
  IF s.end_reason = 'expired' OR s.expires_at <= clock_timestamp() THEN
    PERFORM session_end(p_session_id);
    outcome := 'expired';
    RETURN;
  END IF;
  UPDATE lock_session SET closed_at = clock_timestamp(), end_reason = 'closed' WHERE session_id = p_session_id;
  INSERT INTO lock_event (kind, session_id, actor, at)
    VALUES ('session_closed', p_session_id, p_owner_id, clock_timestamp());
  SELECT coalesce(array_agg(lg.lock_key), '{}') INTO keys
    FROM lock_grant lg WHERE lg.session_id = p_session_id AND lg.ended_at IS NULL;
  outcome := 'closed';
END $$;

CREATE FUNCTION lock.acquire(p_key text, p_owner_id text, p_session_id text, p_ttl_ms integer, p_acquire_id text)
RETURNS lock.grant_answer LANGUAGE plpgsql SECURITY DEFINER SET search_path = lock, pg_temp AS $$
DECLARE
  seen record;
  g lock_grant;
  old_token bigint;
  over_ text;
  now_ timestamptz;
BEGIN
  -- 1. Read. Who contends writes nothing and locks nothing: 64 contenders that did pushed the holder's renewals from 4
  --    to 128 ms (p50).
  SELECT s.end_reason, s.owner_id, s.expires_at > clock_timestamp() AS lives,
         h.lock_key IS NOT NULL AS held, h.owner_id AS holder, h.expires_at AS held_until
    INTO seen
    FROM lock_session s
    LEFT JOIN (SELECT lg.lock_key, lg.owner_id, lg.expires_at
                 FROM lock_grant lg JOIN lock_session hs ON hs.session_id = lg.session_id
                WHERE lg.lock_key = p_key AND lg.ended_at IS NULL AND lg.expires_at > clock_timestamp()
                  AND hs.closed_at IS NULL AND hs.expires_at > clock_timestamp()) h ON true
   WHERE s.session_id = p_session_id;
  IF NOT FOUND OR seen.owner_id <> p_owner_id OR seen.end_reason = 'closed' THEN
    RETURN refused('unknown');
  END IF;
  IF seen.end_reason = 'expired' THEN RETURN refused('expired'); END IF;
  IF seen.lives AND seen.held THEN
    -- After the read above: a grant of this id that was visible there is found here.
    SELECT fencing_token INTO old_token FROM lock_event
     WHERE session_id = p_session_id AND lock_key = p_key AND acquire_id = p_acquire_id AND kind = 'granted';
    IF NOT FOUND THEN
      RETURN contended(seen.holder, seen.held_until);
    END IF;
  END IF;

  -- 2. Lock: the grant row, then the own session.
  SELECT * INTO g FROM lock_grant WHERE lock_key = p_key FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    -- The first grant of the key has no row to lock. An insert that finds another one under way would wait for it with
    -- its token and its time already drawn, so the first grants of a key queue here instead.
    PERFORM pg_advisory_xact_lock(hashtextextended(p_key, 4711));
    SELECT * INTO g FROM lock_grant WHERE lock_key = p_key FOR NO KEY UPDATE;
  END IF;
  CASE own_session(p_session_id, p_owner_id)
    WHEN 'unknown' THEN RETURN refused('unknown');
    WHEN 'expired' THEN RETURN refused('expired');
    ELSE NULL;
  END CASE;

  -- 3. Decide.
  SELECT fencing_token INTO old_token FROM lock_event
   WHERE session_id = p_session_id AND lock_key = p_key AND acquire_id = p_acquire_id AND kind = 'granted';
  IF g.lock_key IS NULL THEN
    -- Granted before, so long ago that the key was collected.
    IF old_token IS NOT NULL THEN RETURN refused('lost', old_token, lost_reason(p_key, p_owner_id, old_token)); END IF;
    now_ := clock_timestamp();
    INSERT INTO lock_grant (lock_key, fencing_token, token_floor, session_id, owner_id, acquire_id, ttl_ms, granted_at,
                            expires_at)
      SELECT p_key, token, token, p_session_id, p_owner_id, p_acquire_id, p_ttl_ms, now_, after_ms(now_, p_ttl_ms)
        FROM mint(0) AS token
      RETURNING * INTO g;
    INSERT INTO lock_event (kind, lock_key, fencing_token, session_id, actor, acquire_id, at)
      VALUES ('granted', p_key, g.fencing_token, p_session_id, p_owner_id, p_acquire_id, now_);
    RETURN granted(g, now_);
  END IF;

  over_ := over(g);
  IF old_token IS NOT NULL THEN
    IF old_token = g.fencing_token AND over_ IS NULL THEN
      -- The repeat is a write, so that it is answered as durably as the first time.
      UPDATE lock_grant SET expires_at = g.expires_at WHERE lock_key = p_key;
      RETURN granted(g, clock_timestamp());
    END IF;
    RETURN refused('lost', old_token,
                   CASE WHEN old_token = g.fencing_token THEN over_ ELSE lost_reason(p_key, p_owner_id, old_token) END);
  END IF;
  IF over_ IS NULL THEN
    RETURN contended(g.owner_id, g.expires_at);
  END IF;
  IF g.ended_at IS NULL THEN PERFORM tell_end(g, over_, g.owner_id, NULL); END IF;
  now_ := clock_timestamp();
  UPDATE lock_grant
     SET (fencing_token, token_floor) = (SELECT token, token FROM mint(g.token_floor) AS token),
         session_id = p_session_id, owner_id = p_owner_id, acquire_id = p_acquire_id, ttl_ms = p_ttl_ms,
         granted_at = now_, expires_at = after_ms(now_, p_ttl_ms), ended_at = NULL, end_reason = NULL
   WHERE lock_key = p_key RETURNING * INTO g;
  INSERT INTO lock_event (kind, lock_key, fencing_token, session_id, actor, acquire_id, at)
    VALUES ('granted', p_key, g.fencing_token, p_session_id, p_owner_id, p_acquire_id, now_);
  RETURN granted(g, now_);
END $$;

-- Locks the live grant that a token names, and its session. Otherwise the answer says how it was lost.
CREATE FUNCTION lock.own_grant(p_key text, p_owner_id text, p_token bigint, OUT g lock.lock_grant, OUT reason text)
LANGUAGE plpgsql SET search_path = lock, pg_temp AS $$
DECLARE
  verdict text;
BEGIN
  SELECT * INTO g FROM lock_grant WHERE lock_key = p_key;
  -- A token that is not the last grant's, or whose grant has ended, stays so: nothing needs to be locked for the refusal.
  IF g.fencing_token = p_token AND g.owner_id = p_owner_id AND g.end_reason IS NULL THEN
    SELECT * INTO g FROM lock_grant WHERE lock_key = p_key FOR NO KEY UPDATE;
  END IF;
  IF g.fencing_token IS DISTINCT FROM p_token OR g.owner_id <> p_owner_id OR g.end_reason IS NOT NULL THEN
    reason := lost_reason(p_key, p_owner_id, p_token);
    RETURN;
  END IF;
  verdict := own_session(g.session_id, p_owner_id);
  reason := over(g);
  IF reason IS NULL AND verdict <> 'live' THEN reason := 'session'; END IF;
END $$;

CREATE FUNCTION lock.renew(p_key text, p_owner_id text, p_token bigint, p_ttl_ms integer) RETURNS lock.grant_answer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = lock, pg_temp AS $$
DECLARE
  own record;
  g lock_grant;
  now_ timestamptz;
BEGIN
  SELECT * INTO own FROM own_grant(p_key, p_owner_id, p_token);
  IF own.reason IS NOT NULL THEN RETURN refused('lost', p_token, own.reason); END IF;
  now_ := clock_timestamp();
  UPDATE lock_grant SET expires_at = greatest(expires_at, after_ms(now_, p_ttl_ms)), ttl_ms = p_ttl_ms
   WHERE lock_key = p_key RETURNING * INTO g;
  RETURN granted(g, now_);
END $$;

CREATE FUNCTION lock.release(p_key text, p_owner_id text, p_token bigint) RETURNS lock.grant_answer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = lock, pg_temp AS $$
DECLARE
  own record;
  answer grant_answer;
BEGIN
  SELECT * INTO own FROM own_grant(p_key, p_owner_id, p_token);
  IF own.reason IS NOT NULL THEN RETURN refused('lost', p_token, own.reason); END IF;
  answer := refused('released', p_token);
  answer.held_ms := end_grant(own.g, 'released', p_owner_id, NULL);
  RETURN answer;
END $$;

CREATE FUNCTION lock.revoke(
  p_key text, p_operator text, p_reason text, p_expected_token bigint, p_revocation_id text,
  OUT outcome text, OUT revoked_token bigint, OUT new_token_floor bigint, OUT held_ms bigint, OUT live_token bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = lock, pg_temp AS $$
DECLARE
  g lock_grant;
  r lock_revocation;
BEGIN
  SELECT * INTO g FROM lock_grant WHERE lock_key = p_key FOR NO KEY UPDATE;
  IF NOT FOUND THEN outcome := 'not_found'; RETURN; END IF;
  -- The repeat is a write, so that it is answered as durably as the first time.
  UPDATE lock_revocation SET repeats = repeats + 1
   WHERE lock_key = p_key AND revocation_id = p_revocation_id RETURNING * INTO r;
  IF FOUND THEN
    outcome := 'revoked';
    revoked_token := r.revoked_token;
    new_token_floor := r.new_token_floor;
    RETURN;
  END IF;
  IF over(g) IS NOT NULL THEN outcome := 'not_found'; RETURN; END IF;
  IF p_expected_token IS DISTINCT FROM g.fencing_token AND p_expected_token IS NOT NULL THEN
    outcome := 'fenced_out';
    live_token := g.fencing_token;
    RETURN;
  END IF;
  held_ms := end_grant(g, 'revoked', p_operator, p_reason);
  UPDATE lock_grant SET token_floor = mint(g.token_floor) WHERE lock_key = p_key RETURNING token_floor INTO new_token_floor;
  revoked_token := g.fencing_token;
  INSERT INTO lock_revocation (lock_key, revocation_id, operator, reason, revoked_token, new_token_floor, revoked_at)
    VALUES (p_key, p_revocation_id, p_operator, p_reason, revoked_token, new_token_floor, clock_timestamp());
  outcome := 'revoked';
END $$;

CREATE FUNCTION lock.inspect(p_key text, OUT held boolean, OUT owner_id text, OUT expires_at bigint)
RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = lock, pg_temp AS $$
  SELECT live, CASE WHEN live THEN g.owner_id END, CASE WHEN live THEN ms(g.expires_at) END
    FROM lock_grant g LEFT JOIN lock_session s USING (session_id)
    CROSS JOIN LATERAL (SELECT coalesce(g.ended_at IS NULL AND g.expires_at > clock_timestamp()
      AND s.closed_at IS NULL AND s.expires_at > clock_timestamp(), false) AS live) AS l
   WHERE g.lock_key = p_key
$$;

-- Ends what ended by itself, tells of it once, collects what nobody asks for any more and counts what lives. Takes no
-- row that another transaction has, so it stands in nobody's way.
CREATE FUNCTION lock.sweep(p_limit integer, OUT expired_sessions bigint, OUT live_sessions bigint,
                           OUT live_grants bigint, OUT ended jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = lock, pg_temp AS $$
DECLARE
  s lock_session;
  g lock_grant;
  over_ text;
BEGIN
  FOR s IN SELECT * FROM lock_session WHERE closed_at IS NULL AND expires_at <= clock_timestamp() LIMIT p_limit LOOP
    PERFORM session_end(s.session_id);
  END LOOP;
  FOR g IN
    SELECT lg.* FROM lock_grant lg
     WHERE lg.ended_at IS NULL
       AND (lg.expires_at <= clock_timestamp()
            OR EXISTS (SELECT FROM lock_session ls WHERE ls.session_id = lg.session_id AND ls.closed_at IS NOT NULL))
     LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED
  LOOP
    over_ := over(g);
    IF over_ IS NOT NULL AND g.ended_at IS NULL THEN PERFORM end_grant(g, over_, g.owner_id, NULL); END IF;
  END LOOP;
  WITH told AS (
    DELETE FROM lock_untold
     WHERE untold_id IN (SELECT untold_id FROM lock_untold ORDER BY untold_id LIMIT p_limit FOR UPDATE SKIP LOCKED)
    RETURNING *
  )
  SELECT count(*) FILTER (WHERE lock_key IS NULL),
         coalesce(jsonb_agg(jsonb_build_object('key', lock_key, 'token', fencing_token::text, 'ownerId', owner_id,
                                               'heldMillis', held_ms, 'end', end_reason) ORDER BY untold_id)
                    FILTER (WHERE lock_key IS NOT NULL), '[]')
    INTO expired_sessions, ended FROM told;

  -- Acquire ids, open ids and revocation ids are remembered for longer than the 10 minutes that are promised; the keys
  -- can go, since tokens of all keys come from one sequence.
  IF EXISTS (SELECT FROM lock_session WHERE closed_at < clock_timestamp() - interval '1 hour') THEN
    DELETE FROM lock_session WHERE session_id IN (
      SELECT session_id FROM lock_session WHERE closed_at < clock_timestamp() - interval '1 hour'
       LIMIT p_limit FOR UPDATE SKIP LOCKED);
  END IF;
  -- It reads the whole table, hence about once a minute.
  IF random() < 1.0 / 60 THEN
    DELETE FROM lock_grant WHERE lock_key IN (
      SELECT lock_key FROM lock_grant WHERE ended_at < clock_timestamp() - interval '24 hours'
       LIMIT 10 * p_limit FOR UPDATE SKIP LOCKED);
  END IF;

  SELECT count(*) INTO live_sessions FROM lock_session WHERE closed_at IS NULL AND expires_at > clock_timestamp();
  SELECT count(*) INTO live_grants
    FROM lock_grant lg JOIN lock_session ls ON ls.session_id = lg.session_id
   WHERE lg.ended_at IS NULL AND lg.expires_at > clock_timestamp()
     AND ls.closed_at IS NULL AND ls.expires_at > clock_timestamp();
END $$;

-- For operators: the whole truth, tokens included.
CREATE VIEW lock.lock_record AS
  SELECT g.lock_key, g.fencing_token, g.owner_id, g.session_id, g.acquire_id,
         lock.ms(g.granted_at) AS granted_at, lock.ms(g.expires_at) AS expires_at,
         coalesce(g.ended_at IS NULL AND g.expires_at > clock_timestamp()
           AND s.closed_at IS NULL AND s.expires_at > clock_timestamp(), false) AS held,
         r.operator AS revoked_by, r.reason AS revoked_why, lock.ms(r.revoked_at) AS revoked_at
    FROM lock.lock_grant g
    LEFT JOIN lock.lock_session s ON s.session_id = g.session_id
    LEFT JOIN LATERAL (SELECT * FROM lock.lock_revocation lr WHERE lr.lock_key = g.lock_key
                        ORDER BY lr.revoked_at DESC LIMIT 1) r ON true;

CREATE VIEW lock.live_session AS
  SELECT session_id, owner_id, ttl_ms, lock.ms(expires_at) AS expires_at
    FROM lock.lock_session WHERE closed_at IS NULL AND expires_at > clock_timestamp();

-- -----------------------------------------------------------------------------
-- the service's role: it calls the operations and reads the views, and touches no table
-- -----------------------------------------------------------------------------

DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'dlock_lock_server') THEN
    CREATE ROLE dlock_lock_server NOLOGIN;
  END IF;
  -- Who migrates may also serve; another login is given the role by an administrator.
  EXECUTE format('GRANT dlock_lock_server TO %I', current_user);
EXCEPTION WHEN duplicate_object OR unique_violation THEN
  NULL; -- Another database of this server was migrated at the same time.
END $$;

REVOKE ALL ON SCHEMA lock FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA lock FROM PUBLIC;
GRANT USAGE ON SCHEMA lock TO dlock_lock_server;
GRANT EXECUTE ON FUNCTION
  lock.open_session(text, integer, text),
  lock.heartbeat(text, text),
  lock.close_session(text, text),
  lock.acquire(text, text, text, integer, text),
  lock.renew(text, text, bigint, integer),
  lock.release(text, text, bigint),
  lock.revoke(text, text, text, bigint, text),
  lock.inspect(text),
  lock.sweep(integer),
  lock.ms(timestamptz)
TO dlock_lock_server;
GRANT SELECT ON lock.lock_record, lock.live_session, lock.guard_missing, lock.lock_event, lock.lock_revocation
  TO dlock_lock_server;
