-- Push targets: the URLs to which messages of subscriptions are posted.

-- One row for each subscription with a target. origin_id is that of the subscription, which a seek
-- keeps. policy is a JSON object, as in the catalog. Posts are signed with secret and, until
-- old_until_ms, with old_secret too. The row is deleted with the subscription. Owner:
-- storage/catalog/push_targets.py.
CREATE TABLE IF NOT EXISTS push_targets (
    origin_id BIGINT NOT NULL PRIMARY KEY,
    topic_id BIGINT NOT NULL,
    policy VARCHAR(4000) NOT NULL,
    secret VARBINARY(64) NOT NULL,
    old_secret VARBINARY(64),
    old_until_ms BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL
){table_end};
