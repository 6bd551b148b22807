"""The state of one topic: messages, producers, dedup keys, groups, quotas. No I/O.

Begin with :mod:`~escapement.broker.topic.topic`.
"""
