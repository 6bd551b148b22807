"""The protocol between client and broker, without I/O.

``frame`` splits a stream of bytes into frames. ``commands`` has the commands that frames contain.
``connection`` has the state machine of one end of a connection, for both clients and brokers.
"""
