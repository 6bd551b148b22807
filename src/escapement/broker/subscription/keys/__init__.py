"""Order by key, with one message of each key in flight at a time, and key ranges of consumers."""
