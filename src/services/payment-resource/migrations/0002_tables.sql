-- Money is int64 minor units. States are text with a CHECK, so that a new one needs no rewrite.
SET LOCAL ROLE dlock_owner;

-- The kill switches of the experiment, as data: two rows, never more. Rows written while one is off carry
-- `fenced = false` for ever, so an experiment can not pass for production data.
CREATE TABLE pay.fencing_switch (
  point   text PRIMARY KEY CHECK (point IN ('resource', 'rail')),
  enabled boolean NOT NULL DEFAULT true
);
INSERT INTO pay.fencing_switch VALUES ('resource', true), ('rail', true);

-- When "not found at the rail" may be believed. One row.
CREATE TABLE pay.rail_policy (
  one             boolean PRIMARY KEY DEFAULT true CHECK (one),
  finality_window interval NOT NULL DEFAULT '60 minutes' CHECK (finality_window >= '0'),
  min_not_found   int      NOT NULL DEFAULT 2 CHECK (min_not_found >= 1),
  min_spacing     interval NOT NULL DEFAULT '5 minutes' CHECK (min_spacing >= '0')
);
INSERT INTO pay.rail_policy DEFAULT VALUES;

CREATE TABLE pay.account (
  account_id     text PRIMARY KEY CHECK (account_id ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$'),
  kind           text NOT NULL DEFAULT 'CUSTOMER' CHECK (kind IN ('CUSTOMER', 'CLEARING', 'SUSPENSE', 'FUNDING')),
  currency       char(3) NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
  balance_minor  bigint NOT NULL DEFAULT 0,                              -- only the trigger of ledger_entry writes it
  reserved_minor bigint NOT NULL DEFAULT 0 CHECK (reserved_minor >= 0),  -- only the trigger of payout writes it
  fence          bigint NOT NULL DEFAULT 0 CHECK (fence >= 0),           -- fence point (a): the greatest token seen
  created_at     timestamptz NOT NULL DEFAULT now(),
  UNIQUE (account_id, currency),
  CONSTRAINT account_no_overdraft CHECK (kind <> 'CUSTOMER' OR balance_minor - reserved_minor >= 0),
  -- The house has one account of a kind and currency, and its name is taken for everybody else.
  CONSTRAINT account_house_name CHECK (
    CASE kind WHEN 'CUSTOMER' THEN account_id !~ '^(clearing|suspense|funding)-[a-z]{3}$'
              ELSE account_id = lower(kind) || '-' || lower(currency) END)
);
INSERT INTO pay.account (account_id, kind, currency)
SELECT lower(kind) || '-' || lower(currency), kind, currency
  FROM unnest(ARRAY['CLEARING', 'SUSPENSE', 'FUNDING']) kind, unnest(ARRAY['EUR', 'GBP', 'USD']) currency;

CREATE TABLE pay.payout (
  payout_id       uuid PRIMARY KEY,
  account_id      text    NOT NULL,
  currency        char(3) NOT NULL,
  amount_minor    bigint  NOT NULL CHECK (amount_minor BETWEEN 1 AND 100000000000000),
  beneficiary_ref text    NOT NULL CHECK (length(beneficiary_ref) BETWEEN 1 AND 140),
  client_ref      text    NOT NULL UNIQUE CHECK (client_ref ~ '^[A-Za-z0-9-]{1,35}$'),  -- ISO 20022 Max35Text
  idempotency_key text    NOT NULL UNIQUE CHECK (length(idempotency_key) BETWEEN 1 AND 128),
  request_hash    bytea   NOT NULL,
  state           text    NOT NULL DEFAULT 'PENDING'
                  CHECK (state IN ('PENDING', 'CLAIMED', 'POSTED', 'FAILED', 'RAIL_AMBIGUOUS')),
  claim_token     bigint  CHECK (claim_token > 0),
  fail_reason     text    CHECK (fail_reason IN
                  ('RAIL_DECLINED', 'RAIL_NOT_EXECUTED', 'CANCELLED', 'INSUFFICIENT_FUNDS', 'ACCOUNT_BLOCKED')),
  last_actor      text    NOT NULL CHECK (length(last_actor) BETWEEN 1 AND 64),
  last_token      bigint  CHECK (last_token > 0),
  trace_id        text    CHECK (length(trace_id) BETWEEN 1 AND 64),
  created_at      timestamptz NOT NULL DEFAULT now(),
  updated_at      timestamptz NOT NULL DEFAULT now(),
  FOREIGN KEY (account_id, currency) REFERENCES pay.account (account_id, currency),
  UNIQUE (payout_id, account_id, currency, amount_minor, client_ref),
  CHECK (state <> 'PENDING' OR claim_token IS NULL),
  CHECK (state NOT IN ('CLAIMED', 'POSTED', 'RAIL_AMBIGUOUS') OR claim_token IS NOT NULL),
  CHECK ((state = 'FAILED') = (fail_reason IS NOT NULL))
);
-- One payout of an account in flight at most, even if the lock service grants everyone; it also forces recovery
-- before new work.
CREATE UNIQUE INDEX payout_one_claimed_per_account ON pay.payout (account_id) WHERE state = 'CLAIMED';
CREATE INDEX payout_by_age ON pay.payout (created_at, payout_id);
CREATE INDEX payout_by_state ON pay.payout (state, created_at, payout_id) WHERE state NOT IN ('POSTED', 'FAILED');
CREATE INDEX payout_by_account ON pay.payout (account_id, created_at, payout_id);

-- Fence point (c), written by dlock_rail alone.
CREATE TABLE pay.rail_high_water (
  account_id    text PRIMARY KEY REFERENCES pay.account (account_id),
  highest_token bigint NOT NULL CHECK (highest_token > 0),
  payout_id     uuid   NOT NULL,  -- what this token was spent on
  actor         text   NOT NULL,
  updated_at    timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE pay.rail_submission (
  submission_id  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  payout_id      uuid    NOT NULL,
  account_id     text    NOT NULL,
  currency       char(3) NOT NULL,
  amount_minor   bigint  NOT NULL,
  client_ref     text    NOT NULL,
  token          bigint  NOT NULL CHECK (token > 0),
  actor          text    NOT NULL,
  proxy_instance text    NOT NULL,                -- the one process that may send it, once
  fenced         boolean NOT NULL DEFAULT true,   -- set by trigger; false in the experiment only
  intent_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  send_by        timestamptz NOT NULL,            -- the send must not start after this
  outcome        text CHECK (outcome IN ('ACKED', 'DECLINED', 'TIMEOUT', 'DUPLICATE_ACK', 'VOIDED')),  -- NULL: intent
  outcome_at     timestamptz,
  rail_ref       text,
  rail_code      text,
  reason         text,                            -- why it was voided
  -- What is sent is what was ordered.
  FOREIGN KEY (payout_id, account_id, currency, amount_minor, client_ref)
      REFERENCES pay.payout (payout_id, account_id, currency, amount_minor, client_ref),
  CHECK ((outcome IS NULL) = (outcome_at IS NULL)),
  CHECK (outcome IS DISTINCT FROM 'ACKED' OR rail_ref IS NOT NULL)
);
CREATE UNIQUE INDEX rail_submission_one_per_payout ON pay.rail_submission (payout_id) WHERE fenced;  -- INV-02
-- One payment acknowledged for two payouts: the second is a duplicate acknowledgement, not an ack.
CREATE UNIQUE INDEX rail_submission_rail_ref ON pay.rail_submission (rail_ref) WHERE outcome = 'ACKED' AND fenced;
CREATE INDEX rail_submission_by_payout ON pay.rail_submission (payout_id, intent_at);

-- What the rail (or an operator) said when asked. Append-only.
CREATE TABLE pay.rail_lookup (
  lookup_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  payout_id      uuid NOT NULL REFERENCES pay.payout (payout_id),
  result         text NOT NULL CHECK (result IN ('EXECUTED', 'REJECTED', 'NOT_FOUND', 'PENDING', 'UNAVAILABLE')),
  executed_count int  NOT NULL DEFAULT 0 CHECK (executed_count >= 0),
  amount_minor   bigint,
  currency       char(3),
  rail_ref       text,
  source         text NOT NULL CHECK (source IN ('LOOKUP', 'STATEMENT', 'OPERATOR')),
  actor          text NOT NULL,
  token          bigint CHECK (token > 0),
  reason         text,
  -- This database's clock, read before the rail was asked. Judged instead of `at`: a proxy stopped between answer and
  -- insert would make an early "not found" look final.
  asked_at       timestamptz NOT NULL,
  at             timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK (asked_at <= at),
  CHECK ((result = 'EXECUTED') = (executed_count >= 1)),
  CHECK (source <> 'OPERATOR' OR (token IS NOT NULL AND reason IS NOT NULL))
);
CREATE INDEX rail_lookup_by_payout ON pay.rail_lookup (payout_id, lookup_id);

CREATE TABLE pay.journal (
  journal_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind        text NOT NULL CHECK (kind IN ('FUNDING', 'PAYOUT', 'ADJUSTMENT')),
  payout_id   uuid REFERENCES pay.payout (payout_id),
  actor       text NOT NULL CHECK (length(actor) BETWEEN 1 AND 64),
  token       bigint CHECK (token > 0),
  memo        text,
  fenced      boolean NOT NULL DEFAULT true,                        -- set by trigger; false in the experiment only
  created_xid xid8 NOT NULL DEFAULT pg_current_xact_id(),           -- set by trigger; entries join in this transaction only
  created_at  timestamptz NOT NULL DEFAULT now(),
  CHECK (kind <> 'PAYOUT' OR (payout_id IS NOT NULL AND token IS NOT NULL)),
  CHECK (kind <> 'ADJUSTMENT' OR payout_id IS NOT NULL)
);
CREATE UNIQUE INDEX journal_one_per_payout ON pay.journal (payout_id) WHERE kind = 'PAYOUT' AND fenced;
CREATE INDEX journal_by_payout ON pay.journal (payout_id);

CREATE TABLE pay.ledger_entry (
  entry_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  journal_id   bigint  NOT NULL REFERENCES pay.journal (journal_id),
  account_id   text    NOT NULL,
  currency     char(3) NOT NULL,
  amount_minor bigint  NOT NULL CHECK (amount_minor <> 0),  -- credit +, debit -
  FOREIGN KEY (account_id, currency) REFERENCES pay.account (account_id, currency)
);
CREATE INDEX ledger_entry_by_journal ON pay.ledger_entry (journal_id);
CREATE INDEX ledger_entry_by_account ON pay.ledger_entry (account_id, journal_id);

-- Who moved a payout, under which token, on what evidence (FR-30). Written by trigger only.
CREATE TABLE pay.payout_transition (
  transition_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  payout_id     uuid NOT NULL REFERENCES pay.payout (payout_id),
  from_state    text,
  to_state      text NOT NULL,
  actor         text NOT NULL,
  token         bigint,
  fence_seen    bigint,
  reason        text,
  evidence      text,
  db_role       text NOT NULL,
  trace_id      text,
  at            timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX payout_transition_by_payout ON pay.payout_transition (payout_id, transition_id);

RESET ROLE;
