-- How late messages were handed out and how soon acknowledged (storage/encoding/lag.py, lagtable.py).

-- Of a sought subscription the id of the first that it continues; 0: it was never sought.
ALTER TABLE subscriptions ADD COLUMN origin_id BIGINT NOT NULL DEFAULT 0;

-- A row is what the journal's entries from first_seq to last_seq of an epoch say of one
-- subscription and hour.
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
