-- The inbox, and the group completions and schedules that write to it.

-- One row for each topic that inbox entries are for, under the topic's full name. The topic
-- need not exist. The row is deleted with the topic. Ids are never used again, so that a topic
-- of the same name gets no entries of a deleted one. Owner: storage/inbox/inbox.py.
CREATE TABLE IF NOT EXISTS inbox_targets (
    {id_column},
    target VARBINARY(640) NOT NULL,
    UNIQUE (target)
){table_end};

-- One row for each inbox entry: a batch of messages that is to be moved to the log of its
-- target, in the order of ids. target_id is the id of the inbox target, or the negative id of a
-- staged batch. source_id names the cause of the entry. An entry that can never be moved is
-- stuck, and reason says why. size_bytes is the size of data with its body decompressed. data is
-- encoded by storage/inbox/entry.py. Owner: storage/inbox/inbox.py.
CREATE TABLE IF NOT EXISTS inbox (
    {id_column},
    target_id BIGINT NOT NULL,
    stuck SMALLINT NOT NULL,
    source_id {name} NOT NULL,
    message_count BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    reason {name} NOT NULL,
    data {blob} NOT NULL,
    UNIQUE (target_id, source_id),
    UNIQUE (target_id, stuck, id)
){table_end};

-- One row for each group completion: the subscription whose acknowledgements complete the event
-- group, and the follow-up to publish then. subscription is the subscription's name, and target
-- is the full name of the topic that gets the follow-up. follow_up is an inbox entry, and
-- digest is a hash of target and follow_up. fired_at_ms is NULL until the follow-up is in the
-- inbox.
-- Owner: storage/inbox/event_group.py.
CREATE TABLE IF NOT EXISTS group_completions (
    {id_column},
    topic_id BIGINT NOT NULL,
    group_name {name} NOT NULL,
    subscription_id BIGINT NOT NULL,
    subscription {name} NOT NULL,
    target VARBINARY(640) NOT NULL,
    digest VARBINARY(16) NOT NULL,
    closed_at_ms BIGINT NOT NULL,
    fired_at_ms BIGINT,
    follow_up {blob} NOT NULL,
    UNIQUE (topic_id, group_name, subscription_id)
){table_end};

-- One row for each recurring schedule. name and topic are full names. Occurrences follow cron
-- and timezone if cron is not '', and otherwise the times anchor_ms + n * every_ms. anchor_ms,
-- next_ms and last_ms are times in Unix milliseconds: next_ms is the next occurrence, and
-- last_ms the last published one; NULL if there is none. until_ms is the end, or NULL.
-- published counts occurrences. size_bytes is the size of payload and message_key, which is
-- empty if the message has no key. spread_ms is the span over which due times are scattered.
-- Owner: storage/inbox/schedule.py.
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
    spread_ms BIGINT NOT NULL DEFAULT 0,
    payload {blob} NOT NULL,
    message_key {blob} NOT NULL,
    UNIQUE (name)
){table_end};
