-- The dedup keys that topics remember, in parts (storage/encoding/dedup_keys.py).
CREATE TABLE IF NOT EXISTS dedup_keys (
    topic_id BIGINT NOT NULL,
    part BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (topic_id, part)
){table_end};
