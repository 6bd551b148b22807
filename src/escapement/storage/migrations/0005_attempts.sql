-- Attempts counted so far, as parts: each states some messages anew, the newest part counts
-- (storage/encoding/attempts.py). They were one row of each subscription.

CREATE TABLE IF NOT EXISTS attempts (
    subscription_id BIGINT NOT NULL,
    part BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (subscription_id, part)
){table_end};

CREATE TABLE IF NOT EXISTS retries (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    data {blob} NOT NULL
){table_end};

{insert_ignore} INTO attempts (subscription_id, part, data)
    SELECT subscription_id, 0, data FROM retries;

DROP TABLE IF EXISTS retries;
