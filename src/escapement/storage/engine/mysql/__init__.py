"""The engine of MySQL and MariaDB. Begin with ``engine.py``."""
