"""Subscriptions: ready, in-flight and retried messages.

Only ordered subscriptions read from the log; everything else here is pure. Begin with
``subscription``, which holds what all kinds share. ``shared`` and ``ordered`` are the two kinds,
built from the other modules.
"""
