"""Database engines: SQLite, MySQL and MariaDB behind one interface. Begin with ``base.py``."""
