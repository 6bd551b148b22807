"""Parts that tests share.

``processes`` has brokers, command lines and Spark in processes of their own, ``database`` the
servers of tests, ``faults`` parts that fail on purpose, ``storage`` logs, indexes and staged
entries, and ``messages`` what tests publish and receive. Begin with ``processes/broker.py``.
"""
