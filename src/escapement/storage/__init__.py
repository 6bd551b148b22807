"""Durable state: database engines, commits, log, journal, index and checkpoints.

Begin with ``commit/commit.py`` for the way of a message, and with ``state.py`` for a start.
"""
