"""Durable state: database engines, commits, log, journal, index and checkpoints.

To follow a message, begin with ``commit/commit.py``. To follow the start of a broker, begin with
``state/state.py``.
"""
