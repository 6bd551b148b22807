"""The catalog in the database: namespaces, topics, subscriptions, producers and policies.

Begin with ``catalog.py``.
"""
