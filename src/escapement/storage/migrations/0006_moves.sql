-- When messages are due whose time was moved, in chunks of offsets (storage/encoding/moves.py).
CREATE TABLE IF NOT EXISTS moves (
    topic_id BIGINT NOT NULL,
    chunk BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (topic_id, chunk)
){table_end};
