"""Access control of a running broker: who is connected, and what they may do.

Begin with ``needs.py``, the table of all requests and the rights that they need. ``caller.py`` is
the peer of one connection, and ``access.py`` has the tokens and grants of all roles.
"""
