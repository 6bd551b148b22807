-- The identity of the log, and the lease: the right of one broker to write.
--
-- In all migrations, words in braces stand for the words of a database's SQL dialect (Dialect
-- in storage/engine/base.py). A column whose name ends with _at_ms, _until_ms or due_ms is a
-- time in Unix milliseconds. Other columns that end with _ms are durations in milliseconds,
-- unless the comment of the table says otherwise. Flags are 0 or 1. A full name is a name with
-- its tenant and namespace, such as shop/eu/orders.

-- One row with the id 1: a random id of 16 bytes. An index on disk names it, so that the index
-- is not used with another database. Owner: storage/schema.py.
CREATE TABLE IF NOT EXISTS log_identity (
    id BIGINT NOT NULL PRIMARY KEY,
    identity VARBINARY(16) NOT NULL
){table_end};

-- One row for each bundle of topics: the broker that may write. epoch grows by 1 with each
-- acquisition. expires_at_ms is by the database's clock. If the last owner stopped cleanly, clean
-- is 1, and doubtful_until_ms is the latest due time of messages that may have been delivered
-- without a record. If not, it is when the owner was last known to be alive, by its clock. Such
-- messages may have gone to subscriptions with ids below doubtful_below_id. connection_ids are
-- the ids of the owner's connections, with commas between them. Owner: storage/lease.py.
CREATE TABLE IF NOT EXISTS leases (
    bundle_id BIGINT NOT NULL PRIMARY KEY,
    owner_id {name} NOT NULL,
    owner_name {name} NOT NULL,
    epoch BIGINT NOT NULL,
    expires_at_ms BIGINT NOT NULL,
    clean SMALLINT NOT NULL,
    doubtful_until_ms BIGINT NOT NULL,
    doubtful_below_id BIGINT NOT NULL,
    connection_ids VARCHAR(2000) NOT NULL
){table_end};

-- Today there is one bundle, with the id 0. No broker has its lease yet.
{insert_ignore} INTO leases
    (bundle_id, owner_id, owner_name, epoch, expires_at_ms, clean, doubtful_until_ms,
     doubtful_below_id, connection_ids)
    VALUES (0, '', '', 0, 0, 1, 0, 0, '');
