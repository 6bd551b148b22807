"""Delivery to consumers: the timekeeper, the pump, the sender, and the operations of consumers.

Begin with ``pump.py``, which decides when to read and send messages, and ``consuming.py``, which
handles requests.
"""
