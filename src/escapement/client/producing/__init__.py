"""The producer: it sends messages and returns receipts.

Begin with ``producer.py``. ``outbox.py`` has the messages that wait to be sent, and ``receipt.py``
the receipts.
"""
