-- The state of topics and subscriptions as of the last checkpoint.
--
-- Sets of offsets and due times are divided by offset into numbered chunks. Attempts and dedup
-- keys are divided into numbered parts, and a part overrides those with lower numbers
-- (storage/data_table.py).

-- One row for each bundle with a checkpoint. incarnation is a random id that is new at each
-- start of a broker, and number counts the checkpoints since that start. An index is used only
-- if its manifest goes with this checkpoint (storage/index/segments/manifest.py).
-- Owner: storage/state/checkpoint.py.
CREATE TABLE IF NOT EXISTS last_checkpoint (
    bundle_id BIGINT NOT NULL PRIMARY KEY,
    incarnation {name} NOT NULL,
    number BIGINT NOT NULL
){table_end};

-- Acknowledged offsets of each subscription, in chunks (storage/offsets/offsets.py).
-- subscription_id may also be the id of a topic's cancelled offsets or of a subscription's
-- lapsed offsets (storage/journal/entry.py). Owner: storage/state/checkpoint.py.
CREATE TABLE IF NOT EXISTS cursor_chunks (
    subscription_id BIGINT NOT NULL,
    chunk BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (subscription_id, chunk)
){table_end};

-- Due times of each topic's rescheduled messages, in chunks (storage/encoding/moves.py).
-- Owner: storage/state/checkpoint.py.
CREATE TABLE IF NOT EXISTS moves (
    topic_id BIGINT NOT NULL,
    chunk BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (topic_id, chunk)
){table_end};

-- Attempts of each subscription's unacknowledged messages, in parts
-- (storage/encoding/attempts.py).
-- Owner: storage/state/checkpoint.py.
CREATE TABLE IF NOT EXISTS attempts (
    subscription_id BIGINT NOT NULL,
    part BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (subscription_id, part)
){table_end};

-- Dedup keys that each topic remembers, in parts (storage/encoding/dedup_keys.py).
-- Owner: storage/state/checkpoint.py.
CREATE TABLE IF NOT EXISTS dedup_keys (
    topic_id BIGINT NOT NULL,
    part BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (topic_id, part)
){table_end};

-- Offsets of the messages in each event group of a topic, in chunks
-- (storage/offsets/offsets.py).
-- Owner: storage/state/checkpoint.py.
CREATE TABLE IF NOT EXISTS group_members (
    topic_id BIGINT NOT NULL,
    group_name {name} NOT NULL,
    chunk BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (topic_id, group_name, chunk)
){table_end};

-- The lag of subscriptions by hour: how late messages were delivered and acknowledged. hour_ms
-- is when the hour began, in Unix milliseconds. origin_id is the id that the subscription had
-- before its first seek. data is a tally (storage/encoding/lag.py) of the journal entries of
-- one epoch with a seq from first_seq to last_seq. Owner: storage/state/lag_table.py.
CREATE TABLE IF NOT EXISTS lags (
    hour_ms BIGINT NOT NULL,
    origin_id BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    first_seq BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (hour_ms, origin_id, epoch, first_seq),
    UNIQUE (origin_id, hour_ms, epoch, first_seq)
){table_end};
