"""The log: generations of tables whose rows hold messages in arrival order."""
