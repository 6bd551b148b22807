-- Bulk jobs, whose messages all become visible at one commit.

-- One row for each bulk job: a series and a version. message_count and size_bytes are those of
-- the committed messages, and 0 before the commit. adopted_at_ms is when the last message was
-- moved to the log, and given_up_at_ms is when staged batches were last abandoned. A time is
-- NULL if it has not come. All times are by the database's clock. Owner: storage/inbox/job.py.
CREATE TABLE IF NOT EXISTS jobs (
    {id_column},
    series {name} NOT NULL,
    version BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    committed_at_ms BIGINT,
    adopted_at_ms BIGINT,
    given_up_at_ms BIGINT,
    message_count BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    UNIQUE (series, version),
    UNIQUE (adopted_at_ms, committed_at_ms, id)
){table_end};

-- One row for each staged batch: the inbox entries that one attempt at one part of a job has
-- for one target, a topic's full name. In the table inbox these entries have the negative id of
-- the batch as target_id. Here, target_id is the id of the inbox target, and 0 until the job is
-- committed. A batch is stuck if the only entries left are stuck. entry_count, message_count and
-- size_bytes are the totals of the staged entries, and staged_at_ms is when entries were last
-- staged, by the database's clock. Entries with ids up to moved_id have been moved to the log,
-- except stuck ones.
-- Owner: storage/inbox/staged_batch.py.
CREATE TABLE IF NOT EXISTS staged_batches (
    {id_column},
    job_id BIGINT NOT NULL,
    part BIGINT NOT NULL,
    attempt {name} NOT NULL,
    target VARBINARY(640) NOT NULL,
    target_id BIGINT NOT NULL,
    stuck SMALLINT NOT NULL,
    entry_count BIGINT NOT NULL,
    message_count BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    staged_at_ms BIGINT NOT NULL,
    moved_id BIGINT NOT NULL,
    UNIQUE (job_id, part, attempt, target),
    UNIQUE (target_id, stuck, id)
){table_end};
