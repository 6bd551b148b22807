-- What of each topic is in an archive (storage/archive_record.py).

-- Archived offsets, cut into chunks (storage/offsets.py).
CREATE TABLE IF NOT EXISTS archived_chunks (
    topic_id BIGINT NOT NULL,
    chunk BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (topic_id, chunk)
){table_end};

-- What one run has archived of one topic; the manifest names the files.
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
