-- What is published again and again (storage/schedule.py).
CREATE TABLE IF NOT EXISTS schedules (
    {id_column},
    bundle_id BIGINT NOT NULL,
    name VARBINARY(640) NOT NULL,
    topic VARBINARY(640) NOT NULL,
    cron {name} NOT NULL,
    timezone {name} NOT NULL,
    every_ms BIGINT NOT NULL,
    anchor_ms BIGINT NOT NULL,
    until_ms BIGINT,
    missed {name} NOT NULL,
    paused SMALLINT NOT NULL,
    next_ms BIGINT,
    last_ms BIGINT,
    published BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    payload {blob} NOT NULL,
    message_key {blob} NOT NULL,
    UNIQUE (name)
){table_end};
