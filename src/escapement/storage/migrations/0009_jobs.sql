-- Bulk writes: what a job stages becomes visible as a whole (storage/job.py).

-- A job has the name of its series and a number in it. Once it is committed it is remembered,
-- so that the same job changes nothing when it comes again.
CREATE TABLE IF NOT EXISTS jobs (
    {id_column},
    series {name} NOT NULL,
    version BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    committed_at_ms BIGINT,
    adopted_at_ms BIGINT,
    message_count BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    UNIQUE (series, version),
    UNIQUE (adopted_at_ms, committed_at_ms, id)
){table_end};

-- The letters that one attempt at one part of a job has for one target; in the inbox they
-- stand under the negative id. Its mailbox is 0 until the job is committed; it is held when
-- nothing is left but letters that can never be moved.
CREATE TABLE IF NOT EXISTS parcels (
    {id_column},
    job_id BIGINT NOT NULL,
    part BIGINT NOT NULL,
    attempt {name} NOT NULL,
    target VARBINARY(640) NOT NULL,
    mailbox_id BIGINT NOT NULL,
    held SMALLINT NOT NULL,
    letter_count BIGINT NOT NULL,
    message_count BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    touched_at_ms BIGINT NOT NULL,
    UNIQUE (job_id, part, attempt, target),
    UNIQUE (mailbox_id, held, id)
){table_end};
