"""Deliveries: consumers, messages in flight, and the choice which consumer gets which messages."""
