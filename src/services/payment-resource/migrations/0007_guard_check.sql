-- Asked by every service at its start and in readiness: is every guard of this database in place? Empty when it is.
-- The kill switches are no guards in this sense: readiness compares them with the service's own setting.
SET LOCAL ROLE dlock_owner;

CREATE VIEW pay.guard_missing AS
SELECT 'trigger ' || w.on_table || '.' || w.name AS missing
  FROM (VALUES
    ('account', 'aa_birth', 'O'), ('account', 'aa_guard', 'O'),
    ('payout', 'aa_birth', 'O'), ('payout', 'aa_guard', 'O'), ('payout', 'zz_effects', 'O'), ('payout', 'zz_posted', 'O'),
    ('rail_high_water', 'aa_guard', 'O'),
    ('rail_submission', 'aa_birth', 'O'), ('rail_submission', 'aa_guard', 'O'),
    ('journal', 'aa_birth', 'O'), ('journal', 'zz_balanced', 'O'),
    ('ledger_entry', 'aa_apply', 'O'), ('ledger_entry', 'zz_balanced', 'O'),
    ('account', 'zz_immutable', 'A'), ('payout', 'zz_immutable', 'A'), ('rail_high_water', 'zz_immutable', 'A'),
    ('rail_submission', 'zz_immutable', 'A'), ('journal', 'zz_immutable', 'A'), ('ledger_entry', 'zz_immutable', 'A'),
    ('payout_transition', 'zz_immutable', 'A'), ('rail_lookup', 'zz_immutable', 'A'),
    ('account', 'zz_no_truncate', 'A'), ('payout', 'zz_no_truncate', 'A'), ('rail_high_water', 'zz_no_truncate', 'A'),
    ('rail_submission', 'zz_no_truncate', 'A'), ('journal', 'zz_no_truncate', 'A'), ('ledger_entry', 'zz_no_truncate', 'A'),
    ('payout_transition', 'zz_no_truncate', 'A'), ('rail_lookup', 'zz_no_truncate', 'A')
  ) AS w (on_table, name, enabled)
 WHERE NOT EXISTS (
   SELECT FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid
    WHERE c.relnamespace = 'pay'::regnamespace AND c.relname = w.on_table AND g.tgname = w.name
      AND (g.tgenabled = w.enabled::"char" OR g.tgenabled = 'A'))
UNION ALL
SELECT 'unique index ' || w.name
  FROM (VALUES ('payout_one_claimed_per_account'), ('rail_submission_one_per_payout'), ('rail_submission_rail_ref'),
               ('journal_one_per_payout'), ('payout_idempotency_key_key'), ('payout_client_ref_key')) AS w (name)
 WHERE NOT EXISTS (
   SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE c.relnamespace = 'pay'::regnamespace AND c.relname = w.name AND i.indisunique AND i.indisvalid)
UNION ALL
SELECT 'check ' || w.name
  FROM (VALUES ('account_no_overdraft'), ('account_house_name')) AS w (name)
 WHERE NOT EXISTS (
   SELECT FROM pg_constraint k WHERE k.connamespace = 'pay'::regnamespace AND k.conname = w.name AND k.convalidated)
UNION ALL
SELECT 'privilege: ' || w.role || ' may ' || w.privilege || ' ' || w.on_table
  FROM (VALUES
    ('dlock_payment', 'rail_high_water', 'SELECT'), ('dlock_payment', 'rail_high_water', 'INSERT'),
    ('dlock_payment', 'rail_high_water', 'UPDATE'), ('dlock_payment', 'rail_submission', 'INSERT'),
    ('dlock_payment', 'rail_submission', 'UPDATE'), ('dlock_payment', 'rail_lookup', 'INSERT'),
    ('dlock_payment', 'fencing_switch', 'UPDATE'), ('dlock_payment', 'payout_transition', 'INSERT'),
    ('dlock_rail', 'account', 'SELECT'), ('dlock_rail', 'account', 'UPDATE'), ('dlock_rail', 'payout', 'INSERT'),
    ('dlock_rail', 'payout', 'UPDATE'), ('dlock_rail', 'journal', 'INSERT'), ('dlock_rail', 'ledger_entry', 'INSERT'),
    ('dlock_rail', 'fencing_switch', 'UPDATE'), ('dlock_rail', 'rail_policy', 'UPDATE')
  ) AS w (role, on_table, privilege)
 WHERE has_any_column_privilege(w.role, format('pay.%I', w.on_table), w.privilege)
UNION ALL
SELECT 'privilege: ' || w.role || ' may UPDATE account.' || w.on_column
  FROM (VALUES ('dlock_payment', 'balance_minor'), ('dlock_payment', 'reserved_minor')) AS w (role, on_column)
 WHERE has_column_privilege(w.role, 'pay.account', w.on_column, 'UPDATE')
UNION ALL
SELECT 'privilege: ' || w.role || ' may ' || w.privilege || ' ' || w.on_table
  FROM (VALUES ('dlock_payment'), ('dlock_rail'), ('dlock_readonly'), ('dlock_lab')) AS r (role),
       unnest(ARRAY['account', 'payout', 'rail_high_water', 'rail_submission', 'rail_lookup', 'journal', 'ledger_entry',
                    'payout_transition']) AS on_table,
       unnest(ARRAY['DELETE', 'TRUNCATE', 'TRIGGER']) AS privilege,
       LATERAL (SELECT r.role, on_table, privilege) AS w
 WHERE has_table_privilege(w.role, format('pay.%I', w.on_table), w.privilege)
UNION ALL
SELECT 'privilege: ' || w.role || ' is a member of dlock_owner'
  FROM (VALUES ('dlock_payment'), ('dlock_rail'), ('dlock_readonly'), ('dlock_lab')) AS w (role)
 WHERE pg_has_role(w.role, 'dlock_owner', 'MEMBER');
GRANT SELECT ON pay.guard_missing TO dlock_payment, dlock_rail, dlock_readonly;
GRANT SELECT ON pay.token_floor TO dlock_payment, dlock_rail, dlock_readonly;

RESET ROLE;
