"""Order by key: one message of each key at a time, in due order."""
