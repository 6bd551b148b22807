"""Merges of segments, and whole new indexes."""
