"""Deliveries: consumers, messages in flight, and which consumer gets which messages."""
