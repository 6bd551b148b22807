-- What may be decided for a namespace, a topic or a subscription beside its own columns:
-- a JSON object of what differs from the defaults (storage/catalog/policy.py), '' for nothing.

ALTER TABLE namespaces ADD COLUMN policy VARCHAR(4000) NOT NULL DEFAULT '';

ALTER TABLE topics ADD COLUMN policy VARCHAR(4000) NOT NULL DEFAULT '';

ALTER TABLE subscriptions ADD COLUMN policy VARCHAR(4000) NOT NULL DEFAULT '';
