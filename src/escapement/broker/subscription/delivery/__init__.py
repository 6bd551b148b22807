"""Deliveries: consumers, what is in flight, and which consumer gets which messages."""
