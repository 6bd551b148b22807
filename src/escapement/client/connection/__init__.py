"""The client's connection to a broker: addresses, requests, and reconnecting with back-off.

Begin with ``line.py``, the lasting connection of a client, which outlives single TCP connections.
"""
