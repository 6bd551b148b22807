"""Retries: how long a message waits for its next attempt, and the timers of these waits.

Begin with ``retries.py``, the timers. ``backoff.py`` computes the waits.
"""
