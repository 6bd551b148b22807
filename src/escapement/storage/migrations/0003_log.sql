-- The log and its journal. The messages are in other tables, log_<generation>_<shard>, which
-- the broker creates and drops (storage/log/generation.py).

-- One row for each generation of the log. parallelism is the number of its tables. size_bytes
-- is the size of its rows as of the last checkpoint. Owner: storage/log/generation.py.
CREATE TABLE IF NOT EXISTS generations (
    id BIGINT NOT NULL PRIMARY KEY,
    parallelism BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL
){table_end};

-- One row for each group commit that no checkpoint covers yet. seq counts the group commits of
-- a lane. group_id is a random id of the group commit. data is a journal entry
-- (storage/journal/entry.py). Owner: storage/journal/journal.py.
CREATE TABLE IF NOT EXISTS journal (
    bundle_id BIGINT NOT NULL,
    lane BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    group_id VARBINARY(8) NOT NULL,
    created_at_ms BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (bundle_id, lane, seq)
){table_end};

-- One row for each lane: seq and group_id of the last row that was deleted from its journal.
-- Owner: storage/journal/journal.py.
CREATE TABLE IF NOT EXISTS journal_trim (
    bundle_id BIGINT NOT NULL,
    lane BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    group_id VARBINARY(8) NOT NULL,
    PRIMARY KEY (bundle_id, lane)
){table_end};
