-- Many operations in one call, one transaction and one commit.
--
-- A batch takes what is plain and leaves out the rest: it answers no row for an item, and the item is then tried alone,
-- by its own function of 0001. So the exceptional cases (a repeated id, a session or a lease that is over, a row that
-- somebody else has) are decided in one place only, and an item that fails, fails alone.
--
-- A batch waits for nobody. Rows are locked with SKIP LOCKED and first grants with a lock that is tried, so a batch is in
-- no cycle of waits, whatever else it has locked and in whatever order: a deadlock needs every one of its members to
-- wait. Inserts do not wait either: who inserts a grant or an event of a key has the key's row (or its advisory lock).
-- The order is that of 0001 all the same: the grant rows, the own sessions, the holders' sessions.
--
-- A plan is made once for a connection, perhaps while the tables are small, and must not read them whole when they are
-- not: no scans of tables, one plan for all numbers of items, and an open session is known by its end_reason, since
-- `closed_at IS NULL` invites a walk through the index of all open sessions (64 items: 7 ms of it, against 0.3).

-- Parts of every answer. As SQL functions with settings of their own they were parsed and planned at each call.

-- Stable, as what it calls is: a function that claims more than its body is not made a part of the caller's statement.
CREATE OR REPLACE FUNCTION lock.ms(t timestamptz) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
  RETURN floor(extract(epoch FROM t) * 1000)::bigint;

CREATE OR REPLACE FUNCTION lock.granted(g lock.lock_grant, now_ timestamptz) RETURNS lock.grant_answer
LANGUAGE plpgsql STABLE SET search_path = lock, pg_temp AS $$
BEGIN
  RETURN ROW('granted', g.fencing_token, g.owner_id, g.session_id, ms(g.granted_at), ms(g.expires_at),
             floor(extract(epoch FROM g.expires_at - now_) * 1000)::bigint, NULL, NULL)::grant_answer;
END $$;

CREATE OR REPLACE FUNCTION lock.contended(p_owner_id text, p_expires_at timestamptz) RETURNS lock.grant_answer
LANGUAGE plpgsql VOLATILE SET search_path = lock, pg_temp AS $$
BEGIN
  RETURN ROW('contended', NULL, p_owner_id, NULL, NULL, ms(p_expires_at),
             ms(p_expires_at) - ms(clock_timestamp()), NULL, NULL)::grant_answer;
END $$;

CREATE OR REPLACE FUNCTION lock.refused(p_outcome text, p_token bigint DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS lock.grant_answer LANGUAGE plpgsql IMMUTABLE SET search_path = lock, pg_temp AS $$
BEGIN
  RETURN ROW(p_outcome, p_token, NULL, NULL, NULL, NULL, NULL, p_reason, NULL)::grant_answer;
END $$;

CREATE OR REPLACE FUNCTION lock.opened(s lock.lock_session) RETURNS lock.session_answer
LANGUAGE plpgsql STABLE SET search_path = lock, pg_temp AS $$
BEGIN
  RETURN ROW('open', s.session_id, s.ttl_ms, ms(s.expires_at))::session_answer;
END $$;

CREATE OR REPLACE FUNCTION lock.no_session(p_outcome text) RETURNS lock.session_answer
LANGUAGE plpgsql IMMUTABLE SET search_path = lock, pg_temp AS $$
BEGIN
  RETURN ROW(p_outcome, NULL, NULL, NULL)::session_answer;
END $$;

CREATE FUNCTION lock.heartbeat_batch(p_session_ids text[], p_owner_ids text[])
RETURNS TABLE (n integer, outcome text, session_id text, ttl_ms integer, expires_at bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = lock, pg_temp SET enable_seqscan = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  mine integer[];
BEGIN
  SELECT array_agg(l.n) INTO mine FROM (
    SELECT r.n::integer AS n
      FROM unnest(p_session_ids, p_owner_ids) WITH ORDINALITY AS r (session_id, owner_id, n)
      JOIN lock_session s ON s.session_id = r.session_id
     WHERE s.owner_id = r.owner_id AND s.end_reason IS NULL AND s.expires_at > clock_timestamp()
     ORDER BY r.session_id COLLATE "C" FOR NO KEY UPDATE OF s SKIP LOCKED) AS l;
  IF mine IS NULL THEN RETURN; END IF;
  RETURN QUERY
    UPDATE lock_session s SET expires_at = after_ms(clock_timestamp(), s.ttl_ms)
      FROM unnest(p_session_ids) WITH ORDINALITY AS r (session_id, n)
     WHERE s.session_id = r.session_id AND r.n = ANY (mine)
    RETURNING r.n::integer, 'open', s.session_id, s.ttl_ms, ms(s.expires_at);
END $$;

-- The items whose grant lives, is theirs and is now locked, as is its session.
CREATE FUNCTION lock.own_grants(p_keys text[], p_owner_ids text[], p_tokens bigint[]) RETURNS integer[]
LANGUAGE plpgsql SET search_path = lock, pg_temp AS $$
#variable_conflict use_column
DECLARE
  mine integer[];
  alive text[];
BEGIN
  SELECT array_agg(l.n) INTO mine FROM (
    SELECT r.n::integer AS n
      FROM unnest(p_keys, p_owner_ids, p_tokens) WITH ORDINALITY AS r (lock_key, owner_id, token, n)
      JOIN lock_grant g ON g.lock_key = r.lock_key
     WHERE g.fencing_token = r.token AND g.owner_id = r.owner_id AND g.ended_at IS NULL
     ORDER BY r.lock_key COLLATE "C" FOR NO KEY UPDATE OF g SKIP LOCKED) AS l;
  IF mine IS NULL THEN RETURN NULL; END IF;
  SELECT array_agg(l.session_id) INTO alive FROM (
    SELECT s.session_id FROM lock_session s
     WHERE s.session_id = ANY (ARRAY(SELECT DISTINCT g.session_id FROM lock_grant g WHERE g.lock_key = ANY (p_keys)))
       AND s.end_reason IS NULL
     ORDER BY s.session_id FOR SHARE SKIP LOCKED) AS l;
  -- A statement of its own, hence a look at the rows as they were locked, by a clock that was read after that.
  SELECT array_agg(r.n::integer) INTO mine
    FROM unnest(p_keys) WITH ORDINALITY AS r (lock_key, n)
    JOIN lock_grant g ON g.lock_key = r.lock_key
    JOIN lock_session s ON s.session_id = g.session_id
   WHERE r.n = ANY (mine) AND g.session_id = ANY (alive)
     AND g.expires_at > clock_timestamp() AND s.expires_at > clock_timestamp();
  RETURN mine;
END $$;

CREATE FUNCTION lock.renew_batch(p_keys text[], p_owner_ids text[], p_tokens bigint[], p_ttls integer[])
RETURNS TABLE (n integer, outcome text, fencing_token bigint, owner_id text, session_id text, granted_at bigint,
               expires_at bigint, ttl_ms bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = lock, pg_temp SET enable_seqscan = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  mine integer[] := own_grants(p_keys, p_owner_ids, p_tokens);
  now_ timestamptz := clock_timestamp();
BEGIN
  IF mine IS NULL THEN RETURN; END IF;
  RETURN QUERY
    UPDATE lock_grant g SET expires_at = greatest(g.expires_at, after_ms(now_, r.ttl)), ttl_ms = r.ttl
      FROM unnest(p_keys, p_ttls) WITH ORDINALITY AS r (lock_key, ttl, n)
     WHERE g.lock_key = r.lock_key AND r.n = ANY (mine)
    RETURNING r.n::integer, 'granted', g.fencing_token, g.owner_id, g.session_id, ms(g.granted_at), ms(g.expires_at),
              floor(extract(epoch FROM g.expires_at - now_) * 1000)::bigint;
END $$;

CREATE FUNCTION lock.release_batch(p_keys text[], p_owner_ids text[], p_tokens bigint[])
RETURNS TABLE (n integer, outcome text, fencing_token bigint, held_ms bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = lock, pg_temp SET enable_seqscan = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  mine integer[] := own_grants(p_keys, p_owner_ids, p_tokens);
  now_ timestamptz := clock_timestamp();
BEGIN
  IF mine IS NULL THEN RETURN; END IF;
  RETURN QUERY
    WITH ended AS (
      UPDATE lock_grant g SET ended_at = now_, end_reason = 'released'
        FROM unnest(p_keys) WITH ORDINALITY AS r (lock_key, n)
       WHERE g.lock_key = r.lock_key AND r.n = ANY (mine)
      RETURNING r.n::integer AS n, g.*
    ), told AS (
      INSERT INTO lock_event (kind, lock_key, fencing_token, session_id, actor, at)
        SELECT 'released', e.lock_key, e.fencing_token, e.session_id, e.owner_id, now_ FROM ended e
    )
    SELECT e.n, 'released', e.fencing_token, greatest(0, ms(now_) - ms(e.granted_at)) FROM ended e;
END $$;

-- Of these items, those whose session lives and whose id was not granted yet; and who holds the key, if somebody does.
-- A read. The grant and the event of a holder are seen by one snapshot, so who holds the key is not contended by himself.
CREATE FUNCTION lock.look_batch(p_items integer[], p_keys text[], p_owner_ids text[], p_session_ids text[],
                                p_acquire_ids text[])
RETURNS TABLE (n integer, holder text, held_until timestamptz)
LANGUAGE plpgsql SET search_path = lock, pg_temp AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT r.n::integer, h.owner_id, h.expires_at
    FROM unnest(p_keys, p_owner_ids, p_session_ids, p_acquire_ids)
           WITH ORDINALITY AS r (lock_key, owner_id, session_id, acquire_id, n)
    JOIN lock_session s ON s.session_id = r.session_id AND s.owner_id = r.owner_id
                       AND s.end_reason IS NULL AND s.expires_at > clock_timestamp()
    LEFT JOIN LATERAL (
      SELECT g.owner_id, g.expires_at
        FROM lock_grant g JOIN lock_session hs ON hs.session_id = g.session_id
       WHERE g.lock_key = r.lock_key AND g.ended_at IS NULL AND g.expires_at > clock_timestamp()
         AND hs.end_reason IS NULL AND hs.expires_at > clock_timestamp()) AS h ON true
   WHERE r.n = ANY (p_items)
     AND NOT EXISTS (SELECT FROM lock_event e
                      WHERE e.session_id = r.session_id AND e.lock_key = r.lock_key AND e.acquire_id = r.acquire_id
                        AND e.kind = 'granted');
END $$;

-- A key may be asked for by several items: the first of them can be granted, the others can be told that it is held.
CREATE FUNCTION lock.acquire_batch(p_keys text[], p_owner_ids text[], p_session_ids text[], p_ttls integer[],
                                   p_acquire_ids text[])
RETURNS TABLE (n integer, outcome text, fencing_token bigint, owner_id text, session_id text, granted_at bigint,
               expires_at bigint, ttl_ms bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = lock, pg_temp SET enable_seqscan = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  held integer[];
  holders text[];
  ends timestamptz[];
  open_ integer[];
  later integer[];
  seen integer[];
  fresh integer[];
  alive text[];
  g lock_grant;
  over_ text;
  now_ timestamptz;
BEGIN
  -- 1. Read. Who contends writes nothing and locks nothing.
  SELECT array_agg(l.n) FILTER (WHERE l.holder IS NOT NULL),
         array_agg(l.holder) FILTER (WHERE l.holder IS NOT NULL),
         array_agg(l.held_until) FILTER (WHERE l.holder IS NOT NULL),
         array_agg(l.n) FILTER (WHERE l.holder IS NULL)
    INTO held, holders, ends, open_
    FROM look_batch(ARRAY(SELECT generate_subscripts(p_keys, 1)), p_keys, p_owner_ids, p_session_ids, p_acquire_ids) l;
  RETURN QUERY
    SELECT c.n, 'contended', NULL::bigint, c.holder, NULL::text, NULL::bigint, ms(c.held_until),
           ms(c.held_until) - ms(clock_timestamp())
      FROM unnest(held, holders, ends) AS c (n, holder, held_until);
  IF open_ IS NULL THEN RETURN; END IF;
  SELECT array_agg(f.n) INTO fresh FROM (SELECT min(o.n) AS n FROM unnest(open_) AS o (n) GROUP BY p_keys[o.n]) AS f;
  IF cardinality(fresh) < cardinality(open_) THEN
    SELECT array_agg(o.n) INTO later FROM unnest(open_) AS o (n) WHERE o.n <> ALL (fresh);
    open_ := fresh;
  END IF;

  -- 2. Lock: the grant rows, or for a key that was never seen its advisory lock; then the own sessions.
  SELECT array_agg(l.n) INTO seen FROM (
    SELECT o.n FROM unnest(open_) AS o (n) JOIN lock_grant g ON g.lock_key = p_keys[o.n]
     ORDER BY g.lock_key FOR NO KEY UPDATE OF g SKIP LOCKED) AS l;
  WITH unseen AS MATERIALIZED (
    SELECT o.n FROM unnest(open_) AS o (n)
     WHERE o.n <> ALL (coalesce(seen, '{}'))
       AND NOT EXISTS (SELECT FROM lock_grant g WHERE g.lock_key = p_keys[o.n])
  )
  SELECT array_agg(u.n) INTO fresh FROM unseen u WHERE pg_try_advisory_xact_lock(hashtextextended(p_keys[u.n], 4711));
  SELECT array_agg(l.session_id) INTO alive FROM (
    SELECT s.session_id FROM lock_session s
     WHERE s.session_id = ANY (ARRAY(SELECT DISTINCT p_session_ids[o.n] FROM unnest(seen || fresh) AS o (n)))
       AND s.end_reason IS NULL AND s.expires_at > clock_timestamp()
     ORDER BY s.session_id FOR SHARE SKIP LOCKED) AS l;

  -- 3. Decide, by what is true now that it is locked.
  SELECT array_agg(l.n) FILTER (WHERE l.n = ANY (seen)), array_agg(l.n) FILTER (WHERE l.n = ANY (fresh))
    INTO seen, fresh
    FROM look_batch(seen || fresh, p_keys, p_owner_ids, p_session_ids, p_acquire_ids) l
   WHERE l.holder IS NULL AND p_session_ids[l.n] = ANY (alive);
  -- What ended by itself and was not told of yet.
  FOR g IN
    SELECT lg.* FROM lock_grant lg
     WHERE lg.lock_key = ANY (ARRAY(SELECT p_keys[o.n] FROM unnest(seen) AS o (n))) AND lg.ended_at IS NULL
  LOOP
    over_ := over(g);
    IF over_ IS NULL THEN
      SELECT array_agg(o.n) INTO seen FROM unnest(seen) AS o (n) WHERE p_keys[o.n] <> g.lock_key;
    ELSE
      PERFORM tell_end(g, over_, g.owner_id, NULL);
    END IF;
  END LOOP;
  now_ := clock_timestamp();
  RETURN QUERY
    WITH item AS MATERIALIZED (
      SELECT r.* FROM unnest(p_keys, p_owner_ids, p_session_ids, p_ttls, p_acquire_ids)
                        WITH ORDINALITY AS r (lock_key, owner_id, session_id, ttl, acquire_id, n)
       WHERE r.n = ANY (seen || fresh)
    ), minted AS MATERIALIZED (
      SELECT i.*, mint(coalesce(g.token_floor, 0)) AS token
        FROM item i LEFT JOIN lock_grant g ON g.lock_key = i.lock_key
    ), again AS (
      UPDATE lock_grant g
         SET fencing_token = m.token, token_floor = m.token, session_id = m.session_id, owner_id = m.owner_id,
             acquire_id = m.acquire_id, ttl_ms = m.ttl, granted_at = now_, expires_at = after_ms(now_, m.ttl),
             ended_at = NULL, end_reason = NULL
        FROM minted m
       WHERE g.lock_key = m.lock_key AND m.n = ANY (seen)
      RETURNING m.n, g.*
    ), first AS (
      INSERT INTO lock_grant AS g (lock_key, fencing_token, token_floor, session_id, owner_id, acquire_id, ttl_ms,
                                   granted_at, expires_at)
        SELECT m.lock_key, m.token, m.token, m.session_id, m.owner_id, m.acquire_id, m.ttl, now_, after_ms(now_, m.ttl)
          FROM minted m WHERE m.n = ANY (fresh)
      -- Made by somebody else before the advisory lock was had: left out.
      ON CONFLICT (lock_key) DO NOTHING
      RETURNING g.*
    ), won AS (
      SELECT * FROM again UNION ALL SELECT m.n, f.* FROM first f JOIN minted m ON m.token = f.fencing_token
    ), told AS (
      INSERT INTO lock_event (kind, lock_key, fencing_token, session_id, actor, acquire_id, at)
        SELECT 'granted', w.lock_key, w.fencing_token, w.session_id, w.owner_id, w.acquire_id, now_ FROM won w
    )
    SELECT w.n::integer, 'granted', w.fencing_token, w.owner_id, w.session_id, ms(w.granted_at), ms(w.expires_at),
           floor(extract(epoch FROM w.expires_at - now_) * 1000)::bigint
      FROM won w;

  -- 4. The others of the keys that were granted now.
  IF later IS NOT NULL THEN
    RETURN QUERY
      SELECT l.n, 'contended', NULL::bigint, l.holder, NULL::text, NULL::bigint, ms(l.held_until),
             ms(l.held_until) - ms(clock_timestamp())
        FROM look_batch(later, p_keys, p_owner_ids, p_session_ids, p_acquire_ids) l WHERE l.holder IS NOT NULL;
  END IF;
END $$;

REVOKE ALL ON FUNCTION
  lock.heartbeat_batch(text[], text[]),
  lock.own_grants(text[], text[], bigint[]),
  lock.renew_batch(text[], text[], bigint[], integer[]),
  lock.release_batch(text[], text[], bigint[]),
  lock.look_batch(integer[], text[], text[], text[], text[]),
  lock.acquire_batch(text[], text[], text[], integer[], text[])
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
  lock.heartbeat_batch(text[], text[]),
  lock.renew_batch(text[], text[], bigint[], integer[]),
  lock.release_batch(text[], text[], bigint[]),
  lock.acquire_batch(text[], text[], text[], integer[], text[])
TO dlock_lock_server;
