"""Consuming: messages in, acknowledgements out."""
