"""The consumer: it receives messages and acknowledges them. Begin with ``inbox.py``."""
