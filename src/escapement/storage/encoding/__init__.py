"""Encodings: how values are stored as bytes in rows of the database and of its journal."""
