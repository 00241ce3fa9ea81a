CREATE FUNCTION refuse(code text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'refused with %', code USING ERRCODE = code;
END
$$;

DO $body$
BEGIN
  UPDATE note SET size = 2;
  EXECUTE $inner$ CREATE INDEX note_size ON note (size) $inner$;
END
$body$;
-- ends in a comment that names the quote of the runner: $dlock_sql$
