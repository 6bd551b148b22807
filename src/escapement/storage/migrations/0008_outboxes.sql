-- The outboxes: tables in databases of applications, from which rows move into the inbox.

-- One row for each outbox, by its random identity. batch is the number of the last batch of rows
-- that was inserted into the inbox. moved_rows has the ids and digests of these rows, because they
-- may still have to be deleted in the database of the application.
-- Owner: storage/outbox/record.py.
CREATE TABLE IF NOT EXISTS outboxes (
    identity VARBINARY(16) NOT NULL PRIMARY KEY,
    batch BIGINT NOT NULL,
    moved_rows {blob} NOT NULL,
    moved_at_ms BIGINT NOT NULL
){table_end};
