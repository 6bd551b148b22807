"""Retries: back-off and the next attempt of each message."""
