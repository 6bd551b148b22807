"""A black-box stress test: one broker process, clients over TCP, and a model of its own.

Begin with ``run.py``, which puts a run together. Clients (``producing.py``, ``consuming.py``,
``amending.py``, ``redriving.py``) record receipts, answers and deliveries in
``history.py``. ``troubles.py`` kills and damages meanwhile. At the end ``rules.py`` compares
the history with the promises of the broker.
"""
