-- Which checkpoint the state is of: the number-th of one life of a broker, a random id. An index
-- counts only if its manifest goes with that (storage/index/segments/manifest.py, Lineage).
CREATE TABLE IF NOT EXISTS last_checkpoint (
    bundle_id BIGINT NOT NULL PRIMARY KEY,
    life {name} NOT NULL,
    number BIGINT NOT NULL
){table_end};
