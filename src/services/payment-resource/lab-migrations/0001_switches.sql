-- Experiments only, never in production: the role that may turn the kill switches and shorten the rail's finality.
SET LOCAL ROLE dlock_owner;
GRANT USAGE ON SCHEMA pay TO dlock_lab;
GRANT SELECT, UPDATE (enabled) ON pay.fencing_switch TO dlock_lab;
GRANT SELECT, UPDATE (finality_window, min_not_found, min_spacing) ON pay.rail_policy TO dlock_lab;
RESET ROLE;
