-- Tables of the log that were created ahead, for a broker that may not create tables.

-- One row for each table set: table_count tables, named log_set_<id>_<shard>. generation is the
-- generation of the log that uses them, or 0: the tables are empty and free.
-- Owner: storage/log/table_sets.py.
CREATE TABLE IF NOT EXISTS table_sets (
    id BIGINT NOT NULL PRIMARY KEY,
    table_count BIGINT NOT NULL,
    generation BIGINT NOT NULL DEFAULT 0
){table_end};
