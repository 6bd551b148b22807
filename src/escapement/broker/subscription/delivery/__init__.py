"""Deliveries: consumers, messages in flight, and which consumer gets which messages.

Begin with ``in_flight.py``, which has the deliveries of a subscription. ``dispatcher.py`` chooses
the consumer of each run of messages.
"""
