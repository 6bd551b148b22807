"""The log: generations of tables, and rows of messages in arrival order."""
