-- The audit log: one row for each administrative action. bundle_id is the bundle whose broker
-- carried it out, and broker is the name of that broker. role is '' if the log has no tokens. peer is
-- the address of the client, and client its name. object is the topic or other thing that the action
-- is about, arguments are JSON, and reason is the text that the person gave. All four are UTF-8.
-- outcome is 'done' or the code of an error; it is '' until the action has ended.
-- Owner: storage/audit_log.py.
CREATE TABLE IF NOT EXISTS audit (
    {id_column},
    at_ms BIGINT NOT NULL,
    bundle_id BIGINT NOT NULL,
    broker {name} NOT NULL,
    role {name} NOT NULL,
    peer {name} NOT NULL,
    client VARBINARY(800) NOT NULL,
    verb {name} NOT NULL,
    object VARBINARY(640) NOT NULL,
    arguments {blob} NOT NULL,
    reason {blob} NOT NULL,
    outcome {name} NOT NULL,
    UNIQUE (at_ms, id)
){table_end};
