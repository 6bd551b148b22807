"""Everything that has a name, whether or not somebody uses it."""
