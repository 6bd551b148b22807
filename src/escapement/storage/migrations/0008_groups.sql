-- Groups of messages, and what follows when one is done (storage/eventgroup.py).

-- Which messages belong to a group of their topic, cut into chunks (storage/offsets.py).
CREATE TABLE IF NOT EXISTS group_members (
    topic_id BIGINT NOT NULL,
    name {name} NOT NULL,
    chunk BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (topic_id, name, chunk)
){table_end};

-- A group with a row here is closed: for each subscription what follows when it has
-- acknowledged them all, and whether that has been.
CREATE TABLE IF NOT EXISTS group_closings (
    {id_column},
    topic_id BIGINT NOT NULL,
    name {name} NOT NULL,
    subscription_id BIGINT NOT NULL,
    subscription {name} NOT NULL,
    target VARBINARY(640) NOT NULL,
    digest VARBINARY(16) NOT NULL,
    closed_at_ms BIGINT NOT NULL,
    fired_at_ms BIGINT,
    letter {blob} NOT NULL,
    UNIQUE (topic_id, name, subscription_id)
){table_end};
