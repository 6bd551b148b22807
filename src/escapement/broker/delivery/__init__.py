"""Delivery to consumers: the timekeeper, the pump, and the operations of consumers."""
