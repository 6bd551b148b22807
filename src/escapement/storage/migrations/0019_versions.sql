-- The version of the program that the process runs. It is '' for a process that was started by a
-- version without this column. Owner: storage/members.py.
ALTER TABLE brokers ADD COLUMN version {name} NOT NULL DEFAULT '';
