"""A black-box stress test: broker processes, clients over TCP, and a model of its own.

Begin with ``run.py``, which puts a run together. Clients (``producing.py``, ``consuming.py``,
``amending.py``, ``redriving.py``) record receipts, answers and deliveries in ``history.py``. At the
end ``rules.py`` compares the history with the promises of the broker.

=========================================  ======================================================
one broker                                 ``troubles.py`` kills it and damages its files meanwhile
several brokers, which share a database    ``cluster.py`` runs them, ``cluster_troubles.py`` kills
several brokers without faults             ``soak.py`` watches what they use (``watched.py``)
=========================================  ======================================================
"""
