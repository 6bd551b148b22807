-- Bulk changes: cancels, reschedules, runs now and redrives of all messages that match a filter.

-- One row for each bulk change. topic is the full name of the topic that the request names.
-- topic_id is the id of the topic that has the messages: the dead-letter topic for a redrive,
-- whose full name is then in dead_letter_topic. The filter is from_ms, until_ms, message_key
-- (NULL: any) and properties, a map in MessagePack. Only messages with offsets below bound match.
-- new_at_ms is the new due time; NULL means at once. While state is selecting, total is 0. Of the
-- total messages, those with offsets below next_offset are finished: done_count were changed,
-- delivered_count had been delivered already, and skipped_count needed no change for another
-- reason. A time is NULL if it has not come. Owner: storage/bulk_change.py.
CREATE TABLE IF NOT EXISTS bulk_changes (
    {id_column},
    bundle_id BIGINT NOT NULL,
    topic VARBINARY(640) NOT NULL,
    topic_id BIGINT NOT NULL,
    action {name} NOT NULL,
    subscription {name} NOT NULL,
    dead_letter_topic VARBINARY(640) NOT NULL,
    from_ms BIGINT NOT NULL,
    until_ms BIGINT,
    message_key {blob},
    properties {blob} NOT NULL,
    bound BIGINT NOT NULL,
    new_at_ms BIGINT,
    spread_ms BIGINT NOT NULL,
    role {name},
    reason {blob} NOT NULL,
    state {name} NOT NULL,
    total BIGINT NOT NULL,
    next_offset BIGINT NOT NULL,
    done_count BIGINT NOT NULL,
    delivered_count BIGINT NOT NULL,
    skipped_count BIGINT NOT NULL,
    error {blob} NOT NULL,
    created_at_ms BIGINT NOT NULL,
    updated_at_ms BIGINT NOT NULL,
    ended_at_ms BIGINT
){table_end};

-- The messages that a bulk change applies to, until it has ended, in parts. data has offsets up to
-- last_offset, ascending. Owner: storage/bulk_change.py.
CREATE TABLE IF NOT EXISTS bulk_parts (
    change_id BIGINT NOT NULL,
    last_offset BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (change_id, last_offset)
){table_end};
