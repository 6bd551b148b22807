-- The catalog: namespaces, topics, subscriptions and named producers, and what is to be
-- deleted.
--
-- A policy is a JSON object with the fields that differ from their defaults, or '' if none does
-- (storage/catalog/policy.py).

-- One row for each namespace. granularity_ms is the span of due times that a topic reads from
-- the index at a time. tick_ms is the interval at which delayed messages that fall due are
-- delivered.
-- Owner: storage/catalog/catalog.py.
CREATE TABLE IF NOT EXISTS namespaces (
    {id_column},
    tenant {name} NOT NULL,
    name {name} NOT NULL,
    delays_enabled SMALLINT NOT NULL,
    granularity_ms BIGINT NOT NULL,
    tick_ms BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    policy VARCHAR(4000) NOT NULL DEFAULT '',
    UNIQUE (tenant, name)
){table_end};

-- One row for each topic. next_offset, the offset of its next message, is as of the last
-- checkpoint.
-- Owner: storage/catalog/catalog.py. Checkpoints write next_offset.
CREATE TABLE IF NOT EXISTS topics (
    {id_column},
    namespace_id BIGINT NOT NULL,
    name {name} NOT NULL,
    bundle_id BIGINT NOT NULL,
    next_offset BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    policy VARCHAR(4000) NOT NULL DEFAULT '',
    UNIQUE (namespace_id, name)
){table_end};

-- One row for each subscription. It gets messages with offsets from start_offset on, and
-- earlier ones that are due at start_due_ms or later. The broker still has to read the offsets
-- from fill_from to fill_until (exclusive) of the log for it. A seek replaces the row by a new
-- one. origin_id is the id before the first seek, or 0 if there was none.
-- Owner: storage/catalog/catalog.py. Checkpoints write fill_from.
CREATE TABLE IF NOT EXISTS subscriptions (
    {id_column},
    topic_id BIGINT NOT NULL,
    name {name} NOT NULL,
    kind {name} NOT NULL,
    start_offset BIGINT NOT NULL,
    start_due_ms BIGINT NOT NULL,
    fill_from BIGINT NOT NULL,
    fill_until BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    origin_id BIGINT NOT NULL,
    policy VARCHAR(4000) NOT NULL DEFAULT '',
    UNIQUE (topic_id, name)
){table_end};

-- One row for each named producer of a topic. epoch grows by 1 whenever the producer is opened.
-- The sequence and the offset of its last message are as of the last checkpoint, and -1 before
-- its first message. Owner: storage/catalog/producers.py. Checkpoints write all columns after
-- epoch.
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

-- One row for each deleted thing whose rows in other tables are deleted later. The module lists
-- the kinds. Owner: storage/removal.py.
CREATE TABLE IF NOT EXISTS removals (
    kind {name} NOT NULL,
    id BIGINT NOT NULL,
    PRIMARY KEY (kind, id)
){table_end};
