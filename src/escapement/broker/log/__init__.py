"""The log as the broker reads it, and changes to its messages since publication."""
