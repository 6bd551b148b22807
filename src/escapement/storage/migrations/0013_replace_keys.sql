-- Replace keys of each topic's pending messages, in parts (storage/encoding/replace_keys.py).
-- Owner: storage/state/checkpoint.py.
CREATE TABLE IF NOT EXISTS replace_keys (
    topic_id BIGINT NOT NULL,
    part BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (topic_id, part)
){table_end};
