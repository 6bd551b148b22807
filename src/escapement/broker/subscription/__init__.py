"""Subscriptions: which messages are ready, in flight or in retry, and which consumer gets them.

Begin with ``subscription``, the base class. Its two subclasses are ``shared`` (delivery order, by
due time) and ``ordered`` (arrival order, from the log). All modules are pure: the broker reads
index and log for them.
"""
