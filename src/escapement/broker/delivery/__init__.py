"""Delivery to consumers: the timekeeper, the pump, and the operations of consumers.

Begin with ``pump.py``, which sends messages, and ``consuming.py``, which handles requests.
"""
