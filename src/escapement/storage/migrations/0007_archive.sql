-- The archive: which messages of each topic are archived, and in which files.

-- Archived offsets of each topic, in chunks (storage/offsets/offsets.py).
-- Owner: storage/archive_record.py.
CREATE TABLE IF NOT EXISTS archived_chunks (
    topic_id BIGINT NOT NULL,
    chunk BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (topic_id, chunk)
){table_end};

-- One row for each archive record: the messages of one topic that one run has archived.
-- size_bytes is the size of the run's files for the topic. manifest lists the files (JSON).
-- Owner: storage/archive_record.py.
CREATE TABLE IF NOT EXISTS archives (
    {id_column},
    topic_id BIGINT NOT NULL,
    run {name} NOT NULL,
    archived_at_ms BIGINT NOT NULL,
    message_count BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    first_offset BIGINT NOT NULL,
    last_offset BIGINT NOT NULL,
    manifest {blob} NOT NULL,
    UNIQUE (topic_id, run)
){table_end};
