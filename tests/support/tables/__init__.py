"""Support for tests of message tables."""
