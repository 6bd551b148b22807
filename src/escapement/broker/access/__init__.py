"""Access control of a running broker: its clients, and their rights.

Begin with ``needs.py``, the table of all requests and the rights that they need. ``caller.py`` is
the peer of one connection, and ``access.py`` has the tokens and grants of all roles.
"""
