-- The one door for what does not arrive over a connection (storage/inbox.py).

-- The targets that letters are for: a topic's full name, whether it exists or not. When
-- a topic is deleted its mailbox goes with it, and the letters are freed by their
-- mailbox's id, which is never used again.
CREATE TABLE IF NOT EXISTS mailboxes (
    {id_column},
    target VARBINARY(640) NOT NULL,
    UNIQUE (target)
){table_end};

-- What is still to be moved into the target's log, in the order of ids. A letter that
-- can never be moved is held, with the reason.
CREATE TABLE IF NOT EXISTS inbox (
    {id_column},
    mailbox_id BIGINT NOT NULL,
    held SMALLINT NOT NULL,
    source_id {name} NOT NULL,
    message_count BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    reason {name} NOT NULL,
    data {blob} NOT NULL,
    UNIQUE (mailbox_id, source_id),
    UNIQUE (mailbox_id, held, id)
){table_end};
