"""A black-box stress test: broker processes, and clients over TCP.

Begin with ``run.py``, which puts a run together. Clients (``producing.py``, ``consuming.py``,
``amending.py``, ``redriving.py``) record receipts, answers and deliveries in a history. At the end
the rules of ``histories`` compare it with the promises of the broker, and ``shown.py`` names events
that the run never showed. If several brokers are killed, they also serve an application
(``application.py``), which sends and acknowledges in its own transactions (``transacting.py``) and
has a message table (``table_clients.py``).

=========================================  ======================================================
one broker                                 ``troubles.py`` kills it and damages its files meanwhile
several brokers, which share a database    ``cluster.py`` runs them, ``cluster_troubles.py`` kills
several brokers without faults             ``soak.py`` watches what they use (``watched.py``)
=========================================  ======================================================
"""
