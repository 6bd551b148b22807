-- The processes that own bundles. A process renews one row, however many bundles it owns.

-- One row for each owner: the process that last worked under this identity. incarnation is random
-- for each process. place is where its data directory is: a process at the same place can start
-- only after the one before has ended. expires_at_ms is by the database's clock. seen_ms is when
-- the process was last known to be alive, by its clock. draining is 1 if it wants no more bundles.
-- connection_ids are the ids of the connections through which it writes, with commas between them.
-- Owner: storage/members.py.
CREATE TABLE IF NOT EXISTS brokers (
    owner_id {name} NOT NULL PRIMARY KEY,
    incarnation {name} NOT NULL,
    name {name} NOT NULL,
    place {name} NOT NULL,
    address {name} NOT NULL,
    expires_at_ms BIGINT NOT NULL,
    seen_ms BIGINT NOT NULL,
    draining SMALLINT NOT NULL,
    connection_ids VARCHAR(12000) NOT NULL
){table_end};

-- The process that owns the bundle; '' if none does, or a broker of an older version. With an
-- incarnation, expires_at_ms of the lease is 253402300799000 until the lease is released, so that
-- an older broker does not take it. Owner: storage/lease.py.
ALTER TABLE leases ADD COLUMN incarnation {name} NOT NULL DEFAULT '';

-- The owner that an operator wants for the bundle, while that owner lives; '' for any.
ALTER TABLE leases ADD COLUMN pinned_to {name} NOT NULL DEFAULT '';
