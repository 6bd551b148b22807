"""Order by key, with one message of each key in flight at a time, and key ranges of consumers.

Begin with ``key_order.py``, which owns the queues of ready messages and the busy keys.
``key_ranges.py`` decides which consumer gets the messages of a key.
"""
