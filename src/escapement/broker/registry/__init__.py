"""The named objects of a broker: namespaces, topics, subscriptions and producers.

Begin with ``registry.py``.
"""
