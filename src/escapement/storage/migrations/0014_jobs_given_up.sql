-- When what a job had staged was given up last: its writer aborted it, or left it alone.
ALTER TABLE jobs ADD COLUMN given_up_at_ms BIGINT;
