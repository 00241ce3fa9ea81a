-- Least privilege is a guard like the others: payment-resource can not move the rail's fence, rail-proxy can not move
-- money, nobody who connects owns anything.
SET LOCAL ROLE dlock_owner;

REVOKE ALL ON SCHEMA pay FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pay FROM PUBLIC;
GRANT USAGE ON SCHEMA pay TO dlock_payment, dlock_rail, dlock_readonly;

-- payment-resource: no right of any kind on rail_high_water, not even to look.
GRANT SELECT ON pay.account, pay.payout, pay.journal, pay.ledger_entry, pay.payout_transition, pay.rail_submission,
  pay.rail_lookup, pay.fencing_switch TO dlock_payment;
GRANT INSERT (account_id, currency), UPDATE (fence) ON pay.account TO dlock_payment;
GRANT INSERT (payout_id, account_id, currency, amount_minor, beneficiary_ref, client_ref, idempotency_key, request_hash,
  last_actor, trace_id) ON pay.payout TO dlock_payment;
GRANT UPDATE (state, claim_token, fail_reason, last_actor, last_token, trace_id, updated_at) ON pay.payout TO dlock_payment;
GRANT INSERT (kind, payout_id, actor, token, memo) ON pay.journal TO dlock_payment;
GRANT INSERT (journal_id, account_id, currency, amount_minor) ON pay.ledger_entry TO dlock_payment;

-- rail-proxy: the record and its fence; nothing of accounts and ledger, and of a payout what it must compare.
GRANT SELECT ON pay.rail_high_water, pay.rail_submission, pay.rail_lookup, pay.fencing_switch, pay.rail_policy TO dlock_rail;
GRANT SELECT (payout_id, account_id, currency, amount_minor, client_ref, beneficiary_ref, state, claim_token) ON pay.payout TO dlock_rail;
GRANT INSERT (account_id, highest_token, payout_id, actor, updated_at), UPDATE (highest_token, payout_id, actor, updated_at)
  ON pay.rail_high_water TO dlock_rail;
GRANT INSERT (submission_id, payout_id, account_id, currency, amount_minor, client_ref, token, actor, proxy_instance, send_by,
  outcome, outcome_at, reason) ON pay.rail_submission TO dlock_rail;
GRANT UPDATE (outcome, outcome_at, rail_ref, rail_code) ON pay.rail_submission TO dlock_rail;
GRANT INSERT (payout_id, result, executed_count, amount_minor, currency, rail_ref, source, actor, token, reason, asked_at)
  ON pay.rail_lookup TO dlock_rail;

GRANT SELECT ON ALL TABLES IN SCHEMA pay TO dlock_readonly;
GRANT SELECT ON pay.payout_submission, pay.payout_next_step, pay.invariant, pay.invariant_violation, pay.unfenced_row TO dlock_payment;
GRANT SELECT ON pay.payout_submission, pay.payout_next_step, pay.unfenced_row TO dlock_rail;
GRANT EXECUTE ON FUNCTION pay.rail_verdict(uuid), pay.next_step(text, text, text), pay.fencing_on(text)
  TO dlock_payment, dlock_rail, dlock_readonly;

RESET ROLE;
