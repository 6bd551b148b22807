-- Access control: the tokens of clients, and the rights of roles.

-- One row for each token, by its public id. digest is the SHA-256 of the token. A time is NULL if
-- the token never expires, is not revoked, or was not used yet. A broker whose log has a row here
-- refuses clients without a token, so the rows of revoked tokens stay until their role gets a new
-- token. used_at_ms is up to a minute late. Owner: storage/catalog/tokens.py.
CREATE TABLE IF NOT EXISTS tokens (
    id {name} NOT NULL PRIMARY KEY,
    role {name} NOT NULL,
    digest VARBINARY(32) NOT NULL,
    created_at_ms BIGINT NOT NULL,
    expires_at_ms BIGINT,
    revoked_at_ms BIGINT,
    used_at_ms BIGINT
){table_end};

-- One row for each grant. pattern is the UTF-8 text of a pattern of topics (access/pattern.py), and
-- actions are names with commas between them. Owner: storage/catalog/grants.py.
CREATE TABLE IF NOT EXISTS grants (
    role {name} NOT NULL,
    pattern VARBINARY(640) NOT NULL,
    actions VARCHAR(200) NOT NULL,
    PRIMARY KEY (role, pattern)
){table_end};
