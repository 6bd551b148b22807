"""The protocol between client and broker, without I/O.

Begin with ``connection.py``, the state machine of one end of a connection, for both clients and
brokers. ``frame.py`` splits a stream of bytes into frames. The folder ``commands`` has the commands
that frames contain, and ``fields.py`` checks their fields.
"""
