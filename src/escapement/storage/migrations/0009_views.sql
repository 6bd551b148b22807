-- What the views for people who read the database with SQL need.

-- The number of messages that a subscription need not get any more, because it acknowledged them
-- or they were cancelled. As of the last checkpoint; NULL: not counted yet.
-- Owner: storage/catalog/catalog.py. Checkpoints write it.
ALTER TABLE subscriptions ADD COLUMN finished_count BIGINT;

-- One row for each view that a broker has created: a hash of its definition. A broker with another
-- definition replaces the view. Owner: storage/catalog/views.py.
CREATE TABLE IF NOT EXISTS created_views (
    name {name} NOT NULL PRIMARY KEY,
    checksum VARCHAR(64) NOT NULL
){table_end};
