"""Directories that the driver and all tasks share."""
