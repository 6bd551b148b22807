-- The first schema. Words in braces are the engine's (storage/engine/base.py, Dialect).
-- Every statement can be run again after a crash half-way.

-- Who this log is: a random id, made once. The local index names it, so that it is
-- never believed about another database.
CREATE TABLE IF NOT EXISTS log_identity (
    id BIGINT NOT NULL PRIMARY KEY,
    identity VARBINARY(16) NOT NULL
){table_end};

-- Who may write what belongs to a bundle of topics, and since which epoch.
CREATE TABLE IF NOT EXISTS leases (
    bundle_id BIGINT NOT NULL PRIMARY KEY,
    owner_id {name} NOT NULL,
    owner_name {name} NOT NULL,
    epoch BIGINT NOT NULL,
    expires_at_ms BIGINT NOT NULL,
    clean SMALLINT NOT NULL,
    doubtful_until_ms BIGINT NOT NULL,
    connection_ids VARCHAR(2000) NOT NULL
){table_end};

{insert_ignore} INTO leases
    (bundle_id, owner_id, owner_name, epoch, expires_at_ms, clean, doubtful_until_ms, connection_ids)
    VALUES (0, '', '', 0, 0, 1, 0, '');

CREATE TABLE IF NOT EXISTS namespaces (
    {id_column},
    tenant {name} NOT NULL,
    name {name} NOT NULL,
    delays_enabled SMALLINT NOT NULL,
    granularity_ms BIGINT NOT NULL,
    tick_ms BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    UNIQUE (tenant, name)
){table_end};

CREATE TABLE IF NOT EXISTS topics (
    {id_column},
    namespace_id BIGINT NOT NULL,
    name {name} NOT NULL,
    bundle_id BIGINT NOT NULL,
    next_offset BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    UNIQUE (namespace_id, name)
){table_end};

CREATE TABLE IF NOT EXISTS subscriptions (
    {id_column},
    topic_id BIGINT NOT NULL,
    name {name} NOT NULL,
    kind {name} NOT NULL,
    start_offset BIGINT NOT NULL,
    start_due_ms BIGINT NOT NULL,
    fill_from BIGINT NOT NULL,
    fill_until BIGINT NOT NULL,
    log_position BIGINT NOT NULL,
    ack_wait_ms BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    UNIQUE (topic_id, name)
){table_end};

CREATE TABLE IF NOT EXISTS producers (
    {id_column},
    topic_id BIGINT NOT NULL,
    name {name} NOT NULL,
    epoch BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    last_offset BIGINT NOT NULL,
    updated_at_ms BIGINT NOT NULL,
    UNIQUE (topic_id, name)
){table_end};

-- Acknowledged offsets, cut into chunks (storage/offsets.py).
CREATE TABLE IF NOT EXISTS cursor_chunks (
    subscription_id BIGINT NOT NULL,
    chunk BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (subscription_id, chunk)
){table_end};

-- Attempts counted so far of what is not acknowledged (storage/encoding/attempts.py).
CREATE TABLE IF NOT EXISTS retries (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    data {blob} NOT NULL
){table_end};

-- One row for each group commit: what else it made durable (storage/journalentry.py).
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

-- How far each lane's journal was deleted, and the group found there.
CREATE TABLE IF NOT EXISTS journal_trim (
    bundle_id BIGINT NOT NULL,
    lane BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    group_id VARBINARY(8) NOT NULL,
    PRIMARY KEY (bundle_id, lane)
){table_end};

-- The log's generations; each has its own tables, log_<id>_<shard> (storage/log.py).
CREATE TABLE IF NOT EXISTS generations (
    id BIGINT NOT NULL PRIMARY KEY,
    parallelism BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL
){table_end};

-- Deleted topics and subscriptions whose rows are still to be freed (storage/removal.py).
CREATE TABLE IF NOT EXISTS removals (
    kind {name} NOT NULL,
    id BIGINT NOT NULL,
    PRIMARY KEY (kind, id)
){table_end};
