-- Bundles: sets of topics with one owner each. A bundle has a row in the table leases.

-- The bundle to which a generation of the log belongs. Owner: storage/log/generation.py.
ALTER TABLE generations ADD COLUMN bundle_id BIGINT NOT NULL DEFAULT 0;

-- The bundle whose owner deletes the marked rows. Owner: storage/removal.py.
ALTER TABLE removals ADD COLUMN bundle_id BIGINT NOT NULL DEFAULT 0;

-- Numbers that all bundles share. bundles is the number of bundles, whose ids are 0, 1, and so on.
-- placed_topics is the highest id of a topic when that number grew last. generations is the last id
-- that a generation of the log was given, or lower if an older broker has begun the last one. catalog
-- counts the changes of namespaces, tokens and grants. Owner: storage/bundles.py.
CREATE TABLE IF NOT EXISTS shared_numbers (
    name {name} NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL
){table_end};
{insert_ignore} INTO shared_numbers (name, value) VALUES ('bundles', 1);
{insert_ignore} INTO shared_numbers (name, value) VALUES ('generations', 0);
{insert_ignore} INTO shared_numbers (name, value) VALUES ('placed_topics', 0);
{insert_ignore} INTO shared_numbers (name, value) VALUES ('catalog', 0);
