-- The messages per second that the process published and delivered before its last renewal. A broker
-- of an older version leaves it at 0. "load" alone is a reserved word of MySQL. Owner:
-- storage/members.py.
ALTER TABLE brokers ADD COLUMN load_per_s BIGINT NOT NULL DEFAULT 0;
