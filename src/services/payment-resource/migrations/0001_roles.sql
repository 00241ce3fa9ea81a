-- Roles are of the cluster, not of the database: another paydb of it may have made them, also at this very moment.
-- Nobody gets a password here; passwords come out of band.
DO $$
DECLARE role record;
BEGIN
  FOR role IN SELECT * FROM (VALUES
    ('dlock_owner', 'NOLOGIN'),    -- owns everything; nobody can connect as it
    ('dlock_payment', 'LOGIN'),    -- payment-resource
    ('dlock_rail', 'LOGIN'),       -- rail-proxy
    ('dlock_readonly', 'LOGIN'),   -- operators and checks
    ('dlock_lab', 'LOGIN')         -- the experiment; gets its one right from the lab migrations only
  ) AS wanted (name, login) LOOP
    BEGIN
      EXECUTE format('CREATE ROLE %I %s', role.name, role.login);
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END;
  END LOOP;
  -- An administrator who is no superuser must be a member to create objects in the owner's name.
  IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
    EXECUTE format('GRANT dlock_owner TO %I', current_user);
  END IF;
  -- `public` stays first, so that what others create lands there; `table rail_high_water` still finds ours.
  EXECUTE format('ALTER DATABASE %I SET search_path = "$user", public, pay', current_database());
END $$;

CREATE SCHEMA pay AUTHORIZATION dlock_owner;
