"""Random lives of message tables, compared with a naive model.

Begin with ``lives.py``, which holds the broker, its consumers and the model. ``changes.py`` has the
steps of the application, in SQL, and ``troubles.py`` the faults, crashes and stale owners, and
brokers with another log.
"""
