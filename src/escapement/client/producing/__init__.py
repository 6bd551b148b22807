"""The producer: it sends messages and returns receipts. Begin with ``producer.py``."""
